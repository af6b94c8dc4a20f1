"""Device arrays that dask-cuda has moved to the host, staged from there as what they will be again.

Nothing here calls CUDA: a value that was moved away because the device was full does not go back to be saved. The
frames are those of Dask's own serializers, whose header says shape, strides and dtype as in
``__cuda_array_interface__``; the pickle that stands beside it in the header is not opened. What is not understood is
declined.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign
from dask_resilient.partitions.arrays import stage_array
from dask_resilient.partitions.device import CUPY, NUMBA, span
from dask_resilient.partitions.inexact import Inexact
from dask_resilient.protocols import Payload, Staged

__all__ = ["SpilledCodec"]

_CODECS = {
    "numba.cuda.cudadrv.devicearray.DeviceNDArray": NUMBA.codec,
    "cupy.ndarray": CUPY.codec,
    "cupy._core.core.ndarray": CUPY.codec,
}
"""The codec by the type in the header."""


class SpilledCodec:
    """Stages `dask_cuda.device_host_file.DeviceSerialized`; its name never stands in a receipt."""

    name = "dask_cuda.spilled"

    def stage(self, value: Any) -> Staged | Declined:
        """Stage the array that was spilled, under the name of its own codec."""
        header, frames = value.header, value.frames
        codec = _CODECS.get(str(header.get("type")))
        if codec is None or header.get("serializer") != "dask" or len(frames) != 1:
            kind = header.get("type") or header.get("type-serialized")
            return Declined(f"dask-cuda has spilled it, and no codec reads a spilled {kind!r}")
        try:
            return stage_array(codec, _image(header["sub-header"], frames[0]))
        except Inexact as e:
            return Declined(f"the spilled array {e}")

    def restore(self, schema: Mapping[str, Any], payload: Payload) -> Any:  # noqa: ARG002
        """Restore nothing: what was staged has the name of the codec of the array."""
        raise Foreign(f"no partition is stored under codec {self.name!r}")


def _image(header: Mapping[str, Any], frame: Any) -> npt.NDArray[Any]:
    """Show the bytes of a frame as the array that it will be again.

    Raises
    ------
    Inexact
        If the header does not say in full what that is.
    """
    dtype = np.dtype(header["typestr"])
    if dtype.kind == "V":
        raise Inexact(f"has dtype {header['typestr']!r}, and what fields it had is lost")
    shape, strides = tuple(header["shape"]), tuple(header["strides"])
    memory = np.frombuffer(frame, np.uint8) if memoryview(frame).nbytes else np.empty(0, np.uint8)
    if not math.prod(shape) * dtype.itemsize:
        return np.ndarray(shape, dtype)
    before, nbytes = span(shape, strides, dtype.itemsize)
    if header.get("mask") is not None:
        raise Inexact("has a mask")
    if before or nbytes > memory.nbytes:
        raise Inexact(f"of shape {shape!r} and strides {strides!r} does not fit its {memory.nbytes:,} bytes")
    return np.ndarray(shape, dtype, memory, 0, strides)
