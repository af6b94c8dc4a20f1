"""The doctor: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import importlib
import json
import os

import dask
import pytest
from click.testing import CliRunner

from dask_resilient import config
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
    assert lines["host", "host-memory"]["detail"].endswith("is the share that is available")
    assert lines["host", "host-disk"]["state"] == "works"
    assert lines["kernel-log", "kernel-log"]["detail"]
    assert lines["settings", "resilience"]["state"] == "works"
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
    assert lines["nvml", "temperature"]["detail"] == "40 C"
    assert (lines["nvml", "remapped-rows"]["state"], lines["nvml", "remapped-rows"]["detail"]) == (
        "unknown",
        "no permission",
    )
    assert lines["canary", "CuPy"]["detail"] == "no CuPy in this environment"


@pytest.fixture
def quick(monkeypatch):
    """Look at the store only."""
    monkeypatch.setattr(DOCTOR, "_device", lambda settings, store: [])
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
    assert ("store", "open") not in lines


@pytest.mark.parametrize("below", ["", "/store"])
def test_a_file_is_no_place_for_a_store(quick, tmp_path, below):
    """Nor is what is below it."""
    (tmp_path / "file").write_text("")
    lines, code = run(f"{tmp_path}/file{below}")
    assert code == 1
    assert lines["store", "open"]["state"] == "FAILS"
    assert "is no directory" in lines["store", "open"]["detail"]


def test_a_store_far_below_what_is_there_may_be_a_typo(quick, tmp_path):
    """It would be made with all that is above it, so that is said."""
    lines, code = run(tmp_path / "lustr/run/store")
    assert code == 0
    assert f"installing makes '{tmp_path}/lustr' too" in lines["store", "open"]["detail"]
    assert "typo" in lines["store", "open"]["advice"]


def test_a_wrong_address_fails(quick):
    """With exit code 2, as of the other commands; also in JSON."""
    done = CliRunner().invoke(resilience, ["doctor", "s3://bucket/run"])
    assert done.exit_code == 2
    assert "s3 is not supported yet" in done.output
    lines, code = run("s3://bucket/run")
    assert (lines["store", "address"]["state"], code) == ("FAILS", 2)


def test_a_setting_that_cannot_work_fails(quick, tmp_path):
    """As it would when installing; so does a file of rules."""
    with dask.config.set({"resilience.probe.interval": "1 hour"}):
        lines, code = run()
    assert (lines["settings", "resilience"]["state"], code) == ("FAILS", 1)
    assert "at most 30" in lines["settings", "resilience"]["detail"]
    rules = tmp_path / "rules.yaml"
    rules.write_text("xid: {79: {class: worse}}")
    with dask.config.set({"resilience.probe.rules": rules}):
        lines, code = run()
        assert (lines["settings", "rules"]["state"], code) == ("FAILS", 1)
        rules.write_text("xid: {79: {class: drain}}")
        lines, code = run()
        assert (lines["settings", "rules"]["detail"], code) == (f"{rules}: 1 row", 0)


def test_the_log_that_the_settings_name_is_looked_at(monkeypatch, tmp_path):
    """Also without a GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "log").write_text("")
    for name, state in (("log", "works"), ("none", "unknown")):
        settings = config.Settings(probe_kernel_log=str(tmp_path / name))
        lines = {line.what: line for line in DOCTOR._device(settings, None)}
        assert lines["kernel-log"].state == state


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
        "class Hot(Fans):\n    def read(self, device):\n        return [('stated', 'drain', 'too hot')]\n"
    )
    info = tmp_path / "fans-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fans\nVersion: 1.0\n")
    points = "[dask_resilient.probes]\nfans = fans_package:Fans\nbroken = fans_package:Nothing\n"
    points += "hot = fans_package:Hot\nwork = fans_package:Fans\n"
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
    assert lines["probes", "hot"]["detail"].endswith("states drain: too hot")
    assert "left out: 'work' cannot be a name" in lines["probes", "work"]["detail"]


def test_probes_are_tried_side_by_side(monkeypatch):
    """One that hangs does not make the others wait: no second is started after the first has answered."""
    started = []

    class Guest:
        def __init__(self, name, probe, device, listen):
            self.name, self.listen = name, listen

        def start(self):
            started.append(self)
            if len(started) == 2:
                started[0].listen([])

        def stop(self):
            pass

    monkeypatch.setattr(DOCTOR, "Guest", Guest)
    monkeypatch.setattr(DOCTOR, "load_entry_points", lambda: (["a", "b"], []))
    monkeypatch.setattr(DOCTOR, "GUEST_SECONDS", 0.1)
    assert [(line.what, line.state) for line in DOCTOR._guests()] == [("a", "works"), ("b", "unknown")]


def test_people_get_a_table(quick):
    """With a last line that counts."""
    done = CliRunner().invoke(resilience, ["doctor"], env={**os.environ, "COLUMNS": "200"})
    assert done.exit_code == 0
    assert done.output.splitlines()[0].split()[:2] == ["about", "what"]
    missing = sum(" missing " in line for line in done.output.splitlines()[:-1])
    assert f"0 fail, {missing} missing, " in done.output.splitlines()[-1]
