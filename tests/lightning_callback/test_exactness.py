"""Module, loader and callback patterns that a resume must not change: one run, and its tail resumed from the middle.

Kills in processes of their own are in tests/resume; here many patterns are compared at little cost.
"""

from __future__ import annotations

import lightning.pytorch as L
import pytest
import torch
from harness import digest
from lightning.pytorch.callbacks import ModelCheckpoint, ModelPruning
from small import Net, make_loader
from torch.utils.data import DataLoader, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from lightning_resume import Changes, Keep, ResumeCallback, SaveEvery
from resume_core.errors import ResumeError, UnsupportedStateError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")


class Recording(Net):
    """Writes down what it is given and what it becomes."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.seen.append((self.current_epoch, batch_idx, batch[0].tolist(), loss.item()))
        return loss


@pytest.fixture
def replay(fit, tmp_path):
    """Train to the end, then again from the checkpoint at ``step``, and compare the rest."""

    def run(make_net, step, *, loaders=make_loader, callbacks=list, **trainer):
        def once(resume):
            every = SaveEvery(steps=1, minutes=None)
            callback = ResumeCallback(
                tmp_path / "run", resume=resume, save=every, keep=Keep(last=99), changes=Changes(allow=("seed",))
            )
            L.seed_everything(7, verbose=False)
            net = make_net()
            given = loaders()
            train, valid = given if isinstance(given, tuple) else (given, None)
            made = L.Trainer(
                **fit.quiet | {"max_epochs": 3} | trainer, callbacks=[callback, fit.settle(), *callbacks()]
            )
            made.fit(net, train, valid)
            return net, made

        whole, _ = once("auto")
        rest, made = once(f"attempt-0001/step-{step:09d}")
        assert rest.seen == whole.seen[-len(rest.seen) :]
        assert len(rest.seen) == len(whole.seen) - step
        assert digest(rest.state_dict()) == digest(whole.state_dict())
        return rest, made

    return run


@pytest.mark.parametrize("step", [3, 4, 6])
def test_a_loader_made_anew_for_each_epoch_is_that_of_the_epoch(replay, step):
    class ByEpoch(Recording):
        def train_dataloader(self):
            return make_loader(num_samples=16 + 4 * self.current_epoch)

    def loaders():
        return None

    net, _ = replay(ByEpoch, step, loaders=loaders, reload_dataloaders_every_n_epochs=1)
    assert max(batch for _, batch, *_ in net.seen) == 5  # 24 samples in the last epoch


@pytest.mark.parametrize("step", [2, 4, 5])
def test_one_loader_may_serve_training_and_validation(replay, step):
    class Validates(Recording):
        def validation_step(self, batch, batch_idx):
            return None

    loader = make_loader()
    replay(Validates, step, loaders=lambda: (loader, loader))


@pytest.mark.parametrize("step", [3, 4, 5, 8])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_is_positioned_by_the_run(replay, step, workers):
    def loaders():
        return StatefulDataLoader(make_loader().dataset, 4, shuffle=True, num_workers=workers)

    net, _ = replay(Recording, step, loaders=loaders)
    assert len({str(ids) for _, _, ids, _ in net.seen}) == len(net.seen)


def test_modules_that_convert_weights_of_an_older_version_leave_current_ones_alone(replay):
    class Versioned(torch.nn.Linear):
        _version = 2

        def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
            if local_metadata.get("version") != 2:
                state_dict[prefix + "weight"] = -state_dict[prefix + "weight"]
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    class Model(Recording):
        def __init__(self):
            super().__init__()
            self.layers[1] = Versioned(4, 1)

    replay(Model, 5)


def test_hooks_that_read_hyper_parameters_from_the_checkpoint_find_them(replay):
    class Reads(Recording):
        found = None

        def on_load_checkpoint(self, checkpoint):
            self.found = checkpoint["hyper_parameters"]["width"]

    net, _ = replay(Reads, 5)
    assert net.found == 4


def test_a_module_without_optimizers_goes_on(replay):
    class Bare(Recording):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.own = torch.optim.SGD(self.parameters(), 0.01)

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            loss.backward()
            self.own.step()
            self.own.zero_grad()
            self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress.increment_completed()

        def configure_optimizers(self):
            return None

    replay(Bare, 5)


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_the_clipping_algorithm_is_a_plain_fact(replay, algorithm):
    replay(Recording, 5, gradient_clip_val=0.1, gradient_clip_algorithm=algorithm)


def test_a_ckpt_path_from_the_middle_of_an_epoch_starts_a_run(fit, tmp_path):
    stock = ModelCheckpoint(tmp_path, filename="stock", every_n_train_steps=2, save_top_k=1)
    fit(max_epochs=1, max_steps=2, enable_checkpointing=True, callbacks=[stock])
    other = ResumeCallback(tmp_path / "other", save=SaveEvery(steps=1))
    _, trainer = fit(max_epochs=1, ckpt_path=str(tmp_path / "stock.ckpt"), callback=other)
    assert trainer.global_step == 4


def test_a_buffer_that_appears_during_training_is_refused_after_the_first_step(fit):
    class Grows(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("late", None)

        def training_step(self, batch, batch_idx):
            self.late = torch.ones(2)
            return super().training_step(batch, batch_idx)

    with pytest.raises(UnsupportedStateError, match=r"model\.late"):
        fit(net=Grows())
    assert fit.net.num_steps == 1


def test_extra_state_of_a_module_is_part_of_its_weights(replay):
    class Counts(torch.nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * (1 + 0.01 * self.calls)

        def get_extra_state(self):
            return {"calls": self.calls}

        def set_extra_state(self, state):
            self.calls = state["calls"]

    class Model(Recording):
        def __init__(self):
            super().__init__()
            self.layers[1] = Counts(4, 1)

    replay(Model, 5)


def test_lazy_modules_that_have_taken_their_shape_go_on(replay):
    class Model(Recording):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.Linear(4, 1))
            self.layers(torch.ones(1, 3))

    replay(Model, 5)


@pytest.mark.parametrize("step", [5, 8])
def test_a_parameter_group_that_training_had_added_and_expanded_buffers_are_there_again(replay, step):
    class Model(Recording):
        def __init__(self):
            super().__init__()
            self.late = torch.nn.Linear(3, 3)
            self.register_buffer("shift", torch.rand(1, 3).expand(4, 3))
            self.register_buffer("hidden_shift", torch.rand(1, 3).expand(4, 3), persistent=False)

        def training_step(self, batch, batch_idx):
            return super().training_step([self.late(batch[0] + self.shift + self.hidden_shift)], batch_idx)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.layers.parameters(), lr=0.01)

        def on_train_batch_start(self, batch, batch_idx):
            if self.global_step == 4:
                self.trainer.optimizers[0].add_param_group({"params": self.late.parameters(), "lr": 0.002})

    replay(Model, step)


def test_callbacks_of_one_class_are_told_apart(replay):
    class Draws(L.Callback):
        def __init__(self, seed):
            self.generator = torch.Generator().manual_seed(seed)

        def on_train_batch_end(self, trainer, module, *args):
            module.seen[-1] += (torch.rand((), generator=self.generator).item(),)

    replay(Recording, 5, callbacks=lambda: [Draws(1), Draws(2)])


def test_attributes_that_would_be_lost_are_named_once(fit, messages):
    class Collects(Net):
        def __init__(self):
            super().__init__()
            self.outputs = []

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            self.outputs.append(loss.detach())
            return loss

    fit(net=Collects())
    named = [m for m in messages() if "in no state" in m]
    assert len([m for m in named if "module.outputs" in m]) == 1


def test_a_module_that_saves_its_own_attributes_is_trusted(fit, messages):
    class Saves(Net):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["num_steps"] = self.num_steps

        def on_load_checkpoint(self, checkpoint):
            self.num_steps = checkpoint["num_steps"]

    fit(net=Saves())
    assert not [m for m in messages() if "in no state" in m]


def test_two_callbacks_are_refused(tmp_path, fit):
    with pytest.raises(ResumeError, match="two ResumeCallbacks"):
        fit(callbacks=[ResumeCallback(tmp_path / "other")])


def test_callbacks_whose_state_is_not_restored_yet_are_refused(fit):
    with pytest.raises(ResumeError, match="ModelPruning"):
        fit(callbacks=[ModelPruning("l1_unstructured")])


GEN = torch.Generator()


class DrawsInAStep(Net):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * torch.rand((), generator=GEN)


@pytest.mark.parametrize("is_kept", [False, True])
def test_random_generators_that_no_state_holds_are_named_once(fit, messages, is_kept):
    net = DrawsInAStep()
    if is_kept:
        net.generator = GEN
    fit(net=net)
    named = [message for message in messages() if "random generators that training draws from" in message]
    assert len(named) == (not is_kept)
    assert is_kept or f"in no state: {__name__}.GEN. After" in named[0]


class Lengths(torch.utils.data.Dataset):
    def __init__(self):
        self.maxlen = 64

    def __getitem__(self, index):
        return (torch.full((3,), index / 50),)

    def __len__(self):
        return 16


class Curriculum(L.Callback):
    def on_train_epoch_start(self, trainer, module):
        trainer.train_dataloader.dataset.dataset.maxlen = 128


class KeptCurriculum(Curriculum):
    def state_dict(self):
        return {"maxlen": 128}


@pytest.mark.parametrize("kind", [Curriculum, KeptCurriculum])
def test_an_attribute_of_the_dataset_that_a_hook_changes_is_named(fit, messages, kind):
    fit(loader=DataLoader(Subset(Lengths(), range(16)), 4), callbacks=[kind()])
    named = [message for message in messages() if "in no state: train_dataset.dataset.maxlen. After" in message]
    assert len(named) == (kind is Curriculum)
