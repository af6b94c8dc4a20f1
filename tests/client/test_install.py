"""What `install` and `connect` say where they cannot do what they are asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Client, LocalCluster

import dask_resilient as dr


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a small cluster in this process."""
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=False) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize("call", [dr.install, dr.connect])
@pytest.mark.parametrize("what", [None, "tcp://127.0.0.1:8786", object()], ids=["None", "str", "object"])
def test_what_is_no_client_is_refused_by_name(call: Any, what: object) -> None:
    """With what is needed instead."""
    with pytest.raises(dr.UnsupportedType, match=rf"Client is needed, not an object of type {type(what).__name__}"):
        call(what)


def test_a_client_that_is_closed_is_refused(client: Client) -> None:
    """And the message says so."""
    client.close()
    with pytest.raises(dr.UnsupportedType, match="closed: make a new"):
        dr.install(client)


def test_connect_without_a_plugin_says_what_to_do(client: Client, log: pytest.LogCaptureFixture) -> None:
    """And leaves no traceback in the scheduler's log."""
    with pytest.raises(dr.NotInstalledError, match=r"call dask_resilient\.install\(client\) first"):
        dr.connect(client)
    assert "No handler" not in log.text


def test_a_handle_of_a_plugin_that_has_left_says_what_to_do(
    client: Client, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    """And leaves no traceback in the scheduler's log."""
    res = dr.install(client, store=tmp_path / "store")
    assert res.uninstall()
    assert res.uninstall()
    with pytest.raises(dr.NotInstalledError, match=r"call dask_resilient\.install\(client\) again"):
        res.workers()
    assert "No handler" not in log.text


def test_a_second_install_with_another_store_is_told_that_it_has_no_effect(client: Client, tmp_path: Path) -> None:
    """Also where the first store cannot be used: the path was put right, and nothing changed."""
    (tmp_path / "file").write_text("")
    with pytest.warns(dr.ResilienceWarning, match="nothing is saved"):
        res = dr.install(client, store=tmp_path / "file")
    with pytest.warns(dr.ResilienceWarning) as said:
        dr.install(client, store=tmp_path / "store")
    texts = [str(warning.message) for warning in said]
    assert any("keeps its store" in text and "call uninstall()" in text for text in texts)
    assert said[0].filename == __file__
    res.uninstall()
    with dr.install(client, store=tmp_path / "store") as res:
        assert all(row["protected"] for row in res.workers())


class Fans:
    name = "fans"

    def read(self, device: str) -> list[Any]:
        return []


class Other(Fans):
    name = "other"


def test_a_second_install_with_other_probes_or_rules_is_told_that_it_has_no_effect(
    client: Client, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """The same ones, and none, are no trouble."""
    (tmp_path / "rules.yaml").write_text("xid: {79: {class: drain}}")
    (tmp_path / "other.yaml").write_text("xid: {79: {class: kill}}")
    rules = "resilience.probe.rules"
    with dask.config.set({rules: tmp_path / "rules.yaml"}):
        res = dr.install(client, store=tmp_path / "store", probes=[Fans])
        dr.install(client, store=tmp_path / "store", probes=[Fans])
    dr.install(client, store=tmp_path / "store")
    assert not recwarn.list
    with dask.config.set({rules: tmp_path / "other.yaml"}), pytest.warns(dr.ResilienceWarning) as said:
        dr.install(client, store=tmp_path / "store", probes=[Other])
    texts = [str(warning.message) for warning in said]
    for what in ("probes", "rules"):
        assert [text for text in texts if f"keeps its {what}" in text and "call uninstall()" in text], texts
    res.uninstall()


def test_probes_that_do_not_run_are_told(client: Client, tmp_path: Path) -> None:
    """They were given, and switched off."""
    with (
        dask.config.set({"resilience.probe.enabled": False}),
        pytest.warns(dr.ResilienceWarning, match=r"fans do not run: resilience\.probe\.enabled is false") as said,
    ):
        dr.install(client, store=tmp_path / "store", probes=[Fans]).uninstall()
    assert len(said) == 1


def test_an_error_of_the_store_is_one_sentence(client: Client, tmp_path: Path) -> None:
    """No number, and the path once."""
    (tmp_path / "file").write_text("")
    with pytest.warns(dr.ResilienceWarning) as said, dr.install(client, store=tmp_path / "file"):
        pass
    text = str(said[0].message)
    assert "Errno" not in text
    assert text.count("file'") == 1


def test_a_store_that_went_away_is_in_the_report(client: Client, tmp_path: Path) -> None:
    """The report looks at the store when it is asked, not when the plugin was installed."""
    with dr.install(client, store=tmp_path / "store") as res:
        assert "NOT PROTECTED" not in str(res.report())
        (tmp_path / "store").rename(tmp_path / "gone")
        assert "NOT PROTECTED: the store cannot be used" in str(res.report())
        (tmp_path / "gone").rename(tmp_path / "store")
        assert "NOT PROTECTED" not in repr(res.report())
