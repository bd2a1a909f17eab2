from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resume_core.storage import paths


def test_names_are_those_of_the_format():
    assert paths.attempt_folder(3, "7f3a") == "attempt-0003-7f3a"
    assert paths.checkpoint_folder(500) == "step-000000500"
    assert paths.checkpoint_folder(500, 2) == "step-000000500.2"
    assert paths.rank_file(3, ".safetensors") == "rank-00003.safetensors"
    assert paths.part_file(3) == "part-00003.json"


@given(st.integers(1, 10**9 - 1), st.text("0123456789abcdef", min_size=4, max_size=4))
def test_attempt_names_parse_back(number, token):
    assert paths.parse_attempt_folder(paths.attempt_folder(number, token)) == (number, token)


@given(st.integers(0, 10**18 - 1), st.integers(1, 10**9 - 1))
def test_checkpoint_names_parse_back(step, repeat):
    assert paths.parse_checkpoint_folder(paths.checkpoint_folder(step, repeat)) == (step, repeat)


@given(st.integers(0, 10**9 - 1), st.sampled_from([".json", ".safetensors"]))
def test_rank_names_parse_back(rank, suffix):
    assert paths.parse_rank_file(paths.rank_file(rank, suffix)) == rank


@pytest.mark.parametrize(
    "name",
    [
        "",
        "attempt-0003",
        "attempt-0003-7f3A",
        "attempt-0000-7f3a",
        "attempt-3-7f3a",
        "attempt-00003-7f3a",
        "attempt-0003-7f3a ",
        "attempt-0003-7f3a\n",
        "attempt-٠٠٠٣-7f3a",
    ],
)
def test_names_that_only_look_like_an_attempt_are_not_ours(name):
    assert paths.parse_attempt_folder(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        "step-5",
        "step-000000500.1",
        "step-000000500.0",
        "step-000000500.02",
        "step-0000000500",
        "step-000000500.bak",
    ],
)
def test_names_that_only_look_like_a_checkpoint_are_not_ours(name):
    assert paths.parse_checkpoint_folder(name) is None


@given(st.text())
def test_any_text_parses_or_does_not_and_never_raises(text):
    for parse in (paths.parse_attempt_folder, paths.parse_checkpoint_folder, paths.parse_rank_file):
        assert parse(text) is None or text
    assert paths.is_checkpoint_file(text) in (True, False)


@pytest.mark.parametrize(
    ("make", "args"),
    [
        (paths.attempt_folder, (0, "7f3a")),
        (paths.attempt_folder, (1, "xyz")),
        (paths.attempt_folder, (-1, "7f3a")),
        (paths.checkpoint_folder, (-1,)),
        (paths.checkpoint_folder, (1, 0)),
        (paths.checkpoint_folder, (10**18,)),
        (paths.rank_file, (1, ".pt")),
        (paths.rank_file, (-1, ".json")),
        (paths.part_file, (-1,)),
    ],
)
def test_impossible_names_are_the_callers_mistake(make, args):
    with pytest.raises(ValueError, match="no "):
        make(*args)


@pytest.mark.parametrize("key", ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\\b", "a\nb", "a\0b"])
def test_keys_that_leave_the_store_are_refused(key):
    with pytest.raises(ValueError, match="not a key"):
        paths.validate_key(key)


@pytest.mark.parametrize("key", ["a", "a/b.json", "...", "a b/ü", ".a.tmp", "x[1]*?"])
def test_ordinary_keys_pass(key):
    assert paths.validate_key(key) == key


def test_temporaries_of_our_files_are_ours_and_those_of_others_are_not():
    assert paths.is_checkpoint_file(paths.temporary_name("manifest.json", "0123abcd"))
    assert not paths.is_checkpoint_file(paths.temporary_name("notes.txt", "0123abcd"))
    assert not paths.is_checkpoint_file(".manifest.json.swp")
    assert paths.parse_temporary_name(paths.temporary_name("attempt.json", "0123abcd")) == "attempt.json"


def test_joining_with_the_root_gives_the_key_itself():
    assert paths.join_key("", "a", "b") == "a/b"
    assert paths.join_key("") == ""
