"""The page of `exact-resume plan`: one file that needs nothing else, and in which nothing is taken for markup."""

from __future__ import annotations

import importlib.util
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest
from planned_runs import Attempt, directory
from test_plan import invoke

from resume_core.cli.plan.advice import make_plan
from resume_core.cli.plan.inputs import Given, resolve
from resume_core.cli.plan.known import look
from resume_core.cli.plan.page import as_page


class Reader(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A plan with all there is to show."""
    run = directory(tmp_path_factory.mktemp("page"), Attempt(0, 2), Attempt(2.1, 5), Attempt(5.1, 6), num_ranks=1)
    given = Given(price=2.5, milestones_per_day=4, thin_after=5, storage_price=0.02, gpus=8, mtbf_s=3600)
    return as_page(make_plan(resolve(given, look(str(run), {}))))


def picture(page):
    return page[page.index("<svg") : page.index("</svg>") + len("</svg>")]


def test_the_page_needs_nothing_else(page):
    read = Reader(page)
    for tag, attributes in read.tags:
        assert tag not in ("script", "link", "iframe", "img", "object", "embed", "base", "form"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            if name.endswith(("href", "src", "srcset", "data", "action")):
                assert value.startswith("#"), (tag, name, value)
    assert not re.search(r"@import|url\((?!#)|javascript:|expression\(", page)
    addresses = set(re.findall(r"https?://[^\"'\s<]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_the_page_is_for_phones_and_for_light_and_dark(page):
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in page
    assert "@media (prefers-color-scheme: dark)" in page
    named = set(re.findall(r"var\(--([a-z]+)\)", page))
    assert {"saving", "again", "restarting", "faint"} <= named
    for part in page.split("@media (prefers-color-scheme: dark)"):  # each colour has a value in both
        assert named <= set(re.findall(r"--([a-z]+):", part))


def test_the_picture_is_drawn_in_the_colours_of_the_page_and_as_wide_as_its_place(page):
    svg = picture(page)
    root = ElementTree.fromstring(svg)
    assert "viewBox" in root.attrib
    assert not {"width", "height"} & set(root.attrib)
    assert not re.search(r"#0[0-9]0[0-9]0[0-9]", svg)
    assert "currentColor" in svg
    texts = ["".join(each.itertext()).strip() for each in root.iter() if each.tag.endswith("}text")]
    assert any(text.startswith("plan: ") for text in texts)
    assert any(text.startswith("now: ") for text in texts)
    assert "training again what was lost" in texts


def test_one_plan_is_one_page():
    made = make_plan(resolve(Given(parameters=10**9), None))
    assert as_page(made) == as_page(made)


def test_the_page_says_what_the_terminal_says(page):
    text = " ".join(" ".join(Reader(page).text).split())
    for said in ("Save every 6 min.", "SaveEvery(minutes=", "weights of older ones", "in money, a month", "assumed"):
        assert said.replace("Save every 6 min.", "Save every ") in text


def test_markup_in_a_name_is_text(tmp_path):
    named = tmp_path / "<script>alert(1)</script>&\"'"
    run = directory(named)
    (tmp_path / "out").mkdir()
    result = invoke(run, "--html", tmp_path / "out" / "plan.html")
    assert result.exit_code == 0, result.output
    written = (tmp_path / "out" / "plan.html").read_text(encoding="utf-8")
    read = Reader(written)
    assert "script" not in {tag for tag, _ in read.tags}
    assert "<script>alert(1)</script>&\"'" in "".join(read.text)


def test_json_and_a_page_at_once_leave_the_json_alone(tmp_path):
    result = invoke("--parameters", "7B", "--json", "--html", tmp_path / "plan.html")
    assert json.loads(result.stdout)["checkpoint"]["size_bytes"] == 84_000_000_000
    assert "plan.html" in result.stderr
    assert (tmp_path / "plan.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_is_an_error(tmp_path):
    result = invoke("--parameters", "7B", "--html", tmp_path / "none" / "plan.html")
    assert result.exit_code == 2
    assert "the page was not written" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_is_missing_is_named_with_its_extra(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    result = invoke("--parameters", "7B", "--html", tmp_path / "plan.html")
    assert result.exit_code == 2
    assert result.output == 'the page needs matplotlib: pip install "exact-resume[plan]"\n'
    assert invoke("--parameters", "7B").exit_code == 0
