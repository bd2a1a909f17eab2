"""Saving and restoring in processes of their own, as a job does that is killed and started again."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

from measures.memory import drop_cache, extra_bytes, fill_cache
from measures.peer import Peer
from measures.states import GIB, Live, Size
from measures.timing import timed

PRELOADED = ["torch", "lightning.pytorch", "accelerate", "safetensors.torch"]  # once, by what forks the processes

Checksum = dict[str, float]
Measuring = Callable[[Peer], dict[str, float]]
P = ParamSpec("P")
T = TypeVar("T")


def preload() -> None:
    """Have processes begin with what takes long to import. There is one such server to a process: for scripts alone."""
    get_context("forkserver").set_forkserver_preload(PRELOADED)


def in_fresh_process(task: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``task`` returns or raises; everything goes there and back pickled."""
    context = get_context("forkserver")
    quiet = partial(warnings.simplefilter, "ignore")  # of peers, about torch
    with ProcessPoolExecutor(1, mp_context=context, initializer=quiet) as executor:
        return executor.submit(task, *args, **kwargs).result()


def save(kind: type[Peer], size: Size, folder: Path) -> Checksum:
    """Save once into ``folder``; what was saved."""
    live = Live(size)
    peer = kind(live, folder)
    peer.prepare()
    peer.save(live.state_dict())
    peer.close()
    return live.checksum()


def load(kind: type[Peer], size: Size, folder: Path, measure: Measuring) -> tuple[dict[str, float], Checksum]:
    """What ``measure`` finds of a load of what `save` saved into ``folder``, and what was loaded."""
    live = Live(size, is_trained=kind.loads_into_moments)
    live.erase()
    peer = kind(live, folder)
    peer.number = 1  # of the save there
    found = measure(peer)
    loaded = live.checksum()
    peer.close()
    return found, loaded


def cold(peer: Peer) -> dict[str, float]:
    """Seconds of a load from the disk; nothing where the page cache keeps the files."""
    fill_cache(peer.folder)  # what lies behind the disk is to have them
    is_cold = drop_cache(peer.folder)
    seconds = timed(peer.load)
    return {"cold": seconds} if is_cold else {}


def warm(peer: Peer) -> dict[str, float]:
    """Seconds of a load from the page cache."""
    fill_cache(peer.folder)
    return {"warm": timed(peer.load)}


def memory(peer: Peer) -> dict[str, float]:
    """GiB at the peak of a load, beyond the live model and its optimizer."""
    before = peer.live.size_bytes
    extra = extra_bytes(peer.load)
    return {"extra memory": max(0, extra - (peer.live.size_bytes - before)) / GIB}
