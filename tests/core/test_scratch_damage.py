"""Damage on a scratch, on the directory, or on both."""

from __future__ import annotations

import pytest
from scratches import EVERY, names, promotions_held, told

from resume_core.state import Progress
from resume_core.storage import open_store


def flip(place, path, name, at=-1):
    store = open_store(str(place))
    data = bytearray(store.read(f"{path}/{name}"))
    data[at] ^= 1
    store.put(f"{path}/{name}", bytes(data))


@pytest.mark.parametrize("name", ["model.safetensors", "training.json", "rank-00000.json", "manifest.json"])
@pytest.mark.parametrize("damaged", ["scratch", "directory"])
def test_a_bit_that_is_flipped_on_one_tier_comes_from_the_other(directory, near, start, caplog, name, damaged):
    run = start(directory, scratch=near, save=EVERY).train(2)
    run.session.end()
    place = near if damaged == "scratch" else directory
    path = f"{run.session._attempt.name}/step-000000002"
    flip(place, path, name)
    second = start(directory, scratch=near, save=EVERY)
    assert second.restored.progress.step == 2
    assert second.toy.value.tolist() == [2, 2, 2]
    second.session.end()
    said = told(caplog, f"{path}/{name}")
    assert bool(said) == (damaged == "scratch" or name == "manifest.json")  # nearest first: the other is not read


def test_a_checkpoint_that_is_damaged_on_every_tier_is_passed_over(directory, near, start, caplog):
    run = start(directory, scratch=near, save=EVERY).train(1)
    run.session.wait()
    run.train(1)
    run.session.end()
    path = f"{run.session._attempt.name}/step-000000002"
    for place in (near, directory):
        flip(place, path, "model.safetensors")
    assert start(directory, scratch=near).restored.progress.step == 1
    assert told(caplog, "chunk 0 of 1 was altered")


def test_a_damaged_file_on_the_scratch_is_never_promoted(directory, near, start, monkeypatch, caplog):
    run = start(directory, scratch=near, save=EVERY).train(2)
    run.session.wait()
    with monkeypatch.context() as patch, promotions_held(patch):
        run.train(1)
        run.session._saves.writer.wait()
        run.session.boundary(Progress(step=3, batch=3))
        flip(near, f"{run.session._attempt.name}/step-000000003", "model.safetensors")
    run.session._saves.wait()
    run.train(1)
    assert "model.safetensors" in told(caplog, "the save at step 3 failed")[0]
    run.session.end()
    assert names(directory)[-1] == "attempt-0001/step-000000004"
    assert "attempt-0001/step-000000003" not in names(directory)
