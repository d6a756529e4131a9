"""What all tests share: one thread a worker, the same seeds before each test, and no skips in CI."""

from __future__ import annotations

import os
import random
from collections.abc import Generator

# Before torch is imported, and for the commands that tests start: two workers on two cores, one thread each.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis
import numpy
import pytest
import torch

# A shared machine stalls now and then, so time is no property to test; the same examples in every run are.
hypothesis.settings.register_profile("regard", deadline=None, derandomize=True)
hypothesis.settings.load_profile("regard")


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
    if os.environ.get("CI") == "true":
        # As a plugin, because the hooks of a conftest.py do not reach the docstrings of src.
        config.pluginmanager.register(EveryTestRuns())


@pytest.fixture(autouse=True)
def seeds() -> None:
    """Each test starts from the same random state, alone or after others."""
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


class EveryTestRuns:
    """Turns a skip, an expected failure or a skipped module into a failure that says so."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        _refuse_skip(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        _refuse_skip(report)
        return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} did not run, and CI=true allows no skips: {reason}"
