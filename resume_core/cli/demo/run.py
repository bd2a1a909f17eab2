"""How the demo goes: start, wait for a good moment, kill, start again; then compare and report."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from resume_core.cli.demo.compare import Run, Start, Step, compare, read_start
from resume_core.cli.demo.folder import INTERRUPTED, UNINTERRUPTED, demo_folder
from resume_core.cli.demo.processes import Child, Children, DemoError, Job
from resume_core.cli.demo.report import Report, print_report, write_report
from resume_core.storage.paths import parse_checkpoint_folder

__all__ = ["Aim", "Settings", "aims", "last_save", "run_demo"]

_SAVE_STEPS = 25
_GAP = 10  # batches between the last save and a kill: enough to see that they are done again
_MARGIN = 3  # batches between a kill and the end of the epoch
_FAILED, _STOPPED = 2, 130


@dataclass(frozen=True)
class Settings:
    """What the user chose.

    Attributes:
        plugin: False for stock Lightning.
        out: where everything is written.
        seed: global seed of the first start.
        epochs: to train.
        kills: at most one an epoch.
    """

    plugin: bool
    out: Path
    seed: int
    epochs: int
    kills: int


@dataclass(frozen=True)
class Aim:
    """Where a kill should hit.

    Attributes:
        epoch: the first that will do, from 0.
        part: of the epoch that must have passed, 0 to 1.
    """

    epoch: int
    part: float

    def hit(self, last: Step, saved: int, num_batches: int) -> bool:
        """Whether now is the moment: amid an epoch, with a save in it and some batches lost since.

        Args:
            last: the last batch trained on.
            saved: optimizer step of the newest committed checkpoint.
            num_batches: in an epoch.
        """
        amid = self.part * num_batches <= last.batch < num_batches - _MARGIN
        return last.epoch >= self.epoch and amid and last.epoch * num_batches < saved <= last.step - _GAP


def aims(epochs: int, kills: int) -> Iterator[Aim]:
    """Spread kills over a training: each in another epoch, none at the same place of one."""
    for number in range(1, kills + 1):
        yield Aim(number * epochs // (kills + 1), 0.3 + 0.4 * (number - 1) / max(1, kills - 1))


def last_save(run: Path) -> int:
    """Optimizer step of the newest committed checkpoint in the folder of a run, 0 without one."""
    found = (parse_checkpoint_folder(path.parent.name) for path in run.glob("checkpoints/*/*/manifest.json"))
    stock = (int(path.stem.removeprefix("step=")) for path in run.glob("checkpoints/step=*.ckpt"))
    return max([0, *(place[0] for place in found if place), *stock])


def run_demo(settings: Settings, console: Console) -> int:
    """Carry the demo out.

    Returns:
        The exit code: 0 when both runs ended in the same bits, 1 when anything differs, 2 when the demo failed, 130
        when it was interrupted from the keyboard.
    """
    try:
        with demo_folder(settings.out) as out, Children() as children:
            return _Demo(settings, out, children, console).run()
    except KeyboardInterrupt:
        console.print("stopped; all processes of the demo were ended")
        return _STOPPED
    except DemoError as error:
        console.print(f"the demo failed: {error}", markup=False, style="red")
    except Exception:
        # not left to the interpreter, whose exit code for it is the one that says "something differs"
        console.print(traceback.format_exc(), markup=False)
    return _FAILED


class _Demo:
    def __init__(self, settings: Settings, out: Path, children: Children, console: Console) -> None:
        self.settings, self.out, self.children, self.console = settings, out, children, console

    def run(self) -> int:
        begin = time.monotonic()
        trainer = "Lightning with ResumeCallback" if self.settings.plugin else "stock Lightning"
        self.console.print(f"[bold]Handwritten digits, {self.settings.epochs} epochs, {trainer}[/bold]")
        self.console.print("two trainings at once: one in peace, one that is killed")
        with self.console.status("training"):
            peaceful = self.children.start(self._job(UNINTERRUPTED, 1))
            interrupted = self._interrupted()
            self.children.wait(peaceful)
        reference = self._ended([peaceful])
        report = Report(self.settings.plugin, reference, interrupted, compare(reference, interrupted))
        write_report(report, self.out, seconds=time.monotonic() - begin)
        print_report(report, self.out, self.console)
        self.console.print(f"{time.monotonic() - begin:.0f} s", style="dim")
        return 0 if report.identical else 1

    def _job(self, run: str, number: int) -> Job:
        """The plugin restores the seed's work as well, so each start may have another; stock gets its best chance."""
        chosen = self.settings
        seed = chosen.seed + (1000 * (number - 1) if chosen.plugin else 0)
        return Job(str(self.out / run), f"start-{number}", chosen.plugin, seed, chosen.epochs, _SAVE_STEPS)

    def _interrupted(self) -> Run:
        starts: list[Child] = []
        for aim in aims(self.settings.epochs, self.settings.kills):
            starts.append(self._start(len(starts) + 1))
            self._kill(starts, aim)
        starts.append(self._start(len(starts) + 1))
        self.children.wait(starts[-1], lambda: bool(starts[-1].lines))
        self.console.print(f"start {len(starts)} goes on at step {starts[-1].lines[0]['begins_at']}")
        self.children.wait(starts[-1])
        return self._ended(starts)

    def _start(self, number: int) -> Child:
        return self.children.start(self._job(INTERRUPTED, number))

    def _kill(self, starts: list[Child], aim: Aim) -> None:
        child = starts[-1]
        folder, before = child.folder, starts[-2].lines[-1]["epoch"] + 1 if len(starts) > 1 else 0
        aim = Aim(max(aim.epoch, before), aim.part)

        def hit() -> bool:
            if len(child.lines) < _GAP:
                return False
            last = read_start([child.lines[0], child.lines[-1]])
            return aim.hit(last.steps[0], last_save(folder), last.num_batches)

        if not self.children.wait(child, hit):
            raise DemoError("the training ended before it could be killed; try more --epochs or fewer --kills")
        child.kill()
        child.update()
        self._tell(len(starts), child)

    def _tell(self, number: int, child: Child) -> None:
        start, last = child.lines[0], child.lines[-1]
        begun = f"start {number} goes on at step {start['begins_at']}" if number > 1 else "start 1 begins"
        self.console.print(
            f"{begun}, [red]SIGKILL[/red] in epoch {last['epoch'] + 1} after batch {last['batch'] + 1} of "
            f"{start['num_batches']} (step {last['step']}, last save at step {last_save(child.folder)})"
        )

    def _ended(self, children: list[Child]) -> Run:
        starts: list[Start] = [read_start(child.lines) for child in children]
        return Run(tuple(starts), **children[-1].end())
