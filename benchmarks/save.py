"""How long saving stops training, and until the checkpoint is on the disk: this project beside others.

    python benchmarks/save.py [--quick] [--states 600 ...] [--only ours ...] [--rounds N] [--folder DIR] [--out FILE]

All save the same state in one process, in turn, round by round. Ratios are formed with a yardstick that was taken
right before, the copy before each save and the write before each peer, as on a shared machine memory and disk are now
fast, now half as fast for seconds; only ratios mean anything elsewhere. In every round a peer is opened, saves once to
have its memory and its processes, and is measured at the saves after that; its files are removed. What it does not sync
itself is synced here, as part of its time.
Takes some 40 minutes on two idle cores, 12 GiB of memory and 10 GiB of disk. Peers: `pip install -e '.[bench]'`; one
that is not installed is a row that says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from measures.memory import extra_bytes
from measures.peer import Peer, Times
from measures.peers import PEERS, ExactResume
from measures.report import Comparison
from measures.rounds import Found, Way, opened, parse_args, run
from measures.states import GIB, Live
from measures.training import Training
from measures.yardsticks import Yardsticks

RESULTS = Path(__file__).parent / "results" / "save.json"
COPY, WRITE = "*warm `torch._foreach_copy_`*", "*bare O_DIRECT write, fsync*"
COMPARISON = Comparison(
    title="Saving",
    command="python benchmarks/save.py",
    text="Median of the rounds (least to greatest); ratios are formed with a yardstick taken right before. *Blocks*: "
    "training waits. *Durable*: from the start of the save until every file is synced, by the peer itself or else by "
    "the benchmark. *Extra memory*: at the peak of a save that is not the first, beyond what is held between saves. "
    "*Training meanwhile*: steps a second of a loop of one thread beside the writing, against the same loop alone.",
    columns={
        "blocks": "s",
        "blocks / copy": "x",
        "durable": "s",
        "durable / bare write": "x",
        "extra memory": "GiB",
        "training meanwhile": "x",
    },
    packages=("torch", "lightning", "accelerate", "safetensors", "torchsnapshot", "moonclip", "dlrover"),
)
SAVERS = {key: kind for key, kind in PEERS.items() if kind.name}


def _save(peer: Peer) -> Times:
    peer.live.change()
    return peer.save(peer.live.state_dict())


def _save_pruned(peer: Peer) -> Times:
    peer.prune()
    return _save(peer)


@dataclass(frozen=True)
class Bare:
    """The yardsticks beside one peer."""

    yardsticks: Yardsticks
    write_s: float

    def measured(self, peer: Peer) -> dict[str, float]:
        """One save, with a copy right before it."""
        copy_s = self.yardsticks.copy()["blocks"]
        times = _save(peer)
        found = {"blocks": times.blocking_s, "durable": times.durable_s}
        return found | {
            "blocks / copy": times.blocking_s / copy_s,
            "durable / bare write": times.durable_s / self.write_s,
        }


def _rate_meanwhile(peer: Peer) -> float:
    training = Training()
    peer.prune()
    peer.live.change()
    state, alone = peer.live.state_dict(), training.rate_alone()
    return peer.save_beside(state, training.rate) / alone


def measure_peer(kind: type[Peer], yardsticks: Yardsticks, folder: Path, number: int) -> Found:
    bare = Bare(yardsticks, yardsticks.write()["durable"])
    with opened(kind, yardsticks.live, folder) as peer:
        peer.prepare()
        found = {f"{kind.name}, first save": bare.measured(peer)}
        if kind is ExactResume:  # as a run with `Keep` saves, once it has begun to prune
            found[f"{kind.name}, nothing pruned yet"] = bare.measured(peer)
        peer.prune()
        values = bare.measured(peer)
        if peer.in_background:
            values["training meanwhile"] = _rate_meanwhile(peer)
        if number == 0:  # the same each time, and looking for it costs a save
            values["extra memory"] = extra_bytes(lambda: _save_pruned(peer)) / GIB
    return {kind.name: values, **(found if kind is ExactResume else {})}


def ways(live: Live, folder: Path, kinds: Mapping[str, type[Peer]]) -> dict[str, Way]:
    yardsticks = Yardsticks(live, folder)
    found = {
        "copy": Way(COPY, lambda _: {COPY: yardsticks.copy()}),
        "write": Way(WRITE, lambda _: {WRITE: yardsticks.write()}),
    }
    measure = {key: partial(measure_peer, kind, yardsticks, folder) for key, kind in kinds.items()}
    return found | {key: Way(kind.name, measure[key]) for key, kind in kinds.items()}


def main() -> None:
    args = parse_args(__doc__, list(SAVERS), RESULTS)
    run(args, COMPARISON, (), partial(ways, kinds={key: SAVERS[key] for key in args.only}))


if __name__ == "__main__":  # a peer spawns a process, which imports this
    main()
