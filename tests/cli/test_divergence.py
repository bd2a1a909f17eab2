"""What commands say of a run whose loss was lost: on the page of a report, in ``ls`` and in ``show``."""

from __future__ import annotations

import json
import math

import pytest
from looking import said as said_of
from looking import told as told_of
from test_verify import trained
from told_runs import curve
from told_runs import told as told_run
from typer.testing import CliRunner

from resume_core.cli import app
from resume_core.cli.report.charts import charts
from resume_core.cli.report.facts import report
from resume_core.cli.report.page import as_page, headline
from resume_core.storage import Lineage, LocalStore
from resume_core.storage.histories import put_history
from resume_core.storage.reports import read_report

NAN_AT = 121
PAST = ((430, 12, None, None), (300, 0, "finished", None))


def said(command, *arguments):
    code, text = said_of(command, *arguments)
    return code, " ".join(text.split())


def told(command, *arguments):
    return told_of(command, *arguments, code=0)


def lose(root, losses_of):
    """Change what the attempts of a run tell of their losses."""
    store = LocalStore(root)
    for number, attempt in enumerate(Lineage(store).attempts()):
        fields = dict(read_report(store, attempt.name, "history.json", "history").values)
        fields["losses"] = losses_of(number, fields["losses"])
        sealed = ("format", "kind", "digest", "attempt")
        put_history(store, attempt.name, {name: value for name, value in fields.items() if name not in sealed})
    return root


def lost_from(step):
    return lambda number, losses: [[each, "nan" if each >= step else value] for each, value in losses]


@pytest.fixture
def run(tmp_path):
    """It has lost its loss in the first attempt, and the second went on from behind that."""
    return lose(told_run(tmp_path, past=PAST), lost_from(NAN_AT))


def test_ls_says_since_when_and_what_was_saved_before(run):
    code, text = said("ls", str(run))
    assert code == 0
    first = Lineage(LocalStore(run)).attempts()[0].name
    assert text.count("the loss is NaN from step 121 on; the last save before it is step 100") == 2
    newer, older = told("ls", str(run))["attempts"]
    assert newer["diverged"] == older["diverged"]  # the line is followed to where it was lost
    assert older["diverged"] | {"text": ""} == {
        "step": 121,
        "value": "NaN",
        "last_save": f"{first}/step-000000100",
        "text": "",
    }


def test_a_loss_that_came_back_is_not_told_of(tmp_path):
    back = lose(told_run(tmp_path, past=PAST), lambda _, losses: [[losses[0][0], "inf"], *losses[1:]])
    assert [one["diverged"] for one in told("ls", str(back))["attempts"]] == [None, None]
    assert "NaN" not in headline(report(str(back)))
    gaps = [(gap.begin, gap.end, gap.value) for gap in report(str(back)).gaps]
    assert gaps == [(1, 1, "infinite"), (401, 401, "infinite")]


def test_a_run_that_went_back_before_it_is_sound(tmp_path):
    run = lose(
        told_run(tmp_path, past=PAST),
        lambda number, losses: losses if number else [*losses[:-1], [losses[-1][0], "nan"]],
    )
    newer, older = told("ls", str(run))["attempts"]
    assert newer["diverged"] is None
    assert older["diverged"]["step"] == 426
    assert older["diverged"]["last_save"].endswith("step-000000400")


def test_the_page_marks_the_place_and_goes_on_to_the_end(run):
    found = report(str(run))
    assert headline(found).endswith("finished, loss NaN from step 121 on")
    assert all(math.isfinite(point.value) for point in found.points)
    json.dumps(found.as_json(), allow_nan=False)
    rows = charts(found)["curve"]["rows"]["gaps"]
    assert [(row["begin"], row["end"], row["what"]) for row in rows] == [(121, 426, "NaN"), (401, 696, "NaN")]
    pytest.importorskip("jinja2")
    pytest.importorskip("vl_convert")
    assert as_page(found).count("the loss is NaN from step 121 on; the last save before it is step 100") == 2


def test_a_loss_that_was_never_a_number_has_a_curve_too(tmp_path):
    pytest.importorskip("vl_convert")
    run = lose(told_run(tmp_path, past=PAST[-1:], loss="error"), lost_from(0))
    assert 'option value="loss"' in as_page(report(str(run)))
    assert "no save from before it is left" in said("ls", str(run))[1]


def test_show_says_it_of_a_checkpoint_behind_that_step_alone(tmp_path):
    run = trained(str(tmp_path / "run"))
    lose(tmp_path / "run", lambda number, losses: [[1, curve(1)], [2, curve(2)], [3, "nan"]])
    assert "but the loss is NaN from step 3 on; the last save before it is step 2" in said("show", run)[1]
    assert told("show", run)["diverged"]["step"] == 3
    assert told("show", run, "2")["diverged"] is None
    assert "NaN" not in CliRunner().invoke(app, ["show", run, "2"]).stdout
