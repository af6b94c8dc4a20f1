"""The rules about counters and states of a device: memory, heat, links, the bus.

They are the last in authority, see `dask_resilient.core.rules`. Counters count from the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dask_resilient.core.faults import Class
from dask_resilient.core.history import MINUTE, Finding, History
from dask_resilient.core.limits import PCIE_REPLAYS
from dask_resilient.core.nvml import FABRIC, SLOW_REASONS, SW_THERMAL
from dask_resilient.core.readings import Name


def ecc_uncorrected(h: History) -> Iterator[Finding]:
    """Judge by uncorrectable errors of memory since the baseline."""
    for r in h.known(Name.ECC_UNCORRECTED):
        if rise := h.baseline.rise(r):
            evidence = f"{rise:g} uncorrectable ECC errors since the baseline"
            if h.dead:
                yield Finding(Class.EVICT, f"{evidence}, and {h.dead[-1].name} in this process")
            else:
                yield Finding(Class.DRAIN, evidence)


def sram_threshold(h: History) -> Iterator[Finding]:
    """Judge by whether NVIDIA's threshold of SRAM errors is passed."""
    if h.flag(Name.SRAM_THRESHOLD):
        yield Finding(Class.DRAIN, "the SRAM error threshold is exceeded")


def remap_failed(h: History) -> Iterator[Finding]:
    """Judge by whether a row could not be remapped."""
    if h.flag(Name.REMAP_FAILED):
        yield Finding(Class.DRAIN, "row remapping failed")


def remap_pending(h: History) -> Iterator[Finding]:
    """Judge by whether a remapped row waits for a reset: harmless, unless it was remapped just now."""
    if h.flag(Name.REMAP_PENDING):
        now = any(event.code == 63 for event in h.xids())  # noqa: PLR2004 - XID: memory remapping event
        yield Finding(Class.DEGRADE if now else Class.OBSERVE, "row remapping is pending" + ", with XID 63" * now)


def remapped_rows(h: History) -> Iterator[Finding]:
    """Judge by whether many rows were remapped, or a bank has few left to remap to."""
    if (rows := h.number(Name.REMAPPED_ROWS) or 0) > h.limits.remapped_rows:
        yield Finding(
            Class.DEGRADE, f"{rows:g} rows remapped for uncorrectable errors, more than {h.limits.remapped_rows}"
        )
    if banks := h.number(Name.REMAP_EXHAUSTED) or 0:
        yield Finding(Class.DEGRADE, f"{banks:g} banks with few or no rows left to remap to")


def retired_pages(h: History) -> Iterator[Finding]:
    """Judge by whether many pages are retired."""
    if (pages := h.number(Name.RETIRED_PAGES) or 0) >= h.limits.retired_pages:
        yield Finding(Class.DRAIN, f"{pages:g} pages retired, {h.limits.retired_pages} or more")


def ecc_corrected(h: History) -> Iterator[Finding]:
    """Judge by corrected errors of memory since the baseline, where they are many."""
    bounds = ((Name.ECC_CORRECTED_DRAM, h.limits.corrected_dram), (Name.ECC_CORRECTED_SRAM, h.limits.corrected_sram))
    for kind, most in bounds:
        for r in h.known(kind):
            if (rise := h.baseline.rise(r)) > most:
                yield Finding(
                    Class.DEGRADE, f"{rise:g} corrected ECC errors since the baseline, more than {most}", kind
                )


def temperature(h: History) -> Iterator[Finding]:
    """Judge by how far the device is from shutting down for heat, and whether it is above what it should run at."""
    hot, shutdown = h.number(Name.TEMPERATURE), _said(h, Name.TEMPERATURE_SHUTDOWN)
    most = _said(h, Name.TEMPERATURE_MAX)
    margin, margin_shutdown, margin_max = (
        h.number(Name.MARGIN),
        _said(h, Name.MARGIN_SHUTDOWN),
        h.number(Name.MARGIN_MAX),
    )
    left = [shutdown - hot] if hot is not None and shutdown is not None else []
    left += [margin - margin_shutdown] if margin is not None and margin_shutdown is not None else []
    if left and min(left) <= h.limits.shutdown_margin:
        yield Finding(Class.DRAIN, f"{min(left):g} C from the temperature of shutdown")
    elif (hot is not None and most is not None and hot > most) or (
        margin is not None and margin_max is not None and margin < margin_max
    ):
        yield Finding(Class.DEGRADE, "hotter than the highest temperature of operation")


def _said(h: History, kind: str) -> float | None:
    """Give a number for which 0 means that the driver does not say it."""
    return h.number(kind) or None


def memory_temperature(h: History) -> Iterator[Finding]:
    """Judge by whether the memory is above what it should run at."""
    hot, most = h.number(Name.MEMORY_TEMPERATURE), _said(h, Name.MEMORY_TEMPERATURE_MAX)
    if hot is not None and most is not None and hot > most:
        yield Finding(Class.DEGRADE, f"memory at {hot:g} C, above {most:g} C")


def slow_down(h: History) -> Iterator[Finding]:
    """Judge by whether the hardware has slowed itself down for most of ten minutes, and no other of the host did."""
    enough = h.limits.slow_minutes
    if (minutes := h.slow_minutes(SLOW_REASONS)) >= enough:
        others = [d for d in sorted(h.others) if h.slow_minutes(SLOW_REASONS, d) >= enough]
        evidence = f"slowed down by hardware in {minutes} of 10 minutes"
        if others:
            yield Finding(Class.DEGRADE, f"{evidence}, as {', '.join(others)}: cooling or power of the host")
        else:
            yield Finding(Class.DRAIN, evidence)
    elif (minutes := h.slow_minutes(SW_THERMAL)) >= enough:
        yield Finding(Class.DEGRADE, f"slowed down by the driver for heat in {minutes} of 10 minutes")


def nvlink_state(h: History) -> Iterator[Finding]:
    """Judge by whether links that were up are down."""
    for r in h.known(Name.NVLINK_STATE):
        if r.number == 0 and h.baseline.was_true(r):
            yield Finding(_linked(h), f"{r.name} is down and was up", r.name.partition(".")[2])


def nvlink_errors(h: History) -> Iterator[Finding]:
    """Judge by how fast the errors of links rise; the same errors at a lower rate only degrade."""
    for kind, seconds, most in (
        (Name.NVLINK_REPLAY, MINUTE, h.limits.link_errors),
        (Name.NVLINK_RECOVERY, MINUTE, h.limits.link_errors),
        (Name.NVLINK_CRC, 1.0, h.limits.link_crc),
    ):
        for r in h.known(kind):
            rise, elapsed = h.rise(r.name, MINUTE)
            # Not divided: 31 in a minute is 31, not a little more.
            if rise and rise * seconds >= most * max(elapsed, seconds):
                yield Finding(_linked(h), f"{r.name}: {rise:g} errors in {elapsed:g} s", r.name)
            elif h.rise(r.name, h.limits.remember)[0]:
                yield Finding(Class.DEGRADE, f"{r.name} has risen", r.name)


def nvlink_ber(h: History) -> Iterator[Finding]:
    """Judge by whether a link corrupts more bits than it may."""
    for r in h.known(Name.NVLINK_BER):
        if (r.number or 0.0) > h.limits.bit_error_rate:
            yield Finding(Class.DEGRADE, f"{r.name}: {r.number:g} errors a bit", r.name)


def fabric(h: History) -> Iterator[Finding]:
    """Judge by the fabric's health summary."""
    value = h.number(Name.FABRIC)
    if value in FABRIC:
        row = FABRIC[int(value)]
        yield Finding(row.cls if h.limits.links else Class.DEGRADE, f"fabric: {row.words}", str(int(value)))


def _linked(h: History) -> Class:
    """Trouble with links is worth leaving a device only where the cluster uses them."""
    return Class.DRAIN if h.limits.links else Class.DEGRADE


def pcie(h: History) -> Iterator[Finding]:
    """Judge by whether the bus replays too much, or is narrower than it could be."""
    width, most = _said(h, Name.PCIE_WIDTH), h.number(Name.PCIE_WIDTH_MAX)
    generation = h.number(Name.PCIE_GENERATION)
    if width is not None and most is not None and width < most:
        yield Finding(Class.DEGRADE, f"PCIe x{width:g} of x{most:g}", "width")
    if width is not None and generation is not None:
        rise, elapsed = h.rise(Name.PCIE_REPLAYS, MINUTE)
        allowed = math.ceil(PCIE_REPLAYS[min(max(int(generation), 1), max(PCIE_REPLAYS))] * width)
        if rise * MINUTE > allowed * max(elapsed, MINUTE):
            yield Finding(
                Class.DEGRADE, f"{rise:g} PCIe replays in {elapsed:g} s, {allowed} a minute allowed", "replays"
            )


def inforom(h: History) -> Iterator[Finding]:
    """Judge by whether the device's own store of facts is intact."""
    if any(r.number == 0 for r in h.known(Name.INFOROM)):
        yield Finding(Class.DEGRADE, "the InfoROM is corrupted")
