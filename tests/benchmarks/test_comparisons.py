"""The benchmarks that compare, on small states and with peers that are installed anyway."""

from __future__ import annotations

import importlib
import json
import sys

import pytest
from measures.peers import PEERS, TorchSave
from measures.yardsticks import Yardsticks

KEYS = ["ours", "torch", "safetensors"]


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Runs a script with `--quick`; the rows that it has written, by name."""

    def compared(script, *arguments):
        out, folder = tmp_path / "found.json", tmp_path / "folder"
        folder.mkdir()
        command = [script, "--quick", "--folder", str(folder), "--out", str(out), *arguments]
        monkeypatch.setattr(sys, "argv", command)
        importlib.import_module(script).main()
        assert not list(folder.iterdir())
        assert out.with_suffix(".md").read_text().startswith("# ")
        return {row["name"]: row for row in json.loads(out.read_text())["rows"]}

    return compared


def test_saving_is_measured_against_a_copy_and_a_bare_write(compare):
    rows = compare("save", "--states", "one", "--only", *KEYS, "--rounds", "2")
    ours = rows["**exact-resume**"]["rounds"]
    assert len(ours["blocks / copy"]) == len(ours["durable / bare write"]) == 2
    assert {"blocks"} == rows["*warm `torch._foreach_copy_`*"]["rounds"].keys()
    assert len(ours["training meanwhile"]) == 2
    assert len(ours["extra memory"]) == 1
    assert {"blocks", "durable"} <= rows["**exact-resume**, first save"]["rounds"].keys()
    for key in KEYS:
        found = rows[PEERS[key].name]["rounds"]
        assert all(durable >= blocks for blocks, durable in zip(found["blocks"], found["durable"], strict=True))


def test_restoring_is_measured_against_a_bare_read(compare):
    rows = compare("restore", "--states", "600", "--only", *KEYS, "torch-mmap", "ours-in-place")
    assert [row["note"] for row in rows.values()] == [""] * (len(KEYS) + 4)
    ours, read = rows["**exact-resume**"]["rounds"], rows["*bare read*"]["rounds"]
    fresh = rows["*bare read*, moments into memory that nobody has used"]["rounds"]
    assert {"warm", "warm / bare read"} <= fresh.keys()
    for found in (ours, fresh):
        if "cold" in found and "cold" in read:
            assert found["cold / bare read"] == [found["cold"][0] / read["cold"][0]]


def test_ratios_are_formed_with_what_was_measured_right_before(compare, monkeypatch):
    """On a shared machine memory is now fast, now half as fast, for seconds at a time."""
    copies, writes = iter(range(1, 100)), iter(range(1, 100))
    monkeypatch.setattr(Yardsticks, "copy", lambda self: {"blocks": float(next(copies))})
    monkeypatch.setattr(Yardsticks, "write", lambda self: {"durable": float(next(writes))})
    rows = compare("save", "--states", "one", "--only", "torch", "safetensors")
    found = [rows[PEERS[key].name]["rounds"] for key in ("torch", "safetensors")]
    assert [one["blocks"][0] / one["blocks / copy"][0] for one in found] == pytest.approx([3, 5])
    assert [one["durable"][0] / one["durable / bare write"][0] for one in found] == pytest.approx([2, 3])


def test_so_are_those_of_a_warm_restore(compare, monkeypatch):
    reads = iter(range(1, 100))
    monkeypatch.setattr(Yardsticks, "read_warm", lambda self, fresh=0: {"warm": float(next(reads))})
    rows = compare("restore", "--states", "one", "--only", "torch", "safetensors")
    found = [rows[PEERS[key].load_name]["rounds"] for key in ("torch", "safetensors")]
    assert [one["warm"][0] / one["warm / bare read"][0] for one in found] == pytest.approx([2, 3])


class Forgetful(TorchSave):
    """Restores nothing."""

    def load(self):
        pass


def test_a_peer_that_does_not_restore_what_was_saved_is_found(compare, monkeypatch):
    monkeypatch.setitem(importlib.import_module("restore").LOADERS, "torch", Forgetful)
    row = compare("restore", "--states", "one", "--only", "torch")[TorchSave.load_name]
    assert "not what was saved" in row["note"]
    assert not row["rounds"]


def test_a_peer_that_is_not_installed_is_a_row_that_says_so(compare, monkeypatch):
    monkeypatch.setitem(sys.modules, "moonclip", None)
    assert (
        compare("save", "--states", "one", "--only", "moonclip")["moonclip save"]["note"] == "not installed: moonclip"
    )


@pytest.mark.s3
def test_objects_are_brought_to_a_server_and_back(compare):
    rows = compare("objectstore", "--only", "ours", "s3fs")
    ours, s3fs = rows["**exact-resume**"]["rounds"], rows["s3fs `pipe`, `cat_file`"]["rounds"]
    assert ours["download / s3fs"] == [ours["download"][0] / s3fs["download"][0]]
