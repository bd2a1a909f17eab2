"""Runs without a directory that are killed, and gone on with from the newest file that ModelCheckpoint has written."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import Job, assert_tail, kill, start, train, wait_for

SAVERS = {
    "after steps": ({"every_n_train_steps": 1}, {}),
    "inside windows": ({"every_n_train_steps": 1}, {"accumulate_grad_batches": 2}),
    "after validation": ({"monitor": "val_loss", "save_on_train_epoch_end": False}, {"val_check_interval": 2}),
    "at the end of epochs": ({"every_n_epochs": 1, "save_on_train_epoch_end": True}, {}),
}


def kill_in(job, batch):
    process = start(job.but(pause_at=batch))
    wait_for(job.path("paused").exists, process, job)
    kill(process)


def newest(job):
    return str(max(Path(job.directory).glob("*.ckpt"), key=lambda path: path.stat().st_mtime_ns))


@pytest.mark.parametrize(("kind", "workers"), list(zip(SAVERS, [0, 2, 0, 2], strict=True)))
def test_the_newest_file_is_gone_on_from_exactly(tmp_path, kind, workers):
    saver, trainer = SAVERS[kind]
    options = {"saver": saver, "trainer": trainer}
    whole = Job(str(tmp_path), "reference", str(tmp_path / "reference"), options=options)
    reference = whole, train(whole)
    first = whole.but(name="first", directory=str(tmp_path / "files"), workers=workers)
    kill_in(first, 8)
    second = first.but(name="second", seed=9, workers=2 - workers, options=options | {"ckpt_path": newest(first)})
    kill_in(second, 12)
    third = first.but(name="third", seed=10, options=options | {"ckpt_path": newest(first)})
    assert_tail(reference, train(third), third)
