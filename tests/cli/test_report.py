"""What ``exact-resume report`` reads of a run, and the page that it makes of it."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from told_runs import curve, told
from typer.testing import CliRunner

from resume_core.cli import app
from resume_core.cli.report.curve import points
from resume_core.cli.report.facts import report as read
from resume_core.cli.report.page import as_page
from resume_core.storage import Lineage, LocalStore

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)> & \"'"


class Reader(HTMLParser):
    """Tags with their attributes, the text, and what is in each script."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text, self.scripts = [], [], []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        (self.scripts if self._inside else self.text).append(data)


def report(*arguments):
    found = CliRunner().invoke(app, ["report", *map(str, arguments)], env={"COLUMNS": "200"})
    return found.exit_code, found.stdout, found.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return told(tmp_path_factory.mktemp("told"))


@pytest.fixture(scope="module")
def page(run):
    return as_page(read(str(run)))


def test_attempts_with_what_they_lost_and_what_was_trained_again(run):
    code, out, _ = report(run, "--json")
    found = json.loads(out)
    assert code == 0
    one, two, three, four = found["attempts"]
    assert [each["replayed"] for each in (one, two, three, four)] == [[400, 430], [1000, 1010], [1200, 1240], None]
    assert [each["lost_batches"] for each in (one, two, three, four)] == [30, 10, 40, 0]
    assert found["lost_s"] == pytest.approx(80 * 1.5)
    assert (two["cause"], two["why"], one["cause"]) == ("preempted", "SIGTERM", "killed")
    seed = {"name": "seed", "severity": "run", "saved": 7, "current": 1007}
    assert two["accepted"] == [{**seed, "is_applied": False}]  # told by its name, as an older attempt.json does not say
    assert (four["check"]["verdict"], one["check"]) == ("same", None)
    assert found["interruptions"] == 2  # killed, preempted; the error of CUDA is none
    assert 0 < found["goodput"] < 1
    assert len(found["saves"]) == 8 + 12 + 4 + 10


def test_the_times_add_up_to_the_wall_time(run):
    found = read(str(run))
    rest = found.wall_s - found.kept_s - found.lost_s - found.starting_s - found.away_s
    assert rest == pytest.approx(0, abs=1)


def test_points_come_from_checkpoints_and_from_histories(run):
    lineage = Lineage(LocalStore(run)).glance()
    attempt = lineage.attempts()[0].name
    found = {point.step: point.value for point in points(lineage, attempt, None) if point.name == "train_loss"}
    assert found == {step: pytest.approx(curve(step)) for step in range(50, 401, 50)}

    class Past:
        losses = ((1, 2.5), (2, float("nan")), (3, 1.5))

    losses = [point for point in points(lineage, attempt, Past()) if point.name == "loss"]
    assert [(point.step, str(point.value)) for point in losses] == [(1, "2.5"), (2, "nan"), (3, "1.5")]


def test_a_metric_that_a_script_calls_loss_is_another_curve_than_the_losses_of_steps(run, monkeypatch):
    header = {"progress": {"step": 2}, "metrics": {"loss": 9.0}}
    monkeypatch.setattr(sys.modules[points.__module__], "_headers", lambda *_: [header])

    class Past:
        losses = ((1, 2.5), (2, 2.0))

    lineage = Lineage(LocalStore(run)).glance()
    found = [(point.name, point.step, point.value) for point in points(lineage, lineage.attempts()[0].name, Past())]
    assert found == [("loss", 1, 2.5), ("loss", 2, 2.0), ("loss (logged)", 2, 9.0)]


def test_the_page_marks_what_was_accepted_and_is_not_applied(page):
    text = " ".join(Reader(page).text)
    assert "the run goes on with" in text
    assert "the saved value" in text
    assert "what this start had" not in text


def test_the_page_needs_nothing_else(page):
    for tag, attributes in Reader(page).tags:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            assert name not in ("href", "src", "srcset", "data", "action"), (tag, name, value)
    assert "default-src 'none'" in page
    styles = page[page.index("<style>") : page.index("</style>")]
    assert not re.search(r"@import|url\(", styles)


def test_what_scripts_read_is_json(page):
    scripts = Reader(page).scripts
    assert len(scripts) == 3
    found = json.loads(scripts[0])
    assert set(found) == {"timeline", "curve", "saves"}
    assert all(chart["spec"]["width"] == "container" for chart in found.values())
    assert {row["name"] for row in found["curve"]["rows"]["kept"]} >= {"train_loss", "val_accuracy"}
    assert len(found["curve"]["rows"]["spans"]) == 3


def test_each_colour_has_a_value_in_light_and_in_dark(page):
    named = set(re.findall(r'"--([a-z]+)"', page)) | set(re.findall(r"var\(--([a-z]+)\)", page))
    assert {"kept", "lost", "ink"} <= named
    styles = page[page.index("<style>") : page.index("</style>")]
    for part in styles.split("@media (prefers-color-scheme: dark)"):
        assert named <= set(re.findall(r"--([a-z]+):", part))


def test_markup_in_names_is_text(tmp_path):
    run = told(tmp_path, name="<b>run", loss=HOSTILE, why=HOSTILE)
    written = as_page(read(str(run)))
    found = Reader(written)
    assert [tag for tag, _ in found.tags].count("script") == 3
    assert "img" not in {tag for tag, _ in found.tags}
    assert HOSTILE in "".join(found.text)
    rows = json.loads(found.scripts[0])["curve"]["rows"]
    assert HOSTILE in {row["name"] for row in rows["kept"]}
    assert HOSTILE not in json.dumps(json.loads(found.scripts[0])["curve"]["spec"])  # and so in no expression


def test_of_a_long_reason_the_first_sentence_is_shown_and_all_of_it_told(tmp_path):
    why = (
        "CorruptCheckpointError: nothing can be used. Restore one of them, or begin anew in another directory "
        + "x" * 99
    )
    written = as_page(read(str(told(tmp_path, why=why))))
    shown = "".join(Reader(written).text)
    assert "CorruptCheckpointError: nothing can be used" in shown
    assert "Restore one" not in shown
    assert f'title="{why}"' in written


def test_a_page_is_replaced_by_a_newer_one_and_nothing_else_is(run, tmp_path):
    out = tmp_path / "report.html"
    assert report(run, "-o", out)[0] == 0
    first = out.read_text(encoding="utf-8")
    assert report(run, "-o", out)[0] == 0
    assert first.startswith("<!doctype html>")
    other = tmp_path / "thesis.html"
    other.write_text("years of work")
    code, _, said = report(run, "-o", other)
    assert (code, "--force" in said, other.read_text()) == (2, True, "years of work")
    assert report(run, "-o", other, "--force")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "thesis.html"]


def test_a_page_that_cannot_be_written_leaves_nothing(run, tmp_path):
    code, _, said = report(run, "-o", tmp_path / "none" / "report.html")
    assert (code, "no report" in said, list(tmp_path.iterdir())) == (2, True, [])


def test_a_missing_extra_is_named_and_json_needs_none(run, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vl_convert" else find(name))
    code, _, said = report(run, "-o", tmp_path / "report.html")
    assert (code, said) == (2, 'the page needs vl-convert-python: pip install "exact-resume[report]"\n')
    assert report(run, "--json")[0] == 0


def test_what_cannot_be_read_is_named(tmp_path):
    run = told(tmp_path)
    folders = sorted(run.iterdir())
    folders[1].joinpath("history.json").write_bytes(b"{}")
    folders[2].joinpath("check.json").write_bytes(b"{}")
    next(folders[0].glob("step-*/manifest.json")).write_bytes(b"{}")
    found = read(str(run))
    assert len(found.notes) == 2
    assert found.attempts[1].started is None
    assert "left no history" in as_page(found)


def test_a_run_that_has_only_begun(tmp_path):
    store = LocalStore(tmp_path / "run")
    Lineage(store).claim()
    found = read(store.url)
    assert found.goodput is None
    assert "Nothing was logged" in as_page(found)


def test_a_directory_without_a_run(tmp_path):
    code, _, said = report(tmp_path, "-o", tmp_path / "report.html")
    assert (code, "there is no attempt in it" in said, list(tmp_path.iterdir())) == (2, True, [])


def test_nothing_is_written_to_the_run(run):
    before = {path: path.stat().st_mtime_ns for path in Path(run).glob("**/*")}
    report(run, "--json")
    assert before == {path: path.stat().st_mtime_ns for path in Path(run).glob("**/*")}


def test_what_ended_an_attempt_stands_where_a_phone_shows_it(page):
    heads = re.search(r"<th>attempt</th>(.*?)</tr>", page)
    assert heads is not None
    assert heads[0].startswith("<th>attempt</th><th>ended</th>")
