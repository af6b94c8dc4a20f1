"""The report is a function of rows: no cluster needed to see what it says."""

from __future__ import annotations

from typing import Any

import pytest

from dask_resilient.client.report import Report, size
from dask_resilient.scheduler.members import WAITING

STATUS: dict[str, Any] = {
    "run": "r",
    "store": "/data/run",
    "survives": "local path; survives the loss of a worker, not of this machine",
    "store_reason": "",
    "recovery_off": "",
    "loads": {},
    "milestones": [],
}
HEALTHY = {"phase": "active", "health": "healthy", "rule": "", "evidence": [], "readable": True, "since": 1.7e9}
WORKER = {"worker": "tcp://a", "name": "0", "device": "GPU-1", "reason": "", "protected": True, **HEALTHY}
LOST = {
    "phase": "active",
    "health": "unhealthy",
    "class": "evict",
    "rule": "nvml.15",
    "evidence": ["NVML: the GPU is lost"],
    "readable": False,
}
UNKNOWN = {"phase": "active", "health": "unknown", "rule": "", "evidence": [], "readable": None}
LOSS = {
    "id": 1,
    "kind": "loss",
    "time": 1.7e9,
    "worker": "tcp://a",
    "device": "host:h/0",
    "cause": "killed",
    "lost": 10,
    "reloaded": 8,
    "recomputed": 2,
    "keys": [],
    "nbytes": 2048,
    "seconds": 1.25,
}


def milestone(**counts: int) -> dict[str, Any]:
    zero = dict.fromkeys(("durable", "saving", "lost", "nbytes", "unread", "released", "released_durable"), 0)
    return {"name": "clean", "total": 16, **zero, **counts}


def report(*, milestones: list[Any] = (), workers: list[Any] = (WORKER,), **rows: Any) -> str:  # type: ignore[assignment]
    status = {**STATUS, "milestones": milestones, **rows.pop("status", {})}
    full = {"incidents": [], "checkpoints": [], **rows}
    return str(Report(status=status, workers=workers, **full)).replace("\n", " ")


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({}, "No milestone has been computed yet"),
        ({"milestones": [milestone(durable=16, nbytes=1 << 20)]}, "'clean': 16 of 16 partitions durable (1.0 MiB)."),
        ({"milestones": [milestone(durable=3, saving=13)]}, "3 of 16 partitions durable (0 B); 13 being saved."),
        ({"milestones": [milestone(released=16, released_durable=16)]}, "16 no longer needed by anybody (16 were"),
        ({}, "1 worker is protected."),
        ({"workers": [WORKER, WORKER]}, "2 workers are protected."),
        (
            {"workers": [{**WORKER, "protected": False, "reason": WAITING}]},
            "UNPROTECTED worker tcp://a (0): has not reported yet.",
        ),
        ({"status": {"loads": {"good": 3, "damaged": 2}}}, "2 loads met a damaged copy: not used"),
        ({"status": {"loads": {"unreachable": 2}}}, "2 loads could not reach their copy"),
        ({"status": {"loads": {"foreign": 2}}}, "2 loads met a copy of something else"),
        ({"workers": []}, "No worker is connected."),
        ({"workers": [{**WORKER, "protected": False, "reason": "another"}]}, "UNPROTECTED worker tcp://a (0): another"),
        ({}, "survives the loss of a worker, not of this machine"),
        ({"status": {"store_reason": "no space"}}, "NOT PROTECTED: the store cannot be used: no space."),
        ({"status": {"recovery_off": "unknown Dask"}}, "Recovery is left to Dask: unknown Dask."),
        ({}, "Of 1 worker: 1 healthy."),
        (
            {"workers": [WORKER, {**WORKER, **LOST}]},
            "UNHEALTHY (evict) GPU-1, worker 0: rule nvml.15: NVML: the GPU is lost. What it holds there cannot be",
        ),
        ({"workers": [{**WORKER, **UNKNOWN}]}, "UNKNOWN GPU-1, worker 0: no reason is known."),
        ({}, "no worker was lost"),
        ({"incidents": [{**LOSS, "device": "GPU-1"}]}, "worker tcp://a on GPU-1: killed."),
        ({"incidents": [LOSS]}, "Lost 10 results (2.0 KiB); to be whole again 8 stored partitions came back from"),
        ({"incidents": [LOSS]}, "and 2 finished tasks ran again: whole again after 1.2 s."),
        ({"incidents": [{**LOSS, "seconds": None}]}, "not whole again yet"),
    ],
)
def test_the_report_answers_in_whole_sentences(rows: dict[str, Any], words: str) -> None:
    """Before a fault: is it protecting me? After one: what came back how?"""
    assert words in report(**rows)


OUT = {
    "device": "GPU-1",
    "host": "h",
    "phase": "quarantined",
    "since": 1.7e9,
    "rule": "xid.79",
    "evidence": ["XID 79"],
    "by": "dask-resilient",
    "until_released": False,
    "workers": [],
}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"devices": [OUT]}, "NO WORKER IS IN SERVICE: the run waits for one."),
        ({"devices": [OUT], "workers": [{**WORKER, "phase": "quarantined"}]}, "NO WORKER IS IN SERVICE"),
        ({"devices": [OUT]}, "GPU-1 of h: quarantined since 2023-11-1"),
        ({"devices": [OUT]}, "rule xid.79 (XID 79). A new process that finds nothing wrong and a canary bring it back"),
        ({"devices": [{**OUT, "until_released": True}]}, "Only an operator brings it back: res.release('GPU-1')."),
        ({"devices": [{**OUT, "rule": "operator", "by": "me@h"}]}, ", by me@h (XID 79)."),
        ({"devices": [{**OUT, "phase": "suspect"}]}, "It gets tasks again once it is known to be well."),
        ({"devices": [{**OUT, "phase": "draining"}]}, "What it holds is being saved or moved; then it is left."),
        ({"devices": [{**OUT, "phase": "probation"}]}, "It gets tasks again after a canary."),
        ({"status": {"quarantine": "off"}}, "Quarantine is switched off"),
        ({"status": {"quarantine": "observe"}}, "Quarantine only observes"),
        ({"status": {"forgets": "nothing is known"}}, "Nothing is known."),
    ],
)
def test_what_is_out_of_service_is_told_with_its_way_back(rows: dict[str, Any], words: str) -> None:
    """Each device, also where no worker of it is left."""
    assert words in " ".join(report(**{"workers": [], **rows}).split())


def test_a_worker_in_service_is_what_the_run_has() -> None:
    """No alarm then; and every device that is out is named, however many."""
    many = [{**OUT, "device": f"GPU-{n}"} for n in range(50)]
    text = report(workers=[{**WORKER, "phase": "active"}], devices=[*many, {**OUT, "device": "G", "phase": "active"}])
    assert "NO WORKER" not in text
    assert text.count("quarantined since") == 50


def test_reasons_for_what_is_not_saved_are_named_once_each() -> None:
    """However many partitions share one."""
    rows = [{"name": "clean", "state": "not saved", "reason": "column 'x' has dtype object"}] * 5
    text = report(milestones=[milestone(lost=5)], checkpoints=rows)
    assert text.count("column 'x' has dtype object") == 1
    assert "5 NOT saved" in text


def test_reasons_of_partitions_that_are_released_already_are_named_too() -> None:
    """With a plain `compute` nobody ever sees them while they are known."""
    rows = [{"name": "clean", "state": "not saved", "reason": "no codec for builtins.list"}]
    text = report(milestones=[milestone(released=4, released_durable=0)], checkpoints=rows)
    assert "(0 were durable); reasons: no codec for builtins.list." in text


def test_a_report_of_a_disabled_plugin_says_so() -> None:
    """And nothing else."""
    assert "switched off" in str(Report.disabled())


@pytest.mark.parametrize(
    ("nbytes", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 30, "3.0 GiB"), (1 << 50, "1024.0 TiB")]
)
def test_sizes_are_in_powers_of_1024(nbytes: int, text: str) -> None:
    """As Dask shows them."""
    assert size(nbytes) == text
