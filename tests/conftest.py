"""What more than one folder of tests uses."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest
import quick_disk  # noqa: F401

from resume_core.capture.workers import SPARED
from resume_core.preemption.notices import NOTICES

os.environ[NOTICES] = (
    "off"  # of this process and all that it starts: what the machine of the tests is told is not theirs
)


@pytest.fixture(autouse=True)
def handlers():
    """A test that leaves a run open, as a killed process does, leaves its handlers of signals to nobody."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    os.environ.pop(SPARED, None)


def pytest_collection_finish():
    import warm  # noqa: F401


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory):
    """A real S3 server, started by the first test of this worker that asks for it."""
    from servers.seaweedfs import SeaweedFS

    with SeaweedFS(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def s3(seaweedfs, monkeypatch, tmp_path):
    """The server, for a test that leaves the user's own configuration of S3 out."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return seaweedfs


@pytest.fixture
def s3_proxy(s3):
    """A proxy in front of the server that can break requests; see `FaultProxy`."""
    from servers.faultproxy import FaultProxy

    with FaultProxy(s3.port) as proxy:
        yield proxy


@pytest.fixture
def s3_url(s3):
    """A place of its own on the server."""
    from servers.seaweedfs import BUCKET

    return f"s3://{BUCKET}/{uuid.uuid4().hex}/run"


@pytest.fixture
def entry_point(tmp_path, monkeypatch):
    """The entry points of pyproject.toml are installed, whatever is in the environment; in subprocesses too."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    folder = tmp_path / "site" / "exact_resume-9.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: exact-resume\nVersion: 9\n")
    groups = project["entry-points"]
    text = "\n".join(
        f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in points.items()) for group, points in groups.items()
    )
    (folder / "entry_points.txt").write_text(text)
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))
    return folder.parent
