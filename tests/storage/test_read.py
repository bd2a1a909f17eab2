from __future__ import annotations

import itertools
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.storage import (
    CheckpointRef,
    CheckpointWriter,
    FileReader,
    Lineage,
    commit,
    open_store,
    read,
    read_file,
    read_manifest,
    verify,
)

from .faults import Faults, FaultyStore
from .helpers import Run, load, payload, tree

MODEL = "model.safetensors"


@pytest.fixture
def run(store):
    return Run(store)


@pytest.fixture
def ref(run):
    return run.save(500, "a")


def record_of(store, ref, name=MODEL):
    return read_manifest(store, ref).file(name)


def alter(store, key, offset_bytes, mask=1):
    data = bytearray(store.read(key))
    data[offset_bytes] ^= mask
    store.put(key, bytes(data))


def watch_reads(monkeypatch, store, before):
    """Have ``before(file, offset_bytes, views)`` called in each read from an open file."""
    plain = type(store).open_file

    def open_file(key):
        file = plain(store, key)
        whole = file.read_scattered
        file.read_scattered = lambda *args: (before(file, *args), whole(*args))
        return file

    monkeypatch.setattr(store, "open_file", open_file)


def everything_is_sound(store) -> bool:
    """Whether the attempt and every byte of its newest checkpoint can be read."""
    lineage = Lineage(store)
    try:
        return lineage.damaged() == [] and verify([store], next(lineage.candidates())).header == {"tag": "a"}
    except CorruptCheckpointError:
        return False


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A store with one checkpoint, and every file in it that a restore reads."""
    store = open_store(tmp_path_factory.mktemp("flips") / "run")
    Run(store).save(500, "a", world_size=1)
    return store, [key for key in tree(store) if "part-" not in key]


class TestABitFlippedAnywhere:
    @settings(deadline=None, max_examples=300)
    @given(data=st.data())
    def test_is_found(self, saved, data):
        store, keys = saved
        path = os.path.join(store.url, data.draw(st.sampled_from(keys)))
        with open(path, "rb") as file:
            original = file.read()
        at = data.draw(st.integers(0, len(original) - 1))
        altered = bytearray(original)
        altered[at] ^= data.draw(st.integers(1, 255))
        try:
            with open(path, "wb") as file:
                file.write(altered)
            assert not everything_is_sound(store)
        finally:
            with open(path, "wb") as file:
                file.write(original)
        assert everything_is_sound(store)

    def test_the_files_that_are_flipped_include_the_manifest_and_the_attempt(self, saved):
        names = {key.rsplit("/", 1)[1] for key in saved[1]}
        assert {"manifest.json", "attempt.json", MODEL, "training.json", "rank-00000.json"} <= names


@pytest.mark.parametrize("chunk", [0, 1, 2])
def test_the_altered_chunk_is_named_with_its_file_and_checkpoint(store, ref, chunk):
    alter(store, f"{ref.path}/{MODEL}", 64 * chunk + 5)
    message = rf"model\.safetensors of the checkpoint {ref.path} is damaged: chunk {chunk} of \d+ was altered"
    with pytest.raises(CorruptCheckpointError, match=message) as caught:
        read_file([store], ref, record_of(store, ref))
    assert caught.value.path == store.locate(f"{ref.path}/{MODEL}")
    with pytest.raises(CorruptCheckpointError, match=message):
        verify([store], ref)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: b"", lambda data: data + b"\0"])
@pytest.mark.parametrize("name", [MODEL, "training.json", "rank-00001.safetensors"])
def test_a_file_of_another_length_is_damaged(store, ref, name, change):
    key = f"{ref.path}/{name}"
    record = record_of(store, ref, name)
    store.put(key, change(store.read(key)))
    for call in (lambda: read_file([store], ref, record), lambda: verify([store], ref)):
        with pytest.raises(CorruptCheckpointError, match=r"it has \d+ bytes, the manifest says \d+"):
            call()


def test_a_missing_file_is_damage(store, ref):
    record = record_of(store, ref)
    store.delete(f"{ref.path}/{MODEL}")
    for call in (lambda: read_file([store], ref, record), lambda: verify([store], ref)):
        with pytest.raises(CorruptCheckpointError, match="it is missing"):
            call()


def test_a_file_that_shrinks_while_it_is_read_is_damage(store, ref, monkeypatch):
    record = record_of(store, ref)
    store.put(f"{ref.path}/{MODEL}", b"short")
    monkeypatch.setattr(store, "size", lambda key: record.size_bytes)
    with pytest.raises(CorruptCheckpointError, match="chunk 0 is missing"):
        read_file([store], ref, record)


def test_files_swapped_between_checkpoints_are_found(store, run, ref):
    other = run.save(501, "b")
    for name in (record.name for record in read_manifest(store, ref).files):
        mine, theirs = (store.read(f"{r.path}/{name}") for r in (ref, other))
        store.put(f"{ref.path}/{name}", theirs)
        with pytest.raises(CorruptCheckpointError, match=name):
            verify([store], ref)
        store.put(f"{ref.path}/{name}", mine)
    assert load(store, ref) == "a"


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_files_swapped_between_ranks_are_found(store, ref, suffix):
    keys = [f"{ref.path}/rank-0000{rank}{suffix}" for rank in range(2)]
    contents = [store.read(key) for key in keys]
    for key, content in zip(keys, reversed(contents), strict=True):
        store.put(key, content)
    with pytest.raises(CorruptCheckpointError, match=rf"rank-0000[01]{suffix} of the checkpoint {ref.path} is damaged"):
        verify([store], ref)


def test_a_manifest_from_another_checkpoint_is_found(store, run, ref):
    other = run.save(501, "b")
    store.put(f"{ref.path}/manifest.json", store.read(f"{other.path}/manifest.json"))
    with pytest.raises(CorruptCheckpointError, match=f"is the manifest of {other.path}: files were moved"):
        verify([store], ref)


def test_a_whole_checkpoint_copied_to_another_place_is_found(store, ref):
    copy = CheckpointRef(ref.attempt, "step-000000900")
    for name in store.list(ref.path):
        store.put(f"{copy.path}/{name}", store.read(f"{ref.path}/{name}"))
    with pytest.raises(CorruptCheckpointError, match="files were moved"):
        verify([store], copy)


def test_an_attempt_file_from_another_attempt_is_found(store, run, ref):
    second = Run(store, restored_from=ref)
    key = f"{second.attempt.name}/attempt.json"
    store.put(key, store.read(f"{run.attempt.name}/attempt.json"))
    (error,) = Lineage(store).damaged()
    assert "files were moved" in str(error)


def test_no_manifest_is_no_checkpoint(store, ref):
    store.delete(f"{ref.path}/manifest.json")
    with pytest.raises(CheckpointNotFoundError, match="no committed checkpoint"):
        verify([store], ref)


def test_an_empty_file_is_read(store, run):
    writer = CheckpointWriter(store, run.slots.take(1))
    record = writer.write_file("training.safetensors", b"")
    writer.write_part()
    manifest = writer.commit({}, still_newest=lambda: None)
    assert read_file([store], manifest.ref, record) == b""
    assert verify([store], manifest.ref) == manifest


def test_an_error_of_the_system_is_not_called_damage(store, ref, monkeypatch):
    def fail(*args):
        raise PermissionError(13, "no")

    watch_reads(monkeypatch, store, fail)
    with pytest.raises(PermissionError):
        verify([store], ref)


class CountingStore(FaultyStore):
    """Notes what is asked of it."""

    def __init__(self, inner):
        super().__init__(inner, Faults(-1))
        self.asked = []

    def _do(self, name, *args):
        self.asked.append(name)
        return super()._do(name, *args)


@pytest.fixture
def tiers(tmp_path):
    """Two stores that hold the same checkpoint, and where that is."""
    near, far = open_store(tmp_path / "near"), open_store(tmp_path / "far")
    ref = Run(near).save(500, "a")
    for key in tree(near):
        far.put(key, near.read(key))
    return near, far, ref


SPOILS = {
    "altered": lambda store, key: alter(store, key, 70),
    "missing": lambda store, key: store.delete(key),
    "truncated": lambda store, key: store.put(key, store.read(key)[:-1]),
    "too long": lambda store, key: store.put(key, store.read(key) + b"\0"),
}


class TestSeveralStores:
    @pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
    def test_what_is_damaged_in_the_nearest_comes_from_the_next(self, tiers, spoil, caplog):
        near, far, ref = tiers
        record = record_of(near, ref)
        spoil(near, f"{ref.path}/{MODEL}")
        assert bytes(read_file([near, far], ref, record)) == payload("a", MODEL)
        assert verify([near, far], ref) == read_manifest(far, ref)
        assert near.locate(f"{ref.path}/{MODEL}") in caplog.text
        with pytest.raises(CorruptCheckpointError):
            read_file([near], ref, record)

    def test_each_chunk_comes_from_where_it_is_whole(self, tiers):
        near, far, ref = tiers
        record = record_of(near, ref)
        alter(near, f"{ref.path}/{MODEL}", 5)
        alter(far, f"{ref.path}/{MODEL}", 64 + 5)
        assert bytes(read_file([near, far], ref, record)) == payload("a", MODEL)

    def test_what_is_damaged_everywhere_is_named_with_every_place(self, tiers):
        near, far, ref = tiers
        alter(near, f"{ref.path}/{MODEL}", 70)
        far.delete(f"{ref.path}/{MODEL}")
        with pytest.raises(CorruptCheckpointError) as caught:
            read_file([near, far], ref, record_of(near, ref))
        message = str(caught.value)
        assert f"in {near.url} chunk 1 of" in message
        assert f"in {far.url} chunk 1 is missing" in message

    def test_a_store_that_cannot_be_read_is_passed_over_and_its_error_raised_only_when_no_other_has_it(
        self, tiers, monkeypatch
    ):
        near, far, ref = tiers
        record = record_of(near, ref)

        def fail(*args):
            raise PermissionError(13, "no")

        watch_reads(monkeypatch, near, fail)
        assert bytes(read_file([near, far], ref, record)) == payload("a", MODEL)
        far.delete(f"{ref.path}/{MODEL}")
        with pytest.raises(PermissionError):
            read_file([near, far], ref, record)

    def test_the_farther_store_is_not_asked_as_long_as_the_nearer_has_all(self, tiers):
        near, far, ref = tiers
        counting = CountingStore(far)
        read_file([near, counting], ref, record_of(near, ref))
        verify([near, counting], ref)
        assert counting.asked == []

    def test_a_manifest_that_is_damaged_in_one_place_is_read_in_the_next(self, tiers):
        near, far, ref = tiers
        alter(near, f"{ref.path}/manifest.json", 9)
        assert verify([near, far], ref) == read_manifest(far, ref)
        far.delete(f"{ref.path}/manifest.json")
        with pytest.raises(CorruptCheckpointError, match="manifest"):
            verify([near, far], ref)
        near.delete(f"{ref.path}/manifest.json")
        with pytest.raises(CheckpointNotFoundError):
            verify([near, far], ref)


@pytest.fixture(scope="module")
def in_chunks(tmp_path_factory):
    """A store with one checkpoint of several chunks a file."""
    store = open_store(tmp_path_factory.mktemp("chunks") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "CHUNK_BYTES", 64)
        Run(store).save(500, "a")
    return store


class TestFileReader:
    @settings(deadline=None, max_examples=60)
    @given(data=st.data())
    def test_the_rest_of_a_file_fills_views_of_any_sizes(self, in_chunks, data):
        store = in_chunks
        ref = next(iter(Lineage(store).candidates()))
        reader = FileReader([store], ref, record_of(store, ref))
        whole = payload("a", MODEL)
        start = data.draw(st.integers(0, len(whole)))
        beginning = reader.read_beginning(start)
        assert start <= len(beginning) <= start + 64
        assert whole.startswith(beginning)
        cuts = sorted(data.draw(st.lists(st.integers(start, len(whole)), max_size=12)))
        edges = [start, *cuts, len(whole)]
        views = [memoryview(bytearray(end - begin)) for begin, end in itertools.pairwise(edges)]
        reader.read_scattered(views, beginning, start)
        assert b"".join(views) == whole[start:]

    def test_all_of_a_short_file_is_its_beginning(self, store, ref):
        reader = FileReader([store], ref, record_of(store, ref))
        assert reader.read_beginning(10**9) == payload("a", MODEL)
        assert reader.size_bytes == len(payload("a", MODEL))

    def test_chunks_are_read_beside_one_another(self, tiers, monkeypatch):
        near, _, ref = tiers
        record = record_of(near, ref)
        near.num_parallel_reads = len(record.digests)
        meeting = threading.Barrier(len(record.digests), timeout=30)
        watch_reads(monkeypatch, near, lambda *_: meeting.wait())  # breaks when there is only one at a time
        assert bytes(read_file([near], ref, record)) == payload("a", MODEL)

    @pytest.mark.parametrize("reads_ahead", [True, False])
    def test_a_disk_that_reads_ahead_is_read_on_from_a_few_places_and_other_stores_chunk_by_chunk(
        self, in_chunks, monkeypatch, reads_ahead
    ):
        store, offsets = in_chunks, {}
        ref = next(iter(Lineage(store).candidates()))
        record = record_of(store, ref)
        monkeypatch.setattr(store, "num_parallel_reads", 2)
        monkeypatch.setattr(store, "reads_ahead", reads_ahead)
        watch_reads(monkeypatch, store, lambda file, at, _: offsets.setdefault(file, []).append(at))
        FileReader([store], ref, record).verify()
        everywhere = [64 * number for number in range(len(record.digests))]
        assert len(everywhere) == 4
        assert sorted(at for found in offsets.values() for at in found) == everywhere
        assert len(offsets) == (2 if reads_ahead else len(everywhere))
        for found in offsets.values():
            first = everywhere.index(found[0])
            assert found == everywhere[first : first + len(found)]

    def test_the_digest_of_a_chunk_is_taken_piece_by_piece(self, in_chunks, monkeypatch):
        store, lengths = in_chunks, []
        monkeypatch.setattr(read, "_PIECE_BYTES", 24)
        watch_reads(monkeypatch, store, lambda _, at, views: lengths.append((at, sum(view.nbytes for view in views))))
        ref = next(iter(Lineage(store).candidates()))
        views = [memoryview(bytearray(size)) for size in (10, 0, 40, 14)]
        FileReader([store], ref, record_of(store, ref)).read_chunk(1, views)
        assert b"".join(views) == payload("a", MODEL)[64:128]
        assert lengths == [(64, 24), (88, 24), (112, 16)]

    def test_nothing_stays_open_whether_it_was_sound_or_not(self, tiers):
        near, _, ref = tiers
        reader = FileReader([near], ref, record_of(near, ref))
        before = sorted(os.listdir("/proc/self/fd"))
        reader.verify()
        alter(near, f"{ref.path}/{MODEL}", 70)
        with pytest.raises(CorruptCheckpointError):
            reader.verify()
        assert sorted(os.listdir("/proc/self/fd")) == before
