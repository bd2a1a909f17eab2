"""Where the messages of a run go."""

from __future__ import annotations

import logging
from typing import Any

from resume_core.ranks import Ranks

__all__ = ["messages_of"]

_log = logging.getLogger("accelerate_resume")


class _UnlessConfigured(logging.StreamHandler[Any]):
    """Shows messages as long as the script has not said where messages go."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.root.handlers:
            super().emit(record)


def messages_of(ranks: Ranks | None = None) -> logging.Logger:
    """The logger of a run, whose messages are seen in a script that has configured no logging, too.

    Args:
        ranks: of which the first one speaks; None for a process that speaks for itself.
    """
    if not any(isinstance(handler, _UnlessConfigured) for handler in _log.handlers):
        _log.addHandler(_UnlessConfigured())
        if _log.level == logging.NOTSET:
            _log.setLevel(logging.INFO)
    return (ranks or Ranks()).logger(_log)
