"""The checkpoint that a run's own rule calls the best."""

from __future__ import annotations

from resume_core.errors import CheckpointNotFoundError
from resume_core.no_run import no_run
from resume_core.storage import CheckpointRef, Lineage
from resume_core.storage.keeping import Entry, best_of, recorded_keep
from resume_core.storage.retention import line_entries

__all__ = ["best_checkpoint", "metric_names"]

_MOST_NAMED = 10


def best_checkpoint(lineage: Lineage) -> CheckpointRef:
    """The one of the newest line that has the best value of ``Keep(best=)``, as the newest attempt has recorded it.

    Raises:
        CheckpointNotFoundError: no rule says what is best, or no checkpoint has a value; names the metrics there are.
        OSError: the store cannot be read.
    """
    newest, url = lineage.newest(), lineage.store.url
    if newest is None:
        raise CheckpointNotFoundError(no_run(lineage.store), path=url)
    keep = recorded_keep(newest)
    line, _ = line_entries(lineage, newest)
    if keep is None or keep.best is None:
        raise CheckpointNotFoundError(
            f"nothing says which checkpoint of {url} is the best: its Keep(...) has no best=. {_known(line)} Name a "
            'checkpoint, or give Keep(best="...") to the next start',
            path=url,
        )
    place = best_of(line, keep)
    if place is None:
        raise CheckpointNotFoundError(
            f"no checkpoint of {url} is the best by {keep.best!r}: none has a finite value of it. {_known(line)}",
            path=url,
        )
    return line[place].ref


def metric_names(line: list[Entry]) -> list[str]:
    """The metrics that checkpoints of a line carry."""
    told = (entry.header.get("metrics") for entry in line)
    return sorted({str(name) for metrics in told if isinstance(metrics, dict) for name in metrics})


def _known(line: list[Entry]) -> str:
    names = metric_names(line)
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"Metrics in its checkpoints: {', '.join(names[:_MOST_NAMED])}{more}." if names else "They carry no metrics."
