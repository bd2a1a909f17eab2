"""A checkpoint that is deleted while it is read: what is there is listed again."""

from __future__ import annotations

import pytest
from rank_threads import Start, together

from resume_core import Keep, SaveEvery
from resume_core.checkpointer import Checkpointer
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.storage import Lineage, open_store

EVERY = SaveEvery(steps=1, minutes=None)


@pytest.fixture
def at_first_read(monkeypatch):
    """Does something once, between the listing and the reading of a checkpoint."""

    def install(action):
        read, done = Checkpointer.read, []

        def late(self, ref, *arguments, **options):
            if not done:
                done.append(ref)
                action(ref)
            return read(self, ref, *arguments, **options)

        monkeypatch.setattr(Checkpointer, "read", late)

    return install


def delete(directory, path):
    """As retention does: the manifest first."""
    store = open_store(str(directory))
    store.delete(f"{path}/manifest.json")
    for name in store.list(path):
        store.delete(f"{path}/{name}")


def said(caplog, text):
    return [r.getMessage() for r in caplog.records if text in r.getMessage()]


def test_one_that_was_pruned_by_hand_is_passed_over_and_is_no_damage(directory, start, at_first_read, caplog):
    caplog.set_level("INFO", "exact_resume")
    start(directory, save=EVERY).train(3).session.end()
    at_first_read(lambda ref: delete(directory, ref.path))
    second = start(directory)
    assert second.restored.progress.step == 2
    assert len(said(caplog, "listed again")) == 1
    assert not said(caplog, "cannot be used")
    second.session.end()


def test_what_a_live_run_has_committed_meanwhile_is_found(directory, start, at_first_read):
    first = start(directory, save=EVERY, keep=Keep(last=1)).train(3)
    first.session.wait()

    def goes_on(_):
        first.train(2)
        first.session.wait()

    at_first_read(goes_on)
    assert start(directory).restored.progress.step == 5


def test_files_that_vanish_under_a_manifest_that_stays_are_damage(directory, start, at_first_read, caplog):
    start(directory, save=EVERY).train(3).session.end()
    at_first_read(lambda ref: open_store(directory).delete(f"{ref.path}/model.safetensors"))
    assert start(directory).restored.progress.step == 2
    assert said(caplog, "step-000000003 cannot be used")


def test_one_that_was_asked_for_by_name_and_vanishes_is_an_error_that_lists_what_is_there(
    directory, start, at_first_read
):
    start(directory, save=EVERY).train(3).session.end()
    at_first_read(lambda ref: delete(directory, ref.path))
    with pytest.raises(CheckpointNotFoundError, match=r"What exists: .*step-000000003"):
        start(directory, resume="attempt-0001/step-000000002")


def test_a_run_of_which_all_has_vanished_is_not_begun_anew_silently(directory, start, at_first_read):
    first = start(directory, save=EVERY).train(2)
    first.session.end()

    def all_of_them(_):
        for ref in list(Lineage(open_store(directory)).candidates()):
            delete(directory, ref.path)

    at_first_read(all_of_them)
    with pytest.raises(CheckpointNotFoundError, match="deleted while it was read, and none is left"):
        start(directory)


def test_all_ranks_list_again_when_one_of_them_misses_it(toy, tmp_path, at_first_read):
    together(2, lambda ranks: Start(toy(), tmp_path, ranks).train(3).session.end())
    at_first_read(lambda ref: delete(tmp_path, ref.path))
    found, _ = together(2, lambda ranks: Start(toy(), tmp_path, ranks).restored.progress.step)
    assert found == [2, 2]


def test_damage_everywhere_is_still_an_error(directory, start):
    start(directory, save=EVERY).train(1).session.end()
    store = open_store(directory)
    for ref in list(Lineage(store).candidates()):
        store.put(f"{ref.path}/model.safetensors", b"short")
    with pytest.raises(CorruptCheckpointError, match="no checkpoint of this run"):
        start(directory)
