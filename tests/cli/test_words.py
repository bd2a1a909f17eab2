"""How commands put things."""

from __future__ import annotations

import pytest
from looking import said
from test_verify import trained
from told_runs import told
from typer.testing import CliRunner
from walks import Walk

from resume_core.cli import app
from resume_core.cli.words import counted, first_sentence, folded, place
from resume_core.state import Fact


@pytest.mark.parametrize(
    ("num", "word", "text"), [(1, "batch", "1 batch"), (2000, "batch", "2,000 batches"), (0, "attempt", "0 attempts")]
)
def test_one_is_no_plural(num, word, text):
    assert counted(num, word) == text


def test_where_a_checkpoint_was_taken():
    progress = {"step": 5, "batch": 5, "epoch": 1, "epoch_batch": 1}
    assert place(progress) == "step 5, batch 5, epoch 1, 1 batch into it"
    assert place({**progress, "epoch_batch": 3}).endswith("3 batches into it")


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("DivergedError: nan at step 21. Nothing was saved there. A restart", "DivergedError: nan at step 21"),
        ("OSError: [Errno 2] No such file: 'a.b. C'", "OSError: [Errno 2] No such file: 'a.b"),
        ("shapes (3.5 and 4.5) differ.", "shapes (3.5 and 4.5) differ"),
        ("word " * 60, "word " * 23 + "word ..."),
    ],
)  # fmt: skip
def test_of_a_message_the_first_sentence(text, first):
    assert first_sentence(text) == first


def test_ls_says_of_an_error_what_it_was_and_no_more(tmp_path):
    past = (
        (100, 0, "failed", "DivergedError: the loss is nan at step 21. Nothing was saved there. A restart goes on"),
    )
    text = " ".join(said("ls", str(told(tmp_path, past=past)))[1].split())
    assert "failed (DivergedError: the loss is nan at step 21)" in text


@pytest.mark.parametrize(("command", "option"), [("report", "-o"), ("plan", "--html")])
def test_a_page_in_a_folder_that_is_not_there(tmp_path, command, option):
    run = trained(str(tmp_path / "run"), 1)
    code, text = said(command, run, option, str(tmp_path / "none" / "page.html"))
    assert code == 2
    assert "/none does not exist" in text.replace("\n", "")
    assert "tmp" not in text.replace(str(tmp_path), "").replace("\n", "")


def test_an_unknown_protocol_is_answered_with_the_nearest_or_the_usual_ones():
    assert "Did you mean 'memory'?" in " ".join(said("ls", "memry://x")[1].split())
    text = " ".join(said("ls", "foo://x")[1].split())
    assert "fsspec knows no protocol 'foo'. The usual ones are file, s3, gs," in text
    assert len(text) < 200


def test_names_are_whole_on_a_narrow_terminal_and_the_one_tier_is_not_repeated(tmp_path):
    run, near = str(tmp_path / ("long" * 20)), str(tmp_path / ("near" * 20))
    trained(run, 1, scratch=near)
    for options, num_tiers in ((), 0), (("--scratch", near), 1):
        found = CliRunner().invoke(app, ["verify", run, *options], env={"COLUMNS": "80"})
        lines = [line for line in found.stdout.splitlines() if "step-000000001" in line]
        assert lines
        assert all(line.split()[0].endswith("/step-000000001") for line in lines)
        assert ("tier" in found.stdout.splitlines()[0]) == bool(num_tiers)


def test_of_a_diff_surroundings_come_last(tmp_path, monkeypatch):
    runs = []
    for host, num_steps in ("here", 2), ("there", 3):
        monkeypatch.setattr(Walk, "describe", lambda _, host=host: {"seed": Fact(7), "host": Fact(host, "info")})
        runs.append(trained(str(tmp_path / host), num_steps))
    text = said("diff", *runs)[1]
    assert "tensors that changed most" in text
    assert "files that are not the same" in text.partition("surroundings, which alter no run")[0]
    assert "there" in text.partition("surroundings, which alter no run")[2]


@pytest.mark.parametrize(
    ("name", "width", "lines"),
    [
        ("a.b.c", 80, ["a.b.c"]),
        ("model.transformer.layers.0.weight", 20, ["model.transformer.", "layers.0.weight"]),
        ("a.much_longer_than_that.b", 6, ["a.", "much_longer_than_that.", "b"]),
        ("", 20, [""]),
        ("..a..", 3, ["..", "a.."]),
    ],
)
def test_a_long_name_goes_on_in_the_next_line_behind_a_dot(name, width, lines):
    assert folded(name, width).split("\n") == lines
