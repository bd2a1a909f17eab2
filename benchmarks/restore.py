"""How long it takes to bring a live model and its optimizer to what was saved: this project beside others.

    python benchmarks/restore.py [--quick] [--states 600 ...] [--only ours ...] [--rounds N] [--folder DIR] [--out FILE]

All restore the same state in one process, in turn, round by round, each from files of its own; ratios are formed with a
bare read right before, and only they mean anything elsewhere. Cold: the page cache was told to forget the files, and it
is looked whether it did; they were read once before that, as caches behind a virtual disk know some of what was just
written and not the rest: first reads of 1.4 GiB took from 0.4 to 2.4 s. Warm: they were read right before. The live
tensors are erased first and compared afterwards.
Takes some 20 minutes on two idle cores, 10 GiB of memory and 5 GiB of disk. Peers: `pip install -e '.[bench]'`; one
that is not installed is a row that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from measures.memory import drop_cache, extra_bytes, fill_cache
from measures.peer import Peer
from measures.peers import PEERS
from measures.report import Comparison
from measures.rounds import Found, Way, opened, parse_args, run
from measures.states import GIB, Live
from measures.timing import timed
from measures.yardsticks import Yardsticks

RESULTS = Path(__file__).parent / "results" / "restore.json"
READ = "*bare read*"
COMPARISON = Comparison(
    title="Restoring into a live model and optimizer",
    command="python benchmarks/restore.py",
    text="Median of the rounds (least to greatest); ratios are formed with a bare read right before. *Cold*: from the "
    "disk, read "
    "before, so that caches behind a virtual disk have all alike. *Warm*: "
    "from the page cache. *Extra memory*: at the peak, beyond the live model and optimizer; pages of a mapped file are "
    "not counted.",
    columns={"cold": "s", "cold / bare read": "x", "warm": "s", "warm / bare read": "x", "extra memory": "GiB"},
    packages=("torch", "lightning", "accelerate", "safetensors", "torchsnapshot", "moonclip"),
)
LOADERS = {key: kind for key, kind in PEERS.items() if kind.load_name}


def _erase_and_load(peer: Peer) -> float:
    peer.live.erase()
    return timed(peer.load)


def measure_peer(kind: type[Peer], yardsticks: Yardsticks, live: Live, folder: Path, number: int) -> Found:
    values = {}
    with opened(kind, live, folder) as peer:
        peer.save(live.state_dict())
        wanted = live.checksum()
        fill_cache(peer.folder)  # what lies behind the disk is to have them all
        bare = yardsticks.read_cold()
        if bare and drop_cache(peer.folder):
            values["cold"] = _erase_and_load(peer)
            values["cold / bare read"] = values["cold"] / bare["cold"]
        bare = yardsticks.read_warm()
        fill_cache(peer.folder)
        values["warm"] = _erase_and_load(peer)
        values["warm / bare read"] = values["warm"] / bare["warm"]
        if live.checksum() != wanted:
            raise RuntimeError("what was restored is not what was saved")
        if number == 0:  # the same each time
            live.erase()
            values["extra memory"] = extra_bytes(peer.load) / GIB
    return {kind.load_name: values}


def ways(live: Live, folder: Path, kinds: Mapping[str, type[Peer]]) -> dict[str, Way]:
    yardsticks = Yardsticks(live, folder)
    found = {"read": Way(READ, lambda _: {READ: yardsticks.read_cold() | yardsticks.read_warm()})}
    measure = {key: partial(measure_peer, kind, yardsticks, live, folder) for key, kind in kinds.items()}
    return found | {key: Way(kind.load_name, measure[key]) for key, kind in kinds.items()}


def main() -> None:
    args = parse_args(__doc__, list(LOADERS), RESULTS)
    run(args, COMPARISON, (), partial(ways, kinds={key: LOADERS[key] for key in args.only}))


if __name__ == "__main__":
    main()
