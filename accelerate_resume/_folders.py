"""Every touch of what ``save_state`` and ``load_state`` do inside; other internals of Accelerate are in `_accelerator`.

Internals used (Accelerate 1.15):

- ``Accelerator.save_state`` calls what ``register_save_state_pre_hook`` was given on each rank, with the folder, which
  is there, before it writes. With ``automatic_checkpoint_naming`` it first deletes what ``total_limit`` does not keep
  from ``project_dir/checkpoints``, then writes to ``checkpoint_<iteration>`` there, and refuses one that exists;
  ``iteration`` begins with 0 in each process. All ranks meet in that case, and in no other.
- Names of files: the main process writes ``model``, ``pytorch_model``, ``optimizer``, ``scheduler``, ``sampler`` and
  ``custom_checkpoint`` (with ``save_on_each_node`` that of each node), each rank its ``random_states_<rank>.pkl``, and
  all write over one another's ``scaler.pt`` and ``dl_state_dict``.
- ``Accelerator.load_state`` without a folder takes the one with the highest number, and passes over a random state that
  cannot be read. Optimizers are loaded with torch's ``load_state_dict``, whose hooks see what was saved.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import accelerate
from accelerate.utils import constants

from accelerate_resume._accelerator import Accelerated
from resume_core.capture.optimizer import place_optimizer_state
from resume_core.errors import ResumeError

__all__ = ["StateFolders", "apply_left_out", "capture_left_out"]

_NEEDED = ("save_state", "load_state", "register_save_state_pre_hook", "project_configuration", "project_dir",
           "is_main_process", "is_local_main_process", "process_index")  # fmt: skip
_NAMES = ("MODEL_NAME", "SAFE_MODEL_NAME", "OPTIMIZER_NAME", "SCHEDULER_NAME", "SAMPLER_NAME", "SCALER_NAME",
          "RNG_STATE_NAME")  # fmt: skip
_NUMBER = re.compile(r"[\/]?([0-9]+)(?=[^\/]*$)")  # as Accelerate finds it in the name of a folder


class StateFolders:
    """The folders that an Accelerator saves its states to.

    Args:
        accelerator: the Accelerator.

    Raises:
        ResumeError: this version of Accelerate lacks what is relied on here; the message names it.
    """

    def __init__(self, accelerator: Any) -> None:
        missing = [f"Accelerator().{name}" for name in _NEEDED if not hasattr(accelerator, name)]
        missing += [f"utils.constants.{name}" for name in _NAMES if not hasattr(constants, name)]
        if missing:
            raise ResumeError(
                f"Accelerate {accelerate.__version__} lacks what save_state needs to be made complete: "
                f"{', '.join(missing)}. Install a version of it that exact-resume supports, or a newer exact-resume."
            )
        self._accelerator = accelerator

    @property
    def _config(self) -> Any:
        return self._accelerator.project_configuration

    @property
    def are_numbered(self) -> bool:
        """Whether Accelerate names them itself; all ranks meet in each save then."""
        return bool(self._config.automatic_checkpoint_naming)

    def before_writing(self, hook: Callable[[str], None]) -> None:
        """Call ``hook`` with each folder that is about to be written."""
        self._accelerator.register_save_state_pre_hook(lambda models, weights, folder: hook(os.fspath(folder)))

    def _numbered(self) -> list[str]:
        """Those that Accelerate has named, oldest first."""
        if not self.are_numbered:
            return []
        root = os.path.join(self._accelerator.project_dir, "checkpoints")
        with contextlib.suppress(FileNotFoundError):
            found = [os.path.join(root, name) for name in os.listdir(root)]
            return sorted((path for path in found if _NUMBER.search(path)), key=_number)
        return []

    def candidates(self, folder: str | os.PathLike[str] | None) -> list[str]:
        """Folders to load from, the best first; none where Accelerate is to say what is wrong."""
        if folder is None:
            return [path for path in reversed(self._numbered()) if os.listdir(path)]
        path = os.path.expanduser(os.fspath(folder))
        return [path] if os.path.isdir(path) else []

    def go_on_numbering(self) -> None:
        """The next folder gets the number behind the highest that is there."""
        numbers = [_number(path) for path in self._numbered()]
        self._config.iteration = max([self._config.iteration, *(number + 1 for number in numbers)])

    # ---- saving

    @contextlib.contextmanager
    def keeping_all(self) -> Iterator[None]:
        """A block in which Accelerate deletes nothing: what is there counts until the next one is complete."""
        limit, self._config.total_limit = self._config.total_limit, None
        try:
            yield
        finally:
            self._config.total_limit = limit

    def prune(self, newest: str) -> None:
        """Delete what ``total_limit`` does not keep; ``newest`` stays."""
        limit, others = self._config.total_limit, [path for path in self._numbered() if path != newest]
        if limit is not None and self._accelerator.is_main_process:
            for path in others[: max(0, len(others) + 1 - limit)]:
                shutil.rmtree(path)

    def written(self, folder: str) -> list[str]:
        """Names of the files in ``folder`` that this process alone has written."""
        accelerator = self._accelerator
        writes = accelerator.is_main_process
        if self._config.save_on_each_node:
            writes = accelerator.is_local_main_process
        kinds = [constants.MODEL_NAME, constants.SAFE_MODEL_NAME, constants.OPTIMIZER_NAME, constants.SCHEDULER_NAME]
        kinds += [constants.SAMPLER_NAME, "custom_checkpoint"]
        mine = [rf"{constants.RNG_STATE_NAME}_{accelerator.process_index}\.pkl"]
        mine += [rf"({'|'.join(kinds)})(_\d+)?\.(safetensors|bin|pkl)"] if writes else []
        if accelerator.num_processes == 1:
            mine += [re.escape(constants.SCALER_NAME), r"dl_state_dict(_\d+)?\.bin"]
        return [name for name in os.listdir(folder) if any(re.fullmatch(known, name) for known in mine)]

    # ---- loading

    @contextlib.contextmanager
    def uncast(self, optimizers: Sequence[Any]) -> Iterator[None]:
        """A block in which what ``optimizers`` load keeps its type: fp32 moments of bf16 parameters, for example."""
        given: dict[int, Any] = {}

        def note(optimizer: Any, state: Any) -> None:
            given[id(optimizer)] = state

        def place(optimizer: Any) -> None:
            place_optimizer_state(optimizer, given.pop(id(optimizer)))

        hooks = [optimizer.register_load_state_dict_pre_hook(note) for optimizer in optimizers]
        hooks += [optimizer.register_load_state_dict_post_hook(place) for optimizer in optimizers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def capture_left_out(accelerated: Accelerated, *, is_first: bool) -> dict[str, Any]:
    """What ``save_state`` leaves out of what it saves: live references.

    Args:
        accelerated: the Accelerator and what it has prepared.
        is_first: whether this rank's buffers and registered objects are those that ``save_state`` saves.
    """
    overflows = [bool(optimizer._is_overflow) for optimizer in accelerated.accelerator._optimizers]
    found: dict[str, Any] = {"overflows": overflows, "step": int(accelerated.accelerator.step)}
    if not is_first:
        found["buffers"] = _buffers(accelerated)
        found["registered"] = [registered.state_dict() for registered in accelerated.registered]
    return found


def _buffers(accelerated: Accelerated) -> dict[str, Any]:
    return {
        prefix + name: buffer
        for prefix, module in accelerated.models.items()
        for name, buffer in module.named_buffers(remove_duplicate=False)
    }


def apply_left_out(accelerated: Accelerated, saved: Mapping[str, Any]) -> None:
    """Put back what `capture_left_out` saw, after ``load_state``."""
    accelerator = accelerated.accelerator
    accelerator.step = saved["step"]
    for optimizer, overflow in zip(accelerator._optimizers, saved["overflows"], strict=True):
        optimizer._is_overflow = overflow
    own = saved.get("buffers", {})
    for name, buffer in _buffers(accelerated).items():
        if name in own and own[name].shape == buffer.shape:
            buffer.copy_(own[name])
    for registered, state in zip(accelerated.registered, saved.get("registered", ()), strict=False):
        registered.load_state_dict(state)


def _number(path: str) -> int:
    return int(_NUMBER.findall(path)[0])
