"""The picture of the README: the loss around a kill, with a framework alone and with this project.

    python benchmarks/picture.py [--out docs/loss.svg]

Runs `exact-resume demo` twice, with the plugin off and on: a network on real digits, trained once in peace and once
killed with SIGKILL. Drawn is the loss of each batch that the two wrote down. Takes about a minute on two cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from resume_core.cli.demo.compare import Run, Start, Step, coverage, effective, parse_lines, read_start

OUT = Path(__file__).parents[1] / "docs" / "loss.svg"
# mid tones, which show on light and on dark pages; the page is the background
TEXT, PEACE, BEFORE, AFTER, KILL = "#7d8590", "#a3afbb", "#d9822b", "#2f81f7", "#e5534b"
BEFORE_STEPS, AFTER_STEPS = 30, 45  # shown around the place that the run went on from
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "exact-resume",
    "font.family": "sans-serif",
    "text.color": TEXT,
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}


def demo(folder: Path, plugin: str) -> tuple[Run, Run]:
    """Both runs of a demo: the uninterrupted one, and the one that was killed."""
    start = "from resume_core.cli import app; app()"
    command = [sys.executable, "-c", start, "demo", "--plugin", plugin, "--kills", "1", "--out", str(folder)]
    code = subprocess.run(command, check=False).returncode
    if code != (0 if plugin == "on" else 1):
        raise SystemExit(f"the demo with --plugin {plugin} ended with {code}")
    return _run(folder / "uninterrupted"), _run(folder / "interrupted")


def _run(folder: Path) -> Run:
    starts = [read_start(parse_lines(path.read_text())) for path in sorted(folder.glob("start-*.jsonl"))]
    return Run(tuple(starts), parameters="", optimizer="", accuracy=0.0)


def _title(name: str, reference: Run, interrupted: Run) -> str:
    steps = effective(interrupted.starts)
    num_epochs = 1 + max(step.epoch for step in effective(reference.starts))
    repeated, missed = coverage(steps, interrupted.starts[0].num_samples, num_epochs)
    same = {step.step: step.loss for step in effective(reference.starts)}
    after = interrupted.starts[-1].steps
    equal = sum(step.loss == same[step.step] for step in after)
    return f"{name}\n{repeated} samples twice, {missed} never; {equal} of {len(after)} losses as without the kill"


def _curve(axes: Any, steps: list[Step], window: range, **style: Any) -> None:
    shown = [step for step in steps if step.step in window]
    axes.plot([step.step for step in shown], [step.loss for step in shown], **style)


def _panel(axes: Any, title: str, reference: Run, killed: Start, resumed: Start) -> None:
    window = range(resumed.begins_at - BEFORE_STEPS, resumed.begins_at + AFTER_STEPS)
    _curve(axes, effective(reference.starts), window, color=PEACE, linewidth=6, label="never killed", alpha=0.8)
    _curve(axes, list(killed.steps), window, color=BEFORE, linewidth=1.6, label="until SIGKILL")
    _curve(axes, list(resumed.steps), window, color=AFTER, linewidth=1.6, label="started again")
    axes.axvline(killed.steps[-1].step + 0.5, color=KILL, linestyle="--", linewidth=1.2, label="SIGKILL")
    axes.axvline(resumed.begins_at + 0.5, color=TEXT, linestyle=":", linewidth=1.2, label="last save")
    axes.set_title(title, fontsize=10, color=TEXT)
    axes.set(xlabel="optimizer step")
    axes.margins(x=0.01)
    axes.patch.set_alpha(0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw(runs: dict[str, tuple[Run, Run]], path: Path) -> None:
    """One panel each."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 3.9), layout="constrained")
        panels = figure.subplots(1, len(runs), sharey=True)
        for axes, (name, (reference, interrupted)) in zip(panels, runs.items(), strict=True):
            _panel(axes, _title(name, reference, interrupted), reference, *interrupted.starts)
        panels[0].set_ylabel("loss of each batch")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        alone = demo(Path(folder, "off"), "off")
        ours = demo(Path(folder, "on"), "on")
    draw({"Lightning alone": alone, "with ResumeCallback": ours}, args.out)


if __name__ == "__main__":
    main()
