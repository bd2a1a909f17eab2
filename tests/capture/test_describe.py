import functools
import json
import math

import pytest
import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    OneCycleLR,
    PolynomialLR,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from resume_core.capture.describe import (
    describe_model,
    describe_optimizers,
    describe_schedulers,
    seed_fact,
)
from resume_core.capture.describe_settings import describe_hparams
from resume_core.capture.environment import describe_environment
from resume_core.capture.runconfig import diff, from_json, to_json
from resume_core.state import Fact


def model():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def adamw(lr=0.1, **settings):
    return torch.optim.AdamW(model().parameters(), lr=lr, **settings)


def sgd(lr=0.1, momentum=0.9):
    return torch.optim.SGD(model().parameters(), lr=lr, momentum=momentum)


def changed(before, after):
    return {difference.name: (difference.saved, difference.current) for difference in diff(before, after)}


def through_json(facts):
    return from_json(json.loads(json.dumps(to_json(facts))))


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


# --- schedulers

SCHEDULERS = {
    "StepLR.step_size": (lambda o, v: StepLR(o, v), 3, 4),
    "StepLR.gamma": (lambda o, v: StepLR(o, 3, gamma=v), 0.1, 0.2),
    "MultiStepLR.milestones": (lambda o, v: MultiStepLR(o, v), [3, 5, 5], [3, 6]),
    "ConstantLR.factor": (lambda o, v: ConstantLR(o, factor=v), 0.5, 0.25),
    "ConstantLR.total_iters": (lambda o, v: ConstantLR(o, total_iters=v), 5, 6),
    "LinearLR.start_factor": (lambda o, v: LinearLR(o, start_factor=v), 0.1, 0.2),
    "LinearLR.end_factor": (lambda o, v: LinearLR(o, end_factor=v), 1.0, 0.9),
    "LinearLR.total_iters": (lambda o, v: LinearLR(o, total_iters=v), 5, 50),
    "ExponentialLR.gamma": (lambda o, v: ExponentialLR(o, v), 0.9, 0.8),
    "PolynomialLR.power": (lambda o, v: PolynomialLR(o, power=v), 1.0, 2.0),
    "CosineAnnealingLR.T_max": (lambda o, v: CosineAnnealingLR(o, v), 100, 200),
    "CosineAnnealingLR.eta_min": (lambda o, v: CosineAnnealingLR(o, 10, eta_min=v), 0.0, 0.01),
    "CosineAnnealingWarmRestarts.T_0": (lambda o, v: CosineAnnealingWarmRestarts(o, v), 3, 4),
    "CosineAnnealingWarmRestarts.T_mult": (lambda o, v: CosineAnnealingWarmRestarts(o, 3, T_mult=v), 1, 2),
    "OneCycleLR.total_steps": (lambda o, v: OneCycleLR(o, 0.5, total_steps=v, pct_start=0.5), 10, 20),
    "OneCycleLR.phase_ends": (lambda o, v: OneCycleLR(o, 0.5, total_steps=10, pct_start=v[0]), [0.3, 1.0], [0.4, 1.0]),
    "OneCycleLR.anneal_func_type": (lambda o, v: OneCycleLR(o, 0.5, total_steps=9, anneal_strategy=v), "cos", "linear"),
    "CyclicLR.max_lrs": (lambda o, v: CyclicLR(o, 0.1, v), [0.5], [0.6]),
    "CyclicLR.mode": (lambda o, v: CyclicLR(o, 0.1, 0.5, mode=v, scale_fn=abs), "triangular", "triangular2"),
    "ReduceLROnPlateau.patience": (lambda o, v: ReduceLROnPlateau(o, patience=v), 10, 5),
    "ReduceLROnPlateau.factor": (lambda o, v: ReduceLROnPlateau(o, factor=v), 0.1, 0.5),
    "ReduceLROnPlateau.threshold": (lambda o, v: ReduceLROnPlateau(o, threshold=v), 1e-4, 1e-3),
    "ReduceLROnPlateau.min_lrs": (lambda o, v: ReduceLROnPlateau(o, min_lr=v), [0.0], [0.01]),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_setting_of_each_scheduler_is_found_with_both_values(name):
    make, old, new = SCHEDULERS[name]
    fact = "scheduler.0." + name.partition(".")[2]
    before, after = (describe_schedulers([make(sgd(), value)]) for value in (old, new))

    found = changed(through_json(before), after)

    assert found.pop(fact) == (old, new)
    assert all(key in ("scheduler.0.default_min_lr",) for key in found), "one change, one row"


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_that_has_run_differs_in_nothing_from_a_fresh_one(name):
    make, value, _ = SCHEDULERS[name]
    optimizer = sgd()
    scheduler = make(optimizer, value)
    fresh = describe_schedulers([scheduler])

    for _ in range(7):
        optimizer.step()
        scheduler.step(*([1.0] if isinstance(scheduler, ReduceLROnPlateau) else []))

    assert diff(fresh, describe_schedulers([scheduler])) == ()


def test_another_class_of_scheduler_is_found():
    found = changed(describe_schedulers([StepLR(sgd(), 3)]), describe_schedulers([ExponentialLR(sgd(), 0.1)]))

    module = "torch.optim.lr_scheduler"
    assert found["scheduler.0.class"] == (f"{module}.StepLR", f"{module}.ExponentialLR")


def sequential(warmup=3, horizon=10):
    optimizer = sgd()
    parts = [LinearLR(optimizer, total_iters=warmup), CosineAnnealingLR(optimizer, horizon)]
    return SequentialLR(optimizer, parts, [warmup])


def test_the_parts_of_a_sequential_schedule_are_described_one_by_one():
    facts = describe_schedulers([sequential()])

    assert facts["scheduler.0.milestones"].value == [3]
    assert facts["scheduler.0.schedulers.0.total_iters"].value == 3
    assert facts["scheduler.0.schedulers.1.T_max"].value == 10


def test_a_longer_horizon_of_a_nested_schedule_is_found():
    found = changed(describe_schedulers([sequential(horizon=10)]), describe_schedulers([sequential(horizon=20)]))

    assert found == {"scheduler.0.schedulers.1.T_max": (10, 20)}


def test_schedules_nested_twice_are_described():
    optimizer = sgd()
    inner = ChainedScheduler([LinearLR(optimizer), ExponentialLR(optimizer, 0.5)], optimizer)

    facts = describe_schedulers([ChainedScheduler([inner, StepLR(optimizer, 4)], optimizer)])

    assert facts["scheduler.0.schedulers.0.schedulers.1.gamma"].value == 0.5
    assert facts["scheduler.0.schedulers.1.step_size"].value == 4


def test_a_schedule_that_holds_itself_ends():
    scheduler = StepLR(sgd(), 3)
    scheduler.again = scheduler

    assert describe_schedulers([scheduler])["scheduler.0.again.class"].value.endswith("StepLR")


def test_the_name_of_a_lambda_is_information():
    facts = describe_schedulers([LambdaLR(sgd(), math.exp)])

    assert facts["scheduler.0.lr_lambdas"] == Fact(["math.exp"], "info")


def warmup_schedule(step, *, num_warmup_steps, num_training_steps):
    return min(1.0, step / num_warmup_steps, (num_training_steps - step) / num_training_steps)


def test_the_horizon_inside_a_partial_is_a_fact_of_the_run():
    def facts(steps):
        schedule = functools.partial(warmup_schedule, num_warmup_steps=10, num_training_steps=steps)
        return describe_schedulers([LambdaLR(sgd(), schedule)])

    (difference,) = diff(facts(100), facts(200))

    assert difference.name == "scheduler.0.lr_lambdas.0.num_training_steps"
    assert (difference.saved, difference.current, difference.severity) == (100, 200, "run")


def test_the_horizon_that_a_lambda_closes_over_is_a_fact_of_the_run():
    def facts(steps):
        return describe_schedulers([LambdaLR(sgd(), lambda step: min(1.0, (step + 1) / steps))])

    assert changed(facts(100), facts(200)) == {"scheduler.0.lr_lambdas.0.steps": (100, 200)}


class Decay:
    def __init__(self, rate):
        self.rate = rate

    def __call__(self, step):
        return self.rate**step


def test_the_attributes_of_a_callable_object_are_facts_of_the_run():
    found = changed(
        describe_schedulers([LambdaLR(sgd(), Decay(0.9))]), describe_schedulers([LambdaLR(sgd(), Decay(0.8))])
    )

    assert found == {"scheduler.0.lr_lambdas.0.rate": (0.9, 0.8)}


def test_a_changed_learning_rate_is_named_once_and_not_again_by_its_scheduler():
    def facts(lr):
        optimizer = sgd(lr)
        return {**describe_schedulers([StepLR(optimizer, 3)]), **describe_optimizers([optimizer])}

    assert changed(facts(0.1), facts(0.2)) == {"optimizer.0.lr": (0.1, 0.2)}


def test_base_learning_rates_that_the_user_replaced_are_facts():
    scheduler = StepLR(sgd(0.1), 3)
    scheduler.base_lrs = [0.7]

    assert describe_schedulers([scheduler])["scheduler.0.base_lrs"].value == [0.7]


def test_a_scheduler_of_the_users_own_is_described_by_its_plain_attributes():
    class Mine:
        def __init__(self):
            self.horizon, self.optimizer, self.last_epoch, self._cache = 50, sgd(), 3, 1

    facts = describe_schedulers([Mine()])

    assert facts["scheduler.0.horizon"].value == 50
    assert {name for name in facts if facts[name].severity == "run"} == {"scheduler.0.class", "scheduler.0.horizon"}


# --- hyperparameters and environment


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


def test_machine_and_versions_are_information_and_plain():
    facts = describe_environment()

    machine = ("packages.torch", "environment.host", "environment.cpu", "environment.gpus", "environment.threads")
    assert {facts[name].severity for name in machine} == {"info"}
    assert facts["packages.torch"].value == torch.__version__
    assert facts["environment.threads"].value == torch.get_num_threads()
    assert facts["environment.default_dtype"].value == "torch.float32"
    assert facts["environment.cpu"].value
    assert through_json(facts) == facts


def test_another_number_of_threads_is_found():
    threads = torch.get_num_threads()
    before = describe_environment()
    try:
        torch.set_num_threads(threads + 1)
        assert changed(before, describe_environment()) == {"environment.threads": (threads, threads + 1)}
    finally:
        torch.set_num_threads(threads)


def test_describing_the_environment_starts_no_cuda_runtime():
    before = torch.cuda.is_initialized()

    describe_environment()

    assert torch.cuda.is_initialized() == before


def test_the_gpus_of_a_running_cuda_runtime_are_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: f"card {i}")

    assert describe_environment()["environment.gpus"].value == ["card 0", "card 1"]


def test_a_machine_without_cpuinfo_is_still_described(monkeypatch):
    monkeypatch.setattr("pathlib.Path.read_text", lambda *args, **kwargs: "nothing that helps")

    assert isinstance(describe_environment()["environment.cpu"].value, str)


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
