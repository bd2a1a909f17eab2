from __future__ import annotations

import uuid

import pytest

from resume_core.storage import commit, open_store, requests


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    """An empty store, of each kind."""
    return open_store(tmp_path / "run" if request.param == "local" else f"memory://{uuid.uuid4().hex}/run")


@pytest.fixture
def local_store(tmp_path):
    return open_store(tmp_path / "run")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of 64 bytes, so that small files have several."""
    monkeypatch.setattr(commit, "CHUNK_BYTES", 64)


@pytest.fixture
def memory_store():
    return open_store(f"memory://{uuid.uuid4().hex}/run")


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    """Requests are tried again as ever, and given up after half a second."""
    monkeypatch.setattr(requests, "PATIENCE", requests.Patience(give_up_s=0.5, first_pause_s=0.02))
