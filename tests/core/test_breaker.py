"""When judgements about devices must wait, and what is a fact."""

from __future__ import annotations

import pytest

from dask_resilient.core.actions import Cause, Joined, Left, Quarantine, Release, Tick
from dask_resilient.core.breaker import FACTS, WINDOW, Breaker, is_fact
from dask_resilient.core.faults import Class
from dask_resilient.core.rules import RULES
from tests.support.device_life import T0, A, D, Life, P, Q, S, at, clear, doubt, drain, evict, judged, kill

NOW = 1e9


def names(n):
    """Name some devices."""
    return {f"GPU-{i}" for i in range(n)}


def refuse(n, taken=(), *, device="GPU-0", serving=None, known=None, now=NOW):
    """Ask about one of some devices, all in service unless said otherwise."""
    serving = names(n) - {name for _, name in taken} if serving is None else serving
    return Breaker().refuse(device, serving, names(n) if known is None else known, taken, now)


def test_the_last_device_in_service_is_kept():
    """One device alone is never judged out of service, nor one of several of which no other serves."""
    assert refuse(1) == "it is the last device in service, so this is only an alarm"
    assert refuse(4, serving={"GPU-0"}) == refuse(1)


def test_a_held_device_goes_no_further_where_none_serves():
    """Where nothing is in service, a suspect is all there is."""
    assert refuse(2, serving=set()) == refuse(1)
    assert refuse(2, serving={"GPU-1"}) == ""


@pytest.mark.parametrize(("n", "most"), [(2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (8, 4)])
def test_half_of_the_devices_may_go(n, most):
    """Judgements take half, rounded down but at least one; the next one waits."""
    taken = []
    for i in range(most):
        assert refuse(n, taken, device=f"GPU-{i}") == ""
        taken.append((NOW, f"GPU-{i}"))
    if most < n - 1:
        assert "more than 50% of the devices would be out of service" in refuse(n, taken, device=f"GPU-{most}")
    else:
        assert "last device" in refuse(n, taken, device=f"GPU-{most}")


def test_what_was_taken_counts_for_five_minutes():
    """A device that was taken 300 s ago makes room, one of just less does not."""
    assert refuse(3, [(NOW - WINDOW + 1, "GPU-1")], serving={"GPU-0", "GPU-2"}) != ""
    assert refuse(3, [(NOW - WINDOW, "GPU-1")], serving={"GPU-0", "GPU-2"}) == ""


def test_a_device_counts_once():
    """A device that was taken already may go further: from suspect to quarantine."""
    taken = [(NOW, "GPU-0"), (NOW, "GPU-0")]
    assert refuse(3, taken, serving={"GPU-1", "GPU-2"}) == ""


def test_a_device_that_was_taken_and_has_no_worker_any_more_counts_among_all():
    """Of four devices two may go, also after the workers of the first are gone."""
    assert refuse(4, [(NOW, "GPU-1")], known=names(4) - {"GPU-1"}) == ""
    assert refuse(4, [(NOW, "GPU-1"), (NOW, "GPU-2")], known={"GPU-0", "GPU-3"}) != ""


@pytest.mark.parametrize("rule", FACTS)
def test_rules_that_state_a_fact(rule):
    """A lost device, one that wants a reset, and a wrong product are facts whatever the class."""
    assert is_fact(rule, Class.EVICT)


@pytest.mark.parametrize(
    ("rule", "cls", "fact"),
    [
        ("cuda.700", Class.KILL, True),
        ("xid.31", Class.KILL, True),
        ("cuda.700", Class.DRAIN, False),
        ("xid.48", Class.DRAIN, False),
        ("xid.95", Class.EVICT, False),
        ("work.hang", Class.KILL, False),
        ("silence", None, False),
        ("cudalike", Class.KILL, False),
    ],
)
def test_a_dead_process_is_a_fact_and_a_sick_device_a_judgement(rule, cls, fact):
    """What CUDA or the driver says killed a process did; that a device should be left is judged."""
    assert is_fact(rule, cls) is fact


def test_facts_are_rules_that_exist():
    """No fact waits for a rule that is spelt otherwise."""
    assert {rule.partition(".")[0] for rule in FACTS} | {"cuda", "xid"} <= {rule.name for rule in RULES}


# -- with the phases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [doubt, drain, lambda w: judged(w, Class.EVICT, "xid.95")])
def test_the_last_device_stays_in_service(verdict):
    """A judgement about it is told once, and enacted once another device is there."""
    life = Life(others="")
    (alarm,) = life(verdict("w1"))
    assert "last device" in alarm.declined
    assert (alarm.before, alarm.after, alarm.actions) == (A, A, ())
    assert life(verdict("w1")) == life(Tick(), 1) == life(verdict("w1"), 400) == []
    life(Joined("b1", "b"))
    (decision,) = life(Tick())
    assert decision.after.held
    assert decision.actions


def test_an_alarm_ends_with_its_verdict():
    """What is clear again is not enacted later; the same verdict afterwards is told again."""
    life = Life(others="")
    assert life(drain())
    assert life(clear()) == []
    why = life.book.breaker.refuse("a", {"a"}, {"a"}, [], T0)
    assert [decision.declined for decision in life(drain())] == [f"{why}; else it would be draining (avoid, drain)"]
    life(clear())
    life(Joined("b1", "b"))
    assert life(Tick()) == []


def test_an_alarm_is_told_again_once_the_phase_has_changed():
    """It was enacted meanwhile, and undone: what waits then is news."""
    life = Life(others="")
    life(drain())
    life(Joined("b1", "b"))
    assert life.did(Tick())
    life(Release("a", "alice"))
    life(Left("b1"))
    life(Joined("w3", "a"))
    (alarm,) = life(drain("w3"))
    assert "last device" in alarm.declined


def test_verdicts_of_two_workers_are_told_once_each():
    """Two reasons for one device are two alarms, not one at every look."""
    life = Life(others="")
    assert len(life(drain("w1")) + life(judged("w2", Class.EVICT, "xid.95"))) == 2
    assert [decision for _ in range(5) for decision in life(Tick(), 1)] == []


def test_one_worker_that_is_well_silences_no_alarm_of_another():
    """The other worker of a device says at every look that it is well."""
    life = Life(others="")
    assert len(life(drain("w1"))) == 1
    assert [decision for _ in range(5) for event in (clear("w2"), drain("w1")) for decision in life(event, 1)] == []


def test_half_of_the_devices_stay_in_service_for_five_minutes():
    """Of four devices two are taken by judgement; the third goes when the first is long enough ago."""
    life = Life()
    for worker in ("w1", "b1"):
        assert life.did(drain(worker))
    (alarm,) = life(drain("c1"))
    assert "more than 50%" in alarm.declined
    life(Tick(), 299)
    assert life.book.phase("c") is A
    life(Tick(), 1)
    assert life.book.phase("c") is D


def test_a_verdict_that_waits_is_enacted_also_on_probation():
    """What the breaker declined for a device that is held is not forgotten."""
    life = at(P)
    life(drain("b1"))
    life(drain("c1"))
    (alarm,) = life(drain("n"))
    assert "more than 50%" in alarm.declined
    assert life(Tick(), 59) == life(drain("n"), 200) == []
    assert "evict n" in life.did(Tick(), 50)
    assert life.a is Q


def test_a_suspect_that_turns_out_sick_may_wait_too():
    """It stays a suspect until the breaker lets it go, though another worker of it is well."""
    life = at(S, others="bcdef")
    life(Tick(), 301)
    for worker in ("b1", "c1", "d1"):
        life(drain(worker))
    (alarm,) = life(drain("w1"))
    assert alarm.before is alarm.after is S
    assert life(clear("w2")) == []
    assert life.did(Tick(), 300)[:2] == ["drain w1", "drain w2"]


def test_facts_take_every_device():
    """A lost GPU is lost, also the last one."""
    life = Life()
    for worker in ("w1", "b1", "c1", "d1"):
        assert f"evict {worker}" in life.did(evict(worker))
    assert life.book.serving() == set()


def test_an_operator_takes_the_last_device():
    """An operator's word is done, and undone."""
    life = Life(others="")
    assert life.did(Quarantine("a", "alice", "fans")) == ["avoid w1", "avoid w2", "drain w1", "drain w2"]
    assert life.did(Release("a", "alice")) == ["admit w1", "admit w2"]


def test_observing_enacts_nothing_but_orders():
    """Facts are alarms as well; an operator's word counts."""
    life = Life(observe=True)
    decided = life(evict()) + life(kill("b1")) + life(drain("c1")) + life(doubt("d1"))
    assert len(decided) == 4
    assert all("observe" in decision.declined and not decision.actions for decision in decided)
    (alarm,) = life.book.remember("b", "node7", Cause("xid.79"), T0 - 9, 0, locked=False)
    assert "observe" in alarm.declined
    assert life.book.phase("b") is A
    assert life.did(Quarantine("a", "alice", "fans"))
    assert life.book.remember("b", "node7", Cause("operator", by="alice"), T0 - 9, 0, locked=True)[0].actions


def test_no_suspect_is_left_where_nothing_else_serves():
    """The doubtful one is used, the wrong one is not; and it is doubted again once there is another."""
    life = Life(others="b")
    life(doubt())
    life(evict("b1"))
    assert life.did(Tick()) == ["admit w1", "admit w2"]
    life(Tick(), 400)
    assert life.a is A
    life(Joined("c1", "c"))
    assert life.did(Tick()) == ["avoid w1", "avoid w2"]
