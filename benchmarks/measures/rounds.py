"""Several ways to do a thing, round by round, in turn: what `save.py` and `restore.py` share."""

from __future__ import annotations

import argparse
import gc
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from measures.peer import Peer
from measures.report import Comparison, Row, load_average, machine, peak_rss_bytes
from measures.states import QUICK_SIZES, SIZES, Live
from measures.timing import run_rotated

REPOSITORY = Path(__file__).parents[2]
ROUNDS, QUICK_ROUNDS = 5, 1
REASON_CHARS = 120

Found = Mapping[str, Mapping[str, float]]
"""Name of a row to its column's values, of one round."""


@dataclass(frozen=True)
class Way:
    """One way to do the thing.

    Attributes:
        name: of its row.
        measure: takes the number of the round; raises when it cannot be done.
    """

    name: str
    measure: Callable[[int], Found]


Ratios = Sequence[tuple[str, str, str]]
"""Column, the column above, and the name of the row whose same column is below."""


def parse_args(doc: str | None, keys: Sequence[str], results: Path) -> argparse.Namespace:
    """The command line of both."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small states, to see that it runs; files only with --out")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} when not given")
    parser.add_argument("--states", nargs="+", choices=SIZES, default=list(SIZES), help="files only with --out")
    parser.add_argument("--only", nargs="+", choices=keys, default=list(keys), help="peers; files only with --out")
    parser.add_argument("--folder", type=Path, default=REPOSITORY, help="on the disk to measure; the repository's")
    parser.add_argument("--out", type=Path, help=f"the JSON file; {results} when everything is measured")
    args = parser.parse_args()
    args.rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    complete = not args.quick and args.rounds >= ROUNDS and [*args.states, *args.only] == [*SIZES, *keys]
    args.out = args.out or (results if complete else None)
    return args


def run(
    args: argparse.Namespace,
    comparison: Comparison,
    ratios: Ratios,
    ways_of: Callable[[Live, Path], Mapping[str, Way]],
) -> None:
    """Measure all states; show and write the table."""
    about = {**machine(comparison.packages), "load_before": load_average()}
    rows: list[Row] = []
    before = signal.signal(signal.SIGTERM, _leave)  # what was written is removed then, too
    try:
        for state in args.states:
            with tempfile.TemporaryDirectory(prefix=".benchmark-", dir=args.folder) as folder:
                _measure(state, args, ratios, ways_of, Path(folder), rows)
            gc.collect()
    finally:
        signal.signal(signal.SIGTERM, before)
        comparison.print(rows)  # after an interruption, what there is
    if args.out is not None:
        about |= {"load_after": load_average(), "peak_rss_bytes": peak_rss_bytes()}
        comparison.write(rows, about, args.out)
        print(f"written to {args.out} and {args.out.with_suffix('.md')}")


def _leave(number: int, frame: Any) -> NoReturn:
    sys.exit(128 + number)


def _measure(
    state: str,
    args: argparse.Namespace,
    ratios: Ratios,
    ways_of: Callable[[Live, Path], Mapping[str, Way]],
    folder: Path,
    rows: list[Row],
) -> None:
    """Add the rows of one state."""
    live = Live((QUICK_SIZES if args.quick else SIZES)[state])
    section, ways = live.describe(), dict(ways_of(live, folder))
    names: dict[str, Row] = {}
    for number in range(args.rounds):
        print(f"{section}, round {number + 1} of {args.rounds} ...", file=sys.stderr, flush=True)
        found = run_rotated({key: partial(_try, way, number) for key, way in ways.items()}, number)
        _keep(section, {ways[key].name: found[key] for key in ways}, ratios, names)
        rows[:] = [row for row in rows if row.section != section] + list(names.values())
        ways = {key: way for key, way in ways.items() if not isinstance(found[key], Exception)}


def _try(way: Way, number: int) -> Found | Exception:
    gc.collect()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of peers, about torch
            return way.measure(number)
    except Exception as error:  # a peer that fails, in whatever manner, is left out from then on
        print(f"{way.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error


def _keep(section: str, found: Mapping[str, Found | Exception], ratios: Ratios, rows: dict[str, Row]) -> None:
    """Add one round to the rows."""
    values: dict[str, dict[str, float]] = {}
    for name, result in found.items():
        values |= {name: {}} if isinstance(result, Exception) else {row: dict(each) for row, each in result.items()}
    for ratio, column, yardstick in ratios:
        below = values.get(yardstick, {}).get(column)
        for name, columns in values.items():
            if below and column in columns and name != yardstick:
                columns[ratio] = columns[column] / below
    for name, columns in values.items():
        rows.setdefault(name, Row(section, name)).add(columns)
        if isinstance(error := found.get(name), Exception):
            rows[name].note = _reason(error)


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"not installed: {error.name}"
    return f"failed: {type(error).__name__}: {error}".splitlines()[0][:REASON_CHARS].replace("|", "/")


@contextmanager
def opened(kind: type[Peer], live: Live, parent: Path) -> Iterator[Peer]:
    """A peer with a folder of its own below ``parent``; nothing of either is left."""
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=f"{kind.key}-"))
    try:
        peer = kind(live, folder)
        try:
            yield peer
        finally:
            peer.close()
    finally:
        shutil.rmtree(folder)
