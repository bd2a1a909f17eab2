"""Callbacks that average weights, their last epoch for batch norms included."""

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, StochasticWeightAveraging, WeightAveraging
from replay import Model, Parts, replay, rest, run, saved_batches
from small import make_loader

from resume_core.errors import ResumeError

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.*", "ignore::UserWarning:torch.optim.*")


class Normed(Model):
    """With batch norms, and a buffer that no state_dict holds."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8, momentum=0.2), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )
        self.register_buffer("seen", torch.zeros(3), persistent=False)

    def loss(self, batch):
        if self.training:
            self.seen += batch[0].sum(0)
        return (self.layers(batch[0] + self.seen / 1000) - 1).pow(2).mean()

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)]


class Plain(Model):
    def __init__(self):
        super().__init__()
        self.layers[0] = torch.nn.Linear(3, 8)

    def loss(self, batch):
        return (self.layers(batch[0]) - 1).pow(2).mean()

    configure_optimizers = Normed.configure_optimizers


def parts(model, *callbacks, **trainer):
    data = {"train_dataloaders": make_loader(), "val_dataloaders": make_loader(8, shuffle=False)}
    return Parts(model(), data, trainer, list(callbacks))


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        (Plain, "linear"),
        (Normed, "cos"),
        pytest.param(Plain, "cos", marks=pytest.mark.slow),
        pytest.param(Normed, "linear", marks=pytest.mark.slow),
    ],
)
def test_stochastic_weight_averaging_goes_on_from_any_batch(tmp_path, model, strategy):
    def build():
        averaging = StochasticWeightAveraging(0.1, swa_epoch_start=2, annealing_epochs=2, annealing_strategy=strategy)
        return parts(model, averaging, max_epochs=4)

    num_epochs = 4 + (model is Normed)  # one more for the statistics of batch norms
    whole, runs = replay(tmp_path, build, [1, 4, 6, 8, 11, 13, 15, *([16, 17, 19, 20] if model is Normed else [16])])
    assert len(whole.batches) == 4 * num_epochs
    averages = [run.parts.callbacks[0] for run in (whole, *runs)]
    assert averages[0].n_averaged == 3
    for average in averages:
        assert average.n_averaged == 3
        assert all(child.momentum == 0.2 for child in average.momenta)


class AdaptiveRate(Normed):
    """Its learning rate is a tensor."""

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=torch.tensor(0.05))


SETTINGS = {
    "from the first epoch on": (Normed, {"swa_epoch_start": 1}, {"max_epochs": 2}, [0, 1, 4, 5, 8, 9, 11]),
    "with windows": (Normed, {"swa_epoch_start": 2}, {"accumulate_grad_batches": 3}, [4, 7, 8, 11, 12, 13, 15]),
    "up to a number of steps": (Normed, {"swa_epoch_start": 2}, {"max_epochs": -1, "max_steps": 14}, [3, 5, 8, 13]),
    "at once": (Normed, {"swa_epoch_start": 2, "annealing_epochs": 0}, {}, [3, 5, 8, 11, 13]),
    "from a part of the epochs on": (Plain, {"swa_epoch_start": 0.5}, {"max_epochs": 4}, [3, 5, 8, 11, 13]),
    "without a scheduler": (AdaptiveRate, {"swa_epoch_start": 2}, {"val_check_interval": 3}, [3, 5, 8, 11, 13]),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SETTINGS)
def test_stochastic_weight_averaging_goes_on_with_other_settings(tmp_path, kind):
    model, settings, arguments, cuts = SETTINGS[kind]
    replay(
        tmp_path,
        lambda: parts(model, StochasticWeightAveraging(0.1, **{"annealing_epochs": 2, **settings}), **arguments),
        cuts,
    )


def test_several_interruptions_leave_an_average_as_it_is(tmp_path):
    def build():
        return parts(Normed, StochasticWeightAveraging(0.1, swa_epoch_start=2, annealing_epochs=3))

    whole = run(tmp_path, build, seed=7)
    name = saved_batches(tmp_path)[6]
    for attempt, cut in enumerate([9, 13, 15], start=2):  # the last two lie in the epoch for batch norms
        again = run(tmp_path, build, seed=cut, resume=name)
        assert again.events == rest(whole, again)
        assert again.end == whole.end
        name = saved_batches(tmp_path, attempt)[cut]


class OncePerEpoch(WeightAveraging):
    def should_update(self, step_idx=None, epoch_idx=None):
        return epoch_idx is not None


AVERAGES = {
    "the mean": lambda: WeightAveraging(),
    "without buffers": lambda: WeightAveraging(use_buffers=False),
    "once an epoch": lambda: OncePerEpoch(),
    "exponential": lambda: EMAWeightAveraging(decay=0.9, update_every_n_steps=2, update_starting_at_step=3),
}


@pytest.mark.parametrize("kind", AVERAGES)
def test_weight_averaging_goes_on_with_both_weights(tmp_path, kind):
    whole, runs = replay(tmp_path, lambda: parts(Normed, AVERAGES[kind](), val_check_interval=2))
    averages = [run.parts.callbacks[0]._average_model for run in (whole, *runs)]
    for average in averages:
        assert int(average.n_averaged) == int(averages[0].n_averaged) > 0
        assert torch.equal(average.module.seen, averages[0].module.seen)


def test_layers_that_convert_older_weights_leave_those_beside_the_average_alone(tmp_path):
    class Versioned(torch.nn.Linear):
        _version = 2

        def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
            # Lightning's own copy of the average has lost its versions
            if local_metadata.get("version") != 2 and prefix.startswith("layers"):
                state_dict[prefix + "weight"] = -state_dict[prefix + "weight"]
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    class Old(Normed):
        def __init__(self):
            super().__init__()
            self.layers[0] = Versioned(3, 8)

    replay(tmp_path, lambda: parts(Old, WeightAveraging()), [6])


def test_pieces_of_the_averaging_callbacks_that_are_missing_are_named(fit):
    averaging = StochasticWeightAveraging(0.1)
    del averaging.momenta
    with pytest.raises(ResumeError, match=r"lacks .*StochasticWeightAveraging\.momenta"):
        fit(callbacks=[averaging])
