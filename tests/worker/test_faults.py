"""Errors of tasks on a worker: classified as they happen, and told before Dask tells of them."""

from __future__ import annotations

import pickle
import time
from types import SimpleNamespace

import pytest
from distributed.protocol import to_serialize

from dask_resilient.core.cuda_errors import TABLE, TaskFault
from dask_resilient.core.faults import Class
from dask_resilient.core.messages import texts
from dask_resilient.worker import faults
from dask_resilient.worker.faults import Faults
from tests.support.cluster import Cluster, cluster_test
from tests.support.waiting import until


def told(error, **changes):
    """Give what is told of a task that ended with an error."""
    sent = []
    data = changes.pop("data", None) or pickle.dumps(error)
    fields = {
        "exception": to_serialize(data),
        "exception_text": repr(error),
        "traceback_text": "",
        "run_id": 7,
        **changes,
    }
    worker = SimpleNamespace(state=SimpleNamespace(tasks={("p-1", 0): SimpleNamespace(**fields)}))
    Faults(worker, sent.append, TABLE).transition(("p-1", 0), "executing", "error")
    return sent


def wrapped(inner, outer):
    try:
        try:
            raise inner
        except Exception as e:
            raise outer from e
    except Exception as e:
        import tblib.pickling_support

        tblib.pickling_support.install(e)
        return e


ILLEGAL = "cudaErrorIllegalAddress: an illegal memory access was encountered"


def test_an_error_of_cuda_is_told_with_its_row():
    """By the code in the text; keys of any type travel."""
    ((msg),) = told(RuntimeError(ILLEGAL))
    assert (msg["kind"], msg["key"], msg["run_id"], msg["prefix"]) == ("fault", ("p-1", 0), 7, "p")
    fault = TaskFault.from_dict(msg["fault"])
    assert (fault.code, fault.cls, fault.sticky) == (700, Class.KILL, True)


def test_a_memory_error_that_carries_a_sticky_code_is_no_allocation():
    """As RMM raises it."""
    text = f"std::bad_alloc: CUDA error (failed to allocate 8 bytes) at: x.hpp: {ILLEGAL}"
    assert told(MemoryError(text))[0]["fault"]["code"] == 700
    assert told(MemoryError("std::bad_alloc: out_of_memory: CUDA error"))[0]["fault"]["kind"] == "allocation"


def test_a_cause_is_looked_into():
    """The user's code wraps what the library raised."""
    error = wrapped(RuntimeError(ILLEGAL), ValueError("my step failed"))
    assert told(error)[0]["fault"]["code"] == 700


@pytest.mark.parametrize(
    ("error", "changes"),
    [
        (ValueError("no such column"), {}),
        (RuntimeError("shapes do not match"), {"data": b"no pickle"}),
        (RuntimeError("x"), {"exception": None}),
        (RuntimeError("x"), {"exception_text": None, "traceback_text": None}),
    ],
    ids=["a user's", "cannot be unpickled", "none kept", "no texts"],
)
def test_other_errors_are_not_told(error, changes):
    """And whatever they are made of raises nothing."""
    assert told(error, **changes) == []


def test_what_another_task_met_is_not_this_one_s():
    """A task that waits for it raises the same; the one that met it has told of it on its own worker."""
    file = '  File "/x/site-packages/distributed/client.py", line {}, in {}\n    return self\n'
    for where in ("result", "_result", "gather", "_gather"):
        text = '  File "job.py", line 3, in outer\n    f.result()\n' + file.format(407, where)
        assert told(RuntimeError(ILLEGAL), traceback_text=text) == []
    mine = '  File "job.py", line 3, in result\n    kernel()\n'
    assert told(RuntimeError(ILLEGAL), traceback_text=mine)


class Odd(RuntimeError):
    def __init__(self, *args):
        super().__init__(*args)
        self.__notes__ = [self, 1, "a note"]


class Ends(ValueError):
    def __str__(self):
        raise SystemExit


def test_odd_exceptions_hide_nothing():
    """Notes that are no texts; a text that ends the process."""
    assert told(Odd(ILLEGAL))[0]["fault"]["code"] == 700
    assert texts(Ends()) == ["Ends: "]


def test_a_task_that_is_gone_is_not_told():
    """It may be released in the same moment."""
    sent = []
    Faults(SimpleNamespace(state=SimpleNamespace(tasks={})), sent.append, TABLE).transition("k", "executing", "error")
    assert sent == []


def test_an_event_and_its_task_are_looked_at_once(monkeypatch):
    """Told with the run of the event, when the task changes its state, and afterwards not remembered."""
    looked, sent, failed = [], [], []
    classify = faults.classify
    monkeypatch.setattr(faults, "classify", lambda *args: (looked.append(args), classify(*args))[1])
    event = SimpleNamespace(key="k", run_id=7, exception=None, exception_text=ILLEGAL, traceback_text="")
    task = SimpleNamespace(run_id=8, exception=None, exception_text="", traceback_text="")
    worker = SimpleNamespace(state=SimpleNamespace(tasks={"k": task}))
    it = Faults(worker, sent.append, TABLE, failed.append)
    it.failing([event])
    assert ([fault.code for fault in failed], sent) == ([700], [])
    it.transition("k", "cancelled", "error")
    assert ([msg["run_id"] for msg in sent], len(failed), len(looked)) == ([7], 1, 1)
    it.failing([event])
    it.failing([])
    it.transition("k", "flight", "error")
    assert (len(sent), len(failed)) == (1, 2)


def test_a_surprise_is_logged_once(monkeypatch, caplog):
    """And Dask goes on as without us."""
    monkeypatch.setattr(faults, "classify", lambda *_: 1 / 0)
    event = SimpleNamespace(key="k", run_id=7, exception=None, exception_text=ILLEGAL, traceback_text="")
    it = Faults(SimpleNamespace(state=SimpleNamespace(tasks={"k": event})), [].append, TABLE)
    it.failing([event, event])
    it.transition("k", "executing", "error")
    assert len(caplog.records) == 1
    assert "ZeroDivisionError" in caplog.text


def test_an_ordinary_error_costs_next_to_nothing():
    """It is looked into on the worker's event loop: a tenth of a millisecond, not ten."""
    error = wrapped(KeyError("a"), ValueError("no such column"))
    began = time.perf_counter()
    for _ in range(20):
        told(error)
    assert (time.perf_counter() - began) / 20 < 0.01


def test_a_pickle_that_is_too_large_is_not_opened(monkeypatch):
    """The texts alone count then; Dask itself cuts errors, but a plugin may not."""
    monkeypatch.setattr(faults, "MOST", 10)
    monkeypatch.setattr(faults.pickle, "loads", lambda _: 1 / 0)
    assert told(wrapped(RuntimeError(ILLEGAL), ValueError("x"))) == []
    assert told(RuntimeError(ILLEGAL))[0]["fault"]["code"] == 700


def chained(how):
    try:
        raise RuntimeError(f"{ILLEGAL} in \udcff.parquet")
    except RuntimeError as e:
        match how:
            case "cause":
                raise ValueError("my step failed") from e
            case "context":
                raise ValueError("my step failed")  # noqa: B904
            case "hidden":
                raise ValueError("my step failed") from None
            case "group":
                raise ExceptionGroup("several", [ValueError("a"), e]) from None
            case "note":
                error = ValueError("my step failed")
                error.add_note(str(e))
                raise error from None


@pytest.mark.parametrize("how", ["cause", "context", "hidden", "group", "note"])
@cluster_test(workers=1, resilience__probe__enabled=True, resilience__quarantine__enabled=False)
async def test_what_an_error_hides_is_found_through_dask(x: Cluster, how: str) -> None:
    """Dask keeps it in the pickled error only; and half a character in it does not end the worker's connection."""
    future = x.client.submit(chained, how, key="boom")
    with pytest.raises((ValueError, ExceptionGroup)):
        await future
    await until(lambda: x.watch.members.rows()[0]["rule"] == "cuda.700")
    assert await x.client.submit(abs, -3) == 3
    assert x.workers[0].address in x.scheduler.workers


def fail(text):
    raise RuntimeError(text)


WORDINGS = {
    "CuPy": "cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
    "numba": "[<CUresult.CUDA_ERROR_ILLEGAL_ADDRESS: 700>] Call to cuMemcpy results in CUDA_ERROR_ILLEGAL_ADDRESS",
    "cuDF": "CUDA error encountered at: f.cu:1: 719 cudaErrorLaunchFailure unspecified launch failure",
}


@pytest.mark.parametrize("text", WORDINGS.values(), ids=WORDINGS)
@cluster_test(resilience__probe__enabled=True, resilience__quarantine__enabled=False)
async def test_the_scheduler_hears_of_it_before_the_error(x: Cluster, text: str) -> None:
    """So that it can act before the task is given up."""
    order = []
    blame = x.watch.care.blame
    fault = blame.fault
    blame.fault = lambda worker, msg: (order.append("fault"), fault(worker, msg))
    erred = x.scheduler.stream_handlers["task-erred"]
    x.scheduler.stream_handlers["task-erred"] = lambda **msg: (order.append("erred"), erred(**msg))[1]
    future = x.client.submit(fail, text, key="boom")
    with pytest.raises(RuntimeError):
        await future
    assert order == ["fault", "erred"]
    await until(lambda: any(row["health"] == "unhealthy" for row in x.watch.members.rows()))
    row = next(row for row in x.watch.members.rows() if row["health"] == "unhealthy")
    assert row["rule"].startswith("cuda.")
    assert row["readable"] is (row["class"] == "kill"), "a dead context takes nothing from the host's memory"
    x.scheduler.stream_handlers["task-erred"] = erred
    blame.fault = fault
