"""What is kept of readings, and what is told of them: as little as the rules need."""

from __future__ import annotations

import pytest

from dask_resilient.core import kept
from dask_resilient.core.kept import Kept, Told
from dask_resilient.core.readings import NOTHING, Name, Reading


def reading(name: str, value: float | str | None, time: float = 0.0, text: str = "") -> Reading:
    return Reading("nvml", "GPU-0", name, value, time, text)


def values(store: Kept, name: str) -> list[object]:
    return [(r.time, r.value) for r in store.of(name)]


def test_of_a_state_the_last_is_kept() -> None:
    """The temperature of now is what counts."""
    store = Kept()
    for time in range(5):
        store.add(reading(Name.TEMPERATURE, 40 + time, time))
    assert values(store, Name.TEMPERATURE) == [(4, 44)]


@pytest.mark.parametrize("name", sorted(kept.EVENTS))
def test_of_what_happened_each_is_kept(name: str) -> None:
    """Twice the same XID is two XIDs."""
    store = Kept()
    for time in range(3):
        store.add(reading(name, 13, time))
    assert values(store, name) == [(0, 13), (1, 13), (2, 13)]


def test_of_a_counter_that_stands_still_both_ends_are_kept() -> None:
    """So a device with a hundred counters costs no more for being watched longer; every rise stays."""
    store = Kept()
    for time, value in enumerate([7, 7, 7, 7, 8, 8, 8, 9]):
        store.add(reading(Name.PCIE_REPLAYS, value, time))
    assert values(store, Name.PCIE_REPLAYS) == [(0, 7), (3, 7), (4, 8), (6, 8), (7, 9)]


def test_of_the_clocks_ten_minutes_are_kept() -> None:
    """They are counted by the minute; as long as nothing changes, one in fifteen seconds is enough."""
    store = Kept()
    for time in range(0, 1300, 10):
        store.add(reading(Name.CLOCKS_REASONS, 0, time))
    times = [r.time for r in store.of(Name.CLOCKS_REASONS)]
    assert times == list(range(1280 - 600, 1300, 20))


def test_of_the_clocks_every_change_that_counts_is_kept() -> None:
    """For ten minutes, at the shortest interval; reasons that are no slow-down come and go with every task."""
    store = Kept()
    for i in range(1200):
        store.add(reading(Name.CLOCKS_REASONS, 0x40 * (i % 2), i / 2))
    assert len(store.of(Name.CLOCKS_REASONS)) == 1200
    store = Kept()
    for i in range(1200):
        store.add(reading(Name.CLOCKS_REASONS, 0x4 * (i % 2), i / 2))
    assert len(store.of(Name.CLOCKS_REASONS)) == 40


def test_a_clock_that_was_set_back_hides_nothing() -> None:
    """What was read before that is not the last word."""
    store = Kept()
    for time, value in ((3590.0, 0), (3595.0, 0), (0.0, 3), (5.0, 4)):
        store.add(reading(Name.ECC_UNCORRECTED, value, time))
    assert values(store, Name.ECC_UNCORRECTED) == [(0, 3), (5, 4)]


def test_what_is_still_so_is_as_new() -> None:
    """A state that was read again, and is as it was, counts as present; what happened once did not happen again."""
    store = Kept()
    store.add(reading(Name.TEMPERATURE, 40, 0))
    store.add(reading(Name.MARGIN, 10, 0))
    store.add(reading(Name.XID, 13, 0))
    store.still([Name.TEMPERATURE, "nobody knows this"], 20)
    assert values(store, Name.TEMPERATURE) == [(20, 40)]
    assert values(store, Name.MARGIN) == [(0, 10)]
    store.still(None, 40)
    assert values(store, Name.MARGIN) == [(40, 10)]
    assert values(store, Name.XID) == [(0, 13)]


def test_a_probe_without_end_fills_nothing() -> None:
    """Names, and readings of a name, are bounded."""
    store = Kept()
    for i in range(2 * kept.NAMES):
        store.add(reading(f"thing.{i}", i))
        store.add(reading(Name.EVENT, i))
    assert len(list(store)) <= kept.NAMES + kept.LENGTH


def test_where_there_are_too_many_names_the_oldest_goes() -> None:
    """What is read again and again stays."""
    store = Kept(3)
    for time, name in enumerate("abc"):
        store.add(reading(name, 1, time))
    store.still(["a"], 5)
    store.add(reading("d", 1, 6))
    assert {r.name for r in store} == {"a", "c", "d"}


def test_dropped_is_gone() -> None:
    """What no longer holds does not linger."""
    store = Kept()
    store.add(reading(Name.HANG, 3))
    assert Name.HANG in store
    store.drop(Name.HANG)
    store.drop(Name.HANG)
    assert Name.HANG not in store


def test_only_changes_are_told() -> None:
    """A state once, however often it is read; what happened each time."""
    told = Told(every=20)
    first = [reading(Name.TEMPERATURE, 40), reading(Name.MARGIN, None, text="no")]
    assert told.news(first) == first
    assert told.news([*first, reading(Name.MARGIN, None, text="another reason")]) == [
        reading(Name.MARGIN, None, text="another reason")
    ]
    assert told.news([reading(Name.TEMPERATURE, 41)]) == [reading(Name.TEMPERATURE, 41)]
    assert len(told.news([reading(Name.XID, 13), reading(Name.XID, 13)])) == 2


def test_each_canary_is_told() -> None:
    """Up to when the device was found right is what its results are trusted by."""
    told = Told(60)
    assert [len(told.news([reading(Name.CANARY, "right", time)])) for time in range(3)] == [1, 1, 1]


def test_what_was_read_again_is_told_of_once_in_a_while() -> None:
    """All together where all were read; by name where some were not, since those may be no more."""
    told = Told(every=20)
    told.news([reading(Name.MARGIN, 1), reading(Name.INFOROM, 1)])
    assert told.still(0) is True
    assert told.still(19) is False
    told.news([reading(Name.MARGIN, 1)])
    assert told.still(20) == [Name.MARGIN]
    assert told.still(40) == []


def test_what_was_not_told_after_all_is_told_again() -> None:
    """Else a fault that was cut off would be lost for good."""
    told = Told(every=20)
    fault = [reading(Name.ECC_UNCORRECTED, 1)]
    told.untold(told.news(fault))
    assert told.still(0) == []
    assert told.news(fault) == fault


def test_names_without_end_fill_nothing() -> None:
    """Those that were read longest ago are forgotten; what is read again and again is told once."""
    told = Told(every=20)
    for i in range(3 * kept.NAMES):
        told.news([reading(Name.MARGIN, 1), reading(f"thing.{i}", None, text="no")])
    assert len(told._said) == kept.NAMES
    assert told.news([reading(Name.MARGIN, 1)]) == []


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (reading("probe.fans.fan.0", None, text="no sensor"), reading("probe.fans.fan.0", 1200)),
        (reading("probe.fans.fan.0", None, text="no sensor"), reading("probe.fans.fan.0", NOTHING)),
        (reading("stated.fans", "drain"), reading("stated.fans", NOTHING)),
    ],
    ids=["known again", "not given any more", "not stated any more"],
)
def test_what_a_third_party_takes_back_is_told_once(first: Reading, last: Reading) -> None:
    """And only where something was told before; also where that it was taken back had to be cut off."""
    told = Told(every=20)
    assert told.news([last]) == []
    assert told.news([first]) == [first]
    assert told.news([last, last]) == [last]
    assert told.still(0) == []
    told.news([first])
    told.untold(told.news([last]))
    assert told.news([last]) == [last]
    assert told.news([last]) == []
