"""Jobs of two ranks that ``torchrun`` starts; as a script, one of its workers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import harness
from accelerate_runs import of_ranks
from harness import Job

NUM_RANKS = 2


def start(job: Job, *options: str) -> subprocess.Popen[bytes]:
    """Start torchrun with ``options``; of its restarts the job has another name and seed, and pauses nowhere."""
    file = job.path("job")
    file.write_text(json.dumps(dataclasses.asdict(job)))
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={NUM_RANKS}", *options, __file__, file]
    # as torch's issue 135712 has it, ranks that are restarted may find the addresses of those before in a shared store
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with job.path("torchrun").open("wb") as log:
        return subprocess.Popen([sys.executable, *map(str, command)], env=environment, stdout=log, stderr=log)


def restarted(job: Job) -> Job:
    """What torchrun's first restart runs."""
    return job.but(name=f"{job.name}-restarted", seed=job.seed + 1000, pause_at=None)


def finish(process: subprocess.Popen[bytes], job: Job) -> None:
    """Wait for torchrun, which must end by itself."""
    try:
        code = process.wait(2 * harness.DEADLINE_S)
    finally:
        process.kill()
    logs = [job.path("torchrun"), *(each.path("log") for each in of_ranks(job, NUM_RANKS))]
    assert code == 0, "\n".join(path.read_text()[-3000:] for path in logs if path.exists())


def wait_until_paused(process: subprocess.Popen[bytes], job: Job, *ranks: int) -> None:
    """Until these ranks wait to be killed and the save before is committed."""
    paused = [of_ranks(job, NUM_RANKS)[rank].path("paused") for rank in ranks]
    deadline = time.monotonic() + 2 * harness.DEADLINE_S
    while not (all(path.exists() for path in paused) and job.pause_at in harness.committed_batches(job)):
        assert process.poll() is None, job.path("torchrun").read_text()[-6000:]
        assert time.monotonic() < deadline, f"{job.name} never got there"
        time.sleep(0.02)


def kill(process: subprocess.Popen[bytes], job: Job) -> None:
    """SIGKILL for torchrun and its workers, which are in sessions of their own."""
    process.kill()
    process.wait()
    for rank in range(NUM_RANKS):
        kill_worker(job, rank)


def kill_worker(job: Job, rank: int) -> None:
    """SIGKILL for one of the workers."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(of_ranks(job, NUM_RANKS)[rank].path("pid").read_text()), signal.SIGKILL)


def _work(file: Path) -> None:
    import torch
    from accelerate_runs import _run

    fields = json.loads(file.read_text())
    job = Job(**{**fields, "allow": tuple(fields["allow"])})
    rank = int(os.environ["RANK"])
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) > 0:
        job = restarted(job)
    if rank not in job.options.get("pausing ranks", range(NUM_RANKS)):
        job = job.but(pause_at=None)
    job = job.but(name=f"{job.name}.{rank}")
    job.path("pid").write_text(str(os.getpid()))
    _run(job)
    torch.distributed.destroy_process_group()  # left to the end of the process, some of torch's threads abort it


if __name__ == "__main__":
    _work(Path(sys.argv[1]))
