"""What exact resume costs, as `make bench` measures it.

    python benchmarks/overhead.py [--quick] [--only seeding ...] [--out FILE] [--check]

Ours and a yardstick run in turn, in one process, round by round; only their differences and ratios mean anything, as
absolute figures differ from machine to machine. A table is printed; all rounds go to a JSON file, the table beside it
as Markdown. Takes about seven minutes on two idle cores, 4 GiB of memory and 2 GiB of disk.
"""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from measures import accelerating, evidence, saving, seeding, seek, session
from measures.report import Measure, load_average, machine, peak_rss_bytes, print_table, write_files

RESULTS = Path(__file__).parent / "results" / "overhead.json"
# saving comes last: the memory it takes would make the workers of the others slower to fork
PARTS = {
    "seeding": seeding.measure,
    "seek": seek.measure,
    "session": session.measure,
    "accelerate": accelerating.measure,
    "evidence": evidence.measure,
    "saving": saving.measure,
}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs; files only with --out")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts; files only with --out")
    parser.add_argument("--out", type=Path, help=f"the JSON file; {RESULTS} when everything is measured")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a bound is missed")
    return parser.parse_args()


def run_part(name: str, *, quick: bool) -> list[Measure]:
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    found = PARTS[name](quick=quick)
    gc.collect()
    return found


def main() -> int:
    args = parse_args()
    about = {**machine(), "load_before": load_average()}
    measures = [measure for name in PARTS if name in args.only for measure in run_part(name, quick=args.quick)]
    print_table(measures)
    complete = not args.quick and len(args.only) == len(PARTS)
    out = args.out or (RESULTS if complete else None)
    if out is not None:
        about |= {"load_after": load_average(), "peak_rss_bytes": peak_rss_bytes()}
        write_files(measures, about, out)
        print(f"written to {out} and {out.with_suffix('.md')}")
    return int(args.check and any(measure.verdict == "MISSED" for measure in measures))


if __name__ == "__main__":
    sys.exit(main())
