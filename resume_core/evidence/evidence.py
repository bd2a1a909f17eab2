"""Evidence that a resume is one: recorded behind each save, compared after a resume; and what is watched all along.

Each rank records and compares by itself, and nothing of it is sent while training goes on. The ranks meet once, behind
the last batch that is compared, which all of them reach alike; what they find together is written by rank 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from resume_core.errors import DivergedError, ResumeError
from resume_core.evidence.checker import Checker, merge_results
from resume_core.evidence.compare import ADVICE, Row, table
from resume_core.evidence.observer import Observer
from resume_core.evidence.parts import differing, print_parts
from resume_core.evidence.prints import WeightSample, print_rng
from resume_core.evidence.record import Record
from resume_core.evidence.recorder import Recorder, records_of
from resume_core.evidence.watch import Series
from resume_core.policy import Check, Watch
from resume_core.ranks import Ranks
from resume_core.state import Progress, Vitals
from resume_core.storage import Attempt, CheckpointRef, Store, put_check, put_evidence, read_evidence

__all__ = ["Evidence"]

_HALF_RTOL, _RTOL = 2e-2, 1e-3
_NORMS_EVERY = 100  # steps, where nothing is recorded
_READ_EVERY = 32  # losses: reading one that lies on a GPU waits for all that was asked of it before
_MAX_OF_STEP = 1024  # losses, where no step that is counted follows them
_SIZES_BYTES = 1 << 20  # parameters up to this size are measured behind each recorded step


class Evidence:
    """That of one attempt, on one rank.

    Args:
        check: the user's policy.
        watch: likewise.
        ranks: those that train together.
        log: where messages go.
        vitals: shows the run at a boundary.
        tell: told the loss of each step.
        advice: what to do about what is watched, said behind the first of it.
        is_told_elsewhere: whether something else than the log says how the check has ended: the command that rehearses.
    """

    def __init__(
        self,
        check: Check,
        watch: Watch,
        ranks: Ranks,
        log: logging.Logger,
        vitals: Callable[[], Vitals],
        tell: Callable[[int, float], None] = lambda step, loss: None,
        *,
        advice: str = "",
        is_told_elsewhere: bool = False,
    ) -> None:
        self._check, self._watch, self._ranks = check, watch, ranks
        self._log, self._vitals, self._tell = log, vitals, tell
        self.observer = Observer(log)
        self._recorder = Recorder(int(check.steps), log)
        self._checker: Checker | None = None
        self._from = self._digest = ""
        self._losses, self._norms = Series("the loss"), Series("the norm of the gradients")
        self._watches = watch.on != "off"
        self._unread: list[tuple[int, list[Any]]] = []  # losses, by step
        self._of_step: list[Any] = []  # losses since the last step
        self._step = self._batch = 0
        self._strict_until = -1
        self._is_between = False  # whether something else comes before the first batch
        self._is_same_machine = True
        self._weights: WeightSample | None = None
        self._report: Callable[[Mapping[str, Any]], None] = lambda result: None
        self.result: Mapping[str, Any] = {}
        """What the check has found, once it is over; see `merge_results`."""
        self._advice, self._is_told_elsewhere = advice, is_told_elsewhere
        self.alarm: str | None = None
        """Why training should stop at the next boundary, as ``Watch(on="stop")`` has it; None to train on."""

    # ---- beginning

    def open(self, store: Store, attempt: Attempt) -> None:
        """Write beside what ``attempt`` saves."""
        self._recorder.open(partial(put_evidence, store, attempt.name, self._ranks.rank))
        if self._ranks.is_first:
            self._report = partial(put_check, store, attempt.name)

    def begin(self, progress: Progress) -> None:
        """Training begins, or goes on, at ``progress``."""
        self._step, self._batch = progress.step, progress.batch
        if self._is_between:
            self.observer.before_first()
        self._listen()

    def resume(
        self,
        store: Store,
        ref: CheckpointRef,
        progress: Progress,
        predicted: Mapping[str, Any],
        *,
        digest: str,
        is_same_machine: bool,
        reason: str,
    ) -> None:
        """The run goes on from a checkpoint: compare what follows with what was recorded behind it.

        Args:
            store: the run's directory.
            ref: the checkpoint.
            progress: where it was taken.
            predicted: what `header` gave when it was.
            digest: of its manifest.
            is_same_machine: hardware, versions and threads are those that it was taken with.
            reason: why what is computed may be other than it was, empty when it should not be.
        """
        watched, self._is_between = predicted.get("watch"), bool(predicted.get("is_between"))
        if isinstance(watched, Mapping):
            self._losses.restore(watched.get("losses"))
            self._norms.restore(watched.get("grad_norms"))
        if not self._check.steps:
            self._log.info("the steps that follow are not checked: Check(steps=0)")
            return
        self._is_same_machine = is_same_machine
        self._from, self._digest, self._strict_until = ref.path, digest, progress.step + int(self._check.steps)
        recorded = self._recorded_behind(store, ref)
        # the ranks meet behind the last of them, so there must be as many on each
        recorded = recorded[: self._ranks.agree("what was recorded", len(recorded), min)]
        rtol: list[float | None] = [_HALF_RTOL]
        self.observer.guarded(lambda: rtol.append(None if is_same_machine and self._is_exact() else self._tolerance()))
        self._checker = Checker(progress, recorded, predicted, rtol=rtol[-1], reason=reason)

    def _recorded_behind(self, store: Store, ref: CheckpointRef) -> list[Record]:
        """As far as it is compared: fewer steps than were recorded where a user asks for fewer."""
        try:
            recorded = records_of(read_evidence(store, ref.attempt, self._ranks.rank), ref.name)
        except (OSError, ResumeError, TypeError, ValueError, KeyError) as error:
            self._log.warning("what was recorded behind %s cannot be read: %s", ref.path, error)
            return []
        step = self._strict_until
        return [record for place, record in enumerate(recorded) if place == 0 or recorded[place - 1].step < step]

    def compare_with(self, saved: Callable[[], Mapping[str, Any]], live: Callable[[], Mapping[str, Any]]) -> None:
        """Compare the state that was read, and is about to be applied, with the live objects.

        That is done right before the first batch; where something else comes before that, when training goes on.

        Args:
            saved: gives its parts, see `resume_core.framework.Framework.parts`.
            live: gives the same parts of the live objects.
        """
        if self._checker is None:
            return
        prints: dict[str, str] = {}
        self.observer.guarded(lambda: prints.update(print_parts(saved())))

        def compare() -> None:
            if self._checker is not None:
                found = differing(prints, print_parts(live()), is_same_machine=self._is_same_machine)
                self._checker.live(len(prints), found)

        if prints:
            self.observer.first = compare

    def _is_exact(self) -> bool:
        """Whether computing the same again gives the same bits."""
        on_cpu = all(tensor.device.type == "cpu" for tensor in self._vitals().parameters.values())
        if self._check.rtol is not None or on_cpu:
            return self._check.rtol is None
        warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.are_deterministic_algorithms_enabled() and not warns_only

    def _tolerance(self) -> float:
        if self._check.rtol is not None:
            return float(self._check.rtol)
        return _HALF_RTOL if self._sample(self._vitals()).is_half else _RTOL

    # ---- saves

    @property
    def header(self) -> dict[str, Any]:
        """What a save knows of the batch that follows it, and the ranges of what is watched; strict JSON."""
        found: dict[str, Any] = {}
        self.observer.guarded(lambda: found.update(self._header()))
        return found

    def _header(self) -> dict[str, Any]:
        self._read()
        vitals = self._vitals()
        samples = [{k: v for k, v in sample.items() if k != "ids"} for sample in vitals.samples]
        watched = {"losses": self._losses.state(), "grad_norms": self._norms.state()}
        return {"samples": samples, "watch": watched, "is_between": vitals.is_between}

    def saved(self, name: str, progress: Progress) -> None:
        """A save was taken, in the folder of that name: record what follows."""
        if not self.observer.is_broken:
            self._recorder.saved(name, progress)
            self._listen()

    # ---- boundaries

    @property
    def is_checking(self) -> bool:
        """Whether the check of a resume is under way; alike on all ranks."""
        return self._checker is not None

    @property
    def holds_saves(self) -> bool:
        """Whether saves wait for the end of the check."""
        return self._checker is not None and self._check.on_mismatch == "stop"

    def boundary(self, progress: Progress) -> None:
        """A batch was trained on.

        Raises:
            DivergedError: the check is over, something differs, and ``Check(on_mismatch="stop")``.
        """
        if not self.observer.is_broken:
            try:
                self._look(progress)
            except Exception as error:  # of whatever kind: training goes on without evidence
                self.observer.give_up(error)
        if self._checker is not None and self._checker.is_over(progress):
            self.conclude()
            self._listen()

    def _look(self, progress: Progress) -> None:
        observer = self.observer
        if progress.batch == self._batch:  # the end of an epoch is a boundary too
            left_out, *_ = observer.take()
            if self._checker is not None:
                self._checker.left_out(len(left_out))
            return
        norms: Sequence[float] = ()
        self._batch = progress.batch
        if observer.wants_gradients:
            inputs, losses, lrs, norms = observer.take()
            if observer.records:
                self._note(self._record(progress, losses, inputs=inputs, lrs=lrs, grad_norms=norms))
        else:  # as nearly all steps are
            losses = observer.take_losses()
        self._of_step = [*self._of_step, *losses][-_MAX_OF_STEP:] if self._of_step else losses
        if progress.step > self._step:
            self._watch_step(progress.step, norms)

    def _note(self, record: Record) -> None:
        self._recorder.add(record)
        if self._checker is not None:
            self._checker.add(record, self._weights.names if self._weights is not None else ())
        self._listen()

    def _record(self, progress: Progress, losses: list[Any], **observed: Any) -> Record:
        vitals = self._vitals()
        where = progress.step, progress.batch, progress.epoch
        record = Record(*where, list(vitals.samples), scale=vitals.scale, **observed)
        record.losses, record.rng = [float(loss) for loss in losses], print_rng()
        if progress.step > self._step:
            weights = self._sample(vitals)
            record.weights = weights.digest()
            ends = self._recorder.ends_with(progress.step) or weights.size_bytes <= _SIZES_BYTES
            if ends or (self._checker is not None and self._checker.wants_sizes(progress.batch)):
                record.sizes = weights.sizes()
        return record

    def _sample(self, vitals: Vitals) -> WeightSample:
        if self._weights is None or not self._weights.is_of(vitals.parameters):
            self._weights = WeightSample(vitals.parameters)
        return self._weights

    def _listen(self) -> None:
        """What is wanted of the batches that follow."""
        if not self.observer.is_broken:
            self.observer.records = self._recorder.is_open or self._checker is not None
            self.observer.listens = self._watches or self.observer.records

    # ---- what is watched

    def look_now(self) -> None:
        """Read what waits: a save may follow, which must not hold what should stop the run."""
        if self._watch.on == "stop":
            self.observer.guarded(self._read)

    def _watch_step(self, step: int, norms: Sequence[float]) -> None:
        observer, self._step, losses, self._of_step = self.observer, step, self._of_step, []
        observer.wants_norms = self._watches and step % _NORMS_EVERY == 0
        if losses:
            self._unread.append((step, losses))
        is_strict = self._is_strict(step)
        if step <= self._strict_until or observer.is_urgent or len(self._unread) >= _READ_EVERY:
            self._read()
        for norm in norms if self._watches else ():
            self._say(self._norms.add(norm, step, is_strict=is_strict))

    def _read(self) -> None:
        """Many at a time, which takes a fraction of what one by one between the kernels of training does."""
        unread, self._unread, self.observer.is_urgent = self._unread, [], False
        for step, losses in unread:
            loss = float(losses[0]) if len(losses) == 1 else sum(map(float, losses)) / len(losses)
            self._tell(step, loss)
            if self._watches:
                self._say(self._losses.add(loss, step, is_strict=self._is_strict(step)))

    def _is_strict(self, step: int) -> bool:
        """Whether one value out of range is enough for a warning: behind a resume that may have gone wrong.

        A run is stopped by nothing that would not have stopped it uninterrupted: the next start would end there, too.
        """
        return step <= self._strict_until and self._watch.on != "stop"

    def _say(self, problem: str | None) -> None:
        if problem is None:
            return
        if self._watch.on == "stop":
            self.alarm = self.alarm or problem
            return
        advice, self._advice = self._advice, ""
        self._log.warning("%s", f"{problem}. {advice}" if advice else problem)

    # ---- the end of a check

    def conclude(self) -> None:
        """The check is over, as far as it has come; on all ranks alike.

        Raises:
            DivergedError: something differs, and ``Check(on_mismatch="stop")``.
        """
        checker, self._checker = self._checker, None
        if checker is None:
            return
        self.observer.first = None
        merged = self._ranks.agree("the check of the first steps", checker.result(), merge_results)
        result = self.result = {"checkpoint": self._from, "manifest": self._digest, **merged}
        try:
            self._report(result)
        except Exception as error:  # of whatever kind: it is a report
            self._log.debug("the result of the check was not written: %s", error)
        if self._is_told_elsewhere:
            return
        if result["verdict"] != "differs":
            self._log.info("%s", _sentence(result))
            return
        text = f"{_sentence(result)}\n{self._details(result)}"
        if self._check.on_mismatch == "stop":
            raise DivergedError(f"{text}\n{ADVICE} {_REPEATED}", path=self._from)
        self._log.warning("%s\n%s %s", text, ADVICE, _REPEATED)

    def _details(self, result: Mapping[str, Any]) -> str:
        parts = []
        live = result["live"]
        if live["num_differ"]:
            more = live["num_differ"] - len(live["differs"])
            places = "\n".join([*(f"  {place}" for place in live["differs"]), *([f"  and {more} more"] * (more > 0))])
            parts.append(f"in the live objects these are not as the checkpoint has them:\n{places}")
        if result["rows"]:
            parts.append(table([Row(**row) for row in result["rows"]], several=self._ranks.size > 1))
        return "\n".join(parts)

    def close(self) -> None:
        """The run is over."""
        self._checker = None
        self.observer.guarded(self._read)
        self.observer.close()
        self._recorder.close()


_REPEATED = "`exact-resume drill` repeats this check without training on."


def _sentence(result: Mapping[str, Any]) -> str:
    """How the check ended, in one sentence."""
    path, steps, rtol = result["checkpoint"], result["steps"], result["rtol"]
    how = "bit by bit" if rtol is None else f"within {rtol:g}"
    what = f"the first {steps} steps after {path}" if steps > 1 else f"what follows {path}"
    verb = "are" if steps > 1 else "is"
    if result["verdict"] == "differs":
        return f"the run does not go on as it did: {what} {verb} not what was recorded (compared {how})"
    if result["verdict"] == "same":
        return f"checked: {what} {verb} what the interrupted run recorded (computed values {how})"
    if result["verdict"] == "changed":
        return f"{what} {verb} not what was recorded, as it may be with {result['reason']}"
    if result["is_recorded"]:
        return f"not checked: no step was trained behind {path}"
    return (
        f"not checked: the run ended within the first steps after {path}, before it had recorded them to be compared "
        "with; positions and learning rate are as they were when it was saved"
    )
