"""The buckets of the models that an Accelerator has wrapped with DistributedDataParallel."""

from __future__ import annotations

from typing import Any

from resume_core.capture.buckets import BucketLayout, Layout, lay_out_anew

__all__ = ["Buckets"]


class Buckets:
    """The layouts of all of them, in the order in which they were prepared."""

    def __init__(self) -> None:
        self._wrapped: list[Any] = []
        self._found: list[BucketLayout] = []

    def add(self, model: Any) -> None:
        """A model was prepared; the Accelerator's own list holds it as it was before."""
        if all(model is not known for known in self._wrapped):
            self._wrapped.append(model)

    @property
    def _layouts(self) -> list[BucketLayout]:
        new = self._wrapped[len(self._found) :]
        self._found += [BucketLayout(lambda m=m: m, lambda m=m: lay_out_anew(m)) for m in new]  # type: ignore[misc]
        return self._found

    def watch(self) -> None:
        """Note in which order gradients become ready."""
        for layout in self._layouts:
            layout.watch()

    def state(self) -> list[Layout | None]:
        """How the buckets of each lie, of those that are watched."""
        return [layout.state() for layout in self._found]

    def apply(self, saved: list[Layout | None]) -> None:
        """Let them lie as they did."""
        for layout, one in zip(self._layouts, saved, strict=True):
            layout.apply(one)
