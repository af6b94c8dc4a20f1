"""What an operator is told of devices: by calls that cannot be right, by rows, and by the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

import dask_resilient as dr
from tests.support.waiting import wait_until


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a small cluster in this process, whose log is that of the test."""
    with (
        dask.config.set({"resilience.probe.enabled": False}),
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def res(client: Client, tmp_path: Path) -> Iterator[Any]:
    with dr.install(client, store=tmp_path / "store") as res:
        yield res


NO_DEVICE = "there is no worker and no device"
NO_TEXT = "must be a text, not"


@pytest.mark.parametrize(
    ("x", "words"),
    [("nobody", NO_DEVICE), ("", NO_DEVICE), ("\ud800" * 10_000, NO_DEVICE)]
    + [(x, NO_TEXT) for x in (None, 1.5, True, ["0"], b"0", {"a": "b" * 10_000})],
)
def test_what_is_no_device_is_told_to_whom_asked(res: Any, x: Any, words: str, log: pytest.LogCaptureFixture) -> None:
    """In one short sentence, and the scheduler's log stays clean."""
    for call in (lambda: res.quarantine(x, "its fan is loud"), lambda: res.release(x)):
        with pytest.raises(dr.errors.SettingError, match=words) as said:
            call()
        assert len(str(said.value)) < 1000
    assert "Exception while handling" not in log.text
    assert not res.incidents()


@pytest.mark.parametrize("reason", ["", " \n\x00 ", None, 3, b"loud"])
def test_a_reason_is_words(res: Any, reason: Any) -> None:
    """Whoever reads the row later has nothing else."""
    with pytest.raises(ValueError, match=r"without a reason: say in words why|reason = .* must be a text"):
        res.quarantine("0", reason)
    assert not res.incidents()


def test_nothing_is_asked_of_a_plugin_that_is_switched_off(client: Client, tmp_path: Path) -> None:
    """An operator who takes a device out must not believe that it is out."""
    with dask.config.set({"resilience.enabled": False}), dr.install(client, store=tmp_path / "store") as res:
        for call in (lambda: res.quarantine("0", "loud"), lambda: res.release("0")):
            with pytest.raises(ValueError, match=r"'0': resilience\.enabled is false"):
                call()


def test_quarantine_that_is_off_is_told_and_reported(
    client: Client, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """To whom asks, not to the log."""
    off = dask.config.set({"resilience.quarantine.enabled": False})
    with off, dr.install(client, store=tmp_path / "store") as res:
        with pytest.raises(ValueError, match=r"cannot quarantine '0': resilience\.quarantine\.enabled is false"):
            res.quarantine("0", "loud")
        assert "Quarantine is switched off" in str(res.report())
    assert "Exception while handling" not in log.text


def test_a_plugin_that_another_client_took_away_is_missed_quietly(
    client: Client, res: Any, log: pytest.LogCaptureFixture
) -> None:
    """The error says what to do; the scheduler's log says nothing."""
    dr.connect(client).uninstall()
    with pytest.raises(dr.NotInstalledError, match=r"call dask_resilient\.install\(client\) again"):
        res.workers()
    assert "KeyError" not in log.text
    assert "No handler" not in log.text


def test_a_raw_call_is_answered_too(client: Client, res: Any, log: pytest.LogCaptureFixture) -> None:
    """Clients of other releases check less: the scheduler's side refuses by itself, and cleans what is written down."""

    def call(**msg: Any) -> Any:
        return client.sync(client.scheduler.resilience, **msg)

    assert "no method 'nonsense'" in call(method="nonsense")["refused"]
    assert "say in words why" in call(method="quarantine", x="0", reason="\n", by="me")["refused"]
    assert NO_DEVICE in call(method="release", x="nobody", reason="", by="me")["refused"]
    assert "Exception while handling" not in log.text
    loud = "loud\n\x1b[31m\x00" + "x" * 5_000_000
    (row, *_) = call(method="quarantine", x="0", reason=loud, by="me\n" + loud)
    assert row["evidence"][0].startswith("loud [31m x")
    assert all(len(text) <= 500 and text.isprintable() for text in (*row["evidence"], row["by"]))
    assert "\x1b" not in log.text
    assert max(map(len, log.text.splitlines())) < 3000


def test_a_device_that_is_out_is_reported_after_its_worker_is_gone(res: Any) -> None:
    """Also the last: an operator's word takes it, and the report says for what the run waits."""
    (first, second) = sorted(row["device"] for row in res.workers())
    assert "Out of service" not in str(res.report())
    res.quarantine(0, "its fan\n is loud")
    wait_until(lambda: len(res.workers()) == 1)
    (row,) = [row for row in res.devices() if row["phase"] != "active"]
    assert (row["device"], row["phase"], row["until_released"]) == (first, "quarantined", True)
    assert (list(row["evidence"]), list(row["workers"])) == (["its fan is loud"], [])
    lines = res.report().out_of_service()
    assert len(lines) == 1
    assert lines[0].startswith(f"{first}: quarantined since 20")
    assert "(its fan is loud). Only an operator brings it back: res.release(" in lines[0]
    assert lines[0].endswith("It has no worker now.")
    res.quarantine(second, "it too")
    wait_until(lambda: not res.workers())
    assert res.report().out_of_service()[0] == "NO WORKER IS IN SERVICE: the run waits for one."
    assert len(res.report().out_of_service()) == 3
    for device in (first, second):
        (row,) = res.release(device)
        assert row["outcome"] == "it has no worker now: start one, as its nanny may have been closed"
    assert not res.report().out_of_service()
    (row,) = res.release(first)
    assert row["declined"] == "it is active already"


def test_a_client_that_is_closed_is_told_of(client: Client, res: Any) -> None:
    """By every method, in a sentence that says what to do."""
    with Client(client.scheduler.address, set_as_default=False) as other:
        handle = dr.connect(other)
    for call in (handle.workers, handle.report, handle.uninstall, lambda: handle.release("0")):
        with pytest.raises(dr.NotInstalledError, match=r"is closed: make a new distributed\.Client, and call"):
            call()


def test_what_was_asked_for_twice_reads_well(res: Any) -> None:
    """One short sentence, without a word of what was not done."""
    res.quarantine("0", "loud")
    wait_until(lambda: len(res.workers()) == 1)
    (row,) = res.quarantine("0", "twice")
    assert row["cause"] == f"it is quarantined already; asked for by {row['by']} (twice)"
    assert res.report().decisions()[-1].endswith(f": {row['cause']}.")


@pytest.mark.parametrize("path", ["file", "file/below", "s3://b/x"])
def test_a_path_to_remember_at_that_cannot_work_is_an_error(client: Client, tmp_path: Path, path: str) -> None:
    """At installing, as far as this machine can tell; and by its own name."""
    (tmp_path / "file").write_text("")
    where = path if "://" in path else str(tmp_path / path)
    with (
        dask.config.set({"resilience.quarantine.path": where}),
        pytest.raises(dr.errors.SettingError, match=rf"^resilience\.quarantine\.path='.*{path}': "),
    ):
        dr.install(client, store=tmp_path / "store")


def test_a_path_to_remember_at_that_the_scheduler_cannot_write_is_one_warning(client: Client, tmp_path: Path) -> None:
    """The job goes on; the report says it too."""
    with dask.config.set({"resilience.quarantine.path": "/proc/nope"}):
        with pytest.warns(dr.ResilienceWarning) as said:
            res = dr.install(client, store=tmp_path / "store")
        assert len(said) == 1
        assert "later runs will not know of all quarantined devices: the scheduler cannot write to '/proc/nope'" in str(
            said[0].message
        )
        assert "Later runs will not know" in str(res.report())
        res.uninstall()


def test_a_path_to_remember_at_is_made_and_left_clean(client: Client, tmp_path: Path) -> None:
    """Trying it out leaves nothing in it."""
    with (
        dask.config.set({"resilience.quarantine.path": str(tmp_path / "a" / "b")}),
        dr.install(client, store=tmp_path / "store"),
    ):
        assert [p.name for p in (tmp_path / "a" / "b").rglob("*")] == ["devices"]
