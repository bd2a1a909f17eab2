"""The README's code runs as it stands."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.filterwarnings("ignore::UserWarning:lightning.*")
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_a_snippet_runs_and_goes_on_from_where_it_was(tmp_path, monkeypatch, snippet):
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
