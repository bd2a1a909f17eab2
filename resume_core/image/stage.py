"""Live tensors into the arena: the one copy that training waits for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

import torch

from resume_core.collector import collector_paused
from resume_core.image.arena import Arena
from resume_core.image.cuda import Copies
from resume_core.image.layout import PAGE_BYTES, Entry, Layout, needs_reordering
from resume_core.image.progress import Progress
from resume_core.image.quiet import plain_tensors

_PIECE_BYTES = 128 << 20  # copied by one call: what writes can begin with the first while the others are copied

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
    """A file in memory, to be read through :meth:`wait`. Valid until the next :meth:`Stager.stage`.

    Attributes:
        name: of the file.
        buffer: the whole file; starts on a page.
        size_bytes: its size.
    """

    def __init__(self, name: str, placed: _Placed, buffer: memoryview, staging: _Staging) -> None:
        self.name = name
        self.buffer = buffer
        self.size_bytes = placed.layout.size_bytes
        self._offset = placed.offset
        self._staging = staging
        self._unordered = list(placed.unordered)
        self._ordering = Lock()

    def wait(self, num_bytes: int | None = None) -> None:
        """Return when the first ``num_bytes`` of the file, or all, are what they shall be. Any thread may call it.

        A plain image is brought into C order by the first call: in place, with one temporary tensor at a time, it costs
        several times what the copy did, so this is for the threads that write.

        Raises:
            RuntimeError: staging was broken off by an error, which is chained.
        """
        with self._ordering:
            if self._unordered:
                self._staging.wait(self._offset + self.size_bytes)
                self._reorder()
        self._staging.wait(self._offset + (self.size_bytes if num_bytes is None else num_bytes))

    def settle(self) -> None:
        """Return when all files that are staged with this one are, and the file is what it shall be.

        For whoever would take the processor from the copying, which training waits for.

        Raises:
            RuntimeError: see :meth:`wait`.
        """
        self._staging.settle()
        self.wait()

    def _reorder(self) -> None:
        memory = self._staging.memory[self._offset : self._offset + self.size_bytes]
        with plain_tensors():
            while self._unordered:
                staged = self._unordered[-1].view(memory)
                staged.as_strided((staged.numel(),), (1,)).copy_(staged.contiguous().view(-1))
                self._unordered.pop()


class _Staging:
    """What the images of one :meth:`Stager.stage` have in common."""

    def __init__(self, memory: torch.Tensor, copies: Copies) -> None:
        self.memory = memory
        self.progress = Progress()
        self._copies = copies

    def wait(self, num_bytes: int) -> None:
        self.progress.wait(num_bytes)
        self._copies.wait()  # from a GPU: none was begun, or all were

    def settle(self) -> None:
        self.progress.wait(None)


@dataclass(frozen=True)
class _Slice:
    """A part of a large tensor: of one dimension, so long."""

    dim: int
    begin: int
    length: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.narrow(self.dim, self.begin, self.length)


@dataclass
class _Group:
    """Tensors of one type on one device that are copied by one call, and where they go.

    Attributes:
        start: of the first of them in the file, in bytes.
        slices: which part of the tensor of each name; None for the whole.
    """

    device: torch.device
    start: int
    names: list[str] = field(default_factory=list)
    slices: list[_Slice | None] = field(default_factory=list)
    targets: list[torch.Tensor] = field(default_factory=list)
    num_bytes: int = 0

    def add(self, name: str, part: _Slice | None, target: torch.Tensor) -> None:
        self.names.append(name)
        self.slices.append(part)
        self.targets.append(target)
        self.num_bytes += target.nbytes

    def sources(self, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        found = zip(self.names, self.slices, strict=True)
        return [tensors[name] if part is None else part.of(tensors[name]) for name, part in found]


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

    def stage(self, files: Sequence[FileSpec], begun: Callable[[list[Image]], None] | None = None) -> list[Image]:
        """Copy all tensors of all files; later changes of them do not show.

        Those on a GPU are copied while the host goes on: see :meth:`Image.wait`.

        Draws no random numbers and records no gradients. Overwrites the images of the call before.

        Args:
            files: each goes to a page boundary, in the order given.
            begun: called with the images, for threads to start on them: before anything is copied where that leaves a
                core to them, else behind it.

        Raises:
            ValueError: two files have one name.
            UnsupportedStateError: see :meth:`Layout.plan`.
            OSError: no memory for the arena.
        """
        self.prepare(files)
        self._arena.wait()
        staging = _Staging(self._memory, self._copies)
        images = [self._image(self._placed[file.name], file.name, staging) for file in files]
        is_early = self._is_on_gpu or has_spare_core()
        try:
            if begun is not None and is_early:
                begun(images)
            with plain_tensors(), collector_paused():
                self._copy(files, staging.progress)
        except BaseException as error:
            staging.progress.end(error)
            raise
        staging.progress.end()
        if begun is not None and not is_early:
            begun(images)
        return images

    @property
    def _is_on_gpu(self) -> bool:
        """Whether something that is planned is copied by a GPU, beside which the host goes on."""
        return any(group.device.type == "cuda" for placed in self._placed.values() for group in placed.groups)

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
        groups = _groups(layout, image, {name: tensor.device for name, tensor in file.tensors.items()})
        unordered = [entry for entry in layout.entries.values() if layout.plain and needs_reordering(entry)]
        return _Placed(layout, dict(file.metadata), offset, groups, unordered, file.plan)

    def _copy(self, files: Sequence[FileSpec], progress: Progress) -> None:
        places, on_host = [self._placed[file.name] for file in files], not self._is_on_gpu
        for file, placed in zip(files, places, strict=True):
            for group in placed.groups:
                if on_host:
                    progress.advance(placed.offset + group.start)  # groups are in the order of their starts
                self._copy_group(group, group.sources(file.tensors))

    def _copy_group(self, group: _Group, sources: list[torch.Tensor]) -> None:
        if group.device.type == "cuda":
            self._arena.pin()
            self._copies.start(group.device, group.targets, sources)
        else:
            torch._foreach_copy_(group.targets, sources)

    def _image(self, placed: _Placed, name: str, staging: _Staging) -> Image:
        layout, offset = placed.layout, placed.offset
        buffer = self._arena.view(offset, layout.size_bytes)
        buffer[: len(layout.header)] = layout.header
        return Image(name, placed, buffer, staging)


def _groups(layout: Layout, image: torch.Tensor, devices: Mapping[str, torch.device]) -> list[_Group]:
    """What is copied by one call each, in the order of their starts: all that lies before one is in those before it."""
    groups: list[_Group] = []
    open_groups: dict[tuple[torch.dtype, torch.device], _Group] = {}
    for entry in layout.entries.values():
        if not entry.nbytes:
            continue
        device, whole = devices[entry.name], entry.view(image)
        for part in _slices(whole) if device.type == "cpu" else [None]:
            target = whole if part is None else part.of(whole)
            group = open_groups.get((entry.dtype, device))
            if group is None or group.num_bytes >= _PIECE_BYTES:
                start = target.data_ptr() - image.data_ptr()
                group = open_groups[entry.dtype, device] = _Group(device, start)
                groups.append(group)
            group.add(entry.name, part, target)
    return groups


def has_spare_core() -> bool:
    """Whether a thread beside the copy gets a core of its own.

    Torch copies with as many threads as it computes with. On two cores, a writer beside two of them made training wait
    1.2 to 1.4 times as long as the copy takes alone, and checkpoints durable a tenth of a bare write sooner.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores > torch.get_num_threads()


def _slices(target: torch.Tensor) -> Sequence[_Slice | None]:
    """Cut a large tensor along its slowest dimension, where that gives parts that lie one behind the other."""
    if target.nbytes <= _PIECE_BYTES:
        return [None]
    dim = max((dim for dim in range(target.dim()) if target.size(dim) > 1), key=target.stride)
    size, step_bytes = target.size(dim), target.stride(dim) * target.element_size()
    if size * step_bytes != target.nbytes:
        return [None]
    length = max(1, _PIECE_BYTES // step_bytes)
    return [_Slice(dim, begin, min(length, size - begin)) for begin in range(0, size, length)]


def _with_room(size_bytes: int) -> int:
    """For what grows a little with each save, so that the memory is not taken anew each time."""
    return size_bytes + size_bytes // 20


def _page_offsets(sizes_bytes: Sequence[int]) -> list[int]:
    """Where each of several files starts, and at the end where the next one would."""
    offsets = [0]
    for size_bytes in sizes_bytes:
        offsets.append(-(-(offsets[-1] + size_bytes) // PAGE_BYTES) * PAGE_BYTES)
    return offsets
