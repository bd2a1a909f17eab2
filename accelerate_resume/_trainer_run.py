"""One call of ``Trainer.train``, from its start to its end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from transformers.trainer_utils import TrainOutput

from accelerate_resume._hf_folders import CheckpointFolders
from accelerate_resume._hf_trainer import HfTrainer
from accelerate_resume._messages import messages_of
from accelerate_resume._trainer_framework import TrainerFramework
from resume_core.capture.rng import capture_rng
from resume_core.drill import is_rehearsal
from resume_core.embedded import Given
from resume_core.errors import CheckpointNotFoundError
from resume_core.folder_session import FolderSession
from resume_core.session import Session
from resume_core.state import Ahead, Ending, Fact, Progress

__all__ = ["TrainerRun"]

_ALONE = (
    "the Trainer alone would: not exact from here on are the order and augmentation of samples, random draws, "
    "gradients of a half-filled window, and callbacks"
)
_WHERE_TO_SAVE = "Leave it to save_strategy."


class _Over(BaseException):
    """Leaves the loop of a Trainer whose training had come to its end before."""


class TrainerRun:
    """One call of ``train``.

    Args:
        trainer: to be followed.
        directory: of the run; None where only the Trainer's own folders are made complete.
        fit: the place of this call among those of the script.
        options: of the session.
        given: what ``train`` was told to go on from.
    """

    def __init__(
        self,
        trainer: Any,
        directory: str | os.PathLike[str] | None,
        fit: int,
        options: Mapping[str, Any],
        given: str | bool | None,
    ) -> None:
        self._hf = HfTrainer(trainer)
        self._folders = CheckpointFolders(trainer)
        self.framework = TrainerFramework(self._hf, self._boundary, lambda note: self._log.warning("%s", note))
        self.framework.loop.settle_folder = self._settle_folder
        self._log = messages_of(self.framework.ranks)
        self._directory, self._fit, self._options, self._given = directory, fit, options, given
        self._own = FolderSession(
            self.framework,
            changes=options["changes"],
            plugin="TrainerResumeCallback",
            alone=_ALONE,
            log=self._log,
        )
        self._session: Session | FolderSession | None = None

    @property
    def session(self) -> Session | FolderSession:
        """What decides."""
        assert self._session is not None
        return self._session

    @property
    def is_interrupted(self) -> bool:
        """Whether training has ended because a signal asked for it: the next start goes on."""
        return self._hf.is_interrupted

    def train(self, plain: Callable[[], Any]) -> Any:
        """Train what is left; the result of all of it."""
        try:
            return self._follow(plain)
        except BaseException as error:
            if self._session is not None:
                self._session.end(error)
            raise
        finally:
            self.framework.loop.is_running = False
            self._hf.uninstall()
            self.framework.release()

    def _follow(self, plain: Callable[[], Any]) -> Any:
        self._hf.install(self.framework.calls(self._open, self._start, self._own.announce))
        if is_rehearsal() and self._directory is not None:
            self._hf.mute()
        try:
            result = plain()
        except _Over:
            self.session.end()
            self._hf.leave()
            step, loss, metrics = self.framework.result
            return TrainOutput(step, loss, dict(metrics))
        self.framework.result = list(result)
        if not self.is_interrupted:
            self.session.finish(self.framework.progress, self._ending())
        elif isinstance(self.session, Session):
            self.session.leaves("a signal that the Trainer has met itself (enable_jit_checkpoint)")
        self.session.end()
        return result

    def _ending(self) -> Ending:
        hf = self._hf
        if hf.is_at_limit:
            return Ending("max_steps", {"max_steps": hf.trainer.state.global_step})
        if hf.is_stopped:
            return Ending("stop", {})
        return Ending("num_train_epochs", {"num_train_epochs": hf.num_epochs})

    # ---- what the loop asks for

    def _open(self) -> str | None:
        """Training begins: look at what it was told to go on from."""
        framework, hf = self.framework, self._hf
        framework.know_train_loader()
        framework.limits = {"max_steps": hf.max_steps, "num_train_epochs": hf.num_epochs}
        framework.seed = Fact(int(hf.trainer.args.seed))
        if self._directory is None:
            self._session = self._own
        else:
            options = {"log": self._log, "fit": self._fit, **self._options}
            self._session = Session(framework, self._directory, **options)
            framework.stranded, framework.pauses.pause = self._session.stranded, self._session.pause
            framework.observer = self._session.observer
        return self._find(self._given) if self._given else None

    def _find(self, given: str | bool) -> str | None:
        folders = self.framework.ranks.share("folders to go on from", self._folders.candidates(given))
        if not folders:
            root = self._hf.trainer.args.output_dir
            missing = f"there is no whole checkpoint-N in {root} to go on from"
            if not (isinstance(self.session, Session) and self.session.has_checkpoints):
                raise CheckpointNotFoundError(missing, path=root)
            self._log.info("%s: the run goes on from its own newest checkpoint", missing)
            return None
        named = given is not True and not self._folders.is_own(folders[0])
        if not self.session.starts_from(folders[0], named=named):
            return None
        folder, entry = self._own.find(folders)
        if entry is None:
            return folder
        state = self.framework.state_of(entry.pieces, lambda: self._folders.load(folder))
        self.session.give(Given(folder, entry, state))
        return None

    def _start(self) -> int:
        framework, session = self.framework, self.session
        session.start(framework.seed.value)
        if session.is_over:
            framework.loop.arrive_now()
            raise _Over
        if isinstance(session, Session):
            self._own.join(*session.identity)
            if session.has_restored:
                session.begin(framework.progress)
        framework.loop.is_running = True
        for note in framework.begin():
            self._log.warning("%s", note)
        for note in framework.begin_export() if isinstance(session, Session) else []:
            self._log.info("%s", note)
        if self._hf.foreign:
            self._folders.load(self._hf.foreign)
        return framework.first_epoch()

    def _boundary(self, progress: Progress, ahead: Ahead) -> None:
        self.session.begin(progress)
        self.session.boundary(progress, ahead)

    def _settle_folder(self) -> None:
        """What the Trainer has written since the last boundary gets what it lacks, and counts from now on."""
        saved, self._hf.saved = self._hf.saved, None
        if saved is None:
            return
        folder, step, batch = saved
        progress, own = self.framework.progress, self._own
        if self._hf.trainer.args.save_only_model:
            own.begin_incomplete(folder, "with save_only_model=True, so without its optimizer,")
        elif (step, batch) != (progress.step, progress.batch):
            own.begin_incomplete(folder, "inside of a step", _WHERE_TO_SAVE)
        else:
            own.begin_save(folder, progress, lambda: self.framework.pieces(capture_rng()))
        own.commit_save(folder, self._folders.written(folder))
        if self._folders.are_limited:
            self.framework.ranks.gather("the folder", None)  # complete, before another one is deleted
            self.framework.ranks.settle()
            self._folders.prune(folder)
