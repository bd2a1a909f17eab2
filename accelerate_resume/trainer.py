"""The callback that users add to a Hugging Face ``Trainer``."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback

from accelerate_resume._hf_probe import find_trainer, probe, put_first, refuse_unsupported
from accelerate_resume._hf_trainer import HfTrainer
from accelerate_resume._messages import messages_of
from accelerate_resume._probe import probe as probe_accelerator
from accelerate_resume._probe import refuse_attached
from accelerate_resume._probe import refuse_unsupported as refuse_accelerator
from accelerate_resume._trainer_run import TrainerRun
from resume_core.candidates import resume_mode, say_off
from resume_core.drill import is_rehearsal
from resume_core.errors import ResumeError
from resume_core.options import session_options
from resume_core.policy import Changes, Check, Keep, Preemption, SaveEvery, Watch

__all__ = ["TrainerResumeCallback"]


class TrainerResumeCallback(TrainerCallback):  # type: ignore[misc]
    """Makes ``Trainer.train`` continue, to the last bit, where a killed run with the same directory stopped.

    Start the same script again: the newest checkpoint of the run is found, the configuration is compared with the one
    that saved it, and training goes on behind the last step that was saved. No ``resume_from_checkpoint`` is needed::

        trainer = Trainer(model, args, train_dataset=data, callbacks=[TrainerResumeCallback("runs/first")])
        trainer.train()

    The Trainer's own folders ``checkpoint-N`` are made complete as well: ``train(resume_from_checkpoint=...)`` goes on
    exactly from the newest one that is whole.

    Args:
        directory: where the run's checkpoints live, one directory a run: a local path or any fsspec URL. None: only
            the Trainer's own folders are made complete.
        scratch: a fast local directory in front of ``directory``; ``/dev/shm/NAME`` works as one. Checkpoints are
            committed there first and promoted to the directory in the background. It is a cache: the newest one or two
            are there, several runs may share it, and when it is gone nothing is lost but what was not promoted yet.
        resume: ``"auto"`` (go on when there is something to go on from), ``"must"`` (nothing found stops the run),
            ``"never"`` (a new run in the same directory), or the name of a checkpoint, for example
            ``"attempt-0002/step-000000500"``. The environment variable ``EXACT_RESUME`` overrides it; ``off`` there
            turns the callback off.
        save: when to save. This and the next two may also be dicts of their fields, as YAML and Hydra give them.
        keep: which checkpoints stay.
        changes: what may differ from the run that saved.
        preemption: what to do when the machine is taken away: save at the next boundary, and end the process.
        check: how the first steps after a resume are compared with what the interrupted run recorded.
        watch: what to do about losses and gradients that are not finite, or jump.
        storage_options: passed to fsspec.

    Raises:
        ValueError: an unusable ``resume`` or ``scratch``, a protocol that fsspec does not know, a value of a policy
            that is out of range, or an argument that has no meaning without a directory.
        TypeError: a policy of the wrong type, or with a field that it does not have; no path.
        ImportError: the package for the protocol of ``directory`` is missing.
        OSError: ``directory`` is local and cannot be used: a file is in the way, or this user may not write there.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        scratch: str | os.PathLike[str] | None = None,
        resume: str = "auto",
        save: SaveEvery | Mapping[str, Any] | None = None,
        keep: Keep | Mapping[str, Any] | None = None,
        changes: Changes | Mapping[str, Any] | None = None,
        preemption: Preemption | Mapping[str, Any] | None = None,
        check: Check | Mapping[str, Any] | None = None,
        watch: Watch | Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._options = session_options(
            "TrainerResumeCallback",
            "say when to save in TrainingArguments, and what to go on from in train(resume_from_checkpoint=...)",
            directory=directory,
            scratch=scratch,
            resume=resume,
            save=save,
            keep=keep,
            changes=changes,
            preemption=preemption,
            check=check,
            watch=watch,
            storage_options=storage_options,
        )
        self._directory = self._options.pop("directory")
        self._made_s = time.time()
        self._trainer: Any = None
        self._run: TrainerRun | None = None
        self._given: Any = None  # what train was told to go on from
        self._fit = 0  # calls of train that have come to their end: the place of the next one

    # ---- hooks

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take over the Trainer that is being made."""
        trainer = find_trainer(self)
        if trainer is not None:
            self.attach(trainer)

    def attach(self, trainer: Any) -> TrainerResumeCallback:
        """Take over a Trainer that was made without this callback; not needed with ``Trainer(callbacks=[...])``.

        Returns:
            This callback.

        Raises:
            ResumeError: the Trainer has one already, this one has a Trainer, or this version of transformers or
                Accelerate lacks what is hooked into.
        """
        if self._trainer is trainer:
            return self
        others = [c for c in trainer.callback_handler.callbacks if isinstance(c, TrainerResumeCallback)]
        if self._trainer is not None or any(other is not self for other in others):
            raise ResumeError(
                "one run has one directory, so one Trainer has one TrainerResumeCallback, and each has its own"
            )
        probe_accelerator(trainer.accelerator)
        probe(trainer)
        put_first(trainer, self)
        self._trainer = trainer
        if is_rehearsal():
            _remove_empty(trainer.args.output_dir, self._made_s)
        hf = HfTrainer(trainer)
        hf.around("train", self._called)
        hf.around("_inner_training_loop", self._train)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse to be there in vain."""
        if self._trainer is None and not self._is_off:
            raise ResumeError(
                "this TrainerResumeCallback was added to a Trainer that was there already: give it to "
                "Trainer(callbacks=[...]), or call its attach(trainer) before trainer.train()"
            )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Here a run goes on that was saved between two epochs."""
        if self._run is not None:
            self._run.framework.begin_epoch()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An epoch has no more batches."""
        if self._run is not None:
            self._run.framework.end_epoch()

    # ---- a call of train

    @property
    def _is_off(self) -> bool:
        return resume_mode(self._options["resume"]) == "off"

    def _called(self, plain: Callable[..., Any], resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """The Trainer is not told what to go on from: it would load that before anything was compared."""
        if self._is_off:
            if self._trainer.is_world_process_zero():
                say_off(messages_of())
            return plain(resume_from_checkpoint, *args, **kwargs)
        self._given = resume_from_checkpoint
        try:
            return plain(None, *args, **kwargs)
        finally:
            self._given = None

    def _train(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._is_off:
            return plain(*args, **kwargs)
        refuse_unsupported(self._trainer, kwargs.get("trial"))
        refuse_accelerator(self._trainer.accelerator)
        refuse_attached(self._trainer.accelerator)
        given = kwargs.pop("resume_from_checkpoint", None) or self._given  # by a train() of the user's own
        run = self._run = TrainerRun(self._trainer, self._directory, self._fit, self._options, given)
        try:
            result = run.train(lambda: plain(*args, **kwargs))
        finally:
            self._run = None
        self._fit += not run.is_interrupted
        return result


_CLOCK_S = 0.1  # that a file system's time may be behind


def _remove_empty(folder: str, since_s: float) -> None:
    """Remove a folder that the Trainer has made, for a rehearsal, which leaves nothing; one of before stays."""
    with contextlib.suppress(OSError):
        if os.stat(folder).st_mtime >= since_s - _CLOCK_S:
            os.rmdir(folder)
