"""Run as a script: prints what a process holds now, and when its input ends, the most that it held since.

Pages that a file backs are left out: the kernel takes them back whenever it likes.
"""

from __future__ import annotations

import os
import select
import sys

_INTERVAL_S = 0.003


def _held_bytes(pid: int) -> int:
    """Of the process and its children; memory that they share counts once."""
    total = _status(pid, ("RssAnon", "RssShmem"))
    return total + sum(_status(child, ("RssAnon",)) for child in _children(pid) if child != os.getpid())


def _status(pid: int, names: tuple[str, ...]) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:  # it has ended
        return 0
    return sum(int(fields[name].split()[0]) * 1024 for name in names if name in fields)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:  # a thread has ended
        pass
    return found


def _main(pid: int) -> None:
    peak = _held_bytes(pid)
    print(peak, flush=True)
    while not select.select([sys.stdin], [], [], _INTERVAL_S)[0]:
        peak = max(peak, _held_bytes(pid))
    print(max(peak, _held_bytes(pid)), flush=True)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
