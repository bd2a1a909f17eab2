"""The code of the README and of the documentation runs as it stands, and what they say of messages is said."""

from __future__ import annotations

import importlib
import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PACKAGES = ("resume_core", "lightning_resume", "accelerate_resume")


def snippets():
    """Those of all pages, each once: some stand in the README and on a page."""
    found = {}
    for page in PAGES:
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
            found.setdefault(code, f"{page.stem}-{number}")
    return found


TRAININGS = [pytest.param(code, id=name) for code, name in snippets().items() if "import torch" in code]
OTHERS = [pytest.param(code, id=name) for code, name in snippets().items() if "import torch" not in code]


@pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
@pytest.mark.parametrize("snippet", TRAININGS)
def test_a_training_runs_and_goes_on_from_where_it_was(tmp_path, monkeypatch, snippet):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # so that what a test sets is undone
    monkeypatch.delenv("PL_GLOBAL_SEED")
    script = tmp_path / "snippet.py"
    script.write_text(snippet)
    runpy.run_path(str(script), run_name="__main__")
    first = sorted(p.name for p in tmp_path.glob("runs/first/attempt-*/step-*"))
    assert first
    runpy.run_path(str(script), run_name="__main__")  # it has ended: nothing is left to train
    assert sorted(p.name for p in tmp_path.glob("runs/first/attempt-*/step-*")) == first
    script.write_text(re.sub(r"(max_epochs=|num_train_epochs=|epochs\()5", r"\g<1>6", snippet))
    runpy.run_path(str(script), run_name="__main__")
    attempts = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("runs/first/attempt-*/attempt.json"))]
    assert [attempt["restored_from"] is None for attempt in attempts] == [True, False]


@pytest.mark.parametrize("snippet", OTHERS)
def test_a_snippet_runs(tmp_path, monkeypatch, snippet):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "snippet.py"
    script.write_text(snippet)
    runpy.run_path(str(script))


def sources():
    """What the packages can say: their source, with strings that are joined by the parser joined."""
    folders = [Path(importlib.import_module(name).__file__).parent for name in PACKAGES]
    code = "\n".join(path.read_text() for folder in folders for path in sorted(folder.rglob("*.py")))
    return re.sub(r'"\s*\n\s*f?"', "", code).replace("{{", "{").replace("}}", "}")


def test_every_message_of_the_troubleshooting_is_one_that_the_code_says():
    said = sources()
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    messages = re.findall(r"^\*\*`(.+?)`\*\*", page, re.MULTILINE | re.DOTALL)
    parts = [
        part.strip(" ()")
        for message in messages
        for part in re.split(r"\.\.\.|attempt-|\b[MN]\b|143|[:;']", message.replace("\n", " "))
    ]
    assert len(messages) > 20
    assert [part for part in parts if len(part) > 8 and part not in said] == []
