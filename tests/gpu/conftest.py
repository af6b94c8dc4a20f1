"""Fixtures of the tests on a real GPU."""

from __future__ import annotations

import pytest


@pytest.fixture
def cupy():
    """Give CuPy; asked for inside a test, because importing it takes a device."""
    return pytest.importorskip("cupy")
