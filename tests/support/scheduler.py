"""A scheduler's side without a scheduler: workers that are rows, a clock that stands, events in a list."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from dask_resilient.config import Settings
from dask_resilient.core.readings import Name, Reading
from dask_resilient.scheduler.blame import Blame
from dask_resilient.scheduler.members import Members
from dask_resilient.scheduler.verdicts import Verdicts
from dask_resilient.scheduler.work import Work

WELL: dict[str, Any] = {Name.RECOVERY_ACTION: 0, Name.NVML_RETURN: 0}
"""What a healthy device says at least."""


class Row(SimpleNamespace):
    """An object of Dask's: it is what it is, not what its fields are."""

    __hash__ = object.__hash__


class Stage:
    """Some workers, their verdicts, and what was told.

    Parameters
    ----------
    monkeypatch
        Stops the clock.
    workers
        The device of each worker by its name; those of one host.
    settings
        Fields of `Settings`.
    """

    def __init__(
        self,
        monkeypatch: Any,
        workers: dict[str, str],
        protocol: str = "tcp",
        rules: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.now = 1e9
        for module in ("verdicts", "blame"):
            monkeypatch.setattr(f"dask_resilient.scheduler.{module}.time", lambda: self.now)
        self.events: list[dict[str, Any]] = []
        self.members = Members()
        self.scheduler = SimpleNamespace(workers={}, tasks={})
        self.settings = Settings(**settings)
        self.verdicts = Verdicts(self.settings, rules, protocol, self._event)
        self.blame = Blame(self.scheduler, self.verdicts, self._event)
        self.work = Work(self.scheduler, self.verdicts, self.settings.probe_hang)
        for name, device in workers.items():
            self.join(name, device)

    def _event(self, action: str, **fields: Any) -> None:
        self.events.append({"action": action, **fields})

    def join(self, name: str, device: str) -> None:
        """Add a worker."""
        member = self.members.add(name, name, "host", self.now)
        if not device.startswith("host:"):
            member.identify({"name": "A100", "uuid": device, "own": True})
        self.verdicts.joined(member, self.now)
        self.scheduler.workers[name] = Row(
            address=name, metrics={"time": self.now, "cpu": 50.0}, last_seen=self.now, processing={}, executing={}
        )

    def leave(self, name: str) -> None:
        """Take a worker away."""
        self.blame.removed(name)
        self.work.removed(name)
        self.verdicts.removed(name)
        self.members.remove(name)
        del self.scheduler.workers[name]

    def say(self, worker: str, *, ago: float = 0.0, own: bool | None = None, still: Any = False, **more: Any) -> None:
        """Let a worker tell of readings, underscores for dashes."""
        rows = [
            Reading("nvml", "", name.replace("_", "-"), value, self.now - ago, "", own).to_dict()
            for name, value in (more.pop("readings", None) or more).items()
        ]
        msg = {"sent": self.now, "new": rows, "still": still, "pace": None}
        self.verdicts.readings(worker, msg)

    def row(self, worker: str) -> dict[str, Any]:
        """Give the row of a worker."""
        return next(row for row in self.members.rows() if row["worker"] == worker)

    def health(self, worker: str) -> tuple[str, str]:
        """Give the health of a worker's device, and the rule."""
        row = self.row(worker)
        return row["health"], row["rule"]

    def task(self, key: str, *workers: str) -> None:
        """Let a task have its result on workers."""
        who_has = {self.scheduler.workers[w] for w in workers}
        self.scheduler.tasks[key] = Row(key=key, who_has=who_has, prefix=Row(name="p"))
