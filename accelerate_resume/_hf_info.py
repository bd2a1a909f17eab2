"""What a Trainer's checkpoint records for exports and never restores.

Internals used (transformers 5.24): the names of the files that ``PreTrainedModel.save_pretrained`` writes, and that it
puts type and class of the model into the configuration; which object ``Trainer._save`` writes beside the model, its
``processing_class`` or else the ``tokenizer`` of its ``data_collator``; the arguments are the business of
`_hf_arguments`.
"""

from __future__ import annotations

import copy
import re
import tempfile
from pathlib import Path
from typing import Any

import transformers
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

from accelerate_resume._hf_arguments import plain_arguments
from resume_core.capture.rng import preserved_rng
from resume_core.image import dumps, flatten

__all__ = ["ARGUMENTS", "NOTES", "PIECES", "TOKENIZER", "TrainerInfo"]

_FIELDS = ("max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size")

TOKENIZER, ARGUMENTS, NOTES = "tokenizer", "arguments", "notes"
"""Keys of the extras: texts or bytes by the names of files; the arguments as plain values; what is missing."""

PIECES = re.compile(
    r"(?:[\w-]+/)?(?:"
    r"[\w.-]+\.(?:jinja|model|spm|codes|tiktoken|tokenizer)|"
    r"[\w.-]*(?:tokeniz|vocab|merges|special_tokens|added_tokens|processor|chat_template|normalizer|emoji|dict|word_"
    r"|byte_maps)[\w.-]*\.(?:json|txt))",
    re.ASCII,
)
"""Of the files that tokenizers and processors write: data, and no code. Checked where an export writes them, as a
checkpoint may come from anywhere."""

_MAX_BYTES = 64 << 20  # of these files together, which are written at each save; the largest in use have half of that


class TrainerInfo:
    """Of one call of ``train``.

    Args:
        trainer: that trains.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._files: dict[str, str] | None = None
        self.extras = b""
        """See `State.extras`: tokenizer and arguments, as they were when training began."""

    def capture(self) -> dict[str, Any]:
        """The model's configuration as the texts of its files, and of ``TrainerState`` what arguments decide."""
        if self._files is None:
            self._files = _configurations(self._trainer.accelerator.unwrap_model(self._trainer.model))
        return {"files": self._files, "state": {name: getattr(self._trainer.state, name) for name in _FIELDS}}

    def make_extras(self) -> list[str]:
        """Make ``extras``, once: this takes as long as it takes to save the tokenizer. Training never fails of it.

        Returns:
            What they lack, one sentence each.
        """
        notes: list[str] = []
        found = {TOKENIZER: self._tokenizer(notes), ARGUMENTS: self._arguments(notes), NOTES: notes}
        self.extras = dumps(flatten(found, lenient=True).structure)
        return notes

    def _arguments(self, notes: list[str]) -> dict[str, Any] | None:
        try:
            return plain_arguments(self._trainer.args)
        except Exception as error:  # classes of the user's own may do anything
            notes.append(f"checkpoints do not carry the arguments of this run: {_told(error)}")
            return None

    def _tokenizer(self, notes: list[str]) -> dict[str, str | bytes]:
        collator, owner = self._trainer.data_collator, self._trainer.processing_class
        owner = getattr(collator, "tokenizer", None) if owner is None else owner
        if owner is None:
            return {}
        what = f"checkpoints do not carry the files of the {type(owner).__name__}"
        try:
            with preserved_rng(), tempfile.TemporaryDirectory() as folder:
                owner.save_pretrained(folder)
                return _read(Path(folder), what, notes)
        except Exception as error:  # likewise; and a full disk for temporary files
            notes.append(f"{what}: {_told(error)}")
            return {}


def _read(folder: Path, what: str, notes: list[str]) -> dict[str, str | bytes]:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    carried = [name for name in names if PIECES.fullmatch(name)]
    size_bytes = sum((folder / name).stat().st_size for name in carried)
    if size_bytes > _MAX_BYTES:
        notes.append(f"{what}: they have {size_bytes:,} bytes, more than the {_MAX_BYTES:,} that each save may write")
        return {}
    if others := [name for name in names if name not in carried]:
        notes.append(f"{what} that are code, or of no known name: {', '.join(others)}")
    return {name: _content((folder / name).read_bytes()) for name in carried}


def _content(data: bytes) -> str | bytes:
    try:
        return data.decode("utf-8")  # a fraction shorter in the file, and to be read there
    except UnicodeDecodeError:
        return data


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _configurations(model: Any) -> dict[str, str]:
    if not isinstance(model, transformers.PreTrainedModel):
        return {}
    config = copy.deepcopy(model.config)
    config.dtype, config.architectures = str(model.dtype).removeprefix("torch."), [type(model).__name__]
    files = {CONFIG_NAME: config.to_json_string(use_diff=True)}
    if model.can_generate():
        files[GENERATION_CONFIG_NAME] = model.generation_config.to_json_string(use_diff=True)
    return files
