"""What users may ask of the plugin, and what it refuses or warns of."""

from __future__ import annotations

import json

import accelerate
import pytest
import torch
from accelerate import Accelerator, DistributedType, ParallelismConfig
from accelerate.state import AcceleratorState
from small_runs import ALWAYS, make_loader, new_parts, new_run, train, train_all

import accelerate_resume
from accelerate_resume import Keep, ResumePlugin, SaveEvery
from accelerate_resume._accelerator import own_optimizer
from resume_core.errors import CheckpointNotFoundError, ResumeError, UnsupportedStateError


def test_the_public_names_are_those_of_the_design():
    assert accelerate_resume.__all__ == [
        "ResumePlugin",
        "TrainerResumeCallback",
        "SaveEvery",
        "Keep",
        "Changes",
        "Preemption",
        "Check",
        "Watch",
    ]


def test_the_plugin_must_be_attached_before_anything_is_prepared(tmp_path):
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(make_loader())
    with pytest.raises(ResumeError, match=r"before accelerator\.prepare"):
        ResumePlugin(tmp_path).attach(accelerator)


def test_one_accelerator_has_one_plugin_and_one_plugin_one_accelerator(tmp_path):
    accelerator = Accelerator(cpu=True)
    plugin = ResumePlugin(tmp_path).attach(accelerator)
    with pytest.raises(ResumeError, match="has a ResumePlugin already, whose run did not begin"):
        ResumePlugin(tmp_path).attach(accelerator)
    with pytest.raises(ResumeError, match="attached already"):
        plugin.attach(Accelerator(cpu=True))
    train_all((accelerator, plugin, *accelerator.prepare(*new_parts())))  # as if nothing had been tried


def test_ranks_that_accelerate_does_not_join_are_refused(tmp_path, monkeypatch):
    accelerator = Accelerator()
    for name, value in {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ResumeError, match=r"torchrun has started 2 processes, .* Accelerator\(cpu=True\)"):
        ResumePlugin(tmp_path).attach(accelerator)


def test_a_rehearsal_writes_nothing_of_the_accelerators_and_knows_its_hyperparameters(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACT_RESUME_DRILL", str(tmp_path / "result"))
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path / "logs")
    plugin = ResumePlugin(tmp_path / "run").attach(accelerator)
    accelerator.init_trackers("one", config={"width": 3})
    accelerator.save({"a": 1}, tmp_path / "saved")
    assert plugin._framework._hparams == {"width": 3}  # else the configuration would be another one
    assert list(tmp_path.iterdir()) == []


def test_a_second_run_of_an_accelerator_begins_behind_free_memory_with_a_plugin_of_its_own(tmp_path):
    run = new_run(tmp_path / "first")
    train_all(run)
    with pytest.raises(ResumeError, match=r"call accelerator\.free_memory\(\), attach a new ResumePlugin"):
        ResumePlugin(tmp_path / "second").attach(run[0])
    run[0].free_memory()
    second = ResumePlugin(tmp_path / "second", **ALWAYS).attach(run[0])
    assert len(train_all((run[0], second, *run[0].prepare(*new_parts())), 2)) == 8
    for name, num_epochs in (("first", 1), ("second", 2)):
        assert train_all(new_run(tmp_path / name), num_epochs) == []  # each has its own end


def test_a_run_that_another_one_took_the_accelerator_from_says_so(tmp_path):
    run = new_run(tmp_path / "first")
    epochs = run[1].epochs(2)
    next(epochs)
    run[0].free_memory()
    ResumePlugin(tmp_path / "second").attach(run[0])
    with pytest.raises(ResumeError, match="another ResumePlugin was attached"):
        next(epochs)


def test_what_is_prepared_anew_in_a_run_is_refused_at_the_next_save(tmp_path):
    accelerator, resume, *_ = new_run(tmp_path)
    epochs = resume.epochs(1)
    next(epochs)
    accelerator.free_memory()
    model, optimizer, loader = accelerator.prepare(*new_parts())
    with pytest.raises(UnsupportedStateError, match="other models, optimizers or schedulers are"):  # noqa: PT012
        for batch in loader:
            train(accelerator, model, optimizer, batch)


def test_a_plugin_that_is_not_attached_says_so(tmp_path):
    for ask in (lambda p: p.epochs(3), lambda p: p.restore(), lambda p: p.track(a=torch.nn.Linear(1, 1))):
        with pytest.raises(ResumeError, match="call attach"):
            ask(ResumePlugin(tmp_path))


def test_one_run_is_started_once(tmp_path):
    run = new_run(tmp_path)
    train_all(run)
    for ask in (lambda: run[1].epochs(2), run[1].restore, lambda: run[1].counters(a=1), lambda: run[1].track(a=run[2])):
        with pytest.raises(ResumeError):
            ask()


@pytest.mark.parametrize("name", ["_models", "gradient_state", "_custom_objects"])
def test_a_version_of_accelerate_that_lacks_what_is_needed_is_refused_with_its_name(tmp_path, name):
    accelerator = Accelerator(cpu=True)
    vars(accelerator).pop(name)
    with pytest.raises(ResumeError, match=rf"Accelerate {accelerate.__version__} lacks .*{name}"):
        ResumePlugin(tmp_path).attach(accelerator)


@pytest.mark.parametrize("kind", ["FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"])
def test_ways_to_train_that_are_not_exact_are_refused(tmp_path, kind, monkeypatch):
    accelerator = Accelerator(cpu=True)
    monkeypatch.setitem(AcceleratorState._shared_state, "distributed_type", DistributedType[kind])
    with pytest.raises(ResumeError, match=f"{kind} is not supported: train on a single device or with Distributed"):
        ResumePlugin(tmp_path).attach(accelerator)


def test_tensor_parallel_is_refused(tmp_path, monkeypatch):
    accelerator = Accelerator(cpu=True)
    monkeypatch.setattr(Accelerator, "parallelism_config", ParallelismConfig(), raising=False)
    with pytest.raises(ResumeError, match="a ParallelismConfig is not supported"):
        ResumePlugin(tmp_path).attach(accelerator)


def test_parameters_of_a_model_that_was_not_prepared_are_refused_unless_it_is_tracked(tmp_path):
    for tracked in (False, True):
        accelerator, resume, *_ = new_run(tmp_path / str(tracked))
        other = torch.nn.Linear(1, 1)
        accelerator.prepare(torch.optim.SGD(other.parameters(), 0.1))
        if tracked:
            resume.track(other=other)
            assert resume.restore() == 0
        else:
            with pytest.raises(ResumeError, match="belong to no prepared model"):
                resume.restore()


def test_what_cannot_be_tracked_is_refused(tmp_path):
    _, resume, model, *_ = new_run(tmp_path)
    with pytest.raises(TypeError, match=r"number \(int\) must have state_dict"):
        resume.track(number=3)
    resume.track(model=model)
    with pytest.raises(ResumeError, match="'model' is tracked already"):
        resume.track(model=model)


def test_counters_have_the_names_that_they_were_made_with(tmp_path):
    counters = ResumePlugin(tmp_path).counters(step=0, best=float("inf"))
    counters.step += 1
    assert (counters.step, repr(counters)) == (1, "Counters(step=1, best=inf)")
    with pytest.raises(AttributeError, match="no counter 'stop'"):
        counters.stop = 1
    with pytest.raises(AttributeError, match="no counter 'stop'"):
        counters.stop


def test_counters_are_restored_and_what_code_above_the_loop_did_to_them_is_undone(tmp_path):
    for number in range(2):
        accelerator, resume, model, optimizer, loader = new_run(tmp_path)
        counters, seen = resume.counters(above=0, inside=0), []
        for _ in resume.epochs(2):
            counters.above += 1
            for batch in loader:
                seen.append((counters.above, counters.inside))
                train(accelerator, model, optimizer, batch)
                counters.inside += 1
                resume._session.wait()
                if number == 0 and counters.inside == 7:
                    break
            if number == 0 and counters.inside == 7:
                break
    assert seen == [(2, 6), (2, 7)]


def test_a_run_that_is_required_and_not_there_is_an_error(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="must"):
        new_run(tmp_path, resume="must")[1].epochs(1)


def test_switched_off_nothing_is_taken_over(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("EXACT_RESUME", "off")
    run = new_run(tmp_path)
    assert 'EXACT_RESUME="off": nothing of this run is saved' in caplog.text
    assert list(run[1].epochs(3)) == [0, 1, 2]
    assert ResumePlugin(tmp_path).restore() == 0
    run[1].save()
    run[1].track(a=run[2])
    assert not list(tmp_path.iterdir())
    assert "prepare_data_loader" not in vars(run[0])


def test_save_takes_effect_at_the_next_boundary(tmp_path):
    accelerator, resume, model, optimizer, loader = new_run(tmp_path, save=SaveEvery(steps=1000, minutes=None))
    with pytest.raises(ResumeError, match="after epochs"):
        resume.save()
    for _ in resume.epochs(1):
        for place, batch in enumerate(loader):
            resume._session.wait()
            train(accelerator, model, optimizer, batch)
            if place == 1:
                resume.save()
    names = sorted(path.parent.name for path in tmp_path.glob("*/*/manifest.json"))
    assert names == ["step-000000000", "step-000000002", "step-000000004", "step-000000004.2"]


def test_what_is_prepared_after_the_run_began_is_refused_at_the_next_save(tmp_path):
    accelerator, resume, model, optimizer, loader = new_run(tmp_path)
    epochs = resume.epochs(1)
    next(epochs)
    accelerator.prepare(torch.nn.Linear(1, 1))
    with pytest.raises(UnsupportedStateError, match="prepare and register everything before"):  # noqa: PT012
        for batch in loader:
            train(accelerator, model, optimizer, batch)


def test_a_script_that_goes_on_elsewhere_than_it_was_saved_is_told(tmp_path):
    accelerator, resume, model, optimizer, loader = new_run(tmp_path)
    for _ in resume.epochs(1):
        for batch in loader:
            train(accelerator, model, optimizer, batch)
            resume._session.wait()
            if own_optimizer(optimizer).state[next(model.parameters())]["step"] == 2:
                break
        break
    _, resume, *_ = new_run(tmp_path)
    with pytest.raises(ResumeError, match="went through that epoch without asking for it"):
        list(resume.epochs(1))


def look(loader):
    with torch.no_grad():
        return [batch[0].flatten().tolist() for batch in loader]


def test_validations_that_follow_one_another_differ_and_go_on_alike(tmp_path):
    def start(stops):
        accelerator, resume, model, optimizer, loader = new_run(tmp_path / "run")
        validation, found = accelerator.prepare(make_loader(16)), []
        for epoch in resume.epochs(2):
            found.append(look(validation))
            if stops and epoch == 1:
                break
            for batch in loader:
                train(accelerator, model, optimizer, batch)
                resume._session.wait()
            resume._session.wait()
            found.append(look(validation))
        return [*found, look(validation)]

    first, rest, end = start(True), start(False), start(False)
    for validated in (*first, *rest, *end):
        assert sorted(number for batch in validated for number in batch) == list(range(16))
    assert first[2] == rest[0]  # at the top of the second epoch
    assert first[1] != first[2]  # at the end of the first, behind the same batch
    assert [rest[-1]] == end  # when all is over, and when nothing was left to do
    assert rest[-2] != rest[-1]


def test_what_a_script_skips_by_itself_is_not_skipped_twice(tmp_path):
    for number in range(2):
        accelerator, resume, model, optimizer, loader = new_run(tmp_path)
        counters, seen = resume.counters(done=0), []
        for _ in resume.epochs(1):
            skipping = accelerator.skip_first_batches(loader, counters.done) if counters.done else loader
            for batch in skipping:
                train(accelerator, model, optimizer, batch)
                seen += batch[0].flatten().tolist()
                counters.done += 1
                resume._session.wait()
                if number == 0 and counters.done == 3:
                    break
            if number == 0:
                first = seen[:4]  # what is saved: the batch at which it stopped is not
                break
    assert sorted(first + seen) == list(range(8))


def test_a_loader_that_skips_goes_on_exactly_too(tmp_path):
    tails = []
    for number in range(2):
        accelerator, resume, model, optimizer, loader = new_run(tmp_path)
        tail = []
        for _ in resume.epochs(1):
            for batch in accelerator.skip_first_batches(loader, 1):
                train(accelerator, model, optimizer, batch)
                tail.append(batch[0].flatten().tolist())
                resume._session.wait()
                if number == 0 and len(tail) == 2:
                    break
            if number == 0:
                break
        tails.append(tail)
    assert tails[1][0] == tails[0][1]  # trained on again: the run was saved before it
    assert len({index for batch in [tails[0][0], *tails[1]] for index in batch}) == 6


def test_a_run_with_a_scratch_goes_on_from_it(tmp_path):
    whole = train_all(new_run(tmp_path / "whole"))
    run = new_run(tmp_path / "run", scratch=tmp_path / "scratch")
    first = train_all(run)
    assert first == whole
    assert list((tmp_path / "scratch").rglob("manifest.json"))
    assert train_all(new_run(tmp_path / "run", scratch=tmp_path / "scratch")) == []


def test_the_best_checkpoint_by_a_counter_stays(tmp_path):
    accelerator, resume, model, optimizer, loader = new_run(tmp_path, keep=Keep(last=1, best="loss"))
    counters, losses = resume.counters(loss=9.0), iter([3.0, 1.0, 2.0, 4.0])
    for _ in resume.epochs(1):
        for batch in loader:
            train(accelerator, model, optimizer, batch)
            counters.loss = next(losses)
            resume._session.wait()
    names = {path.parent.name for path in tmp_path.glob("*/*/manifest.json")}
    assert "step-000000002" in names
    assert "step-000000003" not in names


def test_a_save_at_the_end_of_an_epoch_carries_what_was_judged_behind_its_last_batch(tmp_path):
    options = {"save": SaveEvery(minutes=None, epochs=1), "keep": Keep(last=9, best="judged")}
    accelerator, resume, model, optimizer, loader = new_run(tmp_path, **options)
    counters = resume.counters(step=0, judged=float("inf"))
    for _ in resume.epochs(2):
        for batch in loader:
            train(accelerator, model, optimizer, batch)
            counters.step += 1
        counters.judged = float(counters.step)
        resume._session.wait()
    headers = [json.loads(path.read_text())["header"] for path in tmp_path.glob("*/*/manifest.json")]
    told = sorted((one["progress"]["step"], float(one["metrics"]["judged"])) for one in headers)
    assert told[0] == (0, float("inf"))
    assert {(4, 4.0), (8, 8.0)} == set(told[1:])


def test_a_save_at_the_end_of_each_second_epoch(tmp_path):
    assert len(train_all(new_run(tmp_path / "run", save=SaveEvery(minutes=None, epochs=2)), 5)) == 20
    assert {int(path.parent.name[5:14]) for path in tmp_path.glob("run/*/*/manifest.json")} == {0, 8, 16, 20}


class _Late(torch.utils.data.RandomSampler):
    """Makes its generator when it is first gone over, as Accelerate's seedable sampler does."""

    def __iter__(self):
        self.generator = self.generator or torch.Generator()
        return super().__iter__()


def test_a_model_may_know_its_optimizer_and_by_its_hooks_the_plugin_with_all_loaders(tmp_path):
    def started(num_epochs):
        run = new_run(tmp_path, loader=make_loader(shuffle=None, sampler=_Late(range(8))))
        run[2].knows = [run[3]]
        return len(train_all(run, num_epochs))

    assert started(1) == 4
    assert started(2) == 4
