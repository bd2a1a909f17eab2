"""The page of a report in headless Chromium, where there is one: it draws, and no script fails."""

from __future__ import annotations

import shutil
import subprocess

import matplotlib.image
import pytest
from told_runs import told

from resume_core.cli.report.facts import report
from resume_core.cli.report.page import as_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine: the page was opened in no browser"
)
DARK = "--blink-settings=preferredColorScheme=0"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    name = "</script><b>loss"
    folder.joinpath("report.html").write_text(as_page(report(str(told(folder, loss=name)))), encoding="utf-8")
    folder.joinpath("phone.html").write_text('<iframe src="report.html" style="width:390px;height:2000px"></iframe>')
    return folder


def browse(folder, *arguments, name="report.html"):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=10000", "--window-size=1000,2200"]
    command += ["--allow-file-access-from-files", *arguments, f"file://{folder / name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True, cwd=folder)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, said


def test_everything_is_drawn_and_no_script_says_a_word(page):
    dom, said = browse(page, "--dump-dom")
    assert said == []
    assert 'data-drawn="yes"' in dom
    assert dom.count('class="marks"') == 3
    assert "<b>loss" not in dom


def test_light_and_dark_and_on_a_phone(page):
    for name, arguments, document in (
        ("light", (), "report.html"),
        ("dark", (DARK,), "report.html"),
        ("phone", (), "phone.html"),
    ):
        _, said = browse(page, *arguments, f"--screenshot={page / name}.png", name=document)
        assert said == []
    light, dark = (matplotlib.image.imread(page / f"{name}.png")[5, 5, :3].mean() for name in ("light", "dark"))
    assert light > 0.9
    assert dark < 0.2
