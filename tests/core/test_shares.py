"""What `bring` makes of the failures around it."""

from __future__ import annotations

import pytest

from resume_core.errors import SaveFailedError, SupersededError
from resume_core.ranks import Ranks
from resume_core.shares import bring
from resume_core.storage import CheckpointSlots, Lineage, open_store


@pytest.fixture
def run(tmp_path):
    lineage = Lineage(open_store(tmp_path / "run"))
    attempt = lineage.claim()
    return lineage, attempt, CheckpointSlots(lineage.store, attempt.name).take(1)


def bring_with(run, header):
    lineage, attempt, slot = run
    return bring(
        lineage.store,
        slot,
        Ranks(),
        write=lambda writer: writer.write_file("model.safetensors", b"weights"),
        header=header,
        still_newest=lambda: lineage.check_newest(attempt),
    )


def test_all_that_is_written_is_committed(run):
    assert bring_with(run, dict).ref == run[0].checkpoints(run[1].name)[0]


def test_what_a_newer_attempt_cleaned_away_is_told_by_the_attempt_that_did(run):
    lineage, attempt, slot = run

    def overtaken():
        lineage.claim(parent=attempt.name)
        lineage.store.delete_tree(slot.path)  # as its cleaning does
        return {}

    with pytest.raises(SupersededError, match=f"attempt-0002.*{attempt.name}") as stopped:
        bring_with(run, overtaken)
    assert isinstance(stopped.value.__cause__, SaveFailedError)


def test_without_a_newer_attempt_the_failure_is_told_as_it_is_and_nothing_is_left(run):
    lineage, _, slot = run

    def lost():
        lineage.store.delete(f"{slot.path}/model.safetensors")
        return {}

    with pytest.raises(SaveFailedError, match=r"files model\.safetensors are gone"):
        bring_with(run, lost)
    assert lineage.store.list(slot.path) == []
