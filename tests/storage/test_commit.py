from __future__ import annotations

import pytest

from resume_core.errors import CorruptCheckpointError, SaveFailedError, SupersededError
from resume_core.storage import (
    CheckpointRef,
    CheckpointSlots,
    CheckpointWriter,
    Lineage,
    Slot,
    digest_chunks,
    open_store,
    read_manifest,
)

from .faults import Faults, FaultyStore
from .helpers import FILES, Run, candidates, load, paths, payload, save, tree, write_ranks

SLOT = Slot("attempt-0001-7f3a", "step-000000500", 0)


def newest() -> None:
    """What ``still_newest`` does when all is well."""


def test_a_committed_checkpoint_loads_and_lists_every_file_of_every_rank(store):
    run = Run(store)
    ref = run.save(500, "a", world_size=3)
    manifest = read_manifest(store, ref)
    ranks = [f"rank-{rank:05d}{suffix}" for rank in range(3) for suffix in (".safetensors", ".json")]
    assert sorted(record.name for record in manifest.files) == sorted([*FILES, *ranks])
    assert manifest.world_size == 3
    assert manifest.header == {"tag": "a"}
    assert load(store, ref) == "a"


def test_a_file_is_written_with_a_digest_of_each_chunk(store):
    data = payload("a", "model.safetensors")
    record = CheckpointWriter(store, SLOT).write_file("model.safetensors", memoryview(data))
    assert record.chunk_bytes == 64
    assert len(record.digests) > 1
    assert record.digests == digest_chunks(data, 64)
    assert store.read(f"{SLOT.path}/model.safetensors") == data


def test_nothing_exists_before_the_manifest(store):
    run = Run(store)
    writers = write_ranks(store, run.slots.take(500), "a")
    assert candidates(store) == []
    writers[0].commit({}, still_newest=newest)
    assert len(candidates(store)) == 1


def test_missing_ranks_are_told_and_keep_the_commit_from_happening(store):
    Run(store)
    writers = [CheckpointWriter(store, SLOT, rank, 3) for rank in range(3)]
    writers[0].write_part()
    writers[2].write_file("rank-00002.json", b"x")
    assert writers[0].missing_ranks() == (1, 2)
    with pytest.raises(SaveFailedError, match="parts of the ranks 1, 2 of 3 are missing"):
        writers[0].commit({}, still_newest=newest)
    assert not store.exists(f"{SLOT.path}/manifest.json")


def test_only_parts_of_this_very_save_count(store):
    other = Slot(SLOT.attempt, "step-000000400", 0)
    for slot, world_size in ((other, 2), (Slot("attempt-0002-0000", SLOT.name, 0), 2), (SLOT, 3)):
        stale = CheckpointWriter(store, slot, 1, world_size)
        stale.write_part()
        store.put(f"{SLOT.path}/part-00001.json", store.read(f"{slot.path}/part-00001.json"))
        writer = CheckpointWriter(store, SLOT, 0, 2)
        writer.write_part()
        with pytest.raises(SaveFailedError, match="is the part of"):
            writer.commit({}, still_newest=newest)


def test_the_part_of_one_rank_cannot_stand_for_another(store):
    writer, other = CheckpointWriter(store, SLOT, 0, 3), CheckpointWriter(store, SLOT, 2, 3)
    writer.write_part()
    other.write_part()
    store.put(f"{SLOT.path}/part-00001.json", store.read(f"{SLOT.path}/part-00002.json"))
    with pytest.raises(SaveFailedError, match="is the part of"):
        writer.commit({}, still_newest=newest)


def test_a_damaged_part_stops_the_commit_and_is_the_cause(store):
    writer = write_ranks(store, SLOT, "a")[0]
    store.put(f"{SLOT.path}/part-00001.json", b"{}")
    with pytest.raises(SaveFailedError, match=r"part-00001\.json is torn") as caught:
        writer.commit({}, still_newest=newest)
    assert isinstance(caught.value.__cause__, CorruptCheckpointError)


def test_a_file_that_disappeared_stops_the_commit(store):
    writer = write_ranks(store, SLOT, "a")[0]
    store.delete(f"{SLOT.path}/rank-00001.json")
    with pytest.raises(SaveFailedError, match=r"files rank-00001\.json are gone"):
        writer.commit({}, still_newest=newest)


def test_two_ranks_that_write_the_same_file_do_not_commit(store):
    writers = [CheckpointWriter(store, SLOT, rank, 2) for rank in range(2)]
    for writer in writers:
        writer.write_file("training.json", b"{}")
        writer.write_part()
    with pytest.raises(ValueError, match=r"listed twice: training\.json"):
        writers[0].commit({}, still_newest=newest)


def test_a_superseded_attempt_commits_nothing_and_the_error_names_both(store):
    old = Run(store)
    new = Run(store, parent=old.attempt.name)
    with pytest.raises(SupersededError, match=f"{new.attempt.name} of this run has started after {old.attempt.name}"):
        old.save(5)
    assert candidates(store) == []
    assert not any(key.endswith("manifest.json") for key in tree(store))


def test_the_newest_attempt_is_looked_for_right_before_the_manifest(store):
    run = Run(store)
    writer = write_ranks(store, run.slots.take(1), "a")[0]
    seen, folder = [], f"{run.attempt.name}/step-000000001"
    writer.commit({}, still_newest=lambda: seen.append("manifest.json" in store.list(folder)))
    assert seen == [False]


def test_a_header_that_is_not_json_is_refused_before_anything_is_committed(store):
    writer = write_ranks(store, SLOT, "a")[0]
    with pytest.raises(TypeError, match=r"header\.x is a set"):
        writer.commit({"x": {1}}, still_newest=newest)
    assert not store.exists(f"{SLOT.path}/manifest.json")


@pytest.mark.parametrize("name", ["notes.txt", "manifest.json", "../model.safetensors", "rank-00001.json", ""])
def test_a_rank_cannot_write_files_that_are_not_its_own(store, name):
    writer = CheckpointWriter(store, SLOT, 0, 2)
    with pytest.raises(ValueError):
        writer.write_file(name, b"x")
    assert tree(store) == []


def test_a_file_is_written_once_and_before_the_part(store):
    writer = CheckpointWriter(store, SLOT)
    writer.write_file("training.json", b"1")
    with pytest.raises(ValueError, match="written already"):
        writer.write_file("training.json", b"2")
    writer.write_part()
    with pytest.raises(ValueError, match="written already"):
        writer.write_file("model.safetensors", b"2")
    with pytest.raises(ValueError, match="written already"):
        writer.write_part()


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 1), (1, 1), (0, 0)])
def test_a_rank_outside_the_world_is_refused(store, rank, world_size):
    with pytest.raises(ValueError, match="not in a world"):
        CheckpointWriter(store, SLOT, rank, world_size)


def test_only_rank_0_commits(store):
    with pytest.raises(ValueError, match="rank 1 cannot commit"):
        CheckpointWriter(store, SLOT, 1, 2).commit({}, still_newest=newest)


def test_discard_frees_what_a_failed_save_wrote(store):
    run = Run(store)
    slot = run.slots.take(500)
    first, other = CheckpointWriter(store, slot, 0, 2), CheckpointWriter(store, slot, 1, 2)
    first.write_file("model.safetensors", b"a")
    first.write_part()
    other.write_file("rank-00001.json", b"{}")
    for writer in (first, other):
        writer.discard()
    assert tree(store) == [f"{run.attempt.name}/attempt.json"]
    assert store.list(run.attempt.name) == ["attempt.json"]


@pytest.mark.parametrize("again", [False, True], ids=["seen", "not seen"])
def test_a_commit_that_failed_after_it_took_effect_stays_whole(store, again):
    run = Run(store)
    slot = run.slots.take(1)
    writers = write_ranks(store, slot, "a")
    writers[0]._store = FaultyStore(store, Faults(2, lasting=again), late=True)  # a look, a part, the put
    with pytest.raises(OSError, match="No space"):
        writers[0].commit({"tag": "a"}, still_newest=lambda: None)
    writers[0].discard()
    assert load(store, candidates(store)[0]) == "a"


def test_a_rank_whose_part_may_have_been_seen_deletes_nothing(store):
    slot = Run(store).slots.take(1)
    other = CheckpointWriter(store, slot, 1, 2)
    other.write_file("rank-00001.json", b"{}")
    other._store = FaultyStore(store, Faults(0), late=True)
    with pytest.raises(OSError, match="No space"):
        other.write_part()
    other.discard()
    assert store.list(slot.path) == ["part-00001.json", "rank-00001.json"]


def test_a_manifest_that_appears_after_its_request_was_given_up_stands_for_files_that_are_there(
    memory_store, monkeypatch
):
    run = Run(memory_store)
    slot = run.slots.take(1)
    writers = write_ranks(memory_store, slot, "late")
    late = []

    def no_answer(key, data):
        late.append((key, data))
        raise TimeoutError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(memory_store, "put", no_answer)
        with pytest.raises(TimeoutError):
            writers[0].commit({"tag": "late"}, still_newest=lambda: None)
    writers[0].discard()
    memory_store.put(*late[0])
    assert load(memory_store, CheckpointRef(slot.attempt, slot.name)) == "late"


def test_a_step_that_was_used_gets_a_suffix(store):
    run = Run(store)
    names = [run.save(500).name for _ in range(3)] + [run.save(501).name]
    assert names == ["step-000000500", "step-000000500.2", "step-000000500.3", "step-000000501"]
    assert [load(store, ref) for ref in candidates(store)] == ["s501", "s500", "s500", "s500"]


def test_a_place_is_never_given_out_twice_even_if_nothing_was_written(store):
    slots = CheckpointSlots(store, SLOT.attempt)
    assert [slots.take(5).name for _ in range(2)] == ["step-000000005", "step-000000005.2"]


def test_names_and_serials_go_on_where_the_attempt_left_off(store):
    run = Run(store)
    run.save(5)
    run.save(5)
    slot = CheckpointSlots(store, run.attempt.name).take(5)
    assert (slot.name, slot.serial) == ("step-000000005.3", 2)


def test_order_is_that_of_the_saves_and_not_of_the_steps(store):
    run = Run(store)
    refs = [run.save(step) for step in (30, 10, 20, 10)]
    assert paths(candidates(store)) == paths(reversed(refs))


@pytest.mark.parametrize("args", [("x", "step-000000001", 0), (SLOT.attempt, "x", 0), (SLOT.attempt, SLOT.name, -1)])
def test_an_impossible_slot_is_refused(args):
    with pytest.raises(ValueError):
        Slot(*args)


def test_one_checkpoint_can_be_written_to_two_stores(store, tmp_path):
    run, second = Run(store), open_store(tmp_path / "second")
    slot = run.slots.take(1)
    manifests = [save(target, slot, "a") for target in (store, second)]
    assert manifests[0] == manifests[1]
    assert load(second, manifests[0].ref) == load(store, manifests[0].ref) == "a"
    assert Lineage(second).attempts() == []


def test_a_file_is_copied_only_as_it_was_saved(store, tmp_path):
    run = Run(store)
    ref = run.save(1)
    other = open_store(tmp_path / "other")
    target = CheckpointWriter(other, Slot(ref.attempt, ref.name, 0))
    record = run.lineage.read_manifest(ref).file("model.safetensors")
    target.copy_file(store, ref, record)
    assert other.read(f"{ref.path}/{record.name}") == store.read(f"{ref.path}/{record.name}")
    damaged = run.lineage.read_manifest(ref).file("training.json")
    data = bytearray(store.read(f"{ref.path}/training.json"))
    data[70] ^= 1
    store.put(f"{ref.path}/training.json", bytes(data))
    with pytest.raises(CorruptCheckpointError, match="chunk 1"):
        target.copy_file(store, ref, damaged)
    assert other.list(ref.path) == ["model.safetensors"]
