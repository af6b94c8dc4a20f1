"""A small store that has everything, and how every partition of it ends when it is read in every way."""

from __future__ import annotations

from dask_resilient.core.manifest import Place
from dask_resilient.errors import LoadError
from dask_resilient.store import open_store, read_at
from dask_resilient.store.reading import verify_partition
from tests.support.store_life import FACTS, Impatient, Life, content, stage

PLACES = {
    Place("m", "0", 0, "old"): stage(1, rows=8, chunks=2),
    Place("m", "0", 1, "new"): stage(2, rows=8, chunks=2),
    Place("m", "1", 0, "b"): stage(3, rows=8, chunks=2),
    Place("other", "0", 0, "c"): stage(4, rows=8, chunks=2),
}
REVOKED = next(iter(PLACES))
VALID = [place for place in PLACES if place != REVOKED]


def make(root):
    """Make a store with two milestones, three partitions, and a revoked copy."""
    store = open_store(root, create=True, calls=Impatient())
    for name in ("m", "other"):
        store.declare(Life.description(name))
    for place, staged in PLACES.items():
        store.write(place, staged, FACTS)
        if place == REVOKED:
            store.revoke(place, "differs")
    return store


def ending(read, place):
    """Give the ending of a load by name; a good one has exactly the right bytes, whoever reads."""
    try:
        receipt, payload = read()
    except LoadError as e:
        said = f"{type(e).__name__}: {e}"
        assert "\n" not in said
        return said.partition(":")[0]
    assert receipt.place == place
    if payload is not None:
        assert payload.tobytes() == content(PLACES[place])
    return "good"


def endings(store):
    """Read every partition in each way that there is; give the ending of each, which the ways agree upon."""
    found = {}
    for place in PLACES:
        ways = [
            lambda place=place: store.read(place, "k"),
            lambda place=place: (verify_partition(store.calls, store.url, store.token, place), None),
        ]
        direct, verified = (ending(read, place) for read in ways)
        assert direct == verified
        found[place] = direct
        by_path = ending(lambda place=place: read_at(store.url, store.token, place.receipt), place)
        assert by_path == direct or (by_path != "good" and direct != "good") or by_path == "Unreachable"
    return found
