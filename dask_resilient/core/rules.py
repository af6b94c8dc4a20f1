"""The rules that readings are judged by: one function a rule, and the table of them.

A rule gives findings: what it makes of the readings, and why. It says nothing where what it needs is not known. To add
one, write a function and give it a line in `RULES`. Those about counters are in `dask_resilient.core.counters`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dask_resilient.core import counters, xid
from dask_resilient.core.faults import Class, Suspect, together
from dask_resilient.core.fixes import Fix
from dask_resilient.core.history import Finding, History, class_in
from dask_resilient.core.hosts import host
from dask_resilient.core.nvml import DRAIN_P2P, EVENTS, GPU_IS_LOST, NVML_REASONS, RESET_REQUIRED
from dask_resilient.core.nvml import recovery_action as wanted
from dask_resilient.core.readings import NOTHING, Name


def recovery_action(h: History) -> Iterator[Finding]:
    """Judge by what the driver wants done with the device: NVIDIA's own verdict."""
    value = h.number(Name.RECOVERY_ACTION)
    if value:
        words, cls = wanted(int(value))
        if int(value) == DRAIN_P2P and not h.limits.links:
            cls = Class.DEGRADE
        yield Finding(cls, f"the driver asks for: {words}", str(int(value)))


def xids(h: History) -> Iterator[Finding]:
    """Judge by what the driver reported as XIDs, each incident by its primary cause."""
    recent = h.xids()
    if not recent:
        return
    table = h.limits.xids if h.limits.links else xid.without_links(h.limits.xids)
    day = h.xids(h.limits.repeat_seconds)
    for incident in xid.incidents(recent, table):
        row = incident.primary
        cls = together([incident.cls, *_repeated(h, incident, day, table)])
        with_ = ", ".join(str(e.code) for e in incident.events if e.code != row.code)
        line = next((f": {e.text}" for e in incident.events if e.code == row.code and e.text), "")
        evidence = f"XID {row.code} {row.name}, {row.meaning}" + (f", with {with_}" if with_ else "") + line
        yield Finding(cls, evidence, str(row.code), row.source)


def _repeated(h: History, incident: xid.XidIncident, day: list[xid.XidEvent], table: xid.Table) -> Iterator[Class]:
    for event in incident.events:
        row = xid.lookup(event.code, table)
        # What tasks can cause is for `core.attribution`: it knows whether they were different ones.
        blameless = row.suspect is Suspect.TASK or (row.cls is Class.KILL and not event.own)
        if row.repeat is not None and not blameless and xid.count(day, event.code) >= h.limits.repeats:
            yield row.repeat


def nvml_return(h: History) -> Iterator[Finding]:
    """Judge by whether NVML still reaches the device."""
    code = h.number(Name.NVML_RETURN)
    if code == GPU_IS_LOST:
        yield Finding(Class.EVICT, "NVML: the GPU is lost", "15")
    elif code == RESET_REQUIRED:
        yield Finding(Class.EVICT, "NVML: the GPU requires a reset", "16")
    elif code:
        yield Finding(None, f"NVML: {NVML_REASONS.get(int(code), f'error {int(code)}')}", str(int(code)))


def present(h: History) -> Iterator[Finding]:
    """Judge by whether a device that was there still is; one that never was is only unknown."""
    for r in h.known(Name.PRESENT):
        if r.number == 0 and h.baseline.was_true(r):
            yield Finding(Class.EVICT, "NVML lists the device no more")


def silence(h: History) -> Iterator[Finding]:
    """Judge by whether probes come back: a call that hung once may be a busy host, again and again it is the device."""
    seconds = h.number(Name.SILENCE) or 0.0
    timeouts = h.number(Name.TIMEOUTS) or 0.0
    if seconds < h.limits.suspect_silence:
        return
    evidence = f"no answer for {seconds:g} s"
    if h.flag(Name.OVERLOADED):
        yield Finding(None, f"{evidence}, but the host is overloaded")
    elif seconds >= h.limits.hung_silence and timeouts >= h.limits.timeouts:
        yield Finding(Class.EVICT, f"{evidence}, {timeouts:g} probes in a row")
    else:
        yield Finding(None, evidence)


def canary(h: History) -> Iterator[Finding]:
    """Judge by whether the device computes right."""
    if any(r.value == "wrong" for r in h.known(Name.CANARY)):
        yield Finding(Class.EVICT, "the product of two matrices of integers was wrong")


def cuda_error(h: History) -> Iterator[Finding]:
    """Judge by errors of CUDA in this process; whether task or device is to blame is another question."""
    for r in h.events(Name.CUDA_ERROR):
        yield Finding(class_in(r), r.text or r.name, r.name.partition(".")[2])


def attribution(h: History) -> Iterator[Finding]:
    """Judge by what tasks met, where it is known by now that the device, or its process, is to blame."""
    for kind, cls, row in ((Name.INDICTED, Class.DRAIN, "device"), (Name.EXHAUSTED, Class.KILL, "memory")):
        for r in h.known(kind):
            if r.number:
                # A process that gets no more memory still has what it got.
                yield Finding(cls, r.text or f"{kind}: {r.value}", row, readable=True)


def stated(h: History) -> Iterator[Finding]:
    """Judge by what a probe of a third party says itself."""
    for r in h.known(Name.STATED):
        if r.value != NOTHING:
            yield Finding(class_in(r), f"probe {r.probe}: {r.text or r.value}", r.name.partition(".")[2])


def events(h: History) -> Iterator[Finding]:
    """Judge by what NVML reported as events of memory."""
    for r in h.events(Name.EVENT):
        if r.number in EVENTS:
            row = EVENTS[int(r.number)]
            yield Finding(row.cls, f"NVML event: {row.words}", hex(int(r.number)))


def work(h: History) -> Iterator[Finding]:
    """Judge by the work on the device: slower than elsewhere, a task that does not end, numbers that stand still."""
    if (ratio := h.number(Name.SLOW_DOWN) or 0.0) >= h.limits.slow_down:
        yield Finding(Class.DEGRADE, f"{ratio:.2g} times slower than others on the same work", "slow-down")
    for kind, cls in ((Name.HANG, Class.DEGRADE), (Name.STALE_METRICS, None), (Name.NOT_ANSWERING, Class.OBSERVE)):
        for r in h.known(kind):
            if r.number is not None:
                yield Finding(cls, r.text or f"{kind}: {r.value}", kind)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule and where it comes from."""

    name: str
    judge: Callable[[History], Iterator[Finding]]
    source: str
    asks: str
    """Which class it asks for when, for operators; empty where each row of a table has its own."""
    fix: Fix | None
    """What a human has to do: judgement, where the source says nothing; None where each row has its own."""


RULES = (
    Rule("recovery-action", recovery_action, "NVIDIA GPU Memory Error Management", "", None),
    Rule("xid", xids, "NVIDIA XID catalogue", "", None),
    Rule(
        "nvml",
        nvml_return,
        "nvml.h",
        "evict: the GPU is lost (15) or requires a reset (16); doubt: any other error",
        None,
    ),
    Rule("present", present, "Azure NHC, gpu_count", "evict: NVML listed it, and does so no more", Fix.HOST),
    Rule(
        "silence",
        silence,
        "NVSentinel, probe watchdog",
        "evict: from hung silence and timeouts on; doubt: from suspect silence on, and however long it lasts "
        "on a host without processor time to spare",
        Fix.HOST,
    ),
    Rule("canary", canary, "judgement", "evict: its product was wrong", Fix.TICKET),
    Rule("cuda", cuda_error, "CUDA driver_types.h", "", None),
    Rule(
        "attribution",
        attribution,
        "judgement",
        "drain: `attribution.device`, its tasks succeed elsewhere; kill: `attribution.memory`, its process "
        "gets no memory while others do",
        Fix.DIAGNOSE,
    ),
    Rule("stated", stated, "the probe", "", None),
    Rule("event", events, "nvml.h", "", None),
    Rule(
        "ecc-uncorrected",
        counters.ecc_uncorrected,
        "DCGM, NHC",
        "evict: an error of CUDA has cost this process its context as well; drain: else",
        Fix.RESET,
    ),
    Rule("sram-threshold", counters.sram_threshold, "nvml.h", "drain", Fix.TICKET),
    Rule("remap-failed", counters.remap_failed, "DCGM, NHC", "drain", Fix.TICKET),
    Rule(
        "remap-pending",
        counters.remap_pending,
        "NVIDIA GPU Memory Error Management",
        "degrade: XID 63 has told of it in the last ten minutes; observe: else",
        Fix.LATER,
    ),
    Rule("remapped-rows", counters.remapped_rows, "DCGM, NHC", "degrade", Fix.DIAGNOSE),
    Rule("retired-pages", counters.retired_pages, "DCGM", "drain", Fix.TICKET),
    Rule("ecc-corrected", counters.ecc_corrected, "NHC", "degrade", Fix.NOTHING),
    Rule(
        "temperature",
        counters.temperature,
        "gpud, NVSentinel",
        "drain: within the shutdown margin of where it shuts down; degrade: above what it should run at",
        Fix.HOST,
    ),
    Rule("memory-temperature", counters.memory_temperature, "gpud", "degrade", Fix.HOST),
    Rule(
        "slow-down",
        counters.slow_down,
        "gpud",
        "drain: the hardware slows it, and no other device of the host; degrade: the hardware slows another "
        "one as well, or the driver slows it for heat",
        Fix.HOST,
    ),
    Rule(
        "nvlink-state",
        counters.nvlink_state,
        "NHC, nvrx",
        "drain: where the cluster uses links; degrade: elsewhere",
        Fix.LINK,
    ),
    Rule(
        "nvlink-errors",
        counters.nvlink_errors,
        "DCGM",
        "drain: from the thresholds on, where the cluster uses links; degrade: below them, and elsewhere",
        Fix.LINK,
    ),
    Rule("nvlink-ber", counters.nvlink_ber, "DCGM", "degrade", Fix.LINK),
    Rule(
        "fabric",
        counters.fabric,
        "nvml.h",
        "drain: unhealthy, where the cluster uses links; degrade: of limited capacity, and elsewhere",
        Fix.UNKNOWN,
    ),
    Rule("pcie", counters.pcie, "DCGM", "degrade", Fix.SEAT),
    Rule("inforom", counters.inforom, "nvml.h", "degrade", Fix.RESET),
    Rule(
        "work",
        work,
        "judgement",
        "degrade: `work.slow-down` and `work.hang`; doubt: `work.stale-metrics`; observe: `work.not-answering`",
        Fix.JOB,
    ),
    Rule("host", host, "judgement", "degrade", Fix.HOST),
)
"""In the order of authority: of rules that ask for the same, the first names the verdict."""
