"""Checkpoints made by hand, under digests that are right: an error of ours, in no time and memory, and nothing else."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import sys

import crafted
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kills import in_limited_memory
from walks import Start

from resume_core.errors import CorruptCheckpointError, ResumeError, UnsupportedStateError

NEWEST, OLDER = "step-000000001", "step-000000000"
SAFETENSORS = ("model.safetensors", "training.safetensors", "rank-00000.safetensors")
DOCUMENTS = ("training.json", "rank-00000.json")
BOMB = "[" * 100_000 + "]" * 100_000
OBJECTS = '{"a":' * 100_000 + "0" + "}" * 100_000
ODD = (
    None, True, -1, 2**63, 10**30, 1.5, "", "..", "../../x", "/etc/passwd", "a\\b", "a\0b", "\ud800", "\u202e",
    "9" * 5000, [], {}, [[]], [None] * 3, {"$": "nope"}, {"$": []}, {"$": None}, {"$": "__import__", "value": "os"},
    {"$": "tensor", "name": "place", "dtype": "float32", "shape": [5000], "stride": [2**62]},
    {"$": "tensor", "name": "place", "dtype": "float32", "shape": [2**62, 2**62]},
    {"$": "tensor", "alias": "nowhere"}, {"$": "tensor", "alias": "place"}, {"$": "parameter", "alias": "place"},
    {"$": "numpy.generic", "dtype": "<U1000000000", "base64": ""},
    {"$": "numpy.bytes", "dtype": "<f8", "shape": [2**62, 4], "base64": ""},
    {"$": "numpy.bytes", "dtype": "|O", "shape": [1], "base64": "AAAAAAAAAAA="},
    {"$": "int", "hex": "f" * 5000}, {"$": "Path", "value": "\0"}, {"$": "torch.device", "value": "cuda:99"},
    {"$": "torch.dtype", "value": "__dict__"}, {"$": "timedelta", "value": [10**12, 0, 0]},
    {"$": "set", "items": [[1]]}, {"$": "dict", "items": [[[], 1]]},
    {"$": "defaultdict", "factory": "os.system", "items": []},
    {"$": "leaf", "name": "os.system", "value": "true"}, {"$": "leaf", "name": {}, "value": None},
)  # fmt: skip
DELETED = object()


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A run that was left after its first step, with the checkpoint from before it too."""
    start = Start(tmp_path_factory.mktemp("crafted"), num_steps=1, keep=99)
    start.take()
    for path in start.directory.glob("attempt-*/step-*.2"):
        shutil.rmtree(path)
    return start.but(num_steps=2)


@pytest.fixture
def run(template, tmp_path):
    """A copy of it, to be tampered with."""
    shutil.copytree(template.directory, tmp_path / "run")
    return template.but(root=tmp_path)


def newest(run):
    return next(run.directory.glob(f"attempt-*/{NEWEST}"))


def first(run, **arguments):
    """The checkpoint that a start goes on from; everything that is read before training is read."""
    _, session = run.but(arguments=arguments).session()
    session.preamble()
    session.prepare(7)
    restored = session.start(7)
    return restored.ref.name if restored else None


def places(tree, at=()):
    """Every place in a nested value."""
    yield at
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*at, key))


def changed(tree, at, value):
    """``tree`` with another value at one place."""
    if not at:
        return value
    copy = tree.copy()
    if len(at) == 1 and value is DELETED:
        del copy[at[0]]
    else:
        copy[at[0]] = changed(tree[at[0]], at[1:], value)
    return copy


class Tampered:
    """One file of a checkpoint, or the attempt's, as a tree of JSON that can be written back with right digests."""

    def __init__(self, run, name):
        folder = newest(run)
        self.path = (folder.parent if name == "attempt.json" else folder) / name
        self.original, self.data = self.path.read_bytes(), b""
        if name in SAFETENSORS:
            size = int.from_bytes(self.original[:8], "little")
            self.tree, self.data = json.loads(self.original[8 : 8 + size]), self.original[8 + size :]
        elif name in DOCUMENTS:
            self.tree = json.loads(self.original)
        else:
            self.tree = crafted.fields(self.path)

    def write(self, tree):
        if self.data:
            crafted.replace(self.path.parent, self.path.name, crafted.safetensors(tree, self.data))
        elif self.path.name in DOCUMENTS:
            crafted.replace(self.path.parent, self.path.name, json.dumps(tree).encode())
        else:
            crafted.reseal(self.path, json.dumps({"format": 1, "kind": self.path.stem, **tree}, ensure_ascii=False))


ALL = (*SAFETENSORS, *DOCUMENTS, "manifest.json", "attempt.json")


@pytest.fixture(scope="module")
def tampered(template, tmp_path_factory):
    """One copy for many examples: each writes its file anew."""
    found = {}
    for name in ALL:
        root = tmp_path_factory.mktemp(name)
        shutil.copytree(template.directory, root / "run")
        run = template.but(root=root)
        found[name] = run, Tampered(run, name), (newest(run) / "manifest.json").read_bytes()
    return found


@pytest.mark.parametrize("name", ALL)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_an_odd_value_anywhere_gives_a_state_or_an_error_of_ours_and_touches_nothing(tampered, name, data):
    run, file, manifest = tampered[name]
    logging.disable(logging.CRITICAL)
    try:
        at = data.draw(st.sampled_from([at for at in places(file.tree) if at]))
        file.write(changed(file.tree, at, data.draw(st.sampled_from([*ODD, DELETED]))))
        before = crafted.tree(run.root)
        for arguments in ({}, {"resume": f"attempt-0001/{NEWEST}"}):
            with contextlib.suppress(ResumeError):
                assert first(run, **arguments) in (NEWEST, OLDER, None)
        assert crafted.tree(run.root) == before
    finally:
        logging.disable(logging.NOTSET)
        (newest(run) / "manifest.json").write_bytes(manifest)
        file.path.write_bytes(file.original)


HEADERS = {
    "a step that is no number": {"progress": {"step": "1"}},
    "a step that no folder can have": {"progress": {"step": 10**18}},
    "a negative batch": {"progress": {"batch": -1}},
    "a progress with more fields": {"progress": {"other": 1}},
    "a key that is no number": {"key": "7"},
    "a key that is too large": {"key": 2**64},
    "a fit that is no number": {"fit": "0"},
    "an end that is a word": {"finished": "yes"},
    "an end without a cause": {"finished": {"reached": {}}},
    "an end that reached words": {"finished": {"cause": "max_steps", "reached": {"max_steps": "9"}}},
    "an origin that is a word": {"origin": "x"},
    "an origin without its size": {"origin": {"path": "x"}},
    "a config that is a list": {"config": []},
}


@pytest.mark.parametrize("what", HEADERS)
def test_a_header_that_no_session_writes_is_damage(run, what, caplog):
    path = newest(run) / "manifest.json"
    header = crafted.fields(path)["header"]
    for name, value in HEADERS[what].items():
        header[name] = header.get(name, {}) | value if name == "progress" else value
    crafted.change(path, "manifest", header=header)
    assert first(run) == OLDER
    assert "the header of" in caplog.text
    with pytest.raises(CorruptCheckpointError, match=f"the header of .*{NEWEST}"):
        first(run, resume=f"attempt-0001/{NEWEST}")


RECORD = {
    "name": "model.safetensors",
    "size_bytes": 1,
    "chunk_bytes": 4096,
    "algorithm": "xxh3_128",
    "digests": ["0" * 32],
}
MANIFESTS = {
    "a file outside": [RECORD | {"name": "../model.safetensors"}],
    "an absolute file": [RECORD | {"name": "/etc/passwd"}],
    "a file with a backslash": [RECORD | {"name": "..\\model.safetensors"}],
    "a file with a zero": [RECORD | {"name": "model.safetensors\0"}],
    "a file whose digits are not ASCII": [RECORD | {"name": "rank-\u0660\u0660\u0660\u0660\u0660.json"}],
    "a huge file": [RECORD | {"size_bytes": 2**62}],
    "a huge chunk": [RECORD | {"size_bytes": 2**62, "chunk_bytes": 2**62}],
    "a size that is a float": [RECORD | {"size_bytes": 1.0}],
    "a size that is true": [RECORD | {"size_bytes": True}],
    "a negative size": [RECORD | {"size_bytes": -1}],
    "many files that are one": [RECORD] * 3000,
    "files that are no list": {"0": RECORD},
}


@pytest.mark.parametrize("what", MANIFESTS)
def test_a_manifest_that_no_writer_writes_is_damage(run, what, caplog):
    crafted.change(newest(run) / "manifest.json", "manifest", files=MANIFESTS[what])
    assert first(run) == OLDER
    assert "manifest.json" in caplog.text


@pytest.mark.parametrize("size", [2**63, 2**64 - 1, 10**8 + 1, 2**31], ids=str)
@pytest.mark.parametrize("name", SAFETENSORS)
def test_a_header_of_a_size_that_is_not_there_is_damage(run, name, size, caplog):
    crafted.replace(newest(run), name, crafted.safetensors({}, b"", size=size))
    assert first(run) == OLDER
    assert f"{name} is not a whole safetensors file" in caplog.text


TENSORS = {
    "overlap": {"a": [0, 8], "b": [4, 12]},
    "leave a hole": {"a": [0, 8], "b": [16, 24]},
    "begin before the data": {"a": [-8, 0], "b": [0, 8]},
    "end after the file": {"a": [0, 8], "b": [8, 2**62]},
    "are the same": {"a": [0, 8], "b": [0, 8]},
    "have offsets that are floats": {"a": [0.0, 8.0]},
}


@pytest.mark.parametrize("what", TENSORS)
def test_tensors_that_do_not_cover_their_file_are_damage(run, what, caplog):
    header = {
        name: {"dtype": "F32", "shape": [int(end - begin) // 4], "data_offsets": [begin, end]}
        for name, (begin, end) in TENSORS[what].items()
    }
    crafted.replace(newest(run), "model.safetensors", crafted.safetensors(header, bytes(24)))
    assert first(run) == OLDER
    assert "model.safetensors is not a whole safetensors file" in caplog.text


@pytest.mark.parametrize("name", [*SAFETENSORS, *DOCUMENTS])
@pytest.mark.parametrize(
    "text", [BOMB, '{"a":' * 100_000 + "0" + "}" * 100_000, '{"a": 1, "a": 2}', "NaN", "1" * 10_000]
)
def test_text_that_is_no_plain_json_is_damage(run, name, text, caplog):
    data = crafted.safetensors(text.encode()) if name in SAFETENSORS else text.encode()
    crafted.replace(newest(run), name, data)
    assert first(run) == OLDER
    assert name in caplog.text


@pytest.mark.parametrize(
    "text", ['{"format": 1, "kind": "manifest", "header": ' + BOMB + "}", '{"format": 1, "format": 1}']
)
def test_a_sealed_file_that_is_no_plain_json_is_damage(run, text, caplog):
    crafted.reseal(newest(run) / "manifest.json", text)
    assert first(run) == OLDER
    assert "manifest.json is not strict JSON" in caplog.text


def test_a_structure_that_is_nested_deeper_than_any_state_is_damage(run, caplog):
    tree = Tampered(run, "training.json").tree
    text = json.dumps(tree | {"training": "HERE"}).replace('"HERE"', "[" * 3000 + "]" * 3000)
    crafted.replace(newest(run), "training.json", text.encode())
    assert first(run) == OLDER
    assert "training" in caplog.text


@pytest.mark.parametrize("name", ["manifest.json", "attempt.json"])
def test_a_small_file_that_has_become_huge_is_not_read(run, name, caplog):
    path = Tampered(run, name).path
    with open(path, "r+b") as file:
        file.truncate(1 << 40)  # takes no space on the disk
    assert first(run) == (OLDER if name == "manifest.json" else NEWEST)
    assert f"{name} has {1 << 40} bytes" in caplog.text


def test_a_leaf_that_nobody_registered_is_refused_by_name_and_nothing_is_imported(run):
    file = Tampered(run, "training.json")
    leaf = {"$": "leaf", "name": "antigravity.geohash", "value": None}
    file.write(file.tree | {"training": file.tree["training"] | {"more": leaf}})
    with pytest.raises(UnsupportedStateError, match=r"antigravity\.geohash"):
        first(run)
    assert "antigravity" not in sys.modules


def test_claims_of_size_take_no_memory(run):
    """In a process that may not have more than it needs anyway."""
    for size in (2**31, 10**8):
        crafted.replace(newest(run), "model.safetensors", crafted.safetensors({}, b"", size=size))
        assert in_limited_memory(first, run) == OLDER
    header = {"a": {"dtype": "F32", "shape": [2**33], "data_offsets": [0, 2**35]}}
    crafted.replace(newest(run), "model.safetensors", crafted.safetensors(header, bytes(8)))
    assert in_limited_memory(first, run) == OLDER
    with open(newest(run) / "manifest.json", "r+b") as file:
        file.truncate(4 << 30)
    assert in_limited_memory(first, run) == OLDER
