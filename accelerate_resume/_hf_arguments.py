"""The arguments of a Trainer as plain values, and back.

Internals used (transformers 5.24): the fields of ``TrainingArguments`` and ``Seq2SeqTrainingArguments``, ``to_dict`` of
them, and the functions of ``transformers.training_args`` that ask what the GPU of this machine can do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from unittest import mock

import transformers
from transformers import training_args as _module

from resume_core.image import Recorded

__all__ = ["plain_arguments", "rebuilt_arguments"]

_CLASSES = {cls.__name__: cls for cls in (transformers.Seq2SeqTrainingArguments, transformers.TrainingArguments)}
"""A subclass before its base. No other class is made: a file never names code to run."""

_ABILITIES: dict[str, Any] = dict.fromkeys(("is_torch_bf16_gpu_available", "is_torch_tf32_available"), lambda: True)
"""What arguments for a GPU ask of this machine, which may have none; and the answer that lets them be made."""


def plain_arguments(args: transformers.TrainingArguments) -> dict[str, Any]:
    """What `rebuilt_arguments` takes. Tokens are not in it."""
    own = type(args)
    base = next(name for name, cls in _CLASSES.items() if isinstance(args, cls))
    values = {name: value for name, value in args.to_dict().items() if not name.endswith("_token")}
    return {"class": base, "own_class": f"{own.__module__}.{own.__qualname__}", "values": values}


def rebuilt_arguments(saved: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The arguments again, of the class in transformers that theirs is or comes from.

    Args:
        saved: of a checkpoint, which may come from anywhere.

    Returns:
        None when they cannot be made; and what they lack, one sentence each.
    """
    try:
        cls = _CLASSES[saved["class"]]
        known = {field.name for field in dataclasses.fields(cls) if field.init}
        values = {name: value for name, value in saved["values"].items() if name in known and _is_plain(value)}
        if isinstance(values.get("generation_config"), dict):
            values["generation_config"] = transformers.GenerationConfig.from_dict(values["generation_config"])
        with mock.patch.multiple(_module, **_ABILITIES):
            args = cls(**values)
    except Exception as error:  # it was another version's, or what it names is not installed
        return None, [f"the arguments cannot be made again here ({type(error).__name__}: {error})"]
    lost = sorted(saved["values"].keys() - values.keys())
    if not lost:
        return args, []
    return args, [f"the run had {saved['own_class']}, and {cls.__name__} is in training_args.bin without {_few(lost)}"]


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if isinstance(value, list) else not isinstance(value, Recorded)


def _few(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
