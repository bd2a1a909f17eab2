"""Seed, model and optimizers, as facts that decide a run."""

import json

import pytest
import torch
from descriptions import adamw, changed, model, sequential, sgd, through_json
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR

from resume_core.capture.describe import describe_model, describe_optimizers, describe_schedulers, seed_fact
from resume_core.capture.environment import describe_environment
from resume_core.capture.runconfig import diff, to_json
from resume_core.state import Fact

# --- seed


def test_the_environments_seed_is_the_seed():
    assert seed_fact("42", 7) == Fact(42, "run")


def test_a_small_initial_seed_of_torch_was_set_by_somebody():
    assert seed_fact(None, 7) == Fact(7, "run")
    assert seed_fact(None, 2**32 - 1) == Fact(2**32 - 1, "run")


@pytest.mark.parametrize("torch_seed", [2**32, 67280421310721, 2**64 - 1])
def test_a_run_that_nobody_seeded_has_no_seed(torch_seed):
    assert seed_fact(None, torch_seed) == Fact(None, "info")


def test_torchs_own_default_seed_counts_as_unseeded():
    assert seed_fact(None, torch.Generator().initial_seed()) == Fact(None, "info")


@pytest.mark.parametrize("text", ["", "none", "-1", "1.5"])
def test_an_environment_seed_that_is_no_number_is_passed_over(text):
    assert seed_fact(text, 7) == Fact(7)


def test_an_unseeded_run_never_differs_from_a_seeded_one_in_what_blocks():
    (difference,) = diff({"seed": seed_fact(None, 2**40)}, {"seed": seed_fact("1", 0)})

    assert difference.severity == "info"


# --- model


def test_each_tensor_of_a_model_is_its_dtype_and_shape():
    facts = describe_model(model().state_dict())

    assert facts["model.0.weight"] == Fact("float32[4, 3]", "structure")
    assert facts["model.1.num_batches_tracked"] == Fact("int64[]", "structure")
    assert len(facts) == 7


def test_a_models_values_strides_and_device_are_not_its_structure():
    first = {"w": torch.zeros(2, 3, 4, 5)}
    second = {"w": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()}
    third = {"w": torch.empty(2, 3, 4, 5, device="meta")}

    assert describe_model(first) == describe_model(second) == describe_model(third)


def test_names_shapes_and_dtypes_that_differ_are_found_missing_and_new_ones_too():
    before = describe_model({"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(4), "same": torch.zeros(1)})
    after = describe_model(
        {"a": torch.zeros(5), "b": torch.zeros(3).half(), "d": torch.zeros(4), "same": torch.zeros(1)}
    )

    found = {d.name: (str(d.as_dict().get("saved")), str(d.as_dict().get("current"))) for d in diff(before, after)}

    assert found == {
        "model.a": ("float32[2]", "float32[5]"),
        "model.b": ("float32[3]", "float16[3]"),
        "model.c": ("float32[4]", "None"),
        "model.d": ("None", "float32[4]"),
    }


def test_a_lazy_parameter_that_has_no_shape_yet_is_described():
    lazy = torch.nn.LazyLinear(3)

    facts = describe_model(dict(lazy.named_parameters()))

    assert facts["model.weight"].value == "float32, not initialised"


def test_extra_state_that_is_no_tensor_is_described_by_its_class():
    assert describe_model({"x._extra_state": {"a": 1}})["model.x._extra_state"].value == "builtins.dict"


def test_ten_thousand_tensors_stay_below_a_megabyte_of_json():
    tensors = {f"layers.{i}.attention.query.weight": torch.empty(64, 64, device="meta") for i in range(10_000)}

    assert len(json.dumps(to_json(describe_model(tensors)))) < 1_000_000


# --- optimizers


def test_an_optimizer_is_its_class_its_sizes_and_its_hyperparameters():
    facts = describe_optimizers([adamw(lr=0.1, weight_decay=0.02)])

    assert facts["optimizer.0.class"] == Fact("torch.optim.adamw.AdamW", "structure")
    assert facts["optimizer.0.num_params"] == Fact([4], "structure")
    assert facts["optimizer.0.lr"] == Fact(0.1)
    assert facts["optimizer.0.betas"] == Fact([0.9, 0.999])
    assert facts["optimizer.0.weight_decay"] == Fact(0.02)
    assert facts["optimizer.0.fused"] == Fact(None)
    assert not any("params" in name and "num_params" not in name for name in facts)


@pytest.mark.parametrize(
    ("setting", "value", "default"),
    [
        ("lr", 0.2, 0.1),
        ("betas", (0.8, 0.99), [0.9, 0.999]),
        ("eps", 1e-6, 1e-8),
        ("weight_decay", 0.5, 0.01),
        ("amsgrad", True, False),
        ("maximize", True, False),
        ("foreach", True, None),
        ("capturable", True, False),
        ("fused", True, None),
    ],
)
def test_each_hyperparameter_that_changes_is_found_with_both_values(setting, value, default):
    before = describe_optimizers([adamw()])
    after = describe_optimizers([adamw(**{setting: value})])

    new = list(value) if isinstance(value, tuple) else value
    assert changed(before, after) == {f"optimizer.0.{setting}": (default, new)}


def test_another_class_of_optimizer_is_a_change_of_structure():
    found = diff(describe_optimizers([adamw()]), describe_optimizers([torch.optim.Adam(model().parameters())]))

    assert (found[0].name, found[0].severity) == ("optimizer.0.class", "structure")


def test_param_groups_that_differ_are_listed_and_those_that_agree_are_one_value():
    parts = model()
    optimizer = torch.optim.SGD([{"params": parts[0].parameters(), "lr": 0.5}, {"params": parts[1].parameters()}], 0.1)

    facts = describe_optimizers([optimizer])

    assert facts["optimizer.0.lr"].value == [0.5, 0.1]
    assert facts["optimizer.0.momentum"].value == 0
    assert facts["optimizer.0.num_params"].value == [2, 2]


def test_a_setting_that_only_one_param_group_has_is_listed_with_none():
    parts = model()
    groups = [{"params": parts[0].parameters(), "name": "head"}, {"params": parts[1].parameters()}]

    assert describe_optimizers([torch.optim.SGD(groups, 0.1)])["optimizer.0.name"].value == ["head", None]


def test_a_learning_rate_in_a_tensor_equals_the_same_number():
    plain = describe_optimizers([adamw(lr=0.5)])
    tensor = describe_optimizers([adamw(lr=torch.tensor(0.5), capturable=False, foreach=False)])

    assert "optimizer.0.lr" not in changed(plain, tensor)


def test_several_optimizers_are_numbered():
    facts = describe_optimizers([adamw(), sgd()])

    assert facts["optimizer.1.momentum"] == Fact(0.9)
    assert facts["optimizer.1.class"].value.endswith("SGD")


def test_an_object_without_param_groups_is_described_by_its_class():
    assert describe_optimizers([object()])["optimizer.0.class"].value == "builtins.object"


def test_a_group_added_later_is_a_change_of_structure():
    optimizer = sgd()
    before = describe_optimizers([optimizer])
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})

    assert changed(before, describe_optimizers([optimizer]))["optimizer.0.num_params"] == ([4], [4, 1])


def test_the_learning_rate_that_a_scheduler_has_moved_is_no_change():
    optimizer = adamw()
    scheduler = CosineAnnealingLR(optimizer, 10)
    before = {**describe_optimizers([optimizer]), **describe_schedulers([scheduler])}

    for _ in range(5):
        optimizer.step()
        scheduler.step()

    assert optimizer.param_groups[0]["lr"] != 0.1
    assert diff(before, {**describe_optimizers([optimizer]), **describe_schedulers([scheduler])}) == ()


def test_a_warmup_that_lowers_the_first_learning_rate_leaves_the_configured_one():
    optimizer = adamw(lr=0.1)
    LinearLR(optimizer, start_factor=0.01)

    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
    assert describe_optimizers([optimizer])["optimizer.0.lr"].value == 0.1


def test_the_momentum_that_a_cycle_moves_is_the_same_in_two_fresh_objects():
    def facts():
        optimizer = adamw()
        return {**describe_schedulers([OneCycleLR(optimizer, 0.5, total_steps=10)]), **describe_optimizers([optimizer])}

    assert diff(through_json(facts()), facts()) == ()


def test_describing_draws_no_random_number_and_moves_nothing():
    optimizer = adamw()
    scheduler = sequential()
    before = torch.get_rng_state(), json.dumps(str(optimizer.state_dict())), str(scheduler.state_dict())

    describe_optimizers([optimizer])
    describe_schedulers([scheduler])
    describe_environment()

    assert torch.equal(torch.get_rng_state(), before[0])
    assert json.dumps(str(optimizer.state_dict())) == before[1]
    assert str(scheduler.state_dict()) == before[2]
