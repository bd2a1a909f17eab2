"""Several ranks that end with an error, all of them or one: what they had saved is promoted, and nobody stays."""

from __future__ import annotations

import pytest
from rank_threads import Start, together

from resume_core import boundaries
from resume_core.storage import CheckpointWriter


def committed(place):
    return {path.parent.name for path in place.glob("attempt-*/step-*/manifest.json")}


@pytest.fixture
def places(tmp_path):
    return {"directory": tmp_path / "run", "scratch": tmp_path / "scratch"}


def begin(toy, ranks, places):
    return Start(toy(), places["directory"], ranks, scratch=places["scratch"])


def test_what_all_ranks_have_saved_on_the_scratch_is_promoted(toy, places):
    def run(ranks):
        start = begin(toy, ranks, places).train(2)
        start.session.end(ValueError("the user's"))  # what was taken at the last boundary is in flight

    found, _ = together(2, run)
    assert found == [None, None]
    assert "step-000000002" in committed(places["scratch"])
    assert "step-000000002" in committed(places["directory"])


def test_a_rank_that_ends_alone_does_not_wait_for_the_shares_of_others(toy, places, monkeypatch, caplog):
    monkeypatch.setattr(boundaries, "_PART_S", 0.2)
    plain = CheckpointWriter.write_part

    def run(ranks):
        start = begin(toy, ranks, places).train(1)
        start.session.wait()
        if ranks.rank == 1:
            return  # as if killed: its share of what follows never comes
        monkeypatch.setattr(CheckpointWriter, "write_part", lambda self: None if self._rank else plain(self))
        start.session.end(ValueError("the user's"))

    found, _ = together(2, run)
    assert found == [None, None]
    assert "for ranks 1" in caplog.text
    assert "step-000000001" in committed(places["scratch"])


def test_without_a_scratch_the_save_in_flight_is_committed(toy, tmp_path):
    def run(ranks):
        Start(toy(), tmp_path, ranks).train(2).session.end(ValueError("the user's"))

    found, _ = together(2, run)
    assert found == [None, None]
    assert "step-000000002" in committed(tmp_path)
