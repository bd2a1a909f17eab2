"""Where state, image and storage meet: stages a state, writes it as a checkpoint, and reads one back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Any

import torch

from resume_core.errors import ResumeError, SaveFailedError, UnsupportedStateError
from resume_core.files import EXTRAS, OWN, SHARED, STRUCTURE, TENSORS, CheckpointFiles
from resume_core.image import (
    Arena,
    FileSpec,
    Flat,
    Image,
    Memory,
    OwnPart,
    Stager,
    dumps,
    fingerprint,
    flatten,
    own_part,
)
from resume_core.ranks import Ranks
from resume_core.shares import bring
from resume_core.state import State
from resume_core.storage import (
    CheckpointRef,
    CheckpointWriter,
    Manifest,
    Slot,
    Store,
    rank_file,
)

__all__ = ["Checkpointer", "Pending"]

# of each part the prefix of its names; the file of the weights is used alone, with the names that the state_dict has
_PATHS = {"model": "", "training": "training", "rank": "rank"}
# as safetensors' own writers say it: transformers opens no file without
_FORMAT = {"format": "pt"}


@dataclass
class Pending:
    """A staged checkpoint, or the share of a rank: its files in memory, not yet on the store.

    Writing it may begin while the rest is staged.

    Attributes:
        images: files that lie in the arena, valid until the next one is staged.
        documents: structures of small JSON files by name, or the bytes of such a file; they hold nothing that training
            changes.
        header: what the manifest will say about it.
        ranks: those whose shares make the checkpoint.
        stage_s: seconds that staging kept training waiting, known when it is through.
        is_staged: whether it is through.
        seconds: of the phases on this rank, ``stage_s``, ``write_s`` and ``commit_s``, known when it is written.
    """

    images: list[Image]
    documents: Mapping[str, Any]
    header: Mapping[str, Any]
    ranks: Ranks = field(default_factory=Ranks)
    stage_s: float = 0.0
    is_staged: Event = field(default_factory=Event)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Bytes of the files that may be large."""
        ready = [len(document) for document in self.documents.values() if isinstance(document, bytes)]
        return sum(image.size_bytes for image in self.images) + sum(ready)

    def write(
        self,
        store: Store,
        slot: Slot,
        *,
        still_newest: Callable[[], object],
        has_room: Callable[[], object] = lambda: None,
    ) -> Manifest | None:
        """Write the files, and on rank 0 commit; runs in the background. What was written is removed when it fails.

        Args:
            store: where to.
            slot: the place, the same on all ranks.
            still_newest: see `CheckpointWriter.commit`.
            has_room: called before the first byte is written; it raises when that should not be.

        Returns:
            The manifest on rank 0, None on the others. Its ``timings`` are the seconds of each phase on rank 0:
            staging, writing its own files, waiting for the shares of the others.

        Raises:
            SupersededError: a newer attempt has started; nothing was committed.
            SaveFailedError: see `bring`.
            OSError: the store refused.
        """
        timings: dict[str, float] = {}
        start = time.perf_counter()

        def write(writer: CheckpointWriter) -> None:
            has_room()
            for image in self.images:
                writer.write_file(image.name, image.buffer, image)
            for name, document in self.documents.items():
                writer.write_file(name, document if isinstance(document, bytes) else dumps(document))
            timings["write_s"] = time.perf_counter() - start

        def header() -> Mapping[str, Any]:
            timings["commit_s"] = time.perf_counter() - start - timings["write_s"]
            self.is_staged.wait()
            return {**self.header, "timings": {"stage_s": self.stage_s} | timings}

        manifest = bring(store, slot, self.ranks, write=write, header=header, still_newest=still_newest)
        commit_s = time.perf_counter() - start - timings["write_s"]
        self.seconds = {"stage_s": self.stage_s, "write_s": timings["write_s"], "commit_s": commit_s}
        return manifest


class Checkpointer:
    """Saves and restores, nothing else.

    Args:
        store: where checkpoints are.
        ranks: those that train together; every one calls `check`, `stage` and `read` alike.
    """

    def __init__(self, store: Store, ranks: Ranks | None = None) -> None:
        self.store = store
        self._ranks = ranks or Ranks()
        self._stager = Stager(Arena())
        self._memories = {part: Memory() for part in _PATHS}
        self._names = {
            **TENSORS,
            "rank": rank_file(self._ranks.rank, ".safetensors"),
            "rank.json": rank_file(self._ranks.rank, ".json"),
        }

    @property
    def ranks(self) -> Ranks:
        """Those that train together."""
        return self._ranks

    def prepare(self, state: State) -> None:
        """Find out whether ``state`` can be saved, and take memory for it, whose pages come in the background.

        What was staged and is still being written stays whole.

        Raises:
            UnsupportedStateError: a value that no checkpoint can hold, on this rank or another; names its place.
        """
        flat, first = self._flatten("the check of the state", state)
        with suppress(OSError):  # no memory for it yet: the save will say so
            self._stager.prepare(self._files(flat, self._own(flat, first)))

    def reserve(self, size_bytes: int) -> None:
        """Take memory for a state of about that size. Failing is no error: `stage` tries again, and says so."""
        with suppress(OSError):
            self._stager.reserve(size_bytes)

    def _flatten(self, what: str, state: State) -> tuple[dict[str, Flat], dict[str, dict[str, str]]]:
        """The parts of a state taken apart, and rank 0's fingerprints of those that are shared."""
        flat: dict[str, Flat] = {}
        problem: UnsupportedStateError | None = None
        try:
            flat = {
                part: flatten(getattr(state, part), path=path, memory=self._memories[part])
                for part, path in _PATHS.items()
            }
        except UnsupportedStateError as error:
            problem = error
        if self._ranks.size == 1:
            if problem is not None:
                raise problem
            return flat, {}
        value = {"problem": str(problem or ""), "path": getattr(problem, "path", "")}
        if self._ranks.is_first and problem is None:
            value["first"] = {part: fingerprint(flat[part]) for part in SHARED}
        answer = self._ranks.agree(what, value, _first_problem)
        if problem is not None:
            raise problem
        if answer["problem"]:
            raise UnsupportedStateError(answer["problem"], path=answer["path"])
        return flat, answer["first"]

    def stage(
        self, state: State, header: Mapping[str, Any], begun: Callable[[Pending], None] = lambda pending: None
    ) -> Pending:
        """Copy ``state`` into the arena. Training may go on when this returns.

        The images of the call before are overwritten: call it only when they are written.

        Args:
            state: references to live tensors.
            header: what the manifest will say.
            begun: called when it can be written, in another thread: where one rank saves, as `Stager.stage` does; else
                when every rank has staged. An error that comes up later is raised here and in that thread.

        Raises:
            UnsupportedStateError: a value that no checkpoint can hold, on this rank or another; names its place.
        """
        start = time.perf_counter()
        flat, first = self._flatten("staging", state)
        own = self._own(flat, first)
        documents: dict[str, Any] = {
            self._names["rank.json"]: {"rank": flat["rank"].structure, OWN: _own_documents(own)}
        }
        if self._ranks.is_first:
            info = flatten(dict(state.info), lenient=True).structure
            documents[STRUCTURE] = {part: flat[part].structure for part in SHARED} | {"info": info}
            documents |= {EXTRAS: state.extras} if state.extras else {}
        pending = Pending([], documents, header, self._ranks)

        def begin(images: list[Image]) -> None:
            pending.images = images
            begun(pending)

        try:
            self._copy(self._files(flat, own), begin)
            pending.stage_s = time.perf_counter() - start
        finally:
            pending.is_staged.set()
        return pending

    def _own(self, flat: Mapping[str, Flat], first: Mapping[str, Any]) -> dict[str, OwnPart]:
        """What this rank has otherwise than rank 0, of each part that is shared."""
        if self._ranks.is_first:
            return {}
        return {part: own_part(flat[part], first[part]) for part in SHARED}

    def _files(self, flat: Mapping[str, Flat], own: Mapping[str, OwnPart]) -> list[FileSpec]:
        of_rank = FileSpec(self._names["rank"], {**flat["rank"].tensors, **_own_tensors(own)})
        if not self._ranks.is_first:
            return [of_rank]
        return [
            FileSpec(
                self._names["model"],
                flat["model"].tensors,
                plain=True,
                metadata={**_FORMAT, **flat["model"].aliases},
                plan=flat["model"].plan,
            ),
            FileSpec(self._names["training"], flat["training"].tensors, plan=flat["training"].plan),
            of_rank,
        ]

    def _copy(self, files: list[FileSpec], begin: Callable[[list[Image]], None]) -> None:
        """Stage on every rank, or on none."""
        if self._ranks.size == 1:
            self._stager.stage(files, begin)
            return
        images: list[Image] = []
        problem: Exception | None = None
        try:
            images = self._stager.stage(files)
        except (OSError, ResumeError) as error:
            problem = error
        text = "" if problem is None else f"{type(problem).__name__}: {problem}"
        elsewhere = self._ranks.agree("staged", text, _first_text)
        if problem is not None:
            raise problem
        if elsewhere:
            raise SaveFailedError(f"staging failed {elsewhere}")
        begin(images)

    def read(
        self,
        ref: CheckpointRef,
        manifest: Manifest,
        *,
        stores: Sequence[Store] = (),
        into: Mapping[str, Mapping[str, torch.Tensor]] | None = None,
    ) -> State:
        """Read this rank's view of a checkpoint, every chunk checked against its digest.

        The weights are read last: what cannot be understood elsewhere is found out before a live tensor is touched.

        Args:
            ref: the checkpoint.
            manifest: its manifest.
            stores: those that may hold a copy, nearest first; the checkpointer's own alone unless given.
            into: live tensors, for ``"model"`` by their names in ``State.model``, for ``"training"`` by the names in
                its file. Those that lie in memory as the saved ones do are read into, and the state that is returned
                shares their memory; the others are left as they are.

        Raises:
            CorruptCheckpointError: a file is missing, torn, altered or cannot be understood. Tensors of ``into`` can
                hold values that must not be used then, and after an OSError too.
            UnsupportedStateError: a leaf of the user's own that is not registered in this process.
            ResumeError: it was saved by another number of ranks.
            OSError: the store cannot be read.
        """
        if manifest.world_size != self._ranks.size:
            raise ResumeError(
                f"{ref.path} was saved by {manifest.world_size} ranks and {self._ranks.size} train now: start as many",
                path=ref.path,
            )
        files = CheckpointFiles(stores or [self.store], ref, manifest)
        return files.state(self._ranks.rank, into=into)

    def size_bytes(self, manifest: Manifest) -> int:
        """Bytes of the files that this rank would stage for such a checkpoint."""
        staged = {self._names["rank"], *(TENSORS.values() if self._ranks.is_first else ())}
        return sum(record.size_bytes for record in manifest.files if record.name in staged)


def _first_problem(values: list[dict[str, Any]]) -> dict[str, Any]:
    for rank, value in enumerate(values):
        if value["problem"]:
            return {"problem": f"on rank {rank}: {value['problem']}", "path": value["path"]}
    return values[0]


def _first_text(texts: list[str]) -> str:
    return next((f"on rank {rank}: {text}" for rank, text in enumerate(texts) if text), "")


def _own_tensors(own: Mapping[str, OwnPart]) -> dict[str, torch.Tensor]:
    # weights are contiguous, as those of rank 0 are in their file; and each tensor is a copy, as a file holds one once
    # and this rank may have the same one in another part of its state
    return {
        f"{OWN}.{part}.{name}": tensor.contiguous().clone() if part == "model" else tensor.clone()
        for part, mine in own.items()
        for name, tensor in mine.tensors.items()
    }


def _own_documents(own: Mapping[str, OwnPart]) -> dict[str, Any]:
    return {
        part: {"structure": mine.structure, "shared": list(mine.shared)}
        for part, mine in own.items()
        if mine.structure is not None or mine.tensors
    }
