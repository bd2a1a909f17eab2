"""Of mkdocs: pages that lie elsewhere in the repository, so that they are written once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
RESULTS = "../benchmarks/results/"
EXAMPLES = "../examples/README.md"
_TO_FILE = re.compile(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the results of the benchmarks, and what the examples say."""
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.md")):
        files.append(File.generated(config, f"results/{path.name}", content=path.read_text(encoding="utf-8")))
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "examples.md", content=_TO_FILE.sub(r"\1", text)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links that hold in the repository hold on the pages."""
    return markdown.replace(f"({RESULTS}", "(results/").replace(f"({EXAMPLES}", "(examples.md")
