"""Real text and a small language model: the help texts that come with Python, a byte at a time."""

from __future__ import annotations

import random
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel

__all__ = ["Pieces", "accuracy", "make_model"]

_LENGTH = 40  # of a piece, in bytes
_NUM_PIECES, _NUM_HELD_OUT = 1440, 144


class Pieces(Dataset[dict[str, Any]]):
    """Pieces of the texts, as ids, bytes and the bytes to be foretold.

    Args:
        train: those that are trained on, augmented; otherwise others as they are.
    """

    def __init__(self, train: bool) -> None:
        text = "".join(topics[name] for name in sorted(topics)).encode()
        border = (_NUM_PIECES + 1) * _LENGTH  # a piece may begin further on by all of its length
        end = border + _NUM_HELD_OUT * _LENGTH
        self.train, self.text = train, text[:border] if train else text[border:end]

    def __len__(self) -> int:
        return _NUM_PIECES if self.train else _NUM_HELD_OUT

    def __getitem__(self, index: int) -> dict[str, Any]:
        """A piece; ``input_ids`` and ``labels`` have the shape (length,)."""
        first = index * _LENGTH + (random.randrange(_LENGTH) if self.train else 0)
        labels = torch.tensor(list(self.text[first : first + _LENGTH]))
        return {"id": index, "input_ids": _augment(labels.clone()) if self.train else labels, "labels": labels}


def _augment(data: torch.Tensor) -> torch.Tensor:
    """Swap a byte with its neighbour by NumPy's random numbers, blank some by torch's; cut by Python's before."""
    place = np.random.randint(_LENGTH - 1)
    data[[place, place + 1]] = data[[place + 1, place]]
    data[torch.rand(_LENGTH) < 0.05] = 0
    return data


def make_model() -> GPT2LMHeadModel:
    """A GPT-2 of one layer, with dropout; so small that tied weights would keep it from learning."""
    sizes = {"n_positions": _LENGTH, "n_embd": 32, "n_layer": 1, "n_head": 2, "tie_word_embeddings": False}
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, bos_token_id=0, eos_token_id=0, **sizes))


@torch.no_grad()
def accuracy(model: GPT2LMHeadModel) -> float:
    """Of the bytes of the held-out pieces, the part that the model foretells from those before."""
    model.eval()
    pieces = Pieces(train=False)
    data = torch.stack([pieces[index]["labels"] for index in range(len(pieces))])
    found = model(input_ids=data).logits.argmax(-1)
    return float((found[:, :-1] == data[:, 1:]).float().mean())
