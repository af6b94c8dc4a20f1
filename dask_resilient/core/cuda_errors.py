"""What the text of a task's exception says about the device: the CUDA error in it, and whom it blames.

Libraries wrap CUDA errors in types of their own, and RMM even in `MemoryError`: hence the code in the text counts, not
the type. Where texts come from is `dask_resilient.core.messages`.

Codes, names and texts are those of CUDA's driver_types.h and cuda.h (12.9 and 13.5). Whether an error is sticky is what
driver_types.h says of it: "the process must be terminated and relaunched"; where it says nothing, the row says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Self

from dask_resilient.core.faults import Class, Suspect, overridden, together
from dask_resilient.core.fixes import Fix
from dask_resilient.core.messages import messages, sendable

HEADER = "CUDA driver_types.h"
ASSUMED = "CUDA driver_types.h; that it is sticky is assumed"

O, K, E = Class.OBSERVE, Class.KILL, Class.EVICT  # noqa: E741 - columns of a table
TASK, DEVICE, NOBODY = Suspect.TASK, Suspect.DEVICE, Suspect.UNKNOWN

EXCERPT = 300
"""Characters of a text that a fault quotes."""


class Kind(StrEnum):
    """What sort of error a text tells of."""

    CUDA = "cuda"
    ALLOCATION = "allocation"
    """Out of memory: says nothing about the device's health."""
    COMMUNICATION = "communication"
    """Between devices: the fault may be at the other end."""


@dataclass(frozen=True, slots=True)
class CudaRow:
    """One CUDA error."""

    changeable: ClassVar[Mapping[str, type]] = {
        **dict.fromkeys(("name", "result", "text"), str),
        "class": Class,
        "suspect": Suspect,
        "sticky": bool,
    }

    code: int
    cls: Class
    sticky: bool
    """Whether every later call of the process fails too, so that nothing in it can be read any more."""
    suspect: Suspect
    name: str
    """Of the runtime API."""
    result: str = ""
    """Of the driver API, without ``CUDA_ERROR_``."""
    text: str = ""
    """What `cudaGetErrorString` gives; empty where it is not relied on."""
    source: str = HEADER
    fix: Fix = Fix.APP
    """What a human has to do. Where it is sticky, what the header says; else judgement."""


_ALL = (
    CudaRow(2, O, False, NOBODY, "cudaErrorMemoryAllocation", "OUT_OF_MEMORY", fix=Fix.JOB),
    CudaRow(46, O, False, NOBODY, "cudaErrorDevicesUnavailable", "DEVICE_UNAVAILABLE", fix=Fix.HOST),
    CudaRow(100, O, False, NOBODY, "cudaErrorNoDevice", "NO_DEVICE", fix=Fix.HOST),
    CudaRow(101, O, False, NOBODY, "cudaErrorInvalidDevice", "INVALID_DEVICE", fix=Fix.HOST),
    CudaRow(201, K, True, NOBODY, "cudaErrorDeviceUninitialized", "INVALID_CONTEXT", source=ASSUMED),
    CudaRow(214, E, True, DEVICE, "cudaErrorECCUncorrectable", "ECC_UNCORRECTABLE", fix=Fix.RESET, source=ASSUMED),
    CudaRow(215, O, False, TASK, "cudaErrorUnsupportedLimit", "UNSUPPORTED_LIMIT", fix=Fix.JOB),
    CudaRow(220, K, True, DEVICE, "cudaErrorNvlinkUncorrectable", "NVLINK_UNCORRECTABLE", fix=Fix.LINK, source=ASSUMED),
    CudaRow(226, K, True, NOBODY, "cudaErrorContained", "CONTAINED"),
    CudaRow(700, K, True, TASK, "cudaErrorIllegalAddress", "ILLEGAL_ADDRESS"),
    CudaRow(702, K, True, NOBODY, "cudaErrorLaunchTimeout", "LAUNCH_TIMEOUT"),
    CudaRow(709, K, True, NOBODY, "cudaErrorContextIsDestroyed", "CONTEXT_IS_DESTROYED", source=ASSUMED),
    CudaRow(710, K, True, TASK, "cudaErrorAssert", "ASSERT"),
    CudaRow(714, K, True, NOBODY, "cudaErrorHardwareStackError", "HARDWARE_STACK_ERROR"),
    CudaRow(715, K, True, NOBODY, "cudaErrorIllegalInstruction", "ILLEGAL_INSTRUCTION"),
    CudaRow(716, K, True, TASK, "cudaErrorMisalignedAddress", "MISALIGNED_ADDRESS"),
    CudaRow(717, K, True, TASK, "cudaErrorInvalidAddressSpace", "INVALID_ADDRESS_SPACE"),
    CudaRow(718, K, True, TASK, "cudaErrorInvalidPc", "INVALID_PC"),
    CudaRow(719, K, True, TASK, "cudaErrorLaunchFailure", "LAUNCH_FAILED"),
    CudaRow(720, O, False, TASK, "cudaErrorCooperativeLaunchTooLarge", "COOPERATIVE_LAUNCH_TOO_LARGE", fix=Fix.JOB),
    CudaRow(721, K, True, NOBODY, "cudaErrorTensorMemoryLeak", "TENSOR_MEMORY_LEAK"),
    CudaRow(800, O, False, TASK, "cudaErrorNotPermitted", "NOT_PERMITTED", fix=Fix.JOB),
    CudaRow(802, O, False, NOBODY, "cudaErrorSystemNotReady", "SYSTEM_NOT_READY", fix=Fix.HOST),
    CudaRow(803, O, False, NOBODY, "cudaErrorSystemDriverMismatch", "SYSTEM_DRIVER_MISMATCH", fix=Fix.UPDATE),
    CudaRow(810, K, True, NOBODY, "cudaErrorMpsClientTerminated", "MPS_CLIENT_TERMINATED"),
    CudaRow(900, O, False, TASK, "cudaErrorStreamCaptureUnsupported", "STREAM_CAPTURE_UNSUPPORTED", fix=Fix.JOB),
    CudaRow(901, O, False, TASK, "cudaErrorStreamCaptureInvalidated", "STREAM_CAPTURE_INVALIDATED", fix=Fix.JOB),
    CudaRow(911, K, True, NOBODY, "cudaErrorExternalDevice", "EXTERNAL_DEVICE"),
    CudaRow(999, K, False, NOBODY, "cudaErrorUnknown", "UNKNOWN"),
)

_TEXTS = {
    2: "out of memory",
    46: "CUDA-capable device(s) is/are busy or unavailable",
    100: "no CUDA-capable device is detected",
    201: "invalid device context",
    214: "uncorrectable ECC error encountered",
    220: "uncorrectable NVLink error detected during the execution",
    226: "Invalid access of peer GPU memory over nvlink or a hardware error",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    709: "context is destroyed",
    710: "device-side assert triggered",
    714: "hardware stack error",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    721: "tensor memory not completely freed",
    802: "system not yet initialized",
    810: "the MPS client has been terminated by the server",
    911: "an async error has occured in external entity outside of CUDA",
    999: "unknown error",
}

TABLE: Mapping[int, CudaRow] = {row.code: replace(row, text=_TEXTS.get(row.code, "")) for row in _ALL}

UNKNOWN = CudaRow(0, O, False, NOBODY, "unknown", source="no row", fix=Fix.JOB)
"""What a CUDA error without a row is taken for: most are mistakes in how the API is used."""


@dataclass(frozen=True, slots=True)
class Wording:
    """How a library words an error that carries no code of CUDA."""

    kind: Kind
    library: str
    pattern: re.Pattern[str]
    source: str


WORDINGS = (
    Wording(Kind.ALLOCATION, "CuPy", re.compile(r"Out of memory allocating [\d,]+ bytes"), "seen with CuPy"),
    Wording(Kind.ALLOCATION, "RMM", re.compile(r"std::bad_alloc: out_of_memory: "), "RMM, detail/error.hpp"),
    Wording(Kind.ALLOCATION, "RMM", re.compile(r"Maximum pool size exceeded"), "RMM, pool and arena memory resource"),
    Wording(Kind.ALLOCATION, "C++", re.compile(r"std::bad_alloc\b(?!:)"), "assumed: a bad_alloc that says no more"),
    Wording(Kind.COMMUNICATION, "NCCL", re.compile(r"NCCL_ERROR_[A-Z_]+"), "CuPy, nccl.pyx"),
    Wording(
        Kind.COMMUNICATION,
        "NCCL",
        re.compile(
            r"unhandled (?:cuda|system) error|internal error - please report this issue to the NCCL developers"
            r"|remote process exited or there was a network error"
        ),
        "NCCL, ncclGetErrorString",
    ),
    Wording(
        Kind.COMMUNICATION, "NCCL", re.compile(r"(?i)\bnccl[^\n]*\btime(?:d )?-?out"), "assumed: time-outs of NCCL"
    ),
    Wording(
        Kind.COMMUNICATION,
        "UCX",
        re.compile(r"Endpoint timeout|Connection reset by remote peer|Endpoint is not connected"),
        "UCX, ucs_status_string",
    ),
    Wording(
        Kind.COMMUNICATION,
        "UCX",
        # Files and sockets word their errors like this too.
        re.compile(r"(?is)(?:\bucx|endpoint 0x).*(?:input/output error|destination is unreachable|request canceled)"),
        "UCX, ucs_status_string, beside a name of UCX",
    ),
    Wording(
        Kind.COMMUNICATION,
        "UCX",
        re.compile(r"UCX Endpoint is closed|Endpoint is closed -- unable to send|Connection closed by writer"),
        "distributed-ucxx",
    ),
)


@dataclass(frozen=True, slots=True)
class TaskFault:
    """What the text of an exception says."""

    kind: Kind
    code: int | None
    """Of CUDA; None where the text has none, or one without a number."""
    name: str
    """Of the CUDA error, or of the library that words it."""
    cls: Class
    sticky: bool
    suspect: Suspect
    source: str
    text: str
    """The beginning of what was classified."""

    def to_dict(self) -> dict[str, Any]:
        """Give plain types for the wire."""
        return {name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave."""
        kinds = {"kind": Kind(fields["kind"]), "cls": Class(fields["cls"]), "suspect": Suspect(fields["suspect"])}
        return cls(**{**fields, **kinds})


def with_overrides(changes: object, file: str, table: Mapping[int, CudaRow] = TABLE) -> dict[int, CudaRow]:
    """Give the table with the rows of a user's file; raises `SettingError` naming row and field."""
    return overridden(table, changes, UNKNOWN, "CUDA error", file)


def classify(said: str | Sequence[str], table: Mapping[int, CudaRow] = TABLE) -> TaskFault | None:
    """Classify what an exception says; None if it has nothing to do with a device. Pure (no I/O).

    Parameters
    ----------
    said
        A text (``repr(e)``, or a formatted traceback), or several, the outermost first.
    table
        The rows, with a user's changes.

    Returns
    -------
    The worst fault of all messages; of equals the innermost, since that is where it began.
    """
    pieces = [piece for text in ([said] if isinstance(said, str) else said) for piece in messages(text)]
    faults = [fault for piece in pieces if (fault := _fault(piece, table)) is not None]
    return max(reversed(faults), key=lambda fault: (fault.cls.rank, fault.sticky), default=None)


_NAME = re.compile(r"cudaError[A-Z]\w+|CUDA_ERROR_[A-Z0-9_]+")
_NUMBER = re.compile(r"\[(\d{1,3})\] Call to cu\w+ results in|[Cc]uda failure (\d{1,3})\b")
_CALLED = re.compile(r"(?i:\bcuda(?: \w+)? (?:error|failure)\b)")
_BEFORE_TEXT = rf"{_CALLED.pattern}[^\n]{{0,200}}?"
_FATAL = "Fatal CUDA error"


def _fault(piece: str, table: Mapping[int, CudaRow]) -> TaskFault | None:
    """Classify one message: by the first code in it, since explanations may name others."""
    wording = next((wording for wording in WORDINGS if wording.pattern.search(piece)), None)
    row = _row(piece, table)
    if row is None:
        return None if wording is None else _worded(wording, piece)
    kind = Kind.ALLOCATION if row.code == 2 else Kind.CUDA  # noqa: PLR2004 - cudaErrorMemoryAllocation
    fault = TaskFault(kind, row.code or None, row.name, row.cls, row.sticky, row.suspect, row.source, _excerpt(piece))
    if _FATAL in piece:
        fault = replace(fault, kind=Kind.CUDA, cls=together([row.cls, Class.KILL]), sticky=True)
    if wording is not None and wording.kind is Kind.COMMUNICATION:
        # The process is as dead as the code says, but the cause may lie at the other end.
        fault = replace(fault, cls=min(fault.cls, Class.KILL, key=lambda c: c.rank), suspect=Suspect.UNKNOWN)
    return fault


def _worded(w: Wording, piece: str) -> TaskFault:
    return TaskFault(w.kind, None, w.library, Class.OBSERVE, False, Suspect.UNKNOWN, w.source, _excerpt(piece))


def _excerpt(piece: str) -> str:
    return sendable(piece.strip(), EXCERPT)


def _row(piece: str, table: Mapping[int, CudaRow]) -> CudaRow | None:
    """Give the row of the first CUDA error that a message names, by name, else by number, else by text."""
    if found := _NAME.search(piece):
        named = (r for r in table.values() if found[0] in {r.name, f"CUDA_ERROR_{r.result}"})
        return next(named, replace(UNKNOWN, name=found[0]))
    if numbered := _NUMBER.search(piece):
        code = int(numbered[1] or numbered[2])
        return table.get(code) or replace(UNKNOWN, code=code, name=f"CUDA error {code}")
    for row in table.values() if _CALLED.search(piece) else ():
        if row.text and re.search(_BEFORE_TEXT + re.escape(row.text), piece):
            return row
    return replace(UNKNOWN, name=_FATAL) if _FATAL in piece else None
