"""Device arrays through the codec of `numba.cuda`, on the fakes: exact, in any layout, or declined."""

from __future__ import annotations

import subprocess
import sys
import threading
import types

import numpy as np
import pytest

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Unreachable
from dask_resilient.partitions import buffers, device
from dask_resilient.testing.codecs import CodecContract, payload_of, round_trip, staged
from tests.support import numba_arrays
from tests.support.numba_arrays import DTYPES, LAYOUTS, assert_same, image, on_device


class TestDeviceArrays(CodecContract):
    codec = "numba.cuda"

    @pytest.fixture(params=["axes exchanged", "0-d", "zero length, F", "backwards", "repeated", "nested fields"])
    def value(self, cuda, request):
        return on_device(LAYOUTS[request.param]())

    def assert_same(self, restored, original):
        assert_same(restored, original)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["C", "F", "backwards"])
def test_every_dtype_comes_back(cuda, dtype, layout):
    """Arrays of every dtype that numba can hold on a device come back bit by bit, in any layout."""
    raw = np.random.default_rng(0).integers(0, 100, (4, 6, np.dtype(dtype).itemsize), np.uint8)
    host = (raw > 50)[..., 0] if dtype == "?" else raw.view(dtype)[..., 0]
    host = {"C": host.copy(), "F": host.copy(order="F"), "backwards": host[::-1, ::-2]}[layout]
    value = on_device(host)
    assert staged(value).codec == "numba.cuda"
    assert_same(round_trip(value), value)
    assert image(value).tobytes() == host.tobytes()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_comes_back(cuda, name):
    """It does so bit by bit, and is stored as a NumPy array in the same layout is: schema, Zarr data type and bytes."""
    host = LAYOUTS[name]()
    value = on_device(host)
    assert_same(round_trip(value), value)
    mine, its = staged(value), staged(host)
    assert (mine.schema, mine.data_type, mine.shape, mine.crc32c) == (its.schema, its.data_type, its.shape, its.crc32c)


def test_large_arrays_are_cut(cuda, pool, monkeypatch):
    """Chunks of a large value are views of the one pinned block that it was copied to."""
    monkeypatch.setattr(buffers, "CHUNK_NBYTES", 2**18)
    value = on_device(np.arange(10**5, dtype="f8"))
    result = staged(value)
    assert [len(b"".join(chunk)) for chunk in result.chunks] == [200_000] * 4
    first, last = (np.frombuffer(result.chunks[i][0], np.uint8).ctypes.data for i in (0, 3))
    assert last - first == 600_000
    assert pool.pinned
    assert_same(round_trip(value), value)


def test_what_is_staged_is_a_copy(cuda):
    """A consumer that changes the value in place later does not reach what was staged."""
    value = on_device(np.arange(10**5))
    result = staged(value)
    image(value)[:] = 0
    assert partitions.digest(result.chunks) == result.crc32c


def test_restored_memory_is_as_large_as_the_items(used):
    """A view with gaps comes back without them; an array that repeats its items takes the memory of one of them."""
    for host, nbytes in ((np.arange(1000.0)[::2], 4000), (np.broadcast_to(np.ones(8), (10**6, 8)), 64)):
        result = staged(on_device(host))
        before = used()
        value = partitions.restore(result.codec, result.schema, payload_of(result))
        assert used() - before == nbytes == len(payload_of(result))
        del value


# -- streams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [True, False])
def test_staging_waits_for_every_stream(cuda, monkeypatch, named):
    """The bytes are those after all queued work, whether the array names the stream, another one, or none."""
    monkeypatch.setenv("FAKE_CUDA_LAZY", "1")
    stream = cuda.stream()
    value = cuda.device_array(1000, "i8", stream=stream if named else 0)
    image(value)[:] = 1
    value.copy_to_device(np.arange(1000), stream=stream)
    assert image(value).max() == 1
    assert payload_of(staged(value)).view("i8").tolist() == list(range(1000))


def test_restoring_synchronises_around_the_copy(cuda, calls):
    """The device is idle before memory is written that a pool may have given out too early, and after it."""
    result = staged(on_device(np.arange(100)))
    calls()
    value = partitions.restore(result.codec, result.schema, payload_of(result))
    assert calls() == [
        ("cuMemAlloc_v2", 800),
        ("cuCtxSynchronize", 0),
        ("cuMemcpyHtoD_v2", 800),
        ("cuCtxSynchronize", 0),
    ]
    assert image(value).tolist() == list(range(100))


def test_current_context_stays_as_it_was(cuda, fake_cuda):
    """A thread finds its own context again, also one that had none."""
    values = [on_device(np.arange(10))]
    current = []

    def work():
        import ctypes

        for step in (lambda: None, lambda: staged(values[0])):
            step()
            context = ctypes.c_void_p()
            fake_cuda.cuCtxGetCurrent(ctypes.byref(context))
            current.append(context.value)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    work()
    assert current[:2] == [None, None]
    assert current[2] == current[3]
    assert current[2] is not None


def test_copies_run_on_the_device_of_the_array(cuda, gpus, monkeypatch):
    """In a process that sees several devices, the one that holds the array is asked, whichever is current."""
    value = on_device(np.arange(10**5))
    result = staged(value)
    monkeypatch.setattr(device.driver, "device_of", lambda pointer: 1)
    gpus.gpu(0, cuda__cuCtxSynchronize=719)
    assert staged(value).crc32c == result.crc32c
    gpus.gpu(0, cuda__cuCtxSynchronize=None)
    gpus.gpu(1, cuda__cuMemcpyDtoH_v2=700, cuda__cuMemcpyHtoD_v2=701)
    assert "700" in partitions.stage(value).reason
    with pytest.raises(Unreachable, match="701"):
        partitions.restore(result.codec, result.schema, payload_of(result))


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "name"), [("cuCtxSynchronize", "cuCtxSynchronize"), ("cuMemcpyDtoH_v2", "cuMemcpyDtoH")]
)
def test_cuda_error_while_staging_is_declined(cuda, gpus, function, name):
    """A device that fails while a value is copied from it costs the copy, never the task, nor the next copy."""
    value = on_device(np.arange(10**5))
    gpus.gpu(0, **{f"cuda.{function}": 719})
    result = partitions.stage(value)
    assert isinstance(result, Declined)
    assert f"could not be copied from its device: {name} returned 719 (CUDA_ERROR_719)" in result.reason
    gpus.gpu(0, **{f"cuda.{function}": None})
    assert_same(round_trip(value), value)


@pytest.mark.parametrize(
    ("function", "code"), [("cuMemAlloc_v2", 2), ("cuMemcpyHtoD_v2", 700), ("cuCtxSynchronize", 719)]
)
def test_device_that_cannot_take_a_value_is_unreachable(cuda, gpus, used, function, code):
    """Out of device memory, or a device that fails: the copy may be read elsewhere, and no memory stays taken here."""
    result = staged(on_device(np.arange(10**5)))
    payload = payload_of(result)
    before = used()
    gpus.gpu(0, **{f"cuda.{function}": code})
    with pytest.raises(Unreachable, match=rf"'numba.cuda' could be made of 800,000 bytes here: .*\b{code}\b") as caught:
        partitions.restore(result.codec, result.schema, payload)
    gpus.gpu(0, **{f"cuda.{function}": None})
    assert used() == before, caught  # though the traceback is alive


@pytest.mark.parametrize(("codec", "library"), [("numba.cuda", "numba"), ("cupy.ndarray", "cupy")])
def test_missing_library_is_unreachable(codec, library, monkeypatch):
    """Where the library of a value is not installed, its copy is intact and unreachable; no host array is given."""
    monkeypatch.setitem(sys.modules, library, None)
    result = staged(np.arange(3))
    with pytest.raises(Unreachable, match=library):
        partitions.restore(codec, result.schema, payload_of(result))


@pytest.mark.parametrize("slices", [np.s_[::4], np.s_[:, :1]])
def test_sparse_view_is_declined(cuda, slices, calls):
    """A view that spans far more than it shows is neither copied as a whole nor compacted where that needs a kernel."""
    value = on_device(np.zeros((2**12, 2**6)))[slices]
    calls()
    result = partitions.stage(value)
    assert isinstance(result, Declined)
    assert "is a view that spans" in result.reason
    assert "copy it in the task" in result.reason
    assert not calls()


def test_sliding_window_is_declined(cuda):
    """An array that overlaps itself could take many times the memory that it has."""
    window = np.lib.stride_tricks.sliding_window_view(np.arange(100), 30)
    assert "overlaps itself" in partitions.stage(on_device(window)).reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mask": object()}, "has a mask"),
        ({"version": 1}, "has version 1 of"),
        ({"version": 0, "mask": None}, "has version 0 of"),
        ({"typestr": "|V2"}, "calls itself"),
        ({"shape": (3, 1)}, "calls itself"),
    ],
)
def test_interface_that_is_not_understood_is_declined(change, reason):
    """What an interface says beyond the array, or against it, is never overlooked."""
    interface = {"shape": (3,), "typestr": "<i8", "data": (0, False), "version": 3, "stream": 1}
    value = types.SimpleNamespace(
        shape=(3,), dtype=np.dtype("i8"), strides=(8,), __cuda_array_interface__=interface | change
    )
    result = device.DeviceArrayCodec(device.NUMBA).stage(value)
    assert isinstance(result, Declined)
    assert reason in result.reason


def test_no_driver_is_a_clear_reason():
    """Where there is no CUDA driver the reason says so, whatever comes with a value."""
    code = (
        "import types, numpy as np\n"
        "from dask_resilient.partitions import device, driver\n"
        "driver.LIBRARY = 'libcuda.so.none'\n"
        "cai = {'shape': (3,), 'typestr': '<i8', 'data': (64, False), 'version': 3}\n"
        "value = types.SimpleNamespace(shape=(3,), dtype=np.dtype('i8'), strides=(8,), __cuda_array_interface__=cai)\n"
        "print(device.DeviceArrayCodec(device.CUPY).stage(value).reason)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "there is no NVIDIA driver on this machine" in done.stdout


# -- CuPy, which needs a GPU, by a stand-in ----------------------------------------------------------------------------


@pytest.fixture
def cupy(cuda, monkeypatch):
    """A stand-in for the two calls of CuPy that the row makes, and for ``copy(order="K")``."""

    def ndarray(shape, dtype, memptr, strides):
        from numba.cuda.cudadrv.devicearray import DeviceNDArray

        return DeviceNDArray(shape, strides, dtype, gpu_data=memptr.gpu_data)

    module = types.ModuleType("cupy")
    module.ndarray = ndarray
    module.cuda = types.SimpleNamespace(alloc=lambda nbytes: cuda.device_array(nbytes, "u1"))
    monkeypatch.setitem(sys.modules, "cupy", module)
    return device.DeviceArrayCodec(device.CUPY)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_row_of_cupy_restores_any_layout(cupy, name):
    """The row asks CuPy for memory of the size of the payload, and for an array with these strides over it."""
    value = on_device(LAYOUTS[name]())
    result = cupy.stage(value)
    assert result.codec == "cupy.ndarray"
    assert_same(partitions.restore(result.codec, result.schema, payload_of(result)), value)


def test_sparse_view_is_made_compact_on_its_device(cupy, calls):
    """Where the library can, a view that spans far more than it shows is copied on the device first."""
    host = np.arange(2.0**18).reshape(2**12, 2**6)[:, ::4]
    compact = on_device(host.copy(order="K"))

    interface = {"shape": host.shape, "typestr": "<f8", "data": (0, False), "version": 3}
    view = types.SimpleNamespace(
        shape=host.shape,
        dtype=host.dtype,
        strides=host.strides,
        __cuda_array_interface__=interface,
        copy=lambda order: {"K": compact}[order],
    )
    calls()
    result = cupy.stage(view)
    assert payload_of(result).tobytes() == host.tobytes()
    assert ("cuMemcpyDtoH_v2", host.nbytes) in calls()


def test_layouts_are_what_they_say(cuda):
    """The arrays of these tests have the strides and gaps they are meant to have, and are looked at independently."""
    host = np.arange(24).reshape(4, 6)[::-1, ::-2]
    value = on_device(host)
    assert value.strides == host.strides == (-48, -16)
    assert np.array_equal(numba_arrays.image(value), host)
