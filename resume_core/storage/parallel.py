"""Several reads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing

__all__ = ["Steps", "run_all", "run_steps"]

Steps = Generator[None, None, None]
"""Work in several steps, each done when the next value is asked for; closed early when the rest is not wanted."""


def run_all(tasks: Iterable[Callable[[], object]], num_threads: int) -> None:
    """Run ``tasks``, begun in their order, in that many threads. When it returns or raises, none of them runs.

    Raises:
        Exception: the error of the first task that failed; those that had not begun by then are not run.
    """
    run_steps(map(_only, tasks), num_threads)


def run_steps(works: Iterable[Steps], num_threads: int) -> None:
    """The same for work in several steps, each piece of which stays in one thread: a step not begun is not run."""
    waiting = list(works)
    is_over = threading.Event()
    if num_threads == 1 or len(waiting) <= 1:
        for work in waiting:
            _go_through(work, is_over)
        return
    with ThreadPoolExecutor(num_threads, thread_name_prefix="exact-resume-read") as executor:
        futures = [executor.submit(_go_through, work, is_over) for work in waiting]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:  # after an interruption too, or leaving the block would wait for all of them
            is_over.set()
            executor.shutdown(wait=False, cancel_futures=True)
    for future in futures:
        if not future.cancelled():
            future.result()


def _only(task: Callable[[], object]) -> Steps:
    task()
    yield


def _go_through(work: Steps, is_over: threading.Event) -> None:
    with closing(work):
        while not is_over.is_set() and next(work, work) is not work:
            pass
