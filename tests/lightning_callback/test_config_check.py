"""A change of the run is found before anything is loaded, and named with both values."""

from __future__ import annotations

import json

import pytest
import torch
from small import Net, make_loader

from lightning_resume import Changes
from resume_core.errors import ConfigChangedError

CHANGES = {
    "seed": (lambda: {"seed": 8}, "seed", "7", "8"),
    "batch size": (lambda: {"loader": make_loader(batch_size=2)}, "data.0.batch_size", "4", "2"),
    "accumulation": (lambda: {"accumulate_grad_batches": 2}, "accumulate_grad_batches", "1", "2"),
    "precision": (lambda: {"precision": "bf16-mixed"}, "precision", "32-true", "bf16-mixed"),
    "clipping": (lambda: {"gradient_clip_val": 0.5}, "gradient_clip_val", "null", "0.5"),
    "dataset length": (lambda: {"loader": make_loader(num_samples=20)}, "length", "16", "20"),
    "sampler": (lambda: {"loader": make_loader(shuffle=False)}, "sampler", "RandomSampler", "SequentialSampler"),
    "drop_last": (lambda: {"loader": make_loader(drop_last=True)}, "drop_last", "false", "true"),
    "optimizer": (lambda: {"net": Net(optimizer="Adam")}, "optimizer.0", "AdamW", "Adam"),
    "learning rate": (lambda: {"net": Net(optimizer_arguments={"lr": 0.5})}, "optimizer.0.lr", "0.01", "0.5"),
    "weight decay": (
        lambda: {"net": Net(optimizer_arguments={"weight_decay": 0.2})},
        "optimizer.0.weight_decay",
        "0.01",
        "0.2",
    ),
    "betas": (lambda: {"net": Net(optimizer_arguments={"betas": (0.5, 0.9)})}, "optimizer.0.betas", "0.999", "0.5"),
    "scheduler": (lambda: {"net": Net(scheduler="StepLR")}, "scheduler.0", "CosineAnnealingLR", "StepLR"),
    "horizon": (lambda: {"net": Net(horizon=99)}, "scheduler.0.T_max", "20", "99"),
    "shape": (lambda: {"net": Net(width=6)}, "model.layers.0.weight", "4", "6"),
    "dtype": (lambda: {"net": Net().double()}, "model.layers.0.weight", "float32", "float64"),
}


@pytest.fixture
def saved(fit):
    fit(max_epochs=1)
    return fit


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_is_refused_with_both_values_and_nothing_is_loaded(saved, change, monkeypatch):
    arguments, name, before, after = CHANGES[change]
    given = arguments()
    net = given.setdefault("net", Net())
    parameters = [p.detach().clone() for p in net.parameters()]
    num_optimizer_loads = []
    monkeypatch.setattr(torch.optim.Optimizer, "load_state_dict", lambda *a, **k: num_optimizer_loads.append(1))
    with pytest.raises(ConfigChangedError) as refused:
        saved(**given)
    message = str(refused.value)
    assert name in message
    assert before in message
    assert after in message
    assert all(torch.equal(a, b) for a, b in zip(parameters, net.parameters(), strict=True))
    assert (net.num_loads, net.num_steps, num_optimizer_loads) == (0, 0, [])
    assert refused.value.differences


@pytest.mark.parametrize("change", ["seed", "batch size", "learning rate"])
def test_a_change_that_is_allowed_by_name_goes_on_and_is_recorded(saved, change, messages, tmp_path):
    arguments, name, *_ = CHANGES[change]
    manifests = {
        str(path.parent): json.loads(path.read_text()) for path in (tmp_path / "run").glob("*/*/manifest.json")
    }
    _, trainer = saved(**arguments(), changes=Changes(allow=(name,)))
    assert trainer.current_epoch == 2
    is_applied = change == "batch size"
    said = "changes that were allowed" if is_applied else "accepted, and not applied: the run goes on with the saved"
    assert any(said in message and name in message for message in messages())
    attempt = json.loads(next((tmp_path / "run").glob("attempt-0002-*/attempt.json")).read_text())
    (told,) = attempt["info"]["accepted"]
    assert (told["name"], told["accepted_as"], told["is_applied"]) == (name, "allowed", is_applied)
    if change == "learning rate":
        group = trainer.optimizers[0].param_groups[0]
        assert group["initial_lr"] == told["saved"] != told["current"]
    restored = tmp_path / "run" / attempt["restored_from"]["attempt"] / attempt["restored_from"]["name"]
    assert attempt["info"]["restored_digest"] == manifests[str(restored)]["digest"]


def test_changes_can_be_let_through_with_a_warning(saved, messages):
    saved(loader=make_loader(batch_size=2), changes=Changes(otherwise="warn"))
    assert any("data.0.batch_size" in message for message in messages())


def test_a_change_of_structure_is_refused_even_when_others_are_let_through(saved):
    with pytest.raises(ConfigChangedError, match=r"layers\.0\.weight"):
        saved(net=Net(width=6), changes=Changes(otherwise="warn"))


@pytest.mark.parametrize(
    "harmless",
    [
        {"max_epochs": 5},
        {"loader": make_loader(num_workers=2)},
        {"val_check_interval": 0.5},
        {"seed": 7},
    ],
    ids=["a later end", "workers", "validation", "nothing"],
)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_what_does_not_change_the_run_does_not_block(saved, harmless):
    _, trainer = saved(**harmless)
    assert trainer.current_epoch == trainer.max_epochs


def test_a_later_end_is_refused_where_a_schedule_depends_on_it(saved):
    with pytest.raises(ConfigChangedError, match=r"T_max"):
        saved(max_epochs=5, net=Net(horizon=50))
