"""Each change of a run, one at a time: refused with both values and nothing loaded, or gone on from to the same end."""

from __future__ import annotations

import json

import pytest
from config_cases import ONE_FRAMEWORK, PASSED, REFUSED, WARNED, cases_of
from config_jobs import results_of

FRAMEWORKS = ("lightning", "accelerate")
OF_TWO_RANKS = ("batch size", "size of a file", "T_max", "hyperparameter", "nothing", "processor")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Made when the first test asks for it: the results of all cases of a framework and a number of ranks."""
    found = {}

    def results(framework, size, names=()):
        key = framework, size, names
        if key not in found:
            given = list(names or cases_of(framework))
            found[key] = results_of(framework, given, tmp_path_factory.mktemp(f"{framework}{size}"), size)
        return found[key]

    return results


def assert_as_expected(name, result, rank=0):
    if name in PASSED:
        assert result["refused"] == {}, result["message"]
        assert result["is_same_end"]
        assert result["attempts"] == 2
        said = {WARNED[name]} if name in WARNED and rank == 0 else set()  # for all ranks
        warnings = [message for message in result["messages"] if "bit for bit" in message]
        assert len(warnings) == len(said)
        assert all(fact in message for fact in said for message in warnings)
        return
    assert result.get("is_untouched"), "it was not refused, or loaded"
    assert result["attempts"] == 1
    if rank and result["message"].startswith("on rank 0"):  # it has other files, say, and must not begin alone
        return
    expected = REFUSED[name][2]
    named = {fact.replace(".layers", "") for fact in result["refused"]}
    assert expected & named, result["refused"]
    for fact, (saved, current) in result["refused"].items():
        assert saved != current
        table, _, _ = result["message"].partition("What to do:")
        (row,) = [line for line in table.splitlines() if fact in line.split()]
        shown = row.split(fact, 1)[1]
        assert all(value in shown for value in (told(saved), told(current)))


def told(value):
    return value if value == "(absent)" else json.dumps(value, ensure_ascii=False)[:10]


def names_of(framework):
    return [name for name in (*REFUSED, *PASSED) if ONE_FRAMEWORK.get(name, framework) == framework]


ALL = [(framework, name) for framework in FRAMEWORKS for name in names_of(framework)]


def test_there_are_as_many_cases_as_were_promised():
    for framework in FRAMEWORKS:
        assert len(set(names_of(framework)) & set(REFUSED)) >= 30
    assert len(PASSED) >= 10


@pytest.mark.parametrize(("framework", "name"), ALL)
def test_one_change_in_one_process(jobs, framework, name):
    assert_as_expected(name, jobs(framework, 1)[0][name])


@pytest.mark.parametrize("name", OF_TWO_RANKS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_change_of_two_ranks(jobs, framework, name):
    for rank, result in enumerate(jobs(framework, 2, OF_TWO_RANKS)):
        assert_as_expected(name, result[name], rank)


@pytest.mark.slow
@pytest.mark.parametrize(("framework", "name"), ALL)
def test_each_change_of_two_ranks(jobs, framework, name):
    for rank, result in enumerate(jobs(framework, 2)):
        assert_as_expected(name, result[name], rank)
