"""What a Trainer's checkpoint records for exports and never restores.

Internals used (transformers 5.24): none but the names of the files that ``PreTrainedModel.save_pretrained`` writes, and
that it puts type and class of the model into the configuration.
"""

from __future__ import annotations

import copy
from typing import Any

import transformers
from transformers.utils import CONFIG_NAME, GENERATION_CONFIG_NAME

__all__ = ["TrainerInfo"]

_FIELDS = ("max_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps", "train_batch_size")


class TrainerInfo:
    """Of one call of ``train``.

    Args:
        trainer: that trains.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._files: dict[str, str] | None = None

    def capture(self) -> dict[str, Any]:
        """The model's configuration as the texts of its files, and of ``TrainerState`` what arguments decide."""
        if self._files is None:
            self._files = _configurations(self._trainer.accelerator.unwrap_model(self._trainer.model))
        return {"files": self._files, "state": {name: getattr(self._trainer.state, name) for name in _FIELDS}}


def _configurations(model: Any) -> dict[str, str]:
    if not isinstance(model, transformers.PreTrainedModel):
        return {}
    config = copy.deepcopy(model.config)
    config.dtype, config.architectures = str(model.dtype).removeprefix("torch."), [type(model).__name__]
    files = {CONFIG_NAME: config.to_json_string(use_diff=True)}
    if model.can_generate():
        files[GENERATION_CONFIG_NAME] = model.generation_config.to_json_string(use_diff=True)
    return files
