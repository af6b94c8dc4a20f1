"""The functions inside tasks: what they ask of the worker side, and what they do without one."""

from __future__ import annotations

import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import pytest
from dask.task_spec import DataNode
from distributed import Reschedule, WorkerPlugin

from dask_resilient import tasks
from dask_resilient.errors import ResilienceWarning
from dask_resilient.graph import checkpoint
from dask_resilient.tasks import SaveTask, load, save

TICKET = {"name": "clean", "key": ("checkpoint-clean-0", 1), "npartitions": 4, "keep": False}


class Side:
    """Remembers what it is asked, or fails."""

    def __init__(self, error=None):
        self.saved = []
        self.error = error

    def save(self, value, ticket):
        self.saved.append((value, ticket))
        if self.error is not None:
            raise self.error

    def load(self, ticket):
        if self.error is not None:
            raise self.error
        return "loaded", ticket


class Plugin(WorkerPlugin):
    name = "resilience"

    def __init__(self, side):
        self.side = side


class Worker:
    def __init__(self, plugins):
        self.plugins = plugins


@pytest.fixture
def worker_with(monkeypatch):
    """Put this thread on a worker with these plugins."""

    def put(**plugins):
        monkeypatch.setattr("distributed.get_worker", lambda: Worker(plugins))

    return put


def test_a_worker_with_the_plugin_gets_value_and_ticket(worker_with):
    """The side is handed the very value, which is then given back."""
    side, value = Side(), object()
    worker_with(resilience=Plugin(side))
    assert save(value, TICKET) is value
    assert side.saved == [(value, TICKET)]


def test_a_side_that_fails_does_not_fail_the_task_and_is_logged_once(worker_with, caplog):
    """Whatever goes wrong in saving stays out of the job."""
    worker_with(resilience=Plugin(Side(error=MemoryError("full"))))
    value = object()
    assert save(value, TICKET) is value
    assert save(value, TICKET) is value
    (record,) = caplog.records
    assert "Saving a partition failed" in record.getMessage()
    assert "full" in record.exc_text


@pytest.mark.parametrize("plugins", [{}, {"other": None}, {"resilience": Plugin(None)}], ids=["none", "other", "bare"])
def test_a_worker_without_a_side_logs_once_and_warns_nobody(plugins, worker_with, caplog):
    """Warnings on a worker reach nobody, its log does."""
    worker_with(**plugins)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [save(i, TICKET) for i in range(3)] == [0, 1, 2]
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("checkpoint 'clean' is not saved: the plugin does not run on this worker")


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
def test_another_scheduler_warns_once(scheduler):
    """A pass-through says so, once a process, however many threads run the tasks."""
    with pytest.warns(ResilienceWarning, match="checkpoint 'clean' is not saved: this is no worker") as said:
        assert checkpoint(da.arange(40, chunks=1), "clean").sum().compute(scheduler=scheduler) == 780
    assert len(said) == 1


def test_many_threads_at_once_give_one_warning():
    """The first of many callers is the only one that is told, also when all call in the same moment."""
    gate = threading.Barrier(16)

    def call(_):
        gate.wait(10)
        return save(0, TICKET)

    with ThreadPoolExecutor(16) as pool, pytest.warns(ResilienceWarning) as said:
        assert list(pool.map(call, range(16))) == [0] * 16
    assert len(said) == 1


def test_warnings_turned_into_errors_do_not_fail_the_task():
    """`-W error` is for the user's own code; a job that is only protected less goes on."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert save(5, TICKET) == 5


def test_no_distributed_is_no_worker(monkeypatch):
    """Without the library there is no worker, and saving is a pass-through."""
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.warns(ResilienceWarning, match="is not saved"):
        assert save(5, TICKET) == 5


def test_loading_asks_the_side(worker_with):
    """The side gives the value, or raises what tells the scheduler to try elsewhere."""
    worker_with(resilience=Plugin(Side()))
    assert load(TICKET) == ("loaded", TICKET)
    worker_with(resilience=Plugin(Side(error=Reschedule())))
    with pytest.raises(Reschedule):
        load(TICKET)


def test_loading_without_a_side_reschedules(worker_with):
    """A load that landed where nobody can do it goes back to the scheduler."""
    worker_with()
    with pytest.raises(Reschedule):
        load(TICKET)


def test_loading_on_no_worker_reschedules():
    """So does one that runs on no worker at all."""
    with pytest.raises(Reschedule):
        load(TICKET)


def test_a_plugin_on_a_real_cluster_gets_every_partition(client):
    """The name under which the side is looked up is the one under which plugins are registered."""
    side = Side()
    client.cluster.sync(_register, client.cluster, Plugin(side))
    try:
        assert checkpoint(da.arange(6, chunks=2), "clean").sum().compute() == 15
    finally:
        for worker in client.cluster.workers.values():
            worker.plugins.pop("resilience")
    assert sorted(v.tolist() for v, _ in side.saved) == [[0, 1], [2, 3], [4, 5]]
    assert {t["name"] for _, t in side.saved} == {"clean"}


async def _register(cluster, plugin):
    for worker in cluster.workers.values():
        worker.plugins[plugin.name] = plugin


def node(**kw):
    return SaveTask(TICKET["key"], ("source", 1), {**TICKET, **kw})


def test_the_key_in_a_ticket_is_no_dependency():
    """A ticket is never searched for references, whatever key stands in it."""
    assert node(key=("source", 9)).dependencies == {("source", 1)}
    assert node().block_fusion


def test_a_node_is_copied_renamed_and_pickled_as_it_is():
    """Type, ticket and preparation are kept; only key and source change where asked."""
    full = SaveTask("new", "old", TICKET, prepare=list)
    for same in (full.copy(), full.substitute({}), pickle.loads(pickle.dumps(full))):
        assert type(same) is SaveTask
        assert same == full
        assert (same.key, same.source, same.ticket, same.prepare) == ("new", "old", TICKET, list)
    moved = full.substitute({"old": "older"}, key="newer")
    assert (moved.key, moved.source, moved.dependencies) == ("newer", "older", {"older"})
    assert (moved.ticket, moved.prepare) == (TICKET, list)
    assert moved != full


def test_a_node_takes_no_node_into_itself():
    """Fusing the producer into the node is refused: its work would be repeated on every reload of the milestone."""
    with pytest.raises(TypeError, match="by a key only"):
        node().substitute({("source", 1): DataNode("x", 1)})


def test_a_node_needs_its_source():
    """Running without the value is an error of Dask's own kind, not a saved None."""
    with pytest.raises(RuntimeError, match="missing keys"):
        node()({})
    assert tasks.PLUGIN == "resilience"
