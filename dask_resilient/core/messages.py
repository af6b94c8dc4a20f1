"""What an exception says, wherever it says it: causes and contexts, groups, notes, and formatted tracebacks."""

from __future__ import annotations

import re
from collections.abc import Iterator

LOOKED_AT = 4_000
"""Characters at each end of a message that are looked at: users print whole tables into theirs."""


def texts(error: BaseException) -> list[str]:
    """Give the texts of an exception, of its notes, causes and contexts, and of the members of groups, outermost first.

    Also what ``raise ... from None`` hides: a context that died stays dead.
    """
    found, seen, stack = [], set(), [error]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        found.append("\n".join([f"{type(current).__name__}: {_said(current)}", *_notes(current)]))
        inner = [current.__context__, current.__cause__]
        if isinstance(current, BaseExceptionGroup):
            inner.extend(reversed(current.exceptions))
        stack.extend(other for other in inner if other is not None)
    return found


def _notes(error: BaseException) -> list[str]:
    """Give the notes of an exception that are texts; users may put anything there."""
    notes = getattr(error, "__notes__", ())
    return [note for note in notes if isinstance(note, str)] if isinstance(notes, list | tuple) else []


def _said(error: BaseException) -> str:
    """Give the text of one exception; those of users may fail even at that."""
    try:
        return str(error)
    except BaseException:  # also what would end the process, of which this is no business of
        return ""


def sendable(text: str, length: int) -> str:
    """Give the beginning of a text in a form that can be sent.

    Names of files that are no UTF-8 have half characters in Python, and messages with one of those end the connection.
    """
    return text[:length].encode(errors="backslashreplace").decode()


LINE = 500
"""Characters of a line in logs, rows and reports: words of operators, of probes and of errors."""


def one_line(text: str, length: int = LINE) -> str:
    """Give the beginning of a text as one line that can be printed and sent, for logs and rows.

    What moves a terminal's cursor or ends a text (escapes, NUL, marks of direction) becomes a space.
    """
    seen = "".join(char if char.isprintable() else " " for char in text[: 2 * length])
    line = " ".join(seen.split())
    cut = len(line) > length or len(text) > 2 * length
    return line[: length - 3].rstrip() + "..." if cut else line


_FRAME = re.compile(r'^ *(?:\| *)?File "')
_MARGIN = re.compile(r"^ *\| ?")
_BETWEEN = re.compile(r"direct cause of the following exception:|another exception occurred:|^ *\+[-+]")


def messages(text: str) -> Iterator[str]:
    """Give the messages of a text, outermost first, without the source lines of tracebacks: they may name codes."""
    pieces: list[list[str]] = [[]]
    inside = False
    for line in text.splitlines():
        if _FRAME.match(line):
            inside = True
        elif _BETWEEN.search(line):
            pieces.append([])
        elif not (inside and _MARGIN.sub("", line).startswith("    ")):
            inside = False
            pieces[-1].append(line)
    return (_ends("\n".join(piece)) for piece in reversed(pieces))


def _ends(message: str) -> str:
    return message if len(message) <= 2 * LOOKED_AT else message[:LOOKED_AT] + "\n" + message[-LOOKED_AT:]
