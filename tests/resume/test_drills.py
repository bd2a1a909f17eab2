"""A rehearsal goes on as a restart would, says whether that is as recorded, and leaves everything as it was."""

from __future__ import annotations

import hashlib
import itertools
import json
from pathlib import Path

import accelerate_runs
import harness
import pytest
from checked import SAVED, train, whole_job

_NUMBERS = itertools.count()
FRAMEWORKS = ["lightning", "accelerate", "trainer"]
OWN_FILES = {
    "lightning": {"loggers": [["csv", {}]], "callbacks": ["by step", "newest"]},
    "accelerate": {},
    "trainer": {"arguments": {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 2}},
}


@pytest.fixture(scope="module", params=FRAMEWORKS)
def whole(request, tmp_path_factory):
    job = whole_job(tmp_path_factory.mktemp(request.param), request.param)
    job = job.but(options={**job.options, **OWN_FILES[request.param]})
    train(job, request.param)
    return job, request.param


def rehearse(job, framework, name, **options):
    again = job.but(name=f"drill {next(_NUMBERS)}", seed=99, options={**job.options, "rehearses": name, **options})
    process = harness.start(again) if framework == "lightning" else accelerate_runs.start(again)[0]
    process.join(harness.DEADLINE_S)
    found = again.path("drill")
    return process.exitcode, json.loads(found.read_text()) if found.exists() else {}, again


def files(job):
    """All that the run has left, by name; not what rehearsals write down for us."""
    paths = sorted(path for path in Path(job.root).rglob("*") if path.is_file() and not path.name.startswith("drill "))
    return {str(path): (path.stat().st_mtime_ns, hashlib.md5(path.read_bytes()).hexdigest()) for path in paths}


def saved(job):
    return next(name for name in harness.committed(job) if f"step-{SAVED:09d}" in name)


def test_a_rehearsal_finds_what_was_recorded_and_writes_nothing(whole):
    job, framework = whole
    before = files(job)
    code, result, again = rehearse(job, framework, saved(job))
    assert code == 0, again.path("log").read_text()[-3000:]
    assert (result["verdict"], result["steps"], result["checkpoint"]) == ("same", 3, saved(job))
    assert result["first_step"] > 0
    assert len(harness.batches(again)) == 3
    assert files(job) == before


def test_a_rehearsal_finds_a_fault(whole):
    job, framework = whole
    before = files(job)
    code, result, again = rehearse(job, framework, saved(job), fault="one weight changed")
    assert (code, result["verdict"]) == (1, "differs")
    said = again.path("log").read_text()  # the command says it, once
    assert "does not go on as it did" not in said
    assert "exact-resume drill" not in said
    assert "goes back to" not in said
    assert files(job) == before


def test_of_a_run_that_is_over_nothing_is_left_to_rehearse(whole):
    job, framework = whole
    before = files(job)
    code, result, _ = rehearse(job, framework, "must")
    assert (code, result["verdict"]) == (0, "over")
    assert files(job) == before


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_without_a_checkpoint_there_is_nothing_to_rehearse(tmp_path, framework):
    job = whole_job(tmp_path, framework)
    code, result, again = rehearse(job, framework, "must")
    assert (code, result) == (1, {})
    assert "CheckpointNotFoundError" in again.path("error").read_text()
    assert not Path(job.directory).exists()


def test_a_rehearsal_of_another_directory_is_none(whole):
    job, framework = whole
    before = files(job)
    code, result, again = rehearse(job, framework, saved(job), rehearses_url="/somewhere/else")
    assert code == 1
    assert result == {"verdict": "elsewhere", "directory": job.directory}
    assert "the rehearsal is of /somewhere/else" in again.path("error").read_text()
    assert files(job) == before
