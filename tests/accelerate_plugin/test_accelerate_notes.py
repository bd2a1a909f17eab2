"""What users are told of a run that will not be exact, or not be as they may expect."""

from __future__ import annotations

import logging
import random
import shutil

import pytest
import torch
from accelerate import Accelerator
from small_runs import make_loader, new_run, train, train_all
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from accelerate_resume import ResumePlugin
from accelerate_resume._accelerator import own_optimizer


def test_loaders_that_cannot_be_positioned_are_warned_of(tmp_path, caplog):
    class Endless(IterableDataset):
        def __iter__(self):
            return iter(torch.rand(8, 1))

    with caplog.at_level(logging.WARNING):
        new_run(tmp_path, loader=DataLoader(Endless(), 2))[1].epochs(1)
    assert "Endless is an IterableDataset: after a resume it starts from its beginning" in caplog.text


def test_attributes_that_change_and_are_in_no_state_are_named(tmp_path, caplog):
    class Net(torch.nn.Linear):
        def forward(self, x):
            self.num_calls = getattr(self, "num_calls", 0) + 1
            return super().forward(x)

    accelerator, resume, _, _, loader = new_run(tmp_path)
    accelerator.free_memory()
    model = Net(1, 1)
    run = (accelerator, resume, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1)), loader)
    train_all(run)
    assert "attributes that change during training and are in no state: model.num_calls" in caplog.text


def test_training_on_a_loader_that_was_not_prepared_is_warned_of(tmp_path, caplog):
    accelerator, resume, model, optimizer, _ = new_run(tmp_path)
    train_all((accelerator, resume, model, optimizer, make_loader()), 2)
    assert caplog.text.count("no batch that was trained on came from a loader that was prepared") == 1


def test_a_run_without_an_optimizer_is_warned_of(tmp_path, caplog):
    accelerator = Accelerator(cpu=True)
    ResumePlugin(tmp_path).attach(accelerator).epochs(1)
    assert "no optimizer was prepared: what one holds is not saved" in caplog.text


def test_optimizers_and_schedulers_that_are_not_saved_are_named(tmp_path, caplog):
    accelerator, resume, model, optimizer, loader = new_run(tmp_path)
    own = torch.optim.SGD(model.parameters(), 0.1)
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 1) for each in (optimizer, own)]
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(own_optimizer(optimizer))
    for _ in resume.epochs(2):
        for batch in loader:
            train(accelerator, model, optimizer, batch)
            own.step()
        for each in schedulers:
            each.step()
        plateau.step(1.0)
    assert caplog.text.count("a StepLR holds a prepared optimizer and is not saved") == 1
    assert caplog.text.count("a ReduceLROnPlateau holds a prepared optimizer and is not saved") == 1
    assert caplog.text.count("a SGD trains a prepared model and is not saved") == 1


def test_of_optimizers_and_schedulers_that_are_tracked_nothing_is_said(tmp_path, caplog):
    accelerator, resume, model, optimizer, loader = new_run(tmp_path)
    own = torch.optim.SGD(model.parameters(), 0.1)
    parts = [torch.optim.lr_scheduler.ConstantLR(optimizer), torch.optim.lr_scheduler.StepLR(optimizer, 1)]
    resume.track(own=own, scheduler=torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [1]))
    apart = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)  # of something that the script makes anew
    for _ in resume.epochs(1):
        for batch in loader:
            train(accelerator, model, optimizer, batch)
            own.step()
            apart.step()
    assert "is not saved" not in caplog.text


@pytest.mark.parametrize("is_above", [True, False])
def test_an_iterator_that_is_held_over_epochs_and_was_not_made_above_them_is_named(tmp_path, caplog, is_above):
    accelerator, resume, model, optimizer, loader = new_run(tmp_path)
    held = iter(loader) if is_above else None
    for _ in resume.epochs(3):
        for _ in range(3):  # of four batches
            batch = next(held, None) if held else None
            if batch is None:
                held = iter(loader)
                batch = next(held)
            train(accelerator, model, optimizer, batch)
    assert caplog.text.count("was made in one epoch and is asked for more in the next") == (not is_above)


def test_a_script_that_trains_without_asking_the_run_for_its_epochs_is_told_so_once(tmp_path, caplog):
    accelerator = Accelerator(cpu=True)
    ResumePlugin(tmp_path / "run").attach(accelerator)
    net = torch.nn.Linear(1, 1)
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(3):
        accelerator.backward(net(torch.ones(1, 1)).sum())
        optimizer.step()
    assert caplog.text.count("the run was not begun, so nothing is restored and nothing is saved in") == 1
    assert "resume.epochs(n)" in caplog.text


GEN = torch.Generator()
OF_MODEL = random.Random(0)


class Noisy(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + OF_MODEL.random()


def draw_in_a_loop(run):
    accelerator, resume, model, optimizer, loader = run
    drawn = []
    for _ in resume.epochs(1):
        for batch in loader:
            drawn.append(torch.rand((), generator=GEN).item())
            train(accelerator, model, optimizer, batch)
            resume._session.wait()
    return drawn


def test_random_generators_that_no_state_holds_are_named(tmp_path, caplog):
    accelerator, resume, _, _, loader = new_run(tmp_path)
    accelerator.free_memory()
    model = Noisy(1, 1)
    draw_in_a_loop((accelerator, resume, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1)), loader))
    (message,) = [r.getMessage() for r in caplog.records if "random generators that training draws" in r.getMessage()]
    assert f"in no state: {__name__}.GEN, {__name__}.OF_MODEL. After" in message
    assert "resume.track(name=generator)" in message


def test_a_random_generator_that_is_tracked_goes_on_where_it_was_and_is_not_named(tmp_path, caplog):
    def attempt():
        GEN.manual_seed(3)
        run = new_run(tmp_path)
        run[1].track(gen=GEN)
        return run

    expected = draw_in_a_loop(attempt())
    for checkpoint in sorted(tmp_path.glob("attempt-*/step-*"))[3:]:
        shutil.rmtree(checkpoint)
    assert draw_in_a_loop(attempt()) == expected[2:]
    assert "random generators that training draws" not in caplog.text


class Lengths(TensorDataset):
    def __init__(self):
        super().__init__(torch.arange(8.0).unsqueeze(1))
        self.maxlen, self.epoch = 64, 0

    def set_epoch(self, epoch):
        self.epoch = epoch


@pytest.mark.parametrize("is_kept", [False, True])
def test_an_attribute_of_the_dataset_that_the_loop_changes_is_named(tmp_path, caplog, is_kept):
    data = Lengths()
    accelerator, resume, model, optimizer, loader = new_run(tmp_path, loader=DataLoader(data, 2))
    counters = resume.counters(maxlen=64) if is_kept else resume.counters()
    for _ in resume.epochs(3):
        for batch in loader:
            train(accelerator, model, optimizer, batch)
        data.maxlen *= 2
        if is_kept:
            counters.maxlen = data.maxlen
    named = [r.getMessage() for r in caplog.records if "in no state: dataset.0." in r.getMessage()]
    assert len(named) == (not is_kept)
    assert is_kept or "in no state: dataset.0.maxlen. After" in named[0]
