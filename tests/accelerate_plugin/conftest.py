"""Accelerators inside the test process; Accelerate keeps its state in singletons."""

from __future__ import annotations

import logging

import pytest
from accelerate.state import AcceleratorState, GradientState


@pytest.fixture(autouse=True)
def no_accelerator():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def messages(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records if "resume" in record.name]
