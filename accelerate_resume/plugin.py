"""The plugin that users attach to an Accelerate ``Accelerator``."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from accelerate_resume._counters import Counters
from accelerate_resume._framework import AcceleratorFramework
from accelerate_resume._messages import messages_of
from accelerate_resume._own_states import ALONE, OwnStates
from accelerate_resume._probe import attach_mark, plugin_before, probe, refuse_unsupported
from accelerate_resume._strangers import tell_of_strangers
from resume_core.candidates import resume_mode, say_off
from resume_core.capture.describe import seed_fact
from resume_core.capture.generators import GENERATORS
from resume_core.drill import is_rehearsal
from resume_core.errors import ResumeError
from resume_core.folder_session import FolderSession
from resume_core.options import session_options
from resume_core.policy import Changes, Check, Keep, Preemption, SaveEvery, Watch
from resume_core.session import Session
from resume_core.state import Ahead, Ending, Fact, Progress

__all__ = ["ResumePlugin"]


class ResumePlugin:
    """Makes an Accelerate script continue, to the last bit, where a killed run with the same directory stopped.

    Attach it before ``accelerator.prepare``, and take the epochs from it::

        resume = ResumePlugin("runs/first", save=SaveEvery(steps=500)).attach(accelerator)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for epoch in resume.epochs(3):
            for batch in loader:
                ...

    Saves fall between two batches, at the end of a loader, and between epochs. A run that goes on inside an epoch runs
    the code of that epoch again from its top, with loops that were through passed over. So what the code above the
    inner loop does must not depend on how often it runs; what code below it needs of the loop belongs in `counters`.

    Without a directory nothing is saved or found by itself: ``accelerator.save_state`` then writes what it lacks beside
    its files, and ``accelerator.load_state`` goes on exactly. Call it before the first batch, and then either take the
    epochs from `epochs`, or skip epochs and batches as scripts do (``skip_first_batches``).

    Args:
        directory: where the run's checkpoints live, one directory a run: a local path or any fsspec URL. None: only
            Accelerate's own checkpoints are made complete.
        scratch: a fast local directory in front of ``directory``; ``/dev/shm/NAME`` works as one. Checkpoints are
            committed there first and promoted to the directory in the background. It is a cache: the newest one or two
            are there, several runs may share it, and when it is gone nothing is lost but what was not promoted yet.
        resume: ``"auto"`` (go on when there is something to go on from), ``"must"`` (nothing found stops the run),
            ``"never"`` (a new run in the same directory), or the name of a checkpoint, for example
            ``"attempt-0002/step-000000500"``. The environment variable ``EXACT_RESUME`` overrides it; ``off`` there
            turns the plugin off.
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
        self._is_off = resume_mode(resume) == "off"
        self._options = session_options(
            "ResumePlugin",
            "say when to save with accelerator.save_state(), and what to go on from with load_state()",
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
        self._log = logging.getLogger("accelerate_resume")
        self._framework: AcceleratorFramework | None = None
        self._session: Session | FolderSession | None = None
        self._has_started = self._is_left = False
        self._is_open = False  # without a directory: whether the run has begun, asked to or not
        self._counters: Counters | None = None

    def attach(self, accelerator: Any) -> ResumePlugin:
        """Take over an Accelerator that has prepared nothing yet, or nothing since ``free_memory()``.

        The run of a plugin that it had ends here.

        Returns:
            This plugin.

        Raises:
            ResumeError: it has prepared something, it has a plugin whose run did not begin or this plugin has an
                Accelerator, it trains in a way that is not supported, or this version of Accelerate lacks what is
                hooked into.
            SaveFailedError: the last save of the run before failed.
        """
        if self._framework is not None:
            raise ResumeError("this ResumePlugin is attached already: make another one, with a directory of its own")
        probe(accelerator)
        if self._is_off:
            if accelerator.is_main_process:
                say_off(messages_of())
            return self
        refuse_unsupported(accelerator)
        before = plugin_before(accelerator)
        if before is not None:
            before._leave()
        attach_mark(accelerator, self)
        self._framework = AcceleratorFramework(accelerator, self._at_boundary)
        self._framework.script.tell = lambda note: self._warn([note])
        self._framework.hooks.append(tell_of_strangers(self._framework))
        self._log = messages_of(self._framework.ranks)
        if self._directory is None:
            self._carry(self._framework)
        else:
            self._framework.idle = self._warn_of_idle
            if is_rehearsal():
                self._framework.mute()
        return self

    def _warn_of_idle(self) -> None:
        """A script trains that has attached the plugin and goes over its own epochs."""
        if self._framework is not None:
            self._framework.idle = lambda: None
        if not self._has_started:
            self._log.warning(
                "accelerator.backward() was called and the run was not begun, so nothing is restored and nothing is "
                "saved in %s: take the epochs from resume.epochs(n), or call resume.restore() before the loop",
                self._directory,
            )

    def _carry(self, framework: AcceleratorFramework) -> None:
        """Without a directory: make complete what the Accelerator itself saves."""
        texts = {"plugin": type(self).__name__, "alone": ALONE}
        session = FolderSession(framework, changes=self._options["changes"], log=self._log, **texts)
        self._session = session
        script = framework.script
        script.begin, script.is_asked, script.is_saved, script.finds_epochs = self._open, False, False, True
        OwnStates(framework, session, start=self._open, go_on=self._go_on, warn=self._warn)

    # ---- what a script asks for

    def epochs(self, num_epochs: int) -> Iterator[int]:
        """Restore the run, then give the epochs that are left, of those from 0 to ``num_epochs`` - 1.

        A run that was finished gives none, and has the state that it ended with.

        Raises:
            ResumeError: the plugin is not attached, or the run was started before.
            ConfigChangedError: the run differs from the one that saved; nothing was loaded.
            CheckpointNotFoundError: one was required or named and is not there.
            CorruptCheckpointError: checkpoints exist and none of them can be used.
            SaveFailedError: while it is gone over: the first save of a new run failed, three saves in a row, or the
                last one.
        """
        if self._is_off:
            return iter(range(num_epochs))
        framework, session = self._start({"max_epochs": num_epochs})
        return self._epochs(framework, session, num_epochs)

    def _epochs(
        self, framework: AcceleratorFramework, session: Session | FolderSession, num_epochs: int
    ) -> Iterator[int]:
        tracker = framework.tracker
        try:
            for epoch in range(tracker.next_epoch, num_epochs if tracker.is_running else 0):
                tracker.enter_epoch(epoch)
                yield epoch
                self._refuse_left()
                self._warn(framework.notes())
                tracker.end_epoch(is_last=epoch + 1 == num_epochs)
            if tracker.is_running:
                tracker.is_running = False
                session.finish(framework.progress, Ending("max_epochs", {"max_epochs": num_epochs}))
        except BaseException as error:
            tracker.is_running = False
            session.end(error)
            raise
        session.end()

    def restore(self) -> int:
        """Restore the run, for a script with a range of its own.

        ``for epoch in range(resume.restore(), num_epochs)`` goes on in the epoch that was cut. An epoch is then a pass
        over the loader that the run begins to train on. Such a script has no end that could be seen: started again
        after it, it goes on from its last save, and ends in the same state.

        Returns:
            The epoch to go on in, 0 for a new run.

        Raises:
            ResumeError: the plugin is not attached, or the run was started before.
            ConfigChangedError: the run differs from the one that saved; nothing was loaded.
            CheckpointNotFoundError: one was required or named and is not there.
            CorruptCheckpointError: checkpoints exist and none of them can be used.
        """
        if self._is_off:
            return 0
        framework, _ = self._start({})
        framework.tracker.enter_epoch(framework.tracker.next_epoch)
        return framework.tracker.counts.epoch

    def counters(self, **initial: Any) -> Counters:
        """Values that the script counts, for example ``counters(step=0, best=float("inf"))``.

        Returns:
            They are read and written as its attributes, saved, and restored when `epochs` or `restore` is called.

        Raises:
            ResumeError: the run was started before, or there are counters already.
        """
        if self._counters is not None or self._has_begun:
            raise ResumeError(f"call counters() once, before {self._beginning}, with all names")
        self._counters = Counters(initial)
        if self._framework is not None:
            self._framework.counters = self._counters
        return self._counters

    def track(self, **objects: Any) -> None:
        """Save and restore objects of the script's own, such as an average of the weights.

        Args:
            objects: by name, each with ``state_dict`` and ``load_state_dict``, or a random generator of torch, NumPy
                or python's `random`.

        Raises:
            ResumeError: the plugin is not attached, the run was started before, or a name is taken.
            TypeError: an object lacks one of the methods.
        """
        for name, value in objects.items():
            if isinstance(value, GENERATORS):
                continue
            if not (callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))):
                raise TypeError(f"{name} ({type(value).__name__}) must have state_dict() and load_state_dict()")
        if self._is_off:
            return
        framework = self._attached()
        taken = framework.tracked.keys() & objects.keys()
        if self._has_begun or taken:
            raise ResumeError(
                f"{min(taken)!r} is tracked already" if taken else f"call track() before {self._beginning}"
            )
        framework.tracked.update(objects)

    def save(self) -> None:
        """Save at the next boundary, whatever `SaveEvery` says; with several ranks, call it on each of them alike.

        Raises:
            ResumeError: the run was not started, or has no directory.
        """
        if self._is_off:
            return
        if isinstance(self._session, FolderSession):
            raise ResumeError(
                "without a directory ResumePlugin saves nothing by itself: call accelerator.save_state(folder)"
            )
        if self._session is None:
            raise ResumeError("call save() after epochs() or restore()")
        self._session.request()

    # ---- a run

    @property
    def _has_begun(self) -> bool:
        return self._has_started or self._is_open

    @property
    def _beginning(self) -> str:
        first = "load_state(), save_state(), the first batch, " if self._directory is None else ""
        return f"{first}epochs() or restore()"

    def _attached(self) -> AcceleratorFramework:
        if self._framework is None:
            raise ResumeError("the ResumePlugin is not attached: call attach(accelerator) before accelerator.prepare()")
        return self._framework

    def _start(self, limits: Mapping[str, float]) -> tuple[AcceleratorFramework, Session | FolderSession]:
        framework = self._attached()
        if self._has_started:
            raise ResumeError(
                "one run has one call of epochs() or restore(): for another one call accelerator.free_memory(), attach "
                "a new ResumePlugin with a directory of its own, and prepare again"
            )
        if self._directory is None and framework.script.has_trained:
            raise ResumeError("call epochs() or restore() before the first batch")
        self._has_started = True
        framework.limits, framework.tracker.finds_epochs = limits, not limits
        if self._directory is None:
            return framework, self._ask(framework)
        session = self._session = Session(framework, self._directory, log=self._log, **self._options)
        framework.stranded, framework.pauses.pause = session.stranded, session.pause
        framework.observer = session.observer
        self._run(framework, session)
        return framework, session

    def _run(self, framework: AcceleratorFramework, session: Session | FolderSession) -> None:
        seed = seed_fact(None, torch.initial_seed())
        value, severity = framework.ranks.share("the seed", [seed.value, seed.severity])
        framework.seed = Fact(value, severity)
        try:
            session.start(value)
            self._begin(framework, session)
        except BaseException as error:
            session.end(error)
            raise

    def _open(self) -> None:
        """Without a directory: begin the run, if it has not begun."""
        assert self._framework is not None
        assert isinstance(self._session, FolderSession)
        if not self._is_open:
            self._go_on()
        elif self._framework.has_grown:  # what was prepared behind a batch that the script only looked at
            self._session.reconfigured()
            self._framework.watch_buckets()

    def _go_on(self) -> None:
        """Without a directory: begin the run, or begin it anew from what was loaded."""
        assert self._framework is not None
        assert isinstance(self._session, FolderSession)
        if self._is_open and self._framework.has_grown:
            self._session.reconfigured()
        self._run(self._framework, self._session)
        self._is_open = True
        self._framework.ranks.settle()

    def _ask(self, framework: AcceleratorFramework) -> FolderSession:
        """Without a directory: the script takes its epochs from the run."""
        tracker = framework.script
        self._open()
        tracker.is_asked = True
        if tracker.is_between:
            tracker.arrive_now()
        assert isinstance(self._session, FolderSession)
        return self._session

    def _begin(self, framework: AcceleratorFramework, session: Session | FolderSession) -> None:
        tracker = framework.tracker
        if session.is_over:
            tracker.arrive_now()
            return
        tracker.start()
        if tracker.is_between and tracker.is_asked:
            tracker.arrive_now()
        self._warn(framework.begin())
        session.begin(framework.progress)

    def _leave(self) -> None:
        """Another plugin takes over the Accelerator."""
        if self._directory is None:
            raise ResumeError("this Accelerator has a ResumePlugin without a directory: make another Accelerator")
        if self._framework is None or self._session is None:
            raise ResumeError(
                "this Accelerator has a ResumePlugin already, whose run did not begin: one run has one directory, so "
                "keep one of them"
            )
        framework, self._is_left = self._framework, True
        if framework.tracker.is_running:
            framework.tracker.is_running = False
            self._session.end()
        framework.release()

    def _refuse_left(self) -> None:
        if self._is_left:
            raise ResumeError("another ResumePlugin was attached to the Accelerator, which ended this run")

    def _warn(self, notes: list[str]) -> None:
        for note in notes:
            self._log.warning("%s", note)

    def _at_boundary(self, progress: Progress, ahead: Ahead) -> None:
        assert self._session is not None
        self._session.boundary(progress, ahead)
