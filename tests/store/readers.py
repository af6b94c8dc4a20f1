"""A program for the tests: what one reader of Zarr finds in some arrays. Each has a process of its own.

The pipeline of codecs is a global setting of zarr-python, and which reader is meant must never be in doubt.
"""

from __future__ import annotations

import hashlib
import json
import sys

import numpy as np


def by_zarr(path: str):
    """Read with zarr-python."""
    import zarr

    z = zarr.open_array(path, mode="r")
    return z[...], z.metadata.dimension_names


def by_zarrs(path: str):
    """Read with zarrs, beneath zarr-python, and with nothing else in its place."""
    import zarr
    import zarrs

    zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": True})
    z = zarr.open_array(path, mode="r")
    if not isinstance(z.async_array.codec_pipeline, zarrs.ZarrsCodecPipeline):
        raise TypeError(f"{z.async_array.codec_pipeline!r} reads, not zarrs")
    return z[...], z.metadata.dimension_names


def by_tensorstore(path: str):
    """Read with tensorstore."""
    import tensorstore

    t = tensorstore.open({"driver": "zarr3", "kvstore": f"file://{path}/"}, read=True).result()
    return t.read().result(), [label or None for label in t.domain.labels] if any(t.domain.labels) else None


def by_xarray(path: str):
    """Read with zarr-python, and label it as xarray does."""
    import xarray
    import zarr

    z = zarr.open_array(path, mode="r")
    labelled = xarray.DataArray(z[...], dims=z.metadata.dimension_names)
    return labelled.values, labelled.dims


def found(read, path: str) -> dict[str, object]:
    """Say what a reader finds."""
    value, names = read(path)
    value = np.asarray(value)
    digest = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    return {"dtype": value.dtype.name, "shape": value.shape, "digest": digest, "names": names and list(names)}


READERS = {"zarr": by_zarr, "zarrs": by_zarrs, "tensorstore": by_tensorstore, "xarray": by_xarray}

if __name__ == "__main__":
    for path in sys.argv[2:]:
        try:
            verdict = found(READERS[sys.argv[1]], path)
        except Exception as e:
            verdict = {"error": repr(e)}
        sys.stdout.write(json.dumps(verdict) + "\n")
