"""The file or folder that an export leaves: whole or not at all, and nothing of anybody else's is lost."""

from __future__ import annotations

import os
import re
import signal

import harness
import pytest
from safetensors.torch import load_file
from test_export import Run, export, refused

from resume_core.cli import app
from resume_core.cli.export import output
from resume_core.cli.export import run as export_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The directory of a run; only read."""
    directory = tmp_path_factory.mktemp("export") / "run"
    Run(directory, num_steps=1)
    return directory


def test_what_is_there_stays_unless_it_may_be_replaced(run, tmp_path):
    (tmp_path / "out").write_text("mine")
    assert "out exists: choose another place, or replace it with --force" in refused(run, tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"
    export(run, tmp_path / "out", "--force")
    assert "first.weight" in load_file(tmp_path / "out")
    (tmp_path / "folder").mkdir()
    assert "is a folder and the export is a file" in refused(run, tmp_path / "folder", "--force")


NAMES = re.compile(r"[ab]\.bin")


def write_folder(path, text):
    path.mkdir()
    (path / "a.bin").write_text(text)


def test_a_folder_takes_the_place_of_an_earlier_export_and_of_nothing_else(tmp_path):
    out = tmp_path / "deep" / "out"
    for text in ("one", "two"):
        with output.placed(out, force=True, names=NAMES) as path:
            write_folder(path, text)
        assert (out / "a.bin").read_text() == text
    (out / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"holds thesis\.txt, which no export wrote"):
        output.check_place(out, force=True, names=NAMES)
    with pytest.raises(FileExistsError, match="is a file and the export is a folder"):
        output.check_place(out / "a.bin", force=True, names=NAMES)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_a_folder_in_an_export_is_one_of_its_own_or_somebody_elses(tmp_path):
    names = re.compile(r"a\.bin|sub/a\.bin")
    out = tmp_path / "out"
    for folder in (".", "sub"):
        write_folder(out / folder, "mine")
    output.check_place(out, force=True, names=names)
    for folder in ("other", "sub/deep"):
        write_folder(out / folder, "mine")
    (out / "empty").mkdir()
    with pytest.raises(FileExistsError, match=r"holds empty, other, sub, which no export wrote"):
        output.check_place(out, force=True, names=names)


def test_a_link_is_replaced_and_what_it_points_to_stays(tmp_path):
    write_folder(tmp_path / "elsewhere", "mine")
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    with output.placed(tmp_path / "out", force=True, names=NAMES) as path:
        write_folder(path, "new")
    assert (tmp_path / "out" / "a.bin").read_text() == "new"
    assert (tmp_path / "elsewhere" / "a.bin").read_text() == "mine"


def test_what_comes_in_the_meantime_is_not_written_over(tmp_path):
    def write():
        with output.placed(tmp_path / "out", force=False, names=None) as path:
            path.write_text("new")
            (tmp_path / "out").write_text("mine")

    with pytest.raises(FileExistsError):
        write()
    assert (tmp_path / "out").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def export_and_die(owner, name, arguments):
    def last(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGKILL)

    setattr({"output": output, "run": export_run}[owner], name, last)
    app(arguments)


@pytest.mark.parametrize(("owner", "name"), [("run", "copy_weights"), ("output", "_sync"), ("output", "_rename")])
def test_a_kill_leaves_the_old_file_or_the_new_one(run, tmp_path, owner, name):
    out = tmp_path / "out"
    for before in (None, "old"):
        if before:
            out.write_text(before)
        arguments = ["export", str(run), str(out), "--format", "safetensors", "--force"]
        process = harness.CONTEXT.Process(target=export_and_die, args=(owner, name, arguments))
        process.start()
        process.join(harness.DEADLINE_S)
        assert process.exitcode == -signal.SIGKILL
        assert (out.read_text() if out.exists() else None) == before
    export(run, out, "--force")  # leftovers are in nobody's way


def test_a_write_that_fails_leaves_nothing(run, tmp_path, monkeypatch):
    def full(reader, path):
        path.write_text("half")
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("resume_core.cli.export.run.copy_weights", full)
    assert "No space left" in refused(run, tmp_path / "out")
