"""A directory that somebody deletes while its run is training."""

from __future__ import annotations

import pytest

from resume_core import SaveEvery
from resume_core.errors import SaveFailedError
from resume_core.storage import open_store

EVERY = SaveEvery(steps=1, minutes=None)


def test_it_is_made_again_and_the_next_start_goes_on(directory, start, caplog):
    first = start(directory, save=EVERY).train(2)
    first.session.wait()
    open_store(directory).delete_tree("")
    first.train(1).session.end()
    assert caplog.text.count("was deleted while its run is training") == 1
    caplog.clear()
    again = start(directory, save=EVERY)
    assert again.restored.progress.step == 3
    assert "is missing" not in caplog.text
    again.session.end()


def test_with_a_scratch_too(tmp_path, near, start):
    first = start(tmp_path / "run", scratch=near, save=EVERY).train(2)
    first.session.wait()
    open_store(tmp_path / "run").delete_tree("")
    first.train(1).session.end()
    again = start(tmp_path / "run", scratch=near, save=EVERY)
    assert again.restored.progress.step == 3
    again.session.end()


def test_a_run_that_was_begun_there_meanwhile_is_never_mixed_with_the_old_one(directory, start):
    old = start(directory, save=EVERY)
    old.train(2).session.end()
    old = start(directory, save=EVERY).train(1)
    old.session.wait()
    open_store(directory).delete_tree("")
    new = start(directory, save=EVERY).train(1)
    new.session.wait()
    with pytest.raises(SaveFailedError, match="If that is another run, stop this process"):
        old.train(4)
    new.train(1).session.end()
    assert start(directory, save=EVERY).restored.progress.step == 2
