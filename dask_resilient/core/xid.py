"""The XIDs of NVIDIA's driver: what each means for a worker, and which of several at once is the cause.

Codes, names and meanings are those of "XID Errors" (NVIDIA's XID catalogue); codes that it lacks are from the driver's
open kernel modules (nverror.h) or from "GPU Operational Events". Classes and suspects are this package's own judgement
on NVIDIA's immediate action, with the practice of DCGM, NVSentinel and gpud beside it. What is left to a human is that
immediate action and what the catalogue's trigger conditions add to it; where it has neither, nothing is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from dask_resilient.core.faults import Class, Suspect, overridden, together
from dask_resilient.core.fixes import Fix
from dask_resilient.core.nvml import recovery_action, recovery_in

COALESCE = 5.0
"""Seconds within which events of one device belong together. Source: the Delta study ("Story of Two GPUs"), which
coalesces identical errors within 5 s."""

CATALOGUE, NVERROR = "NVIDIA XID catalogue", "NVIDIA open kernel modules, nverror.h"
OPERATIONAL = "NVIDIA GPU Operational Events"

O, D, K, R, E = Class.OBSERVE, Class.DEGRADE, Class.KILL, Class.DRAIN, Class.EVICT  # noqa: E741 - columns of a table
F, TASK, DEVICE, NOBODY = Fix, Suspect.TASK, Suspect.DEVICE, Suspect.UNKNOWN


@dataclass(frozen=True, slots=True)
class XidRow:
    """One XID."""

    changeable: ClassVar[Mapping[str, type]] = {
        **dict.fromkeys(("class", "other", "repeat", "fatal"), Class),
        **dict.fromkeys(("name", "meaning"), str),
        **dict.fromkeys(("nvlink", "consequence"), bool),
        "suspect": Suspect,
    }

    code: int
    name: str
    """NVIDIA's own, but for engines that share a row."""
    meaning: str
    cls: Class
    """KILL counts where the XID names this process."""
    suspect: Suspect
    fix: Fix
    """What a human has to do: NVIDIA's immediate action, where the catalogue has one."""
    other: Class = Class.OBSERVE
    """What KILL becomes where the XID names another process, or none."""
    repeat: Class | None = None
    """What it becomes from the second incident in a day on one device."""
    fatal: Class | None = None
    """What it becomes where the line of the kernel log says "Fatal"."""
    nvlink: bool = False
    """Whether it is about links between devices: without traffic on them it only degrades."""
    consequence: bool = False
    """Whether it follows from something else: never the primary cause beside another XID."""
    source: str = CATALOGUE

    @property
    def readable(self) -> bool:
        """Say whether what the process holds can still be read."""
        return self.cls.readable


def _rows(codes: Iterable[int], name: str, *rest: object, **more: object) -> Iterator[XidRow]:
    """Give the rows of engines that a device has many of; a star in the name is their number."""
    for number, code in enumerate(codes):
        yield XidRow(code, name.replace("*", str(number)), *rest, **more)  # type: ignore[arg-type]


_COPY_ENGINES = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
_MEDIA_ENGINES = (82, 83, 84, 88, 89, *range(96, 106), 139)

_ALL = (
    XidRow(8, "RC_FIFO_ERROR_IDLE_TIMEOUT", "GPU stopped processing", K, NOBODY, F.APP),
    XidRow(11, "RC_GR_ERROR_MISSING_HW", "invalid or corrupted push buffer stream", K, TASK, F.APP),
    XidRow(13, "RC_GR_EXCEPTION", "graphics engine exception", K, TASK, F.APP),
    XidRow(14, "RC_FAKE_ERROR", "unused", O, NOBODY, F.NOTHING),
    XidRow(25, "RC_GR_ILLEGAL_NOTIFY", "invalid or illegal push buffer stream", K, TASK, F.APP),
    XidRow(31, "RC_FIFO_ERROR_MMU_ERR_FLT", "GPU memory page fault", K, TASK, F.APP),
    XidRow(32, "RC_PBDMA_ERROR", "invalid or corrupted push buffer stream", K, NOBODY, F.APP, repeat=R),
    XidRow(37, "RC_FECS_ERR_UNIMP_FIRMWARE_METHOD", "driver firmware error", O, NOBODY, F.NOTHING),
    XidRow(38, "RC_FECS_ERR_WATCHDOG_TIMEOUT", "driver firmware error", O, NOBODY, F.NOTHING, repeat=D),
    *_rows(_COPY_ENGINES, "RC_CE*_ERROR", "copy engine exception", K, NOBODY, F.APP, repeat=R),
    XidRow(43, "RC_RESETCHANNEL_VERIF_ERROR", "GPU stopped processing", K, TASK, F.NOTHING, consequence=True),
    XidRow(44, "RC_GR_FAULT_DURING_CTXSW", "fault during context switch", O, NOBODY, F.NOTHING, repeat=D),
    XidRow(45, "RC_PREEMPTIVE_REMOVAL", "cleanup, due to previous errors", K, NOBODY, F.OTHER, consequence=True),
    XidRow(46, "RC_GPU_TIMEOUT_ERROR", "GPU stopped processing", E, DEVICE, F.RESET),
    XidRow(48, "RC_GPU_ECC_DBE", "double bit ECC error", E, DEVICE, F.RESET),
    XidRow(54, "SILENT_RUNNING_PWR_REDUCED_CLOCKING", "auxiliary power is not connected", R, DEVICE, F.SEAT),
    XidRow(60, "RC_SEC2_ERROR", "video processor exception", K, NOBODY, F.APP),
    XidRow(62, "PMU_HALT_ERROR", "internal micro-controller halt", E, DEVICE, F.RESET),
    XidRow(63, "IR_DRAM_RETIREMENT_EVENT", "GPU memory remapping event", O, DEVICE, F.NOTHING),
    XidRow(64, "IR_DRAM_RETIREMENT_FAILURE", "GPU memory remapping failure", R, DEVICE, F.RESET),
    XidRow(66, "RC_FECS_ERR_REG_ACCESS_VIOLATION", "illegal access by driver", O, NOBODY, F.NOTHING),
    XidRow(67, "RC_FECS_ERR_VERIF_VIOLATION", "illegal access by driver", O, NOBODY, F.NOTHING),
    XidRow(68, "RC_NVDEC0_ERROR", "NVDEC0 exception", K, NOBODY, F.APP),
    XidRow(69, "RC_GR_CLASS_ERROR", "graphics engine class error", K, TASK, F.APP),
    XidRow(74, "NVLINK_ERROR", "NVLink error", R, NOBODY, F.LINK, nvlink=True),
    XidRow(78, "VGPU_START_ERROR", "vGPU start error", E, NOBODY, F.UPDATE),
    XidRow(79, "RC_GPU_HAS_FALLEN_OFF_THE_BUS", "GPU has fallen off the bus", E, DEVICE, F.REBOOT),
    XidRow(80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "corrupted data sent to GPU", K, NOBODY, F.APP, repeat=R),
    *_rows(_MEDIA_ENGINES, "NVDEC, NVJPG or OFA engine", "exception of a video, JPEG or flow engine", K, NOBODY, F.APP),
    XidRow(86, "RC_OFA0_ERROR", "OFA exception", K, NOBODY, F.APP),
    XidRow(92, "EXCESSIVE_SBE_INTERRUPTS", "high single-bit ECC error rate", D, DEVICE, F.NOTHING),
    XidRow(93, "IR_ERASE_LIMIT_EXCEEDED", "wear limit of the InfoROM", O, DEVICE, F.NOTHING),
    XidRow(94, "RC_CONTAINED_ERROR", "contained memory error", K, DEVICE, F.LATER, other=D),
    XidRow(95, "RC_UNCONTAINED_ERROR", "uncontained memory error", E, DEVICE, F.RESET),
    XidRow(106, "SMBPBI_TEST_MESSAGE", "test message", O, NOBODY, F.NOTHING),
    XidRow(107, "SMBPBI_TEST_MESSAGE_SILENT", "test message", O, NOBODY, F.NOTHING),
    XidRow(108, "NVLINK_REMOTE_TRANSLATION_ERROR", "unused", O, NOBODY, F.NOTHING),
    XidRow(109, "RC_CTXSW_TIMEOUT_ERROR", "context switch timeout", E, NOBODY, F.RESET),
    XidRow(110, "SEC_FAULT_ERROR", "security fault", E, DEVICE, F.RESET),
    XidRow(119, "GSP_RPC_TIMEOUT", "GSP RPC timeout", E, DEVICE, F.RESET),
    XidRow(120, "GSP_ERROR", "GSP error", E, DEVICE, F.RESET),
    XidRow(121, "C2C_ERROR", "corrected C2C error", O, DEVICE, F.LATER),
    XidRow(136, "ALI_TRAINING_FAIL", "link training failed", R, NOBODY, F.RESET, nvlink=True),
    XidRow(137, "NVLINK_PRIV_ERR", "NVLink privilege error: an access by a peer", K, TASK, F.NOTHING),
    XidRow(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "unrecovered ECC error", E, DEVICE, F.RESET),
    XidRow(141, "RC_FAST_PATH_ERROR", "CUDA fast path error", O, NOBODY, F.NOTHING),
    XidRow(142, "RC_NVENC3_ERROR", "NVENC3 error", R, NOBODY, F.TICKET),
    XidRow(143, "GPU_INIT_ERROR", "GPU initialization error", E, DEVICE, F.RESET),
    XidRow(144, "NVLINK_SAW_ERROR", "NVLink SAW error", O, NOBODY, F.LINK, fatal=E, nvlink=True),
    XidRow(145, "NVLINK_RLW_ERROR", "NVLink RLW error", O, NOBODY, F.LINK, fatal=E, nvlink=True),
    XidRow(146, "NVLINK_TLW_ERROR", "NVLink TLW error", O, NOBODY, F.LINK, fatal=E, nvlink=True),
    XidRow(147, "NVLINK_TREX_ERROR", "NVLink TREX error", O, NOBODY, F.LINK, nvlink=True),
    XidRow(148, "NVLINK_NVLPW_CTRL_ERROR", "NVLink NVLPW_CTRL error", O, NOBODY, F.LINK, nvlink=True),
    XidRow(149, "NVLINK_NETIR_ERROR", "NVLink NETIR error: link down", R, NOBODY, F.LINK, fatal=E, nvlink=True),
    XidRow(150, "NVLINK_MSE_ERROR", "NVLink MSE error", E, NOBODY, F.LINK, nvlink=True),
    XidRow(151, "RC_KEY_ROTATION_ERROR", "key rotation error", E, NOBODY, F.REBOOT),
    XidRow(152, "RC_DLA_SMMU_ERROR", "DLA SMMU error", O, NOBODY, F.NOTHING),
    XidRow(153, "RC_DLA_TIMEOUT", "DLA timeout", O, NOBODY, F.NOTHING),
    XidRow(154, "GPU_RECOVERY_ACTION_CHANGED", "GPU recovery action changed", O, NOBODY, F.OTHER),
    XidRow(155, "NVLINK_SW_DEFINED_ERROR", "NVLink error defined by software", R, NOBODY, F.RESET, nvlink=True),
    XidRow(156, "RESOURCE_RETIREMENT_EVENT", "resource retirement event", R, DEVICE, F.RESET),
    XidRow(157, "RESOURCE_RETIREMENT_FAILURE", "resource retirement failure", D, DEVICE, F.NOTHING),
    XidRow(158, "GPU_FATAL_TIMEOUT", "GPU fatal timeout", E, DEVICE, F.RESET),
    XidRow(159, "RC_CHI_NON_DATA_ERROR", "CHI non-data error", D, NOBODY, F.RESET),
    XidRow(160, "CHANNEL_RETIREMENT_EVENT", "channel retirement event", D, DEVICE, F.NOTHING),
    XidRow(161, "CHANNEL_RETIREMENT_FAILURE", "channel retirement failure", O, DEVICE, F.NOTHING),
    XidRow(162, "PSHC_REENGAGED", "power smoothing is on again", O, NOBODY, F.UNKNOWN),
    XidRow(163, "PSHC_DISENGAGED", "power smoothing is off", O, NOBODY, F.NOTHING),
    XidRow(164, "PSHC_LOW_LIFETIME", "power smoothing: low lifetime", O, DEVICE, F.NOTHING),
    XidRow(165, "PSHC_ZERO_LIFETIME", "power smoothing: lifetime exhausted", D, DEVICE, F.TICKET),
    XidRow(
        166, "NVLINK_SECURE_CRYPTO_ERR", "traffic before a link is set up to encrypt", R, NOBODY, F.UNKNOWN, nvlink=True
    ),
    XidRow(167, "PCIE_FATAL_TIMEOUT", "PCIe fatal timeout", E, DEVICE, F.UNKNOWN),
    XidRow(168, "REDUCED_GPU_MEMORY_CAPACITY", "errors in a write protected region", D, DEVICE, F.UNKNOWN),
    XidRow(169, "SEC2_HALT_ERROR", "internal micro-controller halt", E, DEVICE, F.UNKNOWN),
    XidRow(170, "NVLINK_SECURE_OTHER", "interrupt in confidential computing mode", O, NOBODY, F.UNKNOWN, nvlink=True),
    XidRow(171, "UNCORRECTABLE_DRAM_ERROR", "more detail on XID 48", E, DEVICE, F.OTHER),
    XidRow(172, "UNCORRECTABLE_SRAM_ERROR", "more detail on XID 48", E, DEVICE, F.OTHER),
    XidRow(173, "C2C_FATAL_LINK_FAILURE", "C2C fatal link failure", R, DEVICE, F.UNKNOWN, source=NVERROR),
    XidRow(
        174, "RESETCHANNEL_KILL_PROCESS_SILENT", "process killed", K, NOBODY, F.OTHER, consequence=True, source=NVERROR
    ),
    XidRow(175, "MEMORY_SUBSYSTEM_ERROR", "memory subsystem error", R, DEVICE, F.UNKNOWN, source=NVERROR),
    XidRow(176, "PCIE_CORRECTABLE_ERROR_FAULT", "correctable PCIe errors", D, DEVICE, F.UNKNOWN, source=NVERROR),
    XidRow(185, "SPARING_EVENT", "sparing event", O, DEVICE, F.UNKNOWN, source=OPERATIONAL),
)

Table = Mapping[int, XidRow]

TABLE: Table = {row.code: row for row in _ALL}

UNKNOWN = XidRow(0, "UNKNOWN", "no row in the table", R, NOBODY, F.TICKET, source="no row")
"""What a code without a row is taken for: left, but never as unreadable while the device answers."""

_FATAL = re.compile(r"(?<!non-)(?<!non )\bfatal\b", re.IGNORECASE)
_CONTAINED, _DOUBLE_BIT = 94, {48, 171, 172}


def lookup(code: int, table: Table = TABLE) -> XidRow:
    """Give the row of a code, or what an unknown code is taken for."""
    return table.get(code) or replace(UNKNOWN, code=code)


def with_overrides(changes: object, file: str, table: Table = TABLE) -> dict[int, XidRow]:
    """Give the table with the rows of a user's file; raises `SettingError` naming row and field."""
    return overridden(table, changes, UNKNOWN, "XID", file)


def without_links(table: Table) -> Table:
    """Give the table for a cluster that does not use the links between devices: what they report only degrades."""
    rows = (row for row in table.values() if row.nvlink)
    return {
        **table,
        **{row.code: replace(row, cls=_mild(row.cls), fatal=row.fatal and _mild(row.fatal)) for row in rows},
    }


def _mild(cls: Class) -> Class:
    return min(cls, Class.DEGRADE, key=lambda c: c.rank)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One XID of a device, from NVML or the kernel log."""

    device: str
    code: int
    time: float
    own: bool | None = None
    """Whether it names this process: None where that cannot be told (NVML has no pid, and in a pid namespace the pid of
    the kernel log is the host's)."""
    text: str = ""
    """The line of the kernel log."""


@dataclass(frozen=True, slots=True)
class XidIncident:
    """What one device reported within seconds: one cause and what followed from it."""

    device: str
    events: tuple[XidEvent, ...]
    """In the order of time, each XID once, for the process itself if one of them was."""
    count: int
    """Events before repeats were merged."""
    primary: XidRow
    """The worst row; a consequence only if there is nothing else."""
    cls: Class
    """What all of them ask for: a consequence names no cause, but the process has died of it all the same."""


def incidents(events: Iterable[XidEvent], table: Table = TABLE) -> list[XidIncident]:
    """Make incidents of events, oldest first. Pure (no I/O).

    Events of a device belong together when no more than `COALESCE` seconds lie between one and the next.
    """
    groups: list[list[XidEvent]] = []
    latest: dict[str, list[XidEvent]] = {}
    for event in sorted(events, key=lambda event: event.time):
        group = latest.get(event.device)
        if group is None or event.time - group[-1].time > COALESCE:
            group = latest[event.device] = []
            groups.append(group)
        group.append(event)
    return [_incident(group, table) for group in groups]


def count(events: Iterable[XidEvent], code: int) -> int:
    """Count the incidents of one XID on one device: an event within `COALESCE` seconds of the first is the same one."""
    found, first = 0, float("-inf")
    for time in sorted(event.time for event in events if event.code == code):
        if time - first > COALESCE:
            found, first = found + 1, time
    return found


def _incident(group: list[XidEvent], table: Table) -> XidIncident:
    merged: dict[int, XidEvent] = {}
    for event in group:
        before = merged.setdefault(event.code, event)
        if event.own and not before.own:
            merged[event.code] = replace(before, own=True, text=event.text)
    contained_elsewhere = any(e.code == _CONTAINED and e.own is False for e in group) and not any(
        e.code == _CONTAINED and e.own for e in group
    )
    classes = {code: class_of(event, lookup(code, table)) for code, event in merged.items()}
    if contained_elsewhere:
        # The error was contained, and in another process: this one goes on, on a device that wants a reset.
        classes.update((code, Class.DEGRADE) for code in _DOUBLE_BIT & classes.keys() if classes[code] is Class.EVICT)
    rows = [lookup(code, table) for code in merged]
    causes = [row for row in rows if not row.consequence] or rows
    primary = max(causes, key=lambda row: classes[row.code].rank)
    return XidIncident(group[0].device, tuple(merged.values()), len(group), primary, together(classes.values()))


def class_of(event: XidEvent, row: XidRow) -> Class:
    """Give what one event asks for, taken alone."""
    if row.code == 154 and (action := recovery_in(event.text)) is not None:  # noqa: PLR2004 - the XID of this name
        return recovery_action(action)[1]
    if row.fatal is not None and _FATAL.search(event.text):
        return row.fatal
    if row.cls is Class.KILL and not event.own:
        return row.other
    return row.cls
