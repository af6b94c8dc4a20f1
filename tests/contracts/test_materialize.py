"""What is assumed of how a scheduler takes in a graph: in a thread, before tasks exist, with the sender's context."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import distributed.scheduler
import pytest

from dask_resilient.internals import materialize
from tests.support.cluster import Cluster, cluster_test


@cluster_test(install=False, check=False)
async def test_a_graph_is_heard_before_its_tasks_exist(x: Cluster) -> None:
    """Off the loop, by the scheduler that it was sent to; and not any more when nobody listens."""
    loop, heard = threading.get_ident(), []

    def hear(graph: Mapping[Any, Any]) -> None:
        heard.append((sorted(map(str, graph)), "a" in x.scheduler.tasks, threading.get_ident() == loop))

    original = getattr(distributed.scheduler, materialize.NAME)
    handler = x.scheduler.stream_handlers["update-graph"]
    assert materialize.listen(x.scheduler, hear)
    try:
        assert await x.client.submit(lambda: 1, key="a") == 1
    finally:
        materialize.unlisten(x.scheduler)
    assert heard == [(["a"], False, False)]
    assert await x.client.submit(lambda: 2, key="b") == 2
    assert len(heard) == 1
    assert getattr(distributed.scheduler, materialize.NAME) is original
    assert x.scheduler.stream_handlers["update-graph"] == handler


@cluster_test(install=False, check=False)
async def test_what_fails_while_hearing_fails_no_graph(x: Cluster) -> None:
    """It is logged, and the graph is computed."""

    def hear(graph: Mapping[Any, Any]) -> None:
        raise RuntimeError("no such luck")

    assert materialize.listen(x.scheduler, hear)
    try:
        assert await x.client.submit(lambda: 1, key="a") == 1
    finally:
        materialize.unlisten(x.scheduler)
    assert any("could not look at a graph" in message for message in x.log.messages)


@cluster_test(install=False, check=False)
async def test_a_dask_without_that_place_is_told(x: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is changed."""
    monkeypatch.delattr(distributed.scheduler, materialize.NAME)
    assert not materialize.listen(x.scheduler, lambda graph: None)
