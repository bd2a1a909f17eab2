"""A pytest plugin for `run_lightning_tests`: writes down outcomes, and gives each test a run's directory of its own."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

_VARIABLE = "EXACT_RESUME_DIR"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    """Around all fixtures of a test: those of Lightning look for variables that a test has left behind."""
    runs = os.environ.get("UPSTREAM_RUNS")
    if runs:
        Path(runs).mkdir(exist_ok=True)
        os.environ[_VARIABLE] = tempfile.mkdtemp(dir=runs)
    yield
    os.environ.pop(_VARIABLE, None)


class Outcomes:
    """Collects one line a test: the first phase that did not pass decides."""

    def __init__(self, path: str) -> None:
        self.path, self.found = path, {}

    def pytest_runtest_logreport(self, report):
        crash = getattr(report.longrepr, "reprcrash", None)
        message = crash.message if crash is not None else (str(report.longrepr) if report.failed else "")
        outcome = report.outcome if report.when == "call" or report.passed else f"{report.outcome} in {report.when}"
        if report.nodeid not in self.found or (self.found[report.nodeid][0] == "passed" and not report.passed):
            self.found[report.nodeid] = (outcome, message.splitlines()[0] if message else "")

    def pytest_sessionfinish(self, session):
        lines = (json.dumps([test, *result]) for test, result in self.found.items())
        Path(self.path).write_text("".join(line + "\n" for line in lines))


def pytest_configure(config):
    if not hasattr(config, "workerinput"):  # of pytest-xdist: the reports of its workers come to the controller
        config.pluginmanager.register(Outcomes(os.environ["UPSTREAM_RESULTS"]))
