"""`make chaos`: ckpt-chaos kills short trainings at the operations on files that it sees, one rank and two.

It starts Python anew for each kill and each resume, which takes seconds, so it takes a sample of them, spread evenly;
CHAOS_POINTS=1000 takes all. What it does not see (writes at a position, syncs, links) is killed by the tests that use
kills.py, and so is each single operation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ONE_RANK = int(os.environ.get("CHAOS_POINTS", "14"))
TWO_RANKS = int(os.environ.get("CHAOS_POINTS", "4"))
FEW = int(os.environ.get("CHAOS_POINTS", "2"))  # of a framework that reaches the same store by other boundaries
LIGHTNING, ACCELERATE, TRAINER = (
    Path(__file__).with_name(f"chaos_{name}.py") for name in ("training", "accelerate", "trainer")
)
# a run that had ended says so, and where
STEP = r"(?:resumed at step|The state is that of step) (\d+)"
REFUSED = "HARD_FAIL,SILENT_DIVERGENCE,LOST_WORK,CONTROL_FAIL"


def chaos(folder: Path, script: Path, num_points: int, num_ranks: int, rank: int) -> int:
    """Kill one rank at some operations; the exit code of ckpt-chaos."""
    ends = " ".join(f"{{out}}/end-{number}" for number in range(num_ranks))
    options = {
        "--checkpoint-glob": "{out}/run/attempt-*/step-*",
        "--step-regex": STEP,
        "--result-cmd": f"cat {ends}",
        "--fail-on": REFUSED,
        "--modes": "before",  # what it could tear are files of `open`, and none of a checkpoint's is written so
        "--max-points": num_points,
        "--jobs": 2 if num_ranks == 1 else 1,
        "--timeout": 120,
        "--ranks": num_ranks,
        "--crash-rank": rank,
        "--work": folder / f"{script.stem}-{num_ranks}-{rank}",
    }
    print(f"--- {script.stem}, {num_ranks} rank{'s' * (num_ranks > 1)}, killed: rank {rank}", flush=True)
    # sizes differ from run to run by what a manifest says of times; a torn file of ours has no final name
    arguments = [str(word) for pair in options.items() for word in pair] + ["--ckpt-ignore-size"]
    training = [sys.executable, str(script), "{out}"]
    # 0.1.8 takes --crash-rank for the report alone: the rank that dies is told by the environment
    environment = os.environ | {"CKPT_CHAOS_CRASH_RANK": str(rank), "EXACT_RESUME_NOTICES": "off"}
    command = [sys.executable, "-m", "ckpt_chaos", "run", *arguments, "--", *training]
    return subprocess.call(command, env=environment)


def main() -> int:
    only = sys.argv[1:]  # names of scripts
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        cases = [(LIGHTNING, ONE_RANK, 1, 0), (LIGHTNING, TWO_RANKS, 2, 0), (LIGHTNING, TWO_RANKS, 2, 1)]
        cases += [(ACCELERATE, 3 * FEW, 1, 0), (ACCELERATE, FEW, 2, 0), (ACCELERATE, FEW, 2, 1)]
        cases += [(TRAINER, 3 * FEW, 1, 0)]
        return max([chaos(Path(folder), *case) for case in cases if not only or case[0].stem in only])


if __name__ == "__main__":
    sys.exit(main())
