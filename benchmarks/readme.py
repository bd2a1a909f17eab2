"""Put the results of the comparisons into the README, between their marks: no figure there is typed by hand.

python benchmarks/readme.py
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

from exact.table import summary
from measures.report import FORMATS

README = Path(__file__).parents[1] / "README.md"
RESULTS = Path(__file__).parent / "results"
EXACTNESS = "exactness"
COLUMNS = {
    "save": ("blocks / copy", "durable / bare write", "extra memory", "training meanwhile"),
    "restore": ("cold / bare read", "warm / bare read", "extra memory"),
}


def tables(text: str) -> str:
    """``text`` with a fresh table between ``<!-- save -->`` and ``<!-- end of save -->``, and so on."""
    for name in (*COLUMNS, EXACTNESS):
        path = RESULTS / f"{name}.json"
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        if path.exists() and pattern.search(text):
            table = _made(name, json.loads(path.read_text(encoding="utf-8")))
            text = pattern.sub(lambda found, table=table: found[1] + table + found[2], text)
    return text


def _made(name: str, results: dict[str, Any]) -> str:
    return "\n".join(summary(results["rows"])) + "\n" if name == EXACTNESS else _table(results, COLUMNS[name])


def _table(results: dict[str, Any], columns: tuple[str, ...]) -> str:
    """Of the first state, one line for each way that has figures; yardsticks are what the ratios are formed with."""
    section, units = results["rows"][0]["section"], results["units"]
    lines = [f"| {section} | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
    for row in results["rows"]:
        cells = [_cell(units[column], row["rounds"].get(column, [])) for column in columns]
        if row["section"] == section and cells[0]:
            lines.append(f"| {row['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(unit: str, values: list[float]) -> str:
    return FORMATS[unit].format(statistics.median(values)) if values else ""


if __name__ == "__main__":
    README.write_text(tables(README.read_text(encoding="utf-8")), encoding="utf-8")
