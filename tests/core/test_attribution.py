"""Task or device: who is blamed, and when a device is indicted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core.allocations import ALLOCATIONS, Allocations
from dask_resilient.core.attribution import TRAIL, Attribution, Score, Sprt, make_label
from dask_resilient.core.cuda_errors import TABLE, TaskFault, classify
from dask_resilient.core.faults import Suspect

A, B, C = "GPU-A", "GPU-B", "GPU-C"


def fault(said: int | str = 700) -> TaskFault:
    found = classify(TABLE[said].name if isinstance(said, int) else said)
    assert found is not None
    return found


def failed_here_and_well_elsewhere(book: Attribution, key: str, device: str = A, prefix: str = "f") -> None:
    """Let a task fail on one device and succeed on another."""
    book.failed(key, prefix, device, fault())
    book.succeeded(key, B if device != B else C)


# -- the test --------------------------------------------------------------------------------------------------------


def test_the_numbers_of_the_test_are_those_of_the_reference() -> None:
    """+3.9 for a failure, -0.68 for a success, 6.86 to be indicted."""
    test = Sprt()
    assert (round(test.failure, 2), round(test.success, 2), round(test.bound, 2)) == (3.91, -0.68, 6.86)


@pytest.mark.parametrize(("healthy", "failures"), [(0.01, 2), (0.05, 3)])
def test_two_failures_in_a_row_indict_and_three_where_failures_are_usual(healthy: float, failures: int) -> None:
    """As Spark excludes executors."""
    book = Attribution(Sprt(healthy=healthy))
    for n in range(failures):
        assert not book.score(A).indicted
        failed_here_and_well_elsewhere(book, f"k{n}")
    assert book.score(A).indicted
    assert list(book.indicted()) == [A]
    assert [failure.key for failure in book.score(A).failures] == [f"k{n}" for n in range(failures)]


@pytest.mark.parametrize(("between", "indicted"), [(0, True), (1, True), (2, False), (6, False)])
def test_successes_between_failures_clear_a_device(between: int, indicted: bool) -> None:
    """One is not enough."""
    book = Attribution()
    failed_here_and_well_elsewhere(book, "k0")
    for n in range(between):
        book.succeeded(f"good{n}", A)
    failed_here_and_well_elsewhere(book, "k1")
    assert book.score(A).indicted is indicted
    assert book.score(A).value == pytest.approx(
        max(0, Sprt().failure + between * Sprt().success) + Sprt().failure, abs=1e-9
    )


def test_long_service_does_not_protect_a_device_that_turns_sick() -> None:
    """Two failures are enough also after a thousand successes."""
    book = Attribution()
    for n in range(1_000):
        book.succeeded(f"good{n}", A)
    for key in ("k0", "k1"):
        failed_here_and_well_elsewhere(book, key)
    assert book.score(A).indicted


def test_a_device_that_is_not_known_has_a_score_of_zero() -> None:
    """And is not indicted."""
    score = Attribution().score(A)
    assert (score.value, score.indicted, score.failures) == (0.0, False, ())


def test_a_device_is_indicted_at_the_bound() -> None:
    """Not only beyond it."""
    assert Score(6.8, 6.9, ()).indicted is False
    assert Score(6.9, 6.9, ()).indicted is True


# -- what counts against a device ------------------------------------------------------------------------------------


def test_a_failure_counts_once_the_same_task_has_succeeded_elsewhere() -> None:
    """Before that the task is suspected; a success on the same device says nothing."""
    book = Attribution()
    assert book.failed("k", "f", A, fault(700)).suspect is Suspect.TASK
    book.succeeded("k", A)
    assert book.score(A).failures == ()
    book.succeeded("k", B)
    assert [failure.key for failure in book.score(A).failures] == ["k"]


def test_one_task_counts_once_however_often_it_fails() -> None:
    """A device needs evidence from different tasks."""
    book = Attribution()
    for _ in range(5):
        failed_here_and_well_elsewhere(book, "k")
    assert len(book.score(A).failures) == 1
    assert not book.score(A).indicted


@pytest.mark.parametrize("code", [700, 710, 716, 717, 718, 719])
def test_errors_that_programs_cause_suspect_the_task_first(code: int) -> None:
    """Nothing counts until it succeeds elsewhere."""
    book = Attribution()
    for key in ("k0", "k1", "k2"):
        blame = book.failed(key, "f", A, fault(code))
        assert (blame.suspect, book.score(A).value) == (Suspect.TASK, 0.0)
        assert str(code) in blame.reason


@pytest.mark.parametrize("code", [214, 220])
def test_errors_of_memory_and_links_suspect_the_device_at_once(code: int) -> None:
    """And never the prefix, also where two devices have them in different tasks; one task counts once here too."""
    book = Attribution()
    for device in (A, B):
        for key in (f"{device}-0", f"{device}-1"):
            assert book.failed(key, "f", device, fault(code)).suspect is Suspect.DEVICE
        book.failed(f"{device}-1", "f", device, fault(code))
    assert sorted(book.indicted()) == [A, B]
    assert len(book.score(A).failures) == 2


@pytest.mark.parametrize("code", [201, 702, 714, 715, 721, 810, 911, 999])
def test_errors_that_may_be_either_wait_for_a_success_elsewhere(code: int) -> None:
    """Nobody is blamed till then."""
    book = Attribution()
    assert book.failed("k", "f", A, fault(code)).suspect is Suspect.UNKNOWN
    assert book.score(A).value == 0.0
    book.succeeded("k", B)
    assert book.score(A).value > 0.0


@pytest.mark.parametrize(
    ("said", "suspect"),
    [
        ("unhandled cuda error (run with NCCL_DEBUG=INFO for details)", Suspect.UNKNOWN),
        ("UCXError('Endpoint timeout')", Suspect.UNKNOWN),
        ("cudaErrorMemoryAllocation: out of memory", Suspect.UNKNOWN),
        ("std::bad_alloc: out_of_memory: x", Suspect.UNKNOWN),
        ("cudaErrorInvalidValue: invalid argument", Suspect.TASK),
        ("cudaErrorNotPermitted: operation not permitted", Suspect.TASK),
    ],
)
def test_communication_memory_and_misuse_never_count(said: str, suspect: Suspect) -> None:
    """However many tasks succeed elsewhere."""
    book = Attribution()
    for n in range(10):
        assert book.failed(f"k{n}", "f", A, fault(said)).suspect is suspect
        book.succeeded(f"k{n}", B)
    assert book.score(A).value == 0.0


# -- the mirror ------------------------------------------------------------------------------------------------------


def test_one_task_that_fails_alike_on_two_devices_is_to_blame() -> None:
    """It is named."""
    book = Attribution()
    book.failed("k", "f", A, fault())
    blame = book.failed("k", "f", B, fault())
    assert (blame.suspect, "task 'k'" in blame.reason) == (Suspect.TASK, True)
    assert book.score(A).value == book.score(B).value == 0.0


def test_one_code_of_a_prefix_on_two_devices_blames_the_prefix_also_in_hindsight() -> None:
    """What counted against the first device does so no more."""
    book = Attribution()
    failed_here_and_well_elsewhere(book, "k0", A)
    failed_here_and_well_elsewhere(book, "k1", A)
    assert book.score(A).indicted
    blame = book.failed("k2", "f", B, fault())
    assert (blame.suspect, "tasks 'f'" in blame.reason) == (Suspect.TASK, True)
    assert not list(book.indicted())
    assert book.score(A).failures == ()


@pytest.mark.parametrize(("prefix", "code"), [("g", 700), ("f", 719)], ids=["another prefix", "another code"])
def test_another_prefix_or_code_on_another_device_proves_nothing(prefix: str, code: int) -> None:
    """Two sick devices need not be sick alike."""
    book = Attribution()
    failed_here_and_well_elsewhere(book, "k0", A)
    failed_here_and_well_elsewhere(book, "k1", A)
    book.failed("k2", prefix, B, fault(code))
    assert book.score(A).indicted


def test_an_error_of_the_device_itself_is_no_mirror() -> None:
    """Uncorrectable memory there says nothing about what NCCL met here."""
    book = Attribution()
    book.failed("k0", "f", A, fault(214))
    blame = book.failed("k1", "f", B, fault("unhandled cuda error: Cuda failure 'uncorrectable ECC error encountered'"))
    assert (blame.suspect, "only" in blame.reason) == (Suspect.UNKNOWN, True)


def test_a_task_that_meets_an_error_of_devices_on_two_of_them_is_to_blame_and_so_is_its_prefix() -> None:
    """Also where the first of them is out of service for it; else its text would cost one device after the other."""
    book = Attribution()
    assert book.failed("k0", "f", A, fault(214)).suspect is Suspect.DEVICE
    book.out_of_service(A, make_label("f", fault(214)))
    blame = book.failed("k0", "f", B, fault(214))
    assert (blame.suspect, blame.culprit) == (Suspect.TASK, True)
    assert "k0" in blame.reason
    for device in (A, B, C):
        assert book.failed("k1", "f", device, fault(214)).culprit
    assert book.failed("k1", "other", C, fault(214)).suspect is Suspect.DEVICE
    assert [book.score(device).failures for device in (A, B)] == [(), ()]


def test_one_process_counts_once_against_its_device_and_each_time_against_tasks() -> None:
    """What follows from an earlier error says nothing new of the device."""
    book = Attribution()
    failed_here_and_well_elsewhere(book, "k0")
    book.failed("k1", "f", A, fault(), again=True)
    book.succeeded("k1", B)
    assert not book.score(A).indicted
    assert book.failed("k2", "f", B, fault(), again=True).culprit


def test_a_device_out_of_service_counts_for_no_other_task_and_no_other_error() -> None:
    """What is known to be sick says little about tasks."""
    book = Attribution()
    for key in ("k0", "k1"):
        book.failed(key, "f", A, fault(700))
    book.out_of_service(A, make_label("f", fault(700)))
    assert not book.failed("k2", "f", B, fault(700)).culprit
    book.out_of_service(A, "xid.79")
    assert not book.failed("k0", "f", C, fault(719)).culprit
    book = Attribution()
    book.failed("k0", "f", A, fault(700))
    book.out_of_service(A, "xid.79")
    assert not book.failed("k0", "f", B, fault(700)).culprit


def test_the_test_of_a_device_ends_when_it_is_out_of_service() -> None:
    """Else no new process of it would ever be found sound; what still fails there says nothing new."""
    book = Attribution()
    failed_here_and_well_elsewhere(book, "k0", A)
    failed_here_and_well_elsewhere(book, "k1", A)
    assert book.score(A).indicted
    book.out_of_service(A, make_label("f", fault()))
    failed_here_and_well_elsewhere(book, "k2", A)
    failed_here_and_well_elsewhere(book, "k3", A)
    assert not book.score(A).indicted
    book.released(A)
    failed_here_and_well_elsewhere(book, "k4", A)
    failed_here_and_well_elsewhere(book, "k5", A)
    assert book.score(A).indicted


def test_a_device_out_of_service_is_no_mirror() -> None:
    """A black hole fails everything; one failure elsewhere does not clear it."""
    book = Attribution()
    failed_here_and_well_elsewhere(book, "k0", A)
    failed_here_and_well_elsewhere(book, "k1", A)
    book.out_of_service(A)
    assert book.failed("k2", "f", B, fault()).suspect is Suspect.TASK
    book.succeeded("k2", C)
    assert [failure.key for failure in book.score(B).failures] == ["k2"]


def test_a_device_that_is_released_begins_anew() -> None:
    """And what failed there no longer blames prefixes."""
    book = Attribution()
    for key in ("k0", "k1"):
        failed_here_and_well_elsewhere(book, key, A)
    book.out_of_service(A)
    book.released(A)
    assert book.score(A).value == 0.0
    assert "only" in book.failed("k3", "f", B, fault()).reason


# -- forgetting ------------------------------------------------------------------------------------------------------


def test_what_was_settled_before_a_task_was_forgotten_still_counts() -> None:
    """Keys come and go."""
    book = Attribution()
    for key in ("k0", "k1"):
        failed_here_and_well_elsewhere(book, key)
        book.forget(key)
    assert book.score(A).indicted


def test_forgetting_one_task_settles_nothing_about_another() -> None:
    """Each has its own."""
    book = Attribution()
    failed_here_and_well_elsewhere(book, "k0")
    book.succeeded("good", A)
    book.failed("k1", "f", A, fault())
    book.forget("k0")
    assert [failure.key for failure in book.score(A).failures] == ["k0"]


def test_what_was_not_settled_before_a_task_was_forgotten_never_counts() -> None:
    """A later task of the same name is another one."""
    book = Attribution()
    book.failed("k", "f", A, fault())
    book.forget("k")
    book.succeeded("k", B)
    assert book.score(A).value == 0.0
    book.forget("never seen")


def test_a_forgotten_task_still_mirrors_its_prefix() -> None:
    """The code was met there."""
    book = Attribution()
    book.failed("k0", "f", A, fault())
    book.forget("k0")
    assert "tasks 'f'" in book.failed("k1", "f", B, fault()).reason


def test_the_book_stays_small() -> None:
    """A device that fails without end is remembered by its last failures; one that recovers not at all."""
    book = Attribution()
    for n in range(TRAIL + 50):
        failed_here_and_well_elsewhere(book, f"k{n}")
    assert len(book.score(A).failures) == TRAIL
    for n in range(10 * TRAIL):
        book.succeeded(f"good{n}", A)
    assert book.score(A).value == 0.0
    assert not book._trails


STEPS = st.lists(
    st.tuples(st.sampled_from(["fail", "well"]), st.integers(0, 5), st.sampled_from("fg"), st.sampled_from([A, B, C])),
    max_size=40,
)


def _play(steps: list[tuple[str, int, str, str]]) -> Attribution:
    book = Attribution()
    for what, number, prefix, device in steps:
        key = f"{prefix}{number}"
        if what == "fail":
            book.failed(key, prefix, device, fault())
        else:
            book.succeeded(key, device)
    return book


@given(STEPS, st.sampled_from([A, B, C]), st.integers(1, 5))
def test_more_successes_never_raise_a_score(steps: list[tuple[str, int, str, str]], device: str, more: int) -> None:
    """Of tasks that never failed."""
    before = _play(steps).score(device).value
    book = _play(steps)
    for n in range(more):
        book.succeeded(f"new{n}", device)
    assert book.score(device).value <= before + 1e-9


@given(STEPS)
def test_a_device_is_indicted_only_by_different_tasks_that_succeeded_elsewhere(
    steps: list[tuple[str, int, str, str]],
) -> None:
    """Whatever happens, in whatever order, and never for a prefix that met its error on two devices."""
    book = _play(steps)
    for device in book.indicted():
        failures = book.score(device).failures
        assert len({failure.key for failure in failures}) == len(failures) >= 2
        for failure in failures:
            assert any(s[0] == "well" and f"{s[2]}{s[1]}" == failure.key and s[3] != device for s in steps)
            assert {s[3] for s in steps if s[0] == "fail" and s[2] == failure.prefix} == {device}


@given(STEPS)
def test_scores_are_never_negative(steps: list[tuple[str, int, str, str]]) -> None:
    """Nor infinite."""
    book = _play(steps)
    assert all(0 <= book.score(device).value < math.inf for device in (A, B, C))


# -- allocations -----------------------------------------------------------------------------------------------------


def test_five_tasks_without_memory_in_a_row_ask_for_a_new_process() -> None:
    """While other workers get memory."""
    book = Allocations()
    for n in range(ALLOCATIONS - 1):
        assert not book.failed("w0", f"k{n}", "f")
        book.succeeded("w1", "f")
    assert book.failed("w0", "last", "f")


def test_one_task_that_never_fits_asks_for_nothing() -> None:
    """It is too large, wherever it runs."""
    book = Allocations()
    for _ in range(20):
        assert not book.failed("w0", "k", "f")
        book.succeeded("w1", "f")


def test_a_success_ends_the_row() -> None:
    """Memory can be had there."""
    book = Allocations()
    for n in range(20):
        assert not book.failed("w0", f"k{n}", "f")
        book.succeeded("w1", "f")
        if n % 4 == 3:
            book.succeeded("w0", "f")


def test_no_worker_is_blamed_when_none_gets_memory() -> None:
    """Successes from before the row do not count: the work has grown since."""
    book = Allocations()
    for _ in range(5):
        book.succeeded("w1", "f")
    for n in range(20):
        assert not book.failed("w0", f"k{n}", "f")
        assert not book.failed("w1", f"j{n}", "f")


def test_a_new_process_begins_anew() -> None:
    """Also at the same address; and a worker that leaves takes nothing from the rows of others."""
    book = Allocations()
    for n in range(ALLOCATIONS - 1):
        book.failed("w0", f"k{n}", "f")
        book.succeeded("w1", "f")
    book.gone("w1")
    assert book.failed("w0", "k4", "f")
    book.gone("w0")
    assert not book.failed("w0", "k5", "f")


def test_what_needs_little_memory_says_nothing_of_what_needs_much() -> None:
    """Five tasks that are too large for any worker cost none its process while small ones run elsewhere."""
    book = Allocations()
    for n in range(2 * ALLOCATIONS):
        assert not book.failed("w0", f"k{n}", "large")
        book.succeeded("w1", "small")
    book.succeeded("w1", "large")
    assert book.failed("w0", "k0", "large")
