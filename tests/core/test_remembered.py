"""What an entry about a device may say, everything that is refused, and what the entries of one device come to."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core import remembered
from dask_resilient.core.manifest import seal
from dask_resilient.core.outcome import Declined
from dask_resilient.core.remembered import (
    MOST_BYTES,
    MOST_N,
    QUARANTINED,
    RELEASED,
    TRIED,
    Remembered,
    decides,
    dumps_entry,
    folder_of,
    loads_entry,
    make_entry,
    refusal,
    state,
)
from dask_resilient.errors import Damaged, Foreign

GPU = "GPU-5f2b6a3e-1d0c-4b7a-9e8f-00112233aabb"
FACTS = {
    "time": 1.5e9,
    "phase": "quarantined",
    "rule": "xid.79",
    "evidence": ["XID 79 was logged"],
    "host": "node7",
    "run": "r1",
}


def entry(event=QUARANTINED, n=0, device=GPU, **facts):
    """Make an entry with its number."""
    return {**make_entry(event, device, **{**FACTS, **facts}), "n": n}


def loads(raw, n=0, device=GPU):
    """Read an entry of that device."""
    return loads_entry(raw, folder_of(device), n)


# -- entries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [QUARANTINED, RELEASED, TRIED])
def test_an_entry_round_trips(event):
    """Every field comes back as it was, with its number."""
    made = make_entry(event, GPU, **FACTS, by="alice", failed=2, until_released=True)
    assert loads(dumps_entry(made, 7), 7) == {**made, "n": 7}


@given(
    st.text().filter(remembered.is_remembered),
    st.lists(st.text(st.characters(exclude_categories=())), max_size=40),
    st.text(st.characters(exclude_categories=())),
)
def test_any_device_and_evidence_round_trip(device, evidence, host):
    """Whatever a driver says is kept; of endless evidence as much as fits, and how much more there was."""
    made = make_entry(TRIED, device, **{**FACTS, "evidence": evidence, "host": host})
    assert loads(dumps_entry(made, 0), device=device) == {**made, "n": 0}
    if len(evidence) > 20:
        assert made["evidence"][-1] == f"and {len(evidence) - 19} lines more"


@pytest.mark.parametrize("character", ["x", "\\", "\0", "é", "\U0001f4a5", "\udc80"])
def test_endless_texts_are_cut_to_what_is_read_again(character):
    """However long the evidence is, the entry is not too large to count."""
    text = character * 10**5
    made = make_entry(QUARANTINED, GPU, **{**FACTS, "evidence": [text] * 50, "rule": text, "host": text}, by=text)
    raw = dumps_entry(made, MOST_N)
    assert len(raw) < MOST_BYTES
    assert not refusal(loads(raw, MOST_N))


def test_an_entry_cut_short_anywhere_is_damaged():
    """No part of a file reads as an entry."""
    raw = dumps_entry(make_entry(QUARANTINED, GPU, **FACTS), 0)
    for end in range(len(raw)):
        with pytest.raises(Damaged):
            loads(raw[:end])


def test_every_flipped_bit_of_an_entry_is_noticed():
    """Or changes nothing that it says."""
    raw = dumps_entry(make_entry(QUARANTINED, GPU, **FACTS), 0)
    for i in range(len(raw)):
        flipped = bytearray(raw)
        flipped[i] ^= 4
        with contextlib.suppress(Damaged, Foreign):
            assert loads(bytes(flipped)) == entry()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe\x80" * 1000,
        b"\x80" * 1000,
        b'{"sha256": 1}',
        b'{"a":' * 100_000,
        b"[" * 1_000_000,
        b'{"n": ' + b"9" * 5000 + b"}",
        b"\0" * 600,
        b" " * (MOST_BYTES + 1),
        seal({"a": 1}),
        seal({}),
    ],
    ids=range(13),
)
def test_what_is_no_entry_is_damaged(raw):
    """Broken text, JSON that is too deep, too many digits and files that are too large are told, whatever they hold."""
    with pytest.raises(Damaged):
        loads(raw)


@pytest.mark.parametrize(
    "change",
    [
        *({"n": n} for n in (-1, True, 0.0, "0", None, MOST_N + 1, 10**30)),
        *({"device": name} for name in (None, 7, "", "host:node7/0", "GPU-\udc80", "x" * 10_000)),
        *({"time": t} for t in (None, "now", True, -1.0, float("nan"), float("inf"), 1e300, 10**400)),
        *({"event": event} for event in (None, "evicted", "", ["quarantined"], {})),
        *({name: value} for name in ("phase", "rule", "host", "by", "run") for value in (None, 3, ["x"], "\ud800")),
        *({"evidence": value} for value in (None, "text", [1], [None], {"a": "b"}, ["x"] * 21, [["x"]], ["\ud800"])),
        *({"failed": value} for value in (None, -1, 1.0, True, "2")),
        *({"until_released": value} for value in (None, 0, "no")),
    ],
    ids=str,
)
def test_entries_of_wrong_types_are_refused(change):
    """A hostile hand may seal anything: each field has its type and its range, or the entry does not count."""
    body = entry() | change
    assert refusal(body)
    assert len(refusal(body)) < 200
    if change.get("time") != 10**400:
        with pytest.raises((Damaged, Foreign)):
            loads(seal(body))
    assert isinstance(state([body]), Declined)


@pytest.mark.parametrize("field", ["n", "device", "time", "event", "phase", "rule", "evidence", "host", "by", "run"])
def test_missing_fields_are_refused(field):
    """Nothing of an entry is guessed."""
    body = entry()
    del body[field]
    assert field in refusal(body)


def test_deep_values_are_refused_without_being_shown():
    """A value that is too deep to be shown is named by its type."""
    deep = []
    for _ in range(10**5):
        deep = [deep]
    assert refusal(entry() | {"rule": deep}) == "the entry has rule = something of type list"


@pytest.mark.parametrize("field", ["rule", "evidence", "host"])
@pytest.mark.parametrize("empty", ["", "  \n"])
def test_an_entry_quarantines_only_with_rule_evidence_and_host(field, empty):
    """Without one of them it does not count, and says why; nor is it written."""
    lacking = entry(**{field: [empty] if field == "evidence" else empty})
    assert refusal(lacking) == f"the entry quarantines without {field}"
    assert state([lacking]) == Declined(f"the entry quarantines without {field}")
    with pytest.raises(Damaged, match=f"without {field}"):
        dumps_entry(lacking, 0)
    with pytest.raises(Damaged, match=f"without {field}"):
        loads(seal(lacking))
    assert not refusal(lacking | {"event": RELEASED})


def test_no_evidence_at_all():
    """An empty list is no evidence."""
    assert refusal(entry(evidence=[])) == "the entry quarantines without evidence"


def test_an_entry_of_another_place_is_foreign():
    """An entry counts only in its device's folder and under its own number, so that copies change nothing."""
    raw = dumps_entry(make_entry(QUARANTINED, GPU, **FACTS), 3)
    with pytest.raises(Foreign, match="another folder"):
        loads(raw, 3, device="GPU-1")
    with pytest.raises(Foreign, match="number 3"):
        loads(raw, 4)


def test_an_unknown_format_is_foreign():
    """An entry of a later version is not guessed at."""
    with pytest.raises(Foreign, match="format"):
        loads(seal(entry() | {"format": 2}))


def test_later_versions_may_say_more():
    """What an entry says beside its fields is left out."""
    assert loads(seal(entry() | {"temperature": 90})) == entry()


# -- what they come to -------------------------------------------------------------------------------------------------


def test_a_quarantine_is_remembered_with_its_cause():
    """Everything that a new run must know comes from the entry."""
    found = state([entry(by="alice", failed=1, until_released=True)])
    assert found == Remembered(
        GPU, True, "xid.79", ("XID 79 was logged",), "node7", "alice", 1.5e9, failed=1, until_released=True
    )


def test_nothing_is_remembered_of_an_unknown_device():
    """Without entries that is said."""
    assert isinstance(state([]), Declined)


def test_the_newest_event_wins_by_number_not_by_time():
    """Clocks of schedulers differ; the order in which entries were created does not."""
    out, back = entry(n=1, time=9e9), entry(RELEASED, 2, time=1.0)
    for order in ([out, back], [back, out]):
        assert state(order).out is False
    assert state([back, entry(n=3)]).out is True


def test_canaries_add_failures_and_never_bring_back():
    """What a canary found counts on top of the quarantine, and only a release ends either."""
    entries = [
        entry(n=0, failed=1),
        entry(TRIED, 1, failed=2, until_released=True, rule="canary"),
        entry(TRIED, 2, phase="active"),
    ]
    found = state(entries)
    assert (found.out, found.rule, found.failed, found.until_released) == (True, "xid.79", 2, True)
    released = state([*entries, entry(RELEASED, 3, phase="active")])
    assert (released.out, released.failed, released.until_released) == (False, 0, False)
    again = state([*entries, entry(RELEASED, 3, phase="active"), entry(n=4)])
    assert (again.out, again.failed, again.until_released) == (True, 0, False)


def test_canaries_say_themselves_that_a_device_is_out():
    """Where the entry that quarantined is damaged or out of sight, it stays out; after it was in service, not."""
    tried = [entry(TRIED, n, phase="quarantined", time=100.0 + n) for n in (5, 6)]
    found = state(tried)
    assert (found.out, found.since) == (True, 105.0)
    assert isinstance(state([*tried, entry(TRIED, 7, phase="active")]), Declined)
    assert isinstance(state([entry(TRIED, 5, host="")]), Declined)


def test_entries_that_do_not_count_change_nothing_and_are_told():
    """A newer one without host is passed over, with the reason."""
    found = state([entry(n=0), entry(RELEASED, 1), entry(n=2, host="")])
    assert found.out is False
    assert found.ignored == ("the entry quarantines without host",)


@given(st.lists(st.tuples(st.sampled_from([QUARANTINED, RELEASED, TRIED]), st.integers(0, 5), st.booleans())))
def test_state_follows_a_plain_model(events):
    """Out since the last quarantine that no release followed; failures are the most since then."""
    entries = [entry(event, n, failed=failed, until_released=lock) for n, (event, failed, lock) in enumerate(events)]
    last = max((n for n, each in enumerate(events) if each[0] != TRIED), default=None)
    found = state(entries)
    if last is None:
        assert isinstance(found, Remembered if events else Declined)
        return
    assert found.out == (events[last][0] == QUARANTINED)
    assert found.failed == max(failed for _, failed, _ in events[last:])
    assert found.until_released == (found.out and any(lock for *_, lock in events[last:]))
    # What is older than the entry that decides does not matter, so it need not be read.
    assert decides(entries[last])
    assert state(entries[last:]) == found


def test_entries_travel_as_plain_json():
    """An entry holds nothing but what JSON keeps, and no number but finite ones."""
    made = make_entry(QUARANTINED, GPU, **FACTS)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
