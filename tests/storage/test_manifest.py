from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resume_core.errors import CorruptCheckpointError
from resume_core.storage import Attempt, CheckpointRef, FileRecord, Manifest, Part, digest_chunks, sealed

PLACE = ("attempt-0001-7f3a", "step-000000500")
DATA = b"0123456789" * 20
RECORD = FileRecord("model.safetensors", len(DATA), 64, digest_chunks(DATA, 64))
MANIFEST = Manifest(
    *PLACE, 7, 2, (RECORD, replace(RECORD, name="rank-00001.json")), {"step": 500, "lr": 0.1, "ü": None}
)
PART = Part(*PLACE, 1, 2, (RECORD,))
ATTEMPT = Attempt(2, "00ff", PLACE[0], CheckpointRef(*PLACE, 7), {"host": "a"}, "id")
EXAMPLES = {"manifest": MANIFEST, "part": PART, "attempt": ATTEMPT}

kinds = pytest.mark.parametrize("kind", EXAMPLES)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def read(kind, data):
    return type(EXAMPLES[kind]).from_bytes(data, path=f"run/{kind}.json")


def read_or_corrupt(kind, data):
    """What was read, or None where it was refused with the one error that is allowed."""
    try:
        return read(kind, data)
    except CorruptCheckpointError as error:
        if f"run/{kind}.json" not in str(error):
            raise
        return None


def fields_of(kind):
    """The fields of an example as plain JSON, without those the seal adds."""
    fields = json.loads(EXAMPLES[kind].to_bytes())
    return {name: value for name, value in fields.items() if name not in ("format", "kind", "digest")}


def sealed_text(text: str) -> bytes:
    """A seal around any text: what somebody could make by hand."""
    body = text.encode("utf-8", "surrogatepass")
    return body + sealed._tail(body)


@kinds
def test_what_was_written_is_read_back_equal(kind):
    assert read(kind, EXAMPLES[kind].to_bytes()) == EXAMPLES[kind]


@kinds
def test_a_sealed_file_is_ordinary_json(kind):
    fields = json.loads(EXAMPLES[kind].to_bytes())
    assert fields["format"] == sealed.FORMAT_VERSION == 1
    assert fields["kind"] == kind
    assert fields["digest"].startswith("xxh3_128:")


@settings(deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_any_strict_json_header_comes_back_as_it_went_in(header):
    again = read("manifest", replace(MANIFEST, header=header).to_bytes())
    assert again.header == header
    assert repr(again.header) == repr(header)  # 1 and 1.0 and True are told apart, as is -0.0


@kinds
def test_every_single_altered_bit_is_found(kind):
    data = EXAMPLES[kind].to_bytes()
    for bit in range(len(data) * 8):
        altered = bytearray(data)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptCheckpointError, match=rf"run/{kind}\.json"):
            read(kind, bytes(altered))


@kinds
def test_every_truncation_and_any_appended_byte_is_found(kind):
    data = EXAMPLES[kind].to_bytes()
    for altered in [data[:length] for length in range(len(data))] + [data + b" ", data + b"\n", b" " + data]:
        with pytest.raises(CorruptCheckpointError):
            read(kind, altered)


@kinds
def test_one_kind_is_not_taken_for_another(kind):
    for other in EXAMPLES.keys() - {kind}:
        with pytest.raises(CorruptCheckpointError, match=f"not a {kind}"):
            read(kind, EXAMPLES[other].to_bytes())


@kinds
def test_a_newer_format_says_both_versions_and_to_upgrade(kind, monkeypatch):
    monkeypatch.setattr(sealed, "FORMAT_VERSION", 7)
    data = EXAMPLES[kind].to_bytes()
    monkeypatch.undo()
    with pytest.raises(CorruptCheckpointError, match="format 7, this release reads format 1: upgrade exact-resume"):
        read(kind, data)


@kinds
def test_an_older_format_says_both_versions_and_what_to_do(kind, monkeypatch):
    monkeypatch.setattr(sealed, "FORMAT_VERSION", 0)
    data = EXAMPLES[kind].to_bytes()
    monkeypatch.undo()
    with pytest.raises(CorruptCheckpointError, match=r"format 0, and .* format 1: go on with .* model\.safetensors"):
        read(kind, data)


@kinds
def test_a_missing_field_is_named(kind):
    for name in fields_of(kind):
        fields = fields_of(kind)
        del fields[name]
        with pytest.raises(CorruptCheckpointError, match=f"'{name}' is missing"):
            read(kind, sealed.seal(kind, fields))


ODD = [
    None,
    True,
    -1,
    2**63,
    10**30,
    1.5,
    "",
    "..",
    "/etc/passwd",
    "../../x",
    "a\0b",
    [],
    {},
    [None],
    [[]],
    [{}],
    {"a": 1},
]


@kinds
@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_an_odd_value_in_any_field_is_corrupt_or_means_the_same_type(kind, odd):
    for name, value in fields_of(kind).items():
        data = sealed.seal(kind, {**fields_of(kind), name: odd})
        again = read_or_corrupt(kind, data)
        assert again is None or type(odd) is type(value) or odd is None


@pytest.mark.parametrize("field", ["name", "size_bytes", "chunk_bytes", "digests", "algorithm"])
@pytest.mark.parametrize("odd", [*ODD, 0, 2**31, "model.safetensors/..", "manifest.json", ["0" * 32]], ids=repr)
def test_an_odd_value_in_a_file_record_is_corrupt(field, odd):
    fields = fields_of("manifest")
    fields["files"][0][field] = odd
    with pytest.raises(CorruptCheckpointError, match=r"run/manifest\.json cannot be used at files\[0\]"):
        read("manifest", sealed.seal("manifest", fields))


def test_a_file_listed_twice_is_corrupt():
    fields = fields_of("manifest")
    fields["files"].append(fields["files"][0])
    with pytest.raises(CorruptCheckpointError, match=r"listed twice: model\.safetensors"):
        read("manifest", sealed.seal("manifest", fields))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "nonsense",
        '{"format": NaN',
        '{"format": 1, "format": 1',
        '{"format": 1, "digest": "x"',
        '{"format": 1, "kind": "manifest", "header": {"x": Infinity}',
        '{"format": 1, "kind": "manifest", "header": {"x": 1e999}',
        '{"format": 1, "kind": "manifest", "header": {"x": ' + "9" * 5000 + "}",
        '{"format": 1, "kind": "manifest", "header": ' + "[" * 100_000,
        '{"format": 1, "kind": "manifest", "header": ' + "[" * 100_000 + "]" * 100_000,
        '{"format": 1, "kind": "manifest", "header": ' + "[" * 200 + "]" * 200,
        '{"format": 1, "kind": "manifest", "header": ' + '{"a":' * 900 + "1" + "}" * 900,
        '{"format": 1, "kind": "manifest", "x": "\ud800"',
        '{"format": true, "kind": "manifest"',
        '{"format": "1", "kind": "manifest"',
        '{"format": 0, "kind": "manifest"',
        '{"format": -1, "kind": "manifest"',
    ],
    ids=lambda text: text[:60],
)
def test_a_crafted_file_with_a_valid_seal_is_corrupt(text):
    with pytest.raises(CorruptCheckpointError, match=r"run/manifest\.json"):
        read("manifest", sealed_text(text))


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(EXAMPLES)), st.data())
def test_fuzzed_fields_raise_nothing_but_corrupt(kind, data):
    fields = fields_of(kind)
    target = fields
    if kind != "attempt" and data.draw(st.booleans()):
        target = fields["files"][0]
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(json_values)
    read_or_corrupt(kind, sealed.seal(kind, fields))


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet='{}[]":,0123456789eE+-.truefalsnNaIity\\u d"', max_size=80))
def test_fuzzed_text_under_a_valid_seal_raises_nothing_but_corrupt(text):
    with pytest.raises(CorruptCheckpointError):
        read("manifest", sealed_text(text))


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_corrupt(data):
    with pytest.raises(CorruptCheckpointError):
        read("manifest", data)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (math.nan, ValueError, "header.run.x is nan"),
        (-math.inf, ValueError, "header.run.x is -inf"),
        ((1, 2), TypeError, "header.run.x is a tuple"),
        ({1: 2}, TypeError, "header.run.x has the key 1"),
        (b"x", TypeError, "header.run.x is a bytes"),
        ([1, {2}], TypeError, r"header.run.x\[1\] is a set"),
    ],
)
def test_a_header_that_json_would_bend_is_refused_with_its_place(value, error, message):
    with pytest.raises(error, match=message):
        replace(MANIFEST, header={"run": {"x": value}}).to_bytes()


def test_a_header_that_could_not_be_read_back_is_refused_when_written():
    nested: list = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(ValueError, match="deeper than 100"):
        replace(MANIFEST, header={"x": nested}).to_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"size_bytes": 64},
        {"size_bytes": -1},
        {"size_bytes": 2**63},
        {"chunk_bytes": 0},
        {"chunk_bytes": 2**40},
        {"digests": ("0" * 32,)},
        {"digests": ("x" * 32,) * 4},
        {"algorithm": "md5"},
        {"name": "notes.txt"},
        {"name": "../model.safetensors"},
    ],
)
def test_a_record_that_contradicts_itself_is_a_value_error(change):
    with pytest.raises(ValueError):
        replace(RECORD, **change)


@pytest.mark.parametrize(
    "build",
    [
        lambda: replace(MANIFEST, attempt="x"),
        lambda: replace(MANIFEST, checkpoint="x"),
        lambda: replace(MANIFEST, world_size=0),
        lambda: replace(MANIFEST, serial=-1),
        lambda: replace(PART, rank=2),
        lambda: replace(PART, files=(RECORD, RECORD)),
        lambda: replace(ATTEMPT, parent="attempt-0002-0000"),
        lambda: replace(ATTEMPT, parent="elsewhere"),
        lambda: replace(ATTEMPT, restored_from=CheckpointRef("attempt-0003-0000", PLACE[1], 1)),
        lambda: replace(ATTEMPT, restored_from=CheckpointRef(*PLACE)),
        lambda: CheckpointRef("..", "step-000000500"),
    ],
)
def test_impossible_objects_are_a_value_error(build):
    with pytest.raises(ValueError):
        build()


def test_the_record_of_a_file_is_found_by_name():
    assert MANIFEST.file("model.safetensors") is RECORD
    with pytest.raises(CorruptCheckpointError, match=r"lists no file training\.json"):
        MANIFEST.file("training.json")
