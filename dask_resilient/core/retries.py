"""Retries that faults of devices give: a fault of a device costs a task none of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

OF_TASK = 2
"""Devices whose faults a task is retried for: by the second, `core.attribution` knows whether it is to blame itself. On
one device it may fail more often, until the device has cost too many processes, or one less where no other serves."""

OF_LABEL = 8
"""Free retries of all tasks of one prefix that met one code. Judgement."""


class FreeRetries:
    """Counts what was given."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, set[str]] = {}
        self._labels: Counter[str] = Counter()

    def give(self, key: Hashable, device: str, label: str) -> bool:
        """Say whether a task that met a device's fault gets another try for nothing, and count it.

        Parameters
        ----------
        key
            The task.
        device
            Where it failed.
        label
            Its prefix and the code.
        """
        devices = self._tasks.get(key, set()) | {device}
        if len(devices) > OF_TASK or self._labels[label] >= OF_LABEL:
            return False
        self._tasks[key] = devices
        self._labels[label] += 1
        return True

    def forget(self, key: Hashable) -> None:
        """Take in that a task is gone for good."""
        self._tasks.pop(key, None)

    def cleared(self, label: str) -> None:
        """Take in that a device was to blame and is out of service: what its faults have used up is given anew."""
        self._labels.pop(label, None)
