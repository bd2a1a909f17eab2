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
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from typer.testing import CliRunner

from accelerate_resume import Keep, SaveEvery, TrainerResumeCallback
from accelerate_resume._hf_arguments import plain_arguments, rebuilt_arguments
from accelerate_resume._hf_info import TrainerInfo
from accelerate_resume.trainer_export import write
from resume_core.cli import app
from resume_core.cli.source import find
from resume_core.image import Recorded, loads, unflatten

CONTROL = "TrainerControl"


def export(url, out, *options, format="trainer", code=0):
    result = CliRunner().invoke(app, ["export", str(url), str(out), "--format", format, *options])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


WORDS = ["<pad>", "<unk>", "we", "train", "on", "and"]


def make_tokenizer():
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    found = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>", padding_side="left"
    )
    found.chat_template = {"default": "{{ messages }}", "short": "{{ messages[0] }}"}  # the second in a folder below
    return found


def make_trainer(folder, *callbacks, seed=7, num_epochs=2, others=None, **arguments):
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
    others = {"processing_class": make_tokenizer()} if others is None else others
    return Trainer(GPT2LMHeadModel(config), args, train_dataset=data, callbacks=list(callbacks), **others)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that the callback saved after each step, and the Trainer itself as well; only read."""
    root = tmp_path_factory.mktemp("export")
    callback = TrainerResumeCallback(root / "run", save=SaveEvery(steps=1, minutes=None), keep=Keep(last=99))
    settle = Settle(callback)
    make_trainer(root / "stock", callback, settle, save_strategy="steps", save_steps=1, hub_token="secret").train()
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
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.name == "trainer_state.json":
            found[path.name] = json.loads(path.read_text())
            for name in ("should_save", "should_log", "should_evaluate"):  # at the save, or when it was done
                found[path.name]["stateful_callbacks"][CONTROL]["args"].pop(name)
        elif name == "training_args.bin":
            found[name] = torch.load(path, weights_only=False).to_dict()
        elif path.parent.name != "exact_resume":  # that is what the callback adds to the Trainer's own
            is_pickle = path.suffix in (".pt", ".pth")
            found[name] = digest(plain(torch.load(path, weights_only=False))) if is_pickle else path.read_bytes()
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
    assert {"tokenizer.json", "training_args.bin", "additional_chat_templates/short.jinja"} <= contents(
        tmp_path / "out"
    ).keys()
    assert "not in it" not in said
    export(checkpoint_of(run, step), tmp_path / "out", "--force")


def test_the_tokenizer_and_the_arguments_come_back_as_they_were_and_no_token_is_told(run, tmp_path):
    export(run / "run", tmp_path / "out")
    tokenizer, text = AutoTokenizer.from_pretrained(tmp_path / "out"), "on and on we go"
    assert tokenizer.get_vocab() == make_tokenizer().get_vocab()
    assert tokenizer(text, padding="max_length", max_length=9) == make_tokenizer()(
        text, padding="max_length", max_length=9
    )
    assert tokenizer.chat_template == make_tokenizer().chat_template
    args = torch.load(tmp_path / "out" / "training_args.bin", weights_only=False)
    assert type(args) is TrainingArguments
    assert (args.learning_rate, args.train_batch_size, args.save_steps) == (1e-2, 2, 1)
    assert args.hub_token is None
    assert not any(b"secret" in path.read_bytes() for path in (run / "run").rglob("*") if path.is_file())


def test_a_checkpoint_of_before_there_were_extras_is_exported_and_what_lacks_is_said(run, tmp_path):
    read = find(str(run / "run")).read()
    notes = write(dataclasses.replace(read, extras={}), tmp_path / "out")
    assert any("the tokenizer and training_args.bin are not in it" in note for note in notes)
    assert set(contents(tmp_path / "out")) == set(contents(run / "stock" / "checkpoint-5")) - {
        name for name in contents(run / "stock" / "checkpoint-5") if "token" in name or "chat" in name or "args" in name
    }


def test_no_file_that_could_be_code_or_lies_elsewhere_comes_out_of_a_checkpoint(run, tmp_path):
    read = find(str(run / "run")).read()
    wrong = ["../vocab.json", "/tmp/vocab.json", "a/b/vocab.json", "tokenization_x.py", "scheduler.pt", "vocab.bin"]
    extras = {**read.extras, "tokenizer": dict.fromkeys([*wrong, "vocab.txt"], "x")}
    notes = write(dataclasses.replace(read, extras=extras), tmp_path / "out")
    assert len([note for note in notes if "no name of a tokenizer's file" in note]) == len(wrong)
    assert {path.name for path in (tmp_path / "out").iterdir() if "vocab" in path.name} == {"vocab.txt"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


class Odd:
    def save_pretrained(self, folder):
        torch.rand(3)
        raise OSError(28, "No space left on device")


class Collator:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer


def extras_of(trainer):
    info = TrainerInfo(trainer)
    notes = info.make_extras()
    return unflatten(loads(info.extras), {}), notes


def test_the_tokenizer_of_the_collator_is_carried_where_there_is_no_other(tmp_path):
    extras, notes = extras_of(make_trainer(tmp_path, others={"data_collator": Collator(make_tokenizer())}))
    assert "tokenizer.json" in extras["tokenizer"]
    assert notes == []
    extras, notes = extras_of(make_trainer(tmp_path, others={}))
    assert (extras["tokenizer"], notes) == ({}, [])


def test_training_does_not_fail_of_a_tokenizer_that_cannot_be_saved_or_is_huge(tmp_path, monkeypatch):
    odd, huge = make_trainer(tmp_path, others={"data_collator": Collator(Odd())}), make_trainer(tmp_path)
    before = torch.get_rng_state()
    extras, notes = extras_of(odd)
    assert torch.equal(torch.get_rng_state(), before)
    assert (extras["tokenizer"], extras["notes"]) == ({}, notes)
    assert "checkpoints do not carry the files of the Odd: OSError: [Errno 28]" in notes[0]
    monkeypatch.setattr("accelerate_resume._hf_info._MAX_BYTES", 99)
    extras, notes = extras_of(huge)
    assert extras["tokenizer"] == {}
    assert "more than the 99 that each save may write" in notes[0]


@dataclasses.dataclass
class OwnArguments(Seq2SeqTrainingArguments):
    num_tricks: int = 3


def test_arguments_of_ones_own_class_become_those_they_come_from(tmp_path):
    args = OwnArguments(str(tmp_path), num_tricks=5, label_smoothing_factor=0.25, use_cpu=True)
    rebuilt, lost = rebuilt_arguments(plain_arguments(args))
    assert type(rebuilt) is Seq2SeqTrainingArguments
    assert rebuilt.label_smoothing_factor == 0.25
    assert "OwnArguments, and Seq2SeqTrainingArguments is in training_args.bin without num_tricks" in lost[0]


def test_arguments_of_a_run_on_a_gpu_are_made_again_without_one(tmp_path):
    saved = plain_arguments(TrainingArguments(str(tmp_path), use_cpu=True))
    saved["values"] |= {"bf16": True, "use_cpu": False, "tf32": None}
    rebuilt, lost = rebuilt_arguments(saved)
    assert (rebuilt.bf16, lost) == (True, [])


def test_arguments_that_cannot_be_made_again_are_told(run, tmp_path):
    read = find(str(run / "run")).read()
    saved = read.extras["arguments"]
    saved = {**saved, "values": {**saved["values"], "lr_scheduler_type": "tomorrow's", "debug": [Recorded("a.b", "c")]}}
    notes = write(dataclasses.replace(read, extras={**read.extras, "arguments": saved}), tmp_path / "out")
    assert not (tmp_path / "out" / "training_args.bin").exists()
    assert any("training_args.bin is not in it: the arguments cannot be made again here" in note for note in notes)
    assert rebuilt_arguments({"class": "os.system", "values": {}})[0] is None


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
    said = export(run / "run", tmp_path / "out", format="accelerate", code=2)
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
