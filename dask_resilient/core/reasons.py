"""Names that stand where a rule stands, in rows, reports and logs, and are no rules of `dask_resilient.core.rules`."""

from __future__ import annotations

from collections.abc import Mapping

REASONS: Mapping[str, str] = {
    "operator": "An operator called `res.quarantine` or `res.release`. `by` says who, the evidence why.",
    "culprit": "Tasks are to blame, not the device: it is put back if it was out of service for that error only.",
    "canary": "A canary has ended: right, wrong, or it could not run. Also a rule, where it was wrong.",
    "sign": "A new process says that the device may be used again, so a canary is run. Its evidence is that process's.",
    "suspect": "The doubt about the device is over: its worker is gone, or it has to serve since no other device does.",
    "silence": "Also where the device is suspect and its worker does not answer either: then it is left.",
    "work.hang": "Also where a task has passed the limit `resilience.probe.hang`: its process is replaced.",
    "nothing-known": "Nothing is known of the device at present: its health is unknown. That alone changes no phase.",
    "probation": "The device is in probation, and why is not known any more.",
    "joined": "A worker joined, and no other reason for the phase of its device is known.",
    "left": "The last worker of the device is gone, and no other reason for its phase is known.",
    "drained": "Nothing is left to be saved or moved, and no other reason for the drain is known.",
    "drain": "The time for draining is up, and no other reason for the drain is known.",
}
