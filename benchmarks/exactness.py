"""What a run does after a kill that it would not have done without: stock tools, and this project.

    python benchmarks/exactness.py [--tools lightning ...] [--cases workers ...] [--quick] [--out FILE]

Every tool trains the same network on the same augmented data, is ended from outside with SIGKILL in the middle of an
epoch, and is started again in another process in the way that its documentation tells. Compared is with the
uninterrupted run of the same tool. The stock tools get the very same command again, seed included; ours gets another
global seed. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from exact import table
from exact.cases import CASES, run_case
from exact.changes import changed_starts
from exact.damage import damaged_starts
from exact.processes import preload
from exact.tools import TOOLS
from measures.report import load_average, machine, versions

RESULTS = Path(__file__).parent / "results" / "exactness.json"
PACKAGES = ("torch", "lightning", "accelerate", "transformers", "torchdata", "numpy")
TEXT = """\
64 samples with augmentation from python, NumPy and torch, a network with dropout, AdamW and a cosine schedule by the
step; 16 batches an epoch, 3 epochs. Each start is a process of its own. Saved after batch 22, killed with SIGKILL in
batch 25, started again: the stock tools by the very same command (seed included), as their documentation tells; ours
under another global seed. Compared with the uninterrupted run of the same tool.

Stock Lightning: `ModelCheckpoint` and `OnExceptionCheckpoint`, the newest file as `ckpt_path`. Accelerate:
`save_state`, `load_state`, `skip_first_batches` (not with `use_stateful_dataloader`, which is run with the seedable
sampler too) and `set_epoch`, as in its examples. Trainer: `resume_from_checkpoint` with the newest folder, and
`enable_jit_checkpoint`. The Trainer documents no use of `StatefulDataLoader`."""
SUMMARY = """\
2 loader workers, killed in the middle of an epoch. *n of m*: batches after the resume that had the same. *Half-filled
window*: SIGTERM inside an accumulation window; batches after it with the same loss, where nothing is random.
*Damaged files*: each file of the newest checkpoint torn in half, and with one bit flipped, at three places; what had
no effect is left out. *Passed over*: went on from the checkpoint before; *stopped*: would not start; *silent*: went on
from it to other parameters. *Changed settings*: see below."""
MARKED = """\
Samples in order / augmentation / dropout / learning rate / final parameters. rN: N samples were used again in the epoch
that was cut (and as many never, where batches are equally long)."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="cases alone: no damage, no changes")
    parser.add_argument("--out", type=Path, help=f"the JSON file; {RESULTS} when everything is measured")
    return parser.parse_args()


def measure(tool: str, names: list[str], *, quick: bool) -> dict[str, Any]:
    """One row."""
    row: dict[str, Any] = {"tool": tool, "title": TOOLS[tool].title, "cases": {}, "damage": [], "changes": {}}
    for name in names:
        print(f"{tool}: {name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            row["cases"][name] = dataclasses.asdict(run_case(tool, CASES[name], folder))
    if quick:
        return row
    print(f"{tool}: damage, changes ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        row["damage"] = list(damaged_starts(tool, folder))
    with tempfile.TemporaryDirectory() as folder:
        row["changes"] = changed_starts(tool, folder)
    return row


def markdown(about: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    where = f"{about['cpu']}, {about['cores']} cores; Python {about['python']}, {versions(about, PACKAGES)}"
    lines = ["# What a run does after a kill", "", f"`python benchmarks/exactness.py`, {about['date']}, {where}.", ""]
    lines += [TEXT, "", "## By tool", "", SUMMARY, "", *table.summary(rows), ""]
    lines += ["## By case", "", MARKED, "", *table.cases(rows, {name: case.title for name, case in CASES.items()}), ""]
    lines += ["## Files that are damaged", "", *table.damages(rows), ""]
    lines += ["## Settings that changed", "", *table.changes(rows), ""]
    return "\n".join(lines)


def main() -> None:
    args = parse_args()
    about = {**machine(PACKAGES), "load_before": load_average()}
    rows = [measure(tool, args.cases, quick=args.quick) for tool in args.tools]
    complete = not args.quick and args.cases == list(CASES)
    out = args.out or (RESULTS if complete and args.tools == list(TOOLS) else None)
    if complete:
        print(markdown(about, rows))
    else:
        print("\n".join(table.cases(rows, {name: CASES[name].title for name in args.cases})))
    if out is not None:
        out.write_text(json.dumps({"machine": about, "rows": rows}, indent=1, ensure_ascii=False) + "\n", "utf-8")
        if complete:
            out.with_suffix(".md").write_text(markdown(about, rows), "utf-8")


if __name__ == "__main__":
    preload()
    main()
