"""``ResumePlugin()``: whatever ``save_state`` writes, ``load_state`` goes on from exactly, in a new process."""

from __future__ import annotations

import json
from pathlib import Path

import harness
import pytest
from accelerate_runs import new_job, of_ranks, some, start, train


def whole_run(tmp_path, size=1, **options):
    job = new_job(tmp_path, script="own states", **options)
    return job, train(job, size)


def saved(job):
    """Names of the folders, in the order in which they were saved."""
    found = {
        path.parent.parent.name: path.stat() for path in Path(job.directory).glob("*/exact_resume/rank-00000.json")
    }
    return sorted(found, key=lambda name: found[name].st_mtime_ns)


def num_done(job, name):
    """How many batches had been trained on."""
    kind, number = name.split("_")
    if kind == "step":
        return int(number)
    return next(step["done"] for step in harness.steps(job) if step.get("epoch_end") == int(number))


def end_of(job):
    assert job.path("end").exists(), f"{job.name} did not end\n{job.path('log').read_text()[-6000:]}"
    return json.loads(job.path("end").read_text())


def assert_goes_on(job, whole, names, size=1, **options):
    """From each folder, under another seed, a run does what the whole one did from there on, and reads nothing else."""
    tails = [
        job.but(name=f"again-{name}", seed=1000 + number, options={**job.options, "load": name, **options})
        for number, name in enumerate(names)
    ]
    if size == 1:
        (process,) = start(*tails)
        process.join(harness.DEADLINE_S * 3)
    for name, tail in zip(names, tails, strict=True):
        ends = train(tail, size) if size > 1 else [end_of(tail)]
        for first, second, end, again in zip(of_ranks(job, size), of_ranks(tail, size), whole, ends, strict=True):
            expected, found = harness.steps(first), harness.steps(second)
            assert len(harness.batches(second)) == len(harness.batches(first)) - num_done(first, name), name
            assert found == expected[len(expected) - len(found) :], name
            assert again == end, name


@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_that_asks_for_its_epochs_goes_on_from_each_save(tmp_path, workers):
    job, whole = whole_run(tmp_path, workers=workers)
    names = saved(job)
    assert len(names) == 18 + 3
    names = names if not workers else some(names, 5)
    assert_goes_on(job, whole, names)
    for name in names:
        again = job.but(name=f"again-{name}")
        assert sorted(harness.reads(again)) == sorted(i for step in harness.batches(again) for i in step["ids"])


@pytest.mark.parametrize("counts", ["examples", "restores"])
def test_a_script_that_counts_epochs_and_skips_batches_by_itself_goes_on_from_each_save(tmp_path, counts):
    seedable = {"use_seedable_sampler": counts == "examples"}
    job, whole = whole_run(tmp_path, style="example", counts=counts, loading=seedable)
    names = [name for name in saved(job) if name != "step_18"]  # which asks for nothing any more
    assert_goes_on(job, whole, names if counts == "examples" else some(names, 5))


STYLES = {
    "break": {"style": "break"},
    "nested": {"style": "nested"},
    "in turn": {"style": "in turn"},
    "zip": {"style": "zip"},
    "alternating": {"style": "alternating"},
    "cycled": {"style": "cycled"},
    "ahead": {"style": "ahead"},
    "gan": {"style": "gan"},
    "a new loader each epoch": {"style": "new loader"},
    "window of 3": {"window": {"num_steps": 3}},
    "window of 4, not closed by the loader": {"window": {"num_steps": 4, "sync_with_dataloader": False}},
    "fp16, window of 3": {"scaler": True, "overflows": [0, 3, 4, 9], "window": {"num_steps": 3}},
    "bf16": {"precision": "bf16"},
    "seedable": {"loading": {"use_seedable_sampler": True}},
    "dispatched": {"loading": {"dispatch_batches": True}},
    "numbered batch sampler": {"loader": "numbered", "workers": 2},
    "own generator": {"loader": "own generator"},
}
# what these styles do behind the save is not done again: they break, validate, or turn to another loader
EXACT = {
    "break": ["step_1", "step_6", "step_11", "epoch_0", "epoch_2"],
    "nested": ["step_1", "step_5", "step_9", "epoch_0", "epoch_2"],
    "alternating": ["step_2", "step_6", "step_8", "step_9", "step_10", "epoch_1"],
}


@pytest.mark.parametrize("kind", STYLES)
def test_loops_of_every_style_go_on_exactly(tmp_path, kind):
    job, whole = whole_run(tmp_path, **STYLES[kind])
    assert_goes_on(job, whole, EXACT.get(kind) or some(saved(job), 4))


RANKS = {
    "asks": {"device_specific": True, "window": {"num_steps": 2}},
    "counts by itself": {"counts": "examples", "style": "example", "loading": {"use_seedable_sampler": True}},
    "dispatched": {"loading": {"dispatch_batches": True}},
}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.slow] if k == "dispatched" else []) for k in RANKS]
)
def test_two_ranks_go_on_exactly(tmp_path, kind):
    job, whole = whole_run(tmp_path, 2, epochs=2, **RANKS[kind])
    names = saved(job)
    assert_goes_on(job, whole, ["step_2", "step_3", "epoch_0", names[-3]], 2)


def test_a_run_that_names_its_folders_by_itself_goes_on_from_the_newest_whenever_it_is_killed(tmp_path):
    job, whole = whole_run(tmp_path, numbered=3)
    folders = Path(job.directory) / "checkpoints"
    assert sorted(path.name for path in folders.iterdir()) == ["checkpoint_18", "checkpoint_19", "checkpoint_20"]
    first = job.but(name="start-0", directory=str(tmp_path / "killed"))
    jobs = [first, *(first.but(name=f"start-{k}", seed=k, options={**job.options, "load": "newest"}) for k in (1, 2))]
    for number, each in enumerate(jobs[:2]):
        (process,) = start(each.but(slow_s=0.03))
        harness.wait_for(lambda: len(harness.batches(each)) > 4, process, each)  # noqa: B023
        process.join(0.013 * (number + 1))
        harness.kill(process)
    assert train(jobs[2]) == whole
    assert harness.steps(jobs[2]) == harness.steps(job)[-len(harness.steps(jobs[2])) :]
    assert len(harness.batches(jobs[2])) < 18 - 6


def test_what_one_of_two_ranks_lacks_is_an_error_on_both_before_anything_is_loaded(tmp_path):
    job, _ = whole_run(tmp_path, 2, epochs=1, style="example")
    for folder, name in (("step_1", "random_states_1.pkl"), ("step_2", "exact_resume/rank-00001.safetensors")):
        (Path(job.directory) / folder / name).unlink()
        again = job.but(name="again", options={**job.options, "load": folder})
        for process in start(again, size=2):
            process.join(harness.DEADLINE_S)
        for each in of_ranks(again, 2):
            error = each.path("error").read_text()
            assert error.startswith("CorruptCheckpointError")
            assert Path(name).name in error
            assert "Nothing was loaded" in error
            each.path("error").unlink()


def test_two_ranks_name_folders_and_delete_them_together(tmp_path):
    job, _ = whole_run(tmp_path, 2, epochs=1, numbered=2)
    found = sorted(Path(job.directory, "checkpoints").iterdir())
    assert [path.name for path in found] == ["checkpoint_2", "checkpoint_3"]
    assert len(list(found[1].glob("exact_resume/*.json"))) == 2
