"""Ranks that are threads of one process and agree through a store of it, each with a start of the toy job."""

from __future__ import annotations

import threading

import torch.distributed as dist

from resume_core.policy import SaveEvery
from resume_core.ranks import Ranks
from resume_core.session import Session
from resume_core.state import Progress

EVERY = SaveEvery(steps=1, minutes=None)


def together(size, work, *, timeout_s=20.0, only=None):
    """Run ``work(ranks)`` on each rank; what each returned or raised."""
    store = dist.HashStore()
    found = [None] * size

    def run(rank):
        try:
            found[rank] = work(Ranks(rank, size, store, timeout_s=timeout_s))
        except Exception as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (range(size) if only is None else only)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, store


class Start:
    """One start of the toy job on one rank."""

    def __init__(self, toy, directory, ranks, **arguments):
        self.toy = toy
        toy.ranks = ranks
        self.session = Session(toy, directory, **{"save": EVERY} | arguments)
        self.restored = self.session.start(7)
        self.num = self.restored.progress.step if self.restored else 0
        self.session.begin(self.progress)

    @property
    def progress(self):
        return Progress(step=self.num, batch=self.num)

    def train(self, num_steps, *, settle=True):
        for _ in range(num_steps):
            self.toy.step()
            self.num += 1
            if settle:
                self.session.wait()
            self.session.boundary(self.progress)
        return self
