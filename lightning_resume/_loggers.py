"""Loggers that go on where the run stood: in the same folder, with each step there once.

Lightning opens a logger's folder before any callback's ``setup``, and in a new process that is a new ``version_N``. So
a logger is moved to the folder of its run in `Loggers.open`, before ``ModelCheckpoint`` and others ask for it. What
that folder holds is cut back to the checkpoint in `Loggers.put_back`, right before the first batch: by then the process
has logged once more what every start logs (hyper-parameters, a graph), and that goes too.

* ``metrics.csv`` is carried in the checkpoint: Lightning deletes the one it finds when the user names the version.
* TensorBoard's event files may be of any size and are cut in place. They are told from those of others by a suffix of
  their name that belongs to the run.
* W&B and MLflow are told the id of their run before they begin another; what they hold cannot be cut. Of any other
  logger only what the user passes decides.

Internals used (Lightning 2.6): ``_name``, ``_version`` and ``_experiment`` of ``CSVLogger`` and ``TensorBoardLogger``,
``TensorBoardLogger._kwargs``, ``_id`` and ``_wandb_init`` of W&B's, ``_run_id`` and ``_initialized`` of MLflow's, and
``metrics``, ``metrics_keys``, ``metrics_file_path`` and ``log_dir`` of the writer of
CSV files.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_resume._growing import grown_bytes, pack_bytes
from lightning_resume._package import is_a
from resume_core.capture.plain import class_path, plain
from resume_core.errors import CorruptCheckpointError

__all__ = ["Loggers", "tell_loggers", "wait_to_be_told"]

_log = logging.getLogger("lightning.pytorch.exact_resume")
_SINCE = time.time()  # files that are older were not made by this process
_TOKEN = re.compile(r"[0-9a-f]{8}")
_OWN_SUFFIX = re.compile(r"\.run-[0-9a-f]{8}$")
_EVENTS = "tfevents"
_HPARAMS = "hparams.yaml"
_RECORD_FRAME_BYTES = 16  # length 8, its checksum 4, the data's checksum 4


class Loggers:
    """The loggers of one fit.

    Args:
        loggers: of the Trainer, in its order.
        writes: whether this process is the one that logs.
    """

    def __init__(self, loggers: Sequence[Any], *, writes: bool) -> None:
        self._logs = [_log_of(logger, writes=writes) for logger in loggers]

    def preamble(self) -> list[Any]:
        """Where each logger writes, for the next attempt: plain JSON."""
        return [log.preamble() if log is not None else None for log in self._logs]

    def open(self, saved: Sequence[Any]) -> None:
        """Move each logger to where the run logs; a logger that the run did not have stays where it is."""
        for place, log in enumerate(self._logs):
            known = saved[place] if place < len(saved) else None
            if log is not None:
                log.open(known if known is not None and known["class"] == class_path(log.logger) else None)

    def capture(self) -> list[Any]:
        """What is logged so far."""
        return [log.capture() if log is not None else None for log in self._logs]

    def put_back(self, saved: Sequence[Any]) -> None:
        """Let the logs hold what `capture` saw, and nothing else of this run."""
        for log, state in zip(self._logs, saved, strict=False):
            if log is not None and log.goes_on and state is not None:
                log.put_back(state)


def wait_to_be_told(loggers: Sequence[Any]) -> bool:
    """Whether any of them has yet to begin a run somewhere else."""
    return any(_Remote.is_waiting(logger) for logger in loggers)


def tell_loggers(loggers: Sequence[Any], saved: Sequence[Any]) -> None:
    """Before Lightning opens them: which run to go on with, for those that the user gave none."""
    for logger, known in zip(loggers, saved, strict=False):
        if _Remote.is_waiting(logger) and known is not None and known["class"] == class_path(logger):
            _Remote.tell(logger, known["version"])


def _log_of(logger: Any, *, writes: bool) -> _Log | None:
    kinds: dict[str, type[_Log]] = {
        "CSVLogger": _Csv,
        "TensorBoardLogger": _TensorBoard,
        "WandbLogger": _Remote,
        "MLFlowLogger": _Remote,
    }
    return next((kind(logger, writes=writes) for name, kind in kinds.items() if is_a(logger, name)), None)


class _Log:
    """One logger: what the next attempt is told of it."""

    def __init__(self, logger: Any, *, writes: bool) -> None:
        self.logger = logger
        self.writes = writes
        self.goes_on = False

    def preamble(self) -> dict[str, Any]:
        logger = self.logger
        return {"class": class_path(logger), "name": plain(logger.name), "version": plain(logger.version)}

    def open(self, saved: Mapping[str, Any] | None) -> None:
        self.goes_on = saved is not None

    def capture(self) -> Any:
        return None

    def put_back(self, state: Any) -> None:
        raise NotImplementedError


class _Remote(_Log):
    """A logger of a service, which keeps the run under an id."""

    @staticmethod
    def is_waiting(logger: Any) -> bool:
        if is_a(logger, "WandbLogger"):
            return logger._experiment is None and logger._id is None
        return is_a(logger, "MLFlowLogger") and not logger._initialized and logger._run_id is None

    @staticmethod
    def tell(logger: Any, run_id: str) -> None:
        if is_a(logger, "WandbLogger"):
            logger._id = logger._wandb_init["id"] = run_id
        else:
            logger._run_id = run_id


class _Folder(_Log):
    """A logger that writes into a folder of its own."""

    def open(self, saved: Mapping[str, Any] | None) -> None:
        super().open(saved)
        before = str(self.logger.log_dir)
        if saved is not None:
            _refuse_outside(self.logger, saved)
            self.logger._name, self.logger._version = saved["name"], saved["version"]
        if not self.writes:
            return
        self._move(saved, before)
        if before != str(self.logger.log_dir):
            _remove_new(Path(before), Path(self.logger.save_dir))

    def _move(self, saved: Mapping[str, Any] | None, before: str) -> None:
        raise NotImplementedError


def _refuse_outside(logger: Any, saved: Mapping[str, Any]) -> None:
    """A checkpoint says where to log, and nobody vouches for who wrote it.

    Raises:
        CorruptCheckpointError: that leads out of the folder that the user gave the logger.
    """
    # what the user gives now may lead anywhere
    found = [str(saved[field]) for field in ("name", "version") if saved[field] != getattr(logger, field)]
    leaves = any(os.path.isabs(text) or os.pardir in re.split(r"[/\\]", text) for text in found)
    if leaves or not _TOKEN.fullmatch(str(saved.get("token", "0" * 8))):
        raise CorruptCheckpointError(
            f"the checkpoint says that {type(logger).__name__} has logged to {dict(saved)!r:.300}, which is no folder "
            f"below {logger.save_dir}. Restore an older checkpoint, or start anew in another directory."
        )


class _Csv(_Folder):
    """``metrics.csv``, carried in the checkpoint."""

    def _move(self, saved: Mapping[str, Any] | None, before: str) -> None:
        writer = self.logger._experiment
        if writer is None or before == self.logger.log_dir:
            return
        # in place: user code may hold it, and a new one would delete the metrics that are there
        writer.log_dir = self.logger.log_dir
        writer.metrics_file_path = os.path.join(writer.log_dir, writer.NAME_METRICS_FILE)
        writer._fs.makedirs(writer.log_dir, exist_ok=True)

    def capture(self) -> Any:
        writer = self.logger._experiment
        if not self.writes or writer is None:
            return None
        rows = b""
        if writer._fs.isfile(writer.metrics_file_path):
            with writer._fs.open(writer.metrics_file_path, "rb") as file:
                rows = file.read()
        pending = [{name: _plain_cell(cell) for name, cell in row.items()} for row in writer.metrics]
        return {"rows": pack_bytes(rows), "keys": list(writer.metrics_keys), "pending": pending}

    def put_back(self, state: Any) -> None:
        if not self.writes:
            return
        writer = self.logger.experiment
        writer.metrics, writer.metrics_keys = list(state["pending"]), list(state["keys"])
        rows = grown_bytes(state["rows"])
        if rows:
            _write(writer._fs, writer.metrics_file_path, rows)
        elif writer._fs.isfile(writer.metrics_file_path):
            writer._fs.rm_file(writer.metrics_file_path)


def _plain_cell(cell: Any) -> Any:
    """As the file would hold it: a row may hold anything."""
    return cell if cell is None or type(cell) in (bool, int, float, str) else str(cell)


def _write(fs: Any, path: str, data: bytes) -> None:
    """Never half of it, and never into a file that an attempt which still runs has open."""
    temporary = f"{path}.{os.getpid()}.tmp"
    with fs.open(temporary, "wb") as file:
        file.write(data)
    fs.mv(temporary, path)


class _TensorBoard(_Folder):
    """Event files, known by a suffix of their name and cut to the size they had."""

    def __init__(self, logger: Any, *, writes: bool) -> None:
        super().__init__(logger, writes=writes)
        given = logger._kwargs.get("filename_suffix", "")
        self._given_suffix = _OWN_SUFFIX.sub("", given)
        self._token = secrets.token_hex(4)
        self._dirs: set[str] = set()

    @property
    def _suffix(self) -> str:
        return f"{self._given_suffix}.run-{self._token}"

    def preamble(self) -> dict[str, Any]:
        return {**super().preamble(), "token": self._token}

    def _move(self, saved: Mapping[str, Any] | None, before: str) -> None:
        self._token = saved["token"] if saved is not None else self._token
        self.logger._kwargs["filename_suffix"] = self._suffix
        writer = self.logger._experiment
        if writer is None:
            return
        opened = list(filter(None, map(_path_of, (writer.all_writers or {}).values())))
        writer.close()
        # in place, as user code may hold it; a closed writer opens a new file when it is next used
        folder = {"log_dir": self.logger.log_dir, "logdir": self.logger.log_dir}
        names = {"filename_suffix": self._suffix, "_filename_suffix": self._suffix}
        vars(writer).update({name: value for name, value in (folder | names).items() if name in vars(writer)})
        for path in opened:
            # what the script logs before fit() is kept in a new run; in a resumed one it is there already
            if path.exists() and (saved is not None or _is_fresh(path)):
                path.unlink()

    def _event_files(self, folders: Iterable[Path]) -> Iterator[tuple[str, Path]]:
        """Those of this run, with their names as seen from the logger's folder."""
        for folder in folders:
            for path in _files(folder):
                if _EVENTS in path.name and path.name.endswith(self._suffix):
                    yield os.path.relpath(path, self.logger.log_dir), path

    def capture(self) -> Any:
        writer = self.logger._experiment
        if not self.writes or writer is None:
            return None
        writer.flush()
        self._dirs |= {str(self.logger.log_dir), *map(str, writer.all_writers or ())}
        files = self._event_files(map(Path, sorted(self._dirs)))
        return {"files": {name: path.stat().st_size for name, path in files}}

    def put_back(self, state: Any) -> None:
        if not self.writes:
            return
        if self.logger._experiment is not None:
            self.logger._experiment.close()
        root, sizes = Path(self.logger.log_dir), state["files"]
        self._dirs |= {os.path.dirname(os.path.normpath(root / name)) for name in sizes}
        found = dict(self._event_files(Path(folder) for folder, *_ in os.walk(root)))
        for name, path in found.items():
            if name not in sizes:
                path.unlink()
            elif path.stat().st_size > sizes[name]:
                _cut(path, sizes[name])
        lost = [name for name in sizes if name not in found or found[name].stat().st_size < sizes[name]]
        if lost:
            _log.warning("%s lacks what the run had logged before: %s", root, ", ".join(sorted(lost)))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []


def _path_of(file_writer: Any) -> Path | None:
    """The file that a writer has open, where it says so: that of tensorboard does."""
    path = getattr(getattr(file_writer, "event_writer", None), "_file_name", None)
    return Path(path) if isinstance(path, str) else None


def _is_fresh(path: Path) -> bool:
    """Whether an event file holds nothing but the record of its version."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    return path.stat().st_size <= length + _RECORD_FRAME_BYTES


def _cut(path: Path, size_bytes: int) -> None:
    """A copy takes its place: an attempt that still runs goes on writing into the old one."""
    temporary = path.with_name(f"cut-{os.getpid()}-{path.stat().st_ino}.tmp")
    with path.open("rb") as source, temporary.open("wb") as target:
        left = size_bytes
        while left and (data := source.read(min(left, 1 << 20))):
            target.write(data)
            left -= len(data)
    temporary.replace(path)


def _remove_new(folder: Path, root: Path) -> None:
    """Remove the folder that a new process opened, if it holds only what its logger made there."""
    made = [path for path in _files(folder) if path.name == _HPARAMS and path.stat().st_mtime >= _SINCE]
    if not folder.is_dir() or {path.name for path in made} != {path.name for path in folder.iterdir()}:
        return
    for path in made:
        path.unlink()
    folder.rmdir()
    while (folder := folder.parent) != root and root in folder.parents and not any(folder.iterdir()):
        folder.rmdir()
