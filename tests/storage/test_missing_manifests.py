"""Checkpoints whose manifest is gone though history says that they were committed."""

from __future__ import annotations

import pytest

from resume_core.storage import put_history
from resume_core.storage.missing_manifests import missing_manifests, newest_missing

from .helpers import Run


def told(run, refs, **facts):
    """A history that says that these were saved."""
    seen = {"time": "2026-01-01T00:00:00+00:00", "up_s": 1.0, "trained_s": 1.0, "step": 1, "batch": 1, "epoch": 0}
    saves = [{"path": ref.path, **(facts or {"end": "durable"})} for ref in refs]
    fields = {"host": "a", "started": seen["time"], "first_batch_s": 0.0, "resumed": None, "seen": seen}
    fields |= {"cause": None, "why": None, "earlier": {"saves": 0, "blocked_s": 0.0}, "saves": saves}
    put_history(run.store, run.attempt.name, fields)


def saved(store, *steps, **how):
    run = Run(store, **how)
    refs = [run.save(step) for step in steps]
    told(run, refs)
    return run, refs


def missing(run):
    return [(one.ref.name[-1], one.is_newest) for one in missing_manifests(run.lineage, run.lineage.glance())]


def newest(run):
    return [one.ref.name[-1] for one in newest_missing(run.lineage, run.lineage.glance())]


def lose(store, ref):
    store.delete(f"{ref.path}/manifest.json")


def test_nothing_is_missing_of_a_run_that_is_whole(store):
    run, _ = saved(store, 1, 2, 3)
    assert missing(run) == newest(run) == []


def test_the_newest_cannot_have_been_deleted(store):
    run, refs = saved(store, 1, 2, 3)
    lose(store, refs[2])
    assert (missing(run), newest(run)) == ([("3", True)], ["3"])
    lose(store, refs[1])
    assert (missing(run), newest(run)) == ([("3", True), ("2", True)], ["3", "2"])


def test_an_older_one_may_have_been_on_its_way_out(store):
    run, refs = saved(store, 1, 2, 3)
    lose(store, refs[0])
    assert (missing(run), newest(run)) == ([("1", False)], [])
    (found,) = missing_manifests(run.lineage, run.lineage.glance())
    assert "deleted in part, or is damaged" in str(found)


@pytest.mark.parametrize("facts", [{"end": "failed", "durable_s": 1.0}, {"end": "replaced"}, {"stage_s": 1.0}])
def test_a_save_that_history_does_not_call_durable_is_half_written(store, facts):
    run, refs = saved(store, 1, 2)
    lose(store, refs[1])
    told(run, refs, **facts)
    assert missing(run) == newest(run) == []


@pytest.mark.parametrize("content", [None, b"{}"])
def test_without_a_history_nothing_is_claimed(store, content):
    run, refs = saved(store, 1, 2)
    lose(store, refs[1])
    store.delete(f"{run.attempt.name}/history.json")
    if content is not None:
        store.put(f"{run.attempt.name}/history.json", content)
    assert missing(run) == newest(run) == []


def test_a_folder_of_which_nothing_is_left_was_deleted(store):
    run, refs = saved(store, 1, 2)
    store.delete_tree(refs[1].path)
    assert missing(run) == newest(run) == []


def test_the_one_that_an_attempt_went_on_from(store):
    _, refs = saved(store, 1, 2, 3)
    lose(store, refs[1])
    run = Run(store, restored_from=refs[1])
    assert newest(run) == ["2"]  # and not 3, which is on no line
    run.save(4)
    assert (missing(run), newest(run)) == ([("2", False)], [])


def test_what_is_on_no_line_may_go_newest_or_not(store):
    _, refs = saved(store, 1, 2, 3)
    lose(store, refs[2])
    run = Run(store, restored_from=refs[0])
    assert missing(run) == newest(run) == []


def test_another_run_in_the_directory_has_a_line_of_its_own(store):
    _, refs = saved(store, 1, 2)
    lose(store, refs[1])
    run, _ = saved(store, 5)
    assert (missing(run), newest(run)) == ([("2", True)], [])


def test_a_run_that_goes_on_between_two_listings_is_no_damage(store):
    run, refs = saved(store, 1)
    glance = run.lineage.glance()
    glance.names(run.attempt.name)  # seen before...
    told(run, [*refs, run.save(2)])
    lose(store, refs[0])  # ...and this afterwards
    assert [one.is_newest for one in missing_manifests(run.lineage, glance)] == [False]
    glance = run.lineage.glance()
    assert newest_missing(run.lineage, glance) == []


@pytest.mark.parametrize("num_done", range(1, 40, 3))
def test_a_kill_anywhere_in_a_deletion_is_never_called_damage(store, num_done, monkeypatch):
    _, refs = saved(store, 1, 2, 3, 4)
    run = Run(store, restored_from=refs[2])
    told(run, [run.save(5), run.save(6)])
    plain, done = type(store).delete, []

    def delete(self, key):
        done.append(key)
        if len(done) > num_done:
            raise KeyboardInterrupt
        plain(self, key)

    monkeypatch.setattr(type(store), "delete", delete)
    try:
        run.prune(last=1)
    except KeyboardInterrupt:
        assert len(done) > num_done
    monkeypatch.undo()
    assert newest(run) == []
    assert all(not is_newest for _, is_newest in missing(run))
