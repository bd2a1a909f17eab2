"""What the callback does to a Trainer, and gives back."""

from __future__ import annotations

import random

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from small import QUIET, Net, make_loader
from torch.utils.data import DataLoader, TensorDataset, random_split

import lightning_resume
from lightning_resume import Changes, ResumeCallback, SaveEvery
from lightning_resume._probe import probe
from resume_core.errors import ConfigChangedError, ResumeError


def trainer_of(tmp_path, *callbacks, **arguments):
    return L.Trainer(**QUIET | {"max_epochs": 1, "default_root_dir": str(tmp_path)} | arguments, callbacks=[*callbacks])


def shadows(trainer):
    owners = (
        trainer,
        trainer.strategy,
        trainer.fit_loop,
        trainer.fit_loop.epoch_loop,
        trainer.fit_loop.epoch_loop.val_loop,
        trainer._checkpoint_connector,
    )
    return [
        name for owner in owners for name, value in vars(owner).items() if "shadow" in getattr(value, "__name__", "")
    ]


def test_trainer_and_loaders_are_given_back_as_they_were(fit):
    loader = make_loader()
    _, trainer = fit(loader=loader, max_epochs=1)
    assert shadows(trainer) == []
    assert type(loader) is DataLoader
    assert type(trainer.fit_loop._combined_loader).__name__ == "CombinedLoader"
    assert not hasattr(type(trainer.fit_loop._combined_loader), "_plain")


def test_trainer_and_loaders_are_given_back_after_an_error_too(fit):
    class Fails(Net):
        def training_step(self, batch, batch_idx):
            raise RuntimeError("the user's own")

    loader = make_loader()
    with pytest.raises(RuntimeError, match="the user's own"):
        fit(net=Fails(), loader=loader)
    assert shadows(fit.trainer) == []
    assert type(loader) is DataLoader


def test_while_it_trains_the_loader_stays_what_it_was(fit):
    loader = make_loader()
    sampler, dataset, seen = loader.batch_sampler, loader.dataset, []

    class Looks(L.Callback):
        def on_train_batch_start(self, trainer, *args):
            seen.append(
                trainer.train_dataloader is loader
                and isinstance(loader, DataLoader)
                and loader.batch_sampler is sampler
                and loader.dataset is dataset
                and isinstance(loader.dataset, TensorDataset)
            )

    fit(loader=loader, callbacks=[Looks()], max_epochs=1)
    assert seen == [True] * 4


def test_fast_dev_run_turns_everything_off(fit, tmp_path):
    fit(fast_dev_run=True)
    assert not (tmp_path / "run").exists()


def test_evaluation_is_left_alone(fit, tmp_path):
    class WithTest(Net):
        def validation_step(self, batch, batch_idx):
            return None

    callback = ResumeCallback(tmp_path / "run")
    trainer_of(tmp_path, callback).validate(WithTest(), make_loader(shuffle=False), verbose=False)
    assert not (tmp_path / "run").exists()


class Validates(Net):
    def validation_step(self, batch, batch_idx):
        self.log("val", self.layers(batch[0]).mean() + torch.rand(()))


def test_evaluation_before_and_between_fits_changes_nothing_of_training(tmp_path):
    ends = []
    for name, evaluates in (("without", False), ("with", True), ("with", True)):
        L.seed_everything(7, verbose=False)
        trainer, net = trainer_of(tmp_path, ResumeCallback(tmp_path / name, save=SaveEvery(steps=1))), Validates()
        held_out = make_loader(shuffle=False)
        for end in (1, 2):
            if evaluates:
                with torch.random.fork_rng():
                    trainer.validate(net, held_out, verbose=False)
            trainer.fit_loop.max_epochs = end
            trainer.fit(net, make_loader(), held_out)
        ends.append(net.state_dict())
    assert net.num_steps == 0  # the third had nothing left to train
    for other in ends[1:]:
        assert all(torch.equal(value, ends[0][name]) for name, value in other.items())


def test_a_second_fit_may_have_other_data(tmp_path, messages):
    def train(name, fail_at=None):
        class Fails(Net):
            def training_step(self, batch, batch_idx):
                if self.trainer.global_step == fail_at:
                    raise RuntimeError("cut")
                return super().training_step(batch, batch_idx)

        L.seed_everything(7, verbose=False)
        trainer, net = trainer_of(tmp_path, ResumeCallback(tmp_path / name, save=SaveEvery(steps=1))), Fails()
        trainer.fit(net, make_loader())
        trainer.fit_loop.max_epochs = 3
        trainer.fit(net, make_loader(num_samples=40, batch_size=8))
        return net.state_dict()

    expected = train("whole")
    with pytest.raises(RuntimeError, match="cut"):
        train("cut", 7)
    found = train("cut")
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
    assert sum("resumed at step" in message for message in messages()) == 1


def test_two_trainers_one_after_the_other_have_a_directory_each(tmp_path):
    for _ in range(2):
        for name in ("pretrained", "tuned"):
            L.seed_everything(7, verbose=False)
            trainer = trainer_of(tmp_path, ResumeCallback(tmp_path / name))
            trainer.fit(Net(), make_loader())
            assert trainer.global_step == 4
    assert len(list(tmp_path.glob("*/attempt-*"))) == 2


def test_a_finished_run_that_is_started_again_touches_no_logger_and_runs_no_hook_of_training(fit, tmp_path):
    class Counts(Logger):
        name, version = "counts", 0
        calls = ()

        def log_hyperparams(self, *args, **kwargs):
            self.calls += ("hyperparams",)

        def log_metrics(self, *args, **kwargs):
            self.calls += ("metrics",)

    hooks = []

    class Watches(L.Callback):
        def __getattribute__(self, name):
            if name.startswith(("on_train", "on_validation", "on_sanity")):
                hooks.append(name)
            return super().__getattribute__(name)

    first, second = Counts(), Counts()
    fit(logger=first, log_every_n_steps=1, callbacks=[Watches()])
    assert {"hyperparams"} <= set(first.calls)
    assert "on_train_start" in hooks
    hooks.clear()
    _, trainer = fit(logger=second, log_every_n_steps=1, callbacks=[Watches()])
    assert second.calls == ()
    assert hooks == []
    assert (trainer.current_epoch, trainer.global_step) == (2, 8)
    assert trainer.enable_autolog_hparams
    assert shadows(trainer) == []


@pytest.mark.parametrize("estimated", [False, True], ids=["fixed horizon", "horizon from the loader"])
def test_the_hook_that_makes_the_loader_is_called_once_and_its_split_is_the_same_in_every_attempt(tmp_path, estimated):
    calls = []

    class Splits(Net):
        def configure_optimizers(self):
            if estimated:
                assert self.trainer.estimated_stepping_batches == 4 * self.trainer.max_epochs
            return super().configure_optimizers()

        def train_dataloader(self):
            data = TensorDataset(torch.arange(60.0).reshape(20, 3))
            part, _ = random_split(data, [16, 4])  # drawn from the global generator
            calls.append(list(part.indices))
            return DataLoader(part, 4)

    for seed in (1, 2):
        L.seed_everything(seed, verbose=False)
        callback = ResumeCallback(tmp_path / "run", save=SaveEvery(steps=1), changes=Changes(allow=("seed",)))
        trainer_of(tmp_path, callback, max_epochs=seed).fit(Splits())
    assert len(calls) == 2
    assert calls[0] == calls[1]


def test_a_split_that_changed_outside_is_found(fit):
    def split(seed):
        data = TensorDataset(torch.arange(60.0).reshape(20, 3))
        part, _ = random_split(data, [16, 4], generator=torch.Generator().manual_seed(seed))
        return DataLoader(part, 4)

    fit(loader=split(1), max_epochs=1)
    with pytest.raises(ConfigChangedError, match=r"data\.0"):
        fit(loader=split(2))


def test_the_restore_is_one_line_with_all_that_matters(fit, messages):
    fit(max_epochs=1)
    fit(max_epochs=2)
    lines = [m for m in messages() if m.startswith("resumed")]
    assert len(lines) == 1
    for part in ("step 4", "batch 4", "epoch 0", "attempt-0001-", "step-000000004", " s;", "attempt-0002-"):
        assert part in lines[0]


def test_both_blocking_times_are_said_once_when_model_checkpoint_is_on_too(fit, messages):
    fit(enable_checkpointing=True)
    assert len([m for m in messages() if "ModelCheckpoint" in m and "enable_checkpointing=False" in m]) == 1


def test_nothing_is_said_of_model_checkpoint_when_it_is_off(fit, messages):
    fit()
    assert not any("ModelCheckpoint" in m for m in messages())


@pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")
def test_early_stopping_and_model_checkpoint_go_on_with_their_state(fit, tmp_path):
    class Logs(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss, on_epoch=True, on_step=False)
            return loss

    def train(name, *ends):
        for end in ends:
            early = EarlyStopping("loss", patience=50, check_on_train_epoch_end=True)
            top = ModelCheckpoint(tmp_path / name, monitor="loss", save_top_k=2, save_on_train_epoch_end=True)
            resume = ResumeCallback(tmp_path / f"{name}-run", save=SaveEvery(steps=1))
            torch.manual_seed(0)
            fit(net=Logs(), callback=resume, callbacks=[early, top], max_epochs=end, enable_checkpointing=True)
        return early.best_score, list(top.best_k_models.values())

    assert train("cut", 3, 4) == train("whole", 4)


def test_missing_internals_are_named_with_the_version(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path)
    probe(trainer)
    monkeypatch.delattr(type(trainer.fit_loop.epoch_loop), "on_run_start")
    monkeypatch.delattr(type(trainer._checkpoint_connector), "restore_callbacks")
    with pytest.raises(ResumeError, match=r"lightning 2\..*on_run_start.*restore_callbacks"):
        probe(trainer)


def test_internals_that_take_other_arguments_are_named(tmp_path, monkeypatch):
    trainer = trainer_of(tmp_path)
    monkeypatch.setattr(type(trainer.fit_loop.epoch_loop), "on_advance_end", lambda self, fetcher, more: None)
    with pytest.raises(ResumeError, match="on_advance_end"):
        probe(trainer)


def test_validation_does_not_move_the_randomness_of_training(fit, tmp_path):
    class Draws(Net):
        draws = 0

        def __init__(self):
            super().__init__()
            self.seen = []

        def training_step(self, batch, batch_idx):
            self.seen.append((torch.rand(()).item(), random.random()))
            return super().training_step(batch, batch_idx)

        def validation_step(self, batch, batch_idx):
            torch.rand(self.draws)
            random.random()

    class DrawsMore(Draws):
        draws = 10

    seen = []
    for name, kind, every in (("a", Draws, 1.0), ("b", DrawsMore, 0.5)):
        net = kind()
        L.seed_everything(3, verbose=False)
        trainer = trainer_of(tmp_path, ResumeCallback(tmp_path / name), max_epochs=2, val_check_interval=every)
        trainer.fit(net, make_loader(), make_loader(shuffle=False))
        seen.append(net.seen)
    assert seen[0] == seen[1]


def test_optimizer_state_keeps_its_precision_when_parameters_are_in_bf16(fit):
    class HighMoments(torch.optim.SGD):
        """Keeps fp32 copies of bf16 parameters, as mixed-precision optimizers do."""

        def step(self, closure=None):
            loss = super().step(closure)
            for group in self.param_groups:
                for parameter in group["params"]:
                    state = self.state[parameter]
                    state["master"] = state.get("master", parameter.detach().float()) * 1.0001
            return loss

    class Half(Net):
        def configure_optimizers(self):
            return HighMoments(self.parameters(), lr=0.01)

    def half():
        torch.manual_seed(0)
        return Half().bfloat16()

    def data():
        return DataLoader(TensorDataset(torch.ones(8, 3, dtype=torch.bfloat16)), 4)

    fit(net=half(), loader=data(), max_epochs=1)
    before = [s["master"] for s in fit.trainer.optimizers[0].state.values()]
    fit(net=half(), loader=data(), max_epochs=1)
    after = [s["master"] for s in fit.trainer.optimizers[0].state.values()]
    assert [t.dtype for t in after] == [torch.float32] * 4
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_public_names_are_those_of_the_design():
    names = ["ResumeCallback", "SaveEvery", "Keep", "Changes", "Preemption", "Check", "Watch"]
    assert lightning_resume.__all__ == names


def test_loaders_asked_for_early_read_nothing_before_the_run_knows_where_it_goes_on(fit):
    reads = []

    class Counted(torch.utils.data.Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            reads.append(index)
            return [torch.ones(3)]

    class Early(Net):
        def configure_optimizers(self):
            assert self.trainer.estimated_stepping_batches > 0
            assert reads == []
            return super().configure_optimizers()

    fit(net=Early(), loader=DataLoader(Counted(), 4, shuffle=True), max_epochs=1)
    assert sorted(reads) == list(range(16))


def test_another_seed_gives_another_order_also_when_loaders_are_asked_for_early(tmp_path):
    orders = []

    class Early(Net):
        def configure_optimizers(self):
            assert self.trainer.estimated_stepping_batches > 0
            return super().configure_optimizers()

        def training_step(self, batch, batch_idx):
            orders[-1].append(batch[0][:, 0].tolist())
            return super().training_step(batch, batch_idx)

    for seed in (1, 2, 1):
        orders.append([])
        L.seed_everything(seed, verbose=False)
        trainer_of(tmp_path, ResumeCallback(tmp_path / str(len(orders)))).fit(Early(), make_loader())
    assert orders[0] != orders[1]
    assert orders[0] == orders[2]


@pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")
def test_model_checkpoint_knows_what_it_saved_last(fit, tmp_path):
    class Logs(Net):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.log("loss", loss)
            return loss

    class AtFirstBatch(L.Callback):
        found = None

        def on_train_batch_start(self, trainer, *args):
            top = trainer.checkpoint_callback
            self.found = self.found or (top._last_global_step_saved, top.current_score, top.best_model_path)

    def top():
        return ModelCheckpoint(tmp_path / "top", monitor="loss", every_n_train_steps=1, save_top_k=1)

    first, looks = top(), AtFirstBatch()
    fit(net=Logs(), max_epochs=1, callbacks=[first], enable_checkpointing=True)
    fit(net=Logs(), max_epochs=2, callbacks=[top(), looks], enable_checkpointing=True)
    assert looks.found == (first._last_global_step_saved, first.current_score, first.best_model_path)


def test_attributes_that_change_are_named_wherever_they_are(fit, messages):
    class Stats:
        best = None

        def __init__(self):
            self.seen = 0

    class Holds(L.Callback):
        def __init__(self):
            self.stats, self.trainer, self.logger, self.where = Stats(), None, None, []

        def on_train_batch_end(self, trainer, *args):
            self.trainer, self.logger = trainer, trainer.logger
            self.stats.seen += 1

    class Data(L.LightningDataModule):
        num_asked = 0

        def train_dataloader(self):
            self.num_asked += 1
            return make_loader()

        def on_after_batch_transfer(self, batch, index):
            self.last = float(batch[0].sum())
            return batch

    class Net2(Net):
        def __init__(self):
            super().__init__()
            self.stats = Stats()

        def training_step(self, batch, batch_idx):
            self.stats.seen += 1
            self.log("loss", 1.0)
            return super().training_step(batch, batch_idx)

    fit(net=Net2(), loader=Data(), callbacks=[Holds()], max_epochs=2)
    named = ", ".join(m for m in messages() if m.startswith("attributes that change"))
    for name in ("module.stats.seen", "module.num_steps", "datamodule.last", ".stats.seen"):
        assert name in named
    for name in ("trainer", "logger", "where", "hparams", "num_asked"):
        assert name not in named
