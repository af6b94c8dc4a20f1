"""Masked arrays of NumPy: the data under the mask too, the mask itself, and the state that decides how it behaves.

`numpy.ma` shows part of that state only by changing it (asking for a fill value that was never set sets it), so it is
read from and written to the instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign
from dask_resilient.partitions.buffers import Packer, Unpacker, stage_bytes
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.partitions.parts import pack_array, unpack_array
from dask_resilient.protocols import Payload, Staged

__all__ = ["MaskedCodec"]

_FLAGS = {"hard": "_hardmask", "shared": "_sharedmask", "field": "_isfield"}
_STATE = frozenset({"_mask", "_fill_value", "_baseclass", "_optinfo", "_basedict", *_FLAGS.values()})
"""All that `numpy.ma` itself keeps in an instance."""


class MaskedCodec:
    """Stages and restores `numpy.ma.MaskedArray`."""

    name = "numpy.ma"

    def stage(self, value: Any) -> Staged | Declined:
        """Stage a masked array, or say why that cannot be exact."""
        out = Packer()
        try:
            schema = _pack(value, out)
        except Inexact as e:
            return Declined(f"the masked array {e}")
        return stage_bytes(self.name, schema, out.buffers)

    def restore(self, schema: Mapping[str, Any], payload: Payload) -> Any:
        """Give the masked array back; data and mask are views of the payload.

        Raises
        ------
        Foreign
            If the schema describes none, or its mask does not fit its data.
        """
        data = Unpacker(payload)
        array = unpack_array(schema["data"], data)
        # For records NumPy itself would set both.
        state: dict[str, Any] = {"_mask": np.ma.nomask, "_fill_value": None}
        if schema["mask"] is not None:
            state["_mask"] = unpack_array(schema["mask"], data)
            if not _fits(state["_mask"], array):
                raise Foreign(f"a mask of {state['_mask'].dtype} does not fit data of {array.dtype}")
        if schema["fill_value"] is not None:
            state["_fill_value"] = unpack_array(schema["fill_value"], data)
            if state["_fill_value"].ndim:
                raise Foreign("a fill value is no array")
        data.finish()
        for flag, attribute in _FLAGS.items():
            if type(schema[flag]) is not bool:
                raise Foreign(f"{schema[flag]!r} is no flag")
            state[attribute] = schema[flag]
        with np.errstate(all="ignore"):  # of records it makes a default fill value, which need not fit
            masked = array.view(np.ma.MaskedArray)
        vars(masked).update(state)
        return masked


def _pack(value: Any, out: Packer) -> dict[str, Any]:
    state = vars(value)
    if state["_baseclass"] is not np.ndarray:
        raise Inexact(f"masks a {state['_baseclass'].__qualname__}")
    own = sorted(map(str, state.keys() - _STATE)) + sorted(map(str, state.get("_optinfo") or ()))
    if own:
        raise Inexact(f"has attributes of its own ({', '.join(own)})")
    data: Any = np.ma.getdata(value, subok=False)
    mask, fill = state["_mask"], state["_fill_value"]
    masked = mask is not np.ma.nomask
    if masked and not (type(mask) is np.ndarray and _fits(mask, data)):
        raise Inexact("has a mask that does not fit its data")
    if masked and np.may_share_memory(data, mask):
        raise Inexact("has a mask that lies in its data; copy it")
    if fill is not None and not (type(fill) is np.ndarray and fill.ndim == 0):
        raise Inexact(f"has the fill value {fill!r}, which is no item")
    return {
        "data": pack_array(data, out),
        "mask": pack_array(mask, out) if masked else None,
        "fill_value": None if fill is None else pack_array(fill, out),
        **{flag: bool(state[attribute]) for flag, attribute in _FLAGS.items()},
    }


def _fits(mask: npt.NDArray[Any], data: npt.NDArray[Any]) -> bool:
    return mask.shape == data.shape and mask.dtype == np.ma.make_mask_descr(data.dtype)
