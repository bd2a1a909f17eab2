"""The files that are put beside those of a framework: whole, or an error."""

from __future__ import annotations

import os

import pytest
import torch

from resume_core.entry import Entry, Incomplete
from resume_core.errors import CorruptCheckpointError, ResumeError, UnsupportedStateError
from resume_core.pieces import PieceWriter, has_pieces, read_pieces
from resume_core.ranks import Ranks
from resume_core.state import Fact, Progress


def entry(**pieces):
    return Entry(2**64 - 1, Progress(step=3, batch=4), {"seed": Fact(7)}, {}, pieces)


def save(folder, found=None, *, mark="a-1", rank=0, size=1):
    """As a framework and we do, one after the other."""
    folder.mkdir(exist_ok=True)
    writer = PieceWriter(Ranks(rank, size, object() if size > 1 else None))
    writer.begin(
        str(folder), mark, found or entry(odd=[float("inf"), {3}], weights=torch.arange(6.0).reshape(2, 3).t())
    )
    (folder / f"framework-{rank}.bin").write_bytes(bytes(range(200)) * 3)
    writer.commit(str(folder), [f"framework-{rank}.bin"])


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_was_written_comes_back(tmp_path):
    save(tmp_path)
    assert files(tmp_path) == [
        "exact_resume/rank-00000.json",
        "exact_resume/rank-00000.safetensors",
        "framework-0.bin",
    ]
    found = read_pieces(str(tmp_path), Ranks())
    assert (found.save, found.entry.progress, found.entry.key) == ("a-1", Progress(step=3, batch=4), 2**64 - 1)
    assert found.entry.pieces["odd"] == [float("inf"), {3}]
    weights = found.entry.pieces["weights"]
    assert torch.equal(weights, torch.arange(6.0).reshape(2, 3).t())
    assert weights.stride() == (1, 3)


def test_a_folder_without_any_is_the_frameworks_own(tmp_path):
    assert not has_pieces(str(tmp_path))
    assert read_pieces(str(tmp_path), Ranks()) is None


def test_a_place_where_nothing_is_exact_is_told(tmp_path):
    save(tmp_path, Incomplete("in a hook"))
    assert read_pieces(str(tmp_path), Ranks()).entry == Incomplete("in a hook")


@pytest.mark.parametrize("how", ["missing", "short", "one bit"])
@pytest.mark.parametrize(
    "name", ["exact_resume/rank-00000.json", "exact_resume/rank-00000.safetensors", "framework-0.bin"]
)
def test_a_file_that_is_missing_or_altered_is_an_error_that_names_it(tmp_path, name, how):
    save(tmp_path)
    path = tmp_path / name
    data = bytearray(path.read_bytes())
    path.unlink()
    if how != "missing":
        data[len(data) // 2] ^= 1
        path.write_bytes(data[:-1] if how == "short" else data)
    with pytest.raises(CorruptCheckpointError, match=path.name):
        read_pieces(str(tmp_path), Ranks())


class Cut(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("over_an_older_one", [False, True])
def test_a_save_that_is_cut_off_anywhere_is_known_for_it(tmp_path, monkeypatch, over_an_older_one):
    outcomes = []
    for number in range(99):
        folder, left = tmp_path / str(number), iter(range(number))
        if over_an_older_one:
            save(folder, entry(weights=torch.zeros(3)), mark="old")
        with monkeypatch.context() as patch:
            for name in ("replace", "fsync", "open", "unlink"):
                plain = getattr(os, name)
                patch.setattr(os, name, lambda *a, plain=plain, left=left, **k: plain(*a, **k) if left_of(left) else 1)
            try:
                save(folder, entry(weights=torch.ones(3)), mark="new")
                outcomes.append("done")
            except Cut:
                outcomes.append(outcome(folder))
        if outcomes[-1] == "done":
            break
    first, last = ("old" if over_an_older_one else None), "new"
    kinds = list(dict.fromkeys(outcomes))
    assert kinds == [first, "refused", last, "done"] or kinds == [first, "refused", "done"]
    assert outcome(folder) == "new"


def left_of(left):
    if next(left, None) is None:
        raise Cut
    return True


def outcome(folder):
    try:
        found = read_pieces(str(folder), Ranks())
    except CorruptCheckpointError:
        return "refused"
    if found is None:
        return None
    assert found.entry.pieces["weights"].tolist() == [1.0 if found.save == "new" else 0.0] * 3
    return found.save


def test_files_of_other_worlds_are_refused_with_both_numbers(tmp_path):
    save(tmp_path / "one")
    with pytest.raises(ResumeError, match="by 1 processes and 2 train now"):
        read_pieces(str(tmp_path / "one"), Ranks(1, 2, object()))
    save(tmp_path / "two", size=2)
    with pytest.raises(ResumeError, match="by 2 processes and 1 train now"):
        read_pieces(str(tmp_path / "two"), Ranks())
    with pytest.raises(CorruptCheckpointError, match=r"rank-00001\.json is missing.*some of the processes"):
        read_pieces(str(tmp_path / "two"), Ranks(1, 2, object()))


def test_what_no_checkpoint_can_hold_leaves_the_folder_as_it_was(tmp_path):
    with pytest.raises(UnsupportedStateError, match="odd"):
        PieceWriter(Ranks()).begin(str(tmp_path), "a-1", entry(odd=object()))
    assert files(tmp_path) == []
