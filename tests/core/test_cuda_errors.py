"""Errors of tasks: every code, how each library words it, and where in an exception it may hide."""

from __future__ import annotations

import traceback
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core.cuda_errors import (
    EXCERPT,
    TABLE,
    UNKNOWN,
    Kind,
    TaskFault,
    classify,
    with_overrides,
)
from dask_resilient.core.faults import Class, Suspect
from dask_resilient.core.messages import texts
from dask_resilient.errors import SettingError

STICKY = {201, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911}
NOT_STICKY = {2, 46, 100, 101, 215, 720, 800, 802, 803, 900, 901, 999}
TASK = {215, 700, 710, 716, 717, 718, 719, 720, 800, 900, 901}
DEVICE = {214, 220}
"""Copied from the reference and not from the table."""

ADDRESS = "cudaErrorIllegalAddress: an illegal memory access was encountered"


def found(said: Any) -> TaskFault:
    fault = classify(said)
    assert fault is not None
    return fault


@pytest.mark.parametrize("code", sorted(STICKY | NOT_STICKY))
def test_each_code_asks_for_what_the_reference_says(code: int) -> None:
    """214 leaves the device, other sticky ones and "unknown error" the process, the rest nothing."""
    row = TABLE[code]
    cls = Class.EVICT if code == 214 else Class.KILL if code in STICKY | {999} else Class.OBSERVE
    suspect = Suspect.TASK if code in TASK else Suspect.DEVICE if code in DEVICE else Suspect.UNKNOWN
    for said in (f"X('{row.name}: {row.text}')", f"CUDA_ERROR_{row.result}"):
        fault = found(said)
        assert (fault.code, fault.name, fault.cls, fault.sticky, fault.suspect) == (
            *(code, row.name, cls, code in STICKY, suspect),
        )
        assert fault.kind is (Kind.ALLOCATION if code == 2 else Kind.CUDA)
        assert fault.source == row.source
    assert row.text == "" or found(f"CUDA error: {row.text}").code == code


def test_the_table_has_no_row_that_the_reference_lacks() -> None:
    """And says of what is assumed that it is."""
    assert set(TABLE) == STICKY | NOT_STICKY
    assert {code for code, row in TABLE.items() if "assumed" in row.source} == {201, 214, 220, 709}


ILLEGAL = "cudaErrorIllegalAddress an illegal memory access was encountered"

CODES: dict[str, tuple[int | None, Class, str]] = {
    "CuPy": (700, Class.KILL, f"CUDARuntimeError('{ADDRESS}')"),
    "CuPy driver": (719, Class.KILL, "CUDADriverError('CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure')"),
    "numba": (
        *(700, Class.KILL),
        "CudaAPIError(<CUresult.CUDA_ERROR_ILLEGAL_ADDRESS: 700>, 'Call to cuX results in CUDA_ERROR_ILLEGAL_ADDRESS')",
    ),
    "numba, as text": (
        *(214, Class.EVICT),
        "[<CUresult.CUDA_ERROR_ECC_UNCORRECTABLE: 214>] Call to cuX results in CUDA_ERROR_ECC_UNCORRECTABLE",
    ),
    "numba, by number": (715, Class.KILL, "[715] Call to cuMemcpyDtoH results in UNKNOWN_CUDA_ERROR"),
    "cuda.core": (214, Class.EVICT, "CUDAError('cudaErrorECCUncorrectable: This indicates that an uncorrectable')"),
    "RMM": (
        719,
        Class.KILL,
        "RuntimeError('CUDA error at: x.cpp:42: cudaErrorLaunchFailure unspecified launch failure')",
    ),
    "RMM, in MemoryError": (
        *(700, Class.KILL),
        f"MemoryError('std::bad_alloc: CUDA error (failed to allocate 8 bytes) at: x:1: {ILLEGAL}')",
    ),
    "RMM, in MemoryError without a size": (
        *(214, Class.EVICT),
        "MemoryError('std::bad_alloc: CUDA error at: x:1: cudaErrorECCUncorrectable uncorrectable ECC error')",
    ),
    "cuDF": (
        *(716, Class.KILL),
        "RuntimeError('CUDA error encountered at: x.cu:7: 716 cudaErrorMisalignedAddress misaligned address')",
    ),
    "cuDF, fatal": (700, Class.KILL, f"RuntimeError('Fatal CUDA error encountered at: x.cu:7: 700 {ILLEGAL}')"),
    "cuDF, fatal and else harmless": (
        *(None, Class.KILL),
        "RuntimeError('Fatal CUDA error encountered at: x.cu:7: 1 cudaErrorInvalidValue invalid argument')",
    ),
    "cuDF, fatal without a name": (None, Class.KILL, "RuntimeError('Fatal CUDA error encountered at: x.cu:7')"),
    "thrust in cuDF": (700, Class.KILL, f"RuntimeError('for_each: failed to synchronize: {ADDRESS}')"),
    "by text": (710, Class.KILL, "RuntimeError('CUDA error: device-side assert triggered\\nCUDA kernel errors')"),
    "a number without a row": (333, Class.OBSERVE, "[333] Call to cuX results in UNKNOWN_CUDA_ERROR"),
    "an error of use": (None, Class.OBSERVE, "CUDARuntimeError('cudaErrorInvalidValue: invalid argument')"),
    "NCCL with a number": (700, Class.KILL, "RuntimeError(\"unhandled cuda error: Cuda failure 700 'an illegal'\")"),
    "NCCL with a text": (
        *(214, Class.KILL),
        "RuntimeError(\"unhandled cuda error: Cuda failure 'uncorrectable ECC error encountered'\")",
    ),
}
"""How libraries word errors of CUDA: code, class, text."""

MEMORY = {
    "CuPy": "OutOfMemoryError('Out of memory allocating 1,024 bytes (allocated so far: 2,048 bytes).')",
    "CuPy, by code": "CUDARuntimeError('cudaErrorMemoryAllocation: out of memory')",
    "numba": "[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY",
    "RMM": "MemoryError('std::bad_alloc: out_of_memory: CUDA error at: x:1: cudaErrorMemoryAllocation out of memory')",
    "RMM pool": "MemoryError('std::bad_alloc: out_of_memory: RMM failure at:x:1: Maximum pool size exceeded')",
    "RMM arena": "MemoryError('std::bad_alloc: RMM failure at:x:1: Maximum pool size exceeded')",
    "C++": "MemoryError('std::bad_alloc')",
}
"""How they word that there is no memory."""

COMMUNICATION = {
    "NCCL of CuPy": "NcclError('NCCL_ERROR_UNHANDLED_CUDA_ERROR: unhandled cuda error')",
    "NCCL": "RuntimeError('unhandled cuda error (run with NCCL_DEBUG=INFO for details)')",
    "NCCL, system": "RuntimeError('unhandled system error (run with NCCL_DEBUG=INFO for details)')",
    "NCCL, internal": "RuntimeError('internal error - please report this issue to the NCCL developers')",
    "NCCL, remote": "RuntimeError('remote process exited or there was a network error')",
    "NCCL, timeout": "RuntimeError('NCCL operation timed out after 600 s')",
    "UCX 1": "UCXError('Input/output error')",
    "UCX 2": "UCXError('Endpoint timeout')",
    "UCX 3": "UCXXConnectionResetError('Connection reset by remote peer')",
    "UCX 4": "UCXUnreachableError('Destination is unreachable')",
    "UCX 5": "UCXNotConnectedError('Endpoint is not connected')",
    "UCX 6": "UCXCanceledError('Request canceled')",
    "ucxx": "RuntimeError('Endpoint 0x7f00 error: Input/output error')",
    "distributed-ucxx": "CommClosedError(\"Connection closed by writer.\\nInner exception: UCXCanceledError('x')\")",
    "distributed-ucxx, closed": "CommClosedError('UCX Endpoint is closed')",
    "distributed-ucxx, sending": "CommClosedError('Endpoint is closed -- unable to send message')",
}
"""How they word that something between two devices failed."""

WORDINGS = [*(said for *_, said in CODES.values()), *MEMORY.values(), *COMMUNICATION.values()]


@pytest.mark.parametrize(("code", "cls", "said"), CODES.values(), ids=CODES)
def test_each_library_is_understood(code: int | None, cls: Class, said: str) -> None:
    """By the text, whatever the type is."""
    fault = found(said)
    assert (fault.code, fault.kind, fault.cls, fault.text) == (code, Kind.CUDA, cls, said)


@pytest.mark.parametrize("said", MEMORY.values(), ids=MEMORY)
def test_a_lack_of_memory_is_no_signal_of_health(said: str) -> None:
    """Only RMM's own words for it are one: its MemoryError may carry any error of CUDA."""
    fault = found(said)
    assert (fault.kind, fault.cls, fault.sticky, fault.suspect) == (
        *(Kind.ALLOCATION, Class.OBSERVE, False, Suspect.UNKNOWN),
    )


@pytest.mark.parametrize("said", COMMUNICATION.values(), ids=COMMUNICATION)
def test_an_error_between_devices_does_not_indict_who_reports_it(said: str) -> None:
    """The other end may be at fault."""
    fault = found(said)
    assert (fault.kind, fault.code, fault.cls, fault.sticky, fault.suspect) == (
        *(Kind.COMMUNICATION, None, Class.OBSERVE, False, Suspect.UNKNOWN),
    )


def test_a_fault_quotes_the_beginning_of_what_was_said() -> None:
    """A task may say megabytes."""
    assert found(f"{ADDRESS} {'x' * 10_000}").text == f"{ADDRESS} {'x' * 10_000}"[:EXCERPT]


def test_both_ends_of_a_long_message_are_looked_at() -> None:
    """A library puts the code first, or after what it was doing; the middle is the user's."""
    table = "a table row\n" * 10_000
    assert found(f"{ADDRESS}\n{table}").code == found(f"{table}{ADDRESS}").code == 700
    assert classify(f"{table}{ADDRESS}\n{table}") is None


@pytest.mark.parametrize(
    "said",
    [
        "ValueError('unknown error')",
        "OSError(5, 'Input/output error')",
        "ConnectionResetError(104, 'Connection reset by peer')",
        "MemoryError()",
        "MemoryError('Unable to allocate 8.00 GiB for an array')",
        "TimeoutError('timed out')",
        "CancelledError('Request canceled')",
        "KeyError('700')",
        "RuntimeError('there is no cuda here, but an out of memory feeling')",
        "",
    ],
)
def test_other_errors_have_nothing_to_do_with_a_device(said: str) -> None:
    """Words that files, sockets and users have too count only beside a name of CUDA, NCCL or UCX."""
    assert classify(said) is None


def test_an_illegal_address_in_nccl_blames_nobody_yet() -> None:
    """The process is dead, but the access may have been to a peer; even ECC does not leave the reporter's device."""
    fault = found(CODES["NCCL with a number"][2])
    assert (fault.suspect, fault.sticky, fault.cls) == (Suspect.UNKNOWN, True, Class.KILL)
    fault = found(CODES["NCCL with a text"][2])
    assert (fault.suspect, fault.sticky, fault.cls) == (Suspect.UNKNOWN, True, Class.KILL)


def test_fatal_makes_any_code_sticky() -> None:
    """cuDF has asked the device twice before it says so."""
    assert found(CODES["cuDF, fatal and else harmless"][2]).sticky
    fault = found("Fatal CUDA error encountered at: x: 2 cudaErrorMemoryAllocation out of memory")
    assert (fault.kind, fault.sticky, fault.cls) == (Kind.CUDA, True, Class.KILL)


def test_an_explanation_that_names_other_codes_does_not_confuse() -> None:
    """The first code of a message is its own."""
    said = "cudaErrorInvalidValue: see also cudaErrorIllegalAddress and cudaErrorECCUncorrectable"
    assert found(said).name == "cudaErrorInvalidValue"


# -- where it may hide -----------------------------------------------------------------------------------------------


def _raise(error: BaseException) -> None:
    raise error


def _wrapped(inner: BaseException, how: str) -> BaseException:
    """Raise something of a user around an error."""
    try:
        try:
            _raise(inner)
        except BaseException as e:
            if how == "cause":
                raise ValueError("the task failed") from e
            if how == "hidden":
                raise ValueError("the task failed") from None
            raise ValueError("the task failed")  # noqa: B904 - a context, as users have it
    except ValueError as e:
        return e


@pytest.mark.parametrize("how", ["cause", "context", "hidden"])
def test_a_code_is_found_through_causes_and_contexts(how: str) -> None:
    """Also where the user hid it: a context that died stays dead."""
    error = _wrapped(RuntimeError(ADDRESS), how)
    assert found(texts(error)).code == 700
    assert classify(repr(error)) is None


def test_a_code_is_found_in_groups_and_notes() -> None:
    """As task groups and libraries leave them."""
    group = ExceptionGroup("several", [ValueError("x"), ExceptionGroup("inner", [RuntimeError(ADDRESS)])])
    assert found(texts(group)).code == 700
    noted = ValueError("the task failed")
    noted.add_note(f"device said {ADDRESS}")
    assert found(texts(noted)).code == 700


def test_an_exception_without_a_text_hides_nothing() -> None:
    """A user's own may fail to say what it is."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert found(texts(_wrapped(RuntimeError(ADDRESS), "cause"))).code == 700
    mute = Mute()
    mute.__cause__ = RuntimeError(ADDRESS)
    assert found(texts(mute)).code == 700


def test_exceptions_that_lead_back_to_themselves_end() -> None:
    """Causes can form a ring."""
    one, two = ValueError("one"), RuntimeError(ADDRESS)
    one.__cause__, two.__cause__ = two, one
    assert len(texts(one)) == 2


@pytest.mark.parametrize("how", ["cause", "context"])
def test_a_code_is_found_in_a_formatted_traceback(how: str) -> None:
    """With all that stands around it."""
    text = "".join(traceback.format_exception(_wrapped(RuntimeError(ADDRESS), how)))
    assert found(text).code == 700
    group = ExceptionGroup("several", [_wrapped(RuntimeError(ADDRESS), how), KeyError("x")])
    assert found("".join(traceback.format_exception(group))).code == 700


def test_source_lines_of_a_traceback_are_no_errors() -> None:
    """Code that handles errors names their codes."""
    try:
        if "cudaErrorIllegalAddress" != "cudaErrorECCUncorrectable":  # noqa: PLR0133
            raise ValueError("cudaErrorInvalidValue"[:4])
    except ValueError as e:
        error = e
    assert "cudaErrorInvalidValue" in "".join(traceback.format_tb(error.__traceback__))
    for text in (traceback.format_exception(error), traceback.format_tb(error.__traceback__)):
        assert classify("".join(text)) is None
    group = ExceptionGroup("several", [error])
    assert classify("".join(traceback.format_exception(group))) is None


def test_the_worst_of_a_chain_counts() -> None:
    """A failed allocation after a sticky error is no lack of memory, whichever is the cause."""
    oom, sticky = "MemoryError: std::bad_alloc: out_of_memory: x", f"RuntimeError: {ADDRESS}"
    assert found([oom, sticky]).code == found([sticky, oom]).code == 700
    assert found([sticky, "cudaErrorECCUncorrectable"]).code == 214


def test_of_two_as_bad_the_innermost_is_named() -> None:
    """There it began; a formatted traceback has it first."""
    outer, inner = "cudaErrorLaunchFailure", "cudaErrorIllegalAddress"
    assert found([outer, inner]).code == 700
    error = _wrapped(RuntimeError(inner), "cause")
    error.args = (outer,)
    assert found("".join(traceback.format_exception(error))).code == 700
    assert found(texts(error)).code == 700


# -- a user's file ---------------------------------------------------------------------------------------------------


def test_a_file_changes_rows_and_adds_some() -> None:
    """A row that it adds is found by its name."""
    changes = {700: {"class": "evict", "suspect": "device"}, 223: {"name": "cudaErrorNew", "class": "kill"}}
    table = with_overrides(changes, "site.yaml")
    assert table[700] == replace(TABLE[700], cls=Class.EVICT, suspect=Suspect.DEVICE, source="site.yaml")
    fault = classify("cudaErrorNew: x", table)
    assert fault is not None
    assert (fault.code, fault.cls, fault.source) == (223, Class.KILL, "site.yaml")
    assert table[223] == replace(UNKNOWN, code=223, name="cudaErrorNew", cls=Class.KILL, source="site.yaml")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ("700", "site.yaml: '700' must be a mapping of CUDA error codes"),
        ({"x": {}}, "site.yaml: CUDA error 'x' is no code"),
        ({700: {"sticky": "no"}}, "site.yaml: CUDA error 700: sticky = 'no' must be true or false"),
        ({700: {"kind": "cuda"}}, "site.yaml: CUDA error 700 has no field 'kind'"),
        ({700: {"class": "fatal"}}, "site.yaml: CUDA error 700: class = 'fatal' must be one of"),
    ],
)
def test_a_file_that_cannot_work_is_refused_with_row_and_field(changes: Any, says: str) -> None:
    """One clear sentence."""
    with pytest.raises(SettingError, match=says):
        with_overrides(changes, "site.yaml")


MESSAGES = st.lists(st.sampled_from([*WORDINGS, "ValueError('x')", ""]), max_size=5)


@given(MESSAGES, st.sampled_from(WORDINGS), st.integers(0, 5))
def test_one_more_message_never_makes_it_milder(messages: list[str], more: str, at: int) -> None:
    """Wherever it stands in the chain."""
    before = classify(messages)
    after = found([*messages[:at], more, *messages[at:]])
    assert before is None or after.cls.rank >= before.cls.rank


@given(st.text(max_size=200))
def test_any_text_can_be_classified(text: str) -> None:
    """Whatever a task says, and a text without letters of CUDA says nothing."""
    fault = classify(text)
    assert fault is None or fault.text
