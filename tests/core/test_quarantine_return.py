"""How devices come back, and what processes cost them."""

from __future__ import annotations

import pytest

from dask_resilient.core.actions import (
    Culprit,
    Drained,
    Joined,
    Left,
    Quarantine,
    Release,
    Tick,
    Tried,
    words,
)
from dask_resilient.core.faults import Class
from tests.support.device_life import A, D, Life, P, Q, at, clear, drain, evict, judged, kill, sign

# -- processes that are replaced ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("times", "delay"), list(enumerate([0, 5, 20, 60, 60, 60])))
def test_new_processes_get_tasks_later_and_later(times, delay):
    """At once, then later and later within ten minutes, whoever was to blame; they start at once."""
    life, worker = Life(), "w1"
    for i in range(times + 1):
        assert f"restart {worker}" in life.did(kill(worker, culprit=True), 1)
        life(Left(worker))
        worker = f"n{i}"
        tried = life.did(Joined(worker, "a"))
        if i < times:
            tried += life.did(Tick(), 60)
            assert tried[-1] == f"run the canary on {worker}"
            life(Tried(worker, "right"))
    assert (tried[1:] == [f"run the canary on {worker}"]) is not delay
    if delay:
        assert life.did(Tick(), delay - 0.5) == []
        assert life.did(Tick(), 0.5) == [f"run the canary on {worker}"]


def test_ten_minutes_later_a_new_process_is_tried_at_once_again():
    """Calm has returned."""
    life = Life()
    for worker, new in (("w1", "n0"), ("n0", "n1")):
        life(kill(worker, culprit=True), 601)
        life(Left(worker))
        assert f"run the canary on {new}" in life.did(Joined(new, "a"))
        life(Tried(new, "right"))


def replaced_twice(life, **kwargs):
    """Have two processes replaced and their successors found sound."""
    for i in range(2):
        life(kill(f"n{i - 1}" if i else "w1", **kwargs), 700)
        life(Left(f"n{i - 1}" if i else "w1"))
        life(Joined(f"n{i}", "a"))
        life(Tried(f"n{i}", "right"))
    assert life.a is A
    return life


def test_the_third_process_within_a_day_costs_the_device_its_service():
    """It is quarantined by judgement, and the reason says so."""
    life = replaced_twice(Life())
    (decision,) = life(kill("n1"))
    assert decision.after is Q
    assert not decision.cause.fact
    assert decision.cause.evidence[-1] == "processes of this device have failed 3 times within a day"
    assert "evict n1" in map(words, decision.actions)


@pytest.mark.parametrize("case", ["last device", "a day later", "tasks to blame", "taken back", "released"])
def test_the_third_process_is_replaced_all_the_same(case):
    """Where the breaker refuses, where strikes are old, or where they were none."""
    label = {"label": "sum: 700", "culprit": case == "tasks to blame"}
    life = replaced_twice(Life(others="" if case == "last device" else "bcd"), **label)
    if case == "taken back":
        assert life(Culprit("sum: 700")) == []
    if case == "released":
        life(Quarantine("a", "alice", ""))
        life(Release("a", "alice"))
    done = life.did(kill("n1"), 90_000 if case == "a day later" else 0)
    if case == "last device":
        assert done[-1] == "run the canary on n1", (
            "nothing would be gained by yet another process, if this one can work"
        )
        done = life.did(Tried("n1", "unknown", "dead"))
    assert "restart n1" in done
    assert life.a is P


def test_the_last_device_goes_on_with_a_process_that_computes_right():
    """However often its tasks fail: that is told, and nothing is lost."""
    life = replaced_twice(Life(others=""))
    alarm, check, _ = life(kill("n1"))
    assert "last device" in alarm.declined
    assert check.after is P
    assert life.did(Tried("n1", "right")) == ["admit n1", "admit w2"]


def test_a_process_that_may_be_sound_is_tried_before_it_has_to_go():
    """Once; the second time within a day it is replaced, the third time its device is left."""
    life = Life()
    assert life.did(kill(check=True, fact=False)) == ["avoid w1", "avoid w2", "run the canary on w1"]
    assert life.did(Tried("w1", "right")) == ["admit w1", "admit w2"]
    life(clear("w1"))
    assert life.did(kill(check=True, fact=False)) == ["avoid w1", "avoid w2", "restart w1"]
    life(Left("w1"))
    life(Joined("n", "a"))
    life(Tried("n", "right"))
    assert "evict n" in life.did(kill("n", check=True, fact=False))


def test_where_tasks_are_to_blame_a_process_is_tried_each_time():
    """And counts for nothing as long as it computes right."""
    life = Life(others="")
    for _ in range(5):
        assert life.did(kill(check=True, culprit=True))[-1] == "run the canary on w1"
        life(Tried("w1", "right"))
        life(clear("w1"))
    assert life.a is A
    life(kill(check=True, culprit=True))
    assert life.did(Tried("w1", "unknown", "its context is broken")) == ["restart w1"]


def test_a_judgement_about_a_process_waits_for_the_breaker():
    """On the last device the error passes."""
    life = Life(others="")
    (alarm,) = life(kill(check=True, fact=False))
    assert "last device" in alarm.declined
    assert life.a is A


def left_for(life, label="sum: 214"):
    """Have the device left for what a task met."""
    for worker in ("w1", "w2"):
        life(judged(worker, Class.EVICT, "cuda.214", label=label))
        life(Left(worker))
    assert life.a is Q
    return life


def test_a_device_left_for_what_tasks_are_to_blame_for_is_free_again():
    """Its next worker gets tasks, the breaker forgets it, and it has failed nothing."""
    life = left_for(Life(others="b"))
    (decision,) = life(Culprit("sum: 214", "task k0 is to blame"))
    assert (decision.after, decision.cause.rule, decision.cause.evidence) == (A, "culprit", ("task k0 is to blame",))
    assert life(Joined("n1", "a")) == []
    assert "evict b1" in life.did(judged("b1", Class.EVICT, "xid.48")), "or half of the devices would be out already"
    life(judged("n1", Class.EVICT, "xid.79", fact=True))
    assert not life.book.devices["a"].failed


@pytest.mark.parametrize("case", ["another label", "an operator", "locked", "a new worker says so"])
def test_a_device_stays_out_of_service_where_tasks_are_not_all_that_speaks_against_it(case):
    """Only what they have cost is taken back."""
    life = at(Q) if case == "an operator" else left_for(Life())
    if case == "locked":
        life(Quarantine("a", "alice", ""))
    if case == "a new worker says so":
        life(Joined("n1", "a"))
        life(evict("n1"))
    if case == "an operator":
        life(Release("a", "alice"))
        life(Quarantine("a", "alice", ""))
        life(Drained("n"))
    assert life(Culprit("sum: 700" if case == "another label" else "sum: 214")) == []
    assert life.a is Q


def test_strikes_of_another_label_stay():
    """A culprit takes back what it cost, no more."""
    life = replaced_twice(Life(), label="sum: 700")
    life(Culprit("mean: 700"))
    assert "evict n1" in life.did(kill("n1"))


def test_a_verdict_or_a_canary_of_a_process_that_is_told_to_go_changes_nothing():
    """Its successor is judged by what it says itself."""
    life = at(P)
    life(kill("n"))
    for event in (Tried("n", "right"), Tried("n", "wrong"), evict("n"), sign("n"), clear("n")):
        assert life(event) == []
    assert life.a is P


def test_each_new_process_has_three_canaries():
    """Canaries of its predecessor that could not run do not count."""
    life = at(P)
    for _ in range(2):
        life(Tried("n", "unknown"))
        life(Tick(), 20)
    life(kill("n"))
    life(Joined("m", "a"))
    assert life(Tried("m", "unknown")) == []
    assert life.a is P


def test_a_canary_that_does_not_answer_could_not_run():
    """After a minute each; the third time the process is taken as it is."""
    life = at(P)
    did = [did for _ in range(40) for did in life.did(Tick(), 10)]
    assert did == ["run the canary on n", "run the canary on n", "admit n", "admit w2"]


def test_a_wrong_canary_counts_while_another_runs():
    """Two new processes of one device: the first result that says something decides."""
    life = at(P)
    life(Joined("m", "a"))
    assert life.did(Tried("n", "wrong")) == ["evict m", "evict n", "evict w2"]


def test_another_worker_is_tried_where_no_new_process_comes():
    """A nanny that brings none holds no device back for ever."""
    life = Life()
    life(kill())
    life(Left("w1"))
    assert life(Tick(), 59) == []
    assert life.did(Tick(), 2) == ["run the canary on w2"]
    assert life.did(Tried("w2", "right")) == ["admit w2"]


# -- coming back -------------------------------------------------------------------------------------------------------


def test_time_alone_brings_nothing_back():
    """Nor do verdicts without the sign, nor canaries that nobody asked for."""
    life = at(Q)
    for event in (Tick(), clear("n"), Tried("n", "right"), Tick()):
        assert life(event, 100_000) == []
    assert life.a is Q


def test_a_sign_is_heard_after_the_delay():
    """The canary waits a minute, and the device until the canary has computed right."""
    life = at(Q)
    assert life(sign("n"), 59) == []
    assert life.did(Tick(), 1) == ["run the canary on n"]
    assert life(Tick(), 1) == []
    assert life.did(Tried("n", "right")) == ["admit n"]


def test_a_sign_that_is_taken_back_counts_no_more():
    """A fault that is found while the canary runs weighs more than its product."""
    life = at(Q)
    life(sign("n"), 61)
    life(drain("n"))
    assert life(Tried("n", "right")) == []
    assert life.a is Q


def test_a_sign_that_another_worker_denies_is_none():
    """Two processes of one device say different things."""
    life = at(Q)
    life(Joined("m", "a"))
    life(drain("m"))
    assert life(sign("n"), 61) == life(Tick()) == []
    assert life.did(Left("m")) == []
    assert life.did(Tick()) == ["run the canary on n"]


def test_two_wrong_canaries_leave_it_to_an_operator():
    """The second one comes later, a third one never."""
    life = at(Q)
    life(sign("n"), 61)
    life(Tried("n", "wrong"))
    assert life(Tick(), 239) == []
    assert life.did(Tick(), 1) == ["run the canary on n"]
    life(Tried("n", "wrong"))
    assert life(Tick(), 1e6) == []
    assert life.did(Release("a", "alice")) == ["admit n"]
    assert life.book.devices["a"].failed == 0


@pytest.mark.parametrize(("after", "back"), [(3_599, False), (3_601, True)])
def test_a_relapse_is_a_failed_requalification(after, back):
    """Out again within an hour of its return, it failed; a wrong product on top of that is no second failure."""
    life = at(Q)
    for worker, event in (("n", evict), ("m", kill)):
        life(Joined(worker, "a"))
        life(sign(worker), 1_000)
        assert life.did(Tried(worker, "right")) == [f"admit {worker}"]
        life(event(worker), after)
        life(Left(worker))
    life(Joined("o", "a"))
    life(Tried("o", "wrong"))
    life(Left("o"))
    assert life.book.devices["a"].failed == (1 if back else 2)
    life(Joined("p", "a"))
    assert life.did(sign("p"), 100_000) == (["run the canary on p"] if back else [])


def test_canaries_that_cannot_run_wait_longer_and_longer_but_come():
    """A device out of service is never taken as it is."""
    life = at(Q)
    life(sign("n"), 61)
    runs = 1
    for _ in range(700):
        life(Tried("n", "unknown"))
        runs += len(life.did(Tick(), 10_000))
    assert runs == 701
    assert life.a is Q


def test_what_an_operator_quarantined_comes_back_by_an_operator():
    """Also where its canary was running already, or where it was quarantined before."""
    life = at(Q)
    life(sign("n"), 61)
    (answer,) = life(Quarantine("a", "alice", "fans"))
    assert (answer.declined, answer.actions, answer.after, answer.cause.by) == ("", (), Q, "alice")
    assert life.book.devices["a"].cause.evidence == ("fans",)
    (answer,) = life(Quarantine("a", "alice", "fans again"))
    assert answer.declined == "it is quarantined already"
    assert life(Tried("n", "right")) == []
    assert life(sign("n"), 1e6) == life(Tick()) == []
    assert life.did(Release("a", "bob")) == ["admit n"]


def test_a_verdict_in_spite_of_which_it_was_released_waits_until_it_changes():
    """The same words take it out no more; after others they do."""
    life = at(D)
    life(Release("a", "alice"))
    assert life(drain()) == life(Tick(), 1_000) == []
    life(clear())
    assert life.did(drain())
    life(Release("a", "alice"))
    assert "evict w1" in life.did(evict())
