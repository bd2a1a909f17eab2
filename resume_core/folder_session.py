"""Runs without a directory of a framework whose checkpoints are folders, in which each rank writes its own files.

A save goes `begin_save`, the framework's own, `commit_save`; no rank waits for another in it, as scripts may save on
one process alone. A load goes `find`, then what `EmbeddedSession` does with the entry that was found; there all ranks
meet, and load the same folder or none.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from resume_core.embedded import EmbeddedSession
from resume_core.entry import Entry, Incomplete
from resume_core.errors import CorruptCheckpointError, UnsupportedStateError
from resume_core.framework import Framework
from resume_core.pieces import Pieces, PieceWriter, read_pieces
from resume_core.policy import Changes
from resume_core.state import Progress, RunConfig

__all__ = ["FolderSession"]

_ALONE = "saves"


class FolderSession(EmbeddedSession):
    """One attempt of such a run.

    Args:
        framework: captures and applies.
        changes: what may differ from the run that saved.
        plugin: its class, and...
        alone: what the framework does without it, and what is lost then; both for messages.
        log: where messages go.
    """

    def __init__(
        self, framework: Framework, *, changes: Changes | None = None, plugin: str, alone: str, log: logging.Logger
    ) -> None:
        super().__init__(framework, changes=changes, log=log)
        self._plugin, self._alone = plugin, alone
        self._run = ""  # of this process: marks its saves
        self._num_saves = 0

    def _check_ranks(self) -> None:
        """Each has files of its own."""

    def start(self, seed: int | None) -> None:
        """See `EmbeddedSession.start`; several ranks are fine. A run that was refused may still begin anew."""
        key = self._key
        try:
            super().start(seed)
        except BaseException:
            self._key = key
            raise
        self._mark_saves()

    def join(self, key: int, config: RunConfig) -> None:
        """The run has a directory, and the session of that has decided: folders are saved beside it.

        Args:
            key: of the run.
            config: what decides it.
        """
        self._key, self._config = key, config
        self._mark_saves()

    def _mark_saves(self) -> None:
        self._run = self._run or self._framework.ranks.share("the mark of saves", secrets.token_hex(8))

    @cached_property
    def _writer(self) -> PieceWriter:
        return PieceWriter(self._framework.ranks)

    # ---- saving

    def announce(self, folder: str) -> None:
        """The framework is about to write into ``folder``, and `begin_save` follows when it has: until then it is torn.

        Raises:
            OSError: the folder cannot be written.
        """
        self._writer.begin(folder, f"{self._run}-{self._num_saves}-announced", Incomplete("in part"))

    def begin_incomplete(self, folder: str, reason: str, advice: str = "") -> None:
        """In place of `begin_save`, where nothing can be exact.

        Args:
            folder: of this save.
            reason: why, as the end of a sentence; said once for each reason.
            advice: what to do instead.
        """
        self._num_saves += 1
        self._writer.begin(folder, f"{self._run}-{self._num_saves}", self._incomplete(reason, advice))

    def begin_save(self, folder: str, progress: Progress, capture: Callable[[], Mapping[str, Any]]) -> None:
        """The framework is about to write into ``folder``.

        Args:
            folder: of this save.
            progress: where training stands.
            capture: gives the pieces, see `resume_core.entry.Entry`.

        Raises:
            OSError: the folder cannot be written.
        """
        assert self._key is not None
        self._num_saves += 1
        self._look_for_others()
        save = f"{self._run}-{self._num_saves}"
        try:
            self._writer.begin(folder, save, self._entry(self._key, progress, {}, capture()))
        except UnsupportedStateError as error:
            self._writer.begin(folder, save, self._unsupported(error))

    def _look_for_others(self) -> None:
        """Say it when only rank 0 saves: by its second save, the others have told of their first."""
        ranks = self._framework.ranks
        if not ranks.is_first:
            if self._num_saves == 1:
                ranks.tell(_ALONE, "saves")
        elif ranks.size > 1 and self._num_saves == 2 and ranks.told(_ALONE) is None:
            self._log.warning(
                "one process alone saves, so no run can go on from what it saves: call it on each of the %d processes",
                ranks.size,
            )

    def commit_save(self, folder: str, files: Iterable[str]) -> None:
        """The framework has written.

        Args:
            folder: that of `begin_save`.
            files: names of what it wrote in this process.

        Raises:
            OSError: the folder cannot be read, or written.
        """
        self._writer.commit(folder, files)

    # ---- restoring

    def find(self, folders: Sequence[str]) -> tuple[str, Entry | None]:
        """The first of ``folders`` that all ranks can go on from.

        Args:
            folders: at least one, the best first. Those before the one that is taken are reported.

        Returns:
            The folder, and what the framework's files lack; None when they carry nothing, which was said.

        Raises:
            CorruptCheckpointError: none is whole.
            ResumeError: saved by another number of ranks.
            OSError: one cannot be read.
        """
        damage: CorruptCheckpointError | None = None
        for folder in folders:
            try:
                return folder, self._usable(self._read(folder), folder)
            except CorruptCheckpointError as error:
                damage = damage or error
                if len(folders) > 1:
                    self._log.warning("%s is passed over: %s", folder, error)
        assert damage is not None
        raise damage

    def _read(self, folder: str) -> Pieces | None:
        ranks = self._framework.ranks
        pieces = ranks.together("reading the folder", lambda: read_pieces(folder, ranks))
        saves = ranks.gather("which save it was", None if pieces is None else pieces.save)
        if any(save != saves[0] for save in saves):
            ranks.hear_out()
            raise CorruptCheckpointError(
                f"the files of the ranks in {folder} are of different saves ({', '.join(map(str, saves))}): the last "
                "one was not finished. Nothing was loaded: go on from another folder.",
                path=folder,
            )
        return pieces

    def _usable(self, pieces: Pieces | None, folder: str) -> Entry | None:
        found = Incomplete(f"without {self._plugin}") if pieces is None else pieces.entry
        if isinstance(found, Entry):
            return found
        self._log.warning("%s was saved %s, so it is loaded as %s", folder, found.reason, self._alone)
        return None
