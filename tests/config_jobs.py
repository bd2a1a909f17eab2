"""All cases of one framework and one number of ranks, tried in the processes of one job, one after another: each on a
copy of what a killed run has left."""

from __future__ import annotations

import copy
import importlib
import json
import multiprocessing
import os
import random
import shutil
import socket
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import harness
import numpy as np
import torch
from config_cases import BASE, PASSED, REFUSED, SAVED_WITH, rewrite

from resume_core.capture.facts_version import FACTS, is_new
from resume_core.storage import Manifest

CUT = 5  # the newest checkpoint that the killed run has left


def _child(framework: str, names: list[str], root: str, rank: int, size: int, port: int) -> None:
    multiprocessing.set_start_method("fork", force=True)
    os.environ["EXACT_RESUME_NOTICES"] = "off"
    os.chdir(root)  # in no repository, which somebody might commit to meanwhile
    sys.argv = [""]
    if size > 1:
        os.environ.update(
            MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(size), RANK=str(rank), LOCAL_RANK=str(rank),
            NODE_RANK="0", LOCAL_WORLD_SIZE=str(size), GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
        )  # fmt: skip
    out = os.open(f"{root}/log.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    torch.set_num_threads(1)
    script = importlib.import_module(f"config_cases_{framework}")
    results = Cases(script, Path(root), rank, size).run(names)
    Path(f"{root}/results.{rank}").write_text(json.dumps(results))


class Cases:
    def __init__(self, script: Any, root: Path, rank: int, size: int) -> None:
        self.script, self.root, self.rank, self.size = script, root, rank, size

    def meet(self) -> None:
        if self.size > 1:
            torch.distributed.barrier()

    def run(self, names: list[str]) -> dict[str, Any]:
        kinds = {"whole": {}, "longer": {"epochs": 3}} if "later end" in names else {"whole": {}}
        ends = {kind: self.train(kind, changes)[0] for kind, changes in kinds.items()}
        return {name: self.one(name, ends) for name in names}

    def train(self, folder: str, changes: dict[str, Any]) -> Any:
        config = copy.deepcopy(BASE | changes)
        config["hparams"]["shard"] = self.rank  # as scripts have it that share out files by themselves
        random.seed(config["seed"])
        np.random.seed(config["seed"])
        torch.manual_seed(config["seed"])
        return self.script.train(config, self.root / folder, self.size)

    def one(self, name: str, ends: dict[str, str]) -> dict[str, Any]:
        changes, around = (REFUSED[name] if name in REFUSED else PASSED[name])[:2]
        folder = self.root / name.replace(" ", "-")
        block: AbstractContextManager[Any] = nullcontext()
        if self.rank == 0:
            shutil.copytree(self.root / "whole", folder)
            for path in folder.glob("ckpt/*/step-*"):
                if int(path.name.partition("-")[2].partition(".")[0]) > CUT:
                    shutil.rmtree(path)
            if name in SAVED_WITH:
                _resave(folder / "ckpt", SAVED_WITH[name], is_old=name == "an older release")
        if around is not None:
            block = self.around(around, folder) or block
        self.meet_if_begun()
        with block:
            end, found, messages = self.train(folder.name, changes)
        self.meet_if_begun()
        expected = ends.get("longer" if name == "later end" else "whole")
        attempts = len(list(folder.glob("ckpt/attempt-*")))
        return {**found, "is_same_end": end == expected, "attempts": attempts, "messages": messages}

    def meet_if_begun(self) -> None:
        if torch.distributed.is_initialized():
            self.meet()

    def around(self, around: Any, folder: Path) -> Any:
        if around.__code__.co_varnames[: around.__code__.co_argcount] == ("root",):
            if self.rank == 0:
                around(folder)
            return None
        return around()


def _resave(directory: Path, facts: dict[str, Any], *, is_old: bool) -> None:
    """The checkpoints as they would have been written elsewhere."""
    for path in directory.glob("*/*/manifest.json"):
        manifest = Manifest.from_bytes(path.read_bytes(), path=str(path))
        config = manifest.header["config"]
        config["info"].update(facts)
        for severity in config if is_old else ():
            config[severity] = {name: value for name, value in config[severity].items() if not is_new(name, {})}
        config["info"].pop(FACTS if is_old else "", None)
        path.write_bytes(manifest.to_bytes())


def _fill(root: Path) -> None:
    (root / "data").mkdir(parents=True)
    for number in range(16):
        rewrite(root, f"{number}.txt", str(number))


def results_of(framework: str, names: list[str], root: Path, size: int) -> list[dict[str, Any]]:
    """What became of each case, on each rank."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    for kind in ("whole", "longer"):
        _fill(root / kind)
    shared = (framework, names, str(root))
    processes = [harness.CONTEXT.Process(target=_child, args=(*shared, rank, size, port)) for rank in range(size)]
    for process in processes:
        process.start()
    for rank, process in enumerate(processes):
        process.join(4 * harness.DEADLINE_S)
        if process.exitcode != 0:
            for each in processes:
                each.kill()
            raise AssertionError(f"rank {rank}: {process.exitcode}\n{(root / f'log.{rank}').read_text()[-5000:]}")
    return [json.loads((root / f"results.{rank}").read_text()) for rank in range(size)]
