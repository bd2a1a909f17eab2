"""How long each command takes on a local directory of thousands of checkpoints.

    python benchmarks/commands.py [--rounds N] [--num N] [--out FILE]

The checkpoints are real ones: two that a fit of Lightning has saved, and copies of these whose manifests say other
steps, attempts and metrics; their files are links to those of the two. What is measured is the time of the whole
process, with files in the page cache and bytecode that was written before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

from measures.report import Comparison, Row, load_average, machine

from resume_core.storage import Attempt, CheckpointRef, Lineage, LocalStore, Manifest, seal
from resume_core.storage.paths import checkpoint_folder

RESULTS = Path(__file__).parent / "results" / "commands.json"
BOUND_S = 2.0
PACKAGES = ("torch", "typer", "rich")
COLUMN, PROCESSOR = "seconds", "of the processor"
LAYOUTS = ((20, 1, 1), (20, 10, 1), (600, 1, 5))
"""Tensors of a checkpoint, attempts of the run, and by what the number of its checkpoints is divided."""
START = "from resume_core.cli import app; app()"
# what the command line is beside it: the same in every row
EMPTY = "--version"
COMMANDS = {
    EMPTY: ["--version"],
    "ls": ["ls", "{run}"],
    "ls --all": ["ls", "{run}", "--all"],
    "ls --all --json": ["ls", "{run}", "--all", "--json"],
    "show RUN": ["show", "{run}"],
    "show NAME": ["show", "{named}"],
    "verify --newest": ["verify", "{run}", "--newest"],
    "verify NAME": ["verify", "{named}"],
    "diff RUN NAME --no-values": ["diff", "{run}", "{named}", "--no-values"],
    "diff RUN NAME (torch compares the tensors)": ["diff", "{run}", "{named}"],
    "plan": ["plan", "{run}"],
    "prune --dry-run": ["prune", "{run}", "--dry-run"],
    "report": ["report", "{run}", "--out", "{out}/report.html"],
    "export RUN, the weights": ["export", "{run}", "{out}/w.safetensors", "--format", "safetensors", "--force"],
    "export NAME, the weights": ["export", "{named}", "{out}/w.safetensors", "--format", "safetensors", "--force"],
}
IN_A_RUN = """
import sys, time
from resume_core.candidates import line
from resume_core.directory import open_lineage
from resume_core.ends import finished_fit
from resume_core.policy import Keep
from resume_core.saved_header import read_key
from resume_core.storage.retention import outlook

lineage = open_lineage(sys.argv[1], None, None)
begin = time.perf_counter()
for _ in range(3):  # for the preamble, for the key, and for what is restored
    seen = lineage.glance()
    read_key(seen, next(line(seen, "auto")))
print(time.perf_counter() - begin)
for _ in range(3):
    begin = time.perf_counter()
    outlook(lineage.glance(lineage.store), Keep(last=10**6), lineage.newest(), finished_fit)
print(time.perf_counter() - begin)
"""
RUN_ROWS = ("a start finds its checkpoint, beside its imports", "what to delete after a save, in the background")
TABLE = Comparison(
    title="What commands cost in a large directory",
    command="python benchmarks/commands.py",
    text=f"Of the whole process, the interpreter and its imports included: `{EMPTY}` is these alone. At most "
    f"{BOUND_S:.0f} s are wanted of each command, for 10,000 checkpoints in a local directory. NAME is one checkpoint, "
    "named in full. The last two rows are parts of a training, not commands. Where others use the machine, too, the "
    "time of the processor is nearer to what a quiet one takes.",
    columns={COLUMN: "s", PROCESSOR: "s"},
    packages=PACKAGES,
)


def train(directory: Path, num_tensors: int) -> None:
    """A short fit, of a model with that many parameters, that saves after each step."""
    import lightning.pytorch as pl
    import torch

    from lightning_resume import ResumeCallback, SaveEvery

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(num_tensors // 2)))

        def training_step(self, batch: Any, _: int) -> Any:
            loss = self.layers(batch[0]).square().mean()
            self.log("loss", loss)
            time.sleep(0.2)  # so that no save meets one that is on its way
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.TensorDataset(torch.randn(12, 4, generator=torch.Generator().manual_seed(0)))
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "accelerator": "cpu"}
    callback = ResumeCallback(directory, save=SaveEvery(steps=1, minutes=None))
    trainer = pl.Trainer(max_epochs=1, callbacks=[callback], default_root_dir=directory.parent, **quiet)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Model(), torch.utils.data.DataLoader(data, batch_size=4))


def make(seed: Path, run: Path, num: int, num_attempts: int) -> None:
    """A run of ``num`` checkpoints, in attempts each of which went on from the newest of the one before it."""
    lineage = Lineage(LocalStore(seed))
    (old,) = lineage.attempts()
    models = [lineage.read_manifest(ref) for ref in lineage.checkpoints(old.name)[:3][1:]]  # not the end of the fit
    history = json.loads((seed / old.name / "history.json").read_text())
    told = {name: value for name, value in history.items() if name not in ("format", "kind", "digest")}
    origin: CheckpointRef | None = None
    steps = iter(range(num))
    for number in range(1, num_attempts + 1):
        parent = origin and origin.attempt
        attempt = Attempt(number, "aaaa", parent, origin, old.info, f"{number:032x}")
        folder = run / attempt.name
        folder.mkdir(parents=True)
        (folder / "attempt.json").write_bytes(attempt.to_bytes())
        (folder / "history.json").write_bytes(seal("history", {**told, "attempt": attempt.name}))
        for serial, model in zip(range(num // num_attempts), cycle(models), strict=False):
            origin = copy(seed, model, folder, next(steps), serial)


def copy(seed: Path, model: Manifest, folder: Path, step: int, serial: int) -> CheckpointRef:
    progress = {**model.header["progress"], "step": step, "batch": step}
    header = {**model.header, "progress": progress, "metrics": {"loss": 1 / (step + 1)}}
    place = {"attempt": folder.name, "checkpoint": checkpoint_folder(step), "serial": serial}
    manifest = replace(model, **place, header=header)
    target = folder / manifest.checkpoint
    target.mkdir()
    for record in model.files:
        os.link(seed / model.ref.path / record.name, target / record.name)
    (target / "manifest.json").write_bytes(manifest.to_bytes())
    return manifest.ref


def seconds(arguments: list[str]) -> dict[str, float]:
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", START, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    wall_s, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):  # 1: diff has found differences
        raise RuntimeError(f"exact-resume {' '.join(arguments)}: {done.stderr.decode()}")
    return {COLUMN: wall_s, PROCESSOR: after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def one_round(run: Path, out: Path) -> Iterator[tuple[str, dict[str, float]]]:
    names = sorted(str(path) for path in run.glob("*/step-*") if path.is_dir())
    places = {"run": run, "named": names[len(names) // 2], "out": out}
    for name, arguments in COMMANDS.items():
        yield name, seconds([argument.format(**places) for argument in arguments])
    done = subprocess.run([sys.executable, "-c", IN_A_RUN, str(run)], stdout=subprocess.PIPE, check=True, text=True)
    for name, text in zip(RUN_ROWS, done.stdout.split(), strict=True):
        yield name, {COLUMN: float(text)}


def measure(folder: Path, num: int, num_rounds: int) -> list[Row]:
    """All rows, round by round over the directories."""
    runs: dict[str, Path] = {}
    for num_tensors, num_attempts, share in LAYOUTS:
        if not (seed := folder / f"seed-{num_tensors}").exists():
            train(seed, num_tensors)
        size_kb = next(seed.glob("*/step-000000001/manifest.json")).stat().st_size / 1000
        section = f"{num // share:,} checkpoints of {num_tensors} tensors (manifests of {size_kb:.0f} kB), "
        section += "in one attempt" if num_attempts == 1 else f"in {num_attempts} attempts"
        runs[section] = folder / f"run-{num_tensors}-{num_attempts}"
        make(seed, runs[section], num // share, num_attempts)
    rows: dict[str, dict[str, Row]] = {section: {} for section in runs}
    for number in range(num_rounds + 1):
        for section, run in runs.items():
            for name, values in one_round(run, folder):
                row = rows[section].setdefault(name, Row(section, name))
                if number:  # the first one fills caches
                    row.add(values)
    return [row for found in rows.values() for row in found.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--num", type=int, default=10_000, help="checkpoints of a directory")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    about: Mapping[str, Any] = machine(PACKAGES) | {"load_before": load_average()}
    with tempfile.TemporaryDirectory(prefix="exact-resume-commands-") as folder:
        rows = measure(Path(folder), options.num, options.rounds)
    TABLE.print(rows)
    TABLE.write(rows, {**about, "load_after": load_average()}, options.out)


if __name__ == "__main__":
    main()
