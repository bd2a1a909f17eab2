"""Weights read straight into the module's own memory, and where they are not because something wants to see them."""

from __future__ import annotations

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import SingleDeviceStrategy
from replay import Model, Parts, replay
from small import make_loader

from resume_core.checkpointer import Checkpointer
from resume_core.errors import CorruptCheckpointError


class Plain(L.LightningModule):
    """Two layers and a batch norm."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class LooksAtCheckpoint(Plain):
    def on_load_checkpoint(self, checkpoint):
        assert checkpoint["state_dict"]


class LoadsItself(Plain):
    def load_state_dict(self, *args, **kwargs):
        return super().load_state_dict(*args, **kwargs)


class Lenient(Plain):
    def __init__(self):
        super().__init__()
        self.strict_loading = False


class Hooked(Plain):
    def __init__(self):
        super().__init__()
        self.register_load_state_dict_post_hook(lambda *args: None)


class Watcher(L.Callback):
    def on_load_checkpoint(self, trainer, pl_module, checkpoint):
        assert checkpoint["state_dict"]


class OwnStrategy(SingleDeviceStrategy):
    def load_model_state_dict(self, checkpoint, strict=True):
        super().load_model_state_dict(checkpoint, strict)


LOOKING = {
    "the module": {"net": LooksAtCheckpoint},
    "its loading": {"net": LoadsItself},
    "loading what is there": {"net": Lenient},
    "a hook of torch": {"net": Hooked},
    "a callback": {"callbacks": lambda: [Watcher()]},
    "averaging": {"callbacks": lambda: [WeightAveraging()]},
    "the strategy": {"strategy": OwnStrategy},
}


@pytest.fixture
def into(monkeypatch):
    """The live tensors that a checkpoint was read into, at each restore."""
    given, read = [], Checkpointer.read

    def noting(self, *args, into=None, **options):
        given.append(dict(into["model"]))
        return read(self, *args, into=into, **options)

    monkeypatch.setattr(Checkpointer, "read", noting)
    return given


def weights(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_module_that_nothing_looks_at_is_read_into(fit, into):
    saved = weights(fit(net=Plain(), max_epochs=1)[0])
    net = Plain()
    before = {name: tensor.data_ptr() for name, tensor in net.state_dict().items()}
    seen = []
    load = torch.nn.Module.load_state_dict

    def noting(self, state_dict, **kwargs):
        seen.append(({name: t.data_ptr() for name, t in state_dict.items()}, weights(self)))
        return load(self, state_dict, **kwargs)

    torch.nn.Module.load_state_dict, given = noting, load
    try:
        fit(net=net, max_epochs=1, changes=None)
    finally:
        torch.nn.Module.load_state_dict = given
    (addresses, held), *_ = seen
    assert into[0].keys() == before.keys()
    assert addresses == before  # the dict is made of the module's own memory
    assert_equal(held, saved)  # which held what was saved before anything was loaded


@pytest.mark.parametrize("looking", LOOKING.values(), ids=LOOKING)
@pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")
def test_what_wants_to_see_the_weights_first_is_given_a_dict(fit, into, looking):
    def arguments():
        return {"net": Plain()} | {name: make() for name, make in looking.items()}

    saved = weights(fit(**arguments(), max_epochs=1)[0])
    restored, _ = fit(**arguments(), max_epochs=1)
    assert into == [{}]
    assert_equal(weights(restored), saved)


def test_weights_that_are_read_in_part_are_not_used_when_no_checkpoint_is_whole(fit, into, tmp_path):
    fit(net=Plain(), max_epochs=1)
    for path in (tmp_path / "run").rglob("model.safetensors"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    with pytest.raises(CorruptCheckpointError, match="The weights in this process may be parts of a damaged"):
        fit(net=Plain(), max_epochs=1)
    assert len(into) > 1


def test_after_a_damaged_checkpoint_all_weights_are_those_of_the_older_one(fit, into, tmp_path):
    seen = {}

    class Noting(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, *args):
            seen.setdefault(trainer.global_step, weights(pl_module))

    fit(net=Plain(), max_epochs=1, callbacks=[Noting()])
    (newest,) = (tmp_path / "run").glob("*/step-000000004/model.safetensors")  # the end of the fit is no candidate
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1  # the last value of the file: the others were read before that is found
    newest.write_bytes(data)
    net, found = Plain(), {}

    class First(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, *args):
            found.setdefault(trainer.global_step, weights(pl_module))

    fit(net=net, max_epochs=2, callbacks=[First()])
    assert len(into) == 2
    assert min(found) == 3
    assert_equal(found[3], seen[3])


class Pictures(Model):
    """Weights in another order, tied ones, parametrized ones, a buffer in the state and one that is not."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 4, 2).to(memory_format=torch.channels_last)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.turned = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(4, 4))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("hidden", torch.zeros(2), persistent=False)

    def loss(self, batch):
        if self.training:
            self.seen += 1
            self.hidden += self.seen
        x = batch[0].sum() + torch.linspace(0, 1, 16).view(1, 2, 2, 4).contiguous(memory_format=torch.channels_last)
        x = self.conv(x).mean((2, 3)) + self.hidden.sum() / 1000
        return (self.layers(self.turned(self.second(self.first(x)))) - 1).pow(2).mean()


@pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")
def test_weights_of_every_kind_go_on_exactly(tmp_path, into):
    def build():
        data = {"train_dataloaders": make_loader(), "val_dataloaders": make_loader(8, shuffle=False)}
        return Parts(Pictures(), data, {"max_epochs": 2})

    replay(tmp_path, build, [1, 4, 6])
    assert all("first.weight" in given and "conv.weight" in given for given in into)
    assert len(into) == 3
