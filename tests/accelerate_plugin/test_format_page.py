"""A checkpoint is what docs/format.md says: read here by that page alone, without a line of the packages' own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import xxhash
from small_runs import new_run, train_all

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
FILES = {"model": "model.safetensors", "training": "training.safetensors"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    root = tmp_path_factory.mktemp("run")
    train_all(new_run(root), 2)
    train_all(new_run(root), 3)  # a second attempt
    return root


def section(title):
    return re.search(rf"^#+ [^\n]*{re.escape(title)}[^\n]*\n(.*?)(?=^#+ |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


def first_column(text):
    """The names in the first column of a table."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def digest(data):
    return xxhash.xxh3_128_hexdigest(data)


def unsealed(path, kind):
    """By the section on sealed files."""
    data = path.read_bytes()
    body, found = re.fullmatch(rb'(.*),\n "digest": "xxh3_128:([0-9a-f]{32})"\n}\n', data, re.DOTALL).groups()
    assert digest(body) == found.decode()
    fields = json.loads(data)
    assert list(fields)[:2] == ["format", "kind"]
    assert (fields["format"], fields["kind"]) == (1, kind)
    return fields


def nodes(value):
    """Typed nodes of a structure, parents before children, in its order."""
    if isinstance(value, dict):
        if "$" in value:
            yield value
        for child in value.values():
            yield from nodes(child)
    elif isinstance(value, list):
        for child in value:
            yield from nodes(child)


def checkpoints(directory):
    found = sorted(directory.glob("attempt-*/step-*/manifest.json"))
    assert len(found) > 2
    return [(path.parent, unsealed(path, "manifest")) for path in found]


def test_the_names_are_those_of_the_page(directory):
    for attempt in directory.iterdir():
        assert re.fullmatch(r"attempt-[0-9]{4}-[0-9a-f]{4}", attempt.name)
        found = {path.name for path in attempt.iterdir() if path.is_file()}
        named = {"attempt.json", "history.json", "check.json"}
        assert all(name in named or re.fullmatch(r"evidence-[0-9]{5,}\.json", name) for name in found)
        for folder in filter(Path.is_dir, attempt.iterdir()):
            assert re.fullmatch(r"step-[0-9]{9}(\.[1-9][0-9]*)?", folder.name)


def test_claims_have_the_fields_of_the_page_and_follow_one_another(directory):
    attempts = [unsealed(path, "attempt") for path in sorted(directory.glob("attempt-*/attempt.json"))]
    assert [attempt["number"] for attempt in attempts] == [1, 2]
    documented = first_column(section("`attempt.json`: the claim"))
    assert {*attempts[0]} - {"format", "kind", "digest"} == documented - {"key", "provenance", "accepted"}
    origin = attempts[1]["restored_from"]
    manifest = unsealed(directory / origin["attempt"] / origin["name"] / "manifest.json", "manifest")
    assert origin["serial"] == manifest["serial"]


def test_manifests_have_the_fields_of_the_page_and_their_files_the_digests(directory):
    documented = first_column(section("The header of a manifest"))
    for folder, manifest in checkpoints(directory):
        assert (manifest["attempt"], manifest["checkpoint"]) == (folder.parent.name, folder.name)
        assert {*manifest["header"]} <= documented
        assert {*manifest["files"][0]} == first_column(section("Parts and manifests"))
        assert {record["name"] for record in manifest["files"]} == {p.name for p in folder.iterdir()} - {
            "manifest.json"
        }
        for record in manifest["files"]:
            data, size = (folder / record["name"]).read_bytes(), record["chunk_bytes"]
            assert len(data) == record["size_bytes"]
            assert [digest(data[at : at + size]) for at in range(0, len(data), size)] == record["digests"]


def test_histories_have_the_fields_of_the_page(directory):
    for path in directory.glob("attempt-*/history.json"):
        fields = unsealed(path, "history")
        assert {*fields} - {"format", "kind", "digest"} <= set(re.findall(r"`([a-z_]+)`", section("`history.json`")))


def test_evidence_has_the_fields_of_the_page(directory):
    named = set(re.findall(r"`([a-z_]+)`", section("`evidence-NNNNN.json` and `check.json`")))
    evidence = [unsealed(path, "evidence") for path in directory.glob("attempt-*/evidence-*.json")]
    checks = [unsealed(path, "check") for path in directory.glob("attempt-*/check.json")]
    assert evidence
    assert checks
    for fields in (*evidence, *checks):
        assert {*fields} - {"format", "kind", "digest"} <= named
    for record in (record for fields in evidence for save in fields["saves"] for record in save["records"]):
        assert {*record} <= named
    assert all({*fields["result"], *fields["result"]["live"]} <= named for fields in checks)


def tensors_of(path):
    """Names and shapes of a safetensors file, by that format."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {name: entry["shape"] for name, entry in header.items()}


def test_structures_use_the_kinds_of_the_page_alone_and_name_each_tensor_once(directory):
    kinds = first_column(section("Structure"))
    for folder, _ in checkpoints(directory):
        training = json.loads((folder / "training.json").read_text())
        rank = json.loads((folder / "rank-00000.json").read_text())
        assert {*training} == {"model", "training", "info"}
        assert {*rank} == {"rank", "own"}
        trees = {FILES[part]: training[part] for part in FILES} | {"rank-00000.safetensors": rank["rank"]}
        for name, tree in trees.items():
            found = list(nodes(tree))
            assert {node["$"] for node in found} <= kinds
            named = [node["name"] for node in found if node["$"] in ("tensor", "parameter") and "name" in node]
            stored = tensors_of(folder / name)
            assert sorted(named) == sorted(stored)
            if name == FILES["model"]:
                assert all(node["shape"] == stored[node["name"]] for node in found if "name" in node)
