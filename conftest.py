"""What holds for every test: Dask's configuration, the log, Hypothesis, and what a missing tool means.

A test that needs a tool which a machine may lack asks for it by the fixture `require`, or `pytest.importorskip`: it is
skipped there with the reason, but fails where ``CI=true``, so that no part of the suite can fall silent unnoticed.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import dask
import hypothesis
import pytest
from distributed import LocalCluster

pytest_plugins = ["pytester"]

IN_CI = os.environ.get("CI") == "true"

TOOLS: dict[str, tuple[str, ...]] = {
    "compiler": ("cc", "gcc", "clang"),
    "browser": ("chromium", "chromium-browser", "google-chrome"),
}
"""Programs of which any one will do; every other tool is a Python package."""

MISSING = re.compile(r"Skipped: could not (find|import) ")

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

CONFIG = {
    "distributed.admin.low-level-log-length": 20_000,  # the whole story of a failed test
    "distributed.scheduler.validate": True,
}

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("dev", deadline=None)
hypothesis.settings.load_profile("ci" if IN_CI else "dev")


def pytest_configure() -> None:
    """Let clusters pick a free port for their pages: two on the fixed one are a warning, and here an error."""
    init = LocalCluster.__init__
    names = init.__code__.co_varnames[1 : init.__code__.co_argcount]
    init.__defaults__ = tuple(
        ":0" if name == "dashboard_address" else default
        for name, default in zip(names[-len(init.__defaults__) :], init.__defaults__, strict=True)
    )


@pytest.fixture(autouse=True)
def dask_config() -> Iterator[None]:
    """Give each test a Dask configuration of its own, in this process and in the workers it starts."""
    before = os.environ.copy()
    os.environ.update(
        {f"DASK_{key.upper().replace('-', '_').replace('.', '__')}": str(value) for key, value in CONFIG.items()}
    )
    with dask.config.set(CONFIG):
        yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Capture what the package logs, whatever its level."""
    caplog.set_level(logging.DEBUG, "dask_resilient")
    return caplog


@pytest.fixture
def require() -> Callable[[str], None]:
    """Say that the test needs a tool: ``require("compiler")``, ``require("dask_cuda")``."""

    def require(tool: str) -> None:
        found = any(map(shutil.which, TOOLS[tool])) if tool in TOOLS else importlib.util.find_spec(tool)
        if not found:
            pytest.skip(f"could not find {tool}")

    return require


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge the skip of a test."""
    return not_silent((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Judge the skip of a whole module."""
    return not_silent((yield))


def not_silent(report: Report) -> Report:
    """Turn a skip for a missing tool into a failure where ``CI=true``: by `require`, or by `pytest.importorskip`."""
    if IN_CI and report.skipped and MISSING.search(str(report.longrepr)):
        report.outcome = "failed"
        report.longrepr = f"{report.longrepr}: with CI=true a skip for a missing tool is a failure"
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a CUDA device where there is none, in CI too: that is no tool one can install."""
    if shutil.which("nvidia-smi") is None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
