"""Fakes of the NVIDIA driver libraries, on which the real pynvml, dask-cuda, cuda.core and numba.cuda run.

`fake_nvml.c` builds a ``libnvidia-ml.so.1``, `fake_cuda.c` a ``libcuda.so.1``: device memory is host memory, and there
are no kernels. `Control` injects faults while processes run; the head of each C file lists the keys.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

LIBRARIES = {"libnvidia-ml.so.1": "fake_nvml.c", "libcuda.so.1": "fake_cuda.c"}

GIB = 2**30


def real_driver() -> bool:
    """Say whether this machine has an NVIDIA driver: the fakes then stay away."""
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia").exists()


def build(directory: Path) -> Path:
    """Compile both libraries into a directory and give it."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    for name, source in LIBRARIES.items():
        options = ["-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", "-o", str(directory / name), str(HERE / source)]
        subprocess.run([compiler, *options, "-ldl", "-lpthread"], check=True)
    return directory


def load(libraries: Path) -> ctypes.CDLL:
    """Load both into this process, where a later dlopen by name finds them; gives the fake of CUDA."""
    ctypes.CDLL(str(libraries / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)
    cuda = ctypes.CDLL(str(libraries / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
    for name in ("fake_cuda_used", "fake_cuda_pinned"):
        getattr(cuda, name).restype = ctypes.c_size_t
    return cuda


def forget_nvml() -> None:
    """Let Dask look anew in this process whether there are GPUs."""
    from distributed.diagnostics import nvml
    from distributed.worker import DEFAULT_METRICS, DEFAULT_STARTUP_INFORMATION

    if nvml.pynvml is not None:
        nvml.NVML_STATE, nvml.NVML_OWNER_PID = nvml.NVMLState.UNINITIALIZED, None
    DEFAULT_METRICS.pop("gpu", None)
    DEFAULT_STARTUP_INFORMATION.pop("gpu", None)


def uuid(index: int) -> str:
    """Give the UUID of a fake GPU."""
    return f"GPU-fa4e0000-0000-0000-0000-{index:012x}"


class Control:
    """The control file, written atomically.

    Parameters
    ----------
    path
        Where it is; what `environment` gives points to it.
    count
        Number of GPUs.
    """

    def __init__(self, path: Path, count: int = 2, **keys: Any) -> None:
        self.path = path
        self._keys: dict[str, Any] = {"count": count, **keys}
        self._events = 0
        self._write()

    def environment(self, libraries: Path) -> dict[str, str]:
        """Give the environment of processes that shall see the fake GPUs."""
        paths = [str(libraries), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {"LD_LIBRARY_PATH": os.pathsep.join(paths), "FAKE_NVML_FILE": str(self.path)}

    def clear(self) -> None:
        """Take every key but the number of GPUs out."""
        self._keys = {"count": self._keys["count"]}
        self._write()

    def set(self, **keys: Any) -> None:
        """Set keys of the whole library, ``__`` for a dot; None takes one out."""
        self._update({key.replace("__", "."): value for key, value in keys.items()})

    def gpu(self, index: int, **keys: Any) -> None:
        """Set keys of one GPU, ``__`` for a dot; None takes one out."""
        self._update({f"gpu{index}.{key.replace('__', '.')}": value for key, value in keys.items()})

    def xid(self, index: int, number: int) -> None:
        """Let a GPU report an XID."""
        self.event(index, 8, number)

    def event(self, index: int, kind: int, data: int = 0) -> None:
        """Let a GPU report an event of NVML."""
        self._events += 1
        self._update({f"event.{self._events}": f"{index},{kind},{data}"})

    def _update(self, keys: dict[str, Any]) -> None:
        self._keys = {key: value for key, value in {**self._keys, **keys}.items() if value is not None}
        self._write()

    def _write(self) -> None:
        fd, name = tempfile.mkstemp(dir=self.path.parent)
        with os.fdopen(fd, "w") as file:
            file.writelines(f"{key}={value}\n" for key, value in self._keys.items())
        Path(name).replace(self.path)
