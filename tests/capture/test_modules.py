import copy

import pytest
import torch
import torchmetrics
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassPrecision
from torchmetrics.wrappers import Running

from resume_core.capture.modules import apply_modules, capture_modules, plainly_loaded, refilled


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.inner = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout())
        self.inner.register_buffer("count", torch.zeros(3), persistent=False)
        self.register_buffer("cache", None, persistent=False)
        self.register_buffer("kept", torch.zeros(2))


def round_trip(module, other):
    """Through a copy, as a checkpoint is; aliases stay aliases."""
    apply_modules(other, copy.deepcopy(capture_modules(module)))
    return other


# ---- buffers, modes, frozen parameters


def test_non_persistent_buffers_are_put_back_in_place():
    net, other = Net(), Net()
    net.inner.count.copy_(torch.tensor([1.0, 2.0, 3.0]))
    buffer = other.inner.count
    round_trip(net, other)
    assert other.inner.count is buffer
    assert torch.equal(buffer, net.inner.count)


class Expanded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("row", torch.rand(1, 3))
        self.register_buffer("kept", self.row.expand(4, 3))
        self.register_buffer("hidden", torch.rand(2, 1).expand(2, 5), persistent=False)


def test_buffers_that_were_expanded_are_filled_and_stay_the_views_that_they_are():
    net, other = Expanded(), Expanded()
    kept, hidden, row = other.kept, other.hidden, other.row
    with refilled([other, object()]):
        other.load_state_dict(copy.deepcopy(net.state_dict()))
    round_trip(net, other)
    assert (other.kept is kept, other.hidden is hidden) == (True, True)
    assert torch.equal(kept, net.kept)
    assert torch.equal(hidden, net.hidden)
    row.zero_()
    assert not kept.any()


def test_buffers_that_were_expanded_are_put_back_when_loading_fails():
    other = Expanded()
    kept = other.kept
    with pytest.raises(RuntimeError, match="Missing key"), refilled([other]):
        other.load_state_dict({})
    assert other.kept is kept


def test_persistent_buffers_are_left_to_the_state_dict():
    assert "kept" not in capture_modules(Net())["buffers"]


def test_a_buffer_that_was_made_or_grew_during_training_is_put_back():
    net, other = Net(), Net()
    net.cache = torch.arange(4)
    net.inner.count = torch.ones(5, dtype=torch.float64)
    round_trip(net, other)
    assert torch.equal(other.cache, torch.arange(4))
    assert torch.equal(other.inner.count, net.inner.count)
    assert other.inner.count.dtype == torch.float64


def test_a_buffer_that_went_away_during_training_does_too():
    net, other = Net(), Net()
    other.cache = torch.arange(4)
    round_trip(net, other)
    assert other.cache is None


def test_modes_of_single_modules_are_put_back():
    net, other = Net().train(), Net().eval()
    net.inner[0].eval()
    round_trip(net, other)
    assert [module.training for module in other.modules()] == [module.training for module in net.modules()]
    assert not other.inner[0].training
    assert other.inner[1].training


def test_frozen_parameters_are_put_back():
    net, other = Net(), Net()
    net.linear.weight.requires_grad_(False)
    other.linear.bias.requires_grad_(False)
    round_trip(net, other)
    assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in net.parameters()]


def test_captured_tensors_are_live():
    net = Net()
    assert capture_modules(net)["buffers"]["inner.count"] is net.inner.count


def test_modules_that_are_gone_are_passed_over():
    saved = capture_modules(Metrics())
    other = torch.nn.Linear(2, 2)
    apply_modules(other, saved)
    assert other.training


# ---- metrics


class Metrics(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torchmetrics.MeanMetric()
        self.raw = torchmetrics.CatMetric()
        self.ranking = MulticlassAUROC(3)
        self.extremes = torchmetrics.MinMaxMetric(torchmetrics.MeanMetric())
        self.window = Running(torchmetrics.MeanMetric(), 2)
        self.grouped = torchmetrics.MetricCollection([MulticlassAccuracy(3), MulticlassPrecision(3)])
        self.in_place = torchmetrics.MetricCollection(
            {"mse": torchmetrics.MeanSquaredError(), "rmse": torchmetrics.MeanSquaredError(squared=False)}
        )
        self.tracked = torchmetrics.MetricTracker(torchmetrics.MeanSquaredError())

    def feed(self, batch):
        predictions, target = batch
        self.mean.update(predictions[:, 0])
        self.raw.update(predictions[:, 0])
        self.ranking.update(predictions, target)
        self.extremes.update(predictions[:, 1])
        self.extremes.compute()
        self.window.update(predictions[0, 0])
        self.grouped.update(predictions, target)
        self.in_place.update(predictions[:, 0], predictions[:, 1])
        self.tracked.increment()
        self.tracked.update(predictions[:, 0], predictions[:, 1])

    def results(self):
        found = {name: metric.compute() for name, metric in self.named_children() if name != "tracked"}
        return {**found, "tracked": self.tracked.compute_all()}


def batches():
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 3, generator=generator).softmax(-1), torch.randint(3, (8,), generator=generator))
        for _ in range(5)
    ]


@pytest.mark.parametrize("cut", range(1, 5))
def test_metrics_go_on_as_if_they_had_not_been_interrupted(cut):
    whole = Metrics()
    for batch in batches()[:cut]:
        whole.feed(batch)
    resumed = round_trip(whole, Metrics())
    for batch in batches()[cut:]:
        whole.feed(batch)
        resumed.feed(batch)
    torch.testing.assert_close(resumed.results(), whole.results(), rtol=0, atol=0)
    assert resumed.grouped.compute_groups == whole.grouped.compute_groups


def test_metrics_that_fell_into_one_group_by_chance_stay_in_it():
    def build():
        pair = {"one": torchmetrics.MeanSquaredError(), "other": torchmetrics.MeanSquaredError(num_outputs=1)}
        return torch.nn.ModuleDict({"m": torchmetrics.MetricCollection(pair)})

    whole = build()
    whole["m"].update(torch.ones(2), torch.zeros(2))
    assert len(whole["m"].compute_groups) == 1
    resumed = round_trip(whole, build())
    assert resumed["m"].compute_groups == whole["m"].compute_groups
    resumed["m"].update(torch.zeros(2), torch.zeros(2))
    whole["m"].update(torch.zeros(2), torch.zeros(2))
    assert resumed["m"].compute() == whole["m"].compute()


@pytest.mark.filterwarnings("ignore:.*was called before the ``update`` method.*:UserWarning")
def test_results_computed_before_a_save_are_there_after_it():
    whole = Metrics()
    whole.feed(batches()[0])
    expected = whole.results()
    resumed = round_trip(whole, Metrics())
    assert resumed.mean._computed is not None
    assert resumed.mean.update_count == whole.mean.update_count
    torch.testing.assert_close(resumed.results(), expected, rtol=0, atol=0)


def test_a_list_state_does_not_grow_with_the_metric_after_a_capture_or_an_apply():
    metric = torch.nn.ModuleDict({"raw": torchmetrics.CatMetric()})
    metric["raw"].update(torch.ones(2))
    saved = capture_modules(metric)
    metric["raw"].update(torch.ones(2))
    other = torch.nn.ModuleDict({"raw": torchmetrics.CatMetric()})
    apply_modules(other, saved)
    other["raw"].update(torch.ones(2))
    assert len(saved["metrics"]["raw"]["states"]["value"]) == 1
    assert other["raw"].compute().tolist() == [1.0] * 4


def test_metrics_of_one_compute_group_do_not_update_one_tensor_twice():
    whole = Metrics()
    whole.feed(batches()[0])
    saved = copy.deepcopy(capture_modules(whole))
    states = [saved["metrics"][f"in_place.{name}"]["states"] for name in ("mse", "rmse")]
    assert states[0]["sum_squared_error"] is states[1]["sum_squared_error"]
    other = Metrics()
    saved["groups"] = {}  # the groups are found anew with the next update, which updates each metric
    apply_modules(other, saved)
    other.feed(batches()[1])
    whole.feed(batches()[1])
    torch.testing.assert_close(other.results()["in_place"], whole.results()["in_place"], rtol=0, atol=0)


def test_a_collection_with_other_metrics_keeps_its_own_groups():
    whole = torch.nn.ModuleDict({"m": torchmetrics.MetricCollection({"a": torchmetrics.MeanSquaredError()})})
    whole["m"].update(torch.ones(2), torch.zeros(2))
    wider = {"a": torchmetrics.MeanSquaredError(), "b": torchmetrics.MeanAbsoluteError()}
    other = round_trip(whole, torch.nn.ModuleDict({"m": torchmetrics.MetricCollection(wider)}))
    other["m"].update(torch.ones(2), torch.zeros(2))
    assert {name: value.item() for name, value in other["m"].compute().items()} == {"a": 1.0, "b": 1.0}


# ---- what loading overwrites as is


class Turned(torch.nn.Linear):
    """Its file has the weight the other way round."""

    def _load_from_state_dict(self, state_dict, prefix, *args):
        state_dict[prefix + "weight"] = state_dict[prefix + "weight"].t()
        super()._load_from_state_dict(state_dict, prefix, *args)


def hooked(register):
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    getattr(module, register)(lambda *args: None)
    return module


def replaced():
    module = torch.nn.Linear(2, 2)
    module._load_from_state_dict = lambda *args: None
    return module


LOOKING = {
    "a loader of its own": lambda: Turned(2, 2),
    "a loader put in place": replaced,
    "a hook before": lambda: hooked("register_load_state_dict_pre_hook"),
    "a private hook before": lambda: hooked("_register_load_state_dict_pre_hook"),
    "a hook after": lambda: hooked("register_load_state_dict_post_hook"),
    "a metric": lambda: MulticlassAccuracy(3),
    "weight norm": lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2)),
    "a lazy module": lambda: torch.nn.LazyLinear(2),
}


@pytest.mark.parametrize("make", LOOKING.values(), ids=LOOKING)
def test_a_module_that_looks_at_what_it_loads_is_left_out_with_all_below_it(make):
    module = torch.nn.ModuleDict({"plain": torch.nn.Linear(2, 2), "outer": torch.nn.Sequential(make())})
    assert set(plainly_loaded(module)) == {"plain.weight", "plain.bias"}
    assert plainly_loaded(make()) == {}


def test_all_that_a_state_dict_names_is_found_as_the_live_tensors():
    net = Net()
    net.inner.append(net.linear)  # twice in the tree, so twice in a state_dict
    net.spectral = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(2, 2))
    found, named = plainly_loaded(net), net.state_dict()
    assert found.keys() == named.keys()
    assert all(found[name].data_ptr() == named[name].data_ptr() for name in named)
    assert found["linear.weight"] is net.linear.weight


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from what torch.compile imports
def test_a_compiled_module_has_the_names_of_its_state_dict():
    compiled = torch.nn.Sequential(torch.compile(torch.nn.Linear(2, 2)))
    assert plainly_loaded(compiled).keys() == compiled.state_dict().keys() == {"0._orig_mod.weight", "0._orig_mod.bias"}


def test_nothing_is_found_where_loading_makes_new_tensors(monkeypatch):
    monkeypatch.setattr(torch.__future__, "get_swap_module_params_on_conversion", lambda: True)
    assert plainly_loaded(torch.nn.Linear(2, 2)) == {}
