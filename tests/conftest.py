"""What more than one folder of tests uses."""

from __future__ import annotations

from pathlib import Path

import pytest


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
