"""The callback that users add to a Lightning ``Trainer``."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from lightning_resume._callbacks import keep_config
from lightning_resume._embedding import Snapshot
from lightning_resume._framework import FitFramework
from lightning_resume._loggers import tell_loggers, wait_to_be_told
from lightning_resume._package import Package, callback_base, package_of
from lightning_resume._place import EXACT_HOOKS
from lightning_resume._probe import probe, refuse_unsupported
from lightning_resume._trainer import Moments, TrainerAdapter
from lightning_resume._tuners import Findings, is_tuner_fit
from resume_core.candidates import named_checkpoint, peek, resume_mode, say_off
from resume_core.capture.attributes import AttributeWatch, changed_note
from resume_core.capture.dataset_attributes import DatasetWatch, names_in_state_hooks, roots_of_loader
from resume_core.capture.describe import seed_fact
from resume_core.capture.global_generators import find_training_generators, generator_note, generators_of_loader
from resume_core.capture.loader_warnings import loader_warnings
from resume_core.drill import is_rehearsal
from resume_core.embedded import EmbeddedSession, Given, look_for_entry
from resume_core.entry import ENTRY
from resume_core.errors import ResumeError
from resume_core.options import session_options
from resume_core.policy import Changes, Check, Keep, Preemption, SaveEvery, Watch
from resume_core.session import Session
from resume_core.state import Ending, Progress

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    Callback = callback_base()

__all__ = ["ResumeCallback"]

_LOOK_AT_BATCH = 2  # of an epoch: early, and late enough for what is only made in the first one
_ADVICE = (
    "keep them in a buffer, a torchmetrics.Metric, or in on_save_checkpoint and on_load_checkpoint (state_dict and "
    "load_state_dict of a callback)"
)
_ADVICE_ON_DATA = (
    "save and set them in on_save_checkpoint and on_load_checkpoint of the LightningModule, or in state_dict and "
    "load_state_dict of its datamodule or of a callback"
)
_WHERE_TO_KEEP_GENERATORS = "keep each as an attribute of the LightningModule, its datamodule or a callback"
_WHERE_TO_SAVE = f"Save at the end of a hook of these: {', '.join(EXACT_HOOKS)}, or after fit()."


class ResumeCallback(Callback):
    """Makes ``Trainer.fit`` continue, to the last bit, where a killed run with the same directory stopped.

    Start the same script again: the newest checkpoint of the run is found, the configuration is compared with the one
    that saved it, and training goes on with the batch after the last one that was saved. No ``ckpt_path`` is needed.

    Without a directory nothing is saved or found by itself: what ``ModelCheckpoint`` and ``Trainer.save_checkpoint``
    write then carries what they lack, and ``fit(ckpt_path=...)`` goes on exactly.

    Args:
        directory: where the run's checkpoints live, one directory a run: a local path or any fsspec URL. None: only
            Lightning's own checkpoints are made complete.
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

    _yields = False
    """Whether it leaves a Trainer to another ResumeCallback."""

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
            "ResumeCallback",
            "say when to save in ModelCheckpoint, and what to go on from in fit(ckpt_path=...)",
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
        self._fit = 0  # how many fits this callback has seen end: the place of the next one
        self._counts = False  # whether the fit that is under way is one of them: not that of a Tuner
        self._log = logging.getLogger(__name__)
        self._log_of_module: Any = None
        self._watch: AttributeWatch | None = None
        self._data_watch: DatasetWatch | None = None
        self._has_named_generators = False
        self._session: Session | EmbeddedSession | None = None
        self._adapter: TrainerAdapter | None = None
        self._carrier: EmbeddedSession | None = None  # stays after fit, when checkpoints may still be saved
        self._ended: Snapshot | str | None = None
        self._findings = Findings()  # a Tuner comes in a fit of its own, before that of the run

    @property
    def log(self) -> Any:
        """``LightningModule.log``, which Lightning sets on every callback when a fit or an evaluation begins."""
        return self._log_of_module

    @log.setter
    def log(self, function: Any) -> None:
        self._log_of_module = function
        if self._directory is None:
            return
        # nothing else reaches a callback before Lightning opens the loggers
        trainer: Any = function.__self__.trainer
        if is_rehearsal() and self._is_on(trainer, trainer.state.fn):
            trainer.loggers = [package_of(trainer).DummyLogger()] * bool(trainer.loggers)
            keep_config(trainer.callbacks)
            return
        # nor do ranks know of each other yet: the first one alone logs
        if trainer.is_global_zero and wait_to_be_told(trainer.loggers) and self._is_on(trainer, trainer.state.fn):
            options = {name: self._options[name] for name in ("resume", "storage_options", "scratch")}
            preamble = peek(self._directory, **options)
            tell_loggers(trainer.loggers, preamble.get("loggers", ()))

    def _is_on(self, trainer: Any, stage: str) -> bool:
        return stage == "fit" and not trainer.fast_dev_run and resume_mode(self._options["resume"]) != "off"

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Take over the fit that is about to begin."""
        if not self._is_on(trainer, stage):
            if stage == "fit" and not trainer.fast_dev_run and trainer.is_global_zero:
                say_off(_log_of(trainer))
            return
        if sum(isinstance(c, ResumeCallback) and not c._yields for c in trainer.callbacks) > 1:
            raise ResumeError("this Trainer has two ResumeCallbacks: one run has one directory, so keep one of them")
        probe(trainer)
        refuse_unsupported(trainer)
        seed = seed_fact(os.environ.get("PL_GLOBAL_SEED"), torch.initial_seed())
        named = named_checkpoint(resume_mode(self._options["resume"])) is not None
        carries = self._directory is None
        framework = FitFramework(trainer, seed, self._findings, goes_on=named, carries=carries)
        adapter = TrainerAdapter(framework, self._findings)
        self._log = framework.ranks.logger(_log_of(trainer))
        session = self._new_session(adapter)
        preamble = session.preamble()
        self._findings.found.update(preamble.get("findings", {}))
        self._adapter = adapter
        if is_tuner_fit(trainer.callbacks):
            adapter.install_for_tuner()
            return
        self._session, self._counts, self._ended = session, True, None
        framework.outputs.open({} if is_rehearsal() else preamble)
        takes_signals = self._directory is not None and bool(self._options["preemption"].signals)
        adapter.install(self._moments(session, adapter, seed.value), takes_signals=takes_signals)
        if is_rehearsal():
            adapter.mute()

    def _moments(self, session: Session | EmbeddedSession, adapter: TrainerAdapter, seed: Any) -> Moments:
        return Moments(
            early=lambda: session.prepare(seed),
            ready=lambda: self._start(session, adapter, seed),
            first_fetch=lambda progress: self._begin(session, progress),
            boundary=session.boundary,
            pause=session.pause,
            stranded=session.stranded,
            finish=lambda progress, ending: self._finish(session, progress, ending),
            starts_from=lambda path, named: session.starts_from(path, named=named),
            loaded=lambda checkpoint, path: self._look_at(session, adapter.framework, checkpoint, path),
            over=lambda: self._log.info("training had come to its end: nothing is left to train"),
            tuned=session.reconfigured,
        )

    def _new_session(self, adapter: TrainerAdapter) -> Session | EmbeddedSession:
        framework = adapter.framework
        if self._directory is not None:
            options = self._options | {"preemption": self._preemption(adapter)}
            return Session(framework, self._directory, log=self._log, fit=self._fit, **options)
        self._carrier = EmbeddedSession(framework, changes=self._options["changes"], log=self._log)
        return self._carrier

    def _preemption(self, adapter: TrainerAdapter) -> Preemption:
        """The user's, with what Lightning was told of SLURM."""
        chosen: Preemption = self._options["preemption"]
        if adapter.slurm is None or not chosen.signals:
            return chosen
        requeues, name = adapter.slurm
        names = dict.fromkeys((*chosen.signals, name) if requeues else chosen.signals)
        return replace(chosen, signals=tuple(names), requeue=chosen.requeue and requeues)

    def _look_at(
        self, session: Session | EmbeddedSession, framework: FitFramework, checkpoint: dict[str, Any], path: str
    ) -> None:
        entry = look_for_entry(checkpoint, path, self._log, num_ranks=framework.ranks.size)
        if entry is not None:
            session.give(Given(path, entry, framework.state_of(entry.point, entry.pieces)))

    def _start(self, session: Session | EmbeddedSession, adapter: TrainerAdapter, seed: Any) -> None:
        session.start(seed)
        if session.is_over:
            adapter.skip_training()
            return
        for loader in adapter.framework.train_loaders:
            for note in loader_warnings(loader):
                self._log.warning("%s", note)

    def _begin(self, session: Session | EmbeddedSession, progress: Progress) -> None:
        session.begin(progress)
        session.observer.before_first()  # hooks of other callbacks may set a learning rate before each batch
        if self._adapter is not None and not self._has_named_generators:
            self._has_named_generators = True
            self._name_generators(self._adapter.framework)

    def _name_generators(self, framework: FitFramework) -> None:
        loaders = framework.train_loaders
        known = [*framework.find_generators(), *(each for loader in loaders for each in generators_of_loader(loader))]
        datasets = [getattr(loader, "dataset", None) for loader in loaders]  # what their code uses is named with them
        owners = framework.owners.values()
        names = find_training_generators(owners, known=known, closed=(*framework.no_owners, *datasets))
        if names:
            self._log.warning("%s", generator_note(names, _WHERE_TO_KEEP_GENERATORS))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Look at what user code keeps in plain attributes."""
        if self._adapter is not None:
            for owner in self._adapter.framework.owners.values():
                getattr(owner, "hparams", None)  # made when first asked for, which is no change
            package = package_of(trainer)
            known = frozenset(vars(package.LightningModule())) | frozenset(vars(package.LightningDataModule()))
            kinds = (package.Trainer, package.Logger)
            owners = self._adapter.framework.owners
            watched = _without_own_state(owners, package)
            self._watch = AttributeWatch(watched, known, kinds, saved=owners.values())
            self._watch_data(self._adapter.framework, self._watch.looked_into)

    def _watch_data(self, framework: FitFramework, others: Collection[int]) -> None:
        loaders = framework.train_loaders
        roots: dict[str, Any] = {}
        for place, loader in enumerate(loaders):
            roots |= roots_of_loader(f"train_dataset.{place}" if len(loaders) > 1 else "train_dataset", loader)
        self._data_watch = DatasetWatch(roots, names_in_state_hooks(framework.owners.values()), others)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Take note of what is trained on."""
        if self._session is not None:
            self._session.observer.batch(batch)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Take note of the gradients, before they are clipped."""
        session, adapter = self._session, self._adapter
        if session is not None and adapter is not None and session.observer.wants_gradients:
            session.observer.gradients(optimizer, may_overflow=adapter.framework.scaler is not None)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take note of the loss, and look again early in an epoch."""
        if self._session is not None:
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            num_parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
            self._session.observer.loss(loss, num_parts)
        if batch_idx == _LOOK_AT_BATCH:
            self._name_changes()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Look again at the end of an epoch."""
        self._name_changes()

    def _name_changes(self) -> None:
        names = self._watch.changed() if self._watch is not None else []
        if names:
            self._log.warning("%s", changed_note(names, _ADVICE))
        names = self._data_watch.changed() if self._data_watch is not None else []
        if names:
            self._log.warning("%s", changed_note(names, _ADVICE_ON_DATA))

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Without a directory: add what Lightning's checkpoint lacks."""
        if self._carrier is None:
            return
        found = self._ended if self._adapter is None else self._adapter.framework.embedding.snapshot()
        if isinstance(found, tuple):
            checkpoint[ENTRY] = self._carrier.carry(*found)
        elif found is not None:
            checkpoint[ENTRY] = self._carrier.carry_none(found, _WHERE_TO_SAVE)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Say what saving has cost; the end state is saved when all hooks of this name have run."""
        self._compare_with_model_checkpoint(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Let the save in flight commit, then give the Trainer back as it was."""
        self._end(exception)
        if self._adapter is not None:
            self._adapter.framework.embedding.interrupted(exception)
        self._uninstall()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give the Trainer back as it was.

        Raises:
            SaveFailedError: the last save failed.
        """
        if stage == "fit" and self._adapter is not None:
            self._fit += self._counts
            self._counts = False
            self._end(None)
            self._uninstall()

    def _finish(self, session: Session | EmbeddedSession, progress: Progress, ending: Ending) -> None:
        session.finish(progress, ending)
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.end(error)

    def _uninstall(self) -> None:
        adapter, self._adapter = self._adapter, None
        self._watch, self._data_watch, self._has_named_generators = None, None, False
        if adapter is not None:
            self._ended = adapter.framework.embedding.ended
            adapter.uninstall()

    def _compare_with_model_checkpoint(self, trainer: Any) -> None:
        adapter, session = self._adapter, self._session
        if adapter is None or session is None or adapter.model_checkpoint_s is None or session.blocked_s is None:
            return
        if any(type(callback) is package_of(trainer).ModelCheckpoint for callback in trainer.callbacks):
            self._log.info(
                "ModelCheckpoint kept training waiting for %.3f s a save, ResumeCallback for %.3f s. If you need no "
                "checkpoints in Lightning's own format, pass Trainer(enable_checkpointing=False).",
                adapter.model_checkpoint_s,
                session.blocked_s,
            )


def _without_own_state(owners: Mapping[str, Any], package: Package) -> dict[str, Any]:
    """Those that do not save state of their own choosing: what that covers cannot be seen from outside."""
    parents = {"module": package.LightningModule, "datamodule": package.LightningDataModule}
    hooks = ("on_save_checkpoint", "state_dict")
    return {
        name: owner
        for name, owner in owners.items()
        if not any(package.is_overridden(hook, owner, parents.get(name, package.Callback)) for hook in hooks)
    }


def _log_of(trainer: Any) -> logging.Logger:
    """Below the framework's own logger, so that messages show wherever its own do."""
    return logging.getLogger(f"{package_of(trainer).root}.exact_resume")
