"""Lightning's own tests for checkpoints, loops and callbacks, with and without our callback in every Trainer.

    python tests/upstream/run_lightning_tests.py /path/to/lightning-checkout [-- -n 4 -k something]

The checkout's tests run against the Lightning that is installed, so check out that version. exact-resume must be
installed too (its entry point is what puts the callback into each Trainer). Each test gets an ``EXACT_RESUME_DIR`` of
its own. What differs between the two runs is listed; the exit code is 0 when nothing does, 1 when something does, and 2
when they could not be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import entry_points
from pathlib import Path

FOLDERS = ("checkpointing", "loops", "callbacks")
NAMES = {"lightning.pytorch": "lightning", "pytorch_lightning": "pytorch-lightning"}


class CannotCompareError(Exception):
    pass


def test_folders(checkout: Path) -> list[str]:
    root = checkout / "tests" / "tests_pytorch"
    found = [str(root / name) for name in FOLDERS if (root / name).is_dir()]
    if not found:
        raise CannotCompareError(f"{root} has none of {', '.join(FOLDERS)}: is {checkout} a checkout of Lightning?")
    return found


def require_entry_point() -> None:
    for root in NAMES:
        found = [point.value for point in entry_points(group=f"{root}.callbacks_factory")]
        if any(value.startswith("lightning_resume.") for value in found):
            return
    raise CannotCompareError(f"exact-resume is not installed for {sys.executable}: pip install it first")


def run(checkout: Path, folders: list[str], extra: list[str], *, installed: bool) -> dict[str, list[str]]:
    """Outcome and first line of the error of each test, by its id."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EXACT_RESUME")}
        here = str(Path(__file__).parent)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        environment["UPSTREAM_RESULTS"] = str(results)
        environment["UPSTREAM_RUNS"] = str(Path(folder) / "runs") if installed else ""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "upstream_plugin",
            "-p",
            "no:cacheprovider",
            *folders,
            *extra,
        ]
        ended = subprocess.run(command, cwd=checkout / "tests" / "tests_pytorch", env=environment, check=False)
        if ended.returncode not in (0, 1) or not results.exists():
            raise CannotCompareError(f"pytest ended with {ended.returncode}: {' '.join(command)}")
        lines = [json.loads(line) for line in results.read_text().splitlines()]
    return {test: [outcome, error] for test, outcome, error in lines}


def differences(plain: dict[str, list[str]], installed: dict[str, list[str]]) -> list[str]:
    absent = ["not run", ""]
    found = []
    for test in sorted(plain.keys() | installed.keys()):
        before, after = plain.get(test, absent), installed.get(test, absent)
        if before[0] != after[0]:
            found.append(f"{test}\n    {before[0]} -> {after[0]}: {after[1] or before[1]}")
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("extra", nargs="*", help="arguments for pytest, after --")
    given = parser.parse_args(arguments)
    try:
        require_entry_point()
        folders = test_folders(given.checkout.resolve())
        plain = run(given.checkout, folders, given.extra, installed=False)
        installed = run(given.checkout, folders, given.extra, installed=True)
    except CannotCompareError as error:
        print(error, file=sys.stderr)
        return 2
    found = differences(plain, installed)
    print(f"\n{len(plain)} tests without the callback, {len(installed)} with it, {len(found)} that differ")
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
