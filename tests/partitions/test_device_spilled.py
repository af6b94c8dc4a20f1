"""Values that dask-cuda has spilled: saved from where they are, without a call of CUDA, and nothing moves."""

from __future__ import annotations

import asyncio
import json
import threading
import types

import numpy as np
import pytest
from tornado.ioloop import IOLoop

from dask_resilient import partitions
from dask_resilient.core.outcome import Declined
from dask_resilient.errors import Foreign
from dask_resilient.internals.device_data import ask_for_room, make_room, peek
from dask_resilient.testing.codecs import payload_of, round_trip, staged
from tests.support.numba_arrays import DTYPES, assert_same, on_device


@pytest.fixture
def host_file(require, cuda, tmp_path):
    """Make a `DeviceHostFile` with limits in bytes."""
    require("dask_cuda")
    from dask_cuda.device_host_file import DeviceHostFile

    def make(device, host):
        return DeviceHostFile(str(tmp_path), device_memory_limit=device, memory_limit=host)

    return make


@pytest.fixture
def spill(require, cuda):
    """Give what dask-cuda makes of a value that it spills."""
    require("dask_cuda")
    from dask_cuda.device_host_file import device_to_host

    return device_to_host


def where(data):
    """Give the keys at each place of a `DeviceHostFile`, in the order in which they are next to go."""
    levels = (data.device_buffer, data.host_buffer)
    orders = [list(level.fast.order) if hasattr(level, "fast") else list(level) for level in levels]
    return (*orders, sorted(data.host_buffer.slow, key=str) if data.disk is not None else [], list(data.others))


def filled(data, count=6):
    """Put arrays of 80 bytes, and one host value, into a `DeviceHostFile`."""
    for i in range(count):
        data["x", i] = on_device(np.arange(10) + i)
    data["host"] = np.ones(3)
    return data


LIMITS = {
    "no limits": (None, None),
    "device": (170, None),
    "device and host": (170, 250),
    "nothing stays on the device": (10, 250),
    "host": (None, 20),
}


@pytest.mark.parametrize("limits", LIMITS)
def test_values_are_saved_where_they_are(host_file, calls, limits):
    """On the device, on the host or on disk: each value is staged right, and afterwards all is where it was."""
    data = filled(host_file(*LIMITS[limits]))
    before = where(data)
    calls()
    results = {i: staged(peek(data, ("x", i))) for i in reversed(range(6))}
    assert payload_of(staged(peek(data, "host"))).view("f8").tolist() == [1, 1, 1]
    made = [name for name, _ in calls()]
    assert where(data) == before
    assert made.count("cuMemcpyDtoH_v2") == len(before[0])  # those on the device
    assert not {"cuMemAlloc_v2", "cuMemcpyHtoD_v2"} & set(made)
    for i, result in results.items():
        assert result.codec == "numba.cuda"
        assert payload_of(result).view("i8").tolist() == list(range(i, i + 10))


def test_every_place_is_tried(host_file):
    """With tight limits values are at all three places, so that the tests here see each of them."""
    device, host, disk, _ = where(filled(host_file(170, 250)))
    assert min(map(len, (device, host, disk))) >= 1


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d[0] not in "VqQ"])  # the header calls long long long
@pytest.mark.parametrize("order", "CF")
def test_spilled_value_is_staged_as_the_device_value(spill, calls, dtype, order):
    """Codec, schema, Zarr data type and bytes are the same, and CUDA is not called."""
    raw = np.random.default_rng(0).integers(0, 2, (3, 4, np.dtype(dtype).itemsize), np.uint8)
    value = on_device(raw.view(dtype)[..., 0].copy(order=order))
    spilled = spill(value)
    calls()
    result = staged(spilled)
    assert not calls()
    its = staged(value)
    assert result.codec == its.codec
    assert (result.schema, result.data_type, result.shape) == (its.schema, its.data_type, its.shape)
    assert result.crc32c == its.crc32c
    value = partitions.restore(result.codec, json.loads(json.dumps(result.schema)), payload_of(result))
    assert_same(value, round_trip(on_device(raw.view(dtype)[..., 0].copy(order=order))))


@pytest.mark.parametrize("make", [lambda: np.zeros((0, 3)), lambda: np.array(1.5)])
def test_spilled_value_without_items_or_axes(spill, make):
    """Zero items and zero axes come back too."""
    assert_same(round_trip(spill(on_device(make()))), on_device(make()))


def test_spilled_fields_are_declined(spill):
    """The header of dask-cuda loses the fields, so what comes back would not be what was computed."""
    result = partitions.stage(spill(on_device(np.ones(3, [("a", "i4"), ("b", "f8")]))))
    assert isinstance(result, Declined)
    assert "what fields it had is lost" in result.reason


def test_spilled_collection_is_declined(spill):
    """A list of arrays on a device has no codec, spilled or not."""
    result = partitions.stage(spill([on_device(np.ones(3)), 1]))
    assert isinstance(result, Declined)
    assert "no codec reads a spilled 'list'" in result.reason


@pytest.mark.parametrize(
    ("header", "change", "reason"),
    [
        ({"type": "cudf.core.dataframe.DataFrame"}, {}, "no codec reads a spilled 'cudf"),
        ({"serializer": "pickle"}, {}, "no codec reads a spilled"),
        ({}, {"strides": (80, 8)}, "does not fit its 80 bytes"),
        ({}, {"strides": (-40, 8)}, "does not fit its 80 bytes"),
        ({}, {"mask": object()}, "has a mask"),
    ],
)
def test_header_that_is_not_understood_is_declined(spill, header, change, reason):
    """Another type, another serializer, memory outside of the frame, a mask: never a guess."""
    spilled = spill(on_device(np.ones((2, 5))))
    spilled.header = {**spilled.header, **header}
    spilled.header["sub-header"] = {**spilled.header["sub-header"], **change}
    result = partitions.stage(spilled)
    assert isinstance(result, Declined)
    assert reason in result.reason


def test_cupy_arrays_are_known_by_their_type(spill):
    """A spilled array of CuPy is stored under CuPy's codec; its header has the same form."""
    spilled = spill(on_device(np.arange(10)))
    spilled.header["type"] = "cupy.ndarray"
    assert staged(spilled).codec == "cupy.ndarray"


def test_no_partition_names_the_spilled_codec():
    """A receipt with this name is foreign: what is staged has the codec of the array."""
    with pytest.raises(Foreign, match=r"dask_cuda\.spilled"):
        partitions.restore("dask_cuda.spilled", {}, np.empty(0, np.uint8))


# -- looking at values of a worker without a GPU -----------------------------------------------------------------------


def test_dict_is_looked_up():
    """A worker without a memory limit keeps its values in a dict."""
    value = object()
    assert peek({"x": value}, "x") is value
    with pytest.raises(KeyError):
        peek({}, "x")


def test_spill_buffer_is_looked_up_where_the_value_is(tmp_path):
    """Neither does a value come back from disk, nor does the order of use change."""
    from distributed.spill import SpillBuffer

    data = SpillBuffer(str(tmp_path), target=400)
    for i in range(4):
        data["x", i] = np.full(20, i)
    before = list(data.fast.order), set(data.slow)
    assert min(map(len, before)) >= 1
    for i in reversed(range(4)):
        assert peek(data, ("x", i)).tolist() == [i] * 20
    assert (list(data.fast.order), set(data.slow)) == before


@pytest.mark.parametrize("limits", LIMITS)
def test_key_that_is_not_there(host_file, limits):
    """It is a KeyError at every combination of limits."""
    with pytest.raises(KeyError, match="y"):
        peek(filled(host_file(*LIMITS[limits])), "y")


def test_value_that_moves_meanwhile_is_found():
    """A value that leaves the host for the device between two looks is found in the next round."""
    device = {}

    class Moving(dict):
        def __getitem__(self, key):
            device[key] = self.pop(key)
            raise KeyError(key)

    data = types.SimpleNamespace(others={}, device_buffer=device, host_buffer=Moving(x=5))
    assert peek(data, "x") == 5


# -- room on the device ------------------------------------------------------------------------------------------------


def use(data):
    """Give the device memory that a `DeviceHostFile` counts."""
    return sum(value.nbytes for value in data.device.values())


@pytest.mark.parametrize("nbytes", [0, 80, 160, 240])
def test_room_is_made_under_the_limit(host_file, nbytes):
    """After it the value fits, and putting it spills nothing more; what goes is what would have gone anyway."""
    data, twin = (filled(host_file(240, None)) for _ in range(2))
    assert use(data) == 240
    make_room(data, nbytes)
    assert use(data) + nbytes <= 240
    room = where(data)
    for each in (data, twin):
        each["new"] = on_device(np.zeros(nbytes // 8))
    assert where(data)[0] == where(twin)[0] == [*room[0], "new"]
    assert [key for key in where(data)[1] if key != "new"] == room[1]


def test_value_above_the_limit_empties_the_device(host_file):
    """More than all cannot be made."""
    data = filled(host_file(240, None))
    make_room(data, 1000)
    assert use(data) == 0
    assert peek(data, ("x", 5)) is not None


@pytest.mark.parametrize("limits", ["no limits", "host"])
def test_data_without_a_device_limit_is_left_alone(host_file, limits):
    """Nothing is spilled where nothing has to be, nor in a worker without a GPU."""
    data = filled(host_file(*LIMITS[limits]))
    before = where(data)
    make_room(data, 10**9)
    assert where(data) == before
    make_room({"x": 1}, 10**9)


def test_room_is_made_on_the_event_loop(host_file):
    """A task asks for room and waits; the values move in the thread in which all values of the worker move."""
    data = filled(host_file(240, None))
    buffer, threads = data.device_buffer, []

    def evict(n):
        threads.append(threading.get_ident())
        buffer.evict_until_below_target(n)

    async def main():
        seen = types.SimpleNamespace(device_buffer=types.SimpleNamespace(n=240, evict_until_below_target=evict))
        worker = types.SimpleNamespace(data=seen, loop=IOLoop.current())
        await asyncio.to_thread(ask_for_room, worker, 80, 5)
        return threading.get_ident()

    assert asyncio.run(main()) == threads[0]
    assert use(data) == 160


def test_limit_holds_through_loads(host_file, used):
    """Restoring a hundred values, each after room was made for it, never takes more than the limit."""
    data = host_file(1000, None)
    result = staged(on_device(np.arange(10)))
    before = used()
    for i in range(100):
        make_room(data, result.nbytes)
        value = partitions.restore(result.codec, result.schema, payload_of(result))
        assert sum(v.nbytes for v in data.device.values()) + value.nbytes <= 1000
        data["y", i] = value
        del value
    assert used() - before <= 1000
    assert len(data) == 100
