"""The names of the number types of ml_dtypes that are known here; nothing imports ml_dtypes to know them."""

from __future__ import annotations

__all__ = ["ML_DTYPES"]

ML_DTYPES = frozenset(
    {
        *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
        *("int1", "int2", "int4", "uint1", "uint2", "uint4"),
    }
)
"""The number types of ml_dtypes, which NumPy holds but does not know by name."""
