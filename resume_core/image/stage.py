"""Live tensors into the arena: the one copy that training waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from resume_core.image.arena import Arena
from resume_core.image.cuda import Copies
from resume_core.image.layout import PAGE_BYTES, Entry, Layout, needs_reordering
from resume_core.image.quiet import collector_paused, plain_tensors

_NO_MEMORY = torch.empty(0, dtype=torch.uint8, device="cpu")


@dataclass(frozen=True)
class FileSpec:
    """A file to stage.

    Attributes:
        name: of the file, for example ``"model.safetensors"``; unique in one call.
        tensors: name to live tensor.
        plain: see :meth:`Layout.plan`.
        metadata: text for the header.
        plan: :attr:`Flat.plan` of the tensors, to be spared looking whether the last save's layout still fits.
    """

    name: str
    tensors: Mapping[str, torch.Tensor]
    plain: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    plan: object = None


class Image:
    """A file in memory, complete after :meth:`finish`. Valid until the next :meth:`Stager.stage`.

    Attributes:
        name: of the file.
        buffer: the whole file; starts on a page.
        size_bytes: its size.
    """

    def __init__(self, name: str, placed: _Placed, buffer: memoryview, memory: torch.Tensor, copies: Copies) -> None:
        self.name = name
        self.buffer = buffer
        self.size_bytes = placed.layout.size_bytes
        self._memory = memory
        self._copies = copies
        self._unordered = list(placed.unordered)

    def finish(self) -> None:
        """Wait for what a GPU still copies, and bring a plain image into C order. Twice does no harm.

        For the thread that writes: ordering, in place with one temporary tensor at a time, costs several times what
        the copy did.
        """
        self._copies.wait()
        with plain_tensors():
            while self._unordered:
                staged = self._unordered[-1].view(self._memory)
                staged.as_strided((staged.numel(),), (1,)).copy_(staged.contiguous().view(-1))
                self._unordered.pop()


@dataclass(frozen=True)
class _Group:
    """Tensors of one type on one device, and where they go."""

    device: torch.device
    names: list[str]
    targets: list[torch.Tensor]


@dataclass(frozen=True)
class _Placed:
    """A layout at its place in the arena."""

    layout: Layout
    metadata: dict[str, str]
    offset: int
    groups: list[_Group]
    unordered: list[Entry]
    plan: object


class Stager:
    """Copies files into one arena, and keeps plans and views from one save to the next."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._memory = arena.tensor
        self._placed: dict[str, _Placed] = {}
        self._copies = Copies()

    def prepare(self, files: Sequence[FileSpec]) -> None:
        """Plan for ``files`` and take memory for them, whose pages come in the background.

        The images of the last :meth:`stage` stay whole.

        Raises:
            ValueError: two files have one name.
            UnsupportedStateError: see :meth:`Layout.plan`.
            OSError: no memory for the arena.
        """
        if len({file.name for file in files}) != len(files):
            raise ValueError(f"two files have one name: {[file.name for file in files]}")
        with plain_tensors(), collector_paused():
            self._place(files)

    def reserve(self, size_bytes: int) -> None:
        """Take memory for files of about that size, before they are known.

        Raises:
            OSError: no memory for the arena.
        """
        self._reserve(_with_room(size_bytes))

    def _reserve(self, size_bytes: int) -> None:
        if size_bytes > self._arena.size_bytes:
            self._copies.wait()  # into the memory that is given back
        self._arena.reserve(size_bytes)

    def stage(self, files: Sequence[FileSpec]) -> list[Image]:
        """Copy all tensors of all files; later changes of them do not show.

        Those on a GPU are copied while the host goes on: see :meth:`Image.finish`.

        Draws no random numbers and records no gradients. Overwrites the images of the call before.

        Args:
            files: each goes to a page boundary, in the order given.

        Raises:
            ValueError: two files have one name.
            UnsupportedStateError: see :meth:`Layout.plan`.
            OSError: no memory for the arena.
        """
        self.prepare(files)
        self._arena.wait()
        with plain_tensors(), collector_paused():
            for file in files:
                self._copy(file)
        return [self._image(self._placed[file.name], file.name) for file in files]

    def _place(self, files: Sequence[FileSpec]) -> None:
        """Plans for ``files``; those that still fit, at the same place, are used again with their views."""
        layouts = [self._layout(file) for file in files]
        *offsets, size_bytes = _page_offsets([layout.size_bytes for layout in layouts])
        if size_bytes > self._arena.size_bytes:
            self._memory, self._placed = _NO_MEMORY, {}  # they would hold the old memory while the new is taken
            self._reserve(_with_room(size_bytes))
        if self._memory is not self._arena.tensor:  # grown, here or by another user of the arena
            self._memory, self._placed = self._arena.tensor, {}
        before, self._placed = self._placed, {}
        for file, layout, offset in zip(files, layouts, offsets, strict=True):
            old = before.get(file.name)
            if old is None or old.layout is not layout or old.offset != offset:
                old = self._new(file, layout, offset)
            self._placed[file.name] = replace(old, plan=file.plan)

    def _layout(self, file: FileSpec) -> Layout:
        old = self._placed.get(file.name)
        if (
            old is not None
            and old.layout.plain == file.plain
            and old.metadata == file.metadata
            and ((file.plan is not None and file.plan is old.plan) or old.layout.matches(file.tensors))
        ):
            return old.layout
        return Layout.plan(file.tensors, metadata=file.metadata, plain=file.plain)

    def _new(self, file: FileSpec, layout: Layout, offset: int) -> _Placed:
        image = self._memory[offset : offset + layout.size_bytes]
        groups: dict[tuple[torch.dtype, torch.device], _Group] = {}
        for entry in layout.entries.values():
            device = file.tensors[entry.name].device
            group = groups.setdefault((entry.dtype, device), _Group(device, [], []))
            if entry.nbytes:
                group.names.append(entry.name)
                group.targets.append(entry.view(image))
        unordered = [entry for entry in layout.entries.values() if layout.plain and needs_reordering(entry)]
        return _Placed(layout, dict(file.metadata), offset, list(groups.values()), unordered, file.plan)

    def _copy(self, file: FileSpec) -> None:
        for group in self._placed[file.name].groups:
            if not group.names:
                continue
            sources = [file.tensors[name] for name in group.names]
            if group.device.type == "cuda":
                self._arena.pin()
                self._copies.start(group.device, group.targets, sources)
            else:
                torch._foreach_copy_(group.targets, sources)

    def _image(self, placed: _Placed, name: str) -> Image:
        layout, offset = placed.layout, placed.offset
        buffer = self._arena.view(offset, layout.size_bytes)
        buffer[: len(layout.header)] = layout.header
        return Image(name, placed, buffer, self._memory[offset : offset + layout.size_bytes], self._copies)


def _with_room(size_bytes: int) -> int:
    """For what grows a little with each save, so that the memory is not taken anew each time."""
    return size_bytes + size_bytes // 20


def _page_offsets(sizes_bytes: Sequence[int]) -> list[int]:
    """Where each of several files starts, and at the end where the next one would."""
    offsets = [0]
    for size_bytes in sizes_bytes:
        offsets.append(-(-(offsets[-1] + size_bytes) // PAGE_BYTES) * PAGE_BYTES)
    return offsets
