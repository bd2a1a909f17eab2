"""How the demo goes: start, wait for a good moment, kill, start again; then compare and report."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from resume_core.cli.demo.compare import Run, Step, compare, read_start
from resume_core.cli.demo.folder import INTERRUPTED, UNINTERRUPTED, demo_folder
from resume_core.cli.demo.frameworks import FRAMEWORKS, Framework
from resume_core.cli.demo.processes import Child, Children, DemoError, Job
from resume_core.cli.demo.report import Report, print_report, write_report
from resume_core.storage.paths import parse_checkpoint_folder

__all__ = ["Aim", "Settings", "aims", "last_save", "run_demo"]

_SAVE_STEPS = 25
_GAP = 10  # batches between the last save and a kill: enough to see that they are done again
_MARGIN = 3  # batches between a kill and the end of the epoch
_STOCK = ("step=", "checkpoint-")  # names of what the frameworks alone save
_FAILED, _STOPPED = 2, 130


@dataclass(frozen=True)
class Settings:
    """What the user chose.

    Attributes:
        plugin: False for the framework alone.
        out: where everything is written.
        seed: global seed of the first start.
        epochs: to train.
        kills: at most one an epoch.
        framework: to train with.
    """

    plugin: bool
    out: Path
    seed: int
    epochs: int
    kills: int
    framework: Framework = FRAMEWORKS["lightning"]


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
    stock = (int(path.stem[len(prefix) :]) for prefix in _STOCK for path in run.glob(f"checkpoints/{prefix}*"))
    return max([0, *(place[0] for place in found if place), *stock])


def run_demo(settings: Settings, console: Console) -> int:
    """Carry the demo out.

    Returns:
        The exit code: 0 when both runs ended in the same bits, 1 when anything differs, 2 when the demo failed, 130
        when it was interrupted from the keyboard.
    """
    try:
        with _terminable(), demo_folder(settings.out) as out, Children() as children:
            return _Demo(settings, out, children, console).run()
    except KeyboardInterrupt:
        console.print("stopped; all processes of the demo were ended")
        return _STOPPED
    except DemoError as error:
        console.print(f"the demo failed: {error}", markup=False, style="red", soft_wrap=True)
    except Exception:
        # not left to the interpreter, whose exit code for it is the one that says "something differs"
        console.print(traceback.format_exc(), markup=False, soft_wrap=True)
    return _FAILED


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the demo as Ctrl-C does: the trainings are in sessions of their own, nobody else would end them."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Demo:
    def __init__(self, settings: Settings, out: Path, children: Children, console: Console) -> None:
        self.settings, self.out, self.children, self.console = settings, out, children, console

    def run(self) -> int:
        begin = time.monotonic()
        chosen, framework = self.settings, self.settings.framework
        trainer = framework.described(plugin=chosen.plugin)
        self.console.print(f"[bold]{framework.data}, {chosen.epochs} epochs, {trainer}[/bold]")
        self.console.print("two trainings at once: one in peace, one that is killed")
        with self.console.status("training"):
            peaceful = self.children.start(self._job(UNINTERRUPTED, 1))
            interrupted = self._interrupted()
            self.children.wait(peaceful)
        reference = self._ended([peaceful])
        report = Report(chosen.plugin, reference, interrupted, compare(reference, interrupted), framework)
        write_report(report, self.out, seconds=time.monotonic() - begin)
        print_report(report, self.out, self.console, seconds=time.monotonic() - begin)
        return 0 if report.identical else 1

    def _job(self, run: str, number: int) -> Job:
        """The plugin restores the seed's work as well, so each start may have another; stock gets its best chance."""
        chosen = self.settings
        seed = chosen.seed + (1000 * (number - 1) if chosen.plugin else 0)
        folder, module = str(self.out / run), chosen.framework.module
        return Job(module, folder, f"start-{number}", chosen.plugin, seed, chosen.epochs, _SAVE_STEPS)

    def _interrupted(self) -> Run:
        starts: list[Child] = []
        for aim in aims(self.settings.epochs, self.settings.kills):
            next_epoch = starts[-1].lines[-1]["epoch"] + 1 if starts else 0
            starts.append(self.children.start(self._job(INTERRUPTED, len(starts) + 1)))
            self._kill(starts[-1], Aim(max(aim.epoch, next_epoch), aim.part))
            self._tell(starts)
        starts.append(self.children.start(self._job(INTERRUPTED, len(starts) + 1)))
        self.children.wait(starts[-1], lambda: bool(starts[-1].lines))
        self._tell(starts)
        self.children.wait(starts[-1])
        return self._ended(starts)

    def _kill(self, child: Child, aim: Aim) -> None:
        def hit() -> bool:
            if len(child.lines) < _GAP:
                return False
            start = read_start([child.lines[0], child.lines[-1]])
            return aim.hit(start.steps[0], last_save(child.folder), start.num_batches)

        def killed() -> bool:
            if not child.running or not hit():
                return False
            with child.held():  # while it was looked at it may have saved once more
                if child.running and hit():
                    child.kill()
            return child.killed

        if not self.children.wait(child, killed):
            raise DemoError("the training ended before it could be killed; try more --epochs or fewer --kills")

    def _tell(self, starts: list[Child]) -> None:
        child = starts[-1]
        if not child.lines:
            return  # it ended without a word, which `read_start` will report
        begin, last, end = child.lines[0], child.lines[-1], "goes on to the end"
        if child.killed:
            batch = f"epoch {last['epoch']} behind {last['batch'] + 1} of its {begin['num_batches']} batches"
            end = f"[red]SIGKILL[/red] in {batch}, step {last['step']}"
        self.console.print(f"start {len(starts)} from step {begin['begins_at']}: {end}")

    def _ended(self, children: list[Child]) -> Run:
        return Run(tuple(read_start(child.lines) for child in children), **children[-1].end())
