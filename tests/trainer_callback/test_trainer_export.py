"""Checkpoints of a Trainer's run, exported and given to the stock Trainer."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pytest
import torch
from harness import digest
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from typer.testing import CliRunner

from accelerate_resume import Keep, SaveEvery, TrainerResumeCallback
from accelerate_resume.trainer_export import write
from resume_core.cli import app
from resume_core.cli.export.source import find

CONTROL = "TrainerControl"


def export(url, out, *options, format="trainer", code=0):
    result = CliRunner().invoke(app, ["export", str(url), str(out), "--format", format, *options])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def make_trainer(folder, *callbacks, seed=7, num_epochs=2, **arguments):
    set_seed(seed)
    config = GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    data = [{"input_ids": torch.tensor(ids), "labels": torch.tensor(ids)} for ids in np.arange(80).reshape(10, 8) % 11]
    defaults = {
        "num_train_epochs": num_epochs,
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "use_cpu": True,
        "seed": seed,
    }
    args = TrainingArguments(str(folder), **defaults | arguments)
    return Trainer(GPT2LMHeadModel(config), args, train_dataset=data, callbacks=list(callbacks))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that the callback saved after each step, and the Trainer itself as well; only read."""
    root = tmp_path_factory.mktemp("export")
    callback = TrainerResumeCallback(root / "run", save=SaveEvery(steps=1, minutes=None), keep=Keep(last=99))
    settle = Settle(callback)
    make_trainer(root / "stock", callback, settle, save_strategy="steps", save_steps=1).train()
    return root


class Settle(TrainerCallback):
    def __init__(self, callback):
        self.callback = callback

    def on_step_end(self, *_, **__):
        self.callback._run.session.wait()


def checkpoint_of(root, step):
    (found,) = (root / "run").glob(f"attempt-*/step-{step:09d}")
    return found


def contents(folder):
    found = {}
    for path in sorted(folder.iterdir()):
        if path.name == "trainer_state.json":
            found[path.name] = json.loads(path.read_text())
            for name in ("should_save", "should_log", "should_evaluate"):  # at the save, or when it was done
                found[path.name]["stateful_callbacks"][CONTROL]["args"].pop(name)
        elif path.suffix == ".json":
            found[path.name] = path.read_text()
        elif path.suffix == ".safetensors":
            found[path.name] = path.read_bytes()
        elif path.name not in ("training_args.bin", "exact_resume"):  # the other is what the callback adds to its own
            found[path.name] = digest(plain(torch.load(path, weights_only=False)))
    return found


def plain(value):
    """Arrays as lists, so that their digest is of all they hold."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), value.tolist()]
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("step", [3, 5])
def test_the_folder_is_what_the_trainer_itself_has_written(run, tmp_path, step):
    said = export(checkpoint_of(run, step), tmp_path / "out")
    assert contents(tmp_path / "out") == contents(run / "stock" / f"checkpoint-{step}")
    assert "the tokenizer and training_args.bin are not in it" in said


class Begin(TrainerCallback):
    """What the stock Trainer has restored when it begins to train."""

    def on_step_begin(self, args, state, control, model=None, optimizer=None, lr_scheduler=None, **_):
        if not hasattr(self, "found"):
            parts = [dict(model.state_dict()), optimizer.state_dict(), lr_scheduler.state_dict()]
            self.found = state.global_step, len(state.log_history), digest(parts)


@pytest.mark.parametrize("step", [3, 5])
def test_the_stock_trainer_trains_on_from_it_as_from_its_own(run, tmp_path, step):
    export(checkpoint_of(run, step), tmp_path / "out")
    ends = []
    for folder in (tmp_path / "out", run / "stock" / f"checkpoint-{step}"):
        begin = Begin()
        trainer = make_trainer(tmp_path / "again", begin, seed=1000, num_epochs=3, save_strategy="no")
        trainer.train(resume_from_checkpoint=str(folder))
        assert begin.found[:2] == (step, step)
        assert trainer.state.global_step == 15
        rng = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()]
        ends.append([begin.found, digest(dict(trainer.model.state_dict())), digest(rng)])
    assert ends[0] == ends[1]


def test_the_model_is_loaded_by_itself_and_so_are_its_weights(run, tmp_path):
    export(run / "run", tmp_path / "out")
    model = GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert model.lm_head.weight is model.transformer.wte.weight
    export(run / "run", tmp_path / "out.safetensors", format="safetensors")
    found = load_file(tmp_path / "out.safetensors")
    assert torch.equal(found["transformer.wte.weight"], model.lm_head.weight)
    assert "lm_head.weight" not in found


def test_the_run_of_a_trainer_becomes_no_folder_of_accelerate(run, tmp_path):
    said = export(run / "run", tmp_path / "out", format="accelerate", code=1)
    assert "with the Hugging Face Trainer: it can become --format trainer or --format safetensors, not accel" in said


def test_every_rank_has_its_random_states_as_a_trainer_of_several_looks_for_them(run, tmp_path):
    read = find(str(run / "run")).read()
    other = {**read.ranks[0], "rng": {**read.ranks[0]["rng"], "torch": torch.Generator().manual_seed(1).get_state()}}
    write(dataclasses.replace(read, ranks=[read.ranks[0], other]), tmp_path / "out")
    assert not (tmp_path / "out" / "rng_state.pth").exists()
    found = [torch.load(tmp_path / "out" / f"rng_state_{rank}.pth", weights_only=False)["cpu"] for rank in (0, 1)]
    assert torch.equal(found[0], read.ranks[0]["rng"]["torch"])
    assert torch.equal(found[1], other["rng"]["torch"])


def test_a_model_of_the_users_own_has_no_configuration(run, tmp_path):
    read = find(str(run / "run")).read()
    notes = write(dataclasses.replace(read, info={**read.info, "files": {}}), tmp_path / "out")
    assert not (tmp_path / "out" / "config.json").exists()
    assert any("there is no config.json" in note for note in notes)
