"""The canary: only a wrong product fails it."""

from __future__ import annotations

import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from dask_resilient.core.faults import Class
from dask_resilient.core.health import Health, judge
from dask_resilient.core.limits import Limits
from dask_resilient.core.readings import Baseline, Name
from dask_resilient.probes import canary
from dask_resilient.probes.canary import Canary, is_right, readings
from tests.support.waiting import wait_until


class Library:
    """NumPy, of which one function does something else; what it makes multiplies as `spoil` says."""

    float32, uint32 = np.float32, np.uint32
    arange = staticmethod(np.arange)

    def __init__(self, *, product=None, empty=np.empty, error=None):
        self._product, self.empty, self._error = product, empty, error

    def asarray(self, values, dtype):
        if self._error is not None:
            raise self._error
        made = np.asarray(values, dtype=dtype).view(Spoilt)
        made.product = self._product
        return made


class Spoilt(np.ndarray):
    product = None

    def __matmul__(self, other):
        right = np.asarray(self) @ np.asarray(other)
        return right if self.product is None else self.product(right)


def flip(array):
    array.view(np.uint32)[17, 42] ^= 1 << 3
    return array


class Stuck(np.ndarray):
    """Memory of which one bit is stuck."""

    def __setitem__(self, where, value):
        super().__setitem__(where, value)
        np.asarray(self)[1000] |= 1 << 5


def test_a_right_product_is_right():
    """NumPy on this machine, and through the stand-in that the others use."""
    assert is_right(np)
    assert is_right(Library())


@pytest.mark.parametrize(
    "library",
    [
        Library(product=flip),
        Library(empty=lambda shape, dtype: np.empty(shape, dtype).view(Stuck)),
    ],
    ids=["one bit of the product", "one bit of memory is stuck"],
)
def test_one_wrong_bit_is_wrong(library):
    """Of a product, or of memory."""
    assert not is_right(library)


def test_every_order_of_summation_gives_the_same_bits():
    """So no library and no device is wrong for being another one: every partial sum is an exact float32."""
    left, right, expected = canary._known()
    reverse = left[:, ::-1].astype(np.float32) @ right[::-1].astype(np.float32)
    slow = sum(np.outer(left[:, k], right[k]).astype(np.float32) for k in range(canary.SIDE))
    assert np.array_equal(reverse, expected)
    assert np.array_equal(slow, expected)
    assert np.abs(left).max() <= canary.LARGEST
    assert canary.SIDE * canary.LARGEST**2 < 2**24


ERRORS = {
    "out of memory": (MemoryError("std::bad_alloc: out_of_memory: CUDA error"), "out of memory", False),
    "busy": (RuntimeError("cudaErrorDevicesUnavailable: CUDA-capable device(s) is/are busy"), "busy", False),
    "no device": (RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected"), "CUDA sees no device", False),
    "anything": (ValueError("what"), "what", False),
    "sticky": (RuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"), "Illegal", True),
}


@pytest.mark.parametrize(("error", "words", "sticky"), ERRORS.values(), ids=ERRORS)
def test_an_error_is_unknown_with_the_reason(error, words, sticky, monkeypatch):
    """A sticky one is also one of the process, since nothing in it can be computed any more."""
    monkeypatch.setattr(canary, "np", Library(error=error))
    canary._known.cache_clear()
    monkeypatch.setattr(canary, "_known", lambda: (1, 1, 1))
    first, *others = readings("host:x", False)
    assert (first.name, first.value) == (Name.CANARY, None)
    assert words in first.text
    assert [(r.name, r.value) for r in others] == ([("cuda-error.700", Class.KILL)] if sticky else [])
    verdict = judge([first], Baseline("host:x"), Limits(), first.time)
    assert verdict.health is Health.UNKNOWN


def test_a_gpu_without_cupy_is_unknown():
    """Nothing is imported for it."""
    (first,) = readings("GPU-0", True)
    assert (first.value, first.text) == (None, "no CuPy in this environment")


@pytest.fixture
def cupy(monkeypatch):
    """Give a stand-in for CuPy that computes with NumPy, and writes down its streams."""
    cupy = ModuleType("cupy")
    cupy.__spec__ = ModuleSpec("cupy", None)
    cupy.streams, cupy.entered = [], []

    for name in ("float32", "uint32", "arange", "asarray", "empty"):
        setattr(cupy, name, getattr(np, name))
    cupy.cuda = SimpleNamespace(Stream=lambda **options: Stream(cupy, options))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    canary._stream.cache_clear()
    yield cupy
    canary._stream.cache_clear()


class Stream:
    def __init__(self, cupy, options):
        self._cupy = cupy
        cupy.streams.append(options)

    def __enter__(self):
        self._cupy.entered.append(self)

    def __exit__(self, *_):
        pass


def test_a_gpu_is_tried_on_a_stream_of_its_own(cupy):
    """That waits for no other, and is the same each time: CuPy keeps freed memory for its stream."""
    for _ in range(3):
        (reading,) = readings("GPU-0", True)
        assert reading.value == "right"
    assert cupy.streams == [{"non_blocking": True}]
    assert len(cupy.entered) == 3


def test_a_cupy_that_cannot_be_imported_is_unknown(monkeypatch):
    """Such as one without its libraries."""
    broken = ModuleType("cupy")
    broken.__spec__ = None
    monkeypatch.setitem(sys.modules, "cupy", broken)
    (reading,) = readings("GPU-0", True)
    assert (reading.value, reading.text) == (None, "ValueError: cupy.__spec__ is None")


def test_one_at_a_time_and_one_that_hangs_is_unknown(monkeypatch):
    """No second one is started beside it; what it says when it comes back after all is told, and holds from then."""
    go, tries = threading.Event(), []

    def hang(device, own_gpu):
        tries.append(device)
        go.wait(20)
        return ["right after all"]

    monkeypatch.setattr(canary, "SECONDS", 0.05)
    monkeypatch.setattr(canary, "readings", hang)
    told = []
    x = Canary()
    x.start("d", False, told.append)
    x.start("d", False, told.append)
    wait_until(lambda: told)
    x.start("d", False, told.append)
    go.set()
    x._thread.join()
    assert tries == ["d"]
    ((reading,), after) = told
    assert (reading.value, reading.text) == (None, "it did not come back within 0.05 s")
    assert after == ["right after all"]
    x.start("d", False, told.append)
    wait_until(lambda: len(told) == 3)
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("dask-resilient-canary")])
    assert tries == ["d", "d"]
    assert told[2] == after


def test_a_process_without_threads_to_spare_is_unknown(monkeypatch):
    """It is told, not raised into the worker's event loop."""

    def refuse(self):
        raise RuntimeError("can't start new thread")

    told = []
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        Canary().start("d", False, told.extend)
    assert [(r.value, r.text) for r in told] == [(None, "can't start new thread")]


def test_what_an_error_says_can_be_sent(monkeypatch):
    """Whatever is in it: half characters end a connection, and users print whole tables."""
    monkeypatch.setattr(canary, "np", Library(error=OSError("\udcff" + 10_000 * "x")))
    monkeypatch.setattr(canary, "_known", lambda: (1, 1, 1))
    (reading,) = readings("host:x", False)
    assert reading.text.startswith("OSError: \\udcffxxx")
    assert len(reading.text.encode()) < 1_000


def test_it_is_told_as_a_reading():
    """By the thread that tried."""
    told = []
    Canary().start("host:x", False, told.extend)
    wait_until(lambda: told)
    assert [(r.device, r.name, r.value) for r in told] == [("host:x", Name.CANARY, "right")]
