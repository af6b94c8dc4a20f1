"""XIDs: every row, what a user's file may change, and which of several is the cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core.faults import Class, Suspect
from dask_resilient.core.fixes import Fix
from dask_resilient.core.nvml import RECOVERY, recovery_action, recovery_in
from dask_resilient.core.xid import (
    COALESCE,
    NVERROR,
    OPERATIONAL,
    TABLE,
    UNKNOWN,
    XidEvent,
    class_of,
    count,
    incidents,
    lookup,
    with_overrides,
    without_links,
)
from dask_resilient.errors import SettingError

COPY_ENGINES = [39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)]
MEDIA_ENGINES = [82, 83, 84, 88, 89, *range(96, 106), 139]

OWN = {
    Class.OBSERVE: [
        14,
        37,
        38,
        44,
        63,
        66,
        67,
        93,
        106,
        107,
        108,
        121,
        141,
        *range(144, 149),
        152,
        153,
        154,
        *range(161, 165),
        170,
        185,
    ],
    Class.DEGRADE: [92, 157, 159, 160, 165, 168, 176],
    Class.KILL: [8, 11, 13, 25, 31, 32, 43, 45, 60, 68, 69, 80, 86, 94, 137, 174, *COPY_ENGINES, *MEDIA_ENGINES],
    Class.DRAIN: [54, 64, 74, 136, 142, 149, 155, 156, 166, 173, 175],
    Class.EVICT: [46, 48, 62, 78, 79, 95, 109, 110, 119, 120, 140, 143, 150, 151, 158, 167, 169, 171, 172],
}
"""What each XID asks for where it names the process itself, copied from the reference and not from the table."""

REPEAT = {38: Class.DEGRADE, 44: Class.DEGRADE, **dict.fromkeys([32, 80, *COPY_ENGINES], Class.DRAIN)}
NVLINK = {74, 136, 144, 145, 146, 147, 148, 149, 150, 155, 166, 170}
UNUSED = [1, 7, 9, 12, 15, 24, 30, 33, 42, 47, 49, 53, 55, 59, 61, 65, 73, 81, 87, 90, 91, 111, 118, 122, 125, 138]


def event(code: int, time: float = 0.0, own: bool | None = None, text: str = "", device: str = "GPU-0") -> XidEvent:
    return XidEvent(device, code, time, own, text)


@pytest.mark.parametrize(("code", "cls"), [(code, cls) for cls, codes in OWN.items() for code in codes])
def test_each_xid_asks_for_what_the_reference_says(code: int, cls: Class) -> None:
    """Where it names this process; what KILLs or EVICTs leaves nothing to read."""
    row = lookup(code)
    assert row.code == code
    assert class_of(event(code, own=True), row) is cls
    assert row.readable is (cls not in {Class.KILL, Class.EVICT})
    assert row.repeat is REPEAT.get(code)
    assert row.nvlink is (code in NVLINK)
    assert row.meaning


FIXES = {
    Fix.NOTHING: [
        *(14, 37, 38, 43, 44, 63, 66, 67, 92, 93),
        *(106, 107, 108, 137, 141, 152, 153, 157, 160, 161, 163, 164),
    ],
    Fix.OTHER: [45, 154, 171, 172, 174],
    Fix.APP: [8, 11, 13, 25, 31, 32, 60, 68, 69, 80, 86, *COPY_ENGINES, *MEDIA_ENGINES],
    Fix.LATER: [94, 121],
    Fix.LINK: [74, *range(144, 151)],
    Fix.SEAT: [54],
    Fix.UPDATE: [78],
    Fix.RESET: [46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 159],
    Fix.REBOOT: [79, 151],
    Fix.TICKET: [142, 165],
    Fix.UNKNOWN: [162, 166, 167, 168, 169, 170, 173, 175, 176, 185],
}
"""What is left to a human, copied from NVIDIA's catalogue and not from the table."""


def test_each_xid_says_what_is_left_to_a_human() -> None:
    """NVIDIA's immediate action; a number that the catalogue calls unused is for its support."""
    assert {code: fix for fix, codes in FIXES.items() for code in codes} == {code: TABLE[code].fix for code in TABLE}
    assert {lookup(code).fix for code in UNUSED} == {Fix.TICKET}


def test_the_table_has_no_row_that_the_reference_lacks() -> None:
    """And none twice."""
    codes = sorted(code for codes in OWN.values() for code in codes)
    assert codes == sorted(TABLE)


@pytest.mark.parametrize("code", OWN[Class.KILL])
def test_an_xid_of_another_process_kills_nothing_here(code: int) -> None:
    """Or of an unknown one. It is noted; a contained memory error leaves the device degraded until a reset."""
    for own in (False, None):
        assert class_of(event(code, own=own), lookup(code)) is (Class.DEGRADE if code == 94 else Class.OBSERVE)


@pytest.mark.parametrize("code", [*OWN[Class.DRAIN], *OWN[Class.EVICT]])
def test_what_is_wrong_with_the_device_counts_for_every_process(code: int) -> None:
    """Whoever is named."""
    for own in (True, False, None):
        assert class_of(event(code, own=own), lookup(code)) is TABLE[code].cls


@pytest.mark.parametrize("code", UNUSED)
def test_an_unknown_xid_drains_and_never_evicts(code: int) -> None:
    """It may mean anything, but the device still answers."""
    row = lookup(code)
    assert (row.code, row.cls, row.readable, row.source) == (code, Class.DRAIN, True, "no row")


@pytest.mark.parametrize(
    ("code", "suspect"),
    [
        *((code, Suspect.TASK) for code in (11, 13, 25, 31, 43, 69, 137)),
        *((code, Suspect.DEVICE) for code in (46, 48, 62, 63, 64, 79, 92, 94, 95, 119, 120, 140, 171, 172)),
        *((code, Suspect.UNKNOWN) for code in (8, 32, 39, 45, 74, 80, 109, 144, 150, 999)),
    ],
)
def test_programs_memory_and_links_make_different_suspects(code: int, suspect: Suspect) -> None:
    """A link has two ends, so neither is blamed by one report."""
    assert lookup(code).suspect is suspect


def test_copy_engines_are_numbered_as_nvidia_does() -> None:
    """39 is the first, 135 the twentieth."""
    assert [TABLE[code].name for code in (39, 41, 70, 135)] == [f"RC_CE{n}_ERROR" for n in (0, 2, 3, 19)]


def test_each_row_says_where_it_comes_from() -> None:
    """The catalogue, but for what it does not have."""
    assert {code: TABLE[code].source for code in (79, 173, 174, 175, 176, 185)} == {
        79: "NVIDIA XID catalogue",
        **dict.fromkeys((173, 174, 175, 176), NVERROR),
        185: OPERATIONAL,
    }


@pytest.mark.parametrize("code", [144, 145, 146, 149])
@pytest.mark.parametrize(
    ("text", "fatal"),
    [
        ("NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Fatal XC0 i0 Link 00 (0x1)", True),
        ("NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 00 (0x1)", False),
        ("NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Non-fatal XC0", False),
        ("", False),
    ],
    ids=["fatal", "nonfatal", "non-fatal", "no text"],
)
def test_links_of_the_fifth_generation_are_as_bad_as_their_line_says(code: int, text: str, fatal: bool) -> None:
    """NVML does not pass the line on: then the recovery action has to tell."""
    assert class_of(event(code, text=text), lookup(code)) is (Class.EVICT if fatal else TABLE[code].cls)


@pytest.mark.parametrize("code", sorted(NVLINK))
def test_links_only_degrade_where_the_cluster_does_not_use_them(code: int) -> None:
    """Also what their line calls fatal: whether a reset is needed, the recovery action says."""
    row = without_links(TABLE)[code]
    assert class_of(event(code), row).rank <= Class.DEGRADE.rank
    assert class_of(event(code, text="144, SAW_MVB Fatal"), row).rank <= Class.DEGRADE.rank
    assert without_links(TABLE)[79] == TABLE[79]


# -- recovery action --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "cls"),
    [
        *((0, Class.OBSERVE), (1, Class.EVICT), (2, Class.EVICT), (3, Class.DRAIN), (4, Class.DRAIN)),
        *((5, Class.DRAIN), (6, Class.EVICT), (7, Class.EVICT), (8, Class.DRAIN), (255, Class.DRAIN)),
    ],
)
def test_each_recovery_action_has_its_class(value: int, cls: Class) -> None:
    """One that this version does not know drains."""
    words, found = recovery_action(value)
    assert found is cls
    assert (str(value) in words) is (value not in RECOVERY)


@pytest.mark.parametrize(
    ("text", "value", "cls"),
    [
        ("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", 1, Class.EVICT),
        ("154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", 2, Class.EVICT),
        ("154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", 4, Class.DRAIN),
        ("154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", 0, Class.OBSERVE),
        ("154, something else", None, Class.OBSERVE),
        ("", None, Class.OBSERVE),
    ],
    ids=["reset", "reboot", "drain", "none again", "other words", "no text"],
)
def test_xid_154_says_in_its_line_what_is_wanted(text: str, value: int | None, cls: Class) -> None:
    """Without the line, field 230 has to be read."""
    assert recovery_in(text) == value
    assert class_of(event(154, text=text), lookup(154)) is cls


# -- a user's file ----------------------------------------------------------------------------------------------------


def test_a_file_changes_some_fields_of_a_row_and_adds_rows() -> None:
    """What it does not name stays; a row that is changed names the file as its source."""
    table = with_overrides({79: {"class": "drain", "nvlink": True}, "185": {}, 200: {"name": "NEW"}}, "site.yaml")
    assert table[79] == replace(TABLE[79], cls=Class.DRAIN, nvlink=True, source="site.yaml")
    assert table[185] == replace(TABLE[185], source="site.yaml")
    assert table[200] == replace(UNKNOWN, code=200, name="NEW", source="site.yaml")
    assert table[48] == TABLE[48]
    assert TABLE[79].cls is Class.EVICT


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([79], r"site.yaml: \[79\] must be a mapping of XID codes"),
        (None, "site.yaml: None must be a mapping of XID codes"),
        ({"seventy": {}}, "site.yaml: XID 'seventy' is no code"),
        ({True: {}}, "site.yaml: XID True is no code"),
        ({-1: {}}, "site.yaml: XID -1 is no code"),
        ({79: "drain"}, "site.yaml: XID 79 is 'drain'; it must be a mapping of fields"),
        ({79: {"clas": "drain"}}, "site.yaml: XID 79 has no field 'clas' that can be changed; known are class, "),
        ({79: {"cls": "drain"}}, "site.yaml: XID 79 has no field 'cls'"),
        ({79: {"code": 80}}, "site.yaml: XID 79 has no field 'code'"),
        ({79: {3: "x"}}, "site.yaml: XID 79 has no field 3"),
        (
            {79: {"class": "DRAIN"}},
            "site.yaml: XID 79: class = 'DRAIN' must be one of observe, degrade, kill, drain, evict",
        ),
        ({79: {"class": 3}}, "site.yaml: XID 79: class = 3 must be one of"),
        ({79: {"class": ["drain"]}}, r"site.yaml: XID 79: class = \['drain'\] must be one of"),
        ({79: {"suspect": "me"}}, "site.yaml: XID 79: suspect = 'me' must be one of task, device, unknown"),
        ({79: {"nvlink": "yes"}}, "site.yaml: XID 79: nvlink = 'yes' must be true or false"),
        ({79: {"name": 7}}, "site.yaml: XID 79: name = 7 must be text"),
    ],
)
def test_a_file_that_cannot_work_is_refused_with_row_and_field(changes: Any, says: str) -> None:
    """One clear sentence."""
    with pytest.raises(SettingError, match=says):
        with_overrides(changes, "site.yaml")


# -- incidents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gap", "number"), [(COALESCE, 1), (COALESCE + 0.001, 2)], ids=["just within", "just outside"])
def test_events_of_a_device_within_five_seconds_are_one_incident(gap: float, number: int) -> None:
    """The same XID is merged, and counted."""
    found = incidents([event(48, 100), event(48, 100 + gap)])
    assert len(found) == number
    assert found[0].count == 3 - number
    assert [e.code for e in found[0].events] == [48]


def test_devices_have_incidents_of_their_own() -> None:
    """Also at the same time."""
    found = incidents([event(48, 0), event(48, 0, device="GPU-1")])
    assert [incident.device for incident in found] == ["GPU-0", "GPU-1"]


@pytest.mark.parametrize("consequence", [43, 45, 174])
@pytest.mark.parametrize("cause", [31, 63, 94, 79, 109])
@pytest.mark.parametrize("first", [True, False], ids=["cause first", "cause last"])
def test_a_consequence_is_never_the_primary_cause_beside_another(consequence: int, cause: int, first: bool) -> None:
    """But the process is dead all the same, so the incident is as bad as the worst of both."""
    times = (0.0, 1.0) if first else (1.0, 0.0)
    (found,) = incidents([event(cause, times[0], True), event(consequence, times[1], True)])
    assert found.primary.code == cause
    assert found.cls is max(Class.KILL, TABLE[cause].cls, key=lambda cls: cls.rank)


@pytest.mark.parametrize("code", [43, 45, 174])
def test_a_consequence_alone_is_all_there_is_to_name(code: int) -> None:
    """It kills the process that it names, and no other."""
    (own,), (other,) = incidents([event(code, own=True)]), incidents([event(code, own=False)])
    assert (own.primary.code, own.cls, other.cls) == (code, Class.KILL, Class.OBSERVE)


def test_a_device_to_leave_whose_process_is_dead_cannot_be_read() -> None:
    """64 alone would let everything be copied out."""
    assert incidents([event(64, 0)])[0].cls is Class.DRAIN
    assert incidents([event(64, 0), event(43, 1, own=True)])[0].cls is Class.EVICT
    assert incidents([event(64, 0), event(43, 1, own=False)])[0].cls is Class.DRAIN


def test_the_worst_of_several_is_the_primary_cause() -> None:
    """Whatever came first."""
    (found,) = incidents([event(63, 0), event(31, 1, True), event(95, 2), event(92, 3)])
    assert (found.primary.code, found.cls) == (95, Class.EVICT)


@pytest.mark.parametrize("code", [48, 171, 172])
@pytest.mark.parametrize(
    ("contained", "cls"),
    [
        ([], Class.EVICT),
        ([event(94, 1, own=False)], Class.DEGRADE),
        ([event(94, COALESCE, own=False)], Class.DEGRADE),
        ([event(94, COALESCE + 0.01, own=False)], Class.EVICT),
        ([event(94, 1, own=True)], Class.EVICT),
        ([event(94, 1, own=None)], Class.EVICT),
        ([event(94, 1, own=False), event(94, 2, own=True)], Class.EVICT),
    ],
    ids=["alone", "elsewhere", "just in time", "too late", "here", "somewhere", "here too"],
)
def test_a_double_bit_error_contained_in_another_process_only_degrades(
    code: int, contained: list[XidEvent], cls: Class
) -> None:
    """Unless this process was hit as well, or nobody knows."""
    assert incidents([event(code, 0), *contained])[0].cls is cls


def test_an_xid_that_names_this_process_once_counts_as_its_own() -> None:
    """NVML and the kernel log both report it, and only the log knows the process."""
    (found,) = incidents([event(31, 0, None), event(31, 0.2, True, "the line")])
    assert (found.cls, found.events[0].text, found.count) == (Class.KILL, "the line", 2)


def test_repeats_are_counted_by_xid_from_the_first_of_each() -> None:
    """An event five seconds after the first is the same incident, one later a new one."""
    assert count([event(32, t) for t in (0, 3, 5, 5.1, 9)], 32) == 2
    assert count([event(39, 0)], 32) == 0


EVENTS = st.lists(
    st.builds(
        event,
        st.sampled_from([*TABLE, 7, 500]),
        st.floats(0, 60, allow_nan=False),
        st.sampled_from([True, None]),
    ),
    max_size=8,
)


@given(EVENTS, st.randoms())
def test_incidents_hold_every_event_and_do_not_depend_on_the_order_of_hearing(
    events: list[XidEvent], random: Any
) -> None:
    """Nothing is lost by coalescing."""
    found = incidents(events)
    assert sum(incident.count for incident in found) == len(events)
    assert {e.code for incident in found for e in incident.events} == {e.code for e in events}
    shuffled = sorted(events, key=lambda e: (e.time, random.random()))
    assert sorted(i.cls for i in incidents(shuffled)) == sorted(i.cls for i in found)


@given(EVENTS, st.builds(event, st.sampled_from([*TABLE, 7]), st.floats(0, 60), st.sampled_from([True, None])))
def test_one_more_event_never_makes_the_worst_incident_better(events: list[XidEvent], more: XidEvent) -> None:
    """It may join incidents, but what they ask for stays."""
    before = max((i.cls.rank for i in incidents(events)), default=-1)
    assert max(i.cls.rank for i in incidents([*events, more])) >= before
