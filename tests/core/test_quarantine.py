"""The phases of devices: each row of the table."""

from __future__ import annotations

from itertools import product

import pytest

from dask_resilient.core.actions import (
    Drained,
    Joined,
    Left,
    Phase,
    Quarantine,
    Release,
    Tick,
    Tried,
    words,
)
from dask_resilient.core.phases import TABLE, Ask
from tests.support.device_life import (
    TIMES,
    A,
    D,
    Life,
    P,
    Q,
    S,
    all_of,
    at,
    clear,
    doubt,
    drain,
    evict,
    kill,
    sign,
)


def untried(life):
    """Have three canaries not run."""
    for _ in range(3):
        life(Tick(), 9)
        decided = life(Tried("n", "unknown", "no side"))
    return decided


def told_to_return(life):
    """Have the new process say that the device may be used again, once that is heard."""
    if life.a is Q:
        return life(sign("n"), 61)
    life(Tried("n", "unknown"))
    return life(Tick(), 5)


def tried(result):
    """Have the canary that may be asked for end so."""

    def send(life):
        if life.a is Q:
            life(sign("n"), 61)
        return life(Tried("n", result))

    return send


EVENTS = {
    Ask.DOUBT: lambda life: all_of(life, doubt),
    Ask.CLEAR: lambda life: all_of(life, clear),
    Ask.KILL: lambda life: life(kill("n" if life.a in {P, Q} else "w1")),
    Ask.CHECK: lambda life: life(kill("n" if life.a in {P, Q} else "w1", check=True, culprit=True))[:1],
    Ask.DRAIN: lambda life: life(drain("n" if life.a in {P, Q} else "w1")),
    Ask.EVICT: lambda life: life(evict("n" if life.a in {P, Q} else "w1")),
    Ask.JOINED: lambda life: life(Joined("x", "a")),
    Ask.GONE: lambda life: all_of(life, Left),
    Ask.DRAINED: lambda life: all_of(life, Drained),
    Ask.SIGN: told_to_return,
    Ask.RIGHT: tried("right"),
    Ask.WRONG: tried("wrong"),
    Ask.UNTRIED: untried,
    Ask.RELEASE: lambda life: life(Release("a", "alice")),
}
"""What comes to each row, sent to a device in any phase."""

ROWS = {
    (A, Ask.DOUBT): (S, ["avoid w1", "avoid w2"]),
    (A, Ask.KILL): (P, ["avoid w1", "avoid w2", "restart w1"]),
    (A, Ask.CHECK): (P, ["avoid w1", "avoid w2"]),
    (A, Ask.DRAIN): (D, ["avoid w1", "avoid w2", "drain w1", "drain w2"]),
    (A, Ask.EVICT): (Q, ["avoid w1", "avoid w2", "evict w1", "evict w2"]),
    (S, Ask.CLEAR): (A, ["admit w1", "admit w2"]),
    (S, Ask.KILL): (P, ["restart w1"]),
    (S, Ask.CHECK): (P, []),
    (S, Ask.DRAIN): (D, ["drain w1", "drain w2"]),
    (S, Ask.EVICT): (Q, ["evict w1", "evict w2"]),
    (S, Ask.JOINED): (S, ["avoid x"]),
    (S, Ask.GONE): (A, []),
    (S, Ask.RELEASE): (A, ["admit w1", "admit w2"]),
    (D, Ask.KILL): (Q, ["evict w1", "evict w2"]),
    (D, Ask.EVICT): (Q, ["evict w1", "evict w2"]),
    (D, Ask.JOINED): (D, ["avoid x", "drain x"]),
    (D, Ask.GONE): (Q, []),
    (D, Ask.DRAINED): (Q, ["evict w1", "evict w2"]),
    (D, Ask.RELEASE): (A, ["admit w1", "admit w2"]),
    (P, Ask.KILL): (P, ["restart n"]),
    (P, Ask.DRAIN): (Q, ["evict n", "evict w2"]),
    (P, Ask.EVICT): (Q, ["evict n", "evict w2"]),
    (P, Ask.JOINED): (P, ["avoid x"]),
    (P, Ask.SIGN): (P, ["run the canary on n"]),
    (P, Ask.RIGHT): (A, ["admit n", "admit w2"]),
    (P, Ask.UNTRIED): (A, ["admit n", "admit w2"]),
    (P, Ask.WRONG): (Q, ["evict n", "evict w2"]),
    (P, Ask.RELEASE): (A, ["admit n", "admit w2"]),
    (Q, Ask.JOINED): (Q, ["avoid x"]),
    (Q, Ask.SIGN): (Q, ["run the canary on n"]),
    (Q, Ask.RIGHT): (A, ["admit n"]),
    (Q, Ask.WRONG): (Q, []),
    (Q, Ask.RELEASE): (A, ["admit n"]),
}

ELSEWHERE = {(phase, Ask.SIGN) for phase in (A, S, D)} | {(Q, Ask.UNTRIED)}
"""What no event comes to: a sign is a verdict that clears, and canaries out of service go on."""


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("phase", "ask"), ROWS)
def test_row(phase, ask):
    """Each row leads where it says and does what it says, to all workers that are there to stay."""
    life = at(phase)
    after, does = ROWS[phase, ask]
    (decision,) = EVENTS[ask](life)
    assert (decision.before, decision.after, life.a) == (phase, after, after)
    assert [words(action) for action in decision.actions] == does
    assert (decision.time, decision.device, decision.host, decision.declined) == (life.now, "a", "node7", "")


def test_every_row_is_tried():
    """The rows above are those of the table."""
    assert set(ROWS) == set(TABLE)


@pytest.mark.parametrize(("phase", "ask"), sorted(set(product(Phase, Ask)) - set(TABLE) - ELSEWHERE))
def test_what_the_table_does_not_name_changes_nothing(phase, ask):
    """No action, and the same phase; an operator is told why."""
    life = at(phase)
    decided = EVENTS[ask](life)
    assert life.a is phase
    assert not any(decision.actions for decision in decided)
    assert [decision.declined for decision in decided] == (["it is active already"] if ask is Ask.RELEASE else [])


@pytest.mark.parametrize("phase", [S, D, P, Q])
def test_every_held_phase_ends(phase):
    """An operator ends each of them; and from each a walk along rows that need no operator leads to service."""
    assert TABLE[phase, Ask.RELEASE][0] is A
    seen, todo = set(), [phase]
    while todo:
        here = todo.pop()
        seen.add(here)
        todo += {after for (p, ask), (after, _) in TABLE.items() if p is here and ask is not Ask.RELEASE} - seen
    assert A in seen


# -- suspects and draining ---------------------------------------------------------------------------------------------


def test_a_suspect_is_not_cleared_by_another_worker():
    """Only the worker in doubt clears its device, or is gone."""
    life = at(S)
    assert life(clear("w2")) == []
    assert life(Tick(), 99) == []
    assert life(Left("w1")) == []
    assert life.did(Tick()) == ["admit w2"]


def test_draining_ends_when_all_are_drained():
    """Workers that leave are not waited for, nor those that were told to go long ago."""
    life = at(P)
    life(kill("n"))
    life(Joined("m", "a"))
    assert life.did(Tick(), 5) == ["run the canary on m"]
    life(Tried("m", "right"))
    assert life.did(drain("w2"), 90_000) == ["avoid m", "avoid w2", "drain m", "drain w2"]
    assert life(Drained("w2")) == []
    assert life.did(Left("m")) == ["evict w2"]


def test_draining_ends_at_its_deadline():
    """What could not be saved by then is lost; the reason stays that of the fault."""
    life = at(D)
    assert life(Tick(), TIMES.drain - 1) == []
    (decision,) = life(Tick(), 1)
    assert [words(action) for action in decision.actions] == ["evict w1", "evict w2"]
    assert decision.cause.rule == "xid.48"
    assert "time" in decision.cause.evidence[-1]


def test_a_device_without_a_worker_is_quarantined_at_once():
    """An operator may know better than to let it come."""
    life = Life()
    assert [decision.after for decision in life(Quarantine("z", "alice", "fans"))] == [D, Q]
    assert life.did(Joined("z1", "z")) == ["avoid z1"]
