"""States to save and restore: a model and its optimizer, of realistic shapes, and what training does to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

GIB = 1 << 30


@dataclass(frozen=True)
class Size:
    """A GPT of that size with AdamW; without layers, one matrix with SGD.

    Attributes:
        layers: transformer blocks, of 12 parameters each.
        width: of a token; of the one matrix, a side.
        tokens: in the vocabulary; of the one matrix, the other side.
        positions: in the context.
    """

    layers: int
    width: int
    tokens: int
    positions: int = 1024


SIZES = {
    "600": Size(layers=12, width=768, tokens=50257),  # GPT-2: 592 tensors, 1.39 GiB
    "6700": Size(layers=139, width=256, tokens=50257),  # narrow and deep: 6,688 tensors, 1.38 GiB
    "one": Size(layers=0, width=8192, tokens=32768),  # 1 GiB
}
QUICK_SIZES = {
    "600": Size(layers=12, width=64, tokens=512),
    "6700": Size(layers=139, width=16, tokens=512, positions=64),
    "one": Size(layers=0, width=512, tokens=4096),
}


class Block(nn.Module):
    """The parameters of a transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


class Matrix(nn.Module):
    """One parameter."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(rows, columns))


def _module(size: Size) -> nn.Module:
    if not size.layers:
        return Matrix(size.tokens, size.width)
    parts = {
        "tokens": nn.Embedding(size.tokens, size.width),
        "positions": nn.Embedding(size.positions, size.width),
        "blocks": nn.ModuleList(Block(size.width) for _ in range(size.layers)),
        "ln": nn.LayerNorm(size.width),
    }
    return nn.ModuleDict(parts)


def _moments(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    return {
        "step": torch.tensor(1.0),
        "exp_avg": torch.rand_like(parameter),
        "exp_avg_sq": torch.rand_like(parameter),
    }


class Live:
    """A module and its optimizer in the middle of training, or as a job has them when it starts.

    Args:
        size: of the module.
        is_trained: whether the optimizer has its moments, which come with the first step.
    """

    def __init__(self, size: Size, *, is_trained: bool = True) -> None:
        torch.manual_seed(2026)
        self.size = size
        self.module = _module(size)
        parameters = list(self.module.parameters())
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, lr=1e-3)
        if size.layers:
            self.optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        if size.layers and is_trained:
            with torch.no_grad():
                self.optimizer.state.update({p: _moments(p) for p in parameters})

    def state_dict(self) -> dict[str, Any]:
        """Live references, as frameworks give them."""
        return {"model": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor under one name; the same names each time."""
        found = {f"model.{name}": tensor for name, tensor in self.module.state_dict().items()}
        for number, moments in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{number}.{name}": tensor for name, tensor in moments.items()}
        return found

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    @property
    def moments_bytes(self) -> int:
        """Of the optimizer's tensors."""
        return sum(tensor.nbytes for name, tensor in self.tensors().items() if name.startswith("optimizer."))

    @torch.no_grad()
    def change(self) -> None:
        """As a step does: no value stays, so that a peer that saves only what changed saves everything."""
        torch._foreach_mul_(list(self.tensors().values()), 0.999)

    @torch.no_grad()
    def erase(self) -> None:
        """Nothing of what was saved is left to pass for restored."""
        torch._foreach_zero_(list(self.tensors().values()))

    def checksum(self) -> dict[str, float]:
        """Differs when any tensor was not restored."""
        return {name: tensor.sum(dtype=torch.float64).item() for name, tensor in self.tensors().items()}

    def describe(self) -> str:
        tensors = self.tensors()
        if len(tensors) == 1:
            return f"one tensor of {self.size_bytes / GIB:.2f} GiB"
        return f"{self.size_bytes / GIB:.2f} GiB in {len(tensors):,} tensors"
