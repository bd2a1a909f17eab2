"""Which checkpoint a name means, and what is said where it means none."""

from __future__ import annotations

import re

import pytest

from resume_core.errors import CheckpointNotFoundError
from resume_core.naming import is_name, resolve, select
from resume_core.storage import FileRecord, Lineage, LocalStore, Manifest, put_history

RECORD = FileRecord("model.safetensors", 1000, 1 << 24, ("0" * 32,))


@pytest.fixture
def lineage(tmp_path):
    """Attempt 1 with steps 0 to 40, attempt 2 from its step 20 with 30 and 40, the latter twice."""
    lineage = Lineage(LocalStore(tmp_path / "run"))
    first = lineage.claim()
    refs = [saved(lineage, first.name, f"step-{step:09d}", serial) for serial, step in enumerate(range(0, 50, 10))]
    second = lineage.claim(restored_from=refs[2])
    for serial, name in enumerate(["step-000000030", "step-000000040", "step-000000040.2"]):
        saved(lineage, second.name, name, serial)
    return lineage


def saved(lineage, attempt, name, serial):
    manifest = Manifest(attempt, name, serial, 1, (RECORD,), {})
    lineage.store.put(f"{manifest.ref.path}/manifest.json", manifest.to_bytes())
    return manifest.ref


@pytest.mark.parametrize(
    ("text", "number", "name"),
    [
        ("latest", 2, "step-000000040.2"),
        ("step 10", 1, "step-000000010"),
        ("10", 1, "step-000000010"),
        ("0", 1, "step-000000000"),
        ("step-30", 2, "step-000000030"),  # of the newest attempt that has it
        ("40", 2, "step-000000040"),
        ("40.2", 2, "step-000000040.2"),
        ("attempt 1/40", 1, "step-000000040"),
        ("attempt-0001", 1, "step-000000040"),
        ("attempt-2/latest", 2, "step-000000040.2"),
        ("attempt-0002/step-000000040", 2, "step-000000040"),
        ("attempt-0001/step-00000001", 1, "step-000000010"),  # the beginning of its folder
    ],
)
def test_what_is_meant(lineage, text, number, name):
    ref = resolve(lineage, text)
    assert (ref.attempt.startswith(f"attempt-{number:04d}"), ref.name) == (True, name)
    assert ref.serial is not None
    assert is_name(text)


def test_the_beginning_of_a_token_will_do(lineage):
    attempt = lineage.attempts()[0].name
    assert resolve(lineage, attempt[:-2]).attempt == attempt


@pytest.mark.parametrize("text", ["yes", "true", "ckpt", "last", "runs/first", "s3://bucket/run", ""])
def test_what_is_no_name(text):
    assert not is_name(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("17", r"no checkpoint '17' in .*nearest are attempt-0001-\S+/step-000000020, .*step-000000010"),
        ("attempt-1/300", r"nearest are attempt-0001-\S+/step-000000040, attempt-0001-\S+/step-000000030"),
        ("attempt-0007", r"no checkpoint 'attempt-0007' in .*nearest are attempt-0002-\S+/step-000000040\.2"),
        ("attempt-00", r"fits 2 in .*: attempt-0002-\w{4}, attempt-0001-\w{4}\. Give more"),
        ("attempt-0001/step-0000000", r"fits 5 in .*step-000000040, .*Give more"),
    ],
)
def test_an_error_names_the_nearest(lineage, text, said):
    with pytest.raises(CheckpointNotFoundError, match=said):
        resolve(lineage, text)


@pytest.mark.parametrize("text", ["attempt-0003", "attempt-0001/step-000000501", "../x", "x/y/z", "attempt-0001/../x"])
def test_a_name_that_is_not_there_leads_nowhere_else(lineage, text):
    with pytest.raises(CheckpointNotFoundError, match=f"no checkpoint {re.escape(repr(text))} in .*step-") as caught:
        resolve(lineage, text)
    assert isinstance(caught.value, FileNotFoundError)


def test_a_name_in_an_empty_directory_says_that_nothing_exists(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="No committed checkpoint exists"):
        resolve(Lineage(LocalStore(tmp_path / "run")), "attempt-0001")


def test_a_full_name_wins_over_longer_ones_that_begin_with_it(lineage):
    assert resolve(lineage, "attempt-0002/step-000000040").name == "step-000000040"
    assert resolve(lineage, "attempt-0002/step-000000040.2").name == "step-000000040.2"


def test_what_was_asked_for_by_name_has_no_substitute(lineage):
    (ref,) = select(lineage, "attempt-0001/10")
    lineage.store.put(f"{ref.path}/manifest.json", b"torn")
    assert resolve(lineage, "attempt-0001/10") == ref
    assert ref.serial is None
    lineage.store.delete(f"{ref.path}/manifest.json")
    lineage.store.put(f"{ref.path}/weights.json", b"{}")
    with pytest.raises(CheckpointNotFoundError, match=r"step-000000010 in .* the weights alone are left"):
        resolve(lineage, "attempt-0001/10")


def test_an_attempt_of_which_nothing_is_left_says_what_became_of_it(lineage):
    first, second = lineage.attempts()
    saves = [{"path": f"{first.name}/step-{step:09d}"} for step in (0, 10)] + [{"path": "x", "end": "failed"}]
    seen = {"time": "", "up_s": 1, "trained_s": 1, "step": 1, "batch": 1, "epoch": 0}
    fields = {"host": "", "started": "", "first_batch_s": None, "resumed": None, "seen": seen, "cause": None}
    earlier = {"saves": 0, "blocked_s": 0}
    put_history(lineage.store, first.name, {**fields, "why": None, "saves": saves, "earlier": earlier})
    for ref in select(lineage, first.name):
        lineage.store.delete_tree(ref.path)
    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint left: its 2 saves are deleted, .*Keep"):
        resolve(lineage, "attempt-0001")
    with pytest.raises(CheckpointNotFoundError, match=rf"What exists: {second.name}"):
        resolve(lineage, "attempt-0001/10")
    third = lineage.claim()
    with pytest.raises(CheckpointNotFoundError, match=rf"{third.name} .*its history tells of no save"):
        resolve(lineage, "latest")


def test_names_are_found_without_reading_manifests(lineage, monkeypatch):
    read = []
    plain = LocalStore.read
    monkeypatch.setattr(LocalStore, "read", lambda self, key: read.append(key) or plain(self, key))
    resolve(lineage, "attempt-0001/20")
    assert [key.rpartition("/")[2] for key in read] == ["manifest.json"]
