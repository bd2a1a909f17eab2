"""torch.distributed.checkpoint, in its variants."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

from measures.peer import DEADLINE_S, Peer
from measures.states import Live


class Dcp(Peer):
    """torch.distributed.checkpoint, of one rank; it syncs its files and not their names."""

    key, name, load_name = "dcp", "dcp.save", "dcp.load"
    loads_into_moments = True

    def __init__(self, live: Live, folder: Path) -> None:
        super().__init__(live, folder)
        import torch.distributed.checkpoint as dcp

        self._dcp = dcp

    def _writer(self) -> Any:
        return self._dcp.FileSystemWriter(self.path, thread_count=2)

    def start(self, state: dict[str, Any]) -> None:
        self._dcp.save(state, storage_writer=self._writer(), no_dist=True)

    def load(self) -> None:
        self._dcp.load(self.live.state_dict(), checkpoint_id=self.path, no_dist=True)


class DcpAsync(Dcp):
    key, name, load_name, in_background = "dcp-thread", "dcp.async_save, thread", "", True
    of_process: ClassVar[bool] = False
    caches: ClassVar[bool] = False

    def __init__(self, live: Live, folder: Path) -> None:
        super().__init__(live, folder)
        from torch.distributed.checkpoint import staging, state_dict_saver

        kind = state_dict_saver.AsyncCheckpointerType
        self._arguments: dict[str, Any] = {"async_checkpointer_type": kind.PROCESS if self.of_process else kind.THREAD}
        if self.caches:  # no pinned memory, no thread of its own and no stream: those need a GPU
            options = staging.StagingOptions(False, self.of_process, False, False)
            self._arguments["async_stager"] = staging.DefaultStager(options)

    def start(self, state: dict[str, Any]) -> None:
        no_dist = not self.of_process
        answer = self._dcp.async_save(state, storage_writer=self._writer(), no_dist=no_dist, **self._arguments)
        self._written: list[Future[Any]] = [getattr(answer, "upload_completion", answer)]

    def finish(self) -> None:
        self._written.pop().result(DEADLINE_S)  # not kept: it may hold what was staged

    def close(self) -> None:
        if self.caches:
            self._arguments.pop("async_stager").close()


class DcpAsyncCached(DcpAsync):
    key, name, caches = "dcp-thread-cached", "dcp.async_save, thread, cached staging", True


class DcpProcess(DcpAsync):
    key, name, of_process = "dcp-process", "dcp.async_save, process", True

    def __init__(self, live: Live, folder: Path) -> None:
        super().__init__(live, folder)
        import torch.distributed as dist

        os.environ["MASTER_ADDR"] = "127.0.0.1"  # the process is looked for under the host's name otherwise
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def close(self) -> None:
        import torch.distributed as dist
        from torch.distributed.checkpoint import _async_process_executor

        super().close()
        _async_process_executor._CHECKPOINT_PROCESS = None  # the last reference: it ends
        dist.destroy_process_group()


class DcpProcessCached(DcpProcess):
    key, name, caches = "dcp-process-cached", "dcp.async_save, process, cached staging", True
