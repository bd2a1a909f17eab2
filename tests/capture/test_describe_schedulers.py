"""Schedulers as facts: what was configured, whatever they have moved since."""

import functools
import math
import statistics
import sys

import pytest
from descriptions import changed, sequential, sgd, through_json
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
    StepLR,
)

from resume_core.capture.as_saved import goes_on_as_saved
from resume_core.capture.describe import describe_optimizers, describe_schedulers
from resume_core.capture.function_code import function_source
from resume_core.capture.function_reads import function_reads
from resume_core.capture.runconfig import diff
from resume_core.state import Fact

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


def test_the_name_of_a_function_is_what_it_computes_where_it_is_a_library_s_and_else_information():
    of_python, of_a_class, own = of_schedule(math.exp, float, halves)

    assert of_python["scheduler.0.lr_lambdas"] == Fact(["math.exp"])
    assert of_a_class["scheduler.0.lr_lambdas"] == Fact(["builtins.float"])
    assert own["scheduler.0.lr_lambdas"].severity == "info"


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


RATE = 0.9


def halves(step):
    """Some words."""
    factor = 0.5**step  # and more
    return max(each for each in [factor, 0])


def thirds(step):
    factor = (1 / 3) ** step
    return max(each for each in [factor, 0])


def same_as_halves(step):
    factor = 0.5**step
    return max(each for each in [factor, 0])


class Falls:
    def __call__(self, step):
        return 0.1**step


def of_schedule(*schedules):
    return [describe_schedulers([LambdaLR(sgd(), schedule)]) for schedule in schedules]


has_positions = pytest.mark.skipif(sys.version_info < (3, 11), reason="where expressions lie is known since 3.11")


@has_positions
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda step: 0.9**step, lambda step: 0.8**step),
        (lambda step: step + 1, lambda step: step - 1),
        (halves, thirds),
        (functools.partial(halves), functools.partial(thirds)),
        (Decay(0.9), Falls()),
    ],
)
def test_what_the_function_of_a_schedule_computes_is_a_fact_of_the_run(one, other):
    one, other = of_schedule(one, other)
    (name, *_) = [name for name in changed(one, other) if name.endswith(".source")]
    assert name == "scheduler.0.lr_lambdas.0.source"
    assert one[name].severity == "run"
    assert not goes_on_as_saved(name)


def test_comments_and_spaces_of_it_are_none_and_neither_is_what_else_a_line_holds():
    assert not [name for name in changed(*of_schedule(halves, same_as_halves)) if name.endswith(".source")]
    one, other = (lambda step: 0.9**step), (lambda step:   0.9 ** step)  # fmt: skip
    assert changed(*of_schedule(one, other)) == {}


def test_the_constants_of_a_script_that_it_reads_are_facts(monkeypatch):
    (before,) = of_schedule(lambda step: RATE**step)
    monkeypatch.setitem(globals(), "RATE", 0.8)
    (after,) = of_schedule(lambda step: RATE**step)
    assert changed(before, after) == {"scheduler.0.lr_lambdas.0.RATE": (0.9, 0.8)}


def test_a_function_of_a_library_is_told_by_its_name_alone():
    assert function_source(math.exp) is function_source(functools.reduce) is function_source(statistics.mean) is None
    assert function_reads(statistics.mean) == {}


def test_a_function_without_source_has_none():
    code = compile("def f(step): return step", "<nowhere>", "exec")
    space = {}
    exec(code, space)
    assert function_source(space["f"]) is None
