"""The files of a dataset: found when they change, and never a reason to stop when they do not."""

import os
import threading
import time
from pathlib import Path

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from resume_core.capture import describe_files
from resume_core.capture.describe_data import describe_loader
from resume_core.capture.runconfig import diff


class Images(Dataset):
    """Like torchvision's ``ImageFolder``: knows its files from when it was made."""

    def __init__(self, root):
        self.root = str(root)
        found = sorted(path for path in Path(root).rglob("*.png"))
        self.samples = [(str(path), number % 2) for number, path in enumerate(found)]

    def __len__(self):
        return 12

    def __getitem__(self, index):
        raise AssertionError("a sample was read")


class Opaque(Images):
    """Says where its files are, and no more."""

    def __init__(self, root):
        self.data_dir = Path(root)


@pytest.fixture
def folder(tmp_path):
    return fill(tmp_path / "images")


def fill(root):
    for number in range(12):
        path = root / f"class{number % 3}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (number + 1))
    return root


def facts(dataset):
    return describe_loader(DataLoader(dataset))


def changed(before, dataset):
    return {d.name.removeprefix("data.0.dataset."): d.severity for d in diff(before, facts(dataset))}


KINDS = {"listed": Images, "opaque": Opaque}
CHANGES = {
    "another size": (lambda root: (root / "class1" / "4.png").write_bytes(b"y"), {"files.sizes"}),
    "another name": (
        lambda root: (root / "class1" / "4.png").rename(root / "class1" / "5.png"),
        {"files", "files.sizes"},
    ),
    "another folder": (lambda root: (root / "class1").rename(root / "class9"), {"files", "files.sizes"}),
    "one more": (lambda root: (root / "class1" / "99.png").write_bytes(b"y"), {"files", "files.sizes"}),
    "one less": (lambda root: (root / "class1" / "4.png").unlink(), {"files", "files.sizes"}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_files_that_change_are_found(folder, kind, change):
    act, expected = CHANGES[change]
    before = facts(KINDS[kind](folder))
    act(folder)
    assert changed(before, KINDS[kind](folder)) == dict.fromkeys(expected, "run")


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_moved_was_copied_or_touched_is_the_same(folder, kind, tmp_path):
    before = facts(KINDS[kind](folder))
    assert before["data.0.dataset.files"].value
    assert before["data.0.dataset.files.sizes"].value
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    assert changed(before, KINDS[kind](folder)) == {}
    moved = folder.rename(tmp_path / "elsewhere")
    assert changed(before, KINDS[kind](moved)) == {}
    link = tmp_path / "link"
    link.symlink_to(moved)
    assert changed(before, KINDS[kind](link)) == {}
    assert changed(before, KINDS[kind](fill(tmp_path / "copy"))) == {}


def test_the_order_of_a_list_counts(folder):
    before, other = facts(Images(folder)), Images(folder)
    other.samples.reverse()
    assert changed(before, other) == {"files": "run"}


def test_datasets_inside_others_are_looked_at(folder, tmp_path):
    def make():
        return ConcatDataset([Subset(Images(folder), range(5)), Images(second)])

    second = fill(tmp_path / "second")
    before = facts(make())
    (second / "class1" / "4.png").write_bytes(b"")
    assert changed(before, make()) == {"datasets.1.files.sizes": "run"}


def test_links_that_lead_back_end(folder):
    (folder / "class1" / "up").symlink_to(folder)
    (folder / "class1" / "itself").symlink_to(folder / "class1" / "itself")
    before = facts(Opaque(folder))
    assert changed(before, Opaque(folder)) == {}
    (folder / "class2" / "2.png").write_bytes(b"")
    assert changed(before, Opaque(folder)) == {"files.sizes": "run"}


def test_what_a_run_writes_beside_its_data_is_no_change(folder):
    before = facts(Opaque(folder))
    for name in (
        "runs/attempt-0001-aaaa/attempt.json",
        "lightning_logs/x",
        ".lock",
        "labels.cache",
        "class0/__pycache__/y",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert changed(before, Opaque(folder)) == {}


def test_a_folder_that_holds_the_working_directory_is_not_listed(folder, monkeypatch):
    monkeypatch.chdir(folder / "class0")
    assert facts(Opaque(folder))["data.0.dataset.files"].value is None


def test_a_disk_that_does_not_answer_is_waited_for_no_longer_and_blocks_nothing(folder, monkeypatch):
    before = facts(Opaque(folder))
    answers = threading.Event()
    monkeypatch.setattr(describe_files, "_MAX_S", 0.2)
    monkeypatch.setattr(describe_files.os, "scandir", lambda path: answers.wait(20))
    start = time.monotonic()
    assert changed(before, Opaque(folder)) == {"files": "info", "files.sizes": "info"}
    assert time.monotonic() - start < 10
    answers.set()


def test_a_look_that_was_cut_off_gives_no_value(folder, monkeypatch):
    before = facts(Images(folder))

    def slow(path, **arguments):
        time.sleep(0.05)
        return status(path, **arguments)

    status = os.stat
    monkeypatch.setattr(describe_files, "_MAX_S", 0.4)
    monkeypatch.setattr(describe_files, "_NUM_THREADS", 1)
    monkeypatch.setattr(describe_files.os, "stat", slow)
    found = changed(before, Images(folder))
    assert "files.sizes" in found
    assert set(found.values()) == {"info"}


def test_what_is_chosen_does_not_depend_on_the_order_in_which_a_disk_tells_it(tmp_path, monkeypatch):
    root = tmp_path / "many"
    for number in range(40):
        (root / f"folder{number}").mkdir(parents=True)
        for inner in range(5):
            (root / f"folder{number}" / f"{inner}.bin").write_bytes(b"z" * inner)
    before = facts(Opaque(root))
    plain = os.scandir

    class Reversed:
        def __init__(self, path):
            self.entries = plain(path)

        def __enter__(self):
            return reversed(list(self.entries))

        def __exit__(self, *_):
            self.entries.close()

    monkeypatch.setattr(describe_files.os, "scandir", Reversed)
    assert before["data.0.dataset.files"].value
    assert changed(before, Opaque(root)) == {}


@pytest.mark.parametrize(
    "own",
    [
        {"texts": ["a sentence", "two"], "classes": ["cat", "dog"], "numbers": [1, 2]},
        {"samples": [("/nowhere/1.png", 0)] * 12, "root": "/nowhere"},
        {"cache_dir": "/usr/lib", "log_path": "/etc/hostname", "url": "s3://bucket/data", "odd": [[], ()]},
        {"samples": [None] * 12, "root": 5, "paths": []},
    ],
)
def test_a_dataset_without_files_is_not_compared_by_them(own):
    dataset = Images("/nowhere")
    vars(dataset).clear()
    vars(dataset).update(own)
    found = facts(dataset)
    names = ("data.0.dataset.files", "data.0.dataset.files.sizes")
    assert [(found[name].value, found[name].severity) for name in names] == [(None, "info")] * 2


def test_a_file_that_is_gone_is_a_change(folder):
    dataset = Images(folder)
    before = facts(dataset)
    (folder / "class1" / "4.png").unlink()
    assert changed(before, dataset) == {"files.sizes": "run"}


def test_a_single_file_is_its_size(tmp_path):
    class Packed(Opaque):
        def __init__(self, path):
            self.h5_path = path

    path = tmp_path / "data.h5"
    path.write_bytes(b"12345")
    before = facts(Packed(path))
    path.write_bytes(b"1234567")
    assert changed(before, Packed(path)) == {"files.sizes": "run"}


def test_a_long_list_is_looked_at_in_time(tmp_path):
    path = tmp_path / "one.png"
    path.write_bytes(b"")
    dataset = Images(tmp_path)
    dataset.samples = [(str(path), 0)] * 1_000_000
    assert facts(dataset)["data.0.dataset.files"].value.startswith("25")
