"""Ways to train: what steps when, in which precision, on what kind of model; resumed where each can go wrong."""

import itertools
import time

import pytest
import torch
from lightning.pytorch.loops import evaluation_loop, fit_loop, training_epoch_loop
from lightning.pytorch.plugins.precision import MixedPrecision
from replay import Model, Parts, features, replay
from small import make_loader
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, ReduceLROnPlateau, StepLR

from lightning_resume import _loops

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.*", "ignore::UserWarning:torch.optim.*")


def data(num_samples=16, *, validate=True):
    valid = make_loader(8, shuffle=False) if validate else None
    return {"train_dataloaders": make_loader(num_samples), "val_dataloaders": valid}


class Gan(Model):
    """Two optimizers that step at different times, with a scheduler each."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 4))
        self.critic = self.layers

    def training_step(self, batch, batch_idx):
        by_critic, by_generator = self.optimizers()
        critic_schedule, generator_schedule = self.lr_schedulers()
        self.toggle_optimizer(by_critic)
        fake = self.generator(torch.randn(1, 2)).detach()
        loss = self.critic(fake).mean() - self.critic(features(batch)).mean() + 0.01 * self.critic(fake).pow(2).mean()
        self.manual_backward(loss)
        self.untoggle_optimizer(by_critic)
        if (batch_idx + 1) % 2 == 0:
            self.clip_gradients(by_critic, gradient_clip_val=0.5)
            by_critic.step()
            by_critic.zero_grad()
            critic_schedule.step()
        if (batch_idx + 1) % 3 == 0:
            self.toggle_optimizer(by_generator)
            self.manual_backward(-self.critic(self.generator(torch.randn(2, 2))).mean())
            by_generator.step()
            by_generator.zero_grad()
            self.untoggle_optimizer(by_generator)
            generator_schedule.step()
        self.log("critic", loss, on_step=True, on_epoch=True, batch_size=1)

    def configure_optimizers(self):
        by_critic = torch.optim.Adam(self.critic.parameters(), 0.01, betas=(0.0, 0.9))
        by_generator = torch.optim.SGD(self.generator.parameters(), 0.01, momentum=0.9)
        return [by_critic, by_generator], [CosineAnnealingLR(by_critic, 20), StepLR(by_generator, 2, 0.9)]


class Lbfgs(Model):
    def configure_optimizers(self):
        optimizer = torch.optim.LBFGS(self.parameters(), 0.05, max_iter=4, history_size=3)
        return [optimizer], [ExponentialLR(optimizer, 0.9)]


class ByEpoch(Model):
    """A schedule by the epoch, every other one."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": ExponentialLR(optimizer, 0.5), "interval": "epoch", "frequency": 2},
        }


class Scheduled(Model):
    """Several schedulers on one optimizer: by step, by epoch, on an average over the epoch, on a validation."""

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        plateau = {"factor": 0.7, "patience": 0, "threshold": 0.3}
        return [optimizer], [
            {"scheduler": CosineAnnealingLR(optimizer, 40), "interval": "step", "frequency": 3},
            {"scheduler": ExponentialLR(optimizer, 0.9), "interval": "epoch"},
            {"scheduler": ReduceLROnPlateau(optimizer, **plateau), "monitor": "loss_epoch", "interval": "epoch"},
            {"scheduler": ReduceLROnPlateau(optimizer, **plateau), "monitor": "val_loss", "interval": "epoch"},
        ]


LOOPS = {
    "two optimizers that step at different times": (Gan, {}, [1, 2, 3, 4, 5, 9]),
    "lbfgs": (Lbfgs, {}, None),
    "a schedule by the epoch": (ByEpoch, {"max_epochs": 4}, None),
    "several schedulers": (Scheduled, {}, None),
    "clipping by norm": (Model, {"gradient_clip_val": 0.05}, [5]),
    "clipping by value": (Model, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}, [5]),
    "validation every fifth batch": (
        Model,
        {"val_check_interval": 5, "check_val_every_n_epoch": None},
        [4, 5, 6, 9, 10],
    ),
    "validation every other epoch": (Model, {"check_val_every_n_epoch": 2, "max_epochs": 4}, [3, 4, 7, 8, 9]),
    "accumulation": (Model, {"accumulate_grad_batches": 3}, [3, 4, 7, 8]),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_way_to_train_goes_on_exactly(tmp_path, kind):
    model, arguments, cuts = LOOPS[kind]
    replay(tmp_path, lambda: Parts(model(), data(), arguments), cuts)


@pytest.mark.parametrize("validate_at", [4, 5])
def test_a_cut_right_before_and_right_after_a_validation(tmp_path, validate_at):
    whole, _ = replay(
        tmp_path,
        lambda: Parts(Model(), data(num_samples=40), {"val_check_interval": validate_at, "max_epochs": 2}),
        [validate_at - 1, validate_at, validate_at + 1, 10, 10 + validate_at],
    )
    assert sum(event[0] == "validation start" for event in whole.events) == 1 + 2 * (10 // validate_at)


class Precise(Model):
    """Computes in the type of its weights and logs in float32: Lightning sums up in the default type of that moment."""

    def loss(self, batch):
        return (self.layers(features(batch).to(self.layers[0].weight.dtype)) - 1).pow(2).mean().float()


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_a_precision_goes_on_exactly(tmp_path, precision):
    replay(tmp_path, lambda: Parts(Precise(), data(), {"precision": precision}))


# ---- half precision with a scaler


class Overflowing(Model):
    """Gradients overflow in some batches of the run, the first among them: those steps are skipped."""

    overflow_at = (0, 3, 4, 9)

    def on_after_backward(self):
        done = self.trainer.fit_loop.epoch_loop.batch_progress.total.completed
        if done in self.overflow_at:
            next(self.parameters()).grad.fill_(float("inf"))


@pytest.mark.parametrize("arguments", [{}, {"accumulate_grad_batches": 2}, {"gradient_clip_val": 0.1}], ids=str)
def test_a_scaler_that_skips_steps_keeps_scale_and_growth_counter(tmp_path, arguments):
    def build():
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        precision = MixedPrecision("16-mixed", "cpu", scaler=scaler)
        return Parts(Overflowing(), data(), {"plugins": [precision], **arguments})

    whole, _ = replay(tmp_path, build, [4, 8] if arguments else [1, 3, 4, 5, 8, 10])
    scales = [event[-1] for event in whole.events if event[0] == "step"]
    assert len({scale for scale, _ in scales}) > 2  # it shrank and grew
    assert len({growth for _, growth in scales}) > 1


# ---- models


class Compiled(Model):
    def __init__(self):
        super().__init__()
        self.layers = torch.compile(self.layers, backend="aot_eager")


class SpectralNorm(Model):
    """By power iterations that go on with every forward pass; the old way and the new."""

    def __init__(self):
        super().__init__()
        self.layers[0] = torch.nn.utils.parametrizations.spectral_norm(self.layers[0])
        self.layers[2] = torch.nn.utils.spectral_norm(self.layers[2])


class Hidden(Model):
    """Buffers that are in no state_dict, one of them made during training."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, 4), persistent=False)
        self.register_buffer("last", None, persistent=False)

    def loss(self, batch):
        given = features(batch)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * given.detach()
            self.last = given.detach() if self.last is None else 0.5 * (self.last + given.detach())
        last = 0 if self.last is None else self.last
        return (self.layers(given - self.mean + 0.1 * last) - 1).pow(2).mean()


class ChannelsLast(Model):
    """Weights and moments lie in memory with channels last."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 3, 3, padding=1), torch.nn.BatchNorm2d(3), torch.nn.Conv2d(3, 2, 3, padding=1)
        ).to(memory_format=torch.channels_last)

    def loss(self, batch):
        images = features(batch).expand(3, 4).reshape(1, 3, 2, 2)[:, :1].expand(2, 1, 2, 2)
        noise = torch.rand(2, 1, 4, 4)
        images = torch.nn.functional.interpolate(images, (4, 4)) + noise
        return (self.layers(images.contiguous(memory_format=torch.channels_last)) - 1).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01, fused=True)


MODELS = {
    "spectral norm": SpectralNorm,
    "buffers in no state_dict": Hidden,
    "channels last with a fused optimizer": ChannelsLast,
    "compiled": Compiled,
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_kind_of_model_goes_on_exactly(tmp_path, kind):
    replay(tmp_path, lambda: Parts(MODELS[kind](), data()), [1, 5, 8])


def test_moments_lie_in_memory_as_they_did(tmp_path):
    whole, runs = replay(tmp_path, lambda: Parts(ChannelsLast(), data()), [5])
    strides = [
        [value.stride() for state in run.trainer.optimizers[0].state.values() for value in state.values()]
        for run in (whole, *runs)
    ]
    assert strides[0] == strides[1]
    moments = itertools.chain(*(state.values() for state in whole.trainer.optimizers[0].state.values()))
    assert any(not value.is_contiguous() for value in moments)


class Quiet(Model):
    """Logs nothing: what Lightning does to log cannot be compiled."""

    def training_step(self, batch, batch_idx):
        return self.loss(batch)


def test_a_module_that_was_compiled_as_a_whole_goes_on(tmp_path):
    replay(tmp_path, lambda: Parts(torch.compile(Quiet(), backend="eager"), data(validate=False)), [5])


def test_validation_by_the_clock_is_as_long_ago_as_it_was(tmp_path, monkeypatch):
    class Clock:
        """Stands in for ``time`` in the loops: a batch takes a second, and a resumed process began at another time."""

        now_s = 0.0

        def __getattr__(self, name):
            return getattr(time, name)

        def monotonic(self):
            return self.now_s

    clock = Clock()
    for module in (training_epoch_loop, evaluation_loop, fit_loop, _loops):
        monkeypatch.setattr(module, "time", clock)

    class Timed(Model):
        def on_fit_start(self):
            clock.now_s = clock.now_s * 3 + 1000.25

        def training_step(self, batch, batch_idx):
            clock.now_s += 1
            return super().training_step(batch, batch_idx)

    def build():
        return Parts(Timed(), data(24), {"val_check_interval": {"seconds": 4}, "check_val_every_n_epoch": None})

    whole, _ = replay(tmp_path, build, [1, 3, 4, 5, 6, 7, 11])
    assert len([event for event in whole.events if event[0] == "validation end"]) == 5  # the sanity check too
