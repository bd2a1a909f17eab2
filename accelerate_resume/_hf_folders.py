"""Every touch of the folders ``checkpoint-N`` that a Trainer writes; its other internals are in `_hf_trainer`.

Internals used (transformers 5.24):

- ``Trainer._save_checkpoint`` writes to ``<_get_output_dir()>/checkpoint-<global_step>``, straight and over what is
  there: the main process weights, ``optimizer.pt``, ``scheduler.pt``, ``scaler.pt`` and as the last file
  ``trainer_state.json``, each rank its ``rng_state.pth`` or ``rng_state_<rank>.pth``. Then ``rotate_checkpoints``
  deletes what ``save_total_limit`` does not keep.
- ``train(resume_from_checkpoint=True)`` takes the folder with the highest number, whatever is in it.
- ``_load_from_checkpoint``, ``_load_optimizer_and_scheduler``, ``_load_scaler`` and ``_load_rng_state`` read one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers import trainer as _module

from accelerate_resume._accelerator import own_optimizer
from accelerate_resume._folders import StateFolders
from resume_core.entry import ENTRY
from resume_core.pieces import has_pieces

__all__ = ["CheckpointFolders"]

_NAME = re.compile(r"checkpoint-(\d+)")
_STATE = "trainer_state.json"


class CheckpointFolders:
    """Those of one Trainer.

    Args:
        trainer: of transformers.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    # ---- saving

    def folder(self, trial: Any = None) -> str:
        """The one that a save which is made now is written to."""
        trainer = self._trainer
        return os.path.join(trainer._get_output_dir(trial=trial), f"checkpoint-{trainer.state.global_step}")

    @contextlib.contextmanager
    def keeping_all(self) -> Iterator[None]:
        """A block in which the Trainer deletes nothing: what is there counts until the next one is complete."""
        args = self._trainer.args
        limit, args.save_total_limit = args.save_total_limit, None
        try:
            yield
        finally:
            args.save_total_limit = limit

    @property
    def are_limited(self) -> bool:
        """Whether old ones are deleted."""
        return bool(self._trainer.args.save_total_limit)

    def prune(self, folder: str) -> None:
        """Delete what ``save_total_limit`` does not keep beside ``folder``."""
        trainer = self._trainer
        if trainer.args.should_save:
            _module.rotate_checkpoints(
                output_dir=os.path.dirname(folder),
                save_total_limit=trainer.args.save_total_limit,
                best_model_checkpoint=trainer.state.best_model_checkpoint,
                use_mtime=True,
            )

    def written(self, folder: str) -> list[str]:
        """Names of the files in ``folder`` that this process alone has written."""
        args = self._trainer.args
        mine = "rng_state.pth" if args.world_size <= 1 else f"rng_state_{args.process_index}.pth"
        names = [str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file()]
        names = [name for name in names if not name.startswith(f"{ENTRY}{os.sep}")]
        return [name for name in names if name == mine or (args.should_save and not name.startswith("rng_state"))]

    # ---- loading

    def candidates(self, given: str | bool) -> list[str]:
        """Folders to go on from, the best first: the one that is given, or the newest, and those before it.

        Args:
            given: what ``train`` was given.
        """
        if isinstance(given, bool):
            return self._numbered(self._trainer.args.output_dir)
        path = os.path.abspath(os.path.expanduser(os.fspath(given)))
        number = _number(path)
        before = [] if number is None else self._numbered(os.path.dirname(path))
        return [path, *(other for other in before if (_number(other) or 0) < (number or 0))]

    def is_own(self, path: str) -> bool:
        """Whether a folder is one that this Trainer would write."""
        own: str = self._trainer.args.output_dir
        return os.path.realpath(os.path.dirname(path)) == os.path.realpath(own)

    def _numbered(self, root: str) -> list[str]:
        """Those in ``root`` that may be whole, newest first."""
        with contextlib.suppress(FileNotFoundError):
            found = [os.path.abspath(os.path.join(root, name)) for name in os.listdir(root)]
            numbered = [path for path in found if _number(path) is not None and os.path.isdir(path)]
            whole = [path for path in numbered if has_pieces(path) or _has_state(path)]
            return sorted(whole, key=lambda path: _number(path) or 0, reverse=True)
        return []

    def load(self, folder: str) -> None:
        """What the Trainer itself has saved there."""
        trainer = self._trainer
        trainer._load_from_checkpoint(folder)
        with StateFolders(trainer.accelerator).uncast([own_optimizer(trainer.optimizer)]):
            trainer._load_optimizer_and_scheduler(folder)
        trainer._load_scaler(folder)


def _number(path: str) -> int | None:
    found = _NAME.fullmatch(os.path.basename(path))
    return None if found is None else int(found[1])


def _has_state(path: str) -> bool:
    """Whether the file is there that a Trainer writes last."""
    with contextlib.suppress(OSError, ValueError):
        return isinstance(json.loads(Path(path, _STATE).read_text(encoding="utf-8")), dict)
    return False
