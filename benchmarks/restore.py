"""How long it takes to bring a live model and its optimizer to what was saved: this project beside others.

    python benchmarks/restore.py [--quick] [--states 600 ...] [--only ours ...] [--rounds N] [--folder DIR] [--out FILE]

All restore the same state, each from files of its own and each time in a fresh process, as a job does that was killed:
in one that has loaded before, memory that was taken for that passes for nothing. They do so in turn, round by round;
ratios are formed with a bare read of the round or, warm, with one right before; only they mean anything elsewhere.
Cold: the page cache was told to forget the files, and it is looked whether it did; they were read once before that, as
caches behind a virtual disk know some of what was just written and not the rest: first reads of 1.4 GiB took from 0.4
to 2.4 s. Warm: they were read right before. What is live is erased first, and compared afterwards.
Takes some 30 minutes on two idle cores, 10 GiB of memory and 20 GiB of disk. Peers: `pip install -e '.[bench]'`; one
that is not installed is a row that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from measures import fresh
from measures.peer import Peer
from measures.peers import PEERS
from measures.report import Comparison
from measures.rounds import Found, Way, parse_args, run
from measures.states import Live
from measures.yardsticks import Yardsticks

RESULTS = Path(__file__).parent / "results" / "restore.json"
READ = "*bare read*"
READ_FRESH = "*bare read*, moments into memory that nobody has used"
# a cold read right before would not do: after some gigabytes at once, a disk in a cloud is throttled for a while
RATIOS = (("cold / bare read", "cold", READ),)
COMPARISON = Comparison(
    title="Restoring into a live model and optimizer",
    command="python benchmarks/restore.py",
    text="Median of the rounds (least to greatest), each in a fresh process; ratios are formed with a bare read, "
    "that of the round for cold ones, right before for warm ones. *Cold*: from the disk, read "
    "before, so that caches behind a virtual disk have all alike. *Warm*: "
    "from the page cache. *Extra memory*: at the peak, beyond the live model and optimizer; pages of a mapped file are "
    "not counted.",
    columns={"cold": "s", "cold / bare read": "x", "warm": "s", "warm / bare read": "x", "extra memory": "GiB"},
    packages=("torch", "lightning", "accelerate", "safetensors", "torchsnapshot", "moonclip"),
)
LOADERS = {key: kind for key, kind in PEERS.items() if kind.load_name}


class Restoring:
    """One way to restore, from files that are written once.

    Args:
        kind: of the peer.
        yardsticks: of the state.
        folder: for its files.
    """

    def __init__(self, kind: type[Peer], yardsticks: Yardsticks, folder: Path) -> None:
        self._kind, self._yardsticks = kind, yardsticks
        self._size = yardsticks.live.size
        self._folder = folder / kind.key
        self._saved: fresh.Checksum = {}

    def measure(self, number: int) -> Found:
        """One round."""
        if not self._saved:
            self._folder.mkdir()
            self._saved = fresh.in_fresh_process(fresh.save, self._kind, self._size, self._folder)
        values = self._load(fresh.cold)
        bare = self._yardsticks.read_warm()
        values |= self._load(fresh.warm)
        values["warm / bare read"] = values["warm"] / bare["warm"]
        if number == 0:  # the same each time
            values |= self._load(fresh.memory)
        return {self._kind.load_name: values}

    def _load(self, measure: fresh.Measuring) -> dict[str, float]:
        found, loaded = fresh.in_fresh_process(fresh.load, self._kind, self._size, self._folder, measure)
        if loaded != self._saved:
            raise RuntimeError("what was restored is not what was saved")
        return found


def read_fresh(yardsticks: Yardsticks) -> dict[str, float]:
    """What the kernel takes for memory that a job, as it starts, does not have for its optimizer."""
    num_bytes = yardsticks.live.moments_bytes
    values, bare = yardsticks.read_cold(num_bytes), yardsticks.read_warm()
    values |= yardsticks.read_warm(num_bytes)
    return values | {"warm / bare read": values["warm"] / bare["warm"]}


def ways(live: Live, folder: Path, kinds: Mapping[str, type[Peer]]) -> dict[str, Way]:
    yardsticks = Yardsticks(live, folder)
    found = {"read": Way(READ, lambda _: {READ: yardsticks.read_cold() | yardsticks.read_warm()})}
    if live.moments_bytes:
        found["read-fresh"] = Way(READ_FRESH, lambda _: {READ_FRESH: read_fresh(yardsticks)})
    measure = {key: Restoring(kind, yardsticks, folder).measure for key, kind in kinds.items()}
    return found | {key: Way(kind.load_name, measure[key]) for key, kind in kinds.items()}


def main() -> None:
    args = parse_args(__doc__, list(LOADERS), RESULTS)
    run(args, COMPARISON, RATIOS, partial(ways, kinds={key: LOADERS[key] for key in args.only}))


if __name__ == "__main__":
    fresh.preload()
    main()
