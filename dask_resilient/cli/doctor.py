"""``dask resilience doctor [STORE]``: which probes work on this machine, versions, driver, what the store can do."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Event
from time import monotonic, sleep

import click
from rich.table import Table

from dask_resilient import config
from dask_resilient.cli.showing import as_json, count, one_line, plain, print_json, show
from dask_resilient.core.readings import Name, Reading
from dask_resilient.core.tables import SECTIONS
from dask_resilient.errors import SettingError
from dask_resilient.internals.versions import out_of_range
from dask_resilient.probes import device as probes
from dask_resilient.probes.canary import Canary
from dask_resilient.probes.guest import GROUP, PROBE
from dask_resilient.probes.guests import Guest, load_entry_points
from dask_resilient.probes.kernel_log import KernelLog
from dask_resilient.store.opening import resolve
from dask_resilient.store.trial import trial

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


UNITS = {
    Name.HOST_MEMORY: "is the share that is available",
    Name.HOST_DISK: "is the share that is free",
    Name.HOST_FILES: "is the share of the files it may open that are open",
    **dict.fromkeys((n for n in Name if "temperature" in n or n.startswith("margin")), "C"),
    Name.SILENCE: "s",
}
"""What the numbers count, where their names do not say it."""

ADDRESS = "address"

GLANCE = 0.05
"""Seconds between two looks at what the probes have given."""


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
    something fails that works elsewhere, 2 if STORE is no address of a store. Leaves nothing behind.
    """
    with one_line():
        settings, settled = _settings()
        device = list(_device(settings, store))
        gpu = any(line.what == GPU and line.state == WORKS for line in device)
        lines = [*_versions(), *settled, *device, *_canary(gpu), *_guests(), *_store(store)]
    if as_json:
        print_json([asdict(line) for line in lines])
    else:
        table = Table("about", "what", "", "detail", "what to do", box=None, pad_edge=False)
        for line in lines:
            table.add_row(line.about, plain(line.what), line.state, plain(line.detail), plain(line.advice))
        bad = sum(line.state == FAILS for line in lines)
        unknown = sum(line.state == UNKNOWN for line in lines)
        missing = sum(line.state == MISSING for line in lines)
        counts = f"{bad} fail, {missing} missing, {unknown} unknown (neither good nor bad)"
        show(table, f"{len(lines)} looked at: {counts}")
    failed = {line.what for line in lines if line.state == FAILS}
    sys.exit(2 if ADDRESS in failed else bool(failed))


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


# -- the settings ------------------------------------------------------------------------------------------------------


def _settings() -> tuple[config.Settings, list[Line]]:
    """Give the settings that an installation here would take, and whether they and the file of rules can work."""
    advice = "mend it in the files or variables of Dask's configuration, or where dask.config.set is called"
    try:
        settings = config.read()
    except SettingError as e:
        return config.Settings(), [Line("settings", "resilience", FAILS, str(e), advice)]
    lines = [Line("settings", "resilience", WORKS, "as Dask's configuration has them here")]
    try:
        rules = config.read_rules(settings.probe_rules)
    except SettingError as e:
        return settings, [*lines, Line("settings", "rules", FAILS, str(e), "mend the file")]
    if rules is not None:
        rows = sum(len(rules.get(section) or ()) for section in SECTIONS)
        lines.append(Line("settings", "rules", WORKS, f"{settings.probe_rules}: {count(rows, 'row')}"))
    return settings, lines


# -- the device --------------------------------------------------------------------------------------------------------


GPU = "GPU"


def _device(settings: config.Settings, store: str | None) -> Iterator[Line]:
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
        gauge.configure(
            interval=settings.probe_interval, kernel_log=settings.probe_kernel_log, disk=str(_directory(store))
        )
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
    if Name.KERNEL_LOG not in readings:  # without a GPU nobody reads it
        log = KernelLog(settings.probe_kernel_log, "", 0)
        name, value, text, _ = log.state()
        log.close()
        readings[name] = Reading(name, "", name, bool(value) or None, 0.0, text)
    yield from (_reading(reading) for _, reading in sorted(readings.items()))


def _directory(store: str | None) -> Path:
    """Give the directory whose disk is looked at: the store's, or the nearest above it; else where this runs."""
    try:
        path = Path.cwd() if store is None else Path(resolve(store))
    except SettingError:
        path = Path.cwd()
    return next(each for each in (path, *path.parents) if each.is_dir())


def _reading(reading: Reading) -> Line:
    if reading.value is None:
        return Line(reading.probe, reading.name, UNKNOWN, reading.text, ADVICE.get(reading.kind, ""))
    unit = next((unit for name, unit in UNITS.items() if name == reading.kind), "")
    said = f"{reading.value} {unit} {reading.text}"
    return Line(reading.probe, reading.name, WORKS, " ".join(said.split()))


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
    """Start all probes that installed packages bring, and take what each gives first."""
    advice = "see the package that brings it: its readings are unknown"
    good, bad = load_entry_points()
    yield from (Line("probes", name, UNKNOWN, f"left out: {reason}", advice) for name, reason in bad)
    found: dict[str, list[Reading]] = {}

    def hear(name: str, readings: list[Reading]) -> None:
        found.setdefault(name, readings)  # the first: what is given again later is no further reading

    guests = [Guest(name, None, lambda: "here", partial(hear, name)) for name in good]
    for guest in guests:
        guest.start()
    deadline = monotonic() + GUEST_SECONDS
    while len(found) < len(guests) and monotonic() < deadline:
        sleep(GLANCE)
    for guest in guests:
        guest.stop()
        yield _guest(guest.name, found.get(guest.name), advice)


def _guest(name: str, readings: list[Reading] | None, advice: str) -> Line:
    if readings is None:
        return Line("probes", name, UNKNOWN, f"it gave nothing within {GUEST_SECONDS:g} s", advice)
    if wrong := next((r.text for r in readings if r.name == f"{PROBE}.{name}" and not r.value), ""):
        return Line("probes", name, UNKNOWN, wrong, advice)
    states = "".join(f"; states {r.value}: {r.text}" for r in readings if r.kind == Name.STATED and r.value)
    unknown = sum(reading.value is None for reading in readings)
    some = f", {unknown} of them unknown" * bool(unknown)
    return Line("probes", name, WORKS, f"{len(readings)} readings{some}; an entry point of {GROUP}{states}")


# -- the store ---------------------------------------------------------------------------------------------------------


def _store(store: str | None) -> Iterator[Line]:
    if store is None:
        yield Line("store", "-", UNKNOWN, "none was given", "dask resilience doctor STORE tries one out")
        return
    try:
        for what, good, detail, advice in trial(store):
            yield Line("store", what, WORKS if good else FAILS, detail, advice)
    except SettingError as e:
        yield Line("store", ADDRESS, FAILS, str(e), "give a path, or a file:// URL")
