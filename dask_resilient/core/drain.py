"""Which results of a worker that leaves are moved to others, which are saved, and which are left to be lost.

A worker that is drained holds results that nobody else has. To move one costs its bytes over the network and leaves it
in memory, so that is done first, as long as there are room and time; the store takes what is over. What costs most to
make again goes first, so that a deadline takes what is cheapest.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

FULL = 0.7
"""Share of its memory limit up to which a worker is given results. Source: Dask's own limit for spilling to disk."""

ACTOR = "it is an actor, which lives in its worker's process"


@dataclass(frozen=True, slots=True)
class Held:
    """One result that only workers which leave have."""

    key: Hashable
    nbytes: int
    seconds: float
    """To make it again, infinite if unknown."""
    moves: bool = True
    """Whether another worker could take it."""
    reason: str = ""
    """Why it cannot be saved, empty if it can."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker in service."""

    worker: str
    room: float
    """Bytes that it may be given, infinite if it has no limit."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with each result, in order."""

    moves: tuple[tuple[Hashable, str], ...]
    """Key, and worker that takes it."""
    saves: tuple[Hashable, ...]
    left: tuple[tuple[Hashable, str], ...]
    """Key, and reason."""


def room(limit: int, holds: int) -> float:
    """Give the bytes that a worker may be given, from its memory limit (0 = none) and what it holds."""
    return max(0.0, FULL * limit - holds) if limit else float("inf")


def plan(held: Iterable[Held], peers: Sequence[Peer], *, seconds: float, bandwidth: float) -> Plan:
    """Say what is done with the results of a worker that leaves. Pure (no I/O).

    Parameters
    ----------
    held
        The results that only workers which leave have, without those that have a copy in the store.
    peers
        The workers that could take some.
    seconds
        Until the deadline. What could not be moved until then is saved, if it can be.
    bandwidth
        Bytes per second between workers, as measured.
    """
    space = {peer.worker: peer.room for peer in peers}
    given = dict.fromkeys(space, 0)
    moves: list[tuple[Hashable, str]] = []
    saves: list[Hashable] = []
    left: list[tuple[Hashable, str]] = []
    budget = max(seconds, 0.0) * bandwidth
    for each in sorted(held, key=lambda h: (-h.seconds, h.nbytes)):
        taker = _taker(space, given, each.nbytes) if each.moves else None
        late = each.nbytes > budget
        if taker is not None and not (late and not each.reason):
            moves.append((each.key, taker))
            space[taker] -= each.nbytes
            given[taker] += each.nbytes
            budget -= each.nbytes
        elif not each.reason:
            saves.append(each.key)
        else:
            left.append((each.key, f"{_unmoved(each, peers)}, and {each.reason}"))
    return Plan(tuple(moves), tuple(saves), tuple(left))


def _taker(space: dict[str, float], given: dict[str, int], nbytes: int) -> str | None:
    """Give the worker with most room, if it is enough; of several without a limit the one that was given least."""
    worker = max(space, key=lambda name: (space[name], -given[name], name), default=None)
    return worker if worker is not None and nbytes <= space[worker] else None


def _unmoved(each: Held, peers: Sequence[Peer]) -> str:
    if not each.moves:
        return "no other worker could take it"
    return f"no other worker has room for {each.nbytes:,} bytes" if peers else "no other worker is in service"
