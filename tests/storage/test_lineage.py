from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError, SupersededError
from resume_core.storage import CheckpointRef, Lineage, lineage

from .helpers import Run, candidates, in_child, load, paths, tree, write_ranks


def damage(store, key):
    store.put(key, store.read(key)[:-1])


def attempt_file(run):
    return f"{run.attempt.name}/attempt.json"


# ---- a run that goes on while another process looks


def saves_meanwhile(run, looking, monkeypatch, times=1):
    """The run saves once more, and deletes what it had, after ``looking`` has listed and before it reads."""
    plain, steps = looking.tiers.read_ahead, iter(range(2, 2 + times))

    def read_ahead(attempt, names):
        if attempt == run.attempt.name and (step := next(steps, None)) is not None:
            run.save(step)
            run.prune(1)
        plain(attempt, names)

    monkeypatch.setattr(looking.tiers, "read_ahead", read_ahead)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("look", [Lineage, lambda store: Lineage(store).glance()], ids=["plain", "glance"])
def test_a_run_that_saves_meanwhile_is_never_one_without_checkpoints(store, monkeypatch, look, times):
    run = Run(store)
    run.save(1)
    looking = look(store)
    saves_meanwhile(run, looking, monkeypatch, times)
    assert [ref.name for ref in looking.candidates()] == [f"step-{1 + times:09d}"]


@pytest.mark.parametrize("look", [Lineage, lambda store: Lineage(store).glance()], ids=["plain", "glance"])
def test_nor_one_whose_line_is_lost_while_it_leaves_what_it_had_gone_on_from(store, monkeypatch, look):
    first = Run(store)
    run = Run(store, restored_from=first.save(1))
    looking = look(store)
    saves_meanwhile(run, looking, monkeypatch)
    assert [ref.name for ref in looking.candidates()] == ["step-000000002"]


def test_an_attempt_that_was_killed_in_its_first_save_is_empty(store):
    run = Run(store)
    store.put(f"{run.attempt.name}/step-000000001/model.safetensors", b"half of it")
    assert candidates(store) == candidates(store) == []


# ---- attempts and claims


def test_an_empty_store_has_no_attempt_and_nothing_to_resume(store):
    assert Lineage(store).attempts() == []
    assert Lineage(store).newest() is None
    assert candidates(store) == []


def test_a_claim_is_read_back_as_it_was_made(store):
    first = Run(store)
    ref = first.save(500)
    second = Run(store, restored_from=ref)
    assert Lineage(store).attempts() == [first.attempt, second.attempt]
    assert Lineage(store).newest() == second.attempt
    assert (second.attempt.number, second.attempt.parent) == (2, first.attempt.name)
    assert second.attempt.restored_from == ref
    assert ref.serial == 0
    assert second.attempt.info == {"host": "a"}


def test_numbers_go_on_past_four_digits_and_order_by_value(store, monkeypatch):
    store.put("attempt-9999-ffff/note", b"")
    run = Run(store)
    assert run.attempt.number == 10000
    later = Run(store, parent=run.attempt.name)
    assert Lineage(store).newest() == later.attempt


def test_a_token_that_is_taken_is_drawn_again(store, monkeypatch):
    tokens = iter(["aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr(lineage.secrets, "token_hex", lambda n: next(tokens) if n == 2 else "id")
    first = Lineage(store).claim()
    with monkeypatch.context() as patch:
        patch.setattr(Lineage, "_folders", lambda self: [])  # a claimer that listed before the first claim
        second = Lineage(store).claim()
    assert (first.name, second.name) == ("attempt-0001-aaaa", "attempt-0001-bbbb")


def test_threads_that_claim_at_once_all_get_an_attempt_and_agree_on_the_newest(store):
    barrier = threading.Barrier(6)

    def claim(_):
        barrier.wait()
        return Lineage(store).claim()

    with ThreadPoolExecutor(6) as pool:
        claimed = list(pool.map(claim, range(6)))
    assert len({attempt.name for attempt in claimed}) == 6
    newest = max(claimed, key=lambda attempt: (attempt.number, attempt.token))
    assert Lineage(store).newest() == newest
    superseded = [attempt for attempt in claimed if is_superseded(store, attempt)]
    assert len(superseded) == 5
    assert newest not in superseded


def is_superseded(store, attempt) -> bool:
    try:
        Lineage(store).check_newest(attempt)
    except SupersededError:
        return True
    return False


def test_processes_that_claim_at_once_all_get_an_attempt_and_one_goes_on(local_store):
    def work():
        attempt = Lineage(local_store).claim()
        local_store.put(f"claimed/{attempt.name}", b"")

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(in_child, [work] * 4)) == [0] * 4
    attempts = Lineage(local_store).attempts()
    assert sorted(attempt.name for attempt in attempts) == local_store.list("claimed")
    assert [is_superseded(local_store, attempt) for attempt in attempts] == [True, True, True, False]


def test_a_parent_that_is_not_older_is_refused(store):
    with pytest.raises(ValueError, match="no older attempt"):
        Lineage(store).claim(parent="attempt-0007-0000")
    assert tree(store) == []


def test_a_checkpoint_without_its_serial_cannot_be_a_branching_point(store):
    run = Run(store)
    ref = run.save(1)
    with pytest.raises(ValueError, match="has no serial"):
        Lineage(store).claim(restored_from=CheckpointRef(ref.attempt, ref.name))


def test_folders_and_files_of_others_are_no_attempts(store):
    for key in ("attempt-1/attempt.json", "attempt-0001-ABCD/attempt.json", "notes.txt", "attempt-0005-0000"):
        store.put(key, b"x")
    assert Lineage(store).attempts() == []
    assert Lineage(store).damaged() == []
    assert candidates(store) == []


# ---- the line rule


def test_one_attempt_offers_its_checkpoints_newest_first(store):
    run = Run(store)
    refs = [run.save(step) for step in (1, 2, 3)]
    assert paths(candidates(store)) == paths(reversed(refs))
    assert [ref.serial for ref in candidates(store)] == [2, 1, 0]


def test_a_line_goes_through_three_attempts(store):
    first = Run(store)
    a = [first.save(step) for step in (1, 2, 3)]
    second = Run(store, restored_from=a[1])
    b = [second.save(step) for step in (3, 4)]
    third = Run(store, restored_from=b[0])
    c = [third.save(step) for step in (4, 5)]
    assert paths(candidates(store)) == paths([c[1], c[0], b[0], a[1], a[0]])


def test_an_attempt_that_died_before_its_first_commit_falls_through(store):
    first = Run(store)
    a = [first.save(step) for step in (1, 2)]
    second = Run(store, restored_from=a[1])
    write_ranks(store, second.slots.take(3), "torn")
    Run(store, restored_from=a[1])
    assert paths(candidates(store)) == paths([a[1], a[0]])


def test_what_a_zombie_commits_after_it_was_superseded_is_never_offered(store):
    zombie = Run(store)
    a = [zombie.save(step) for step in (1, 2)]
    second = Run(store, restored_from=a[1])
    late = zombie.zombie_save(3)
    assert paths(candidates(store)) == paths([a[1], a[0]])
    b = second.save(3)
    later = zombie.zombie_save(4)
    third = Run(store, restored_from=b)
    assert paths(candidates(store)) == paths([b, a[1], a[0]])
    assert third.attempt.restored_from.path not in paths([late, later])
    assert load(store, b) == "s3"


def test_a_zombie_of_the_same_step_cannot_shadow(store):
    zombie = Run(store)
    start = zombie.save(500, "start")
    second = Run(store, restored_from=start)
    zombie.zombie_save(500)
    assert paths(candidates(store)) == [start.path]
    second.save(500, "mine")
    assert [load(store, ref) for ref in candidates(store)] == ["mine", "start"]


def test_a_zombie_whose_newer_attempt_was_itself_replaced_stays_off_the_line(store):
    first = Run(store)
    a = first.save(1)
    second = Run(store, restored_from=a)
    third = Run(store, restored_from=a)
    second.zombie_save(2)
    first.zombie_save(2)
    assert paths(candidates(store)) == [a.path]
    c = third.save(2)
    assert paths(candidates(store)) == paths([c, a])


def test_an_explicit_return_to_an_older_checkpoint_leaves_the_newer_ones_behind(store):
    first = Run(store)
    a = [first.save(step) for step in (1, 2, 3)]
    Run(store, restored_from=a[0])
    assert paths(candidates(store)) == [a[0].path]


def test_a_run_begun_anew_offers_nothing_of_the_run_before_even_if_it_died_at_once(store):
    old = Run(store)
    ref = old.save(1)
    fresh = Run(store)
    assert fresh.attempt.parent is None
    assert candidates(store) == []
    assert paths(Lineage(store).checkpoints(old.attempt.name)) == [ref.path]


def test_an_attempt_that_continued_one_without_checkpoints_begins_the_line(store):
    first = Run(store)
    second = Run(store, parent=first.attempt.name)
    first.zombie_save(1)
    assert candidates(store) == []
    ref = second.save(1)
    assert paths(candidates(store)) == [ref.path]


def test_a_pruned_branching_point_leaves_the_older_ones_of_its_line(store):
    first = Run(store)
    a = [first.save(step) for step in (1, 2, 3)]
    Run(store, restored_from=a[1])
    store.delete_tree(a[1].path)
    assert paths(candidates(store)) == [a[0].path]


def test_a_line_with_nothing_left_is_an_error_and_not_a_start_from_scratch(store):
    first = Run(store)
    a = [first.save(step) for step in (1, 2)]
    second = Run(store, restored_from=a[0])
    store.delete_tree(a[0].path)
    with pytest.raises(CheckpointNotFoundError, match=f"{second.attempt.name} went on from") as caught:
        candidates(store)
    assert a[1].path in str(caught.value)


# ---- damage


def test_a_damaged_manifest_is_offered_in_its_place_so_that_it_is_reported(store):
    run = Run(store)
    refs = [run.save(step) for step in (1, 2, 3, 4)]
    for number in (1, 3):
        damage(store, f"{refs[number].path}/manifest.json")
    found = candidates(store)
    assert paths(found) == paths(reversed(refs))
    assert [ref.serial for ref in found] == [None, 2, None, 0]
    with pytest.raises(CorruptCheckpointError, match=r"manifest\.json is torn or was altered"):
        Lineage(store).read_manifest(found[0])


def test_a_damaged_branching_point_is_offered_and_what_lies_beyond_is_not(store):
    first = Run(store)
    a = [first.save(step) for step in (1, 2, 3)]
    Run(store, restored_from=a[1])
    damage(store, f"{a[1].path}/manifest.json")
    assert paths(candidates(store)) == paths([a[1], a[0]])


def test_a_damaged_attempt_keeps_its_own_checkpoints_and_the_line_behind_it_is_not_guessed(store):
    first = Run(store)
    a = first.save(1)
    second = Run(store, restored_from=a)
    b = second.save(2)
    damage(store, attempt_file(second))
    found = Lineage(store).candidates()
    assert next(found).path == b.path
    with pytest.raises(CorruptCheckpointError, match=f"What came before {second.attempt.name} is unknown"):
        next(found)
    (error,) = Lineage(store).damaged()
    assert attempt_file(second) in str(error)
    assert Lineage(store).attempts() == [first.attempt]


def test_a_missing_attempt_file_with_checkpoints_is_damage_too(store):
    run = Run(store)
    ref = run.save(1)
    store.delete(attempt_file(run))
    found = Lineage(store).candidates()
    assert next(found).path == ref.path
    with pytest.raises(CorruptCheckpointError, match="is missing"):
        next(found)
    assert len(Lineage(store).damaged()) == 1


def test_an_attempt_that_vanished_from_the_line_is_an_error(store):
    first = Run(store)
    a = first.save(1)
    second = Run(store, restored_from=a)
    b = second.save(2)
    store.delete_tree(first.attempt.name)
    found = Lineage(store).candidates()
    assert next(found).path == b.path
    with pytest.raises(CorruptCheckpointError, match=f"What came before {first.attempt.name} is unknown"):
        next(found)


def test_a_claim_that_never_finished_is_passed_over_and_its_number_not_reused(store):
    first = Run(store)
    ref = first.save(1)
    store.put("attempt-0002-dead/attempt.json", b'{"format": 1,')
    assert paths(candidates(store)) == [ref.path]
    assert len(Lineage(store).damaged()) == 1
    assert Run(store, restored_from=ref).attempt.number == 3


def test_a_damaged_newer_attempt_still_stops_an_older_one(store):
    first = Run(store)
    store.put("attempt-0002-dead/attempt.json", b"{}")
    assert is_superseded(store, first.attempt)


def test_a_folder_without_an_attempt_file_stops_nobody(store):
    first = Run(store)
    store.put("attempt-0002-dead/.attempt.json.01234567.tmp", b"")
    assert not is_superseded(store, first.attempt)


def test_a_checkpoint_pruned_while_it_is_listed_is_left_out(store, monkeypatch):
    run = Run(store)
    refs = [run.save(step) for step in (1, 2)]
    real = store.read
    monkeypatch.setattr(store, "read", lambda key: store.delete_tree(refs[0].path) or real(key))
    assert paths(Lineage(store).checkpoints(run.attempt.name)) == [refs[1].path]
