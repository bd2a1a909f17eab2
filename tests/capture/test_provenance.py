import json
import os
import platform
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from importlib import metadata
from pathlib import Path

import pytest
import torch

from resume_core.capture import provenance as module
from resume_core.capture.provenance import describe_code, mask_secrets, package_versions, provenance
from resume_core.state import Fact


def git(folder, *args):
    identity = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    return subprocess.run(["git", *identity, *args], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one commit, and a script in it that is being run."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.py").write_text("print('training')\n")
    git(folder, "init", "-q")
    git(folder, "add", "train.py")
    git(folder, "commit", "-q", "-m", "first")
    monkeypatch.setattr(sys, "argv", [str(folder / "train.py"), "--lr=0.1"])
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    return folder


def fake_git(tmp_path, monkeypatch, script):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


# --- commit


def test_the_commit_of_the_scripts_folder_is_recorded(repository):
    commit = git(repository, "rev-parse", "HEAD").strip()
    assert provenance()["git"] == {"commit": commit, "dirty": False, "diff": "none"}


def test_a_changed_file_makes_the_commit_dirty(repository):
    (repository / "train.py").write_text("print('changed')\n")

    assert provenance()["git"]["dirty"] is True


def test_what_a_run_writes_next_to_its_script_does_not_make_it_dirty(repository):
    (repository / "output.log").write_text("loss 1.0")

    assert provenance()["git"]["dirty"] is False


def test_the_folder_of_the_script_counts_and_not_the_working_directory(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert provenance()["git"]["commit"] is not None


def test_without_a_script_the_working_directory_counts(repository, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.chdir(repository)

    assert provenance()["git"]["commit"] is not None


def test_a_repository_without_a_commit_has_none(tmp_path, monkeypatch):
    git(tmp_path, "init", "-q")
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.chdir(tmp_path)

    assert provenance()["git"] == {"commit": None, "dirty": None, "diff": None}


def test_outside_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.chdir(tmp_path)

    assert provenance()["git"] == {"commit": None, "dirty": None, "diff": None}


def test_without_git_there_is_no_commit(repository, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")

    assert provenance()["git"] == {"commit": None, "dirty": None, "diff": None}


def test_a_git_that_fails_is_no_trouble(repository, tmp_path, monkeypatch):
    fake_git(tmp_path, monkeypatch, "echo fatal >&2; exit 128")

    assert provenance()["git"] == {"commit": None, "dirty": None, "diff": None}


def test_a_git_that_hangs_is_waited_for_two_seconds_at_most(repository, tmp_path, monkeypatch):
    fake_git(tmp_path, monkeypatch, "exec sleep 60")
    start = time.monotonic()

    assert provenance()["git"] == {"commit": None, "dirty": None, "diff": None}
    assert time.monotonic() - start < 4


def test_a_status_that_hangs_still_leaves_the_commit(repository, tmp_path, monkeypatch):
    fake_git(tmp_path, monkeypatch, 'case "$1" in rev-parse) echo abc123;; *) exec sleep 60;; esac')
    monkeypatch.setattr(module, "_GIT_TIMEOUT_S", 0.5)

    assert provenance()["git"] == {"commit": "abc123", "dirty": None, "diff": None}


def test_a_working_directory_that_is_gone_is_no_trouble(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.setattr(sys, "argv", ["-c"])
    here = Path.cwd()
    os.chdir(folder)
    folder.rmdir()
    try:
        assert provenance()["git"] == {"commit": None, "dirty": None, "diff": None}
    finally:
        os.chdir(here)


def test_a_process_without_arguments_is_no_trouble(monkeypatch):
    monkeypatch.setattr(sys, "argv", [])

    assert provenance()["command"] == []


def test_the_commit_is_information_for_the_config_diff():
    facts = describe_code({"git": {"commit": "abc", "dirty": None, "diff": "d"}, "script": "s"})

    expected = {"commit": "abc", "dirty": None, "diff": "d", "script": "s"}
    assert facts == {f"code.{name}": Fact(value, "info") for name, value in expected.items()}


def test_what_was_changed_in_tracked_files_has_a_digest(repository):
    found = []
    for text in ("print('one')\n", "print('two')\n", "print('one')\n"):
        (repository / "train.py").write_text(text)
        found.append((provenance()["git"]["diff"], provenance()["script"]))

    assert found[0] == found[2]
    assert all(first != second for first, second in zip(found[0], found[1], strict=True))


def test_an_interpreter_without_a_script_has_no_digest_of_one(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["-c"])

    assert provenance()["script"] is None


# --- the rest


def test_provenance_is_plain_json():
    found = provenance()

    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_host_time_and_versions_are_recorded():
    found = provenance()

    assert found["host"] == platform.node()
    age = datetime.now(timezone.utc) - datetime.fromisoformat(found["time"])
    assert timedelta(0) <= age < timedelta(minutes=1)
    assert found["packages"] == package_versions()


def test_the_versions_are_those_of_what_is_installed():
    versions = package_versions()

    assert versions["python"] == platform.python_version()
    assert versions["torch"] == torch.__version__
    assert versions["numpy"] == metadata.version("numpy")


def test_a_package_that_is_not_installed_is_left_out(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setattr(module, "_version", module._version.__wrapped__)  # not what was read before

    assert package_versions() == {"python": platform.python_version()}


def test_the_home_directory_which_names_the_user_is_left_out(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setattr(sys, "argv", ["/home/somebody/train.py", "--data=/home/somebody/data"])

    assert provenance()["command"] == ["~/train.py", "--data=~/data"]


# --- secrets

SECRET = "s3cr3t-Value+1/x=="


@pytest.mark.parametrize(
    "argument",
    [
        f"--token={SECRET}",
        f"--hf-token={SECRET}",
        f"--hub_token={SECRET}",
        f"--api-key={SECRET}",
        f"--apiKey={SECRET}",
        f"--apikey={SECRET}",
        f"-key={SECRET}",
        f"--password={SECRET}",
        f"--db_passwd={SECRET}",
        f"--password={SECRET} and more, {SECRET}",
        f"--client-secret={SECRET}",
        f"--aws-credentials={SECRET}",
        f"WANDB_API_KEY={SECRET}",
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"AWS_ACCESS_KEY_ID={SECRET}",
        f"HF_TOKEN={SECRET}",
        f"logger.wandb.api_key={SECRET}",
        f"+trainer.logger.token={SECRET}",
        f"s3://user:{SECRET}@host/bucket".replace("/x", "x"),
        f"--store=https://{SECRET}@host/bucket".replace("/x", "x"),
        f"https://host/bucket?sig={SECRET}&sv=2020",
        f"https://host:8080/bucket?a=1&access_token={SECRET}",
        f'--config={{"token": "{SECRET}", "lr": 0.1}}',
        f"Authorization: Bearer {SECRET}",
        f"--header=X-Api-Key: {SECRET}",
        f"--env=A=1,SECRET_KEY={SECRET}",
    ],
)
def test_a_secret_is_masked(argument):
    (masked,) = mask_secrets([argument])

    assert "s3cr3t" not in masked
    assert "***" in masked


@pytest.mark.parametrize("option", ["--token", "--api-key", "--password", "-token", "--wandb_key"])
def test_the_value_after_an_option_that_names_a_secret_is_masked(option):
    assert mask_secrets([option, SECRET, "--lr", "0.1"]) == [option, "***", "--lr", "0.1"]


def test_an_option_that_names_a_secret_but_has_no_value_hides_nothing_else():
    assert mask_secrets(["--use-auth-token", "--lr", "0.1"]) == ["--use-auth-token", "--lr", "0.1"]


@pytest.mark.parametrize(
    "token",
    [
        "hf_AbCdEfGhIjKlMnOp",
        "ghp_0123456789abcdef",
        "github_pat_0123456789abc",
        "glpat-0123456789abcdef",
        "sk-proj-0123456789abcdef",
        "xoxb-0123456789-abcdef",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
    ],
)
@pytest.mark.parametrize("form", ["{}", "--note={}", "prefix {} suffix"])
def test_a_token_of_a_known_form_is_masked_wherever_it_stands(token, form):
    (masked,) = mask_secrets([form.format(token)])

    assert token not in masked
    assert masked == form.format("***")


@pytest.mark.parametrize(
    "argument",
    [
        "train.py",
        "--lr=0.1",
        "--tokenizer=bert-base",
        "--max-tokens=4096",
        "--num_tokens",
        "--author=me",
        "model.layers=12",
        "s3://bucket/run-42",
        "https://host:8080/bucket?version=3",
        "--schedule=cosine:100",
        '{"lr": 0.1, "layers": [1, 2]}',
        "task-sk",
        "",
        "=",
    ],
)
def test_what_is_no_secret_stays_as_it_is(argument):
    assert mask_secrets([argument, "4096"]) == [argument, "4096"]


def test_the_name_of_a_masked_option_and_the_rest_of_a_url_stay():
    assert mask_secrets(["--token=abc", "https://u:p@host/x?token=abc&b=2"]) == [
        "--token=***",
        "https://***@host/x?token=***&b=2",
    ]


def test_a_command_line_of_any_length_is_kept_short_and_costs_little():
    start = time.monotonic()

    masked = mask_secrets(["x" * 200_000] * 5000)

    assert len(masked) == 200
    assert max(map(len, masked)) == 500
    assert time.monotonic() - start < 5
