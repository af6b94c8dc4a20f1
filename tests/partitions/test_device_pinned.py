"""The pool of pinned host memory: bounded, used again, safe from any thread, and ordinary memory beyond it."""

from __future__ import annotations

import ctypes
import gc
import random
import threading

import numpy as np
import pytest

from dask_resilient.partitions import pinned
from dask_resilient.partitions.pinned import Pool
from dask_resilient.testing.codecs import staged
from tests.support.numba_arrays import on_device

MIB = 2**20


def is_pinned(memory):
    """Say whether an array lies in a block of a pool."""
    while isinstance(memory, np.ndarray):
        memory = memory.base
    return memory is not None and isinstance(getattr(memory, "obj", memory), ctypes.Array)


def test_block_returns_with_its_last_view(cuda, pool, fake_cuda):
    """As long as any view of it lives a block is in use; then the next one takes the same block."""
    memory = pool.take(MIB, 0)
    address = memory.ctypes.data
    view = memoryview(memory)[5:].toreadonly()
    del memory
    other = pool.take(MIB, 0)
    assert other.ctypes.data != address
    del view
    again = pool.take(MIB, 0)
    assert again.ctypes.data == address
    assert fake_cuda.fake_cuda_pinned() == pool.pinned == 2 * MIB


def test_bound_is_kept(cuda, pool, fake_cuda):
    """Beyond its limit the pool gives ordinary memory, and pinned memory again when some has returned."""
    taken = [pool.take(MIB, 0) for _ in range(6)]
    assert list(map(is_pinned, taken)) == 4 * [True] + 2 * [False]
    assert fake_cuda.fake_cuda_pinned() == 4 * MIB
    taken.pop(0)
    assert is_pinned(pool.take(MIB, 0))
    assert not is_pinned(pool.take(5 * MIB, 0))


def test_kept_blocks_make_room_for_another_size(cuda, pool, fake_cuda):
    """Blocks that nobody uses do not keep a value of another size from pinned memory."""
    del [pool.take(MIB, 0) for _ in range(4)][:]
    memory = pool.take(3 * MIB, 0)
    assert is_pinned(memory)
    assert fake_cuda.fake_cuda_pinned() == pool.pinned == 4 * MIB


@pytest.mark.parametrize(("nbytes", "block"), [(64 * 2**10, 64 * 2**10), (64 * 2**10 + 1, 80 * 2**10), (MIB, MIB)])
def test_little_of_a_block_is_unused(cuda, pool, nbytes, block):
    """A block is at most a quarter larger than what was asked for; what is given is exactly as large."""
    assert len(pool.take(nbytes, 0)) == nbytes
    assert pool.pinned == block


def test_small_values_take_ordinary_memory(cuda, pool):
    """Blocks of a few bytes would only fill the pool."""
    assert not is_pinned(pool.take(1000, 0))
    assert pool.pinned == 0


def test_pinning_that_fails_gives_ordinary_memory(cuda, pool, gpus):
    """A value is staged all the same, only slower."""
    gpus.gpu(0, cuda__cuMemHostAlloc=2)
    value = on_device(np.arange(10**5))
    assert staged(value).nbytes == 800_000
    assert pool.pinned == 0
    gpus.gpu(0, cuda__cuMemHostAlloc=None)
    assert staged(value).nbytes == 800_000
    assert pool.pinned > 0


def test_trim_unpins_what_nobody_uses(cuda, pool, fake_cuda):
    """What is in use stays pinned."""
    used, free = pool.take(MIB, 0), pool.take(2 * MIB, 0)
    del free
    pool.trim()
    assert fake_cuda.fake_cuda_pinned() == pool.pinned == MIB
    used[:] = 1


def test_staged_values_hold_their_blocks(cuda, pool, calls):
    """Saving many values one after another pins one block; it is freed for the next value with the staged one."""
    value = on_device(np.arange(10**5))
    calls()
    for _ in range(20):
        assert staged(value).nbytes == 800_000
    assert [name for name, _ in calls()].count("cuMemHostAlloc") == 1


def test_value_with_gaps_gives_its_block_back_at_once(cuda, pool):
    """What is staged of it is a copy without the gaps, in ordinary memory."""
    result = staged(on_device(np.arange(10**5)[::2]))
    pool.trim()
    assert pool.pinned == 0
    assert result.nbytes == 400_000


def test_device_that_is_lost_costs_no_error(cuda, pool, monkeypatch):
    """Unpinning in a context that is gone is passed over: its memory went with it."""
    memory = pool.take(MIB, 0)

    def lost(device, address):
        kept.append(address)
        raise pinned.DriverError("cuCtxPushCurrent returned 709 (CUDA_ERROR_CONTEXT_IS_DESTROYED)")

    kept = []
    free = pinned.driver.free_pinned
    monkeypatch.setattr(pinned.driver, "free_pinned", lost)
    del memory
    pool.trim()
    assert pool.pinned == 0
    for address in kept:
        free(0, address)


def test_many_threads_share_a_pool(cuda, pool, fake_cuda):
    """No block is in two hands, the bound holds, and in the end nothing is left pinned."""
    errors = []

    def work(seed):
        rng = random.Random(seed)
        held = []
        try:
            for i in range(150):
                memory = pool.take(rng.randrange(60_000, MIB), 0)
                memory[:] = seed
                held.append(memory)
                if len(held) > 3 or rng.random() < 0.4:
                    gone = held.pop(rng.randrange(len(held)))
                    assert gone.min() == gone.max() == seed
                    del gone
                assert fake_cuda.fake_cuda_pinned() <= pool.limit
                if i % 50 == 0:
                    pool.trim()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    pool.trim()
    assert fake_cuda.fake_cuda_pinned() == pool.pinned == 0


def test_block_may_return_inside_the_pool(cuda, pool, monkeypatch):
    """The garbage collector may drop the last view while the pool holds its lock: nothing waits for itself."""
    cycle = [pool.take(MIB, 0)]
    cycle.append(cycle)
    del cycle
    pin = pinned.driver.pinned

    def collect(device, nbytes):
        gc.collect()
        return pin(device, nbytes)

    monkeypatch.setattr(pinned.driver, "pinned", collect)
    memory = pool.take(2 * MIB, 0)
    assert is_pinned(memory)
    assert len(pool._returned) == 1


def test_pool_of_the_process_is_bounded():
    """The pool that workers use pins at most 256 MiB."""
    assert pinned.POOL.limit == 256 * MIB
    assert isinstance(pinned.POOL, Pool)
