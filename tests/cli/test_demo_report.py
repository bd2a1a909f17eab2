"""What the demo prints and writes."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console
from test_demo_compare import run, start

from resume_core.cli.demo.compare import compare
from resume_core.cli.demo.report import Report, print_report, verdict, write_report


def report(interrupted, plugin=True):
    reference = run()
    return Report(plugin, reference, interrupted, compare(reference, interrupted))


EXACT = run(start(1, 3), start(3, 6, seed=1007), start(6, 8, seed=2007))
OTHER = run(start(1, 3), start(3, 8, ids=(0, 1), loss=0.25), parameters="q" * 64)


def printed(made, tmp_path, width=80):
    out = io.StringIO()
    print_report(made, tmp_path, Console(file=out, width=width), seconds=12.3)
    return out.getvalue()


def test_equal_runs_are_called_identical():
    assert report(EXACT).identical
    assert (
        verdict(report(EXACT)) == "Identical to the last bit: the training that was killed twice ended where the other "
        "one did."
    )


def test_the_verdict_names_all_that_differs():
    found = report(OTHER)
    assert not found.identical
    for name in found.differences:
        assert name in verdict(found)
    assert "final parameters (SHA-256)" in found.differences
    assert "learning rate" not in found.differences


def test_a_difference_with_the_plugin_is_to_be_reported():
    assert "please report it" in verdict(report(OTHER))


def test_a_difference_without_the_plugin_is_called_expected():
    assert "expected of stock Lightning" in verdict(report(OTHER, plugin=False))
    assert "please report" not in verdict(report(OTHER, plugin=False))


def test_the_verdict_is_the_last_line_and_the_figures_are_side_by_side(tmp_path):
    lines = printed(report(EXACT), tmp_path, width=200).splitlines()
    assert lines[-1] == verdict(report(EXACT))
    seen = next(line for line in lines if line.startswith("samples seen"))
    assert seen.split() == ["samples", "seen", "16", "16", "same"]
    assert any("demo.png" in line and "12 s" in line for line in lines)


def test_the_table_marks_what_differs(tmp_path):
    lines = printed(report(OTHER), tmp_path).splitlines()
    marks = {line[:30].strip(): line.split()[-1] for line in lines if line.rstrip().endswith(("same", "differs"))}
    assert marks["samples repeated in an epoch"] == "differs"
    assert marks["learning rate"] == "same"


@pytest.mark.parametrize("interrupted", [EXACT, OTHER], ids=["equal", "different"])
def test_the_table_fits_a_terminal_of_80_columns_without_a_cut(tmp_path, interrupted):
    text = printed(report(interrupted), tmp_path)
    assert "…" not in text
    assert "samples repeated in an epoch" in text
    assert "loss at step 3, after kill 1" in text


@pytest.mark.parametrize("plugin", [True, False])
@pytest.mark.parametrize("num_kills", [1, 2, 5])
def test_figures_and_a_picture_are_written(tmp_path, plugin, num_kills):
    starts = [start(1, 2), *(start(n + 1, n + 2) for n in range(1, num_kills)), start(num_kills + 1, 8)]
    made = report(run(*starts), plugin)
    write_report(made, tmp_path, seconds=1.25)
    figures = json.loads((tmp_path / "demo.json").read_text())
    assert figures["identical"] is True
    assert figures["interrupted"]["batches_done_again"] == num_kills
    assert len(figures["interrupted"]["starts"]) == num_kills + 1
    assert figures["uninterrupted"]["samples_missed"] == 0
    assert figures["comparison"][0]["name"] == "global seed of each start"
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
