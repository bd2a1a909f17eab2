"""How much of a manifest is read for what, and that none of it is believed without its seal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from resume_core import Keep
from resume_core.errors import CheckpointNotFoundError, CorruptCheckpointError
from resume_core.storage import Brief, CheckpointRef, FileRecord, Lineage, Manifest, digest_chunks, local, prune, sealed
from resume_core.storage.manifests import read_brief, read_manifest, read_ref

from .helpers import Run, candidates, steps_of

PLACE = ("attempt-0001-7f3a", "step-000000500")
DATA = b"0123456789" * 20
RECORD = FileRecord("model.safetensors", len(DATA), 64, digest_chunks(DATA, 64))
HEADER = {"progress": {"step": 500}, "metrics": {"loss": 0.5}, "config": {"run": {"lr": 0.1}}, "fit": 0}
MANIFEST = Manifest(*PLACE, 7, 2, (RECORD, replace(RECORD, name="training.json")), HEADER)
READERS = {"ref": read_ref, "brief": read_brief, "manifest": read_manifest}

readers = pytest.mark.parametrize("read", READERS.values(), ids=READERS)


def sealed_text(text: str) -> bytes:
    """A manifest that somebody made, with a valid seal."""
    body = text.rstrip()[:-1].rstrip().encode()
    return body + sealed._tail(body)


def crafted(**changes) -> bytes:
    """One that begins as ours do, and says something else."""
    fields = json.loads(MANIFEST.to_bytes())
    del fields["digest"]
    return sealed_text(json.dumps(fields | changes, indent=1))


def test_the_reference_is_that_of_the_manifest_and_nothing_else_is_parsed(monkeypatch):
    data = MANIFEST.to_bytes()
    monkeypatch.setattr(Manifest, "from_bytes", None)
    assert CheckpointRef.from_bytes(data, path="m") == MANIFEST.ref


def test_a_brief_has_what_lists_go_by_and_not_the_configuration():
    brief = Brief.from_bytes(MANIFEST.to_bytes(), path="m")
    assert brief.ref == MANIFEST.ref
    assert brief.header == {"progress": {"step": 500}, "metrics": {"loss": 0.5}, "fit": 0}
    assert brief.sizes == {"model.safetensors": 200, "training.json": 200}
    assert brief.size_bytes == 400


@pytest.mark.parametrize("kind", [CheckpointRef, Brief])
def test_every_altered_byte_is_found(kind):
    data = MANIFEST.to_bytes()
    for place in range(len(data)):
        altered = bytearray(data)
        altered[place] ^= 1
        with pytest.raises(CorruptCheckpointError):
            kind.from_bytes(bytes(altered), path="m")
    for length in range(0, len(data), 7):
        with pytest.raises(CorruptCheckpointError):
            kind.from_bytes(data[:length], path="m")


def test_another_writer_may_order_and_space_the_fields_otherwise():
    fields = json.loads(MANIFEST.to_bytes())
    del fields["digest"]
    data = sealed_text(json.dumps(dict(reversed(fields.items())), separators=(",", ":")))
    assert CheckpointRef.from_bytes(data, path="m") == MANIFEST.ref


@pytest.mark.parametrize(
    "changes",
    [{"attempt": "attempt-0000-7f3a"}, {"checkpoint": "step-5"}, {"kind": "weights"}, {"format": 2}, {"serial": -1}],
)
def test_what_is_impossible_in_the_fields_that_are_read_is_refused(changes):
    with pytest.raises(CorruptCheckpointError):
        CheckpointRef.from_bytes(crafted(**changes), path="m")


@readers
def test_one_from_another_folder_is_refused(read, store):
    store.put(f"{PLACE[0]}/step-000000600/manifest.json", MANIFEST.to_bytes())
    with pytest.raises(CorruptCheckpointError, match="files were moved"):
        read(store, CheckpointRef(PLACE[0], "step-000000600"))


@readers
def test_one_that_is_not_there(read, store):
    with pytest.raises(CheckpointNotFoundError):
        read(store, CheckpointRef(*PLACE))


def craft_newest(run: Run) -> CheckpointRef:
    """One more checkpoint of a run, whose manifest bears a seal and lists files that no writer of ours produces."""
    ref = CheckpointRef(run.attempt.name, "step-000000009", 9)
    data = crafted(attempt=ref.attempt, checkpoint=ref.name, serial=9, files=[{"name": "../evil"}])
    run.store.put(f"{ref.path}/manifest.json", data)
    return ref


def test_a_crafted_one_is_offered_in_its_place_and_refused_by_who_reads_it(store):
    run = Run(store)
    run.save(1)
    assert steps_of(candidates(store)) == [1]
    ref = craft_newest(run)
    assert candidates(store)[0] == ref
    with pytest.raises(CorruptCheckpointError):
        Lineage(store).read_manifest(ref)


def test_retention_counts_no_crafted_one_among_those_that_it_keeps(store):
    run = Run(store)
    refs = [run.save(step) for step in (1, 2, 3)]
    ref = craft_newest(run)
    assert run.prune(2).deleted == (refs[0].path,)
    assert Lineage(store).checkpoints(run.attempt.name) == [ref, refs[2], refs[1]]


def test_thousands_are_ordered_without_being_parsed(local_store, monkeypatch):
    run = Run(local_store)
    for step in range(5):
        run.save(step)
    monkeypatch.setattr(Manifest, "from_bytes", None)
    assert steps_of(Lineage(local_store).glance().candidates()) == [4, 3, 2, 1, 0]


def test_one_answer_of_a_slow_store_tells_the_order_and_what_to_keep(store, monkeypatch):
    run = Run(store)
    for step in range(5):
        run.save(step)
    read = []
    plain = type(store).read
    monkeypatch.setattr(type(store), "read", lambda self, key: read.append(key) or plain(self, key))
    store.num_parallel_requests = 2
    view = Lineage(store).glance()
    assert steps_of(view.checkpoints(run.attempt.name)) == [4, 3, 2, 1, 0]
    assert [ref.serial for ref in view.briefs(run.attempt.name)] == [4, 3, 2, 1, 0]
    assert len(read) == len(set(read)) == 5


def test_a_prune_reads_each_manifest_once_however_often_it_is_asked_for(local_store, monkeypatch):
    monkeypatch.setattr(local, "_TICK_NS", 0)
    run = Run(local_store)
    for step in range(5):
        run.save(step)
    read = []
    plain = type(local_store).read
    monkeypatch.setattr(type(local_store), "read", lambda self, key: read.append(key) or plain(self, key))
    lineage = Lineage(local_store)
    prune(lineage, Keep(last=9), run.attempt)
    assert len(read) == len(set(read)) == 6
    run.save(5)
    read.clear()
    prune(lineage, Keep(last=9), run.attempt)
    assert read == [f"{run.attempt.name}/step-000000005/manifest.json"]
