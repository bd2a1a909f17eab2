"""How large a checkpoint is, from the number of parameters, the optimizer and the precision.

Bytes of each parameter, gradients left out, which a checkpoint between two steps does not hold. Sources:

- Precision: S. Rajbhandari et al., "ZeRO", SC 2020, section 3.1. Mixed-precision Adam has fp16 weights (2), fp16
  gradients (2, not saved), and 12 bytes of fp32: a copy of the weights, momentum, variance. So 14 are saved, and a
  model of 7B parameters has 98 GB. Under ``torch.autocast`` (Lightning's ``"16-mixed"`` and ``"bf16-mixed"``,
  Accelerate's ``mixed_precision``) the fp32 weights are the only ones, so it is as fp32: 12.
- Optimizers: the tensors of the shape of the parameter that ``torch.optim`` and ``transformers`` keep in their state.
  ``torch`` makes them in the precision of the parameter.
- 8-bit Adam: T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022; bitsandbytes keeps a float
  for each block of 256 values.
- Adafactor: N. Shazeer and M. Stern, ICML 2018: a row and a column for each matrix, far below 1 % of its weights.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["OptimizerName", "Part", "PrecisionName", "bytes_per_parameter", "expected_parts"]

MODEL, TRAINING = "model.safetensors", "training.safetensors"


class OptimizerName(str, enum.Enum):
    """Optimizers whose state is known."""

    adamw = "adamw"
    adam = "adam"
    adamw_8bit = "adamw-8bit"
    adafactor = "adafactor"
    adagrad = "adagrad"
    lion = "lion"
    muon = "muon"
    rmsprop = "rmsprop"
    sgd = "sgd"
    sgd_momentum = "sgd-momentum"


class PrecisionName(str, enum.Enum):
    """What the weights are, at rest."""

    fp32 = "fp32"
    autocast = "autocast"
    mixed = "mixed"
    bf16 = "bf16"


@dataclass(frozen=True)
class _Precision:
    weight_bytes: int
    master_bytes: int  # of a second copy of the weights
    moment_bytes: int  # of each number of the optimizer's state


_PRECISIONS = {
    PrecisionName.fp32: _Precision(4, 0, 4),
    PrecisionName.autocast: _Precision(4, 0, 4),
    PrecisionName.mixed: _Precision(2, 4, 4),
    PrecisionName.bf16: _Precision(2, 0, 2),
}
# numbers that an optimizer keeps for each parameter
_MOMENTS = {
    OptimizerName.adamw: 2,
    OptimizerName.adam: 2,
    OptimizerName.adafactor: 0,
    OptimizerName.adagrad: 1,
    OptimizerName.lion: 1,
    OptimizerName.muon: 1,
    OptimizerName.rmsprop: 1,
    OptimizerName.sgd: 0,
    OptimizerName.sgd_momentum: 1,
}
_8BIT_BYTES = 2 * (1 + 4 / 256)  # two moments, each with the floats of its blocks


@dataclass(frozen=True)
class Part:
    """A part of a checkpoint.

    Attributes:
        name: the file.
        what: is in it.
        size_bytes: of it.
        per_parameter_bytes: for each parameter that it covers; None where that is not known.
    """

    name: str
    what: str
    size_bytes: int
    per_parameter_bytes: float | None = None


def _moment_bytes(optimizer: OptimizerName, precision: PrecisionName) -> float:
    if optimizer is OptimizerName.adamw_8bit:
        return _8BIT_BYTES
    return float(_MOMENTS[optimizer] * _PRECISIONS[precision].moment_bytes)


def bytes_per_parameter(optimizer: OptimizerName, precision: PrecisionName) -> float:
    """Of a parameter that is trained."""
    rule = _PRECISIONS[precision]
    return rule.weight_bytes + rule.master_bytes + _moment_bytes(optimizer, precision)


def expected_parts(
    num_parameters: int, optimizer: OptimizerName, precision: PrecisionName, num_trained: int | None = None
) -> list[Part]:
    """The parts of a checkpoint that has not been written yet.

    Args:
        num_parameters: of the model.
        optimizer: that trains it.
        precision: of its weights.
        num_trained: parameters that are trained; all unless given. The others have weights and nothing else.
    """
    rule, num_trained = _PRECISIONS[precision], num_parameters if num_trained is None else num_trained
    parts = [Part(MODEL, "weights", num_parameters * rule.weight_bytes, rule.weight_bytes)]
    if rule.master_bytes:
        parts.append(Part(TRAINING, "fp32 copy of the weights", num_trained * rule.master_bytes, rule.master_bytes))
    moments = _moment_bytes(optimizer, precision)
    if moments:
        parts.append(Part(TRAINING, f"state of {optimizer.value}", round(num_trained * moments), moments))
    return parts
