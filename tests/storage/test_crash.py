"""A failure or a kill at every single operation of a claim, a save and a prune."""

from __future__ import annotations

import signal

import pytest

from resume_core.storage import Lineage, clean, direct, open_store

from .faults import Faults, FaultyStore
from .helpers import OS_MODULES, FaultyOs, Run, candidates, die, in_child, load, tree


@pytest.fixture(autouse=True)
def _past_the_cache(monkeypatch):
    monkeypatch.setattr(direct, "_MIN_BYTES", 1)


def _patch_os(monkeypatch, stand_in) -> None:
    for module in OS_MODULES:
        monkeypatch.setattr(module, "os", stand_in)


def _replace_os(stand_in) -> None:
    """In a process that is not going to need the real one."""
    for module in OS_MODULES:
        module.os = stand_in


def prepared(url):
    """A run with one attempt and one committed checkpoint; returns its store and that checkpoint."""
    store = open_store(url)
    return store, Run(store).save(1, "old")


def second_attempt(store, old) -> None:
    """What is interrupted: a restart that claims, saves, prunes what it went on from, and saves over that."""
    run = Run(store, restored_from=old)
    run.save(2, "new")
    run.prune()
    run.save(3, "end")
    run.prune()


def check_after(store) -> None:
    """Whatever happened: the newest committed checkpoint loads, nothing torn is visible, and the run goes on."""
    refs = candidates(store)
    tags = [load(store, ref) for ref in refs]
    assert tags in (["old"], ["new", "old"], ["new"], ["end", "new"], ["end"])
    assert Lineage(store).damaged() == []
    run = Run(store, restored_from=refs[0])
    assert not clean(run.lineage, run.attempt).failures
    run.save(4, "again")
    assert not run.prune().failures
    store.release()
    assert [load(store, ref) for ref in candidates(store)] == ["again"]
    left = [key for key in tree(store) if not key.endswith("/attempt.json")]
    assert all(key.startswith(f"{run.attempt.name}/step-000000004/") for key in left)
    store.delete_tree("")  # memory is searched key by key


# every third operation in the quick form, each in the long one
nth = pytest.mark.parametrize("nth", [pytest.param(1, id="all", marks=pytest.mark.slow), pytest.param(3, id="some")])


def sweep(interrupted, nth=1, limit=400):
    """Call ``interrupted(number)`` for every ``nth`` operation until one run comes to its end."""
    for number in range(0, limit, nth):
        if not interrupted(number):
            assert number > 50
            return
    raise AssertionError("the save never came to its end")


@nth
@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", ["local", pytest.param("memory", marks=pytest.mark.slow)])
def test_an_error_at_any_operation_of_the_store_loses_nothing(tmp_path, monkeypatch, kind, late, nth):
    _patch_os(monkeypatch, FaultyOs(Faults(-1)))

    def interrupted(number):
        url = tmp_path / str(number) if kind == "local" else f"memory://{tmp_path}/{number}"
        store, old = prepared(url)
        faults = Faults(number)
        try:
            second_attempt(FaultyStore(store, faults, late), old)
        except OSError:
            assert faults.failed
        check_after(store)
        return faults.failed

    sweep(interrupted, nth)


@nth
def test_a_full_disk_at_any_system_call_loses_nothing(tmp_path, monkeypatch, nth):
    def interrupted(number):
        _patch_os(monkeypatch, FaultyOs(Faults(-1)))
        store, old = prepared(tmp_path / str(number))
        faults = Faults(number)
        _patch_os(monkeypatch, FaultyOs(faults))
        try:
            second_attempt(store, old)
        except OSError:
            assert faults.failed
        _patch_os(monkeypatch, FaultyOs(Faults(-1)))
        check_after(store)
        return faults.failed

    sweep(interrupted, nth)


@pytest.mark.slow  # tests/resume/test_every_operation.py kills whole runs everywhere
def test_a_kill_at_any_system_call_loses_nothing(tmp_path, monkeypatch):
    _patch_os(monkeypatch, FaultyOs(Faults(-1)))

    def interrupted(number):
        store, old = prepared(tmp_path / str(number))

        def work():
            _replace_os(FaultyOs(Faults(number, die)))
            second_attempt(store, old)

        code = in_child(work)
        assert code in (0, -signal.SIGKILL)
        check_after(store)
        return code

    sweep(interrupted)


def test_a_kill_at_any_system_call_of_the_first_start_leaves_an_empty_or_a_whole_run(tmp_path, monkeypatch):
    _patch_os(monkeypatch, FaultyOs(Faults(-1)))
    for number in range(200):
        store = open_store(tmp_path / str(number))

        def work(store=store, number=number):
            _replace_os(FaultyOs(Faults(number, die)))
            Run(store).save(0, "first")

        code = in_child(work)
        assert [load(store, ref) for ref in candidates(store)] in ([], ["first"])
        if code == 0:
            return
    raise AssertionError("the save never came to its end")
