"""The doctor: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import importlib
import json
import os

import pytest
from click.testing import CliRunner

from dask_resilient.cli import resilience
from dask_resilient.probes import guests

DOCTOR = importlib.import_module("dask_resilient.cli.doctor")
"""The module; the package has the command under its name."""


def run(*arguments):
    """Give the lines, by what they are about, and the exit code."""
    done = CliRunner().invoke(resilience, ["doctor", *map(str, arguments), "--json"])
    lines = json.loads(done.stdout)
    return {(line["about"], line["what"]): line for line in lines}, done.exit_code


def test_on_a_machine_without_a_gpu_nothing_fails(monkeypatch):
    """A GPU is unknown, the host is read, NumPy computes right, and no store is one thing less."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    lines, code = run()
    assert code == 0
    assert (lines["device", "GPU"]["state"], lines["device", "GPU"]["detail"]) == (
        "unknown",
        "CUDA_VISIBLE_DEVICES is empty",
    )
    assert lines["canary", "NumPy"]["state"] == "works"
    assert lines["host", "host-memory"]["state"] == "works"
    assert lines["versions", "dask"]["state"] == "works"
    assert lines["recovery", "this Dask"]["state"] == "works"
    assert lines["store", "-"]["advice"] == "dask resilience doctor STORE tries one out"


def test_with_a_gpu_it_says_driver_and_every_reading(gpus, monkeypatch):
    """What cannot be read, with the reason; on a fake driver."""
    pytest.importorskip("pynvml")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    gpus.gpu(0, **{"return.nvmlDeviceGetRemappedRows": 4})
    lines, _ = run()
    assert lines["device", "GPU"]["state"] == "works"
    assert lines["device", "driver"]["detail"] == "580.95.05"
    assert lines["device", "CUDA of the driver"]["detail"] == "13.0"
    assert lines["nvml", "temperature"]["detail"] == "40"
    assert (lines["nvml", "remapped-rows"]["state"], lines["nvml", "remapped-rows"]["detail"]) == (
        "unknown",
        "no permission",
    )
    assert lines["canary", "CuPy"]["detail"] == "no CuPy in this environment"


@pytest.fixture
def quick(monkeypatch):
    """Look at the store only."""
    monkeypatch.setattr(DOCTOR, "_device", list)
    monkeypatch.setattr(DOCTOR, "_canary", lambda gpu: [])


def files(root):
    return sorted(p.relative_to(root) for p in root.rglob("*"))


def test_a_place_for_a_store_is_tried_and_left_as_it_was(quick, tmp_path):
    """Where there is none yet nothing is made."""
    lines, code = run(tmp_path / "store")
    assert code == 0
    assert lines["store", "create if absent"]["state"] == "works"
    assert "MiB/s" in lines["store", "durable write"]["detail"]
    assert files(tmp_path) == []


def test_a_store_is_opened_and_left_as_it_was(quick, shop):
    """With what it survives."""
    before = shop.files()
    lines, code = run(shop.url)
    assert code == 0
    assert "survives the loss of a worker" in lines["store", "open"]["detail"]
    assert set(shop.files()) == set(before)


def test_a_store_that_cannot_be_used_fails(quick, tmp_path):
    """In one line, with what to do, and exit code 1."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store/store.json").write_text("{}")
    lines, code = run(tmp_path / "store")
    assert code == 1
    assert lines["store", "open"]["state"] == "FAILS"
    assert lines["store", "open"]["advice"]


def test_a_place_that_cannot_be_written_fails(quick):
    """As on a read-only disk; /proc takes no files."""
    lines, code = run("/proc/store")
    assert code == 1
    assert lines["store", "durable write"]["state"] == "FAILS"


def test_a_wrong_address_is_one_line(quick):
    """And exit code 2, as of the other commands."""
    done = CliRunner().invoke(resilience, ["doctor", "s3://bucket/run"])
    assert done.exit_code == 2
    assert "s3 is not supported yet" in done.output


def test_an_unknown_dask_fails_with_what_that_means(quick, monkeypatch):
    """Recovery is left to Dask there."""
    monkeypatch.setattr(DOCTOR, "out_of_range", lambda: "distributed 2099.1 is outside of the tested range")
    lines, code = run()
    assert code == 1
    assert "recovery is left to Dask" in lines["recovery", "this Dask"]["advice"]


def test_probes_of_third_parties_are_tried(quick, monkeypatch, tmp_path):
    """By their entry points: what they give first, or why nothing."""
    (tmp_path / "fans_package.py").write_text(
        "class Fans:\n    name = 'fans'\n    def read(self, device):\n        return [('speed', 1), ('other', 2)]\n"
    )
    info = tmp_path / "fans-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fans\nVersion: 1.0\n")
    points = "[dask_resilient.probes]\nfans = fans_package:Fans\nbroken = fans_package:Nothing\n"
    (info / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    lines, code = run()
    assert code == 0
    assert (lines["probes", "fans"]["state"], lines["probes", "fans"]["detail"]) == (
        "works",
        f"2 readings; an entry point of {guests.GROUP}",
    )
    assert lines["probes", "broken"]["state"] == "unknown"
    assert "cannot be loaded" in lines["probes", "broken"]["detail"]


def test_people_get_a_table(quick):
    """With a last line that counts."""
    done = CliRunner().invoke(resilience, ["doctor"], env={**os.environ, "COLUMNS": "200"})
    assert done.exit_code == 0
    assert done.output.splitlines()[0].split()[:2] == ["about", "what"]
    assert "0 fail" in done.output.splitlines()[-1]
