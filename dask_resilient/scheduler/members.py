"""The workers as the plugin knows them: who can load, and who protects what it computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dask_resilient.core.actions import Phase
from dask_resilient.core.health import Verdict

WAITING = "has not reported yet"

HOLD_SECONDS = 5.0
"""How long loads are held for a worker that has just joined; its side reports within milliseconds, if ever."""

NOBODY = frozenset({"resilience://nobody-yet"})
"""A restriction to no worker at all: a load that is held. Dask keeps it as "no-worker" and runs nothing for it."""


@dataclass(slots=True)
class Member:
    """One worker of the cluster."""

    worker: str
    name: str
    host: str
    ready: bool = False
    """Whether its side has reported and reads the store, so that loads may go there."""
    side: bool = False
    """Whether our side runs on it, with or without store."""
    phase: Phase = Phase.ACTIVE
    protected: bool = False
    """Whether what it computes is saved."""
    reason: str = WAITING
    joined: float = 0.0
    """UNIX seconds."""
    gpu: str = ""
    """UUID of the GPU that is this worker's own."""
    gpu_name: str = ""
    verdict: Verdict | None = None
    """None as long as nothing was read."""
    since: float = 0.0
    """When its health became what it is; UNIX seconds."""
    evidence: tuple[str, ...] = ("nothing was read yet",)
    """Why there is no verdict."""

    @property
    def device(self) -> str:
        """What it computes on: a GPU by its UUID, the same under any address, port or name; else the worker itself."""
        return self.gpu or f"host:{self.host}/{self.name}"

    def identify(self, device: Mapping[str, Any]) -> None:
        """Take in which GPU the worker sees; what another version of the package says is taken as far as it goes."""
        self.gpu_name = str(device.get("name", ""))
        self.gpu = str(device.get("uuid", "")) if device.get("own") else ""

    def to_dict(self) -> dict[str, Any]:
        """Give the row, plain types only."""
        return {
            "worker": self.worker,
            "name": self.name,
            "host": self.host,
            "device": self.device,
            "gpu": self.gpu_name,
            "phase": str(self.phase),
            **self._health(),
            "reason": self.reason,
            "protected": self.protected,
        }

    def _health(self) -> dict[str, Any]:
        verdict = self.verdict
        if verdict is None:
            nothing: dict[str, Any] = dict.fromkeys(("class", "readable", "since"))
            return {**nothing, "health": "unknown", "rule": "", "unknown": [], "evidence": list(self.evidence)}
        row = verdict.to_dict()
        known = {name: row[name] for name in ("health", "rule", "evidence", "readable", "unknown")}
        return {**known, "class": row["cls"], "since": self.since}


class Members:
    """All workers that are connected."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._hosts: dict[str, str] = {}
        """What hosts call themselves, by what addresses call them: a worker that joins again is known at once."""

    def add(self, address: str, name: object, host: str, now: float) -> Member:
        """Take in a worker that joined; it has to report before it gets a load."""
        member = self._members[address] = Member(address, str(name), self._hosts.get(host, host), joined=now)
        return member

    def named(self, member: Member, host: str) -> None:
        """Take in what a worker's host calls itself."""
        self._hosts[member.host] = member.host = host

    def remove(self, address: str) -> None:
        """Forget a worker that left."""
        self._members.pop(address, None)

    def get(self, address: str) -> Member | None:
        """Give a worker by its address."""
        return self._members.get(address)

    def loaders(self, avoid: set[str], now: float) -> set[str] | None:
        """Give the addresses that can load; None if that is every worker, `NOBODY` if one is about to report.

        Holding loads matters where every worker was lost, or the only one: else the first that comes back would run
        the lineage of what it can load a moment later, and a running task cannot be stopped.
        """
        able = {m.worker for m in self._members.values() if m.ready and m.worker not in avoid}
        if able:
            return None if len(able) == len(self._members) else able
        return set(NOBODY) if not self._members or self.expected(now) else set()

    def expected(self, now: float) -> set[str]:
        """Give the addresses of the workers that have just joined and not reported yet."""
        new = (m for m in self._members.values() if m.reason == WAITING and now - m.joined < HOLD_SECONDS)
        return {m.worker for m in new}

    def all(self) -> list[Member]:
        """Give all of them."""
        return list(self._members.values())

    def rows(self) -> list[dict[str, Any]]:
        """Give a row a worker."""
        return [member.to_dict() for member in self._members.values()]

    def second_reader(self, first: str) -> str | None:
        """Give a worker to read what `first` found damaged: on another host if there is one, None if nobody is left."""
        host = self._members[first].host if first in self._members else ""
        others = [m for m in self._members.values() if m.protected and m.worker != first]
        others.sort(key=lambda m: (m.host == host, m.worker))
        return others[0].worker if others else None
