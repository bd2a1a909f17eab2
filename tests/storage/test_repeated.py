"""A member that is the same in thousands of files is parsed once, and what would be refused with it is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resume_core.errors import CorruptCheckpointError
from resume_core.storage import Brief, Manifest, sealed
from resume_core.storage.repeated import Repeated

PLACE = ("attempt-0001-7f3a", "step-000000500")
GOOD = {"run": {"lr": 0.1}, "info": {"x": [1, 2, "a } b"]}}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.just("config"), inner, max_size=4),
    max_leaves=20,
)


def data_of(header) -> bytes:
    return Manifest(*PLACE, 7, 1, (), header).to_bytes()


def with_config(text: str) -> bytes:
    """A manifest with a valid seal that holds ``text`` in the place of its configuration."""
    whole = data_of({"progress": {}, "config": {"here": 1}, "time": "now"}).decode()
    body = whole[: whole.rindex(',\n "digest"')]
    body = body.replace('{\n   "here": 1\n  }', text)
    return body.encode() + sealed._tail(body.encode())


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])  # machines that many share
@given(st.dictionaries(st.sampled_from(["config", "a", "metrics"]), json_values))
def test_a_brief_is_what_the_whole_manifest_says(header):
    data = data_of(header)
    assert Brief.from_bytes(data, path="m") == Brief.of(Manifest.from_bytes(data, path="m"))


@pytest.mark.parametrize("depth", range(94, 102))
def test_a_configuration_is_as_deep_for_a_brief_as_for_who_reads_all(depth):
    text = '{"a":' * (depth - 1) + "{}" + "}" * (depth - 2) + "\n  }"
    verdicts = set()
    for read in (Manifest.from_bytes, Brief.from_bytes):
        try:
            read(with_config(text), path="m")
            verdicts.add("good")
        except CorruptCheckpointError:
            verdicts.add("refused")
    assert len(verdicts) == 1


def test_the_same_text_is_parsed_once():
    parsed = []
    repeated = Repeated("config", 2, lambda text: parsed.append(text) or json.loads(text))
    for step in range(3):
        left = json.loads(repeated.without(data_of({"step": step, "config": GOOD})))
        assert left["header"] == {"step": step, "config": {}}
    assert len(parsed) == 1
    assert json.loads(parsed[0]) == GOOD
    repeated.without(data_of({"config": GOOD | {"more": 1}}))
    assert len(parsed) == 2


@pytest.mark.parametrize("header", [{}, {"config": 5}, {"config": []}, {"config": {}}, {"a": {"config": {"b": 1}}}])
def test_what_is_no_such_object_is_left_as_it_is(header):
    data = data_of(header)
    assert Repeated("config", 2, lambda text: sealed.parse(text, "m")).without(data) == data


@pytest.mark.parametrize(
    "text",
    [
        '{\n   "a": 1,\n   "a": 2\n  }',  # a key twice
        '{\n   "a": NaN\n  }',
        '{\n   "a": 1\n  ',  # no end
        '{\n   "a": [1\n  }',
        '{\n   "here": 1\n  } 5',
        '{\n   "here": 1\n  }, "config": {\n   "here": 1\n  }',
        '"a string\n  "config": {\n   "here": 1\n  }"',  # only looks like it
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_what_would_be_refused_with_it_is_refused_without_it(text, known):
    if known:
        Brief.from_bytes(data_of({"progress": {}, "config": {"here": 1}, "time": "now"}), path="m")
    for read in (Manifest.from_bytes, Brief.from_bytes):
        with pytest.raises(CorruptCheckpointError):
            read(with_config(text), path="m")
