"""A kill at any operation on the disk, and halfway through it, changes nothing in how the run ends."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from harness import Job, assert_same_run, committed, start, train
from kills import Death, deaths, die, finish, newest_committed
from walks import Start

from resume_core.storage.paths import is_report

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="/proc tells which file a call is about")


def nth(of_all, of_some):
    """Every n-th operation: all of them in the long tests, and a few in the others."""
    long = [pytest.mark.slow, pytest.mark.timeout(1800)]
    cases = [pytest.param(of_all, id="all", marks=long), pytest.param(of_some, id="some")]
    return pytest.mark.parametrize("nth", cases)


def leftovers(directory):
    """What lies there beside committed checkpoints and the attempts' own files."""
    whole = {path.parent for path in directory.glob("attempt-*/step-*/manifest.json")}
    found = [path for path in directory.rglob("*") if path.is_file() and path.parent not in whole]
    return [path for path in found if path.name != "attempt.json" and not is_report(path.name)]


def check_resumed(killed, expected):
    """The same command again goes on from the newest committed checkpoint, and ends as if nothing had happened."""
    newest = newest_committed(killed.directory)
    again = killed.but(name="again")
    found = finish(again)
    assert [rank["end"] for rank in found] == expected
    assert {rank["restored"] and rank["restored"][0] for rank in found} == {newest}
    if newest is None or newest_committed(killed.directory).split("/")[0] != newest.split("/")[0]:
        assert leftovers(killed.directory) == []


def of_whole_run(tmp_path, **changes):
    whole = Start(tmp_path / "whole", **changes)
    found = finish(whole)
    return [rank["end"] for rank in found], [rank["operations"] for rank in found]


def sweep(killed, all_deaths, expected, *, rank=0, before=None):
    """Die once in each way, and go on."""
    for death in all_deaths:
        shutil.rmtree(killed.root, ignore_errors=True)
        if before is not None:
            shutil.copytree(before, killed.directory)
        if not die(killed, death, rank):
            # rank 0 looks for the parts of others as often as it has to, so its operations are not always as many
            assert killed.num_ranks > 1
            assert death.number > len(all_deaths) // 2
            continue
        try:
            check_resumed(killed, expected)
        except BaseException:
            print(f"rank {rank} was killed at {death}")
            raise


@nth(1, 71)
def test_a_kill_anywhere_in_the_first_start_changes_nothing(tmp_path, nth):
    expected, (operations,) = of_whole_run(tmp_path)
    assert {"fallocate", "fsync", "link", "mkdir", "open", "pwrite", "replace", "rmdir", "unlink"} <= {*operations}
    assert len(operations) > 150
    sweep(Start(tmp_path / "cut"), deaths(operations)[::nth], expected)


@nth(1, 41)
def test_a_kill_anywhere_in_a_start_that_goes_on_after_a_kill_changes_nothing(tmp_path, nth):
    expected, (operations,) = of_whole_run(tmp_path)
    first = Start(tmp_path / "first")
    die(first, Death(len(operations) // 2, halfway=True))
    shutil.copytree(first.directory, tmp_path / "second" / "run")
    (second,) = finish(Start(tmp_path / "second"))
    assert second["end"] == expected[0]
    assert second["restored"] is not None
    sweep(Start(tmp_path / "cut"), deaths(second["operations"])[::nth], expected, before=first.directory)


@pytest.mark.parametrize("rank", [0, 1])
@nth(1, 70)
def test_a_kill_of_either_rank_anywhere_changes_nothing(tmp_path, nth, rank):
    expected, operations = of_whole_run(tmp_path, num_ranks=2, num_steps=1)
    sweep(Start(tmp_path / "cut", num_ranks=2, num_steps=1), deaths(operations[rank])[::nth], expected, rank=rank)


@pytest.mark.parametrize("is_wiped", [False, True], ids=["scratch left", "scratch gone"])
@nth(1, 97)
def test_a_kill_anywhere_with_a_scratch_changes_nothing(tmp_path, nth, is_wiped):
    def over_a_scratch(name):
        scratch = tmp_path / name / "scratch"
        return Start(tmp_path / name, arguments={"scratch": scratch}, folders=(scratch,))

    (whole,) = finish(over_a_scratch("whole"))
    assert len(whole["operations"]) > 250
    for death in deaths(whole["operations"])[::nth]:
        killed = over_a_scratch("cut")
        shutil.rmtree(killed.root, ignore_errors=True)
        if not die(killed, death, 0):
            # promotions overtake one another as it happens, so operations are not always as many
            assert death.number > len(whole["operations"]) // 2
            continue
        if is_wiped:
            shutil.rmtree(killed.folders[0], ignore_errors=True)
        (found,) = finish(killed.but(name="again"))
        assert found["end"] == whole["end"], death
        if found["restored"] is None or found["restored"][1] < killed.num_steps:  # it has saved
            assert leftovers(killed.directory) == [], death
            assert leftovers(killed.folders[0]) == [], death


@nth(8, 210)
def test_a_kill_in_a_save_of_a_trainer_changes_nothing(tmp_path, nth):
    whole = Job(str(tmp_path), "whole", str(tmp_path / "whole"), epochs=1, keep=1, settle=True)
    counted = whole.but(name="counted", directory=str(tmp_path / "counted"), options={"dies_at": None})
    reference = whole, train(whole)
    assert train(counted) == reference[1]
    for death in deaths(json.loads(counted.path("operations").read_text()))[1::nth]:
        name = f"{death.number}-{death.halfway}"
        first = whole.but(name=name, directory=str(tmp_path / name), options={"dies_at": [death.number, death.halfway]})
        process = start(first)
        process.join()
        assert process.exitcode == -9, (death, process.exitcode)
        newest = newest_committed(tmp_path / name)
        second = whole.but(name=f"{name}-again", directory=first.directory, seed=8 if committed(first) else 7)
        assert_same_run(reference, train(second), first, second)
        said = second.path("log").read_text()
        assert (f"from {newest}" in said) if newest else ("a new run" in said)
