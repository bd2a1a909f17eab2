"""This project and others that save and restore a training state, each behind the same few methods."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from measures.dcp import Dcp, DcpAsync, DcpAsyncCached, DcpProcess, DcpProcessCached
from measures.memory import sync_tree
from measures.peer import DEADLINE_S, Peer
from measures.states import Live
from resume_core.capture.modules import plainly_loaded
from resume_core.checkpointer import Checkpointer, Pending
from resume_core.policy import Keep
from resume_core.state import State
from resume_core.storage import CheckpointSlots, Lineage, Slot, open_store, prune, read_manifest
from resume_core.writer import Writer

ARENA_THREAD = "exact-resume-arena"


class ExactResume(Peer):
    """This project, as a save of a session does it: staged, then written and committed by the writer's thread."""

    key, name, load_name, in_background, syncs = "ours", "**exact-resume**", "**exact-resume**", True, True

    def __init__(self, live: Live, folder: Path) -> None:
        super().__init__(live, folder)
        self._store = open_store(folder)
        self._lineage = Lineage(self._store)
        self._checkpointer, self._writer = Checkpointer(self._store), Writer()

    def prepare(self) -> None:
        self._attempt = self._lineage.claim()
        self._slots = CheckpointSlots(self._store, self._attempt.name)
        # a session does this after the first step; by the first save that holds moments, the pages have come
        self._checkpointer.prepare(self._state(self.live.state_dict()))
        _join(ARENA_THREAD)

    @staticmethod
    def _state(state: Mapping[str, Any]) -> State:
        return State(model=state["model"], training={"optimizer": state["optimizer"]}, rank={})

    def start(self, state: dict[str, Any]) -> None:
        slot = self._slots.take(self.number)

        def begun(pending: Pending) -> None:
            self._writer.submit(lambda: self._write(pending, slot))

        self._checkpointer.stage(self._state(state), {"step": self.number}, begun)

    def _write(self, pending: Pending, slot: Slot) -> None:
        pending.write(self._store, slot, still_newest=lambda: self._lineage.check_newest(self._attempt))

    def finish(self) -> None:
        self._writer.wait(DEADLINE_S)
        _, error = self._writer.take_outcome()
        if error is not None:
            raise error

    def prune(self) -> None:
        pruned = prune(self._lineage, Keep(last=1), self._attempt)
        assert not pruned.failures, pruned.failures

    def close(self) -> None:
        self._store.release()

    def load(self) -> None:
        self._read_into({"model": plainly_loaded(self.live.module)})

    def _read_into(self, live: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        ref = next(iter(self._lineage.candidates()))
        state = self._checkpointer.read(ref, read_manifest(self._store, ref), into=live)
        self.live.module.load_state_dict(dict(state.model))
        self.live.optimizer.load_state_dict(state.training["optimizer"])


class ExactResumeInPlace(ExactResume):
    """Into moments that are there already, as the peers that copy do."""

    key, name, load_name = "ours-in-place", "", "**exact-resume**, into live moments too"
    loads_into_moments = True

    def load(self) -> None:
        moments = self.live.optimizer.state_dict()["state"]
        training = {
            f"training.optimizer.state.{number}.{name}": tensor
            for number, state in moments.items()
            for name, tensor in state.items()
        }
        self._read_into({"model": plainly_loaded(self.live.module), "training": training})


def _join(name: str) -> None:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join()


class TorchSave(Peer):
    key, name, load_name = "torch", "torch.save", "torch.load, load_state_dict"

    def start(self, state: dict[str, Any]) -> None:
        torch.save(state, self.path)

    def load(self) -> None:
        found = torch.load(self.path, weights_only=True)
        self.live.module.load_state_dict(found["model"])
        self.live.optimizer.load_state_dict(found["optimizer"])


class TorchSaveSync(TorchSave):
    key, name, load_name = "torch-fsync", "torch.save, fsync", ""

    def start(self, state: dict[str, Any]) -> None:
        super().start(state)
        sync_tree(self.folder)


class TorchMmap(TorchSave):
    key, name, load_name = "torch-mmap", "", "torch.load(mmap=True), copy_"
    loads_into_moments = True

    def load(self) -> None:
        found = torch.load(self.path, weights_only=True, mmap=True)
        loaded = {f"model.{name}": tensor for name, tensor in found["model"].items()}
        for number, moments in found["optimizer"]["state"].items():
            loaded |= {f"optimizer.{number}.{name}": tensor for name, tensor in moments.items()}
        live = self.live.tensors()
        with torch.no_grad():  # load_state_dict would leave the moments on the disk
            torch._foreach_copy_(list(live.values()), [loaded[name] for name in live])


class Safetensors(Peer):
    key, name, load_name = "safetensors", "safetensors.save_file", "safetensors.safe_open, copy_"
    loads_into_moments = True

    def __init__(self, live: Live, folder: Path) -> None:
        super().__init__(live, folder)
        import safetensors.torch

        self._library = safetensors

    def start(self, state: dict[str, Any]) -> None:
        self._library.torch.save_file(self.live.tensors(), self.path)

    def load(self) -> None:
        with self._library.safe_open(self.path, framework="pt") as file, torch.no_grad():
            for name, tensor in self.live.tensors().items():
                tensor.copy_(file.get_tensor(name))


class Lightning(Peer):
    key, name, load_name = (
        "lightning",
        "Lightning Trainer.save_checkpoint",
        "Lightning, as fit(ckpt_path=...) loads",
    )

    def __init__(self, live: Live, folder: Path) -> None:
        super().__init__(live, folder)
        from lightning.pytorch import LightningModule, Trainer

        class Module(LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.net = live.module

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return live.optimizer

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = Trainer(max_epochs=1, accelerator="cpu", devices=1, plugins=self._plugins(), **quiet)
        # as `fit` leaves it, without a fit: a step would need gradients, and a batch
        trainer.strategy.connect(Module())
        trainer.strategy.optimizers = [live.optimizer]
        self._trainer = trainer

    def _plugins(self) -> list[Any]:
        return []

    def start(self, state: dict[str, Any]) -> None:
        self._trainer.save_checkpoint(self.path)

    def load(self) -> None:
        strategy = self._trainer.strategy
        checkpoint = strategy.load_checkpoint(self.path, weights_only=True)
        strategy.load_model_state_dict(checkpoint)
        strategy.load_optimizer_state_dict(checkpoint)


class LightningAsync(Lightning):
    key, name, load_name, in_background = "lightning-async", "Lightning AsyncCheckpointIO", "", True

    def _plugins(self) -> list[Any]:
        from lightning.pytorch.plugins.io import AsyncCheckpointIO

        return [AsyncCheckpointIO()]

    def finish(self) -> None:
        self._trainer.strategy.checkpoint_io.teardown()


class Accelerate(Peer):
    key, name, load_name = "accelerate", "Accelerate save_state", "Accelerate load_state"

    def __init__(self, live: Live, folder: Path) -> None:
        super().__init__(live, folder)
        from accelerate import Accelerator

        self._accelerator = Accelerator(cpu=True)
        self._accelerator.prepare(live.module, live.optimizer)

    def start(self, state: dict[str, Any]) -> None:
        self._accelerator.save_state(str(self.path))

    def load(self) -> None:
        self._accelerator.load_state(str(self.path))

    def close(self) -> None:
        from accelerate.state import AcceleratorState, PartialState

        self._accelerator.free_memory()
        AcceleratorState._reset_state()
        PartialState._reset_state()


class Torchsnapshot(Peer):
    key, name, load_name = "torchsnapshot", "torchsnapshot async_take", "torchsnapshot restore"
    in_background = loads_into_moments = True

    def __init__(self, live: Live, folder: Path) -> None:
        super().__init__(live, folder)
        import torchsnapshot

        self._library = torchsnapshot
        self._app_state = {"model": live.module, "optimizer": live.optimizer}

    def start(self, state: dict[str, Any]) -> None:
        self._pending = self._library.Snapshot.async_take(str(self.path), self._app_state)

    def finish(self) -> None:
        self._pending.wait()

    def load(self) -> None:
        self._library.Snapshot(str(self.path)).restore(self._app_state)


class Moonclip(Peer):
    """With its defaults: compressed, synced; values that changed are stored as differences where that is smaller."""

    key, name, load_name = "moonclip", "moonclip save", "moonclip load_latest"
    in_background, syncs = True, True

    def __init__(self, live: Live, folder: Path) -> None:
        super().__init__(live, folder)
        import moonclip

        self._manager = moonclip.CheckpointManager(str(folder))

    def start(self, state: dict[str, Any]) -> None:
        self._manager.save(step=self.number, model=self.live.module, optimizer=self.live.optimizer)

    def finish(self) -> None:
        self._manager.flush()

    def load(self) -> None:
        self._manager.load_latest(model=self.live.module, optimizer=self.live.optimizer)

    def close(self) -> None:
        del self._manager


class Dlrover(Peer):
    """Into shared memory, written from there by a process of its own. Files are torch.save's."""

    key, name, in_background = "dlrover", "dlrover flash checkpoint", True
    _RUN_ID = "TORCHELASTIC_RUN_ID"

    def __init__(self, live: Live, folder: Path) -> None:
        super().__init__(live, folder)
        os.environ["DLROVER_LOG_LEVEL"] = "ERROR"
        os.environ[self._RUN_ID] = folder.name  # names its sockets, which an earlier one may have left
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        self._to_disk = StorageType.DISK
        self._checkpointer = DdpCheckpointer(str(folder))

    def start(self, state: dict[str, Any]) -> None:
        self._checkpointer.save_checkpoint(self.number, state, storage_type=self._to_disk)

    def finish(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self._newest() != str(self.number):  # its own wait looks once in several seconds
            if time.monotonic() > deadline:
                raise TimeoutError(f"not written after {DEADLINE_S:.0f} s")
            time.sleep(0.002)

    def _newest(self) -> str:
        with suppress(OSError):
            return (self.folder / "dlrover_latest.txt").read_text().strip()
        return ""

    def close(self) -> None:
        engine = self._checkpointer._engine
        engine._shm_handler.unlink()
        engine.close()
        engine.saver_proc.terminate()
        engine.saver_proc.join()
        shutil.rmtree(Path("/tmp/ckpt_sock", os.environ.pop(self._RUN_ID)), ignore_errors=True)


PEERS: dict[str, type[Peer]] = {
    peer.key: peer
    for peer in (
        ExactResume,
        ExactResumeInPlace,
        TorchSave,
        TorchSaveSync,
        TorchMmap,
        Safetensors,
        Dcp,
        DcpAsync,
        DcpAsyncCached,
        DcpProcess,
        DcpProcessCached,
        Lightning,
        LightningAsync,
        Accelerate,
        Torchsnapshot,
        Moonclip,
        Dlrover,
    )
}
