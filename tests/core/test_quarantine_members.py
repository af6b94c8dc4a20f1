"""Which worker is on which device, what is known of devices from earlier runs, and what is forgotten."""

from __future__ import annotations

import pytest

from dask_resilient.core.actions import (
    OURS,
    Cause,
    Drained,
    Joined,
    Left,
    Phase,
    Release,
    Tick,
    Tried,
    words,
)
from dask_resilient.core.devices import MOST_IDLE
from tests.support.device_life import T0, A, D, Life, P, Q, S, all_of, at, doubt, drain, evict, kill, sign

# -- who is where ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [S, D, P, Q])
def test_a_worker_whose_gpu_becomes_known_is_held_with_it(phase):
    """It joined as a worker without one."""
    life = at(phase)
    assert life.did(Joined("late", "host:node7/late")) == []
    assert life.did(Joined("late", "a"))[0] == "avoid late"
    assert life(Joined("late", "a")) == []


def test_a_process_that_was_there_before_is_not_new():
    """That its GPU becomes known only after the quarantine makes it no sign."""
    life = Life()
    life(Joined("late", "host:node7/late"))
    life(evict(), 5)
    life(Joined("late", "a"), 5)
    assert life(sign("late"), 100) == []


def test_a_worker_that_moves_to_a_device_in_service_gets_tasks_again():
    """It was in doubt under the name of its host; its GPU is well."""
    life = Life()
    life(Joined("late", "host:node7/late"))
    assert life.did(doubt("late")) == ["avoid late"]
    assert life.did(Joined("late", "b")) == ["admit late"]
    assert life(Tick()) == []


def test_a_worker_that_is_told_to_go_stays_so_under_another_device():
    """It is neither admitted nor drained there."""
    life = Life()
    life(Joined("late", "host:node7/late"))
    life(kill("late"))
    assert life.did(Joined("late", "b")) == []
    assert life.did(drain("b1")) == ["avoid b1", "drain b1"]


def test_a_device_that_its_last_worker_leaves_for_another_is_no_suspect_any_more():
    """Moving is leaving, for the device that is left."""
    life = Life()
    life(Joined("late", "host:node7/late"))
    life(doubt("late"))
    life(Joined("late", "a"))
    assert "host:node7/late" not in life.book.devices or not life.book.phase("host:node7/late").held


def test_unknown_workers_say_nothing():
    """Events of workers that nobody knows change nothing."""
    life = Life()
    for event in (Left("x"), Drained("x"), Tried("x", "right"), evict("x")):
        assert life(event) == []


def test_a_host_that_becomes_known_later_is_told():
    """A decision names the host that the worker's side stated."""
    life = Life()
    life(Joined("b1", "b", "node8"))
    assert life(evict("b1"))[0].host == "node8"


def test_a_process_under_an_old_address_is_judged_anew():
    """That its predecessor was used in spite of a verdict says nothing for it."""
    life = at(D)
    life(Release("a", "alice"))
    life(Left("w1"))
    life(Joined("w1", "a"))
    assert life.did(drain("w1"))


def test_a_process_under_an_old_address_speaks_for_itself():
    """What its predecessor said, that the device may be used again, is no sign."""
    life = at(Q)
    life(sign("n"))
    life(Left("n"))
    life(Joined("n", "a"))
    assert life(Tick(), 100) == []
    assert life.did(sign("n")) == ["run the canary on n"]


# -- earlier runs ------------------------------------------------------------------------------------------------------


def test_a_remembered_device_is_out_of_service():
    """Its workers get no tasks, those that come later neither; a sign and a canary bring it back."""
    life = Life()
    cause = Cause("xid.79", ("fallen off",))
    (decision,) = life.book.remember("a", "node7", cause, T0 - 9, 0, locked=False)
    assert [words(action) for action in decision.actions] == ["avoid w1", "avoid w2"]
    assert (decision.before, decision.after, decision.cause) == (A, Q, cause)
    assert life.did(Joined("x", "a")) == ["avoid x"]
    assert life.did(sign("w2"), 60) == ["run the canary on w2"]
    assert life.did(Tried("w2", "right")) == ["admit w1", "admit w2", "admit x"]
    assert life.book.remember("z", "node7", cause, T0 - 9, 0, locked=False) == []
    assert life.did(Joined("z1", "z")) == ["avoid z1"]


@pytest.mark.parametrize(("failed", "locked"), [(0, True), (2, False)])
@pytest.mark.parametrize("phase", Phase)
def test_what_only_an_operator_brings_back_is_remembered_in_any_phase(phase, failed, locked):
    """Memory may come late: what happened meanwhile does not undo it."""
    life = at(phase)
    life.book.remember("a", "node7", Cause("xid.79"), T0 - 9, failed, locked)
    assert life.a is (D if phase is D else Q)
    all_of(life, Drained)
    life(Joined("x", "a"))
    assert life(sign("x"), 1e6) == life(Tick()) == []
    assert life.a is Q


# -- memory ------------------------------------------------------------------------------------------------------------


def test_workers_without_a_gpu_that_come_and_go_are_forgotten():
    """Also those that were in doubt, and after a day those that cost a process."""
    life = Life()
    for i in range(50):
        worker, device = f"cpu{i}", f"host:node/{i}"
        life(Joined(worker, device))
        if i % 3:
            life((doubt, kill)[i % 3 - 1](worker), 400)
            life(Joined(f"{worker}'", device))
            life(Tried(f"{worker}'", "right"))
            life(Left(f"{worker}'"))
        life(Left(worker))
    life(Release("nobody", "alice"))
    life(Tick(), 2 * 86_400)
    life(Tick())
    assert sorted(life.book.devices) == ["a", "b", "c", "d"]


def test_devices_without_workers_are_bounded():
    """The oldest of too many go first, GPUs and those with workers last."""
    life = at(Q)
    life(Left("n"))
    for i in range(MOST_IDLE + 10):
        life(Joined("c", f"host:{i}"))
        life(evict("c"), 1)
        life(Left("c"))
    life(Tick())
    assert len(life.book.devices) == MOST_IDLE + 3
    assert life.a is Q
    assert life.book.phase("host:10") is A
    assert life.book.phase("host:11") is Q


def test_the_row_of_a_decision_is_plain():
    """What travels are plain types, with the actions in words."""
    (decision,) = Life()(kill())
    assert decision.to_dict() == {
        "time": T0,
        "device": "a",
        "host": "node7",
        "worker": "w1",
        "declined": "",
        "before": "active",
        "after": "probation",
        "rule": "cuda.700",
        "evidence": ["seen"],
        "by": OURS,
        "fact": True,
        "actions": ["avoid w1", "avoid w2", "restart w1"],
    }
