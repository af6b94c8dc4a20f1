"""How devices come back, and what processes cost them."""

from __future__ import annotations

import pytest

from dask_resilient.core.actions import (
    Culprit,
    Joined,
    Left,
    Quarantine,
    Release,
    Restart,
    Tick,
    Tried,
    words,
)
from tests.support.device_life import A, D, Life, P, Q, at, clear, drain, evict, kill, sign

# -- processes that are replaced ---------------------------------------------------------------------------------------


def test_restarts_are_delayed():
    """At once, then later and later within ten minutes, whoever was to blame."""
    life = Life()
    delays = []
    for i in range(6):
        delays += [
            a.delay
            for d in life(kill(f"n{i - 1}" if i else "w1", culprit=True), 9)
            for a in d.actions
            if isinstance(a, Restart)
        ]
        life(Joined(f"n{i}", "a"))
    assert delays == [0, 5, 20, 60, 60, 60]
    (decision,) = life(kill("n5", culprit=True), 601)
    assert decision.actions == (Restart("n5", 0.0),)


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
    assert "process 3" in decision.cause.evidence[-1]
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
    assert "restart n1" in life.did(kill("n1"), 90_000 if case == "a day later" else 0)
    assert life.a is P


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
