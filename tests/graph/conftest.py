"""One small cluster in this process for all tests of the graph room, and fresh "said once" flags for each test."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import dask
import pytest
from distributed import Client

from dask_resilient import tasks
from tests.support.keeper import Keeper
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def said(monkeypatch):
    """Nothing was said in this process yet."""
    monkeypatch.setattr(tasks, "_said", {})


@pytest.fixture(scope="session")
def shared_client():
    with (
        dask.config.set({"distributed.scheduler.validate": True}),
        Client(
            processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0", set_as_default=False
        ) as client,
    ):
        yield client


@pytest.fixture
def client(shared_client):
    """A cluster without the plugin, idle when the test begins and current while it runs."""
    gc.collect()
    states = shared_client.cluster.scheduler.tasks
    # Dask itself may leave a task behind as "released", wanted by nobody, if its graph is let go while it runs.
    wait_until(
        lambda: not any(ts.who_wants or ts.state != "released" for ts in list(states.values())),
        seconds=30,
        what="earlier tests are worked off",
    )
    with shared_client.as_current():
        yield shared_client


@pytest.fixture
def keeper(tmp_path, monkeypatch):
    """Give something that saves what is computed in this process into ``store``."""
    keeper = Keeper(tmp_path / "store")
    worker = SimpleNamespace(plugins={tasks.PLUGIN: SimpleNamespace(side=keeper)})
    monkeypatch.setattr(tasks, "_worker", lambda: worker)
    return keeper


@pytest.fixture
def path(keeper):
    """Give the path of the store."""
    return keeper.store.url
