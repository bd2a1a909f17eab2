from __future__ import annotations

import os

import pytest

from resume_core.errors import CorruptCheckpointError
from resume_core.policy import Keep
from resume_core.storage import Pruned, clean, prune

from .faults import Faults, FaultyStore
from .helpers import Run, candidates, load, paths, tree, write_ranks


def folders(store):
    """Checkpoint folders that still have a file."""
    return sorted({key.rsplit("/", 1)[0] for key in tree(store) if "/step-" in key})


@pytest.mark.parametrize("last", [1, 2, 3, 4, 9])
def test_the_newest_ones_stay_and_older_ones_go(store, last):
    run = Run(store)
    refs = [run.save(step) for step in (1, 2, 2, 3)]
    assert run.prune(last).failures == ()
    assert paths(candidates(store)) == paths(reversed(refs[-last:]))
    assert folders(store) == sorted(paths(refs[-last:]))
    assert [load(store, ref) for ref in candidates(store)]


def test_what_went_is_told_and_a_second_time_nothing_goes(store):
    run = Run(store)
    refs = [run.save(step) for step in (1, 2, 3)]
    assert run.prune(1) == Pruned(deleted=tuple(paths(refs[:2])))
    assert run.prune(1) == Pruned()


def test_nothing_is_deleted_before_anything_was_committed(store):
    run = Run(store)
    write_ranks(store, run.slots.take(1), "in flight")
    before = tree(store)
    assert run.prune(1) == Pruned()
    assert tree(store) == before


def test_the_line_is_counted_over_attempts(store):
    first = Run(store)
    a = [first.save(step) for step in (1, 2, 3)]
    second = Run(store, restored_from=a[2])
    second.prune(2)
    assert folders(store) == sorted(paths(a[1:]))
    b = second.save(4)
    second.prune(2)
    assert folders(store) == sorted(paths([a[2], b]))
    second.save(5)
    second.prune(2)
    assert not any(path.startswith(first.attempt.name) for path in folders(store))
    assert store.exists(f"{first.attempt.name}/attempt.json")


def test_a_zombies_checkpoints_go_once_the_new_attempt_stands_on_its_own(store):
    zombie = Run(store)
    a = zombie.save(1)
    second = Run(store, restored_from=a)
    late = zombie.zombie_save(2)
    b = [second.save(2)]
    second.prune(2)
    assert late.path in folders(store)
    b.append(second.save(3))
    second.prune(2)
    assert folders(store) == paths(b)


def test_a_branch_that_was_left_goes_only_once_it_is_replaced(store):
    first = Run(store)
    a = [first.save(step) for step in (1, 2, 3)]
    second = Run(store, restored_from=a[0])
    second.prune(3)
    second.save(2)
    second.save(3)
    second.prune(3)
    assert set(paths(a)) <= set(folders(store))
    second.save(4)
    second.prune(3)
    assert all(path.startswith(second.attempt.name) for path in folders(store))


def test_siblings_of_the_line_are_the_same_run(store):
    first = Run(store)
    a = first.save(1)
    sibling = Run(store, restored_from=a)
    sibling.save(2)
    third = Run(store, restored_from=a)
    c = third.save(2)
    third.prune(1)
    assert folders(store) == [c.path]


def test_another_run_in_the_same_directory_keeps_its_checkpoints(store):
    other = Run(store)
    a = [other.save(step) for step in (1, 2)]
    fresh = Run(store)
    b = [fresh.save(step) for step in (1, 2)]
    fresh.prune(1)
    assert folders(store) == sorted(paths([*a, b[1]]))


def test_leftovers_of_older_attempts_go(store):
    first = Run(store)
    a = first.save(1)
    write_ranks(store, first.slots.take(2), "torn")
    store.put(f"{first.attempt.name}/step-000000003/.model.safetensors.0123abcd.tmp", b"half")
    store.put(f"{first.attempt.name}/.attempt.json.0123abcd.tmp", b"half")
    store.put(f"{a.path}/.training.json.0123abcd.tmp", b"half")
    second = Run(store, restored_from=a)
    assert clean(second.lineage, second.attempt).failures == ()
    assert folders(store) == [a.path]
    assert not [key for key in tree(store) if key.endswith(".tmp")]
    assert sorted(store.list(first.attempt.name)) == ["attempt.json", "step-000000001"]
    assert load(store, a) == "s1"


def test_what_is_left_of_a_claim_that_was_cut_short_goes_and_one_that_is_being_made_stays(store):
    store.put("attempt-0001-0000/.attempt.json.0123abcd.tmp", b"half")
    run = Run(store)  # takes number 2, as that one is given out
    store.put("attempt-0002-0000/.attempt.json.0123abcd.tmp", b"half")
    store.put("attempt-0001-1111/theirs", b"theirs")
    store.put("attempt-0001-1111/.attempt.json.0123abcd.tmp", b"half")
    assert run.attempt.number == 2
    assert clean(run.lineage, run.attempt).failures == ()
    left = [key for key in tree(store) if key.endswith(".tmp")]
    assert left == ["attempt-0001-1111/.attempt.json.0123abcd.tmp", "attempt-0002-0000/.attempt.json.0123abcd.tmp"]


def test_a_header_that_cannot_be_understood_spares_that_checkpoint_alone(store):
    run = Run(store)
    refs = [run.save(step, "odd" if step == 2 else "") for step in range(1, 6)]

    def pin(manifest):
        if manifest.header["tag"] == "odd":
            raise CorruptCheckpointError("its header says fit 'x'")

    pruned = prune(run.lineage, Keep(last=2), run.attempt, pin)
    assert folders(store) == paths([refs[1], refs[3], refs[4]])
    assert pruned.failures == (f"{refs[1].path} stays: its header says fit 'x'",)


def test_own_leftovers_go_when_a_later_step_is_committed_and_a_save_in_flight_stays(store):
    run = Run(store)
    write_ranks(store, run.slots.take(1), "failed")
    done = run.save(2)
    for step in (2, 3):
        write_ranks(store, run.slots.take(step), "in flight")
    run.prune(1)
    own = run.attempt.name
    assert folders(store) == [done.path, f"{own}/step-000000002.2", f"{own}/step-000000003"]


def test_a_superseded_attempt_deletes_nothing(store):
    old = Run(store)
    refs = [old.save(step) for step in (1, 2, 3)]
    new = Run(store, restored_from=refs[0])
    write_ranks(store, new.slots.take(2), "in flight")
    before = tree(store)
    assert old.prune(1) == Pruned()
    assert tree(store) == before


def test_files_of_others_stay_with_their_folder(store):
    run = Run(store)
    refs = [run.save(step) for step in (1, 2)]
    foreign = [
        f"{refs[0].path}/notes.txt",
        f"{refs[0].path}/model (copy).safetensors",
        f"{refs[0].path}/sub/model.safetensors",
        f"{run.attempt.name}/step-1/model.safetensors",
        f"{run.attempt.name}/step-000000000/theirs.bin",
        "attempt-0000-0000/step-000000001/model.safetensors",
        "model.safetensors",
    ]
    for key in foreign:
        store.put(key, b"theirs")
    assert run.prune(1).deleted == (refs[0].path,)
    assert run.prune(1) == Pruned()
    left = [key for key in tree(store) if not key.startswith(refs[1].path) and "attempt.json" not in key]
    assert left == sorted(foreign)
    assert all(store.read(key) == b"theirs" for key in foreign)


def test_damaged_checkpoints_do_not_count_and_the_newest_sound_one_stays(store):
    run = Run(store)
    refs = [run.save(step) for step in (1, 2, 3, 4)]
    for ref in (refs[3], refs[0]):
        store.put(f"{ref.path}/manifest.json", b"damaged")
    run.prune(1)
    assert folders(store) == paths(refs[2:])


def test_a_line_that_cannot_be_followed_keeps_everything_off_it(store):
    first = Run(store)
    a = [first.save(step) for step in (1, 2)]
    second = Run(store, restored_from=a[0])
    b = second.save(2)
    third = Run(store, restored_from=b)
    store.put(f"{second.attempt.name}/attempt.json", b"damaged")
    c = [third.save(step) for step in (3, 4)]
    third.prune(2)
    assert folders(store) == sorted(paths([*a, *c]))


def test_the_manifest_goes_first_so_that_a_kill_leaves_no_torn_checkpoint(store):
    run = Run(store)
    refs = [run.save(step) for step in (1, 2)]
    deleted = []
    real = store.delete
    store.delete = lambda key: (deleted.append(key), real(key))
    run.prune(1)
    assert deleted[0] == f"{refs[0].path}/manifest.json"
    assert len(deleted) > 5


def test_a_failure_is_told_the_rest_goes_on_and_the_next_time_mends_it(store):
    run = Run(store)
    refs = [run.save(step) for step in (1, 2, 3)]
    real = store.delete

    def refuse(key):
        if key.startswith(refs[0].path):
            raise PermissionError(13, "no")
        real(key)

    store.delete = refuse
    pruned = run.prune(1)
    assert pruned.deleted == (refs[1].path,)
    assert len(pruned.failures) == 1
    assert refs[0].path in pruned.failures[0]
    assert load(store, refs[0]) == "s1"
    store.delete = real
    assert run.prune(1) == Pruned(deleted=(refs[0].path,))


def test_a_store_that_is_down_costs_nothing_but_a_message(store):
    run = Run(store)
    run.save(1)
    run.lineage.store = FaultyStore(store, Faults(0))
    pruned = prune(run.lineage, Keep(last=1), run.attempt)
    assert pruned.deleted == ()
    assert "nothing was pruned" in pruned.failures[0]


def test_links_in_a_folder_are_removed_only_under_our_names_and_never_followed(local_store, tmp_path):
    run = Run(local_store)
    refs = [run.save(step) for step in (1, 2)]
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    folder = os.path.join(local_store.url, refs[0].path)
    os.symlink(precious, os.path.join(folder, "theirs"))
    os.symlink(precious, os.path.join(folder, "rank-00009.json"))
    run.prune(1)
    assert os.listdir(folder) == ["theirs"]
    assert precious.read_bytes() == b"precious"


def test_a_run_of_many_attempts_is_pruned_as_fast_as_it_is_long(store):
    # each attempt names its predecessor twice, as parent and as origin: followed apart they are 2**35 ways back
    run = Run(store)
    saved = run.save(0)
    for step in range(1, 35):
        run = Run(store, restored_from=saved)
        saved = run.save(step)
    newest = [saved, run.save(35)]
    assert run.prune(2).failures == ()
    assert folders(store) == sorted(paths(newest))


def test_the_newest_of_each_pinned_kind_stays_beside_those_that_are_counted(store):
    run = Run(store)
    saves = [(1, ""), (1, "end"), (2, ""), (2, "end"), (3, ""), (3, "other")]
    refs = [run.save(step, tag) for step, tag in saves]
    kinds = {"end": 1, "other": 2}
    prune(run.lineage, Keep(last=1), run.attempt, lambda manifest: kinds.get(manifest.header["tag"]))
    assert folders(store) == sorted(paths(refs[3:]))


def test_a_branch_that_was_left_stays_until_what_came_after_it_can_be_understood(store):
    first = Run(store)
    kept, left = first.save(1), first.save(2)
    second = Run(store, restored_from=kept)
    odd = second.save(3)

    def pin(brief):
        if brief.ref.path == odd.path:
            raise CorruptCheckpointError("a header that no session writes")

    assert left.path not in prune(second.lineage, Keep(last=1), second.attempt, pin).deleted
    second.save(4)
    assert left.path in prune(second.lineage, Keep(last=1), second.attempt, pin).deleted
