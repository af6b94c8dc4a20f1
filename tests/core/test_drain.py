"""What is moved, what is saved and what is left of a worker that is to leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core.drain import FULL, Held, Peer, plan, room

FAST = {"seconds": 60.0, "bandwidth": 1e9}


def held(key, nbytes=10, seconds=1.0, *, moves=True, reason=""):
    return Held(key, nbytes, seconds, moves, reason)


def test_the_most_expensive_goes_first():
    """What is unknown counts as most expensive, and of two that cost the same the smaller goes first."""
    made = plan(
        [held("a", 20), held("b", seconds=5), held("c", seconds=float("inf")), held("d")], [Peer("p", 99)], **FAST
    )
    assert [key for key, _ in made.moves] == ["c", "b", "d", "a"]
    assert not made.saves
    assert not made.left


def test_results_are_spread():
    """The worker with most room takes the next one; without limits, the one that was given least."""
    made = plan([held(i) for i in range(4)], [Peer("p", 30), Peer("q", 20)], **FAST)
    assert sorted(peer for _, peer in made.moves) == ["p", "p", "p", "q"] or sorted(peer for _, peer in made.moves) == [
        "p",
        "p",
        "q",
        "q",
    ]
    made = plan([held(i) for i in range(4)], [Peer("p", float("inf")), Peer("q", float("inf"))], **FAST)
    assert sorted(peer for _, peer in made.moves) == ["p", "p", "q", "q"]


def test_what_nobody_has_room_for_is_saved():
    """The expensive ones get the room."""
    made = plan([held("a", 60, 1), held("b", 60, 2)], [Peer("p", 100)], **FAST)
    assert made.moves == (("b", "p"),)
    assert made.saves == ("a",)


def test_what_cannot_be_moved_in_time_is_saved():
    """And moved all the same if it cannot be saved: there may be more time than it seems."""
    made = plan([held("a", 60, 2), held("b", 60, 1)], [Peer("p", 1000)], seconds=1, bandwidth=100)
    assert (made.moves, made.saves) == ((("a", "p"),), ("b",))
    made = plan([held("a", 60, 2), held("b", 60, 1, reason="no")], [Peer("p", 1000)], seconds=-1, bandwidth=100)
    assert (made.moves, made.saves) == ((("b", "p"),), ("a",))


def test_what_is_left_has_a_reason():
    """It says why it was neither moved nor saved."""
    assert plan([held("a", reason="no codec")], [], **FAST).left == (
        ("a", "no other worker is in service, and no codec"),
    )
    (left,) = plan([held("a", 2000, reason="no codec")], [Peer("p", 1999)], **FAST).left
    assert left == ("a", "no other worker has room for 2,000 bytes, and no codec")
    (left,) = plan([held("a", moves=False, reason="no codec")], [Peer("p", 1999)], **FAST).left
    assert left == ("a", "no other worker could take it, and no codec")


def test_room():
    """A worker without a limit takes everything, a full one nothing."""
    assert room(0, 10**12) == float("inf")
    assert room(1000, 100) == FULL * 1000 - 100
    assert room(1000, 900) == 0


RESULTS = st.lists(
    st.builds(
        Held,
        key=st.uuids(),
        nbytes=st.integers(0, 100),
        seconds=st.one_of(st.just(float("inf")), st.floats(0, 10)),
        moves=st.booleans(),
        reason=st.sampled_from(["", "no"]),
    ),
    unique_by=lambda h: h.key,
)
PEERS = st.lists(st.builds(Peer, worker=st.text(max_size=2), room=st.floats(0, 300)), unique_by=lambda p: p.worker)


@given(RESULTS, PEERS, st.floats(-1, 5))
def test_each_result_is_planned_once(results, peers, seconds):
    """Nobody is given more than fits, nothing is moved or saved that cannot be, and nothing is forgotten."""
    made = plan(results, peers, seconds=seconds, bandwidth=50)
    assert sorted([key for key, _ in made.moves] + list(made.saves) + [key for key, _ in made.left]) == sorted(
        h.key for h in results
    )
    by = {h.key: h for h in results}
    for peer in peers:
        assert sum(by[key].nbytes for key, taker in made.moves if taker == peer.worker) <= peer.room + 1e-9
    assert all(by[key].moves for key, _ in made.moves)
    assert not any(by[key].reason for key in made.saves)
    assert all(by[key].reason and reason for key, reason in made.left)
