"""The callback that users add to a Hugging Face ``Trainer``."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import TrainOutput

from accelerate_resume._accelerator import probe as probe_accelerator
from accelerate_resume._accelerator import refuse_unsupported as refuse_accelerator
from accelerate_resume._hf_trainer import HfTrainer, find_trainer, probe, put_first, refuse_unsupported
from accelerate_resume._trainer_framework import TrainerFramework
from accelerate_resume.plugin import _show_unless_configured
from resume_core.candidates import resume_mode
from resume_core.errors import ResumeError
from resume_core.policy import Changes, Keep, SaveEvery, as_policies, plain_options
from resume_core.session import Session
from resume_core.state import Ending, Fact

__all__ = ["TrainerResumeCallback"]

_log = logging.getLogger("accelerate_resume")


class TrainerResumeCallback(TrainerCallback):  # type: ignore[misc]
    """Makes ``Trainer.train`` continue, to the last bit, where a killed run with the same directory stopped.

    Start the same script again: the newest checkpoint of the run is found, the configuration is compared with the one
    that saved it, and training goes on behind the last step that was saved. No ``resume_from_checkpoint`` is needed::

        trainer = Trainer(model, args, train_dataset=data, callbacks=[TrainerResumeCallback("runs/first")])
        trainer.train()

    Args:
        directory: where the run's checkpoints live, one directory a run: a local path or any fsspec URL.
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
        storage_options: passed to fsspec.

    Raises:
        ValueError: an unusable ``resume`` or ``scratch``, or a value of a policy that is out of range.
        TypeError: a policy of the wrong type, or with a field that it does not have.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        scratch: str | os.PathLike[str] | None = None,
        resume: str = "auto",
        save: SaveEvery | Mapping[str, Any] | None = None,
        keep: Keep | Mapping[str, Any] | None = None,
        changes: Changes | Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        resume_mode(resume)
        self._directory = directory
        self._options = as_policies(save=save, keep=keep, changes=changes)
        self._options |= {"scratch": scratch, "resume": resume, "storage_options": plain_options(storage_options)}
        self._trainer: Any = None
        self._run: _Run | None = None
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
        HfTrainer(trainer).around("_inner_training_loop", self._train)
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse to be there in vain."""
        if self._trainer is None and resume_mode(self._options["resume"]) != "off":
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

    def _train(self, plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if resume_mode(self._options["resume"]) == "off":
            return plain(*args, **kwargs)
        refuse_unsupported(self._trainer, kwargs.get("trial"))
        refuse_accelerator(self._trainer.accelerator)
        run = self._run = _Run(self._trainer, self._directory, self._fit, self._options)
        try:
            result = run.train(lambda: plain(*args, **kwargs))
        finally:
            self._run = None
        self._fit += 1
        return result


class _Over(BaseException):
    """Leaves the loop of a Trainer whose training had come to its end before."""


class _Run:
    """One call of ``train``.

    Args:
        trainer: to be followed.
        directory: of the run.
        fit: the place of this call among those of the script.
        options: of the session.
    """

    def __init__(self, trainer: Any, directory: str | os.PathLike[str], fit: int, options: Mapping[str, Any]) -> None:
        self._hf = HfTrainer(trainer)
        self.framework = TrainerFramework(self._hf, self._boundary, lambda note: self._log.warning("%s", note))
        self.session: Session | None = None
        self._directory, self._fit, self._options = directory, fit, options
        self._log = _log
        if not self.framework.ranks.is_first:  # what rank 0 says is said for all
            self._log = _log.getChild("ranks")
            self._log.setLevel(logging.ERROR)
        _show_unless_configured(_log)

    def _boundary(self, progress: Any) -> None:
        assert self.session is not None
        self.session.begin(progress)
        self.session.boundary(progress)

    def train(self, plain: Callable[[], Any]) -> Any:
        """Train what is left; the result of all of it."""
        try:
            result = self._follow(plain)
        except BaseException as error:
            if self.session is not None:
                self.session.end(error)
            raise
        finally:
            self.framework.loop.is_running = False
            self._hf.uninstall()
            self.framework.release()
        return result

    def _follow(self, plain: Callable[[], Any]) -> Any:
        self._hf.install(self.framework.calls(self._start))
        try:
            result = plain()
        except _Over:
            assert self.session is not None
            self.session.end()
            step, loss, metrics = self.framework.result
            self._hf.leave()
            return TrainOutput(step, loss, dict(metrics))
        session, self.framework.result = self.session, list(result)
        assert session is not None
        if not self._hf.is_interrupted:
            session.finish(self.framework.progress, self._ending())
        session.end()
        return result

    def _ending(self) -> Ending:
        hf = self._hf
        if hf.is_at_limit:
            return Ending("max_steps", {"max_steps": hf.trainer.state.global_step})
        if hf.is_stopped:
            return Ending("stop", {})
        return Ending("num_train_epochs", {"num_train_epochs": hf.num_epochs})

    def _start(self) -> int:
        framework, hf = self.framework, self._hf
        framework.know_train_loader()
        framework.limits = {"max_steps": hf.max_steps, "num_train_epochs": hf.num_epochs}
        seed = int(hf.trainer.args.seed)
        framework.seed = Fact(seed)
        session = self.session = Session(framework, self._directory, log=self._log, fit=self._fit, **self._options)
        session.start(seed)
        if session.is_over:
            framework.loop.arrive_now()
            raise _Over
        framework.loop.is_running = True
        for note in framework.begin():
            self._log.warning("%s", note)
        if framework.loop.destination is not None:
            session.begin(framework.progress)
        return framework.first_epoch()
