"""Texts of others, as they go to logs and rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_resilient.core.messages import one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("its fan is loud", "its fan is loud"),
        (" a\n\tb\r\n", "a b"),
        ("red \x1b[31m\x00\u202e", "red [31m"),
        ("half \ud800", "half"),
        ("Gerät 东京", "Gerät 东京"),
        ("\n\x00 ", ""),
        ("x" * 20, "x" * 20),
        ("x" * 21, "x" * 17 + "..."),
        ("x" * 10**6, "x" * 17 + "..."),
    ],
)
def test_a_text_becomes_one_line(text: str, line: str) -> None:
    """Of printable characters, and one that was cut says so."""
    assert one_line(text, 20) == line


@given(st.text(max_size=100))
def test_a_line_can_be_printed_and_sent(text: str) -> None:
    """Whatever the text was."""
    line = one_line(text, 20)
    assert len(line) <= 20
    assert line.isprintable()
    assert line.encode().decode() == line
