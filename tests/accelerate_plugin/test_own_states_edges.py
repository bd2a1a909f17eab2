"""``ResumePlugin()`` at the edges: damage, folders of others, changed runs, scripts that save or load elsewhere."""

from __future__ import annotations

import logging
import os
import random
import shutil

import accelerate
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

from accelerate_resume import Changes, Keep, ResumePlugin, SaveEvery
from resume_core.errors import ConfigChangedError, CorruptCheckpointError, ResumeError

NUM_BATCHES = 5


class Run:
    """One start of a script, as if in a new process."""

    def __init__(self, *, plugin=True, seed=7, dtype=torch.float32, project=None, lr=0.1, counters=True, **options):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        set_seed(seed)
        self.accelerator = Accelerator(cpu=True, project_config=project)
        self.resume = None
        if plugin:
            self.resume = ResumePlugin(**{"changes": Changes(allow=("seed",))} | options).attach(self.accelerator)
            self.counters = self.resume.counters(done=0) if counters else None
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)).to(dtype)
        data = TensorDataset(torch.arange(30.0, dtype=dtype).reshape(10, 3) / 30)
        optimizer = torch.optim.AdamW(model.parameters(), lr)
        loader = DataLoader(data, 2, shuffle=True)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.seen = []

    def train(self, batch):
        loss = self.model(batch[0]).pow(2).mean()
        self.accelerator.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seen.append(batch[0].flatten().tolist())

    def train_epoch(self, save=lambda num_done: None, loader=None):
        for num_done, batch in enumerate(self.loader if loader is None else loader, 1):
            self.train(batch)
            save(num_done)

    def to_the_end(self, num_epochs=2):
        for _ in self.resume.epochs(num_epochs):
            self.train_epoch()
        return self

    @property
    def weights(self):
        return torch.cat([p.detach().flatten().double() for p in self.model.parameters()])

    @property
    def moments(self):
        return [v for state in self.optimizer.state_dict()["state"].values() for v in state.values()]


def saving_at(where, tmp_path, **options):
    """A whole run of two epochs that saves behind so many batches."""
    run = Run(**options)
    for epoch in run.resume.epochs(2):
        run.train_epoch(
            lambda done: (
                run.accelerator.save_state(tmp_path / "state") if epoch * NUM_BATCHES + done == where else None  # noqa: B023
            )
        )
    return run


def assert_same(run, whole):
    assert run.seen == whole.seen[len(whole.seen) - len(run.seen) :]
    assert torch.equal(run.weights, whole.weights)
    assert all(
        one.dtype == other.dtype and torch.equal(one, other)
        for one, other in zip(run.moments, whole.moments, strict=True)
    )


@pytest.fixture
def messages(caplog):
    caplog.set_level(logging.INFO)
    return lambda: [record.getMessage() for record in caplog.records if "resume" in record.name]


# ---- what is in the folder


def test_a_file_that_is_missing_or_torn_is_refused_before_anything_is_loaded(tmp_path):
    saving_at(3, tmp_path)
    names = [str(p.relative_to(tmp_path / "state")) for p in (tmp_path / "state").rglob("*") if p.is_file()]
    assert {"model.safetensors", "optimizer.bin", "random_states_0.pkl"} < set(names)
    for name in names:
        for how in ("missing", "torn"):
            folder = tmp_path / f"{how}-{os.path.basename(name)}"
            shutil.copytree(tmp_path / "state", folder)
            (folder / name).unlink() if how == "missing" else (folder / name).write_bytes(b"torn")
            run = Run()
            before = run.weights
            with pytest.raises(CorruptCheckpointError, match=os.path.basename(name)):
                run.accelerator.load_state(folder)
            assert torch.equal(run.weights, before)


def test_a_save_that_did_not_end_is_refused(tmp_path):
    class Fails:
        def state_dict(self):
            raise RuntimeError("the user's")

        def load_state_dict(self, state):
            raise AssertionError

    run = Run()
    run.accelerator.register_for_checkpointing(Fails())
    with pytest.raises(RuntimeError, match="the user's"):
        run.accelerator.save_state(tmp_path / "state")
    with pytest.raises(CorruptCheckpointError, match="was not finished"):
        Run().accelerator.load_state(tmp_path / "state")


def test_a_folder_that_was_completed_loads_with_accelerate_alone(tmp_path):
    whole = saving_at(10, tmp_path)
    stock = Run(plugin=False, seed=9)
    stock.accelerator.load_state(tmp_path / "state")
    assert_same(stock, whole)


def test_a_folder_of_accelerate_alone_loads_as_it_does_with_one_warning(tmp_path, messages):
    stock = Run(plugin=False)
    stock.train_epoch(lambda done: stock.accelerator.save_state(tmp_path / "state") if done == 3 else None)
    draws = []
    for plugin in (False, True):
        run = Run(plugin=plugin, seed=9)
        run.accelerator.load_state(str(tmp_path / "state"))
        draws.append([run.weights.tolist(), torch.rand(3).tolist(), random.random()])
    assert draws[0] == draws[1]
    (warning,) = [m for m in messages() if "without ResumePlugin" in m]
    assert "positions in loaders" in warning
    for _ in run.resume.epochs(1):
        run.train_epoch()
    assert len(run.seen) == NUM_BATCHES


def test_moments_keep_their_type(tmp_path):
    """``load_state_dict`` of torch casts them to that of their parameters, and so does ``load_state``."""
    whole = Run(dtype=torch.bfloat16)
    whole.train_epoch()
    for state in whole.optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].float() + 1e-7
    whole.accelerator.save_state(tmp_path / "state")
    run = Run(dtype=torch.bfloat16)
    run.accelerator.load_state(tmp_path / "state")
    assert [m.dtype for m in run.moments] == [m.dtype for m in whole.moments]
    assert all(torch.equal(one, other) for one, other in zip(run.moments, whole.moments, strict=True))


def test_what_no_checkpoint_can_hold_is_named_and_the_folder_written_as_accelerate_does(tmp_path, messages):
    run = Run()
    run.counters.done = object()
    for _ in range(2):
        run.accelerator.save_state(tmp_path / "state")
    assert len([m for m in messages() if "counters.done" in m]) == 1
    again = Run(seed=9)
    again.accelerator.load_state(tmp_path / "state")
    assert torch.equal(again.weights, run.weights)
    assert [m for m in messages() if "state was saved with something in pieces.rank.counters.done" in m]


def test_saving_moves_no_random_number(tmp_path):
    draws = []
    for saves in (False, True):
        run = Run()
        run.accelerator.register_save_state_pre_hook(lambda *_: torch.rand(3))
        if saves:
            run.accelerator.save_state(tmp_path / "state")
        draws.append(torch.rand(1))
    assert draws[0] == draws[1]


# ---- changed runs


def test_a_changed_run_is_refused_before_anything_is_loaded(tmp_path):
    saving_at(3, tmp_path)
    for change, name in (({"lr": 0.2}, r"optimizer\.0\.lr"), ({"seed": 8, "changes": None}, "seed")):
        run = Run(**change)
        before = run.weights
        with pytest.raises(ConfigChangedError, match=name):
            run.accelerator.load_state(tmp_path / "state")
        assert torch.equal(run.weights, before)
    assert Run(lr=0.2, changes=Changes(allow=("optimizer",))).accelerator.load_state(tmp_path / "state") is None


def test_another_number_of_registered_objects_is_refused_before_anything_is_loaded(tmp_path):
    saving_at(3, tmp_path)
    run = Run()
    run.accelerator.register_for_checkpointing(torch.nn.Linear(1, 1))
    with pytest.raises(ConfigChangedError, match="registered"):
        run.accelerator.load_state(tmp_path / "state")


@pytest.mark.parametrize("arguments", [{"save": SaveEvery()}, {"keep": Keep()}, {"resume": "must"}, {"scratch": "x"}])
def test_what_needs_a_directory_is_refused_without_one(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        ResumePlugin(**arguments)


def test_a_version_of_accelerate_that_lacks_what_is_needed_is_refused_with_its_name(monkeypatch):
    accelerator = Accelerator(cpu=True)
    vars(accelerator).pop("project_configuration")
    with pytest.raises(ResumeError, match=rf"Accelerate {accelerate.__version__} lacks .*project_configuration"):
        ResumePlugin().attach(accelerator)


def test_switched_off_nothing_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACT_RESUME", "off")
    run = Run()
    run.accelerator.save_state(tmp_path / "state")
    assert not (tmp_path / "state" / "exact_resume").exists()


# ---- numbered folders


def numbered(tmp_path, **options):
    return ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True, **options)


def names(tmp_path):
    return sorted(os.listdir(tmp_path / "checkpoints"))


def test_folders_are_numbered_on_and_the_limit_is_kept(tmp_path):
    for start in range(3):
        run = Run(project=numbered(tmp_path, total_limit=2), seed=start)
        if start:
            run.accelerator.load_state()
        for _ in range(2):
            run.accelerator.save_state()
    assert names(tmp_path) == ["checkpoint_4", "checkpoint_5"]


def test_an_older_folder_may_be_gone_on_from_beside_newer_ones(tmp_path):
    run = Run(project=numbered(tmp_path))
    for _ in range(3):
        run.accelerator.save_state()
    run = Run(project=numbered(tmp_path))
    run.accelerator.load_state(tmp_path / "checkpoints" / "checkpoint_0")
    run.accelerator.save_state()
    assert names(tmp_path) == [f"checkpoint_{number}" for number in range(4)]


def test_a_number_that_the_user_gives_is_kept(tmp_path):
    run = Run(project=numbered(tmp_path, iteration=7))
    run.accelerator.save_state()
    run.accelerator.save_state()
    assert names(tmp_path) == ["checkpoint_7", "checkpoint_8"]


def test_a_new_run_does_not_write_over_what_is_there(tmp_path):
    Run(project=numbered(tmp_path)).accelerator.save_state()
    with pytest.raises(ValueError, match="already exists"):
        Run(project=numbered(tmp_path)).accelerator.save_state()


def test_what_is_there_stays_until_the_next_one_is_complete(tmp_path):
    run = Run(project=numbered(tmp_path, total_limit=1))
    run.accelerator.save_state()
    seen = []
    run.accelerator.register_save_state_pre_hook(lambda *_: seen.extend(names(tmp_path)))
    run.accelerator.save_state()
    assert seen == ["checkpoint_0", "checkpoint_1"]
    assert names(tmp_path) == ["checkpoint_1"]


def test_the_newest_whole_one_is_taken_and_those_passed_over_are_named(tmp_path, messages):
    run = Run(project=numbered(tmp_path))
    for done in range(3):
        run.counters.done = done
        run.accelerator.save_state()
    (tmp_path / "checkpoints" / "checkpoint_2" / "optimizer.bin").write_bytes(b"torn")
    (tmp_path / "checkpoints" / "checkpoint_3").mkdir()  # killed before it wrote anything
    run = Run(project=numbered(tmp_path), seed=9)
    run.accelerator.load_state()
    assert run.counters.done == 1
    assert [m for m in messages() if "checkpoint_2 is passed over" in m and "optimizer.bin" in m]
    run.accelerator.save_state()
    assert names(tmp_path)[-1] == "checkpoint_4"


def test_without_any_whole_one_nothing_is_loaded(tmp_path):
    Run(project=numbered(tmp_path)).accelerator.save_state()
    (tmp_path / "checkpoints" / "checkpoint_0" / "random_states_0.pkl").unlink()
    with pytest.raises(CorruptCheckpointError, match="random_states_0"):
        Run(project=numbered(tmp_path)).accelerator.load_state()


def test_a_folder_that_is_not_there_is_accelerates_own_error(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        Run().accelerator.load_state(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="No input_dir"):
        Run().accelerator.load_state()


# ---- what a script may ask for


def test_saving_by_hand_is_save_state(tmp_path):
    run = Run()
    with pytest.raises(ResumeError, match=r"save_state\(folder\)"):
        run.resume.save()


def test_names_are_given_before_anything_is_loaded(tmp_path):
    saving_at(3, tmp_path)
    run = Run(counters=False, changes=Changes(allow=("seed", "counters")))
    run.accelerator.load_state(tmp_path / "state")
    for ask in (lambda: run.resume.counters(done=0), lambda: run.resume.track(model=run.model)):
        with pytest.raises(ResumeError, match="load_state"):
            ask()


def test_epochs_are_asked_for_once_and_before_the_first_batch(tmp_path):
    run = Run()
    run.train_epoch()
    with pytest.raises(ResumeError, match="before the first batch"):
        run.resume.epochs(2)
    run = Run()
    run.resume.restore()
    with pytest.raises(ResumeError, match="one run has one call"):
        run.resume.epochs(2)


@pytest.mark.parametrize("where", [3, 5, 8, 10])
def test_a_run_goes_on_in_a_new_script(tmp_path, where):
    whole = saving_at(where, tmp_path)
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(), whole)
    assert len(run.seen) == 10 - where


def test_a_run_that_had_ended_goes_on_with_more_epochs(tmp_path):
    whole = Run().to_the_end(3)
    short = Run().to_the_end(2)
    short.accelerator.save_state(tmp_path / "state")
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(3), whole)
    assert len(run.seen) == NUM_BATCHES
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    assert list(run.resume.epochs(2)) == []


def test_resumes_of_resumes_are_exact(tmp_path):
    whole = saving_at(2, tmp_path)
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    for _ in run.resume.epochs(2):
        run.train_epoch(lambda done: run.accelerator.save_state(tmp_path / "again") if len(run.seen) == 5 else None)
    assert_same(run, whole)
    again = Run(seed=10)
    again.accelerator.load_state(tmp_path / "again")
    assert_same(again.to_the_end(), whole)
    assert len(again.seen) == 3


def test_a_script_that_simply_loads_goes_on_behind_the_last_batch(tmp_path):
    """It has a range of its own, and leaves the position to the plugin."""
    whole = saving_at(3, tmp_path)
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    run.train_epoch()
    run.train_epoch()
    assert_same(run, whole)
    assert len(run.seen) == 7


@pytest.mark.parametrize(("where", "skips", "num_left"), [(3, 4, 7), (3, 0, 7), (5, 2, 5), (5, 5, 5)])
def test_what_a_script_has_computed_wrongly_is_said_and_what_was_saved_is_gone_on_from(
    tmp_path, messages, where, skips, num_left
):
    """As Accelerate's examples do with windows that the end of a loader closes: 4 steps are not 4 x 4 batches."""
    whole = saving_at(where, tmp_path)
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    run.train_epoch(loader=run.accelerator.skip_first_batches(run.loader, skips))
    if len(run.seen) < num_left:
        run.train_epoch()
    assert_same(run, whole)
    assert len(run.seen) == num_left
    assert bool([m for m in messages() if f"was to skip {skips} batches" in m]) == (skips != where)


def test_a_save_before_the_batch_is_trained_on_begins_with_that_batch(tmp_path, messages):
    whole = Run()
    for epoch in whole.resume.epochs(2):
        for number, batch in enumerate(whole.loader):
            if (epoch, number) == (1, 2):
                whole.accelerator.save_state(tmp_path / "state")
            whole.train(batch)
    assert [m for m in messages() if "begins with that batch" in m]
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(), whole)
    assert len(run.seen) == 3


def test_a_save_at_the_top_of_an_epoch_begins_with_that_epoch(tmp_path):
    whole = Run()
    for epoch in whole.resume.epochs(2):
        if epoch == 1:
            whole.accelerator.save_state(tmp_path / "state")
        whole.train_epoch()
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(), whole)
    assert len(run.seen) == NUM_BATCHES


def test_a_save_between_two_loops_of_an_epoch_is_warned_of(tmp_path, messages):
    run = Run()
    for _ in run.resume.epochs(1):
        run.train_epoch()
        run.accelerator.save_state(tmp_path / "state")
        run.train_epoch()
    assert [m for m in messages() if "between two loops of an epoch" in m]


def test_a_save_behind_a_loop_that_holds_its_iterator_is_warned_of(tmp_path, messages):
    run = Run()
    held = iter(run.loader)
    for _ in run.resume.epochs(2):
        for _ in range(2):
            run.train(next(held))
        run.accelerator.save_state(tmp_path / "state")
    assert [m for m in messages() if "Make the iterator anew in each epoch" in m]


@pytest.mark.parametrize("first", ["load", "iter"])
def test_an_iterator_that_a_script_holds_goes_on_where_it_stood(tmp_path, first):
    whole = Run()
    held = iter(whole.loader)
    for number in range(4):
        whole.train(next(held))
        if number == 1:
            whole.accelerator.save_state(tmp_path / "state")
    run = Run(seed=9)
    held = iter(run.loader) if first == "iter" else None
    run.accelerator.load_state(tmp_path / "state")
    held = held or iter(run.loader)
    for _ in range(2):
        run.train(next(held))
    assert_same(run, whole)


def test_a_batch_that_a_script_looks_at_before_it_loads_does_no_harm(tmp_path):
    whole = Run()
    next(iter(whole.loader))
    for _ in whole.resume.epochs(2):
        whole.train_epoch(lambda done: whole.accelerator.save_state(tmp_path / "state") if len(whole.seen) == 7 else 0)
    run = Run(seed=9)
    next(iter(run.loader))
    run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(), whole)
    assert len(run.seen) == 3


def test_a_load_inside_a_loop_puts_back_what_accelerate_does_and_says_so(tmp_path, messages):
    run = Run()
    weights = None
    for number, batch in enumerate(run.loader):
        run.train(batch)
        if number == 1:
            run.accelerator.save_state(tmp_path / "state")
            weights = run.weights
        if number == 3:
            run.accelerator.load_state(tmp_path / "state")
            assert torch.equal(run.weights, weights)
    assert len(run.seen) == NUM_BATCHES
    assert [m for m in messages() if "load_state was called inside a loop" in m]


def test_a_load_between_loops_goes_back_to_where_it_was_saved(tmp_path):
    run = Run()
    run.train_epoch(lambda done: run.accelerator.save_state(tmp_path / "state") if done == 2 else None)
    first = list(run.seen)
    run.accelerator.load_state(tmp_path / "state")
    run.train_epoch()
    assert run.seen[NUM_BATCHES:] == first[2:]


def test_state_can_be_saved_again_right_after_it_was_loaded(tmp_path):
    whole = saving_at(7, tmp_path)
    copy = Run(seed=8)
    copy.accelerator.load_state(tmp_path / "state")
    copy.accelerator.save_state(tmp_path / "copy")
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "copy")
    assert_same(run.to_the_end(), whole)
    assert len(run.seen) == 3


def test_the_function_that_skips_is_warned_of(tmp_path, messages):
    """It makes a loader past the Accelerator, whose method of that name is taken over."""
    saving_at(3, tmp_path)
    run = Run(seed=9)
    run.accelerator.load_state(tmp_path / "state")
    run.train_epoch(loader=accelerate.skip_first_batches(run.loader, 3))
    assert [m for m in messages() if "accelerator.skip_first_batches()" in m]


def test_a_loader_for_each_epoch_is_warned_of_when_the_script_counts_by_itself(tmp_path, messages):
    run = Run()
    run.train_epoch()
    late = run.accelerator.prepare(DataLoader(run.loader.dataset, 2, shuffle=True))
    with torch.no_grad():
        list(late)
    assert not [m for m in messages() if "Take the epochs from" in m]
    run.train_epoch(loader=late)
    assert [m for m in messages() if "Take the epochs from" in m]


def test_a_run_that_was_refused_may_begin_anew(tmp_path):
    saving_at(3, tmp_path)
    run = Run(lr=0.2)
    with pytest.raises(ConfigChangedError):
        run.accelerator.load_state(tmp_path / "state")
    assert_same(run.to_the_end(), Run(lr=0.2).to_the_end())


def test_two_iterators_may_be_made_before_either_gives_a_batch(tmp_path):
    def train(run, save):
        for number, (batch, other) in enumerate(zip(run.loader, run.other, strict=True), 1):
            run.train(batch)
            run.seen.append(other[0].flatten().tolist())
            save(number)

    def start(seed):
        run = Run(seed=seed)
        run.other = run.accelerator.prepare(DataLoader(run.loader.dataset, 2, shuffle=True))
        return run

    whole = start(7)
    train(whole, lambda number: whole.accelerator.save_state(tmp_path / "state") if number == 2 else None)
    run = start(9)
    run.accelerator.load_state(tmp_path / "state")
    train(run, lambda number: None)
    assert_same(run, whole)
    assert len(run.seen) == 6
