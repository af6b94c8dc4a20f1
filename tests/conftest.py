"""Fixtures that tests of several directories share."""

from __future__ import annotations

from tests.support.fakegpu.fixtures import fake_cuda, fake_libraries, gpus

__all__ = ["fake_cuda", "fake_libraries", "gpus"]
