"""Every kind of loader under a Trainer, and what Lightning does to loaders; resumed from checkpoints."""

import collections
import multiprocessing

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.utilities import CombinedLoader
from loader_kinds import KINDS, READS_ONCE, ids
from loader_parts import NUM_SAMPLES, Collate, Relaying, Samples
from replay import Model, Parts, replay, run
from torch.utils.data import DataLoader, random_split

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:lightning.*", "ignore:.*will be ignored.*:UserWarning")


def shuffled(num_samples=NUM_SAMPLES, batch_size=4, **options):
    return DataLoader(Samples(num_samples), batch_size, shuffle=True, collate_fn=Collate(), **options)


def parts(train=None, *, valid=None, model=Model, datamodule=None, **trainer):
    loaders = {"train_dataloaders": train, "val_dataloaders": valid}
    return Parts(model(), {"datamodule": datamodule} if datamodule else loaders, trainer)


class Keeps(Model):
    """Keeps the samples that it trained on."""

    def __init__(self):
        super().__init__()
        self.samples = []

    def on_train_batch_start(self, batch, batch_idx):
        self.samples += ids([batch])


# to Lightning; what is in the samples and how they are chosen is tested in capture/test_loader_matrix.py
ALIKE = {
    "drop_last", "replacement", "weighted without replacement", "random subset", "sampler with a generator",
    "tensors of indices", "tuples of indices", "single indices of global draws", "looping __getitems__", "portable",
    "transforms", "nested subsets", "concatenated", "stacked", "tensors", "hugging face subset", "mapping subclass",
    "scaling subclass",
}  # fmt: skip


@pytest.mark.parametrize(
    "cuts", [pytest.param([2, -2], id="both epochs", marks=pytest.mark.slow), pytest.param([-2], id="the second")]
)
@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] if k in ALIKE else []) for k in KINDS])
def test_a_kind_of_loader_goes_on_with_what_was_not_consumed(tmp_path, kind, cuts):
    limit = {"limit_train_batches": 5} if kind.startswith("single") else {}
    _, runs = replay(tmp_path, lambda: parts(KINDS[kind](), model=Keeps, max_epochs=2, **limit), cuts)
    for again in runs if kind in READS_ONCE else ():
        reads = dict(enumerate(again.parts.data["train_dataloaders"].dataset.reads.tolist()))
        assert {index: times for index, times in reads.items() if times} == collections.Counter(
            again.parts.model.samples
        )


WORKERS = {
    "none, then four": ({}, {"num_workers": 4}),
    "one, then two": ({"num_workers": 1}, {"num_workers": 2}),
    "two far ahead, then one far ahead": (
        {"num_workers": 2, "prefetch_factor": 8},
        {"num_workers": 1, "prefetch_factor": 8},
    ),
    "four that persist, then none": ({"num_workers": 4, "persistent_workers": True}, {}),
}


@pytest.mark.parametrize("kind", WORKERS)
def test_workers_may_change_and_be_far_ahead(tmp_path, kind):
    before, after = WORKERS[kind]
    per_epoch = len(shuffled())
    replay(
        tmp_path,
        lambda: parts(shuffled(**before), valid=shuffled(8, **before), max_epochs=2),
        [per_epoch - 2, per_epoch + 1],
        rebuild=lambda: parts(shuffled(**after), valid=shuffled(8, **after), max_epochs=2),
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_workers_need_not_be_forked(tmp_path, method):
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["loader_kinds"])
    workers = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": context}
    replay(
        tmp_path,
        lambda: parts(KINDS["portable"](), max_epochs=2),
        [8],
        rebuild=lambda: parts(KINDS["portable"](**workers), max_epochs=2),
    )


# ---- several loaders


COLLECTIONS = {
    "dict": lambda: {"long": shuffled(), "short": shuffled(9, 3)},
    "list": lambda: [shuffled(9, 3), shuffled(), shuffled(4, 2)],
    "nested": lambda: {"a": [shuffled(), shuffled(9, 3)], "b": shuffled(4, 2)},
}


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size", "max_size"])
@pytest.mark.parametrize("collection", COLLECTIONS)
def test_loaders_of_different_length_go_on_together(tmp_path, collection, mode):
    def build():
        return parts(CombinedLoader(COLLECTIONS[collection](), mode), max_epochs=2)

    whole, _ = replay(tmp_path, build, [1, 2, 3] if mode == "min_size" else [3, 4, 11])
    shortest = 2 if collection != "dict" else 3
    assert len(whole.batches) == 2 * (shortest if mode == "min_size" else len(shuffled()))


def test_loaders_one_after_the_other_are_refused_by_lightning_itself(tmp_path):
    with pytest.raises(ValueError, match="sequential"):
        run(tmp_path, lambda: parts(CombinedLoader(COLLECTIONS["dict"](), "sequential")), seed=7)


@pytest.mark.parametrize("mode", [None, "max_size_cycle"])
def test_several_validation_loaders_draw_what_they_drew(tmp_path, mode):
    class Validates(Model):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            super().validation_step(batch, batch_idx)

    def valid():
        loaders = [shuffled(5, 2), shuffled(3, 2)]
        return loaders if mode is None else CombinedLoader(loaders, mode)

    replay(
        tmp_path,
        lambda: parts(shuffled(), valid=valid(), model=Validates, val_check_interval=3, max_epochs=2),
        [2, 3, 7],
    )


# ---- what Lightning does to loaders


LIMITS = {
    "a number of batches": ({"limit_train_batches": 3}, [2, 3, 4]),
    "a part of the batches": ({"limit_train_batches": 0.7}, [3, 4, 5]),
    "a number to overfit": ({"overfit_batches": 2}, [1, 2, 5]),
    "a part to overfit": ({"overfit_batches": 0.5}, [1, 3, 4, 8]),
    "steps up to the end of an epoch": ({"max_steps": 12, "max_epochs": -1}, [5, 6, 11]),
    "steps up to the middle of an epoch": ({"max_steps": 8, "max_epochs": -1}, [6, 7, 8]),
}


@pytest.mark.parametrize("kind", LIMITS)
def test_a_limit_holds_after_a_resume(tmp_path, kind):
    arguments, cuts = LIMITS[kind]
    replay(tmp_path, lambda: parts(shuffled(), valid=shuffled(8), **arguments), cuts)


class Hooked(Model):
    """Builds its loaders anew whenever it is asked; they depend on the epoch, and on a draw."""

    def train_dataloader(self):
        chosen, _ = random_split(Samples(30), [20 + 4 * self.current_epoch, 10 - 4 * self.current_epoch])
        return DataLoader(chosen, 4, shuffle=True, collate_fn=Collate())

    def val_dataloader(self):
        return DataLoader(random_split(Samples(8), [6, 2])[0], 3 + self.current_epoch, collate_fn=Collate())


class Module(L.LightningDataModule):
    """The same as a datamodule."""

    def train_dataloader(self):
        return Hooked.train_dataloader(self.trainer.lightning_module)

    def val_dataloader(self):
        return Hooked.val_dataloader(self.trainer.lightning_module)


@pytest.mark.parametrize("reload_every", [0, 1, 2])
@pytest.mark.parametrize("owner", ["module", "datamodule"])
def test_a_hook_that_builds_its_loader_anew_is_asked_as_of_the_right_epoch(tmp_path, owner, reload_every):
    def build():
        of = {"model": Hooked} if owner == "module" else {"datamodule": Module()}
        return parts(**of, reload_dataloaders_every_n_epochs=reload_every)

    whole, _ = replay(tmp_path, build, [5, 7, 11, len_of(reload_every)])
    assert len(whole.batches) == len_of(reload_every)


def len_of(reload_every):
    return {0: 15, 1: 5 + 6 + 7, 2: 5 + 5 + 7}[reload_every]


def label(worker_id):
    torch.utils.data.get_worker_info().dataset.label = worker_id


class Looks(L.Callback):
    """Looks at the loader in every batch."""

    def __init__(self, loader):
        self.loader = loader
        self.before = self.look()
        self.num_looks = 0

    def look(self):
        names = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn", "scale", "batch_size")
        return [type(self.loader).__name__, *(id(getattr(self.loader, name)) for name in names)]

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        loader = trainer.train_dataloader
        assert loader is self.loader
        assert isinstance(loader, Relaying)
        assert type(loader.dataset) is Samples
        assert self.look() == self.before
        assert loader.worker_init_fn is label
        self.num_looks += 1


def test_a_loader_looks_as_it_did_all_along(tmp_path):
    def build():
        loader = Relaying(Samples(), 4, shuffle=True, collate_fn=Collate(), worker_init_fn=label, scale=2.0)
        return Parts(Model(), {"train_dataloaders": loader}, {"max_epochs": 2}, [Looks(loader)])

    whole, runs = replay(tmp_path, build, [3])
    assert [again.parts.callbacks[0].num_looks for again in (whole, *runs)] == [12, 9]
