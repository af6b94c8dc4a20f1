"""How soon a sick GPU is out of service, and what it held is back: dask-cuda on fake GPUs.

Run: ``PYTHONPATH=. python benchmarks/quarantine_gpus.py [--repeats 20] [--json FILE]`` in an environment with dask-cuda
and without a driver. Two devices hold 8 partitions of 80 kB in two steps, the first of them stored, and compute a third
one; then one device turns sick. Of each fault: seconds from its injection until its worker gets no more tasks; from
that decision until every lost partition is whole again; and, where the process is replaced, until it is gone. Probes
read every 0.5 s.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from table import arguments, show

from tests.cuda.quarantined import SICK, UnderWay, closed, decided, install, phase, rejoin
from tests.cuda.test_quarantine import touch
from tests.support import fakegpu
from tests.support.gpu_processes import GPUProcesses
from tests.support.pool import one_test

FAULTS: dict[str, Callable[[Any], None]] = {
    "XID 79": lambda gpus: gpus.xid(0, 79),
    "device lost": lambda gpus: gpus.gpu(0, **{"return": 15}),
    "recovery action: reset": lambda gpus: gpus.gpu(0, fi__230=1),
    "XID 64 (drained)": lambda gpus: gpus.xid(0, 64),
    "within 2 C of shutdown (drained)": lambda gpus: gpus.gpu(0, temp=91),
}
REPLACED = "illegal address (process replaced)"
ORDER = [*FAULTS, REPLACED]


def main() -> None:
    args = arguments(__doc__ or "", repeats=20)
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory)
        (where / "fakes").mkdir()
        libraries = fakegpu.build(where / "fakes")
        gpus = fakegpu.Control(where / "control")
        fakegpu.load(libraries)
        os.environ.update(gpus.environment(libraries))
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        fakegpu.forget_nvml()
        gpus.clear()
        (where / "cluster").mkdir()
        cluster = GPUProcesses(where / "cluster", gpus)
        try:
            for n in range(args.repeats):
                for name in ORDER:
                    for what, seconds in once(cluster, gpus, where / f"{n}-{ORDER.index(name)}", name).items():
                        found.setdefault(name, {}).setdefault(what, []).append(seconds)
                    print(n, name, {what: round(v[-1], 3) for what, v in found[name].items()}, flush=True)
        finally:
            cluster.close()
    rows = [
        {"fault": name, "from to": what, "median, s": statistics.median(v), "worst, s": max(v), "repeats": len(v)}
        for name, kinds in found.items()
        for what, v in kinds.items()
    ]
    show("a sick GPU of two", rows, args.json)


def once(cluster: Any, gpus: Any, where: Path, name: str) -> dict[str, float]:
    """Have the device turn sick once; the cluster is whole again in the end."""
    gpus.clear()
    where.mkdir()
    with one_test(cluster, where) as x:
        install(x)
        job = UnderWay(x)
        if name == REPLACED:
            x.open_gate("c")
            job.right()
            gpus.gpu(0, cuda__cuMemcpyHtoD_v2=700, cuda__cuMemcpyHtoDAsync_v2=700)
            futures = x.client.map(touch, range(40), retries=0, pure=False)
            x.until(lambda: phase(x) != "active", what="it is out")
            gpus.clear()
            assert x.client.gather(futures) == list(range(40))
        else:
            fault = time.time()
            FAULTS[name](gpus)
            x.until(lambda: phase(x) != "active", 60, "it is out of service")
            x.open_gate("c")
        job.right()
        out = x.ask(lambda: decided_at(x))
        x.until(lambda: all(loss["seconds"] is not None for loss in losses(x)), what="whole again")
        back = max((loss["time"] + loss["seconds"] for loss in losses(x)), default=out)
        measured = {"verdict to whole again": back - out}
        if name == REPLACED:
            x.until(lambda: any("was ended" in row["outcome"] for row in x.watch.keeper.audit.rows), what="it is gone")
            measured["verdict to process gone"] = next(r["seconds"] for r in decided(x) if "was ended" in r["outcome"])
        else:
            measured["fault to no new task"] = out - fault
            x.until(lambda: phase(x) == "quarantined", what="it is out for good")
            x.until(lambda: closed(x), what="its nanny is closed")
        gpus.clear()
        rejoin(x)
        x.whole()
        return measured


def decided_at(x: Any) -> float:
    """Give when the device was first taken out."""
    return float(next(row["time"] for row in x.watch.keeper.audit.rows if row["device"] == SICK))


def losses(x: Any) -> list[dict[str, Any]]:
    return [incident.to_dict() for incident in x.watch.book.incidents]


if __name__ == "__main__":
    main()
