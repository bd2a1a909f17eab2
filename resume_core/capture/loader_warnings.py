"""What users should know of a loader before they train with it."""

from __future__ import annotations

from torch.utils.data import DataLoader, IterableDataset

from resume_core.capture.global_generators import find_global_generators

__all__ = ["loader_warnings"]


def loader_warnings(loader: object) -> list[str]:
    """What about ``loader`` will not be exact after a resume, one sentence each."""
    if not isinstance(loader, DataLoader):
        return [f"a {type(loader).__name__} is no DataLoader: after a resume it starts from its beginning again"]
    if isinstance(loader.dataset, IterableDataset):
        name = type(loader.dataset).__name__
        return [f"{name} is an IterableDataset: after a resume it starts from its beginning, with other random draws"]
    notes = [
        f"{name} is a generator outside the dataset: what it draws for a sample will differ after a resume; "
        "keep it on the dataset, transform or sampler instead, or on a callable object that collates (to track it does "
        "not help, as batches are drawn ahead)"
        for name in find_global_generators((loader.dataset, loader.collate_fn, loader.sampler, loader.batch_sampler))
    ]
    if getattr(loader, "in_order", True) is False:
        notes.append("in_order=False: the order of batches depends on timing, so no run can be repeated exactly")
    return notes
