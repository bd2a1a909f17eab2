"""Files of a checkpoint that were altered on the disk: what the next start of the run makes of it."""

from __future__ import annotations

import logging
import os
import random
import shutil

import pytest
from walks import Start

from resume_core import CorruptCheckpointError
from resume_core.storage import commit

NUM_STEPS, CHUNK_BYTES = 3, 4096
NEWEST, OLDER = "step-000000002", "step-000000001"
FILES = (
    "model.safetensors",
    "training.safetensors",
    "training.json",
    "rank-00000.safetensors",
    "rank-00000.json",
    "manifest.json",
)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A run that has walked two steps of three and was left, with all of its checkpoints; and how it ends."""
    start = Start(tmp_path_factory.mktemp("damage"), num_steps=NUM_STEPS, keep=99)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commit, "CHUNK_BYTES", CHUNK_BYTES)
        expected = start.take()["end"]
    (attempt,) = start.directory.glob("attempt-*")
    for path in attempt.glob("step-*3*"):
        shutil.rmtree(path)
    return start.directory, expected


@pytest.fixture
def run(template, tmp_path, caplog):
    """A copy of that run, to be damaged, and to be started again."""
    caplog.set_level(logging.WARNING, "exact_resume")
    return Copy(template, tmp_path, caplog)


class Copy:
    def __init__(self, template, root, caplog):
        directory, self.expected = template
        self.start, self.caplog = Start(root, num_steps=NUM_STEPS, keep=99), caplog
        shutil.copytree(directory, self.start.directory)
        (self.attempt,) = self.start.directory.glob("attempt-*")

    def file(self, name, checkpoint=NEWEST):
        return self.attempt / checkpoint / name

    def alter(self, path, at, mask):
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ mask]))

    def look(self):
        """What the next start would go on from, without claiming anything; and what it says."""
        self.caplog.clear()
        _, session = self.start.session()
        restored = session.start(7)
        return restored.ref.name if restored else None, "\n".join(r.getMessage() for r in self.caplog.records)

    def check_older_is_used(self, *words):
        found, said = self.look()
        assert found == OLDER
        assert all(word in said for word in (f"{self.attempt.name}/{NEWEST} cannot be used", *words)), said

    def check_refused_by_name(self, *words):
        _, session = self.start.but(arguments={"resume": f"attempt-0001/{NEWEST}"}).session()
        with pytest.raises(CorruptCheckpointError) as caught:
            session.start(7)
        assert all(word in str(caught.value) for word in words), caught.value


def boundaries(size_bytes):
    """First and last bytes of everything that has a beginning: the file, its header, its chunks."""
    places = {0, 7, 8, 9, size_bytes // 2, size_bytes - 1}
    for chunk in range(0, size_bytes, CHUNK_BYTES):
        places |= {chunk, chunk + CHUNK_BYTES - 1}
    return sorted(place for place in places if place < size_bytes)


@pytest.mark.parametrize("name", FILES)
def test_one_bit_flipped_anywhere_is_found_and_the_older_checkpoint_used(run, name):
    path = run.file(name)
    size_bytes, chance = path.stat().st_size, random.Random(name)
    places = boundaries(size_bytes) + [chance.randrange(size_bytes) for _ in range(10)]
    for at in places:
        mask = 1 << chance.randrange(8)
        run.alter(path, at, mask)
        found, said = run.look()
        assert found == OLDER, (at, mask)
        words = [name] if name == "manifest.json" else [f"{name} of the checkpoint", f"chunk {at // CHUNK_BYTES} "]
        assert all(word in said for word in words), said
        run.alter(path, at, mask)
    assert run.look() == (NEWEST, "")
    run.alter(path, size_bytes - 1, 1)
    run.check_refused_by_name(name)
    run.check_older_is_used(name)
    assert run.start.take()["end"] == run.expected


def test_a_bit_flipped_in_the_attempts_file_is_said_and_its_checkpoints_are_still_there(run):
    path = run.attempt / "attempt.json"
    for at in range(0, path.stat().st_size, 41):
        run.alter(path, at, 1 << at % 8)
        found, said = run.look()
        assert found == NEWEST
        assert "attempt.json" in said
        run.alter(path, at, 1 << at % 8)


def test_a_checkpoint_has_no_file_that_nobody_reads(run):
    assert {path.name for path in run.file("").iterdir()} == {*FILES}


DAMAGE = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "removed": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a link to nothing": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_not_what_was_written_sends_the_run_to_the_older_checkpoint(run, name, damage):
    DAMAGE[damage](run.file(name))
    if name == "manifest.json" and not run.file(name).is_file():
        found, said = run.look()
        assert found == OLDER
        assert all(word in said for word in (f"{NEWEST} is damaged: its manifest.json is missing", OLDER)), said
    else:
        run.check_refused_by_name(name)
        run.check_older_is_used(name)


@pytest.mark.parametrize("name", [name for name in FILES if name not in ("training.json", "rank-00000.json")])
def test_files_swapped_between_checkpoints_send_the_run_to_one_that_is_whole(run, name):
    mine, other = run.file(name), run.file(name, "step-000000000")
    content = mine.read_bytes()
    mine.write_bytes(other.read_bytes())
    other.write_bytes(content)
    run.check_refused_by_name(name)
    run.check_older_is_used(name)


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json", "rank-00000.json"])
def test_files_swapped_between_attempts_are_found(run, template, name):
    second = run.start.take()["restored"]
    assert second[0].endswith(NEWEST)
    newer = max(run.start.directory.glob("attempt-0002-*/step-*"))
    content = (newer / name).read_bytes()
    (newer / name).write_bytes(run.file(name).read_bytes() if name != "rank-00000.json" else content[::-1])
    found, said = run.look()
    assert found is not None
    assert f"attempt-0002-{newer.parent.name[-4:]}/{newer.name} cannot be used" in said
    assert name in said


def test_files_swapped_between_files_of_one_checkpoint_are_found(run):
    model, training = run.file("model.safetensors"), run.file("training.safetensors")
    content = model.read_bytes()
    model.write_bytes(training.read_bytes())
    training.write_bytes(content)
    run.check_older_is_used(".safetensors of the checkpoint", "it has")


def test_when_every_checkpoint_is_damaged_the_run_stops_and_nothing_is_written_over(run):
    for path in run.attempt.glob("step-*/model.safetensors"):
        run.alter(path, 5000, 1)
    before = sorted(path for path in run.start.directory.rglob("*"))
    with pytest.raises(CorruptCheckpointError, match=r"model\.safetensors .* chunk 1 "):
        run.start.take()
    assert sorted(path for path in run.start.directory.rglob("*")) == before


def test_a_missing_manifest_is_warned_of_once_and_the_run_goes_on(run):
    run.file("manifest.json").unlink()
    assert run.start.take()["end"] == run.expected
    assert run.caplog.text.count("its manifest.json is missing") == 1
    assert "manifest.json is missing" not in run.look()[1]


def test_an_older_one_without_its_manifest_was_deleted_in_part(run):
    run.file("manifest.json", OLDER).unlink()
    assert run.look() == (NEWEST, "")


def test_without_any_manifest_the_run_does_not_begin_anew(run):
    for path in run.attempt.glob("step-*/manifest.json"):
        path.unlink()
    before = sorted(path for path in run.start.directory.rglob("*"))
    with pytest.raises(CorruptCheckpointError, match=r"its manifest\.json is missing"):
        run.start.take()
    assert sorted(path for path in run.start.directory.rglob("*")) == before
    assert run.start.but(arguments={"resume": "never"}).take()["end"] == run.expected
