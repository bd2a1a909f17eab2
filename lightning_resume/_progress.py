"""Where the progress bar stands: after a resume in an epoch Lightning begins a bar without a length.

Internals used (Lightning 2.6): ``train_progress_bar`` of both bars, ``RichProgressBar.progress`` and
``train_progress_bar_id``. A bar of the user's own that derives from neither is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning_resume._package import is_a

__all__ = ["apply_progress", "capture_progress"]


def capture_progress(bar: Any) -> dict[str, Any] | None:
    """Position and length of the bar of the epoch, None when there is none."""
    if is_a(bar, "RichProgressBar") and bar.progress is not None and bar.train_progress_bar_id is not None:
        task = bar.train_progress_bar
        return {"position": task.completed, "total": task.total}
    if is_a(bar, "TQDMProgressBar") and bar._train_progress_bar is not None and bar.is_enabled:
        return {"position": bar.train_progress_bar.n, "total": bar.train_progress_bar.total}
    return None


def apply_progress(bar: Any, saved: Mapping[str, Any] | None, trainer: Any) -> None:
    """Begin the bar of the epoch and move it to where it stood."""
    if saved is None or not is_a(bar, "RichProgressBar", "TQDMProgressBar") or not bar.is_enabled:
        return
    bar.on_train_epoch_start(trainer, trainer.lightning_module)
    position, total = saved["position"], saved["total"]
    if is_a(bar, "RichProgressBar"):
        if bar.progress is not None and bar.train_progress_bar_id is not None:
            # reset, so that the speed is that of this attempt
            bar.progress.reset(bar.train_progress_bar_id, completed=position, total=total)
            bar._update_metrics(trainer, trainer.lightning_module)
            bar.refresh()
    else:
        shown = bar.train_progress_bar
        shown.total, shown.n, shown.initial = total, position, position
        shown.set_postfix(bar.get_metrics(trainer, trainer.lightning_module))
