"""The Trainer's own folders ``checkpoint-N``: whole or not taken, and gone on from exactly."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import harness
import pytest
from accelerate_runs import fails, start, train
from trainer_runs import arguments, new_job

SAVED = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 4}


def folders(job):
    return sorted(Path(f"{job.directory}-hf").glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))


def again(job, given, name="again", **changes):
    """Another start that is told what to go on from; it writes elsewhere."""
    options = {**job.options, "given": given, "hf": f"{job.root}/{name}-hf"}
    return job.but(name=name, seed=99, directory=f"{job.root}/{name}", options=options, **changes)


def assert_tail(job, whole, tail, num_batches):
    assert train(tail) == whole
    assert len(harness.batches(tail)) == num_batches
    assert harness.steps(tail) == harness.steps(job)[-len(harness.steps(tail)) :]
    assert sorted(harness.reads(tail)) == sorted(i for step in harness.batches(tail) for i in step["ids"])


KINDS = {
    "by steps": arguments(**SAVED),
    "by steps, windows of 4": arguments(**{**SAVED, "save_steps": 2, "eval_steps": 2}, gradient_accumulation_steps=4),
    "by epochs": arguments(save_strategy="epoch", eval_strategy="epoch", logging_strategy="epoch"),
    "fp16": {"scaler": True, "overflows": [0, 3, 4, 9], **arguments(**SAVED)},
}


QUICK = {("by steps, windows of 4", "without one"), ("by epochs", "with a directory"), ("fp16", "without one")}
CASES = [(kind, plugin) for kind in KINDS for plugin in ("with a directory", "without one")]


@pytest.mark.parametrize(
    ("kind", "plugin"), [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow]) for case in CASES]
)
def test_a_run_goes_on_exactly_from_each_folder(tmp_path, kind, plugin):
    job = new_job(tmp_path, no_directory=plugin == "without one", **KINDS[kind])
    whole = train(job)
    for number, folder in enumerate(folders(job)):
        step = json.loads((folder / "trainer_state.json").read_text())["global_step"]
        window = job.options["arguments"].get("gradient_accumulation_steps", 1)
        done = step // 2 * 6 + step % 2 * 4 if window == 4 else step
        assert_tail(job, whole, again(job, str(folder), f"again-{number}"), 18 - done)


def test_two_ranks_go_on_exactly_from_a_folder(tmp_path):
    job = new_job(tmp_path, no_directory=True, epochs=2, **arguments(save_strategy="steps", save_steps=2))
    whole = train(job, 2)
    tail = again(job, str(folders(job)[1]))
    assert train(tail, 2) == whole
    for rank in range(2):
        found = harness.steps(tail.but(name=f"again.{rank}"))
        assert found == harness.steps(job.but(name=f"whole.{rank}"))[-len(found) :]
        assert found


def test_the_newest_folder_that_is_whole_is_taken(tmp_path):
    job = new_job(tmp_path, no_directory=True, **arguments(**SAVED))
    whole = train(job)
    found = folders(job)
    assert [path.name for path in found] == ["checkpoint-4", "checkpoint-8", "checkpoint-12", "checkpoint-16",
                                             "checkpoint-18"]  # fmt: skip
    torn = found[4] / "optimizer.pt"
    torn.write_bytes(torn.read_bytes()[:-100])
    (found[3] / "rng_state.pth").unlink()
    record = found[2] / "exact_resume" / "rank-00000.json"
    record.write_bytes(b"")
    copies = Path(f"{job.root}/copies-hf")
    for number, given in enumerate((True, str(copies / "checkpoint-18"))):
        shutil.copytree(f"{job.directory}-hf", copies)
        tail = again(job, given, f"again-{number}").but(directory=f"{job.root}/again-{number}")
        tail.options["hf"] = str(copies)
        assert_tail(job, whole, tail, 10)
        assert "checkpoint-16 is passed over" in tail.path("log").read_text()
        shutil.rmtree(copies)
    for path in found[:2]:
        (path / "model.safetensors").write_bytes(b"x" * 1000)
    error = fails(again(job, str(found[4]), "none"))
    assert error.startswith("CorruptCheckpointError")


def test_a_folder_of_the_trainer_alone_is_gone_on_from_and_said_to_be_inexact(tmp_path):
    job = new_job(tmp_path, plugin=False, **arguments(**SAVED))
    train(job)
    tail = again(job, str(folders(job)[1]), plugin=True)
    train(tail)
    assert len(harness.batches(tail)) == 10
    first = [i for step in harness.batches(tail) if step["epoch"] == 1 for i in step["ids"]]
    assert sorted(harness.reads(tail)) == sorted(i for step in harness.batches(tail) for i in step["ids"])
    assert len(set(first)) == len(first) == 22 - 8
    assert "was saved without TrainerResumeCallback, so it is loaded as the Trainer alone would" in (
        tail.path("log").read_text()
    )


def test_a_run_in_its_directory_goes_on_from_there_whatever_folder_is_named(tmp_path):
    job = new_job(tmp_path, **arguments(**SAVED))
    whole = train(job)
    first = job.but(name="first", directory=str(tmp_path / "killed"), pause_at=11)
    (process,) = start(first)
    harness.wait_for(lambda: first.path("paused").exists() and 11 in harness.committed_batches(first), process, first)
    harness.kill(process)
    second = first.but(name="second", seed=99, pause_at=None, options={**job.options, "given": True})
    assert_tail(job, whole, second, 18 - 11)


def test_limits_count_folders_and_the_old_ones_go_when_the_new_one_is_whole(tmp_path):
    chosen = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}
    job = new_job(tmp_path, no_directory=True, epochs=1, **arguments(**chosen))
    train(job)
    assert [path.name for path in folders(job)] == ["checkpoint-4", "checkpoint-6"]


def test_a_folder_without_the_optimizer_says_so(tmp_path):
    job = new_job(tmp_path, no_directory=True, epochs=1, **arguments(**SAVED, save_only_model=True))
    train(job)
    tail = again(job, str(folders(job)[0]))
    train(tail)
    assert "was saved with save_only_model=True, so without its optimizer" in tail.path("log").read_text()


@pytest.mark.slow
def test_a_folder_that_was_cut_off_is_not_taken_wherever_that_was(tmp_path):
    """Killed before each file is there, and when the Trainer has written all, but nothing is added yet."""
    job = new_job(tmp_path, no_directory=True, epochs=2, **arguments(save_strategy="steps", save_steps=4))
    whole = train(job)
    files = ["model.safetensors", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth",
             "trainer_state.json", None]  # fmt: skip
    for number, file in enumerate(files):
        options = {**job.options, "dies before": [8, file], "hf": f"{tmp_path}/dead-{number}-hf"}
        dead = job.but(name=f"dead-{number}", directory=f"{tmp_path}/dead-{number}", options=options)
        (process,) = start(dead)
        process.join(harness.DEADLINE_S)
        assert process.exitcode == -9, file
        tail = again(job, True, f"after-{number}")
        tail.options["hf"] = options["hf"]
        assert_tail(job, whole, tail, 8)
