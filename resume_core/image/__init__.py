"""Tensors laid out as the bytes of the file they become.

``flatten`` takes state apart; ``Stager`` copies it into an ``Arena`` as finished safetensors files; ``make_target`` and
``unflatten`` put it together again::

    flat = flatten(tree)
    (image,) = stager.stage([FileSpec("training.safetensors", flat.tensors)])
    image.wait()                                            # on the thread that writes
    write(image.buffer), write(dumps(flat.structure))
    target = make_target(parse_header(beginning, size_bytes=size_bytes))
    read(target.memory)
    tree = unflatten(loads(text), target.tensors)
"""

from __future__ import annotations

from resume_core.image.arena import Arena
from resume_core.image.layout import Entry, Layout
from resume_core.image.loose import loose
from resume_core.image.memory import Memory
from resume_core.image.read import Header, Stored, header_bytes, parse_header
from resume_core.image.replicas import OwnPart, fingerprint, own_part, with_own_part
from resume_core.image.stage import FileSpec, Image, Stager
from resume_core.image.structure import Flat, Recorded, dumps, flatten, loads, register_leaf, unflatten
from resume_core.image.target import Target, live_targets, make_target

__all__ = [
    "flatten",
    "unflatten",
    "loose",
    "dumps",
    "loads",
    "register_leaf",
    "Flat",
    "Memory",
    "Recorded",
    "Layout",
    "Entry",
    "Arena",
    "Stager",
    "FileSpec",
    "Image",
    "parse_header",
    "header_bytes",
    "Header",
    "Stored",
    "Target",
    "live_targets",
    "make_target",
    "OwnPart",
    "fingerprint",
    "own_part",
    "with_own_part",
]
