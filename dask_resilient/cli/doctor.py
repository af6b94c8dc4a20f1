"""``dask resilience doctor [STORE]``: which probes work on this machine, versions, driver, what the store can do."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from threading import Event
from time import monotonic

import click
from rich.table import Table

from dask_resilient.cli.showing import as_json, one_line, plain, print_json, show
from dask_resilient.core.readings import Name, Reading
from dask_resilient.internals.versions import out_of_range
from dask_resilient.probes import device as probes
from dask_resilient.probes.canary import Canary
from dask_resilient.probes.guest import GROUP, PROBE
from dask_resilient.probes.guests import Guest, load_entry_points

WORKS, UNKNOWN, MISSING, FAILS = "works", "unknown", "missing", "FAILS"

SWEEP_SECONDS = 30.0
"""Longest that the first readings are waited for: the driver may take seconds to start, or hang."""

CANARY_SECONDS = 40.0
"""Longest that the canary is waited for; it gives up itself before."""

GUEST_SECONDS = 20.0
"""Longest that the first readings of a third party's probe are waited for."""

PACKAGES = {
    "dask-resilient": "",
    "dask": "",
    "distributed": "",
    "zarr": "",
    "numpy": "",
    "nvidia-ml-py": "pip install nvidia-ml-py: without it nothing is read of a GPU",
    "dask-cuda": "pip install dask-cuda: workers then have a GPU each",
    "cupy": "pip install cupy-cuda13x (or cupy-cuda12x): without it no canary runs on a GPU",
    "cudf": "needed for cuDF frames only",
    "numba-cuda": "needed for numba.cuda arrays only",
    "pandas": "needed for data frames only",
    "bokeh": "pip install bokeh: Dask's dashboard needs it",
}
"""Distributions that matter, with what to do where one is missing."""

ALIASES = {
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x"),
    "cudf": ("cudf", "cudf-cu13", "cudf-cu12"),
}
"""Names under which a package is distributed."""

ADVICE = {
    Name.XID: "events need a Linux driver; the kernel log tells of XIDs too",
    "kernel-log": "let workers read /dev/kmsg (CAP_SYSLOG), or set resilience.probe.kernel-log to a copy of the log",
    "host-disk": "check the worker's local directory",
}
"""What to do where something cannot be read, beyond its reason."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at."""

    about: str
    what: str
    state: str
    detail: str
    advice: str = ""


@click.command()
@click.argument("store", required=False)
@as_json
def doctor(store: str | None, as_json: bool) -> None:
    """See what works on this machine: versions, driver, probes, canary, and STORE if one is given.

    Run it where a worker runs, with the worker's environment: what counts is what that process sees. Exit code 1 if
    something fails that works elsewhere. Leaves nothing behind.
    """
    with one_line():
        device = list(_device())
        gpu = any(line.what == GPU and line.state == WORKS for line in device)
        lines = [*_versions(), *device, *_canary(gpu), *_guests(), *_store(store)]
    if as_json:
        print_json([asdict(line) for line in lines])
    else:
        table = Table("about", "what", "", "detail", "what to do", box=None, pad_edge=False)
        for line in lines:
            table.add_row(line.about, plain(line.what), line.state, plain(line.detail), plain(line.advice))
        bad = sum(line.state == FAILS for line in lines)
        unknown = sum(line.state == UNKNOWN for line in lines)
        show(table, f"{len(lines)} looked at: {bad} fail, {unknown} unknown (neither good nor bad)")
    sys.exit(any(line.state == FAILS for line in lines))


# -- what is installed -------------------------------------------------------------------------------------------------


def _versions() -> Iterator[Line]:
    yield Line("versions", "python", WORKS, platform.python_version())
    for name, advice in PACKAGES.items():
        found = next(filter(None, map(_version, ALIASES.get(name, (name,)))), None)
        yield Line("versions", name, WORKS if found else MISSING, found or "not installed", "" if found else advice)
    reason = out_of_range()
    advice = "partitions are saved, recovery is left to Dask; resilience.recover.untested-dask overrides that"
    yield Line("recovery", "this Dask", FAILS if reason else WORKS, reason or "tested", advice if reason else "")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


# -- the device --------------------------------------------------------------------------------------------------------


GPU = "GPU"


def _device() -> Iterator[Line]:
    """Start a probe process, and take what its first sweep reads."""
    readings: dict[str, Reading] = {}
    done = Event()

    def hear(some: list[Reading]) -> None:
        for reading in some:
            readings[reading.name] = reading
        if any(reading.probe == "host" for reading in some):
            done.set()

    gauge = probes.acquire()
    try:
        gauge.listen(hear)
        done.wait(SWEEP_SECONDS)
        device = gauge.wait(0)
        begin = monotonic()
        while device is not None and Name.NVML_RETURN not in readings and monotonic() - begin < SWEEP_SECONDS:
            done.clear()
            done.wait(1)
    finally:
        gauge.unlisten(hear)
        probes.release()
    if device is None:
        yield Line("device", GPU, UNKNOWN, gauge.reason, "on a machine without a GPU nothing is to be done")
    else:
        own = "" if device.own else "CUDA_VISIBLE_DEVICES is not set: no worker is known to own it"
        yield Line("device", GPU, WORKS, f"{device.name} {device.uuid}", own)
        for what, text in gauge.driver.items():
            yield Line("device", what, WORKS, text)
    yield from (_reading(reading) for _, reading in sorted(readings.items()))


def _reading(reading: Reading) -> Line:
    if reading.value is None:
        return Line(reading.probe, reading.name, UNKNOWN, reading.text, ADVICE.get(reading.kind, ""))
    return Line(reading.probe, reading.name, WORKS, f"{reading.value} {reading.text}".strip())


def _canary(gpu: bool) -> Iterator[Line]:
    found: list[Reading] = []
    done = Event()

    def hear(readings: list[Reading]) -> None:
        found.extend(readings)
        done.set()

    begin = monotonic()
    Canary().start("here", gpu, hear)
    done.wait(CANARY_SECONDS)
    seconds = monotonic() - begin
    where = "CuPy" if gpu else "NumPy"
    reading = next((r for r in found if r.name == Name.CANARY), None)
    if reading is None or reading.value is None:
        yield Line("canary", where, UNKNOWN, reading.text if reading is not None else "did not come back")
    elif reading.value == "right":
        yield Line("canary", where, WORKS, f"right, {1000 * seconds:.0f} ms with its start")
    else:
        yield Line("canary", where, FAILS, "the product was wrong", "take this device out of use, and report it")


def _guests() -> Iterator[Line]:
    """Start each probe that an installed package brings, and take what it gives first."""
    for name in load_entry_points():
        found: list[Reading] = []
        done = Event()

        def hear(readings: list[Reading], found: list[Reading] = found, done: Event = done) -> None:
            found.extend(readings)
            done.set()

        guest = Guest(name, None, lambda: "here", hear)
        guest.start()
        done.wait(GUEST_SECONDS)
        guest.stop()
        bad = next((reading.text for reading in found if reading.name == f"{PROBE}.{name}" and not reading.value), "")
        if bad or not done.is_set():
            why = bad or f"it gave nothing within {GUEST_SECONDS:g} s"
            yield Line("probes", name, UNKNOWN, why, "see the package that brings it: its readings are unknown")
        else:
            yield Line("probes", name, WORKS, f"{len(found)} readings; an entry point of {GROUP}")


# -- the store ---------------------------------------------------------------------------------------------------------


def _store(store: str | None) -> Iterator[Line]:
    from dask_resilient.store.trial import trial

    if store is None:
        yield Line("store", "-", UNKNOWN, "none was given", "dask resilience doctor STORE tries one out")
        return
    for what, good, detail, advice in trial(store):
        yield Line("store", what, WORKS if good else FAILS, detail, advice)
