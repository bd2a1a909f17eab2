"""A session on several ranks: threads of one process that share a directory and a store for agreement."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch
from rank_threads import EVERY, Start, together

from resume_core import shares
from resume_core.boundaries import Boundaries
from resume_core.errors import ConfigChangedError, ResumeError, SaveFailedError, UnsupportedStateError
from resume_core.policy import SaveEvery
from resume_core.session import Session
from resume_core.state import Ending, State
from resume_core.storage import CheckpointWriter


@pytest.fixture
def own(toy):
    """A toy whose state is not all the same on all ranks."""

    class Own(toy):
        def capture(self):
            rank = self.ranks.rank
            training = {"moments": self.value * 2, "monitored": {"best": self.value.sum() + rank, "waits": rank % 2}}
            model = {"value": self.value, "mean": torch.full((3,), float(rank)).t()}
            # the same tensor in two parts, as a logged value and the metric it came from
            results = {"rng": torch.tensor([rank, self.num_draws]), "best": training["monitored"]["best"]}
            return State(model=model, training=training, rank=results)

        num_draws = 5

    return Own


def parts(directory):
    return sorted(path.name for path in directory.glob("*/step-*/part-*.json"))


@pytest.mark.parametrize("size", [2, 3])
def test_each_rank_gets_back_what_was_its_own(own, tmp_path, size):
    together(size, lambda ranks: Start(own(), tmp_path, ranks).train(3).session.end())
    found, _ = together(size, lambda ranks: Start(own(), tmp_path, ranks))
    for rank, start in enumerate(found):
        state = start.toy.applied
        assert start.restored.progress.step == 3
        assert state.model["value"].tolist() == [3, 3, 3]
        assert state.model["mean"].tolist() == [rank] * 3
        assert state.training["moments"].tolist() == [6, 6, 6]
        assert state.training["monitored"]["best"].item() == 9 + rank
        assert state.training["monitored"]["waits"] == rank % 2
        assert state.rank["rng"].tolist() == [rank, 5]
        assert state.rank["best"].item() == 9 + rank


def test_the_weights_are_written_once(own, tmp_path):
    together(3, lambda ranks: Start(own(), tmp_path, ranks).session.end())
    (folder,) = tmp_path.glob("attempt-0001-*/step-*")
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert parts(tmp_path) == ["part-00001.json", "part-00002.json"]
    assert {"rank-00001.safetensors", "rank-00002.safetensors", "model.safetensors", "manifest.json"} <= set(sizes)


def test_all_ranks_work_in_one_attempt(own, tmp_path):
    found, _ = together(3, lambda ranks: Start(own(), tmp_path, ranks).session._attempt.name)
    assert len(set(found)) == 1
    assert len(list(tmp_path.glob("attempt-*"))) == 1


def test_another_number_of_ranks_is_refused_before_anything_is_loaded(own, tmp_path):
    together(2, lambda ranks: Start(own(), tmp_path, ranks).train(1).session.end())
    toys = [own(), own(), own()]
    found, _ = together(3, lambda ranks: Start(toys[ranks.rank], tmp_path, ranks))
    assert all(isinstance(error, ResumeError) for error in found)
    assert "2 ranks" in str(found[0])
    assert all(toy.applied is None for toy in toys)


def test_a_difference_that_one_rank_alone_sees_stops_all(own, tmp_path):
    together(2, lambda ranks: Start(own(), tmp_path, ranks).train(1).session.end())
    toys = [own(), own(batch_size=8)]
    found, _ = together(2, lambda ranks: Start(toys[ranks.rank], tmp_path, ranks))
    assert all(isinstance(error, ConfigChangedError) for error in found)
    assert "on rank 1" in str(found[0])
    assert "batch_size" in str(found[0])
    assert all(toy.applied is None for toy in toys)


def test_a_file_that_one_rank_alone_cannot_read_sends_all_to_the_checkpoint_before(own, tmp_path):
    together(2, lambda ranks: Start(own(), tmp_path, ranks).train(3).session.end())
    newest = max(tmp_path.glob("*/step-*/rank-00001.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-1])
    found, _ = together(2, lambda ranks: Start(own(), tmp_path, ranks).restored.progress.step)
    assert found == [2, 2]


def test_state_that_one_rank_cannot_save_is_refused_by_all(own, tmp_path):
    class Odd(own):
        def capture(self):
            state = super().capture()
            return State(state.model, state.training, {"odd": object()}) if self.ranks.rank == 1 else state

    found, _ = together(2, lambda ranks: Start(Odd(), tmp_path, ranks))
    assert all(isinstance(error, UnsupportedStateError) for error in found)
    assert "on rank 1" in str(found[0])


def test_a_rank_that_cannot_write_fails_the_save_on_all_at_once(own, tmp_path, monkeypatch):
    together(2, lambda ranks: Start(own(), tmp_path, ranks).train(1).session.end())
    plain = CheckpointWriter.write_part

    def write_part(self):
        if self._rank == 1:
            raise OSError(28, "No space left on device")
        return plain(self)

    monkeypatch.setattr(CheckpointWriter, "write_part", write_part)
    found, _ = together(2, lambda ranks: Start(own(), tmp_path, ranks).train(1).session.end())
    assert all(isinstance(error, SaveFailedError) for error in found)
    assert all("on rank 1" in str(error) and "No space left" in str(error) for error in found)
    assert not list(tmp_path.glob("attempt-0002-*/step-*/manifest.json"))


def test_the_first_rank_that_fails_explains_how_the_others_do(own, tmp_path, monkeypatch):
    """What a rank has written is removed when it fails, which may take the folder from under the others."""
    together(2, lambda ranks: Start(own(), tmp_path, ranks).train(1).session.end())
    is_gone = threading.Event()

    def write_file(self, *args, **kwargs):
        if self._rank == 1:
            raise OSError(28, "No space left on device")
        assert is_gone.wait(10)
        raise FileNotFoundError(2, "No such file or directory")

    def discard(self, plain=CheckpointWriter.discard):
        plain(self)
        is_gone.set()

    monkeypatch.setattr(CheckpointWriter, "write_file", write_file)
    monkeypatch.setattr(CheckpointWriter, "discard", discard)
    found, _ = together(2, lambda ranks: Start(own(), tmp_path, ranks).train(1).session.end())
    assert all(isinstance(error, SaveFailedError) for error in found)
    assert all("on rank 1" in str(error) and "No space left" in str(error) for error in found)


def test_a_rank_that_writes_nothing_is_named(own, tmp_path, monkeypatch):
    plain = CheckpointWriter.write_part
    monkeypatch.setattr(shares, "PARTS_S", 0.2)
    monkeypatch.setattr(CheckpointWriter, "write_part", lambda self: None if self._rank == 1 else plain(self))
    found, _ = together(2, lambda ranks: Start(own(), tmp_path, ranks).train(1))
    assert all(isinstance(error, SaveFailedError) for error in found)
    assert all("for ranks 1" in str(error) for error in found)


def test_ranks_that_are_not_at_the_same_batch_are_stopped(own, tmp_path):
    def run(ranks):
        start = Start(own(), tmp_path, ranks)
        start.num += ranks.rank
        return start.train(1)

    found, _ = together(2, run)
    assert all(isinstance(error, ResumeError) for error in found)
    assert "rank 1 is at batch 2" in str(found[0])


def test_a_directory_that_is_not_shared_is_refused(own, tmp_path):
    found, _ = together(2, lambda ranks: Start(own(), tmp_path / str(ranks.rank), ranks))
    assert all(isinstance(error, ResumeError) for error in found)
    assert "must be one that all machines share" in str(found[0])


def test_only_the_clock_of_rank_0_counts(own, tmp_path, monkeypatch):
    def run(ranks):
        start = Start(own(), tmp_path, ranks, save=SaveEvery(minutes=1.0))
        clock = [0.0, 1e9][ranks.rank]  # rank 1 is far ahead
        start.session._boundaries._schedule._clock = lambda: clock
        start.session._boundaries.begin(start.progress)
        start.train(3)
        clock += 61
        start.train(2)
        start.session.end()

    # no meeting is put off, so that each batch has one
    monkeypatch.setattr(Boundaries, "_batches_to_go", lambda self, progress: 1)
    together(2, run)
    assert sorted(path.name for path in tmp_path.glob("attempt-0001-*/step-*")) == ["step-000000000", "step-000000004"]


def test_ranks_meet_seldom_when_nothing_is_due(own, tmp_path, monkeypatch):
    meetings = []
    plain = Boundaries.meet

    def meet(self, progress):
        meetings.append(progress.batch)
        return plain(self, progress)

    monkeypatch.setattr(Boundaries, "meet", meet)
    every = SaveEvery(steps=500)
    together(2, lambda ranks: Start(own(), tmp_path, ranks, save=every).train(1000, settle=False).session.end())
    assert len({batch for batch in meetings if batch < 500}) < 50
    assert {500, 1000} <= set(meetings)


def test_a_key_from_entropy_is_that_of_rank_0(own, tmp_path):
    def run(ranks):
        toy = own()
        toy.ranks = ranks
        session = Session(toy, tmp_path, save=EVERY)
        session.start(None)
        return toy.key

    found, _ = together(3, run)
    assert len(set(found)) == 1


def limited(own, max_steps):
    made = own()
    made.limits = {"max_steps": max_steps}
    return made


def test_ranks_come_to_their_end_together(own, tmp_path):
    def whole(ranks, max_steps):
        start = Start(limited(own, max_steps), tmp_path, ranks, save=SaveEvery(steps=100, minutes=None))
        start.train(max_steps - start.num - 1)
        start.toy.step()
        start.num += 1
        start.session.boundary(dataclasses.replace(start.progress, is_last=True))
        start.toy.value *= 10
        start.session.finish(start.progress, Ending("max_steps", {"max_steps": start.num}))
        start.session.end()
        return start

    def again(ranks, max_steps):
        toy = limited(own, max_steps)
        toy.ranks = ranks
        session = Session(toy, tmp_path)
        session.start(7)
        found = session.is_over, toy.value.tolist(), toy.applied.rank["rng"].tolist()
        session.end()
        return found

    together(2, lambda ranks: whole(ranks, 3))
    found, _ = together(2, lambda ranks: again(ranks, 3))
    assert found == [(True, [30.0] * 3, [rank, 5]) for rank in range(2)]
    found, _ = together(2, lambda ranks: again(ranks, 4))
    assert found == [(False, [3.0] * 3, [rank, 5]) for rank in range(2)]
    found, _ = together(2, lambda ranks: whole(ranks, 4).restored.progress.step)
    assert found == [3, 3]
    assert len(list(tmp_path.glob("attempt-*"))) == 2


def test_the_second_fit_of_ranks_has_one_key_and_follows_the_first(own, tmp_path):
    def fit(ranks, number):
        start = Start(own(), tmp_path, ranks, fit=number)
        start.session.finish(start.progress, Ending("stop", {}))
        start.session.end()
        return start.toy.key, start.restored

    together(2, lambda ranks: fit(ranks, 0))
    found, _ = together(2, lambda ranks: fit(ranks, 1))
    assert found[0] == found[1]
    assert found[0][1] is None
    assert "step-000000000.2" in next(tmp_path.glob("attempt-0002-*/attempt.json")).read_text()
