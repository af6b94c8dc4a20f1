"""From readings to a verdict: one case a rule, an edge, and a reason for not knowing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core.cuda_errors import classify
from dask_resilient.core.faults import Class
from dask_resilient.core.health import Health, Verdict, judge
from dask_resilient.core.limits import Limits
from dask_resilient.core.nvml import EVENTS, NVML_REASONS
from dask_resilient.core.readings import NOTHING, Baseline, Name, Reading, canary, task_error
from dask_resilient.core.rules import RULES
from dask_resilient.core.xid import TABLE, with_overrides
from tests.support.readings import GPU, NOW, OTHER, TCP, UCX, WELL, check, reading, verdict

# -- what is quoted ----------------------------------------------------------------------------------------------------


def test_what_many_tasks_say_is_quoted_once() -> None:
    """Each of them is a finding, and a reader needs the sentence once; other sentences stay."""
    said = [*["cudaErrorIllegalAddress: an illegal access"] * 5, "cudaErrorLaunchFailure: unspecified"]
    faults = [fault for fault in map(classify, said) if fault is not None]
    assert len(faults) == len(said)
    found = verdict(*(task_error(GPU, fault, NOW - n) for n, fault in enumerate(faults)))
    assert len(found.evidence) == len(set(found.evidence)) == 2


# -- nothing wrong, nothing known ------------------------------------------------------------------------------------


def test_a_device_with_readings_and_no_complaint_is_healthy() -> None:
    """No rule fired, so none is named."""
    assert verdict(WELL) == Verdict(GPU, Health.HEALTHY, Class.OBSERVE, "", (), readable=True)


def test_a_device_of_which_nothing_was_read_is_unknown() -> None:
    """Neither healthy nor unhealthy, and whether its data can be read is unknown too."""
    found = verdict()
    assert (found.health, found.readable, found.rule) == (Health.UNKNOWN, None, "nothing-known")
    assert found.evidence == ("nothing was read lately",)


@pytest.mark.parametrize(("age", "known"), [(60.0, True), (60.1, False)], ids=["just fresh", "just too old"])
def test_old_readings_say_nothing_of_the_present(age: float, known: bool) -> None:
    """Neither good nor bad ones."""
    assert verdict(reading(Name.RECOVERY_ACTION, 0, age)).health is (Health.HEALTHY if known else Health.UNKNOWN)
    assert verdict(reading(Name.RECOVERY_ACTION, 1, age)).health is (Health.UNHEALTHY if known else Health.UNKNOWN)


def test_the_last_reading_of_a_name_counts() -> None:
    """In whatever order they come; one that could not be taken replaces what was known."""
    bad, good = reading(Name.RECOVERY_ACTION, 1, 9), reading(Name.RECOVERY_ACTION, 0, 1)
    assert verdict(bad, good).health is verdict(good, bad).health is Health.HEALTHY
    gone = Reading.unknown("nvml", GPU, Name.RECOVERY_ACTION, NOW, "it hangs")
    assert verdict(bad, gone).health is Health.UNKNOWN


def test_readings_of_other_devices_say_nothing_of_this_one() -> None:
    """Neither good nor bad ones: one bad device never hides the others."""
    other = Reading("nvml", OTHER, Name.RECOVERY_ACTION, 1, NOW)
    assert verdict(other).health is Health.UNKNOWN
    assert verdict(other, WELL).health is Health.HEALTHY


@pytest.mark.parametrize("code", sorted(NVML_REASONS))
def test_what_nvml_does_not_tell_is_unknown_and_never_a_fault(code: int) -> None:
    """Missing, unsupported, forbidden, MIG, WSL: the reason is shown; what is known of the rest still counts."""
    name = "nvlink-state.3"
    refused = Reading.from_nvml("nvml", GPU, name, NOW, code)
    found = verdict(refused)
    assert (found.health, found.readable) == (Health.UNKNOWN, None)
    assert found.unknown == found.evidence == (f"{name}: {NVML_REASONS[code]}",)
    beside = verdict(refused, reading(Name.SRAM_THRESHOLD, value=False))
    assert (beside.health, beside.unknown) == (Health.HEALTHY, found.unknown)


def test_a_code_that_nobody_knows_is_shown_as_it_is() -> None:
    """A later NVML may have more."""
    assert Reading.from_nvml("nvml", GPU, "x", NOW, 77).text == "NVML returned 77"


@pytest.mark.parametrize("name", sorted(Name))
def test_what_is_no_number_is_unknown(name: str) -> None:
    """Drivers and stubs write it in several ways; nothing of it is a fault, and nothing shows that all is well."""
    for value in ("N/A", float("nan"), float("inf"), 2**64 - 1, 2**32 - 1, None):
        found = verdict(reading(name, value, 2), before={name: 1.0})
        assert found.health is Health.UNKNOWN, found


@pytest.mark.parametrize("kind", ["disk", "a.third.party"])
def test_names_that_no_rule_knows_prove_nothing(kind: str) -> None:
    """Free disk space does not make a device healthy."""
    assert verdict(reading(kind, 5)).health is Health.UNKNOWN


# -- recovery action, XIDs, and what else the driver says ------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "tcp", "ucx"),
    [
        *((1, Class.EVICT, Class.EVICT), (2, Class.EVICT, Class.EVICT), (3, Class.DEGRADE, Class.DRAIN)),
        *((4, Class.DRAIN, Class.DRAIN), (5, Class.DRAIN, Class.DRAIN), (6, Class.EVICT, Class.EVICT)),
        *((7, Class.EVICT, Class.EVICT), (8, Class.DRAIN, Class.DRAIN)),
    ],
)
def test_each_recovery_action_is_obeyed(value: int, tcp: Class, ucx: Class) -> None:
    """Draining peer-to-peer traffic is nothing to a cluster that has none."""
    for limits, cls in ((TCP, tcp), (UCX, ucx)):
        found = verdict(reading(Name.RECOVERY_ACTION, value), limits=limits)
        check(found, cls, f"recovery-action.{value}")
        assert found.source == "NVIDIA GPU Memory Error Management"


@pytest.mark.parametrize("code", sorted(TABLE))
def test_each_xid_is_judged_and_named(code: int) -> None:
    """For the process that it names, in a cluster that uses links; the row says where it comes from."""
    row = TABLE[code]
    found = verdict(WELL, reading(Name.XID, code, 5, "the line", own=True), limits=UCX)
    check(found, row.cls, f"xid.{code}")
    assert found.source == row.source
    assert f"XID {code} {row.name}" in found.evidence[0]
    assert found.evidence[0].endswith("the line")


@pytest.mark.parametrize("code", sorted(code for code, row in TABLE.items() if row.nvlink))
def test_xids_of_links_only_degrade_without_ucx(code: int) -> None:
    """Nothing travels there."""
    found = verdict(WELL, reading(Name.XID, code, 5, own=True))
    check(found, Class.DEGRADE if TABLE[code].cls is not Class.OBSERVE else Class.OBSERVE, f"xid.{code}")


@pytest.mark.parametrize(("age", "cls"), [(600.0, Class.EVICT), (600.1, Class.OBSERVE)], ids=["just yet", "just over"])
def test_an_event_counts_for_ten_minutes(age: float, cls: Class) -> None:
    """Who acts on verdicts remembers longer."""
    assert verdict(WELL, reading(Name.XID, 79, age)).cls is cls


@pytest.mark.parametrize(
    ("own", "error_after", "cls"),
    [
        *((True, None, Class.KILL), (False, None, Class.OBSERVE), (None, None, Class.OBSERVE)),
        *((None, 5.0, Class.KILL), (None, -5.0, Class.KILL), (None, 5.1, Class.OBSERVE), (False, 1.0, Class.OBSERVE)),
    ],
)
def test_an_xid_without_a_pid_is_ours_if_cuda_failed_here_at_the_same_time(
    own: bool | None, error_after: float | None, cls: Class
) -> None:
    """In containers NVML is all there is; an error five seconds away is about something else."""
    readings = [WELL, reading(Name.XID, 31, 50, own=own)]
    if error_after is not None:
        readings.append(reading("cuda-error.700", "kill", 50 - error_after))
    found = verdict(*readings)
    assert (found.rule == "xid.31") is (cls is Class.KILL or error_after is None)
    assert found.cls is (cls if error_after is None else Class.KILL)


def test_the_primary_cause_of_an_incident_is_named() -> None:
    """45 follows from 31, and 43 from 63; the process is dead in both cases."""
    found = verdict(WELL, reading(Name.XID, 45, 5, "first", own=True), reading(Name.XID, 31, 4, "last", own=True))
    check(found, Class.KILL, "xid.31")
    assert found.evidence[0].endswith("with 45: last")
    found = verdict(WELL, reading(Name.XID, 43, 4, own=True), reading(Name.XID, 63, 5))
    check(found, Class.KILL, "xid.63")


@pytest.mark.parametrize(
    ("code", "own", "ages", "cls"),
    [
        (32, True, (5, 11), Class.EVICT),
        (32, True, (5, 10), Class.KILL),
        (32, True, (5,), Class.KILL),
        (32, True, (5, 86_399), Class.EVICT),
        (32, True, (5, 86_401), Class.KILL),
        (32, False, (5, 11), Class.OBSERVE),
        (39, True, (5, 11), Class.EVICT),
        (38, None, (5, 11), Class.DEGRADE),
        (31, True, (5, 11), Class.KILL),
        (13, True, (5, 11, 30, 50), Class.KILL),
    ],
)
def test_some_xids_are_worse_when_they_come_again(
    code: int, own: bool | None, ages: tuple[float, ...], cls: Class
) -> None:
    """On one day; the process dies of 32 and 39, so that nothing can be copied out before the device is left.

    Not those that programs cause: one bad task may run twice.
    """
    check(verdict(WELL, *(reading(Name.XID, code, age, own=own) for age in ages)), cls, f"xid.{code}")


def test_an_unknown_xid_is_left_but_readable() -> None:
    """It names no row."""
    found = verdict(WELL, reading(Name.XID, 999, 5))
    check(found, Class.DRAIN, "xid.999")
    assert found.source == "no row"


def test_a_users_file_changes_what_an_xid_asks_for() -> None:
    """And is named as its source."""
    limits = Limits(xids=with_overrides({79: {"class": "degrade"}}, "site.yaml"))
    found = verdict(WELL, reading(Name.XID, 79, 5), limits=limits)
    check(found, Class.DEGRADE, "xid.79")
    assert found.source == "site.yaml"


@pytest.mark.parametrize(("code", "words"), [(15, "lost"), (16, "reset")])
def test_a_lost_device_is_evicted(code: int, words: str) -> None:
    """Also beside readings from before."""
    found = verdict(WELL, reading(Name.NVML_RETURN, code, 0))
    check(found, Class.EVICT, f"nvml.{code}")
    assert words in found.evidence[0]


@pytest.mark.parametrize("code", [9, 18, 999, 77])
def test_an_nvml_that_cannot_be_asked_leaves_the_device_unknown(code: int) -> None:
    """A driver that was upgraded under a running job breaks NVML, not the job."""
    found = verdict(WELL, reading(Name.NVML_RETURN, code, 0))
    assert (found.health, found.rule) == (Health.UNKNOWN, f"nvml.{code}")


def test_a_device_that_vanishes_is_evicted_and_one_that_never_was_is_unknown() -> None:
    """By UUID: another device may have its index."""
    gone = reading(Name.PRESENT, value=False)
    check(verdict(gone, before={Name.PRESENT: 1.0}), Class.EVICT, "present")
    assert verdict(gone).health is Health.UNKNOWN


@pytest.mark.parametrize(
    ("seconds", "timeouts", "overloaded", "expected"),
    [
        (14.9, 5, False, Health.HEALTHY),
        (15.0, 5, False, Health.UNKNOWN),
        (44.9, 2, False, Health.UNKNOWN),
        (45.0, 1, False, Health.UNKNOWN),
        (45.0, 2, False, Health.UNHEALTHY),
        (45.0, 2, True, Health.UNKNOWN),
        (45.0, None, False, Health.UNKNOWN),
        (None, 5, False, Health.HEALTHY),
    ],
)
def test_only_silence_again_and_again_is_a_hung_device(
    seconds: float | None, timeouts: int | None, overloaded: bool, expected: Health
) -> None:
    """One probe may have had no processor time, and on an overloaded host none has."""
    found = verdict(
        *(WELL, reading(Name.SILENCE, seconds), reading(Name.TIMEOUTS, timeouts)),
        reading(Name.OVERLOADED, overloaded),
    )
    assert found.health is expected
    if expected is Health.UNHEALTHY:
        check(found, Class.EVICT, "silence")
    if expected is Health.UNKNOWN:
        assert found.rule == "silence"


# -- canary and errors of tasks --------------------------------------------------------------------------------------


def test_only_a_wrong_product_fails_the_canary() -> None:
    """It stands until the next canary, however long that takes; a right one proves something for half an hour."""
    check(verdict(WELL, canary(GPU, NOW - 9_999, right=False)), Class.EVICT, "canary")
    assert verdict(canary(GPU, NOW - 1_800, right=True)).health is Health.HEALTHY
    assert verdict(canary(GPU, NOW - 1_801, right=True)).health is Health.UNKNOWN
    assert verdict(WELL, canary(GPU, NOW - 9_999, right=True)).health is Health.HEALTHY
    assert verdict(canary(GPU, NOW - 9, right=False), canary(GPU, NOW, right=True)).health is Health.HEALTHY


@pytest.mark.parametrize(
    ("said", "reason", "shown"),
    [
        ("cudaErrorMemoryAllocation: out of memory", "", "out of memory"),
        ("Out of memory allocating 1,024 bytes", "", "out of memory"),
        ("cudaErrorDevicesUnavailable: busy", "", "the device is busy or unavailable to this process"),
        ("cudaErrorNoDevice: no CUDA-capable device is detected", "", "CUDA sees no device"),
        ("cudaErrorInvalidDevice: invalid device ordinal", "", "CUDA does not see this device"),
        ("cudaErrorInvalidValue: invalid argument", "", "cudaErrorInvalidValue"),
        (None, "CuPy is not installed", "CuPy is not installed"),
        (None, "not back after 30 s, while tasks are running", "not back after 30 s, while tasks are running"),
        (None, "", "no canary was run"),
    ],
)
def test_a_canary_that_cannot_run_says_nothing(said: str | None, reason: str, shown: str) -> None:
    """Each reason is shown."""
    found = verdict(canary(GPU, NOW, None, classify(said or ""), reason))
    assert (found.health, found.unknown) == (Health.UNKNOWN, (f"canary: {shown}",))


@pytest.mark.parametrize(
    ("said", "cls", "rule"),
    [
        ("cudaErrorIllegalAddress: x", Class.KILL, "cuda.700"),
        ("cudaErrorECCUncorrectable: x", Class.EVICT, "cuda.214"),
        ("Fatal CUDA error: cudaErrorNew", Class.KILL, "cuda.cudaErrorNew"),
        ("cudaErrorMemoryAllocation: out of memory", Class.OBSERVE, "cuda.2"),
        ("std::bad_alloc", Class.OBSERVE, "cuda.C++"),
        ("unhandled cuda error (run with NCCL_DEBUG=INFO for details)", Class.OBSERVE, "cuda.NCCL"),
    ],
)
def test_errors_of_tasks_are_judged_by_their_class(said: str, cls: Class, rule: str) -> None:
    """The rule names the code; a lack of memory and trouble between devices are only noted."""
    fault = classify(said)
    assert fault is not None
    found = verdict(WELL, task_error(GPU, fault, NOW - 5))
    check(found, cls, rule)
    assert said[:EXCERPT_SHOWN] in found.evidence[0]


EXCERPT_SHOWN = 20


@pytest.mark.parametrize("cls", list(Class))
def test_a_third_party_states_its_class(cls: Class) -> None:
    """With its own words."""
    found = verdict(Reading("mine", GPU, "stated.fan", str(cls), NOW, "the fan is broken"))
    check(found, cls, "stated.fan")
    assert found.evidence == ("probe mine: the fan is broken",)


def test_what_a_third_party_states_no_more_says_nothing() -> None:
    """As if it had never said it; it proves nothing either."""
    said = Reading("mine", GPU, "stated.fan", "drain", NOW - 5, "the fan is broken")
    found = verdict(WELL, said, Reading("mine", GPU, "stated.fan", NOTHING, NOW))
    assert (found.health, found.rule, found.evidence, found.unknown) == (Health.HEALTHY, "", (), ())
    assert verdict(Reading("mine", GPU, "stated.fan", NOTHING, NOW)).health is Health.UNKNOWN


NO_MEMORY = Reading("tasks", GPU, Name.EXHAUSTED, 5, NOW, "5 tasks in a row got no memory")
ILLEGAL = Reading("tasks", GPU, "cuda-error.700", "kill", NOW, "cudaErrorIllegalAddress")


@pytest.mark.parametrize(
    ("device", "readings", "readable"),
    [
        ("host:h/0", [ILLEGAL], True),
        ("host:h/0", [NO_MEMORY], True),
        (GPU, [NO_MEMORY], True),
        (GPU, [ILLEGAL], False),
        (GPU, [NO_MEMORY, ILLEGAL], False),
    ],
)
def test_a_process_to_replace_can_be_read_where_its_memory_can(
    device: str, readings: list[Reading], readable: bool
) -> None:
    """A CUDA context that died takes only what is on a GPU; one that gets no more memory keeps what it has."""
    found = judge([r.at(device, NOW) for r in readings], Baseline(device), TCP, NOW)
    assert (found.cls, found.health, found.readable) == (Class.KILL, Health.UNHEALTHY, readable)


@pytest.mark.parametrize("bit", sorted(EVENTS))
def test_each_nvml_event_has_its_class(bit: int) -> None:
    """What they mean is taken from their names."""
    expected = {
        0x200: Class.DEGRADE,
        0x400: Class.OBSERVE,
        0x800: Class.DRAIN,
        0x1000: Class.OBSERVE,
        0x2000: Class.EVICT,
        0x4000: Class.EVICT,
    }
    check(verdict(WELL, reading(Name.EVENT, bit, 9)), expected[bit], f"event.{hex(bit)}")
    assert verdict(WELL, reading(Name.EVENT, 0x10, 9)).rule == ""


# -- the whole -------------------------------------------------------------------------------------------------------


def test_of_rules_that_ask_for_the_same_the_first_names_the_verdict() -> None:
    """The recovery action, then XIDs, then counters; the others are evidence."""
    action, event, counter = (
        *(reading(Name.RECOVERY_ACTION, 4), reading(Name.XID, 64), reading(Name.REMAP_FAILED, value=True)),
    )
    check(verdict(counter, event, action), Class.DRAIN, "recovery-action.4")
    found = verdict(counter, event)
    check(found, Class.DRAIN, "xid.64")
    assert found.evidence[1] == "row remapping failed"


def test_the_worst_counts_whichever_rule_says_it() -> None:
    """A device that fell off the bus cannot be drained, whatever the last recovery action was."""
    check(verdict(reading(Name.RECOVERY_ACTION, 4), reading(Name.XID, 79)), Class.EVICT, "xid.79")


def test_a_device_to_leave_whose_process_is_dead_cannot_be_copied_out() -> None:
    """Drain and kill together are an eviction."""
    check(
        verdict(reading(Name.REMAP_FAILED, value=True), reading("cuda-error.700", "kill")), Class.EVICT, "remap-failed"
    )


def test_doubt_does_not_hide_what_is_wrong() -> None:
    """A probe that fell silent leaves the verdict that other readings give."""
    check(verdict(reading(Name.SILENCE, 20), reading(Name.REMAP_FAILED, value=True)), Class.DRAIN, "remap-failed")


def test_a_verdict_quotes_a_few_findings_only() -> None:
    """A worker may meet thousands of errors."""
    found = verdict(*(reading(f"cuda-error.{n}", "kill", 3) for n in range(500)))
    assert len(found.evidence) == 20


def test_each_rule_has_a_name_of_its_own_and_a_source() -> None:
    """So a verdict names one place."""
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.source and rule.judge.__doc__ for rule in RULES)


def test_readings_and_verdicts_travel_as_plain_types() -> None:
    """Between processes."""
    sent = reading(Name.XID, 79, 3, "the line", own=True)
    assert Reading.from_dict(sent.to_dict()) == sent
    row = verdict(sent, Reading.from_nvml("nvml", GPU, "x", NOW, 3)).to_dict()
    assert {type(value) for value in row.values()} == {str, list, bool}
    assert row["health"] == "unhealthy"


# -- properties ------------------------------------------------------------------------------------------------------

RANK = {Health.HEALTHY: 0, Health.UNKNOWN: 0, Health.DEGRADED: 1, Health.UNHEALTHY: 2}

BEFORE = {Name.ECC_UNCORRECTED: 0.0, "nvlink-state.0": 1.0, Name.PRESENT: 1.0, Name.ECC_CORRECTED_DRAM: 0.0}

WORSE: list[Callable[[float], Reading]] = [
    *(lambda t, v=v: Reading("nvml", GPU, Name.RECOVERY_ACTION, v, t) for v in range(1, 9)),
    *(lambda t, c=c, o=o: Reading("log", GPU, Name.XID, c, t, own=o) for c in TABLE for o in (True, None)),
    lambda t: Reading("nvml", GPU, Name.NVML_RETURN, 15, t),
    lambda t: Reading("nvml", GPU, Name.PRESENT, value=False, time=t),
    lambda t: Reading("nvml", GPU, Name.ECC_UNCORRECTED, 9, t),
    lambda t: Reading("nvml", GPU, Name.ECC_CORRECTED_DRAM, 10**9, t),
    lambda t: Reading("nvml", GPU, Name.REMAP_FAILED, value=True, time=t),
    lambda t: Reading("nvml", GPU, Name.RETIRED_PAGES, 99, t),
    lambda t: Reading("nvml", GPU, "nvlink-state.0", value=False, time=t),
    lambda t: Reading("tasks", GPU, "cuda-error.700", "kill", t),
    lambda t: Reading("tasks", GPU, "cuda-error.214", "evict", t),
    lambda t: Reading("canary", GPU, Name.CANARY, "wrong", t),
    lambda t: Reading("nvml", GPU, Name.SILENCE, 20.0, t),
    *(lambda t, b=b: Reading("nvml", GPU, Name.EVENT, b, t) for b in EVENTS),
]

BAD = st.builds(lambda make, t: make(t), st.sampled_from(WORSE), st.floats(NOW - 50, NOW))
UNKNOWN = st.builds(
    lambda name, t: Reading.unknown("nvml", GPU, name, t, "it hangs"),
    st.sampled_from(sorted(Name)),
    st.floats(NOW - 50, NOW),
)


@given(st.lists(BAD, max_size=6), BAD, st.sampled_from([TCP, UCX]))
def test_one_more_bad_reading_never_makes_the_verdict_better(
    some: list[Reading], more: Reading, limits: Limits
) -> None:
    """Nor what is asked for milder, but for a recovery action that takes back what an earlier one asked for."""
    before = judge([WELL, *some], Baseline(GPU, BEFORE), limits, NOW)
    after = judge([WELL, *some, more], Baseline(GPU, BEFORE), limits, NOW)
    assert RANK[after.health] >= RANK[before.health] or more.name == Name.RECOVERY_ACTION
    assert after.cls.rank >= before.cls.rank or more.name == Name.RECOVERY_ACTION


@given(st.lists(UNKNOWN, max_size=10), st.booleans())
def test_what_is_unknown_never_becomes_unhealthy(some: list[Reading], well: bool) -> None:
    """Nor degraded; and never healthy by itself."""
    found = judge([WELL] * well + some, Baseline(GPU, BEFORE), UCX, NOW)
    assert found.health in {Health.UNKNOWN, Health.HEALTHY}
    assert well or found.health is Health.UNKNOWN


@given(st.lists(BAD, max_size=5), st.lists(UNKNOWN, max_size=5), st.randoms())
def test_the_order_in_which_readings_are_heard_changes_nothing(
    bad: list[Reading], some: list[Reading], rng: Any
) -> None:
    """Only their times do."""
    times = {r.time: r for r in [*bad, *some]}
    readings = list(times.values())
    shuffled = rng.sample(readings, len(readings))
    base = Baseline(GPU, BEFORE)
    assert judge(readings, base, TCP, NOW) == judge(shuffled, base, TCP, NOW)
