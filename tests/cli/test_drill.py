"""``exact-resume drill``: what it starts, and what it says of how that went."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from test_verify import trained
from typer.testing import CliRunner

from resume_core.cli import app
from resume_core.errors import ResumeError
from resume_core.options import session_options

SAME = {
    "verdict": "same", "checkpoint": "attempt-0001-ab12/step-000000500", "steps": 3, "reason": "", "rows": [],
    "num_rows": 0, "live": {"num": 9, "num_differ": 0, "differs": []},
}  # fmt: skip
ROW = {"batch": 501, "step": 501, "name": "loss", "saved": "0.5", "current": "0.7", "rank": 0}
DIFFERS = {**SAME, "verdict": "differs", "rows": [ROW], "live": {"num": 9, "num_differ": 1, "differs": ["weights.a"]}}
SCRIPT = """
import json, os, sys, time
result, code = json.loads(sys.argv[1]), int(sys.argv[2])
if result is not None:
    with open(os.environ["EXACT_RESUME_DRILL"], "w") as file:
        json.dump({"first_step": time.time(), **result}, file)
print("trains", os.environ["EXACT_RESUME"], os.environ["EXACT_RESUME_DRILL_URL"], os.environ["EXACT_RESUME_NOTICES"])
time.sleep(float(sys.argv[3]) if len(sys.argv) > 3 else 0)
sys.exit(code)
"""


@pytest.fixture(autouse=True)
def run(tmp_path):
    """One that can be rehearsed."""
    trained(str(tmp_path / "run"))


def drill(tmp_path, result, code=0, *options, sleep="0"):
    command = [sys.executable, "-c", SCRIPT, json.dumps(result), str(code), sleep]
    return CliRunner().invoke(app, ["drill", str(tmp_path / "run"), *options, "--", *command])


@pytest.mark.parametrize(
    ("result", "code", "expected", "said"),
    [
        (SAME, 0, 0, "3 steps after attempt-0001-ab12/step-000000500 are those that it recorded"),
        (DIFFERS, 1, 1, "a restart would not go on as the run did"),
        ({**SAME, "verdict": "not checked"}, 0, 0, "the run had recorded nothing yet"),
        ({**DIFFERS, "verdict": "changed", "reason": "changes"}, 0, 0, "as it may be with changes"),
        ({"verdict": "over", "checkpoint": "attempt-0001-ab12/step-9"}, 0, 0, "nothing is left to train"),
        ({"verdict": "elsewhere", "directory": "/runs/other"}, 1, 2, "the command trains in /runs/other"),
        (None, 3, 1, "the command ended with code 3 before its steps were checked"),
        (None, 0, 2, "the command ended by itself, and has not resumed"),
    ],
)
def test_what_came_of_it_is_said_and_is_the_exit_code(tmp_path, result, code, expected, said):
    done = drill(tmp_path, result, code)
    assert done.exit_code == expected, done.output
    assert said in done.output.replace("\n", " ").replace("  ", " ")
    assert ("first step after" in done.output) == (result is not None)


def test_what_differs_is_listed(tmp_path):
    done = drill(tmp_path, DIFFERS, 1)
    assert "not as the checkpoint has it: weights.a" in done.output
    assert "Code that runs once at a start may have changed what was restored" in done.output
    assert "exact-resume drill" not in done.output
    assert "loss" in done.output
    assert "0.5" in done.output
    assert "0.7" in done.output


def test_json_holds_all_of_it(tmp_path):
    found = json.loads(drill(tmp_path, DIFFERS, 1, "--json").stdout)
    assert (found["verdict"], found["code"], found["url"]) == ("differs", 1, str(tmp_path / "run"))
    assert found["result"]["rows"] == [ROW]
    assert 0 <= found["first_step_s"] <= found["seconds"]


def test_the_command_is_told_what_it_rehearses(tmp_path, capfd):
    (attempt,) = (tmp_path / "run").iterdir()
    drill(tmp_path, SAME)
    drill(tmp_path, SAME, 0, "--checkpoint", "step 2")
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("trains")]
    assert said == [
        f"trains must {tmp_path}/run off",
        f"trains {attempt.name}/step-000000002 {tmp_path}/run off",
    ]


def test_a_checkpoint_that_is_not_there_starts_nothing(tmp_path, capfd):
    done = drill(tmp_path, SAME, 0, "--checkpoint", "77")
    assert (done.exit_code, "nothing was rehearsed: there is no checkpoint '77'" in done.output) == (2, True)
    assert "trains" not in capfd.readouterr().out


def test_a_command_that_takes_too_long_is_killed(tmp_path):
    done = drill(tmp_path, None, 0, "--timeout", "1", sleep="600")
    assert done.exit_code == 1
    assert "the command was killed" in done.output


def test_the_command_ends_with_us_and_with_it_what_it_has_started_elsewhere(tmp_path):
    # as torchrun does: a session of its own, which ends when its parent is asked to
    launcher = (
        "import os, signal, subprocess, sys, time\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "signal.signal(signal.SIGTERM, lambda *_: (child.terminate(), os.waitpid(child.pid, 0), sys.exit(1)))\n"
        f"open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close()\n"
        "time.sleep(600)\n"
    )
    drill = [sys.executable, "-c", "from resume_core.cli import app; app()", "drill", str(tmp_path / "run"), "--"]
    with subprocess.Popen([*drill, sys.executable, "-c", launcher]) as process:
        while not (tmp_path / "ready").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
    assert process.returncode == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text()), 0)


def test_a_plugin_without_a_directory_has_nothing_to_rehearse(tmp_path, monkeypatch):
    monkeypatch.setenv("EXACT_RESUME_DRILL", str(tmp_path / "result"))
    names = ("scratch", "save", "keep", "changes", "preemption", "check", "watch", "storage_options")
    with pytest.raises(ResumeError, match="has no directory, so there is nothing to rehearse"):
        session_options("ResumeCallback", "", directory=None, resume="auto", **dict.fromkeys(names))


def test_a_command_that_is_not_there_is_no_answer(tmp_path):
    done = CliRunner().invoke(app, ["drill", str(tmp_path), "--", "no-such-program-here"])
    assert done.exit_code == 2
    assert "nothing was rehearsed: " in done.output
