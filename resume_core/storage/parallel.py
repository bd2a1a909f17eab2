"""Several reads at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

__all__ = ["run_all"]


def run_all(tasks: Iterable[Callable[[], object]], num_threads: int) -> None:
    """Run ``tasks``, begun in their order, in that many threads. When it returns or raises, none of them runs.

    Raises:
        Exception: the error of the first task that failed; those that had not begun by then are not run.
    """
    waiting = list(tasks)
    if num_threads == 1 or len(waiting) <= 1:
        for task in waiting:
            task()
        return
    with ThreadPoolExecutor(num_threads, thread_name_prefix="exact-resume-read") as executor:
        futures = [executor.submit(task) for task in waiting]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:  # after an interruption too, or leaving the block would wait for all of them
            executor.shutdown(wait=False, cancel_futures=True)
    for future in futures:
        if not future.cancelled():
            future.result()
