"""The phases of a device as one table, and how long each thing takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from dask_resilient.core.actions import Phase
from dask_resilient.core.faults import Class


class Ask(StrEnum):
    """What an event comes to."""

    DOUBT = "doubt"
    """It may be sick: a verdict is unknown, because nothing answers."""
    CLEAR = "clear"
    """A verdict asks for nothing."""
    KILL = "kill"
    """A verdict asks for another process."""
    CHECK = "check"
    """A verdict asks for another process, which may be sound all the same."""
    DRAIN = "drain"
    """A verdict or an operator wants the device left, and it can be read."""
    EVICT = "evict"
    """A verdict wants the device left at once."""
    JOINED = "joined"
    """A worker of it joined."""
    GONE = "gone"
    """Its last worker is gone."""
    DRAINED = "drained"
    """Nothing is left that could be saved or moved, or the time is up."""
    SIGN = "sign"
    """It is time for a canary."""
    RIGHT = "right"
    """A canary computed right."""
    WRONG = "wrong"
    """A canary computed wrong."""
    UNTRIED = "untried"
    """Canaries could not run, again and again."""
    RELEASE = "release"
    """An operator wants it back, or tasks turned out to be to blame."""


class Do(StrEnum):
    """What is done to the workers of a device."""

    AVOID = "avoid"
    """Give it no more tasks, and take back those that do not execute yet."""
    ADMIT = "admit"
    """Give it tasks again."""
    DRAIN = "drain"
    """Save or move what it holds."""
    EVICT = "evict"
    """Take it out for good."""
    RESTART = "restart"
    """Replace its process."""
    CHECK = "check"
    """Have a canary tell whether its process is sound."""
    TRY = "try"
    """Run the canary."""


_A, _S, _D, _Q, _P = Phase.ACTIVE, Phase.SUSPECT, Phase.DRAINING, Phase.QUARANTINED, Phase.PROBATION

TABLE: Mapping[tuple[Phase, Ask], tuple[Phase, tuple[Do, ...]]] = {
    (_A, Ask.DOUBT): (_S, (Do.AVOID,)),
    (_A, Ask.KILL): (_P, (Do.AVOID, Do.RESTART)),
    (_A, Ask.CHECK): (_P, (Do.AVOID, Do.CHECK)),
    (_A, Ask.DRAIN): (_D, (Do.AVOID, Do.DRAIN)),
    (_A, Ask.EVICT): (_Q, (Do.AVOID, Do.EVICT)),
    (_S, Ask.CLEAR): (_A, (Do.ADMIT,)),
    (_S, Ask.KILL): (_P, (Do.RESTART,)),
    (_S, Ask.CHECK): (_P, (Do.CHECK,)),
    (_S, Ask.DRAIN): (_D, (Do.DRAIN,)),
    (_S, Ask.EVICT): (_Q, (Do.EVICT,)),
    (_S, Ask.JOINED): (_S, (Do.AVOID,)),
    (_S, Ask.GONE): (_A, ()),
    (_S, Ask.RELEASE): (_A, (Do.ADMIT,)),
    (_D, Ask.KILL): (_Q, (Do.EVICT,)),
    (_D, Ask.EVICT): (_Q, (Do.EVICT,)),
    (_D, Ask.JOINED): (_D, (Do.AVOID, Do.DRAIN)),
    (_D, Ask.GONE): (_Q, ()),
    (_D, Ask.DRAINED): (_Q, (Do.EVICT,)),
    (_D, Ask.RELEASE): (_A, (Do.ADMIT,)),
    (_P, Ask.KILL): (_P, (Do.RESTART,)),
    (_P, Ask.DRAIN): (_Q, (Do.EVICT,)),
    (_P, Ask.EVICT): (_Q, (Do.EVICT,)),
    (_P, Ask.JOINED): (_P, (Do.AVOID,)),
    (_P, Ask.SIGN): (_P, (Do.TRY,)),
    (_P, Ask.RIGHT): (_A, (Do.ADMIT,)),
    (_P, Ask.UNTRIED): (_A, (Do.ADMIT,)),
    (_P, Ask.WRONG): (_Q, (Do.EVICT,)),
    (_P, Ask.RELEASE): (_A, (Do.ADMIT,)),
    (_Q, Ask.JOINED): (_Q, (Do.AVOID,)),
    (_Q, Ask.SIGN): (_Q, (Do.TRY,)),
    (_Q, Ask.RIGHT): (_A, (Do.ADMIT,)),
    (_Q, Ask.WRONG): (_Q, ()),
    (_Q, Ask.RELEASE): (_A, (Do.ADMIT,)),
}
"""Phase and event: the phase after, and what is done."""


ASKED = {None: Ask.DOUBT, Class.KILL: Ask.KILL, Class.DRAIN: Ask.DRAIN, Class.EVICT: Ask.EVICT}
"""What a verdict comes to, None being doubt; the milder ones ask for nothing."""

OUT = frozenset({*ASKED.values(), Ask.CHECK})
"""What takes a device out of service, and so is subject to the breaker."""

PROCESS = frozenset({Ask.KILL, Ask.CHECK})
"""What is about a process that failed."""

ONE = frozenset({Ask.JOINED, Ask.SIGN})
"""What is about one worker of a device."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long things take, in seconds, and how often they are tried. Judgement, where nothing else is said."""

    drain: float = 60.0
    """For saving and moving what a device holds."""
    day: float = 86_400.0
    """In which strikes count."""
    strikes: int = 3
    """Processes that one device may cost in a day: the last of them costs it its service."""
    delay: float = 5.0
    """Until a second new process of a device gets tasks; each later one waits four times as long as the one before."""
    most_delay: float = 60.0
    """The longest of those waits."""
    calm: float = 600.0
    """After which a replaced process delays the next one no more."""
    return_delay: float = 60.0
    """From quarantine until a first canary may bring a device back; each failure makes it four times as long."""
    host_delay: float = 5.0
    """The same of a worker without a GPU: its new process is another device in all but its name."""
    relapse: float = 3_600.0
    """A device that is quarantined again this soon after its return has failed its requalification."""
    failed: int = 2
    """Failed requalifications after which only an operator brings a device back."""
    tries: int = 3
    """Canaries that could not run, after which a new process is taken as it is: only a wrong product fails it."""
    try_delay: float = 2.0
    """Until a canary that could not run is tried again; each later one waits four times as long."""
    answer: float = 60.0
    """For a canary to end."""
