"""The four endings of a load, by real damage in a real store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dask_resilient.errors import Damaged
from tests.support.cluster import Cluster, cluster_test
from tests.support.damage import cut, flip
from tests.support.waiting import until

CHAIN = {"D": [], "K": ["D"]}


def grow(file: Path) -> None:
    """Append a byte."""
    with file.open("ab") as f:
        f.write(b"x")


DAMAGE: dict[str, Callable[[Cluster], None]] = {
    "chunk missing": lambda x: x.chunk("K").unlink(),
    "chunk flipped": lambda x: flip(x.chunk("K")),
    "chunk truncated": lambda x: cut(x.chunk("K")),
    "chunk grown": lambda x: grow(x.chunk("K")),
    "metadata flipped": lambda x: flip(x.chunk("K").parent / "zarr.json"),
    "receipt missing": lambda x: x.receipt("K").unlink(),
    "receipt truncated": lambda x: cut(x.receipt("K")),
}


@cluster_test(workers=1)
async def test_good(x: Cluster) -> None:
    """A load that brings the value is no run of the user's function."""
    (k,) = await x.saved(CHAIN, "K")
    x.drop("K")
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 1, "K": 1}
    assert x.world.loaded("K") == 1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("damage", DAMAGE)
@cluster_test(workers=0)
async def test_damaged(x: Cluster, damage: str, workers: int) -> None:
    """Read again by another process, revoked by a tombstone, computed anew, saved as the next generation."""
    for _ in range(workers):
        await x.join(ready=True)
    (k,) = await x.saved(CHAIN, "K")
    old = x.place("K")
    DAMAGE[damage](x)
    x.drop("K")
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 2, "K": 2}
    await x.durable("K")
    (event,) = x.events("load-ended")
    (second,) = x.events("second-read")
    assert (event["ending"], second["ending"]) == ("damaged", "damaged")
    new = x.place("K")
    assert (new.milestone, new.index, new.generation) == (old.milestone, old.index, old.generation + 1)
    assert x.tombstones() == [old.tombstone]
    assert (x.store / new.receipt).exists()
    x.drop("K")
    await x.right(CHAIN, k)
    assert x.world.counts() == {"D": 2, "K": 2}


@pytest.mark.parametrize("workers", [1, 2])
@cluster_test(workers=0)
async def test_the_save_waits_for_the_second_read(x: Cluster, workers: int) -> None:
    """What was computed anew is written only after the second read has found the damage too."""
    for _ in range(workers):
        await x.join(ready=True)
    (k,) = await x.saved(CHAIN, "K")
    x.chunk("K").unlink()
    x.world.hold("second read")
    x.drop("K")
    await x.right(CHAIN, k)
    entry = x.watch.ledger.entries["K"]
    await until(lambda: entry.held, what="the save is held")
    assert not x.tombstones()
    assert len(list(x.store.glob("data/*/*"))) == 1
    assert len(list(x.store.glob("commit/*/*.json"))) == 1
    x.world.free("second read")
    await x.durable("K")
    assert x.place("K").generation == 1


@pytest.mark.parametrize("workers", [1, 2])
@cluster_test(workers=0)
async def test_intact_on_the_second_read(x: Cluster, workers: int) -> None:
    """The first reader was wrong: nothing is revoked, the new attempt is dropped, the receipt is used again."""
    for _ in range(workers):
        await x.join(ready=True)
    (k,) = await x.saved(CHAIN, "K")
    old = x.place("K")
    x.world.faults["K"] = Damaged("only here")
    x.world.hold("second read")
    x.drop("K")
    await x.right(CHAIN, k)
    await until(lambda: x.watch.ledger.entries["K"].held, what="the save is held")
    x.world.free("second read")
    await x.durable("K")
    assert x.place("K") == old
    assert not x.tombstones()
    await until(lambda: not any(x.side(w).saver.staged for w in x.workers), what="the attempt is dropped")
    assert len(list(x.store.glob("data/*/*"))) == 1
    x.world.faults.clear()
    x.drop("K")
    await x.right(CHAIN, k)
    assert x.world.ran("K") == 2


@cluster_test(workers=2)
async def test_the_second_reader_is_lost(x: Cluster) -> None:
    """The scheduler reads then, not the worker that found the damage."""
    (k,) = await x.saved(CHAIN, "K")
    x.chunk("K").unlink()
    x.world.hold("second read")
    x.drop("K")
    await x.right(CHAIN, k)
    ((_, first),) = x.world.loads
    await until(lambda: x.watch.copies._reader)
    (second,) = {w.address for w in x.workers} - {first}
    assert x.watch.copies._reader["K"] == (second, first)
    await x.lose(second)
    assert x.watch.copies._reader["K"] == (None, first)
    x.world.free("second read")
    await until(lambda: x.events("second-read"))
    await x.durable("K")
    await x.right(CHAIN, k)


@pytest.mark.parametrize("workers", [1, 2])
@cluster_test(workers=0, resilience__recover__timeout="100ms")
async def test_a_second_read_that_hangs(x: Cluster, workers: int) -> None:
    """It proves nothing: no tombstone, the copy is not used again, the save that waited for it lets go."""
    for _ in range(workers):
        await x.join(ready=True)
    (k,) = await x.saved(CHAIN, "K")
    x.world.faults["K"] = Damaged("only here")
    reads = x.hold_reads()
    x.drop("K")
    await x.right(CHAIN, k)
    await until(lambda: x.events("second-read"))
    assert x.events("second-read")[0]["ending"] == "unreachable"
    await until(lambda: not any(x.side(w).saver.staged for w in x.workers), what="the attempt is dropped")
    assert not x.tombstones()
    assert not x.watch.ledger.entries["K"].usable
    reads.set()


def swapped(x: Cluster) -> None:
    """Put the receipt of another key where K's is."""
    x.receipt("K").write_bytes(x.receipt("J").read_bytes())


def other_key(x: Cluster) -> None:
    """Let K's receipt name another key, sealed as it should be."""
    body = json.loads(x.receipt("K").read_text())
    del body["sha256"]
    body["key"] = "0" * 64
    seal = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    x.receipt("K").write_text(json.dumps({**body, "sha256": seal}))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("change", [swapped, other_key])
@cluster_test(workers=0)
async def test_foreign(x: Cluster, change: Callable[[Cluster], None], workers: int) -> None:
    """Refused and reported, never revoked; the key is computed, now and at the next loss."""
    for _ in range(workers):
        await x.join(ready=True)
    k, _ = await x.saved({**CHAIN, "J": ["D"]}, "K", "J")
    change(x)
    for times in (2, 3):
        x.drop("K")
        await x.right(CHAIN, k)
        assert x.world.ran("K") == times
    assert x.world.loaded("K") == 1
    assert [event["ending"] for event in x.events("load-ended")] == ["foreign"]
    assert not x.events("second-read")
    assert not x.tombstones()
    (row,) = (row for row in x.watch.ledger.rows() if row["key"] == "K")
    assert row["state"] == "failed"
    assert "foreign" in row["reason"]
