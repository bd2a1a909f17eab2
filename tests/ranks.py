"""Runs of several ranks: one process each, killed and started again together."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import harness
from harness import Job


def of_rank(job: Job, rank: int) -> Job:
    """What one rank writes down carries its number."""
    return job.but(name=f"{job.name}.{rank}")


def _child(job: Job, rank: int, size: int, port: int) -> None:
    from lightning.pytorch.strategies import DDPStrategy

    _prepare(job, rank)
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(size), NODE_RANK="0", LOCAL_RANK=str(rank),
        GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    options = dict(job.options)
    strategy = DDPStrategy(process_group_backend="gloo", **options.pop("ddp", {}))
    options["trainer"] = {"strategy": strategy, "devices": size, **options.get("trainer", {})}
    harness.child(of_rank(job, rank).but(options=options))


def _prepare(job: Job, rank: int) -> None:
    """What the options of a job change in one of its ranks."""
    import scripts

    scripts.Net = _net(job.options, rank)
    if rank:
        _shift_clocks(job.options.get("clock_off_s", 0.0))
    if rank == 1 and "stuck_at" in job.options:
        _get_stuck(job, rank)


def _net(options: dict[str, Any], rank: int) -> Any:
    import scripts
    import torch

    class Net(scripts.Net):
        def __init__(self, job: Job) -> None:
            super().__init__(job)
            if options.get("net") == "normalised":
                self.layers.insert(1, torch.nn.BatchNorm1d(8))
            self.factor = 1.0

        def loss(self, batch: Any) -> Any:
            return super().loss(batch) * self.factor

        def on_train_batch_end(self, *args: Any) -> None:
            if "seeds" in options:
                self.factor *= 1 - 0.01 * rank  # what a rank keeps for itself

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["factor"] = self.factor

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.factor = checkpoint["factor"]

        def on_train_start(self) -> None:
            if "seeds" in options and self.global_step == 0:
                torch.manual_seed(options["seeds"][rank])  # so that dropout differs between ranks

        def log(self, name: str, value: Any, **arguments: Any) -> None:
            if options.get("sync") and name in ("loss", "mean", "val_loss"):
                arguments["sync_dist"] = True
            super().log(name, value, **arguments)

    return Net


def _shift_clocks(off_s: float) -> None:
    monotonic, now = time.monotonic, time.time
    time.monotonic, time.time = lambda: monotonic() + off_s, lambda: now() + off_s


def _get_stuck(job: Job, rank: int) -> None:
    """In the background, in writing what this rank has of one of the saves."""
    from resume_core.storage import CheckpointWriter

    plain = CheckpointWriter.write_part

    def write_part(writer: Any) -> Any:
        if writer._slot.serial == job.options["stuck_at"]:
            of_rank(job, rank).path("stuck").touch()
            time.sleep(harness.DEADLINE_S)
        return plain(writer)

    CheckpointWriter.write_part = write_part


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start(job: Job, size: int) -> list[Any]:
    port = _free_port()
    processes = [harness.CONTEXT.Process(target=_child, args=(job, rank, size, port)) for rank in range(size)]
    for process in processes:
        process.start()
    return processes


def finish(processes: list[Any], job: Job) -> list[dict[str, Any]]:
    """Wait for ranks that must end by themselves; what each reports at its end."""
    try:
        return [harness.finish(process, of_rank(job, rank)) for rank, process in enumerate(processes)]
    finally:
        end(processes)


def end(processes: list[Any]) -> None:
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()


def train(job: Job, size: int) -> list[dict[str, Any]]:
    return finish(start(job, size), job)


def fails(job: Job, size: int) -> list[str]:
    """Start ranks that must all refuse; the error of each."""
    processes = start(job, size)
    for process in processes:
        process.join(harness.DEADLINE_S)
    codes = [process.exitcode for process in processes]
    end(processes)
    assert all(code not in (0, None) for code in codes), f"not all refused: {codes}"
    return [of_rank(job, rank).path("error").read_text() for rank in range(size)]


def kill_at(job: Job, size: int, batch: int, *, saved: int | None = None) -> None:
    """Train until all ranks have begun the step of ``batch`` and the save before it is committed; then kill all."""
    processes = start(job.but(pause_at=batch, settle=True), size)
    expected = batch if saved is None else saved
    ranks = [of_rank(job, rank) for rank in range(size)]

    def is_there() -> bool:
        return all(rank.path("paused").exists() for rank in ranks) and expected in harness.committed_batches(job)

    for rank, process in zip(ranks, processes, strict=True):
        harness.wait_for(is_there, process, rank)
    for process in processes:
        harness.kill(process)


def assert_tails(
    reference: tuple[Job, list[dict[str, Any]]],
    ends: list[dict[str, Any]],
    resumed: Job,
    *,
    saved: int | None = None,
) -> None:
    """On every rank, what ``resumed`` did is the last part of what the reference did.

    Args:
        saved: batches that had been trained on at the checkpoint that it went on from.
    """
    job, expected = reference
    for rank, (whole, last) in enumerate(zip(expected, ends, strict=True)):
        harness.assert_tail((of_rank(job, rank), whole), last, of_rank(resumed, rank))
        if saved is not None:
            num = len(harness.batches(of_rank(job, rank)))
            assert len(harness.batches(of_rank(resumed, rank))) == num - saved
