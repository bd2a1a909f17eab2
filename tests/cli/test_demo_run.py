"""How the demo starts, kills and compares, with a fake training in place of the real one."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from fake_training import NUM_BATCHES
from rich.console import Console
from test_demo_compare import step

from resume_core.cli.demo import Settings, processes, run, run_demo
from resume_core.cli.demo.frameworks import FRAMEWORKS
from resume_core.cli.demo.processes import Children, DemoError, Job
from resume_core.cli.demo.run import Aim, aims, last_save

FAKE = dataclasses.replace(FRAMEWORKS["lightning"], module="fake_training")


@pytest.fixture
def fake(monkeypatch):
    """Runs the demo; gives the exit code and what was printed."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))

    def demo(out, fault="", plugin=True, epochs=3, kills=2):
        monkeypatch.setenv("FAKE", fault)
        text = io.StringIO()
        console = Console(file=text, width=1000)
        return run_demo(Settings(plugin, out, 7, epochs, kills, FAKE), console), text.getvalue()

    return demo


def figures(out):
    return json.loads((out / "demo.json").read_text())


@pytest.mark.parametrize("plugin", [True, False])
def test_equal_runs_give_exit_code_0(tmp_path, fake, plugin):
    code, text = fake(tmp_path / "out", plugin=plugin)
    assert code == 0, text
    assert text.splitlines()[-1].startswith("Identical to the last bit")
    assert text.count("SIGKILL") == 2


def test_runs_that_differ_give_exit_code_1(tmp_path, fake):
    code, text = fake(tmp_path, "forget")
    assert code == 1, text
    assert text.splitlines()[-1].startswith("Not identical")
    assert "forget" not in text
    assert figures(tmp_path)["interrupted"]["samples_missed"] > 0


def test_every_kill_is_amid_an_epoch_of_its_own_and_loses_some_batches(tmp_path, fake):
    fake(tmp_path, epochs=4, kills=3)
    starts = figures(tmp_path)["interrupted"]["starts"]
    ends = [start["ends_at"] for start in starts[:-1]]
    assert len({(end - 1) // NUM_BATCHES for end in ends}) == 3
    assert all(end % NUM_BATCHES for end in ends)
    assert [start["seed"] for start in starts] == [7, 1007, 2007, 3007]
    assert all(after["begins_at"] <= end - 10 for end, after in zip(ends, starts[1:], strict=True))


@pytest.fixture
def child(tmp_path, monkeypatch):
    """A fake training of 3 epochs that has begun."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("FAKE", "")
    with Children() as children:
        child = children.start(Job("fake_training", str(tmp_path / "run"), "start-1", True, 7, 3, 5))
        child.wait = lambda *condition: children.wait(child, *condition)
        yield child


def test_a_process_that_is_held_neither_trains_nor_saves_until_it_goes_on(child):
    child.wait(lambda: len(child.lines) > 20)
    with child.held():
        seen, saved = len(child.lines), last_save(child.folder)
        time.sleep(0.1)  # 20 batches and some saves, if it did
        child.update()
        assert (len(child.lines), last_save(child.folder)) == (seen, saved)
    assert child.wait(lambda: len(child.lines) > seen)
    assert not child.wait()
    assert len(child.lines) == 1 + 3 * NUM_BATCHES


def test_a_process_that_is_held_can_be_killed(child):
    child.wait(lambda: len(child.lines) > 20)
    with child.held():
        child.kill()
    assert child.killed
    assert not child.running


def test_how_a_process_ended_is_known_after_it_was_held(child):
    os.kill(child._process.pid, signal.SIGTERM)
    os.waitid(os.P_PID, child._process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has been told
    with child.held():
        assert not child.running
    with pytest.raises(DemoError, match="exit code -15"):
        child.wait()


def test_stock_lightning_is_given_the_same_seed_each_time(tmp_path, fake):
    fake(tmp_path, plugin=False)
    assert {start["seed"] for start in figures(tmp_path)["interrupted"]["starts"]} == {7}


def test_a_training_that_fails_shows_the_end_of_its_log_and_gives_exit_code_2(tmp_path, fake):
    code, text = fake(tmp_path, "crash")
    assert code == 2
    assert "RuntimeError: the fake training fails on purpose" in text
    assert "interrupted, start-2 ended with exit code 1" in text
    assert str(tmp_path / "interrupted" / "start-2.log") in text


def test_a_training_that_cannot_be_killed_in_time_gives_exit_code_2(tmp_path, fake):
    code, text = fake(tmp_path, "hurry", epochs=1, kills=1)
    assert code == 2
    assert "ended before it could be killed" in text


def test_what_nobody_foresaw_gives_exit_code_2_and_a_traceback(tmp_path, fake, monkeypatch):
    monkeypatch.setattr(run, "compare", lambda *runs: 1 / 0)
    code, text = fake(tmp_path, epochs=1, kills=1)
    assert code == 2
    assert "ZeroDivisionError" in text


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_stopping_the_demo_ends_its_processes(tmp_path, fake, monkeypatch, name):
    started = []
    start = Children.start
    monkeypatch.setattr(Children, "start", lambda *args: started.append(start(*args)) or started[-1])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    threading.Timer(0.5, os.kill, (os.getpid(), getattr(signal, name))).start()
    before = signal.getsignal(signal.SIGTERM)
    code, text = fake(tmp_path, "hang")
    assert code == 130
    assert "stopped" in text
    assert len(started) == 2
    for child in started:
        with pytest.raises(ProcessLookupError):
            os.kill(child._process.pid, 0)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_training_that_takes_too_long_is_given_up(tmp_path, fake, monkeypatch):
    monkeypatch.setattr(processes, "_DEADLINE_S", 0.2)
    begin = time.monotonic()
    code, text = fake(tmp_path, "hang")
    assert code == 2
    assert "took longer than 0.2 s" in text
    assert time.monotonic() - begin < 10


def test_a_second_demo_replaces_what_the_first_wrote_and_nothing_else(tmp_path, fake):
    assert fake(tmp_path, epochs=1, kills=1)[0] == 0
    (tmp_path / "notes.txt").write_text("mine")
    leftover = tmp_path / "interrupted" / "checkpoints" / "leftover"
    leftover.touch()
    assert fake(tmp_path, epochs=1, kills=1)[0] == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not leftover.exists()


@pytest.mark.parametrize("name", ["interrupted", "demo.png"])
def test_a_folder_with_files_by_those_names_that_no_demo_wrote_is_left_alone(tmp_path, fake, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "thesis.txt").write_text("mine")
    code, text = fake(tmp_path)
    assert code == 2
    assert f"holds {name}, and no demo wrote that" in text
    assert (tmp_path / name / "thesis.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_link_in_the_folder_is_removed_without_what_it_points_to(tmp_path, fake):
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    assert fake(out, epochs=1, kills=1)[0] == 0
    (out / "interrupted").rename(elsewhere)
    (out / "interrupted").symlink_to(elsewhere)
    assert fake(out, epochs=1, kills=1)[0] == 0
    assert (elsewhere / "start-1.log").exists()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, fake):
    (tmp_path / "file").touch()
    code, text = fake(tmp_path / "file" / "out")
    assert code == 2
    assert "cannot be written" in text


def test_two_demos_do_not_share_a_folder(tmp_path, fake):
    from resume_core.cli.demo.folder import demo_folder

    with demo_folder(tmp_path):
        code, text = fake(tmp_path)
    assert code == 2
    assert "another demo is running" in text


def test_the_callers_own_settings_do_not_reach_the_training(monkeypatch):
    for name in ("EXACT_RESUME", "PL_GLOBAL_SEED", "SLURM_NTASKS"):
        monkeypatch.setenv(name, "1")
    found = processes._environment()
    ours = {name: value for name, value in found.items() if name.startswith(("EXACT_RESUME", "PL_", "SLURM_"))}
    assert ours == {"EXACT_RESUME_NOTICES": "off"}  # the demo takes its machine away itself
    assert found["OMP_NUM_THREADS"] == "1"
    assert found["PATH"] == os.environ["PATH"]


def test_kills_are_spread_over_different_epochs():
    for epochs in range(1, 12):
        for kills in range(1, epochs + 1):
            found = list(aims(epochs, kills))
            assert len({aim.epoch for aim in found}) == kills
            assert all(aim.epoch < epochs and 0 < aim.part < 0.8 for aim in found)


@pytest.mark.parametrize(
    ("last", "saved", "expected"),
    [
        (step(1, step=150, epoch=1, batch=49), 125, True),
        (step(1, step=150, epoch=1, batch=49), 145, False),  # hardly anything would be lost
        (step(1, step=150, epoch=1, batch=49), 100, False),  # saved at the epoch's boundary
        (step(1, step=120, epoch=1, batch=19), 105, False),  # too early in the epoch
        (step(1, step=198, epoch=1, batch=97), 175, False),  # too close to its end
        (step(1, step=50, epoch=0, batch=49), 25, False),  # an earlier epoch
        (step(1, step=250, epoch=2, batch=49), 225, True),  # a later one will do
    ],
)
def test_the_moment_to_kill(last, saved, expected):
    assert Aim(1, 0.3).hit(last, saved, num_batches=100) is expected


def test_only_committed_checkpoints_count_as_saved(tmp_path):
    assert last_save(tmp_path) == 0
    for folder in ("attempt-0001-aaaa/step-000000050", "attempt-0001-aaaa/step-000000075.2", "attempt-0002-bbbb/junk"):
        (tmp_path / "checkpoints" / folder).mkdir(parents=True)
        (tmp_path / "checkpoints" / folder / "manifest.json").touch()
    (tmp_path / "checkpoints" / "attempt-0002-bbbb" / "step-000000100").mkdir()
    assert last_save(tmp_path) == 75


def test_a_process_that_dies_by_a_signal_of_others_is_an_error(tmp_path, fake, monkeypatch):
    monkeypatch.setenv("FAKE", "hang")
    with Children() as children:
        child = children.start(Job("fake_training", str(tmp_path / "run"), "start-1", True, 7, 1, 10))
        os.kill(child._process.pid, signal.SIGKILL)
        with pytest.raises(DemoError, match="exit code -9"):
            children.wait(child)
