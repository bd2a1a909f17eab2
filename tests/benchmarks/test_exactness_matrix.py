"""The benchmark that sets exactness against the stock tools: real kills, and every mark from what was seen."""

from __future__ import annotations

import json
import sys

import exactness
import harness  # noqa: F401  # its server has the frameworks imported
import pytest
from exact import table
from exact.compare import Trained, observe


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Runs the script; its rows, by tool."""

    def run(*arguments):
        out = tmp_path / "found.json"
        monkeypatch.setattr(sys, "argv", ["exactness", "--quick", "--out", str(out), *arguments])
        exactness.main()
        return {row["tool"]: row["cases"] for row in json.loads(out.read_text())["rows"]}

    return run


def test_stock_lightning_repeats_samples_and_ours_does_not(measured):
    found = measured("--tools", "lightning", "lightning-ours", "--cases", "plain")
    stock, ours = found["lightning"]["plain"], found["lightning-ours"]["plain"]
    assert stock["begins_at"] == ours["begins_at"] == [22]
    assert stock["repeated"] == stock["missed"] > 0
    assert stock["same"]["rate"] == 26
    assert not stock["parameters"]
    assert ours["same"] == dict.fromkeys(ours["same"], 26)
    assert (ours["repeated"], ours["missed"], ours["parameters"]) == (0, 0, True)


def line(done, ids, loss="a"):
    facts = dict.fromkeys(("inputs", "dropout"), "same")
    return {"done": done, "epoch": done // 2, "ids": ids, "rate": 0.1, "loss": loss, **facts}


def test_what_was_lost_repeated_and_missed_is_counted_by_the_epochs_of_the_uninterrupted_run():
    whole = Trained(0, [[line(0, [0]), line(1, [1]), line(2, [1]), line(3, [0])]], ["p"])
    killed = Trained(0, [[line(0, [0]), line(1, [1]), line(2, [1])]], [])
    again = Trained(1, [[line(1, [0]), line(2, [1]), line(3, [0], "b")]], ["q"])
    found = observe(whole, [killed, again])
    assert (found.begins_at, found.lost, found.after) == ([1], 2, 3)
    assert found.same == {"ids": 2, "inputs": 3, "dropout": 3, "rate": 3, "loss": 2}
    assert (found.repeated, found.missed, found.next_epoch) == (1, 1, (2, 2))
    assert not found.parameters
    assert not found.is_exact


def test_a_damaged_file_that_is_used_to_no_effect_counts_for_nobody():
    outcomes = [("a", "torn", "passed over"), ("a", "flipped", "no effect")]
    assert table._damaged(outcomes) == "✓ all passed over"
    assert table._damaged([*outcomes, ("b", "flipped", "silent")]) == "1 passed over, 1 silent"
