"""What may be deleted, rule by rule, and what never is, whatever lies in the store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_resilient.core.garbage import (
    EXPIRY,
    GRACE,
    RENEWAL,
    Contents,
    Garbage,
    Lease,
    StoredReceipt,
    Why,
    collectable,
    everything,
    garbage,
    in_use,
)

OLD, YOUNG = GRACE + 1, GRACE - 1
RUN = StoredReceipt("0-a", OLD, "run")
FINISHED = {"run": Lease("run", live=False, complete=True)}
FAILED = {"run": Lease("run", live=False)}
LIVE = {"run": Lease("run", live=True, milestones=frozenset({"m"}))}


def contents(**parts):
    """Give an old milestone of one partition, made by ``run``, with some parts exchanged."""
    given = {"run": "run", "age": OLD, "receipts": {("0", 0): RUN}, "attempts": {"0-a": OLD}}
    return Contents("m", **{**given, **parts})


def test_constants_fit():
    """A lease outlives several renewals that do not come, and the grace period every lease."""
    assert RENEWAL * 5 <= EXPIRY <= GRACE / 10


# -- complete milestones -----------------------------------------------------------------------------------------------


def test_complete_milestone_goes_receipts_first():
    """All of a milestone of a complete run goes: what makes a partition exist first, the description last."""
    found = garbage(
        contents(tombstones={("1", 0): OLD}, attempts={"0-a": OLD, "1-b": OLD}, drafts={"commit/m/.x": OLD}), FINISHED
    )
    assert found == [
        Garbage(Why.COMPLETE, receipt=("0", 0), attempt="0-a"),
        Garbage(Why.COMPLETE, attempt="1-b"),
        Garbage(Why.COMPLETE, tombstone=("1", 0)),
        Garbage(Why.COMPLETE, draft="commit/m/.x"),
        Garbage(Why.COMPLETE, description=True),
    ]


@pytest.mark.parametrize(
    "parts",
    [
        {"run": None},
        {"run": "another"},
        {"keep": True},
        {"age": GRACE},
        {"age": 0.0},
        {"receipts": {("0", 0): replace(RUN, age=GRACE)}},
        {"tombstones": {("1", 0): YOUNG}},
        {"attempts": {"0-a": OLD, "1-b": YOUNG}},
        {"drafts": {"commit/m/.x": YOUNG}},
    ],
    ids=repr,
)
def test_complete_milestone_stays(parts):
    """Not if nobody knows who made it, not what is to be kept, and not while anything of it is young."""
    assert collectable(contents(), FINISHED, GRACE)
    assert not collectable(contents(**parts), FINISHED, GRACE)
    assert not [each for each in garbage(contents(**parts), FINISHED) if each.receipt or each.description]


@pytest.mark.parametrize(
    "lease",
    [
        Lease("run", live=False),
        Lease("run", live=True),
        Lease("run", live=True, complete=True),
    ],
)
def test_milestone_of_a_run_that_is_not_done_stays(lease):
    """A run that failed can go on from its milestones, and one that was marked may not have left yet."""
    assert not garbage(contents(), {"run": lease})


@pytest.mark.parametrize(
    ("second", "goes"),
    [
        (Lease("b", live=False, complete=True, milestones=frozenset({"m"})), True),
        (Lease("b", live=False, milestones=frozenset({"m"})), False),
        (Lease("b", live=True, milestones=frozenset({"m"})), False),
        (Lease("b", live=True, complete=True, milestones=frozenset({"m"})), False),
        (Lease("b", live=False, milestones=frozenset({"n"})), True),
        (Lease("b", live=True, milestones=frozenset({"n"})), True),
        (Lease("b", live=True, milestones=None), False),
        (Lease("b", live=False, milestones=None), False),
        (Lease("b", live=False, complete=True, milestones=None), True),
    ],
)
def test_every_run_that_used_it_has_a_say(second, goes):
    """A milestone goes when each run that made or used it is done; a lease that cannot be read may name any."""
    assert bool(garbage(contents(), {**FINISHED, "b": second})) is goes


def test_in_use_says_by_whom():
    """The run that uses a milestone is named: one whose lease names it, or that made it."""
    assert in_use(contents(), LIVE.values()) == "run"
    assert in_use(contents(run=None), LIVE.values()) == "run"
    assert in_use(contents(), [Lease("run", live=True)]) == "run"
    assert in_use(contents(), [Lease("b", live=True, milestones=None)]) == "b"
    assert in_use(contents(), [Lease("b", live=True)]) is None
    assert in_use(contents(), FAILED.values()) is None


# -- parts of milestones that stay -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age", "revoked", "goes"), [(OLD, OLD, True), (OLD, GRACE, False), (GRACE, OLD, False), (YOUNG, YOUNG, False)]
)
def test_revoked_copies(age, revoked, goes):
    """A copy goes with its receipt when that and its tombstone are old; the tombstone stays."""
    one = contents(receipts={("0", 0): replace(RUN, age=age)}, tombstones={("0", 0): revoked}, attempts={"0-a": age})
    assert garbage(one, FAILED) == ([Garbage(Why.REVOKED, receipt=("0", 0), attempt="0-a")] if goes else [])


def test_tombstone_alone_stays():
    """A tombstone whose receipt is gone keeps that generation from being written again."""
    assert not garbage(contents(tombstones={("7", 0): OLD}), FAILED)


def test_attempt_that_two_receipts_name_stays():
    """Data that another receipt names stays when one receipt goes."""
    one = contents(receipts={("0", 0): RUN, ("0", 1): RUN}, tombstones={("0", 0): OLD})
    assert garbage(one, FAILED) == [Garbage(Why.REVOKED, receipt=("0", 0), attempt=None)]


def test_revoked_copy_that_cannot_be_read():
    """The receipt goes, and no attempt is named that it may have meant."""
    one = contents(receipts={("0", 0): StoredReceipt(None, OLD)}, tombstones={("0", 0): OLD})
    assert garbage(one, FAILED) == [Garbage(Why.REVOKED, receipt=("0", 0), attempt=None)]


@pytest.mark.parametrize(
    ("leases", "age", "goes"),
    [
        ({}, OLD, True),
        (FAILED, OLD, True),
        (FINISHED, OLD, True),
        (FAILED, GRACE, False),
        ({"run": Lease("run", live=True)}, OLD, False),
        ({"run": Lease("run", live=True, complete=True)}, OLD, False),
        ({"run": Lease("run", live=False), "b": Lease("b", live=True)}, OLD, True),
        ({"run": Lease("run", live=False), "b": Lease("b", live=True, milestones=frozenset({"m"}))}, OLD, False),
    ],
)
def test_copies_for_a_run_only(leases, age, goes):
    """They go once their run has ended, whether it was marked or not, or if nobody has heard of it."""
    one = contents(run=None, receipts={("0", 0): replace(RUN, age=age, temporary=True)})
    assert garbage(one, leases) == ([Garbage(Why.TEMPORARY, receipt=("0", 0), attempt="0-a")] if goes else [])


def test_revoked_temporary_copy_is_named_once():
    """One that is both revoked and of a run that has ended is deleted once."""
    one = contents(receipts={("0", 0): replace(RUN, temporary=True)}, tombstones={("0", 0): OLD})
    assert [each.why for each in garbage(one, FAILED)] == [Why.REVOKED]


@pytest.mark.parametrize(("age", "goes"), [(OLD, True), (GRACE, False), (0.0, False)])
def test_abandoned_attempts_and_drafts(age, goes):
    """What never got a receipt, or its name, goes when it is old."""
    one = contents(attempts={"0-a": OLD, "0-b": age}, drafts={"commit/m/.x": age})
    expected = [Garbage(Why.ABANDONED, attempt="0-b"), Garbage(Why.DRAFT, draft="commit/m/.x")]
    assert garbage(one, FAILED) == (expected if goes else [])


def test_unreadable_receipt_keeps_the_attempts_of_its_index():
    """A receipt that cannot be read may name any attempt of its index, and of no other."""
    one = contents(
        receipts={("1", 0): StoredReceipt(None, OLD)}, attempts={"1-a": OLD, "1-b": OLD, "10-c": OLD, "0-d": OLD}
    )
    assert [each.attempt for each in garbage(one, FAILED)] == ["10-c", "0-d"]


@pytest.mark.parametrize(("live", "goes"), [(False, True), (True, False)])
def test_shorter_grace_is_lengthened_while_runs_live(live, goes):
    """What is younger than a lease may be of a run that has not said yet that it uses it."""
    one = contents(run=None, receipts={}, attempts={"0-a": EXPIRY})
    found = garbage(one, {"b": Lease("b", live=live)}, grace=0.0)
    assert bool(found) is goes
    assert garbage(replace(one, attempts={"0-a": EXPIRY + 1}), {"b": Lease("b", live=live)}, grace=0.0)


def test_everything_names_all():
    """All that lies under one m is named, and nothing twice."""
    one = contents(
        receipts={("0", 0): RUN, ("1", 0): StoredReceipt(None, 0.0)},
        tombstones={("0", 0): 0.0},
        attempts={"0-a": 0.0, "1-b": 0.0},
        drafts={"revoked/m/.y": 0.0},
    )
    found = everything(one, Why.REMOVED)
    assert len(found) == len(set(found)) == 6
    assert {each.why for each in found} == {Why.REMOVED}
    assert [each.attempt for each in found if each.attempt] == ["0-a", "1-b"]


# -- whatever lies there -----------------------------------------------------------------------------------------------

RUNS = ("run", "b", "unknown")
INDICES = ("0", "1", "10")
ATTEMPTS = tuple(f"{index}-{letter}" for index in INDICES for letter in "ab")
ages = st.sampled_from([0.0, 1.0, EXPIRY, EXPIRY + 1, GRACE, GRACE + 1])
places = st.tuples(st.sampled_from(INDICES), st.integers(0, 2))
stores = st.builds(
    Contents,
    st.just("m"),
    run=st.sampled_from([None, *RUNS]),
    keep=st.booleans(),
    age=ages,
    receipts=st.dictionaries(
        places,
        st.builds(StoredReceipt, st.sampled_from([None, "a", "b"]), ages, st.sampled_from(RUNS), st.booleans()),
        max_size=4,
    ).map(lambda found: {p: replace(r, attempt=r.attempt and f"{p[0]}-{r.attempt}") for p, r in found.items()}),
    tombstones=st.dictionaries(places, ages, max_size=3),
    attempts=st.dictionaries(st.sampled_from(ATTEMPTS), ages, max_size=6),
    drafts=st.dictionaries(st.sampled_from(["commit/m/.x", "revoked/m/.y"]), ages),
)
named = st.sampled_from([None, frozenset(), frozenset({"m"}), frozenset({"n"})])
runs = st.fixed_dictionaries(
    {},
    optional={
        run: st.builds(Lease, st.just(run), live=st.booleans(), complete=st.booleans(), milestones=named)
        for run in ("run", "b")
    },
)


@settings(max_examples=200)
@given(stores, runs, st.sampled_from([0.0, 1.0, GRACE]))
def test_what_never_goes(store, leases, grace):
    """Whatever lies there: nothing that a live lease names, nothing young, nothing of a run that was not marked."""
    found = garbage(store, leases, grace)
    alive = [lease for lease in leases.values() if lease.live]
    if any(lease.milestones is None or "m" in lease.milestones or lease.run == store.run for lease in alive):
        assert not found
    least = max(grace, EXPIRY) if alive else grace
    going = {each.receipt for each in found}
    for each in found:
        assert each.receipt is None or store.receipts[each.receipt].age > least
        assert each.attempt is None or each.receipt or store.attempts[each.attempt] > least
        assert each.tombstone is None or store.tombstones[each.tombstone] > least
        assert each.draft is None or store.drafts[each.draft] > least
        assert not each.description or store.age > least
    done = store.run in leases and leases[store.run].complete and not leases[store.run].live
    if store.keep or not done:
        assert not any(each.description or each.tombstone for each in found)
        for each in found:
            receipt = store.receipts.get(each.receipt)
            ended = receipt is not None and not leases.get(receipt.run, Lease(receipt.run, live=False)).live
            # Only copies that are revoked, or part of no milestone, lose their receipt.
            assert receipt is None or each.receipt in store.tombstones or (receipt.temporary and ended)
    # No receipt is left that names data which go, nor one that may name them.
    for place, receipt in store.receipts.items():
        if place not in going:
            assert receipt.attempt is None or receipt.attempt not in {each.attempt for each in found}
            assert receipt.attempt or not any((e.attempt or "").startswith(f"{place[0]}-") for e in found)


@given(stores, runs)
def test_receipts_before_attempts(store, leases):
    """An attempt that no receipt names any more goes after every receipt, so that a stop in between leaves no liar."""
    found = garbage(store, leases)
    alone = [i for i, each in enumerate(found) if each.attempt and not each.receipt]
    receipts = [i for i, each in enumerate(found) if each.receipt]
    assert not alone or not receipts or max(receipts) < min(alone)
    assert not any(each.description for each in found[:-1])


@given(stores, runs)
def test_collecting_ends(store, leases):
    """What is left after a collection holds nothing more to collect: no cascade that takes a second one."""
    found = garbage(store, leases)
    gone = {each.receipt for each in found}
    left = replace(
        store,
        receipts={place: receipt for place, receipt in store.receipts.items() if place not in gone},
        tombstones={p: age for p, age in store.tombstones.items() if p not in {e.tombstone for e in found}},
        attempts={name: age for name, age in store.attempts.items() if name not in {e.attempt for e in found}},
        drafts={path: age for path, age in store.drafts.items() if path not in {e.draft for e in found}},
        run=None if any(each.description for each in found) else store.run,
    )
    again = garbage(left, leases)
    freed = {r.attempt for place, r in store.receipts.items() if place in gone} | {None}
    unknown = any(r.attempt is None for place, r in store.receipts.items() if place in gone)
    assert unknown or {each.attempt for each in again} <= freed
