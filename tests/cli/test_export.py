"""What a URL names, what may become what, and the file or folder that an export leaves."""

from __future__ import annotations

import logging
import re
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from typer.testing import CliRunner
from walks import Walk

from resume_core import Keep, SaveEvery
from resume_core.cli import app
from resume_core.cli.names import split_url
from resume_core.errors import CorruptCheckpointError
from resume_core.ranks import Ranks
from resume_core.session import Session
from resume_core.state import Progress, State
from resume_core.storage import commit

CHUNK_BYTES = 4096


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 64)
        self.last = torch.nn.Linear(64, 64, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("turned", torch.rand(3, 2).T)


class Run(Walk):
    """A run of no framework, or of the one that has ``mark`` in its state."""

    def __init__(self, directory, *, mark="mine", module=None, num_steps=3, keep=None, **arguments):
        super().__init__(Ranks(), {})
        self.mark, self.module = mark, module or Tied()
        self.session = Session(
            self, directory, save=SaveEvery(steps=1, minutes=None), keep=keep or Keep(last=9), **arguments
        )
        restored = self.session.start(7)
        begin = restored.progress if restored else Progress()
        self.session.begin(begin)
        self.values = {}
        for step in range(begin.step + 1, begin.step + num_steps + 1):
            with torch.no_grad():
                self.module.first.weight += 1
            self.session._saves.writer.wait()
            self.session.boundary(Progress(step=step, batch=step))
            self.values[step] = self.module.first.weight.detach().clone()
        self.session.end()

    def capture(self):
        return State(self.module.state_dict(), {self.mark: {"step": 1}}, {"rng": 0})

    def live_weights(self):
        return {}

    def apply(self, state):
        self.module.load_state_dict(dict(state.model))


def invoke(*arguments, env=None):
    return CliRunner(env=env).invoke(app, ["export", *map(str, arguments)])


def export(url, out, *options, format="safetensors", env=None):
    result = invoke(url, out, "--format", format, *options, env=env)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def refused(url, out, *options, format="safetensors", env=None, code=2):
    """What is said when nothing is exported; and nothing is left beside ``out``."""
    before = sorted(out.parent.iterdir())
    result = invoke(url, out, "--format", format, *options, env=env)
    assert result.exit_code == code, result.output
    assert sorted(out.parent.iterdir()) == before
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with two attempts and a checkpoint after each of six steps, in chunks of a page; only read."""
    directory = tmp_path_factory.mktemp("export") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "CHUNK_BYTES", CHUNK_BYTES)
        values = Run(directory).values
        values |= Run(directory).values
    return directory, values


def folder(directory, step):
    (found,) = directory.glob(f"attempt-*/step-{step:09d}")
    return found


# ---- what a URL names


def test_a_run_is_its_newest_checkpoint_and_so_is_an_attempt(run, tmp_path):
    directory, values = run
    first, second = sorted(path.name for path in directory.iterdir())
    names = {
        "": 6,
        first: 3,
        "attempt-0001/": 3,
        second: 6,
        f"{first}/step-000000002": 2,
        "attempt-0002/step-000000004/": 4,
    }
    for number, (name, step) in enumerate(names.items()):
        out = tmp_path / f"{number}.safetensors"
        said = export(f"{directory}/{name}", out)
        assert f"/step-{step:09d} (step {step}, " in said
        assert torch.equal(load_file(out)["first.weight"], values[step])


def test_any_url_will_do_and_options_come_from_the_command_line_or_the_environment(tmp_path, monkeypatch):
    url = f"memory://{tmp_path.name}/run"
    values = Run(url).values
    export(f"{url}/attempt-0001/step-000000002", tmp_path / "out", "--storage-options", '{"skip_instance_cache": true}')
    assert torch.equal(load_file(tmp_path / "out")["first.weight"], values[2])
    wrong = {"EXACT_RESUME_STORAGE_OPTIONS": "[1]"}
    assert invoke(url, tmp_path / "other", "--format", "safetensors", env=wrong).exit_code == 2
    seen = []
    monkeypatch.setattr("resume_core.cli.export.run.find", lambda url, name, **options: seen.append(options) or 1 / 0)
    invoke(url, tmp_path / "other", "--format", "safetensors", env={"EXACT_RESUME_STORAGE_OPTIONS": '{"anon": true}'})
    assert seen == [{"scratch": None, "options": {"anon": True}}]


@pytest.mark.parametrize(
    ("url", "root", "name"),
    [
        ("runs/first", "runs/first", ""),
        ("attempt-0001-5c0e", ".", "attempt-0001-5c0e"),
        ("/attempt-0001", "/", "attempt-0001"),
        (
            "s3://bucket/run/attempt-0001-5c0e/step-000000040.2/",
            "s3://bucket/run",
            "attempt-0001-5c0e/step-000000040.2",
        ),
        ("runs/attempt-one", "runs/attempt-one", ""),
        ("runs/first/attempt-2/120", "runs/first", "attempt-2/120"),
        ("runs/first/attempt-0002/latest", "runs/first", "attempt-0002/latest"),
        ("runs/first/step-120", "runs/first", "step-120"),
        ("runs/120", "runs/120", ""),
    ],
)
def test_where_the_directory_of_a_run_ends(url, root, name):
    assert split_url(url) == (root, name)


def test_a_run_may_lie_in_a_folder_with_the_name_of_an_attempt(tmp_path):
    values = Run(tmp_path / "attempt-0007").values
    export(tmp_path / "attempt-0007", tmp_path / "out")
    assert torch.equal(load_file(tmp_path / "out")["first.weight"], values[3])


def test_what_is_not_there_is_named_and_so_is_what_is(run, tmp_path):
    assert "is no directory of a run" in refused(tmp_path, tmp_path / "out")
    said = refused(f"{run[0]}/attempt-0001/step-000000009", tmp_path / "out")
    assert "there is no checkpoint 'attempt-0001/step-000000009'" in said
    assert "The nearest are attempt-0001" in said


# ---- what is in it


def test_the_weights_are_a_file_that_safetensors_itself_would_have_written(run, tmp_path):
    export(run[0], tmp_path / "out")
    with safe_open(tmp_path / "out", "pt") as file:
        assert file.metadata() == {"format": "pt", "last.weight": "first.weight"}
    found = load_file(tmp_path / "out")
    assert sorted(found) == ["first.bias", "first.weight", "turned"]
    assert all(tensor.is_contiguous() for tensor in found.values())
    module = Tied()
    load_model(module, tmp_path / "out")
    assert torch.equal(module.last.weight, run[1][6])


def test_types_that_the_format_lacks_are_named(tmp_path):
    module = torch.nn.Module()
    module.first = torch.nn.Linear(2, 2)
    module.register_buffer("turn", torch.ones(3, dtype=torch.complex128))
    Run(tmp_path / "run", module=module, num_steps=1)
    said = export(tmp_path / "run", tmp_path / "out")
    assert "safetensors has no complex128: turn is there as float64, 2 numbers for one" in said


def test_thinned_checkpoints_become_safetensors_alone(tmp_path):
    keep = Keep(last=1, every_steps=2, thin_after=1)
    values = Run(tmp_path / "run", num_steps=5, keep=keep).values
    assert [path.parent.name for path in (tmp_path / "run").glob("*/*/weights.json")][-1:] != []
    said = refused(tmp_path / "run" / "attempt-0001" / "step-000000002", tmp_path / "out", format="lightning")
    assert "holds weights only" in said
    assert "--format safetensors alone, not lightning" in said
    export(tmp_path / "run" / "attempt-0001" / "step-000000002", tmp_path / "out")
    assert torch.equal(load_file(tmp_path / "out")["first.weight"], values[2])
    (weights,) = (tmp_path / "run").glob("*/step-000000002/weights.json")
    weights.write_bytes(weights.read_bytes()[:-9])
    said = refused(tmp_path / "run" / "attempt-0001" / "step-000000002", tmp_path / "again", code=1)
    assert f"{weights} is torn or was altered" in said


@pytest.mark.parametrize(
    ("mark", "format", "said"),
    [
        (
            "checkpoint",
            "accelerate",
            "with Lightning: it can become --format lightning or --format safetensors, not",
        ),
        ("accelerator", "lightning", "with Accelerate: it can become --format accelerate or --format safetensors"),
        (
            "mine",
            "lightning",
            "that this version does not know: it can become --format safetensors, not",
        ),
    ],
)
def test_a_run_of_one_framework_cannot_become_another(tmp_path, mark, format, said):
    Run(tmp_path / "run", mark=mark, num_steps=1)
    assert said in refused(tmp_path / "run", tmp_path / "out", format=format)


def test_a_framework_that_is_not_installed_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate_resume.export", None)
    assert 'pip install "exact-resume[accelerate]"' in refused(run[0], tmp_path / "out", format="accelerate")


# ---- damage


def damage(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_damage_is_named_by_file_and_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(commit, "CHUNK_BYTES", CHUNK_BYTES)
    Run(tmp_path / "run", mark="checkpoint")
    for name, at, format in (
        ("model.safetensors", 2 * CHUNK_BYTES + 5, "safetensors"),
        ("training.json", 3, "safetensors"),
        ("rank-00000.json", 3, "lightning"),
    ):
        step = {"model.safetensors": 1, "training.json": 2, "rank-00000.json": 3}[name]
        damage(folder(tmp_path / "run", step) / name, at)
        said = refused(folder(tmp_path / "run", step), tmp_path / "out", format=format, code=1)
        assert re.search(rf"{name} of the checkpoint attempt-0001-\w+/step-{step:09d} is damaged", said)
        assert f"chunk {at // CHUNK_BYTES} of" in said
    damage(folder(tmp_path / "run", 2) / "manifest.json", 9)
    assert "manifest.json" in refused(folder(tmp_path / "run", 2), tmp_path / "out", code=1)


def test_a_healthy_copy_in_another_tier_takes_the_place_of_a_damaged_one(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "exact_resume")
    monkeypatch.setattr(commit, "CHUNK_BYTES", CHUNK_BYTES)
    values = Run(tmp_path / "run", scratch=tmp_path / "scratch").values
    damage(folder(tmp_path / "run", 3) / "model.safetensors", CHUNK_BYTES)
    assert "is damaged" in refused(tmp_path / "run", tmp_path / "out", code=1)
    damage(folder(tmp_path / "scratch", 3) / "model.safetensors", 3 * CHUNK_BYTES)
    export(tmp_path / "run", tmp_path / "out", "--scratch", str(tmp_path / "scratch"))
    assert torch.equal(load_file(tmp_path / "out")["first.weight"], values[3])
    assert "the next store that holds the checkpoint is read instead" in caplog.text


def test_a_checkpoint_that_the_run_deletes_meanwhile_is_not_called_damaged(tmp_path, monkeypatch):
    Run(tmp_path / "run", num_steps=1)

    def deleted(*_):
        for name in ("manifest.json", "model.safetensors"):
            (folder(tmp_path / "run", 1) / name).unlink()
        raise CorruptCheckpointError("a file is missing")

    monkeypatch.setattr("resume_core.cli.export.run.copy_weights", deleted)
    assert "was deleted while it was read" in refused(tmp_path / "run", tmp_path / "out")


# ---- leaves of the user's own


MY_LEAVES = """
import resume_core

class Own: pass

resume_core.register_leaf(Own, lambda own: 1, lambda saved: Own())
"""


def test_modules_that_register_leaves_are_imported_on_request(tmp_path, monkeypatch):
    (tmp_path / "my_leaves.py").write_text(MY_LEAVES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import my_leaves

    class OwnRun(Run):
        def capture(self):
            return State(self.module.state_dict(), {"checkpoint": {"own": my_leaves.Own()}}, {"rng": 0})

    OwnRun(tmp_path / "run", num_steps=1)
    from resume_core.image.leaves import USER_LEAVES

    USER_LEAVES.pop(my_leaves.Own)
    monkeypatch.delitem(sys.modules, "my_leaves")
    seen = []
    writer = lambda checkpoint, out: seen.append(checkpoint.training["checkpoint"]["own"]) or out.touch() or []  # noqa: E731
    monkeypatch.setattr("lightning_resume.export.write", writer)
    assert "has not said how to read it" in refused(tmp_path / "run", tmp_path / "out", format="lightning")
    export(tmp_path / "run", tmp_path / "out", "--import", "my_leaves", format="lightning")
    assert type(seen[0]).__name__ == "Own"
    USER_LEAVES.pop(type(seen[0]))
