"""What the tests of a scratch share."""

from __future__ import annotations

import contextlib
import errno
import threading

import pytest

from resume_core import SaveEvery, saves
from resume_core.errors import SaveFailedError
from resume_core.storage import open_store

EVERY = SaveEvery(steps=1, minutes=None)


def names(place):
    """Committed checkpoints in one store, as a stranger would find them."""
    store = open_store(str(place))
    found = []
    for attempt in store.list(""):
        steps = [name for name in store.list(attempt) if store.exists(f"{attempt}/{name}/manifest.json")]
        found += [f"{attempt[:12]}/{name}" for name in steps]
    return sorted(found)


def files_of(place, path):
    store = open_store(str(place))
    return {name: store.read(f"{path}/{name}") for name in store.list(path)}


def told(caplog, text):
    return [r.getMessage() for r in caplog.records if text in r.getMessage()]


@contextlib.contextmanager
def promotions_held(monkeypatch):
    """Promotions wait until the block ends, or the event that it is given is set."""
    gate, copy = threading.Event(), saves.copy_share
    monkeypatch.setattr(saves, "copy_share", lambda *args: gate.wait(20) and copy(*args))
    try:
        yield gate
    finally:
        gate.set()


def promotions_fail(monkeypatch, error=None):
    def refuse(*_):
        raise error or ConnectionError("the network is down")

    monkeypatch.setattr(saves, "copy_share", refuse)


def killed_before_promotion(directory, near, start, monkeypatch):
    """A run whose last checkpoint is on the scratch alone; its process is gone."""
    run = start(directory, scratch=near, save=EVERY).train(2)
    run.session.wait()
    with monkeypatch.context() as patch:
        promotions_fail(patch)
        run.train(1)
        run.session._saves.wait()
        with pytest.raises(SaveFailedError, match="the network is down"):
            run.session.wait()
    assert names(near)[-1].endswith("step-000000003")
    assert not names(directory)[-1].endswith("step-000000003")
    return run


def slowly(run, num_steps):
    """Train, and let everything in the background end before each boundary."""
    for _ in range(num_steps):
        run.session._saves.wait()
        run.train(1)


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
