"""Links, files of others and clocks: a run neither touches nor trusts them."""

from __future__ import annotations

import ast
import os
import stat
from pathlib import Path

import crafted
import pytest
from walks import Start

import resume_core.storage
from resume_core.errors import SaveFailedError
from resume_core.state import Progress
from resume_core.storage import open_store


@pytest.fixture
def walked(tmp_path):
    """A run that has come to its end at step 2, with its checkpoints."""
    start = Start(tmp_path, keep=99)
    start.take()
    return start


def test_a_directory_that_is_a_link_is_used_as_what_it_points_to(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "real")
    start = Start(tmp_path, num_steps=3, keep=1)
    end = start.take()["end"]
    assert (tmp_path / "run").is_symlink()
    assert start.take() == {"end": end, "restored": [newest(tmp_path / "real"), 3]}
    assert len(list((tmp_path / "real").glob("attempt-*/step-*/manifest.json"))) == 2  # the last one, and the end


def newest(directory):
    path = max(directory.glob("attempt-*/step-*"), key=lambda path: (path / "manifest.json").stat().st_mtime_ns)
    return f"{path.parent.name}/{path.name}"


def test_a_checkpoint_that_was_moved_behind_a_link_is_read_and_never_deleted(walked):
    (attempt,) = walked.directory.glob("attempt-*")
    elsewhere = walked.root / "elsewhere"
    (attempt / "step-000000001").rename(elsewhere)
    (attempt / "step-000000001").symlink_to(elsewhere)
    before = crafted.tree(elsewhere)
    resume = {"resume": f"{attempt.name}/step-000000001"}
    longer = walked.but(num_steps=4, keep=1)
    assert longer.but(arguments=resume).take()["restored"][1] == 1
    longer.but(num_steps=6).take()
    assert crafted.tree(elsewhere) == before
    assert (attempt / "step-000000001").is_symlink()
    assert not (attempt / "step-000000000").exists()  # while its neighbour was pruned


@pytest.mark.parametrize("deletion", ["delete", "delete_tree", "delete_empty"])
def test_nothing_is_deleted_behind_a_link(tmp_path, deletion):
    store = open_store(tmp_path / "run")
    outside = tmp_path / "outside"
    (outside / "empty").mkdir(parents=True)
    (outside / "file").write_bytes(b"mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link").symlink_to(outside)
    keys = {"delete": ["link/file"], "delete_tree": ["link", "link/empty"], "delete_empty": ["link", "link/empty"]}
    for key in keys[deletion]:
        getattr(store, deletion)(key)
    assert (outside / "file").read_bytes() == b"mine"
    assert (outside / "empty").is_dir()


def test_nothing_is_written_through_a_link(tmp_path):
    start = Start(tmp_path, num_steps=9, keep=99)
    _, session = start.session()
    session.start(7)
    outside = tmp_path / "outside"
    outside.mkdir()
    session.begin(Progress())
    session.wait()
    (attempt,) = start.directory.glob("attempt-*")
    (attempt / "step-000000001").symlink_to(outside)
    session.boundary(Progress(step=1, batch=1))
    with pytest.raises(SaveFailedError, match=r"nothing is written through a symbolic link.*step-000000001"):
        session.wait()
    assert list(outside.iterdir()) == []
    session.boundary(Progress(step=2, batch=2))
    session.end()
    assert (attempt / "step-000000002" / "manifest.json").exists()


def test_files_of_others_survive_every_prune(walked):
    (attempt,) = walked.directory.glob("attempt-*")
    others = ["notes.txt", "attempt-1-backup/model.safetensors", f"{attempt.name}/readme", f"{attempt.name}/step-1/x"]
    others += [
        f"{attempt.name}/step-000000001/{name}" for name in ("model (copy).safetensors", "rank-0.json", ".x.tmp")
    ]
    for name in others:
        path = walked.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    walked.but(num_steps=6, keep=1).take()
    assert [(walked.directory / name).read_text() for name in others] == others
    assert not (attempt / "step-000000001" / "model.safetensors").exists()


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_everything_that_a_run_writes_obeys_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        Start(tmp_path).take()
    finally:
        os.umask(before)
    paths = [path for path in tmp_path.rglob("*") if path.name != "run" or path.is_dir()]
    assert len(paths) > 10
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~umask, path


@pytest.mark.parametrize("when_s", [0, 1 << 32], ids=["in 1970", "in 2106"])
def test_the_times_of_files_decide_nothing(walked, when_s):
    expected = walked.take()
    for number, path in enumerate(sorted(walked.directory.rglob("*"))):
        os.utime(path, (when_s - number, when_s - number))
    assert walked.take() == expected


def test_storage_asks_no_clock():
    for path in Path(resume_core.storage.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [node.attr] if isinstance(node, ast.Attribute) else []
            # deadlines and pauses are measured, which no wrong clock can change; the time of day decides nothing, but
            # whether a local file is so young that it is read once more
            known = ("monotonic", "sleep", *(("time_ns",) if path.name == "local.py" else ()))
            assert not {"datetime", "st_mtime", "st_mtime_ns", "getmtime", "st_ctime"} & {*names}, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time":
                assert node.attr in known, path
