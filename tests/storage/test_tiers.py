"""Checkpoints over an ordered list of stores."""

from __future__ import annotations

import os

import pytest

from resume_core.errors import CheckpointNotFoundError
from resume_core.policy import Keep
from resume_core.storage import CheckpointRef, Lineage, Pruned, Tiers, clean, open_store, prune

from .helpers import Run, load, paths, save, tree, write_ranks


@pytest.fixture
def near(tmp_path):
    return open_store(tmp_path / "scratch")


class Tiered(Run):
    """One attempt that saves on either tier."""

    def __init__(self, store, near, **arguments):
        super().__init__(store, **arguments)
        self.near = near
        self.lineage = Lineage(store, [near, store])
        assert self.lineage.tiers.admit(near, self.attempt.name)

    def save_on(self, step, *stores):
        slot = self.slots.take(step)
        for store in stores or (self.near, self.store):
            ref = save(store, slot, f"s{step}", world_size=1).ref
        return ref


def steps(refs):
    return [int(ref.name[5:14]) for ref in refs]


def test_a_line_holds_what_is_on_any_tier_newest_first(store, near):
    run = Tiered(store, near)
    run.save_on(1, store)
    run.save_on(2)
    run.save_on(3, near)
    run.save_on(4, store)
    assert steps(run.lineage.candidates()) == [4, 3, 2, 1]
    assert steps(run.lineage.on(store).candidates()) == [4, 2, 1]
    assert steps(run.lineage.on(near).candidates()) == [3, 2]
    committed = run.lineage.tiers.committed
    assert [[s.url for s in committed(ref)] for ref in run.lineage.candidates()] == [
        [store.url],
        [near.url],
        [near.url, store.url],
        [store.url],
    ]


def test_the_line_goes_on_over_attempts_and_tiers(store, near):
    first = Tiered(store, near)
    first.save_on(1)
    branch = first.save_on(2, near)
    first.save_on(3, near)
    second = Tiered(store, near, restored_from=branch)
    second.save_on(4, near)
    assert steps(second.lineage.candidates()) == [4, 2, 1]
    assert steps(Lineage(store).candidates()) == [1]


def test_a_damaged_manifest_on_one_tier_is_told_and_that_of_another_is_used(store, near):
    run = Tiered(store, near)
    ref = run.save_on(1)
    near.put(f"{ref.path}/manifest.json", b"damaged")
    assert run.lineage.read_manifest(ref).serial == 0
    (damage,) = run.lineage.tiers.damaged(ref)
    assert near.url in str(damage)
    assert steps(run.lineage.candidates()) == [1]
    assert next(iter(run.lineage.candidates())).serial == 0


def test_a_folder_of_another_run_is_never_read_counted_or_deleted(store, near, tmp_path):
    run = Tiered(store, near)
    run.save_on(1)
    other = Run(open_store(tmp_path / "other"))
    theirs = near.read(f"{run.attempt.name}/attempt.json").replace(b'"host": "a"', b'"host": "b"')
    near.put(f"{run.attempt.name}/attempt.json", theirs)
    assert not run.lineage.tiers.holds(near, run.attempt.name)
    assert not run.lineage.tiers.admit(near, run.attempt.name)
    assert steps(run.lineage.on(near).checkpoints(run.attempt.name)) == []
    with pytest.raises(CheckpointNotFoundError):
        run.lineage.on(near).read_manifest(CheckpointRef(run.attempt.name, "step-000000001"))
    before = tree(near)
    later = Tiered(store, near, parent=run.attempt.name)
    prune(later.lineage, Keep(last=1), later.attempt, store=near)
    clean(later.lineage, later.attempt)
    assert set(before) <= set(tree(near))
    assert other.attempt.name != ""


def test_a_folder_that_another_user_keeps_closed_is_not_ours(store, near, monkeypatch):
    run = Tiered(store, near)

    def closed(key):
        raise PermissionError(13, "Permission denied", key)

    monkeypatch.setattr(near, "read", closed)
    assert Tiers(store, [near, store]).holding(run.attempt.name) == [store]


def test_each_tier_is_pruned_by_what_it_holds_itself(store, near):
    run = Tiered(store, near)
    for step in (1, 2):
        run.save_on(step)
    for step in (3, 4):
        run.save_on(step, near)
    prune(run.lineage, Keep(last=2), run.attempt)
    assert steps(run.lineage.on(store).candidates()) == [2, 1]  # their successors are not in the directory yet
    prune(run.lineage, Keep(last=1), run.attempt, store=near)
    assert steps(run.lineage.on(near).candidates()) == [4]
    assert steps(run.lineage.on(store).candidates()) == [2, 1]
    assert load(near, next(iter(run.lineage.candidates()))) == "s4"


def test_what_is_being_read_is_spared(store, near):
    run = Tiered(store, near)
    refs = [run.save_on(step, near) for step in (1, 2, 3)]
    prune(run.lineage, Keep(last=1), run.attempt, store=near, spare=lambda: [refs[0].path])
    assert steps(run.lineage.candidates()) == [3, 1]


def test_unfinished_uploads_of_older_attempts_alone_are_abandoned(store, near, monkeypatch):
    first = Tiered(store, near)
    second = Tiered(store, near, parent=first.attempt.name)
    third = Tiered(store, near, parent=second.attempt.name)
    asked = []
    monkeypatch.setattr(store, "abandon_uploads", lambda folders: asked.append(folders) or 0)
    clean(second.lineage, second.attempt)
    assert asked == []  # a newer attempt runs: it is its turn
    clean(third.lineage, third.attempt)
    assert asked == [[first.attempt.name, second.attempt.name]]


def test_cleaning_leaves_what_this_and_newer_attempts_write(store, near):
    first = Tiered(store, near)
    write_ranks(near, first.slots.take(1), "torn")
    second = Tiered(store, near, parent=first.attempt.name)
    write_ranks(near, second.slots.take(1), "in flight")
    write_ranks(store, second.slots.take(2), "in flight")
    before = tree(near, second.attempt.name), tree(store, second.attempt.name)
    assert clean(first.lineage, first.attempt) == Pruned()
    assert tree(near, first.attempt.name) != [f"{first.attempt.name}/attempt.json"]
    assert clean(second.lineage, second.attempt).deleted == (f"{first.attempt.name}/step-000000001",)
    assert (tree(near, second.attempt.name), tree(store, second.attempt.name)) == before
    assert near.list("") == [second.attempt.name]
    assert store.exists(f"{first.attempt.name}/attempt.json")


def test_a_store_that_is_down_is_told_and_the_other_tier_is_cleaned(store, near, monkeypatch):
    first = Tiered(store, near)
    write_ranks(store, first.slots.take(1), "torn")
    second = Tiered(store, near, parent=first.attempt.name)

    def down(prefix):
        raise OSError(5, "input/output error")

    monkeypatch.setattr(near, "list", down)
    cleaned = clean(second.lineage, second.attempt)
    assert len(cleaned.failures) == 1
    assert near.url in cleaned.failures[0]
    assert cleaned.deleted == (f"{first.attempt.name}/step-000000001",)


@pytest.mark.parametrize("look", [Lineage, lambda store: Lineage(store).glance()], ids=["fresh", "glance"])
@pytest.mark.parametrize("operation", ["list", "read"])
def test_a_listing_survives_retention_that_deletes_beside_it(store, operation, look, monkeypatch):
    run = Run(store)
    for step in range(1, 6):
        run.save(step)
    num_calls = 0
    plain = getattr(store, operation)

    def racing(key):
        nonlocal num_calls
        num_calls += 1
        answer = plain(key)
        if num_calls in (2, 4, 7):
            setattr(store, operation, plain)
            prune(Lineage(store), Keep(last=1), run.attempt)
            setattr(store, operation, racing)
        return answer

    monkeypatch.setattr(store, operation, racing)
    refs = list(look(store).candidates())
    monkeypatch.setattr(store, operation, plain)
    assert refs[0].name == "step-000000005"
    assert paths(refs[:1]) == paths(Lineage(store).candidates())


def test_files_on_the_scratch_respect_umask(store, near):
    before = os.umask(0o077)
    try:
        run = Tiered(store, near)
        ref = run.save_on(1, near)
    finally:
        os.umask(before)
    folder = os.path.join(near.url, ref.path)
    assert {os.stat(os.path.join(folder, name)).st_mode & 0o777 for name in os.listdir(folder)} == {0o600}
    assert os.stat(folder).st_mode & 0o777 == 0o700
