"""The life of one device: a book and a clock, verdicts, and the way into each phase."""

from __future__ import annotations

from dask_resilient.core.actions import Cause, Joined, Judged, Left, Phase, words
from dask_resilient.core.breaker import Breaker
from dask_resilient.core.faults import Class
from dask_resilient.core.phases import Times
from dask_resilient.core.quarantine import Book

T0 = 1e9
TIMES = Times()
FINE, SAYS_SO = Cause("fine"), Cause("recovery-action.0", ("the driver wants nothing done",))
A, S, D, Q, P = Phase.ACTIVE, Phase.SUSPECT, Phase.DRAINING, Phase.QUARANTINED, Phase.PROBATION


class Life:
    """A book and a clock: the device ``a`` with the workers w1 and w2, and devices with a worker each."""

    def __init__(self, others="bcd", *, observe=False):
        self.book = Book(Breaker(observe=observe), TIMES)
        self.now = T0
        for worker, device in (("w1", "a"), ("w2", "a"), *((f"{name}1", name) for name in others)):
            self(Joined(worker, device, "node7"))

    def __call__(self, event, after=0.0):
        """Send an event some seconds later; give the decisions."""
        self.now += after
        return self.book.handle(event, self.now)

    def did(self, event, after=0.0):
        """Send an event; give what is done, in words."""
        return [words(action) for decision in self(event, after) for action in decision.actions]

    @property
    def a(self):
        return self.book.phase("a")


def judged(worker, cls, rule, *, fact=False, **kwargs):
    """Make a verdict."""
    return Judged(worker, cls, Cause(rule, ("seen",), fact=fact, **kwargs))


def doubt(worker="w1"):
    """Say that nobody knows whether it is sick."""
    return judged(worker, None, "silence")


def clear(worker="w1"):
    """Say that nothing is wrong."""
    return Judged(worker, Class.OBSERVE, FINE)


def kill(worker="w1", *, fact=True, check=False, **kwargs):
    """Say that the process is dead for CUDA."""
    return Judged(worker, Class.KILL, Cause("cuda.700", ("seen",), fact=fact, **kwargs), check)


def drain(worker="w1"):
    """Say, as a judgement, that the device should be left."""
    return judged(worker, Class.DRAIN, "xid.48")


def evict(worker="w1"):
    """Say, as a fact, that the device is lost."""
    return judged(worker, Class.EVICT, "xid.79", fact=True)


def sign(worker):
    """Say that the device itself says that it may be used again."""
    return Judged(worker, Class.OBSERVE, SAYS_SO, sign=True)


def at(phase, **kwargs):
    """Bring the device ``a`` into a phase; out of service by a fault, its old workers are gone and n is new."""
    life = Life(**kwargs)
    match phase:
        case Phase.SUSPECT:
            life(doubt())
        case Phase.DRAINING:
            life(drain())
        case Phase.QUARANTINED:
            life(evict())
            life(Left("w1"))
            life(Left("w2"))
            life(Joined("n", "a"))
        case Phase.PROBATION:
            life(kill())
            life(Left("w1"))
            life(Joined("n", "a"))
    assert life.a is phase
    return life


def all_of(life, make):
    """Send one event for each worker of ``a`` that is there to stay."""
    return [decision for worker in sorted(life.book.devices["a"].present) for decision in life(make(worker))]
