"""The stage of these tests."""

from __future__ import annotations

import functools

import pytest

from tests.support.scheduler import Stage


@pytest.fixture
def stage(monkeypatch):
    """Give what makes a stage with workers ``a`` and ``b`` on a GPU each; options are those of `Stage`."""
    return functools.partial(Stage, monkeypatch, {"a": "GPU-0", "b": "GPU-1"})
