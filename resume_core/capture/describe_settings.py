"""Settings that no tensor shows: a user's hyperparameters, and what modules are made with, a dropout rate say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from resume_core.capture.fleeting import is_fleeting
from resume_core.capture.plain import is_setting, plain
from resume_core.capture.provenance import mask_setting
from resume_core.policy import plain_options
from resume_core.state import Fact

__all__ = ["describe_hparams", "describe_modules"]

_MAX_HPARAMS = 512
_MAX_MODULES = 20_000
_OF_SHAPE_OR_RUN = {"_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"}
_SETTINGS = (
    "p", "eps", "momentum", "affine", "elementwise_affine", "track_running_stats", "num_groups",
    "kernel_size", "stride", "padding", "padding_mode", "output_padding", "dilation", "groups", "ceil_mode",
    "count_include_pad", "divisor_override", "output_size",
    "negative_slope", "alpha", "lambd", "beta", "threshold", "value", "min_val", "max_val", "lower", "upper",
    "approximate", "dim", "num_heads", "dropout", "batch_first", "norm_first", "bidirectional",
    "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq",
    "mode", "align_corners", "scale_factor", "upscale_factor", "reduction", "label_smoothing", "ignore_index",
    "delta", "margin",
)  # fmt: skip


def describe_hparams(hparams: Mapping[Any, Any], prefix: str = "hparams") -> dict[str, Fact]:
    """The user's hyperparameters, nested ones by dotted names.

    Plain settings are facts of the run but for fleeting ones; other objects, as a shortened repr, are information.
    What looks like a secret is masked.
    """
    try:
        leaves = list(_leaves(plain_options(hparams), prefix, depth=0))
    except Exception:  # a configuration may resolve what it holds only as it is read, and fail
        return {f"{prefix}.all": Fact(plain(hparams), "info")}
    return dict(_hparam(prefix, name, value) for name, value in leaves[:_MAX_HPARAMS])


def _leaves(values: Mapping[Any, Any], place: str, depth: int) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value and depth < 8:
            yield from _leaves(value, f"{place}.{name}", depth + 1)
        else:
            yield f"{place}.{name}", value


def _hparam(prefix: str, name: str, value: Any) -> tuple[str, Fact]:
    shown = mask_setting(name, plain(value))
    decides = is_setting(value) and not is_fleeting(name.removeprefix(prefix), shown)
    return name, Fact(shown, "run" if decides else "info")


def describe_modules(models: Mapping[str, torch.nn.Module]) -> dict[str, Fact]:
    """Modules of torch with their settings, as ``"modules.layers.1": "Dropout(p=0.2)"``, and configurations of models
    of transformers, as ``"model_config.hidden_act"``.

    Args:
        models: by the prefix of the names in them.
    """
    facts: dict[str, Fact] = {}
    configs: list[Any] = []
    for prefix, model in models.items():
        for name, module in list(model.named_modules())[:_MAX_MODULES]:
            text = _module(module)
            if text is not None:
                facts[f"modules.{prefix}{name}".rstrip(".")] = Fact(text)
            config = vars(module).get("config")
            if hasattr(config, "to_diff_dict") and not any(config is known for known in configs):
                configs.append(config)
    for place, config in enumerate(configs):
        facts |= _config(config, "model_config" if len(configs) == 1 else f"model_config.{place}")
    return facts


def _module(module: torch.nn.Module) -> str | None:
    """None where names and shapes of tensors say it all."""
    kind = type(module)
    if not kind.__module__.startswith("torch.nn.") or kind.__name__.startswith("Lazy"):
        return None
    own = vars(module)
    found = {name: own[name] for name in _SETTINGS if name in own and is_setting(own[name])}
    if not found and (own.get("_parameters") or own.get("_modules")):
        return None
    return f"{kind.__name__}({', '.join(f'{name}={plain(value)}' for name, value in found.items())})"


def _config(config: Any, prefix: str) -> dict[str, Fact]:
    try:
        values = {name: value for name, value in config.to_diff_dict().items() if name not in _OF_SHAPE_OR_RUN}
    except Exception:  # a class of the user's own
        return {}
    return describe_hparams(values, prefix)
