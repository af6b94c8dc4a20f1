"""What the worker's side assumes of Dask's worker and of the messages between the two, one test an assumption."""

from __future__ import annotations

import pickle
from typing import Any, ClassVar

import dask.bag as db
import pytest
from dask._task_spec import Task, TaskRef, fuse_linear_task_spec
from dask.utils import key_split
from distributed import Reschedule, WorkerPlugin, get_worker

from dask_resilient.internals.p2p import is_internal
from dask_resilient.tasks import SaveTask
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until
from tests.support.world import _worlds, enter, run

TICKET = {"name": "n", "key": "K", "npartitions": 1, "keep": False}


@cluster_test(workers=1, install=False, check=False)
async def test_stream_handlers_are_looked_up_with_each_message(x: Cluster) -> None:
    """A handler that is put over another while the stream is open is used at once, with the fields by keyword."""
    (worker,) = x.workers
    seen: list[dict[str, Any]] = []
    original = worker.stream_handlers["compute-task"]

    def handler(**msg: Any) -> Any:
        seen.append(msg)
        return original(**msg)

    worker.stream_handlers["compute-task"] = handler
    spec = {"D": [], "K": ["D"]}
    (k,) = x.persist(spec, "K")
    await x.right(spec, k)
    assert [(m["key"], set(m["who_has"])) for m in seen] == [("D", set()), ("K", {"D"})]


@cluster_test(workers=1, install=False, check=False)
async def test_a_message_of_a_task_arrives_before_its_end(x: Cluster) -> None:
    """What a task sends through the loop on the batched stream is handled before the task's end or reschedule."""
    order: list[Any] = []

    def heard(worker: str, n: int) -> None:
        order.append((n, x.task("K").state))

    x.scheduler.stream_handlers["test-op"] = heard
    number = enter(x.world)
    future = x.client.submit(_tell, number, key="K")
    await x.done(future)
    assert order == [(1, "processing"), (2, "processing")]


def _tell(number: int) -> None:
    world = _worlds[number]
    world.runs.append("K")
    worker = get_worker()
    worker.loop.add_callback(worker.batched_send, {"op": "test-op", "n": world.ran("K")})
    if world.ran("K") == 1:
        raise Reschedule


@cluster_test(workers=1, install=False, check=False)
async def test_the_worker_knows_the_run_of_a_task(x: Cluster) -> None:
    """It is the scheduler's, so that a message of a run that no longer counts is told apart."""
    x.world.hold("K")
    (k,) = x.persist({"K": []}, "K")
    await x.runs("K")
    task = x.workers[0].state.tasks["K"]
    assert task.run_id == x.task("K").run_id >= 0
    assert task.state == "executing"
    assert {"dependencies", "dependents", "waiters", "waiting_for_data", "previous"} <= set(dir(task))
    x.world.free()
    await x.right({"K": []}, k)


@cluster_test(workers=1, install=False, check=False)
async def test_a_worker_keeps_old_dependencies(x: Cluster) -> None:
    """The case that forces `internals.unlink`: where this fails, Dask forgets them itself and the room can go."""
    spec = {"D": [], "K": ["D"], "L": ["K"]}
    (kept,) = x.persist(spec, "L")
    await x.done(kept)
    await until(lambda: not x.task("K").who_has)
    tasks = x.workers[0].state.tasks
    await until(lambda: "K" in tasks and tasks["K"].state == "released")
    assert {dep.key for dep in tasks["K"].dependencies} == {"D"}
    assert tasks["D"].state == "released"


@cluster_test(workers=1, install=False, check=False)
async def test_a_task_knows_its_key(x: Cluster) -> None:
    """`Worker.get_current_task` in the thread of the task."""
    assert await x.client.submit(lambda: get_worker().get_current_task(), key="K") == "K"


@cluster_test(workers=1, install=False, check=False)
async def test_a_graph_node_runs_as_it_is(x: Cluster) -> None:
    """A subclass of `GraphNode` comes to the worker with its type and is called with the values of its dependencies."""
    from dask.delayed import Delayed
    from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
    from distributed.client import futures_of

    layer = MaterializedLayer({"D": Task("D", run, x.number, "D"), "K": SaveTask("K", "D", TICKET)})
    graph = HighLevelGraph({"g": layer}, {"g": set()})
    (k,) = futures_of(x.client.persist(Delayed("K", graph, layer="g"), optimize_graph=False))
    assert await x.value(k) == await x.value(x.persist({"D": []}, "D")[0])
    assert type(x.task("K").run_spec) is SaveTask


def test_fusion_stops_at_a_node_that_blocks_it() -> None:
    """`block_fusion` keeps the key of a node through linear fusion; what is around it still fuses."""
    graph = {
        "a": Task("a", abs, -1),
        "b": Task("b", abs, TaskRef("a")),
        "K": SaveTask("K", "b", TICKET),
        "d": Task("d", abs, TaskRef("K")),
        "e": Task("e", abs, TaskRef("d")),
    }
    fused = fuse_linear_task_spec(graph, {"e"})
    assert type(fused["K"]) is SaveTask
    assert {"a-b", "d-e"} <= set(fused)


def test_bags_rebuild_tasks_but_not_graph_nodes() -> None:
    """Why `SaveTask` is no `Task`: bags make plain tasks of every `Task` when they are optimised."""
    from dask.bag.core import optimize

    key = ("checkpoint-n", 0)
    bag = db.from_sequence([1], npartitions=1)
    source = bag.__dask_keys__()[0]
    graph = {**dict(bag.dask), key: SaveTask(key, source, {**TICKET, "key": key})}
    assert type(dict(optimize(graph, [key]))[key]) is SaveTask


@pytest.mark.parametrize(
    ("key", "shown"),
    [(("checkpoint-clean-0123456789abcdef0123456789abcdef", 3), "checkpoint-clean"), ("kk-0", "kk")],
)
def test_keys_are_shown_by_their_words(key: Any, shown: str) -> None:
    """Progress bars group by `key_split`."""
    assert key_split(key) == shown


class Listed(WorkerPlugin):
    """Writes down where it was set up and torn down."""

    name = "listed"
    heard: ClassVar[list[tuple[str, str]]] = []

    def setup(self, worker: Any) -> None:
        self.heard.append(("setup", worker.address))

    def teardown(self, worker: Any) -> None:
        self.heard.append(("teardown", worker.address))


@cluster_test(workers=1, install=False, check=False)
async def test_workers_that_join_later_get_the_plugin(x: Cluster) -> None:
    """Those that are there by a broadcast, later ones out of ``scheduler.worker_plugins``; all are torn down."""
    from distributed.protocol.pickle import dumps

    Listed.heard.clear()
    plugin = dumps(Listed())
    x.scheduler.worker_plugins["listed"] = plugin
    await x.scheduler.broadcast(msg={"op": "plugin-add", "plugin": plugin, "name": "listed"}, on_error="return")
    new = await x.join()
    await until(lambda: len(Listed.heard) == 2)
    assert Listed.heard == [("setup", x.workers[0].address), ("setup", new.address)]
    del x.scheduler.worker_plugins["listed"]
    await x.scheduler.broadcast(msg={"op": "plugin-remove", "name": "listed"}, on_error="return")
    assert {h for h in Listed.heard if h[0] == "teardown"} == {("teardown", w.address) for w in x.workers}


@cluster_test(workers=1, install=False, check=False)
async def test_a_plugin_of_the_same_name_replaces_the_first_on_a_worker(x: Cluster) -> None:
    """The first is torn down before the second is set up."""
    Listed.heard.clear()
    (worker,) = x.workers
    await worker.plugin_add(plugin=Listed(), name="listed")
    await worker.plugin_add(plugin=Listed(), name="listed")
    assert [h[0] for h in Listed.heard] == ["setup", "teardown", "setup"]


class Hears(WorkerPlugin):
    """Writes down what the worker knows of a task in the moment in which its state changes."""

    name = "hears"

    def __init__(self) -> None:
        self.heard: dict[Any, Any] = {}

    def setup(self, worker: Any) -> None:
        self.worker = worker

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        if finish in ("memory", "error"):
            task = self.worker.state.tasks[key]
            sent = [msg for msg in self.worker.batched_stream.buffer if msg.get("key") == key]
            names = ("exception", "exception_text", "traceback_text", "run_id")
            self.heard[key] = start, sent, list(task.startstops), {name: getattr(task, name) for name in names}


@cluster_test(workers=1, install=False, check=False)
async def test_a_worker_hears_of_an_error_before_it_is_sent(x: Cluster) -> None:
    """With its texts, and the error itself pickled, causes and all; of how long tasks took with ``startstops``."""
    hears = Hears()
    await x.workers[0].plugin_add(plugin=hears, name="hears")
    with pytest.raises(ValueError):  # noqa: PT011 - any
        await x.client.submit(_fail, key="F")
    await x.client.submit(abs, -1, key="K")
    start, sent, _, fields = hears.heard["F"]
    assert (start, sent) == ("executing", [])
    assert fields["exception_text"] == "ValueError('outer')"
    assert "_fail" in fields["traceback_text"]
    assert fields["run_id"] >= 0
    error = pickle.loads(fields["exception"].data)
    assert isinstance(error, ValueError)
    assert isinstance(error.__cause__, KeyError)
    start, sent, startstops, _ = hears.heard["K"]
    assert (start, sent) == ("executing", [])
    (took,) = [each for each in startstops if each["action"] == "compute"]
    assert 0 <= took["stop"] - took["start"] < 10


def _fail() -> None:
    raise ValueError("outer") from KeyError("inner")


@cluster_test(workers=1, install=False, check=False)
async def test_a_message_with_half_a_character_closes_the_stream(x: Cluster) -> None:
    """Why `core.messages.sendable` is there: the worker leaves with everything it has."""
    x.workers[0].batched_stream.send({"op": "no-matter", "text": "\udcff"})
    await until(lambda: not x.scheduler.workers)


@cluster_test(workers=1, install=False, check=False)
async def test_a_message_without_a_handler_closes_the_stream(x: Cluster) -> None:
    """Why a side that leaves puts a handler that does nothing in its place."""
    x.scheduler.worker_send(x.workers[0].address, {"op": "no-such-op"})
    await until(lambda: not x.scheduler.workers)


@cluster_test(workers=2, install=False, check=False)
async def test_only_work_that_is_called_compute_counts_as_the_tasks_duration(x: Cluster) -> None:
    """`TaskPrefix.duration_average` is of the action "compute"."""
    x.scheduler.new_task("kk-0", None, "released", computation=None)
    prefix = x.scheduler.task_prefixes["kk"]
    before = prefix.duration_average
    prefix.add_duration("reload", 0.0, 5.0)
    assert prefix.duration_average == before
    prefix.add_duration("compute", 0.0, 5.0)
    assert prefix.duration_average == 5.0


def shuffled() -> Any:
    import dask.dataframe as dd
    import pandas as pd

    return dd.from_pandas(pd.DataFrame({"a": range(8), "b": range(8)}), npartitions=2).shuffle("a").optimize()


def merged() -> Any:
    import dask.dataframe as dd
    import pandas as pd

    frame = dd.from_pandas(pd.DataFrame({"a": range(8), "b": range(8)}), npartitions=2)
    return frame.merge(frame.assign(b=frame.b + 1), on="a").optimize()


def rechunked() -> Any:
    import dask.array as da

    return da.ones((8, 8), chunks=(2, 8)).rechunk((8, 2), method="p2p")


@pytest.mark.parametrize("make", [shuffled, merged, rechunked])
def test_inner_tasks_of_a_shuffle_are_recognised(make: Any) -> None:
    """By class and function: transfers and the barrier are inner parts, what is unpacked is not."""
    import dask

    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        graph = dict(make().dask)
    for key, node in graph.items():
        name = key_split(key)
        assert is_internal(node) == ("transfer" in name or "barrier" in name), (key, node)
    assert sum(map(is_internal, graph.values())) >= 2


@cluster_test(workers=2, install=False, check=False)
async def test_work_is_not_stolen_across_a_restriction(x: Cluster) -> None:
    """A load that is bound to some workers stays with them."""
    a, b = (x.scheduler.workers[w.address] for w in x.workers)
    x.world.hold("K")
    (k,) = x.persist({"K": []}, "K", workers=[a.address])
    await x.runs("K")
    stealing = x.scheduler.extensions["stealing"]
    assert stealing._get_thief(x.scheduler, x.task("K"), {b}, occupancies={}) is None
    x.world.free()
    await x.right({"K": []}, k)
