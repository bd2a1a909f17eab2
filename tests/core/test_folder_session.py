"""Runs whose framework writes folders: which one is gone on from, by all ranks or by none."""

from __future__ import annotations

import logging

import pytest
from rank_threads import together

from resume_core.embedded import Given
from resume_core.errors import ConfigChangedError, CorruptCheckpointError
from resume_core.folder_session import FolderSession
from resume_core.policy import Changes
from resume_core.state import Progress, State

LOG = logging.getLogger("test")


def session_of(made, **options):
    session = FolderSession(made, plugin="ResumePlugin", alone="the framework alone would", log=LOG, **options)
    session.start(7)
    return session


def save(session, folder, step=3):
    folder.mkdir(exist_ok=True)
    session.begin_save(str(folder), Progress(step=step), lambda: {"a": 1})
    (folder / "framework.bin").write_bytes(b"weights")
    session.commit_save(str(folder), ["framework.bin"])


def test_the_first_folder_that_is_whole_is_taken_and_the_others_are_named(tmp_path, toy, caplog):
    session = session_of(toy())
    for name in ("old", "new"):
        save(session, tmp_path / name)
    (tmp_path / "new" / "framework.bin").write_bytes(b"torn")
    folders = [str(tmp_path / name) for name in ("new", "old")]
    found, entry = session.find(folders)
    assert (found, entry.progress.step) == (folders[1], 3)
    assert "new is passed over" in caplog.text
    with pytest.raises(CorruptCheckpointError, match=r"framework\.bin"):
        session.find(folders[:1])


def test_a_folder_without_our_files_is_the_frameworks_own(tmp_path, toy, caplog):
    assert session_of(toy()).find([str(tmp_path)]) == (str(tmp_path), None)
    assert "was saved without ResumePlugin, so it is loaded as the framework alone would" in caplog.text


def test_a_run_is_compared_before_it_is_loaded(tmp_path, toy):
    save(session_of(first := toy()), tmp_path)
    session = session_of(changed := toy(batch_size=8))
    _, entry = session.find([str(tmp_path)])
    for changes, fails in ((Changes(), True), (Changes(allow=("batch_size",)), False)):
        session = session_of(changed, changes=changes)
        session.give(Given("folder", entry, State(model={"value": first.value + 2}, training={}, rank={})))
        if fails:
            with pytest.raises(ConfigChangedError, match="batch_size"):
                session.start(9)
            assert changed.applied is None
        else:
            session.start(9)
    assert (changed.key, changed.value.tolist()) == (first.key, [2.0] * 3)


def saved_by_two(tmp_path, toy, damage):
    """Two ranks save, something happens to the folder, and two ranks look for it."""

    def start(ranks):
        made = toy()
        made.ranks = ranks
        return session_of(made)

    def work(ranks):
        session = start(ranks)
        save(session, tmp_path, step=3)
        ranks.gather("saved", None)
        if ranks.is_first:
            damage(session)
        ranks.gather("damaged", None)
        return session.find([str(tmp_path)])

    return together(2, work)[0]


def test_two_ranks_go_on_from_files_of_one_save(tmp_path, toy):
    found = saved_by_two(tmp_path, toy, lambda session: None)
    assert [entry.progress.step for _, entry in found] == [3, 3]


def test_files_of_different_saves_are_refused_on_all_ranks(tmp_path, toy):
    found = saved_by_two(tmp_path, toy, lambda session: save(session, tmp_path, step=4))
    assert [type(error) for error in found] == [CorruptCheckpointError] * 2
    assert all("of different saves" in str(error) for error in found)


@pytest.mark.parametrize("name", ["rank-00001.json", "rank-00001.safetensors"])
def test_what_one_rank_lacks_is_refused_on_all(tmp_path, toy, name):
    found = saved_by_two(tmp_path, toy, lambda session: (tmp_path / "exact_resume" / name).unlink())
    assert [type(error) for error in found] == [CorruptCheckpointError] * 2
    assert all(name in str(error) for error in found)


def test_a_process_that_saves_alone_is_told(tmp_path, toy, caplog):
    def work(ranks):
        made = toy()
        made.ranks = ranks
        session = session_of(made)
        for _ in range(2 if ranks.is_first else 0):
            save(session, tmp_path)
        ranks.gather("saved", None)
        return session.find([str(tmp_path)])

    found, _ = together(2, work)
    assert "one process alone saves" in caplog.text
    assert all("made on some of the processes alone" in str(error) for error in found)


def test_another_number_of_ranks_is_refused(tmp_path, toy):
    save(session_of(toy()), tmp_path)

    def work(ranks):
        made = toy()
        made.ranks = ranks
        return session_of(made).find([str(tmp_path)])

    assert all("by 1 processes and 2 train now" in str(error) for error in together(2, work)[0])
