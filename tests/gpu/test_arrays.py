"""Arrays of CuPy on a real GPU: exact in any layout, and final, whatever still runs on the device."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.partitions import device
from dask_resilient.partitions.pinned import Pool
from dask_resilient.testing.codecs import CodecContract, payload_of, round_trip, staged
from tests.support.waiting import wait_until

pytestmark = pytest.mark.gpu

DTYPES = ["?", "i1", "i2", "i4", "i8", "q", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]

LAYOUTS = {
    "C": lambda xp, x: x,
    "F": lambda xp, x: xp.asfortranarray(x),
    "axes exchanged": lambda xp, x: x.transpose(2, 0, 1),
    "every other": lambda xp, x: x[::2, :, ::3],
    "backwards": lambda xp, x: x[::-1, :, ::-2],
    "repeated": lambda xp, x: xp.broadcast_to(x[0], (1000, *x.shape[1:])),
    "0-d": lambda xp, x: x[0, 0, 0].reshape(()),
    "zero length": lambda xp, x: x[:0],
    "in the middle": lambda xp, x: x[1:2, 1:2, 3:5],
}

SLOW = r"""
extern "C" __global__ void slow(double* x, long long n, long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {}
    for (long long i = threadIdx.x; i < n; i += blockDim.x) x[i] = i;
}
"""
"""Writes a value, but only after a while."""


def make(cupy, dtype, layout):
    raw = np.random.default_rng(0).integers(0, 100, (4, 5, 6, np.dtype(dtype).itemsize), np.uint8)
    host = (raw > 50)[..., 0] if dtype == "?" else raw.view(dtype)[..., 0]
    return LAYOUTS[layout](cupy, cupy.asarray(host))


def assert_same(restored, original):
    import cupy

    assert type(restored) is cupy.ndarray
    assert restored.dtype == original.dtype
    assert restored.dtype.char == original.dtype.char
    assert restored.shape == original.shape
    assert cupy.asnumpy(restored).tobytes() == cupy.asnumpy(original).tobytes()
    assert restored.device == cupy.cuda.Device()
    if original.size:
        axes = [i for i, n in enumerate(original.shape) if n > 1]
        assert sorted(axes, key=lambda i: -abs(restored.strides[i])) == sorted(
            axes, key=lambda i: -abs(original.strides[i])
        )


class TestCupyArrays(CodecContract):
    codec = "cupy.ndarray"

    @pytest.fixture(params=["C", "axes exchanged", "backwards", "repeated", "zero length"])
    def value(self, cupy, request):
        return make(cupy, "f8", request.param)

    def assert_same(self, restored, original):
        assert_same(restored, original)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_layout_comes_back(cupy, dtype, layout):
    """Bit by bit, as an array of CuPy, and stored as a NumPy array of the same layout is."""
    value = make(cupy, dtype, layout)
    assert_same(round_trip(value), value)
    mine, its = staged(value), staged(LAYOUTS[layout](np, cupy.asnumpy(make(cupy, dtype, "C"))))
    assert (mine.data_type, mine.shape, mine.crc32c) == (its.data_type, its.shape, its.crc32c)


def test_fields_come_back(cupy):
    """Where this CuPy holds structured dtypes, they come back with their fields."""
    host = np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")])
    try:
        value = cupy.asarray(host)
    except (TypeError, ValueError) as e:
        pytest.skip(f"this CuPy holds no fields: {e}")
    assert round_trip(value).dtype == host.dtype


@pytest.fixture
def slow(cupy):
    """Give a function that has a value written on a stream, half a second from now."""
    kernel = cupy.RawKernel(SLOW, "slow")
    cycles = int(cupy.cuda.Device().attributes["ClockRate"]) * 500

    def slow(value, stream):
        with stream:
            kernel((1,), (256,), (value, np.int64(value.size), np.int64(cycles)))

    value = cupy.zeros(10)
    slow(value, cupy.cuda.Stream(non_blocking=True))  # compiled now, so that it does not count below
    cupy.cuda.Device().synchronize()
    return slow


@pytest.mark.parametrize("current", [True, False])
def test_value_that_is_still_being_written(cupy, slow, current):
    """A stream that waits for no other writes the value while it is saved: what is stored is what it wrote."""
    stream = cupy.cuda.Stream(non_blocking=True)
    value = cupy.zeros(100_000)
    cupy.cuda.Device().synchronize()
    slow(value, stream)
    assert not stream.done
    with stream if current else cupy.cuda.Stream.null:
        result = staged(value)
    assert payload_of(result).view("f8").tolist() == list(range(100_000))


def test_restored_value_is_there_for_every_stream(cupy):
    """A stream that waits for no other reads a restored value at once."""
    result = staged(cupy.arange(8 * 10**6, dtype="f8"))
    payload = payload_of(result)
    stream = cupy.cuda.Stream(non_blocking=True)
    for _ in range(20):
        value = partitions.restore(result.codec, result.schema, payload)
        with stream:
            copy = value.copy()
        stream.synchronize()
        assert cupy.array_equal(copy, cupy.arange(8 * 10**6))


def compute(cupy, stop, errors):
    """Count on a stream of its own until it is stopped."""
    try:
        with cupy.cuda.Stream(non_blocking=True):
            x = cupy.zeros(10**6)
            for n in itertools.count(1):
                x += 1
                if n % 100 == 0:
                    assert float(x.min()) == float(x.max()) == n
                    if stop.is_set():
                        break
    except BaseException as e:
        errors.append(e)


def test_saving_while_kernels_run(cupy):
    """Threads that compute go on, and neither their values nor what is saved is disturbed."""
    values = [cupy.full(10**6, float(i)) for i in range(4)]
    stop, errors = threading.Event(), []
    threads = [threading.Thread(target=compute, args=(cupy, stop, errors)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        for i, value in enumerate(values):
            assert_same(round_trip(value), value)
            assert payload_of(staged(value)).view("f8")[-1] == i
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_sparse_view_is_made_compact_on_the_device(cupy, monkeypatch):
    """A view that spans far more than it shows takes no more host memory than it shows."""
    pool = Pool(64 * 2**20)
    monkeypatch.setattr(device, "POOL", pool)
    value = cupy.arange(10**7, dtype="f8")[::10]
    result = staged(value)
    assert pool.pinned < 10 * 2**20
    assert_same(partitions.restore(result.codec, result.schema, payload_of(result)), value)
    repeated = cupy.broadcast_to(value, (3, 10**6))
    assert isinstance(partitions.stage(repeated), Declined)


def test_pinned_memory_is_pinned(cupy, monkeypatch):
    """The driver knows the memory of the pool as pinned, and knows it no more when it was freed."""
    pool = Pool(16 * 2**20)
    memory = pool.take(2**20, 0)
    address = memory.ctypes.data
    host = cupy.cuda.runtime.pointerGetAttributes(address)
    assert host.type == 1  # cudaMemoryTypeHost
    del memory
    pool.trim()
    assert cupy.cuda.runtime.pointerGetAttributes(address).type != 1


def test_restored_on_the_current_device(cupy):
    """With several devices it is the one that is current in the task; staging finds the one that holds the value."""
    result = staged(cupy.arange(1000))
    for ordinal in range(cupy.cuda.runtime.getDeviceCount()):
        with cupy.cuda.Device(ordinal):
            value = partitions.restore(result.codec, result.schema, payload_of(result))
        assert value.device.id == ordinal
        assert staged(value).crc32c == result.crc32c


def test_out_of_memory_is_unreachable(cupy):
    """A value that does not fit on the device is not restored, and nothing of it stays there."""
    result = staged(cupy.zeros(100 * 2**20, "u1"))
    pool = cupy.cuda.MemoryPool()
    pool.set_limit(size=50 * 2**20)
    with cupy.cuda.using_allocator(pool.malloc), pytest.raises(OSError, match=r"cupy\.ndarray"):
        partitions.restore(result.codec, result.schema, payload_of(result))
    assert pool.used_bytes() == 0


def test_spilled_values(cupy, tmp_path):
    """What dask-cuda has spilled is saved from the host, as the same array, and does not move."""
    pytest.importorskip("numba")  # Dask spills CuPy's arrays by numba, or by rmm
    host_file = pytest.importorskip("dask_cuda.device_host_file")
    from dask_resilient.internals.device_data import peek

    data = host_file.DeviceHostFile(str(tmp_path), device_memory_limit=20_000, memory_limit=20_000)
    for i in range(6):
        data["x", i] = cupy.arange(1000, dtype="f8").reshape(20, 50, order="F" if i % 2 else "C") + i
    before = list(data.device), list(data.host), list(data.disk)
    assert min(map(len, before)) >= 1
    for i in range(6):
        result = staged(peek(data, ("x", i)))
        value = cupy.arange(1000, dtype="f8").reshape(20, 50, order="F" if i % 2 else "C") + i
        assert (result.codec, result.crc32c) == ("cupy.ndarray", staged(value).crc32c)
        assert_same(partitions.restore(result.codec, result.schema, payload_of(result)), value)
    assert (list(data.device), list(data.host), list(data.disk)) == before


def test_nothing_stays_pinned_or_allocated(cupy, monkeypatch):
    """A hundred values saved and restored take the memory of one."""
    pool = Pool(64 * 2**20)
    monkeypatch.setattr(device, "POOL", pool)
    memory = cupy.get_default_memory_pool()
    value = cupy.arange(10**6)
    used = memory.used_bytes()
    for _ in range(100):
        assert_same(round_trip(value), value)
    wait_until(lambda: memory.used_bytes() == used, 5, "device memory is back")
    assert pool.pinned < 10 * 2**20
