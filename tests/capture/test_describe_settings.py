"""Hyperparameters and settings of modules: a change that no tensor shows is found, and what looks like one is not."""

import math
import time

import pytest
import torch
from descriptions import through_json
from omegaconf import OmegaConf
from torch import nn

from resume_core.capture.describe_data import global_batches
from resume_core.capture.describe_settings import describe_hparams, describe_modules
from resume_core.capture.runconfig import as_seen_by, diff
from resume_core.state import Fact


def model(**changes):
    made = {
        "first": nn.Linear(3, 4),
        "drop": nn.Dropout(0.1),
        "act": nn.ReLU(),
        "norm": nn.BatchNorm1d(4),
        "conv": nn.Conv1d(1, 1, 3),
        "attention": nn.MultiheadAttention(4, 2),
        "loss": nn.CrossEntropyLoss(),
    }
    return nn.ModuleDict(made | changes)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("drop", nn.Dropout(0.2)),
        ("act", nn.GELU()),
        ("norm", nn.BatchNorm1d(4, momentum=0.2)),
        ("conv", nn.Conv1d(1, 1, 3, dilation=2)),
        ("attention", nn.MultiheadAttention(4, 1)),
        ("loss", nn.CrossEntropyLoss(label_smoothing=0.1)),
    ],
)
def test_a_module_that_computes_otherwise_changes_the_run(name, changed):
    (difference,) = diff(describe_modules({"": model()}), describe_modules({"": model(**{name: changed})}))
    assert (difference.name, difference.severity) == (f"modules.{name}", "run")


def test_a_model_is_the_same_whatever_it_has_learned_and_wherever_it_runs():
    trained = model()
    trained.eval()
    trained["norm"](torch.randn(5, 4))
    assert diff(describe_modules({"": model()}), describe_modules({"": trained.to("meta")})) == ()


def test_what_tensors_say_is_not_said_twice():
    assert describe_modules({"0.": nn.Sequential(nn.Linear(1, 1), nn.Tanh())}) == {"modules.0.1": Fact("Tanh()")}


def test_the_configuration_of_a_transformer_is_compared_but_for_its_name():
    transformers = pytest.importorskip("transformers")

    def facts(**changes):
        sizes = {"n_embd": 4, "n_layer": 1, "n_head": 1, "vocab_size": 9, "n_positions": 4}
        config = transformers.GPT2Config(**{"attn_pdrop": 0.1, **sizes, **changes})
        config._name_or_path = str(changes)
        return describe_modules({"": transformers.GPT2LMHeadModel(config)})

    assert diff(facts(), facts()) == ()
    found = {d.name for d in diff(facts(), facts(attn_pdrop=0.3)) if d.severity == "run"}
    assert "model_config.attn_pdrop" in found


def hparams(**changes):
    nested = {"model": {"width": 8, "dropout": 0.1}, "data_dir": "/data/a", "time": time.time(), "net": nn.ReLU()}
    return describe_hparams({**nested, **changes})


def test_a_nested_hyperparameter_changes_the_run_and_fleeting_ones_do_not():
    other = hparams(model={"width": 8, "dropout": 0.3}, data_dir="/data/b", net=nn.GELU())
    found = {d.name: d.severity for d in diff(hparams(), other)}
    assert found.pop("hparams.model.dropout") == "run"
    assert set(found.values()) == {"info"}


def test_omegaconf_is_flattened_too_and_what_cannot_be_resolved_is_no_trouble():
    plain = {"model": {"width": 8}, "layers": [1, 2]}
    assert describe_hparams(OmegaConf.create(plain)) == describe_hparams(plain)
    broken = describe_hparams(OmegaConf.create({"a": "${nowhere}"}))
    assert {fact.severity for fact in broken.values()} == {"info"}


def test_a_hyperparameter_that_says_another_change_again_is_one_row():
    before = {"optimizer.0.lr": Fact(0.1), **describe_hparams({"lr": 0.1, "gamma": 1})}
    after = {"optimizer.0.lr": Fact(0.2), **describe_hparams({"lr": 0.2, "gamma": 2})}
    found = {d.name: d.severity for d in diff(before, after)}
    assert found == {"optimizer.0.lr": "run", "hparams.lr": "info", "hparams.gamma": "run"}


def test_a_hyperparameter_that_is_new_in_the_code_blocks_nothing():
    assert {d.severity for d in diff(hparams(), hparams(label_smoothing=0.0))} == {"info"}


def test_secrets_among_hyperparameters_are_masked():
    found = describe_hparams({"api_key": "abcdefgh", "model": {"hf_token": "x"}, "url": "https://me:pass@host/x"})
    assert [fact.value for fact in found.values()] == ["***", "***", "https://***@host/x"]


def test_what_ranks_have_of_their_own_is_compared_by_the_first_alone():
    own = {**describe_hparams({"shard": 0}), "data.0.dataset.files": Fact("a"), "data.0.dataset.length": Fact(4)}
    other = {**describe_hparams({"shard": 1}), "data.0.dataset.files": Fact("b"), "data.0.dataset.length": Fact(5)}
    assert {d.name for d in diff(own, as_seen_by(1, own, other))} == {"data.0.dataset.length"}
    assert {d.name for d in diff(own, as_seen_by(0, own, other))} == set(own)


def test_a_global_batch_is_what_a_step_takes():
    facts = {"data.0.batch_size": Fact(4), "data.1.batch_size": Fact(None), "data.0.drop_last": Fact(True)}
    assert global_batches(facts, 6) == {"data.0.global_batch_size": Fact(24, "info")}


def test_hyperparameters_are_information_whatever_they_hold():
    facts = describe_hparams({"lr": 0.1, "layers": (1, 2), "net": torch.nn.ReLU(), "act": torch.relu, 3: math.nan})

    assert facts["hparams.lr"] == Fact(0.1)
    assert facts["hparams.layers"] == Fact([1, 2])
    assert facts["hparams.net"] == Fact("ReLU()", "info")
    assert facts["hparams.3"] == Fact("nan")
    assert through_json(facts) == facts


def test_a_hyperparameter_as_large_as_a_vocabulary_is_kept_short():
    facts = describe_hparams({"vocabulary": [f"word{i}" for i in range(50_000)]})

    assert len(facts["hparams.vocabulary"].value) < 100
