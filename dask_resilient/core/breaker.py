"""What keeps quarantine from doing more harm than the fault: judgements stop, facts do not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dask_resilient.core.faults import Class

WINDOW = 300.0
"""Seconds in which judgements take at most half of the devices; NVSentinel's breaker has the same two numbers."""

SHARE = 0.5
"""Of the devices, which judgements take at most within the window; one at least."""

FACTS: Mapping[str, str] = {
    "nvml.15": "the GPU is lost",
    "nvml.16": "the GPU requires a reset",
    "recovery-action.1": "the driver wants the GPU reset",
    "recovery-action.2": "the driver wants the node rebooted",
    "recovery-action.6": "the driver wants the bus reset",
    "recovery-action.7": "the driver wants the system rebooted",
    "xid.79": "the GPU has fallen off the bus",
    "canary": "the device computed wrong",
}
"""Rules whose verdict is a fact: working on is impossible, or gives wrong numbers."""


def is_fact(rule: str, cls: Class | None) -> bool:
    """Say whether a verdict states a fact; that a process is dead for CUDA is one, whoever is to blame for it."""
    return rule in FACTS or (cls is Class.KILL and rule.partition(".")[0] in {"cuda", "xid"})


@dataclass(frozen=True, slots=True)
class Breaker:
    """Says when a judgement about a device must wait.

    Attributes
    ----------
    observe
        Whether nothing is enacted, only recorded, but what an operator asks for, which is not asked here.
    """

    observe: bool = False
    window: float = WINDOW
    share: float = SHARE

    def refuse(
        self,
        device: str,
        serving: AbstractSet[str],
        known: AbstractSet[str],
        taken: Iterable[tuple[float, str]],
        now: float,
    ) -> str:
        """Give why a judgement about a device is not enacted, empty if it may be.

        Parameters
        ----------
        serving
            Devices that get tasks at present.
        known
            All devices that have a worker.
        taken
            When judgements took which device.
        now
            Of the same clock.
        """
        if not serving - {device}:
            return "it is the last device in service, so this is only an alarm"
        recent = {name for at, name in taken if now - at < self.window} | {device}
        most = max(1, int(self.share * len(known | recent)))
        if len(recent) > most:
            # Without numbers that change as workers come and go: each reason is told once.
            return (
                f"more than {self.share:.0%} of the devices would be out of service by judgement within "
                f"{self.window:g} s, so this is only an alarm"
            )
        return ""
