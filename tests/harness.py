"""Real processes for the end-to-end tests: trained, killed with SIGKILL from outside, started again.

A preloaded forkserver has torch and Lightning imported already, so a run costs a fraction of a second; its children are
not daemons, because DataLoader workers must be able to start below them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import quick_disk  # noqa: F401
import torch

from resume_core.storage import open_store

# the forkserver finds the modules of this folder by it alone: before Python 3.13 it is not told of sys.path
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
PRELOAD = [
    "lightning.pytorch",
    "torchmetrics",
    "torchdata.stateful_dataloader",
    "lightning_resume.callback",
    "accelerate_scripts",
    "trainer_scripts",
    "omegaconf",
    "harness",
    "warm",
]
DEADLINE_S = 60


@dataclasses.dataclass(frozen=True)
class Job:
    """One start of the training script."""

    root: str  # folder of this test
    name: str = "run"  # of this start: prefix of what it writes
    directory: str = "ckpt"
    scratch: str | None = None
    seed: int = 7
    script: str = "small"  # which module and data, see scripts.py
    workers: int = 0
    persistent: bool = False
    epochs: int = 3
    num_samples: int = 20
    batch_size: int = 4
    save_steps: int | None = 1  # None: at every boundary, by the clock
    keep: int = 3
    resume: str = "auto"
    allow: tuple[str, ...] = ("seed",)
    otherwise: str = "error"
    plugin: bool = True
    pause_at: int | None = None  # batch (over the run) in whose training_step the process waits to be killed
    pause_in_epoch_end: bool = False  # it waits in the hook at the end of the epoch instead, ``pause_at`` batches done
    slow_s: float = 0.0  # sleep in every training_step
    settle: bool = False  # every training_step waits for the save in flight, so that every boundary can save
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def path(self, suffix: str) -> Path:
        return Path(self.root) / f"{self.name}.{suffix}"

    def but(self, **changes: Any) -> Job:
        return dataclasses.replace(self, **changes)


def append(path: Path, *lines: Any) -> None:
    """Append whole lines; O_APPEND keeps those of several workers apart."""
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, data)
    os.close(fd)


def lines(path: Path) -> list[Any]:
    if not path.exists():
        return []
    text = path.read_text()
    whole = text[: text.rfind("\n") + 1]  # the last one may still be written
    return [json.loads(line) for line in whole.splitlines()]


def digest(tree: Any) -> str:
    """A digest of everything in a nested state: types, dtypes, strides, bytes."""
    state = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            flat = value.detach().contiguous().reshape(-1).view(torch.uint8) if value.numel() else value
            state.update(repr((value.dtype, tuple(value.shape), value.stride())).encode() + bytes(flat.tolist()))
        elif isinstance(value, dict):
            for key in value:
                state.update(repr(key).encode())
                add(value[key])
        elif isinstance(value, (list, tuple)):
            state.update(f"{type(value).__name__}{len(value)}".encode())
            for item in value:
                add(item)
        else:
            state.update(repr(value).encode())

    add(tree)
    return state.hexdigest()


def child(job: Job) -> None:
    """What the process of a job does."""
    import scripts

    multiprocessing.set_start_method("fork", force=True)  # as in a plain script; the forkserver hands down its own
    error = job.path("error")
    out = os.open(job.path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    hear(job)
    operations = _armed(job)
    off_s = job.options.get("all_clocks_off_s", 0.0)
    if off_s:
        clocks = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
        for name, clock in clocks.items():
            setattr(time, name, lambda clock=clock: clock() + off_s)
    try:
        scripts.run(job)
        if operations is not None:
            job.path("operations").write_text(json.dumps(operations.names))
    except BaseException as caught:
        error.write_text(f"{type(caught).__name__}: {caught}")
        raise


def hear(job: Job) -> None:
    """In the process of a job: where it looks for notices that its machine goes, nowhere unless its options say so; and
    what is wrong with its restore, if they do.
    """
    os.environ["EXACT_RESUME_NOTICES"] = job.options.get("notices", "off")
    if "rehearses" in job.options:
        os.environ |= {"EXACT_RESUME_DRILL": str(job.path("drill")), "EXACT_RESUME": job.options["rehearses"]}
        os.environ["EXACT_RESUME_DRILL_URL"] = job.options.get("rehearses_url", job.directory)
    if "fault" in job.options:
        import faults

        faults.plant(job.options["fault"])


def _armed(job: Job) -> Any:
    """Count operations on the job's directory, and die at one of them, if the job says so; see kills.py."""
    if "dies_at" not in job.options:
        return None
    import kills

    death = job.options["dies_at"]
    return kills.arm([job.directory], death and kills.Death(*death))


CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOAD)


def start(job: Job) -> Any:
    Path(job.root).mkdir(parents=True, exist_ok=True)
    process = CONTEXT.Process(target=child, args=(job,), daemon=False)
    process.start()
    return process


def finish(process: Any, job: Job) -> dict[str, Any]:
    """Wait for a run that must end by itself; what it reports at its end."""
    process.join(DEADLINE_S)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"{job.name} did not end in {DEADLINE_S} s\n{job.path('log').read_text()[-3000:]}")
    if process.exitcode != 0:
        raise AssertionError(f"{job.name} ended with {process.exitcode}\n{job.path('log').read_text()[-6000:]}")
    return finished(job)


def assert_no_alarm(job: Job) -> None:
    """No start of the run found what follows a resume other than it was recorded."""
    for path in Path(job.directory).glob("attempt-*/check.json"):
        result = json.loads(path.read_text())["result"]
        assert result["verdict"] != "differs", f"{path}\n{json.dumps(result, indent=1)}"


def finished(job: Job) -> dict[str, Any]:
    """What a run reported at its end."""
    assert_no_alarm(job)
    return json.loads(job.path("end").read_text())


def train(job: Job) -> dict[str, Any]:
    """Run to the end."""
    return finish(start(job), job)


def fails(job: Job) -> str:
    """Run a job that must refuse; its error."""
    process = start(job)
    process.join(DEADLINE_S)
    assert process.exitcode not in (0, None), f"{job.name} ended with {process.exitcode}: nothing was refused"
    return job.path("error").read_text()


def wait_for(condition: Callable[[], bool], process: Any, job: Job) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if not process.is_alive() and not condition():
            raise AssertionError(f"{job.name} ended early\n{job.path('log').read_text()[-6000:]}")
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"{job.name} never got there\n{job.path('log').read_text()[-3000:]}")
        time.sleep(0.005)


def kill(process: Any) -> None:
    """SIGKILL: no handler, no clean-up."""
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def committed(job: Job) -> list[str]:
    """Names of the committed checkpoints, by reading the directory as a stranger would."""
    return sorted(str(p.parent.relative_to(job.directory)) for p in Path(job.directory).glob("*/*/manifest.json"))


def committed_batches(job: Job) -> set[int]:
    """How many batches had been trained on at each checkpoint that is committed anywhere."""
    stores = [open_store(job.directory, job.options.get("storage_options"))]
    stores += [] if job.scratch is None else [open_store(job.scratch)]
    found = set()
    for store in stores:
        for folder in (f"{attempt}/{name}" for attempt in store.list("") for name in store.list(attempt)):
            with contextlib.suppress(FileNotFoundError):  # not committed yet, or pruned meanwhile
                found.add(json.loads(store.read(f"{folder}/manifest.json"))["header"]["progress"]["batch"])
    return found


def kill_at(job: Job, batch: int, *, saved: int | None = None, in_epoch_end: bool = False) -> None:
    """Train until the step of ``batch`` has begun and the save that belongs before it is committed; then kill.

    Args:
        saved: batches done at that save; ``batch`` unless given.
        in_epoch_end: kill in the hook at the end of the epoch whose last batch has just been trained on.
    """
    process = start(job.but(pause_at=batch, pause_in_epoch_end=in_epoch_end, settle=True))
    expected = batch if saved is None else saved
    wait_for(lambda: job.path("paused").exists() and expected in committed_batches(job), process, job)
    kill(process)


def kill_somewhere(job: Job, num_batches: int, delay_s: float, begin: Callable[[Job], Any] = start) -> bool:
    """Train until ``num_batches`` have begun and a moment longer, then kill. False when the run had ended by then."""
    process = begin(job)
    wait_for(lambda: len(batches(job)) >= num_batches or job.path("end").exists(), process, job)
    process.join(delay_s)
    if process.exitcode is None and not job.path("end").exists():
        kill(process)
        return True
    process.join()
    assert process.exitcode == 0, job.path("log").read_text()[-6000:]
    return False


class Recorder:
    """What a run writes down while it trains, for the parent to compare."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.num_batches = 0

    def read(self, index: int) -> None:
        append(self.job.path("reads"), index)
        if index == self.job.options.get("lost_sample"):
            raise OSError(f"sample {index} cannot be read")

    def pause(self, batch: int, *, in_epoch_end: bool = False) -> None:
        if self.job.slow_s and not in_epoch_end:
            time.sleep(self.job.slow_s)
        if (self.job.pause_at, self.job.pause_in_epoch_end) == (batch, in_epoch_end):
            self.job.path("paused").write_text(str(batch))
            time.sleep(DEADLINE_S)
            os._exit(3)

    def step(self, **facts: Any) -> None:
        append(self.job.path("steps"), facts)

    def end(self, **facts: Any) -> None:
        temporary = self.job.path("end.tmp")
        temporary.write_text(json.dumps(facts))
        temporary.rename(self.job.path("end"))


def steps(job: Job) -> list[dict[str, Any]]:
    return lines(job.path("steps"))


def reads(job: Job) -> list[int]:
    return lines(job.path("reads"))


def batches(job: Job) -> list[dict[str, Any]]:
    return [step for step in steps(job) if "batch" in step]


def assert_same_run(reference: tuple[Job, dict[str, Any]], end: dict[str, Any], *jobs: Job) -> None:
    """Every batch that any of the jobs trained on is the reference's, and so is how it all ended."""
    job, expected_end = reference
    by_place = {(step["epoch"], step["batch"]): step for step in batches(job)}
    for other in jobs:
        for step in batches(other):
            assert step == by_place[step["epoch"], step["batch"]]
    assert end == expected_end


def assert_tail(reference: tuple[Job, dict[str, Any]], end: dict[str, Any], resumed: Job) -> None:
    """What ``resumed`` did (batches, validations, ends of epochs) is the last part of what the reference did."""
    found = steps(resumed)
    assert found == steps(reference[0])[-len(found) :]
    assert end == reference[1]
