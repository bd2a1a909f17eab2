"""What every plugin does with the arguments that all of them take."""

from __future__ import annotations

import os

import fsspec
import pytest

from accelerate_resume import ResumePlugin, TrainerResumeCallback
from lightning_resume import ResumeCallback
from resume_core import Keep, SaveEvery
from resume_core.storage import usable

PLUGINS = pytest.mark.parametrize("plugin", [ResumeCallback, ResumePlugin, TrainerResumeCallback])


@PLUGINS
def test_relative_paths_are_those_of_the_folder_in_which_the_plugin_is_made(tmp_path, monkeypatch, plugin):
    monkeypatch.chdir(tmp_path)
    made = plugin("run", scratch="near")
    monkeypatch.chdir("/")  # as a script does between making the plugin and training; Hydra's job.chdir for one
    assert (made._directory, made._options["scratch"]) == (str(tmp_path / "run"), str(tmp_path / "near"))


@PLUGINS
@pytest.mark.parametrize(
    ("place", "kind", "said"),
    [
        ("{file}", NotADirectoryError, "directory {file} cannot be made: {file} is a file. Move it away, or choose"),
        ("{file}/a/run", NotADirectoryError, "directory {file}/a/run cannot be made: {file} is a file."),
        ("{link}", FileNotFoundError, "directory {link} cannot be made: {link} is a link to what is not there."),
        ("", ValueError, "directory is empty"),
        ("s3:/bucket/run", ValueError, "one slash too few: write s3://bucket/run"),
        ("s4://bucket/run", ValueError, "directory s4://bucket/run cannot be opened: fsspec knows no protocol 's4'."),
        ("simplecache::s4://bucket/run", ValueError, "knows no protocol 's4'"),
        ("s3:///run", ValueError, "directory s3:///run names no bucket: write s3://bucket/folder"),
        ("s3://key:secret@bucket/run", ValueError, "S3 takes no credentials in the URL"),
        (7, TypeError, "directory must be a path or a URL, got 7"),
    ],
)
def test_a_directory_that_nothing_can_be_stored_in_is_refused_when_the_plugin_is_made(
    plugin, place, kind, said, tmp_path
):
    names = {"file": tmp_path / "file", "link": tmp_path / "link"}
    names["file"].write_text("mine")
    names["link"].symlink_to(tmp_path / "gone")
    place = place.format(**names) if isinstance(place, str) else place
    with pytest.raises(kind) as caught:
        plugin(place)
    assert said.format(**names) in str(caught.value)
    assert "secret@" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link"]


@pytest.mark.parametrize(
    ("denied", "said"),
    [(os.W_OK, "cannot be written: .* may not write in"), (os.R_OK, "cannot be read: .* may not read in")],
)
def test_so_is_one_that_this_user_may_not_use(denied, said, tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    access = os.access
    monkeypatch.setattr(usable.os, "access", lambda path, mode: not mode & denied and access(path, mode))
    with pytest.raises(PermissionError, match=rf"directory {tmp_path}/run {said} {tmp_path}/run\. Run as who owns it"):
        ResumeCallback(tmp_path / "run")
    if denied == os.W_OK:
        with pytest.raises(PermissionError, match=rf"directory {tmp_path}/a/b cannot be written"):
            ResumeCallback(tmp_path / "a" / "b")


def test_a_rehearsal_writes_nothing_and_needs_no_right_to(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACT_RESUME_DRILL", str(tmp_path / "result.json"))
    access = os.access
    monkeypatch.setattr(usable.os, "access", lambda path, mode: not mode & os.W_OK and access(path, mode))
    ResumeCallback(tmp_path)


def test_a_plugin_that_is_off_looks_at_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACT_RESUME", "off")
    (tmp_path / "file").write_text("mine")
    ResumeCallback(tmp_path / "file")


def test_the_package_that_is_missing_is_named(monkeypatch):
    def missing(protocol):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "get_filesystem_class", missing)
    with pytest.raises(ImportError, match=r"directory s3://bucket/run needs .* not installed: pip install .*\[s3\]"):
        ResumeCallback("s3://bucket/run")
    with pytest.raises(ImportError, match=r"directory abc://run needs .* not installed: Install s3fs"):
        ResumeCallback("abc://run")


def test_protocols_that_a_user_registers_are_known():
    fsspec.register_implementation("mine", fsspec.get_filesystem_class("memory"), clobber=True)
    ResumeCallback("mine://run")


@PLUGINS
@pytest.mark.parametrize(
    ("given", "kind", "said"),
    [
        ({"resume": "yes"}, ValueError, """resume must be "auto", "must", .* got 'yes'. Did you mean "auto"?"""),
        ({"resume": True}, ValueError, 'got True. Did you mean "auto"?'),
        ({"resume": "nevr"}, ValueError, 'Did you mean "never"?'),
        ({"resume": False}, ValueError, 'Did you mean "never"?'),
        ({"resume": "runs/other"}, ValueError, "or the name of a checkpoint"),
        ({"save": {"step": 5}}, TypeError, "save has no 'step': SaveEvery takes .* Did you mean 'steps'?"),
        ({"save": 500}, TypeError, "got 500. Did you mean save=SaveEvery(steps=500)?"),
        ({"save": SaveEvery}, TypeError, "Did you mean save=SaveEvery()?"),
        ({"save": Keep()}, TypeError, "save must be a SaveEvery or a dict of its fields, got Keep("),
        ({"keep": 3}, TypeError, "Did you mean keep=Keep(last=3)?"),
        ({"changes": "seed"}, TypeError, 'Did you mean changes=Changes(allow=("seed",))?'),
        ({"changes": ["seed", "data"]}, TypeError, "Did you mean changes=Changes(allow=('seed', 'data'))?"),
        ({"preemption": False}, TypeError, "Did you mean preemption=Preemption(signals=(), notices=None)?"),
        ({"check": False}, TypeError, "Did you mean check=Check(steps=0)?"),
        ({"check": "stop"}, TypeError, 'Did you mean check=Check(on_mismatch="stop")?'),
        ({"check": True}, TypeError, "check must be a Check or a dict of its fields, got True."),
        ({"watch": "stop"}, TypeError, 'Did you mean watch=Watch(on="stop")?'),
        ({"watch": "off"}, TypeError, 'Did you mean watch=Watch(on="off")?'),
        ({"storage_options": "anon"}, TypeError, "storage_options must be a dict, got 'anon'"),
        ({"scratch": True}, TypeError, "scratch must be the path of a local directory, got True"),
        ({"scratch": "s3://bucket/near"}, ValueError, "scratch must be a local directory"),
    ],
    ids=str,
)
def test_what_was_meant_is_said(plugin, given, kind, said, tmp_path):
    with pytest.raises(kind) as caught:
        plugin(tmp_path / "run", **given)
    before, _, after = said.partition(" .* ")
    assert before in str(caught.value)
    assert after in str(caught.value)


def test_a_wrong_word_in_the_environment_says_where_it_stands(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACT_RESUME", "yes")
    with pytest.raises(ValueError, match=r'environment variable EXACT_RESUME takes .* off .*Did you mean "auto"'):
        ResumeCallback(tmp_path / "run")
