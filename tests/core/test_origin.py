"""The identity of the file that a run started from."""

from __future__ import annotations

import logging

import pytest

from resume_core.errors import ConfigChangedError
from resume_core.origin import Origin, check_origin, find_origin
from resume_core.policy import Changes
from resume_core.storage import CHUNK_BYTES, digest_file, open_store

LOG = logging.getLogger("test")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.ckpt"
    path.write_bytes(b"weights")
    return path


def check(recorded, path, **changes):
    return check_origin(recorded, str(path), Changes(**changes), LOG, run="the-run")


def test_a_file_is_the_same_wherever_it_lies(file, tmp_path):
    recorded = Origin.from_dict(find_origin(file).as_dict())
    check(recorded, file.rename(tmp_path / "b.ckpt"))


def test_another_content_is_another_file(file):
    recorded = find_origin(file)
    file.write_bytes(b"Weights")
    with pytest.raises(ConfigChangedError, match="the-run"):
        check(recorded, file)


def test_of_a_file_that_is_gone_the_path_tells(file, tmp_path):
    recorded = find_origin(file)
    file.unlink()
    check(recorded, file)
    with pytest.raises(ConfigChangedError):
        check(recorded, tmp_path / "b.ckpt")


def test_a_change_can_be_allowed_or_warned_of(file, caplog):
    (allowed,) = check(None, file, allow=("origin",)).record()
    assert (allowed["name"], allowed["accepted_as"]) == ("origin", "allowed")
    assert not [r for r in caplog.records if r.levelno == logging.WARNING]
    check(None, file, otherwise="warn")
    assert "began without one" in caplog.text
    with pytest.raises(ConfigChangedError, match="began without one") as refused:
        check(None, file, allow=("seed",))
    assert refused.value.differences[0].name == "origin"


def test_a_relative_path_is_recorded_as_an_absolute_one(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_origin("a.ckpt") == find_origin(file)
    assert find_origin("a.ckpt").path == str(file)


def test_urls_are_read_as_well(tmp_path):
    store = open_store(f"memory://{tmp_path.name}")
    store.put("a.ckpt", b"weights")
    (tmp_path / "a.ckpt").write_bytes(b"weights")
    assert find_origin(f"memory://{tmp_path.name}/a.ckpt").is_same(find_origin(tmp_path / "a.ckpt"))


def test_every_chunk_counts(tmp_path):
    (tmp_path / "file").write_bytes(bytes(CHUNK_BYTES + 10))
    store = open_store(tmp_path)
    size_bytes, before = digest_file(store, "file")
    assert size_bytes == CHUNK_BYTES + 10
    with open(tmp_path / "file", "r+b") as file:
        file.seek(CHUNK_BYTES + 5)
        file.write(b"1")
    assert digest_file(store, "file")[1] != before
