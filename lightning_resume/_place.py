"""Where in Lightning's sequence of hooks a checkpoint is being taken.

Lightning saves inside hooks: `ModelCheckpoint` in three of them, users in any. What the uninterrupted run still does
after that moment must be done by the resumed one, once; so a save has to know whose turn it was. Nothing of the Trainer
says so, and shadowing every hook of every callback would cost time in each batch. The call stack says it, and is looked
at only while a checkpoint is written.

Internals used (Lightning 2.6, trainer/call.py): the functions that call hooks, with their locals ``hook_name``,
``callback``, ``monitoring_callbacks`` and ``args``; ``ModelCheckpoint._save_topk_checkpoint``.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any

from lightning_resume._package import Package, is_a, package_of

__all__ = [
    "EXACT_HOOKS",
    "MODULE",
    "Place",
    "call_turn",
    "find_place",
    "is_at_boundary",
    "missing_locals",
    "names_a_file",
    "turns",
]

EXACT_HOOKS = ("on_train_batch_end", "on_validation_epoch_end", "on_validation_end", "on_train_epoch_end")
"""Hooks of modules and callbacks inside which a checkpoint is exact."""

MODULE = "module"
"""The module's own turn among those of the callbacks."""


@dataclass(frozen=True)
class Place:
    """Whose turn it is.

    Attributes:
        hook: the hook that is running.
        over: those that have had their turn in it, the one that saves included.
        arguments: of the hook, without trainer and module.
        saver: the `ModelCheckpoint` that saves, None when somebody else does.
        path: the file that it saves.
        saves_last: whether it has yet to write its ``last.ckpt``.
    """

    hook: str
    over: tuple[str, ...]
    arguments: tuple[Any, ...]
    saver: Any = None
    path: str = ""
    saves_last: bool = False


def call_turn(
    trainer: Any, hook_name: str, callback: Any, args: tuple[Any, ...], function: Callable[[], Any] | None = None
) -> None:
    """Call one hook as Lightning does; a save inside it finds its place like one inside Lightning's own call.

    Args:
        trainer: the Trainer.
        hook_name: the hook.
        callback: whose turn it is, None for the module.
        args: of the hook, without trainer and module.
        function: called instead of the whole hook.
    """
    module = trainer.lightning_module
    before, module._current_fx_name = module._current_fx_name, hook_name
    if function is not None:
        function()
    elif callback is None:
        getattr(module, hook_name)(*args)
    else:
        getattr(callback, hook_name)(trainer, module, *args)
    module._current_fx_name = before


_LOCALS = {
    ("_call_callback_hooks", ""): ("hook_name", "callback", "args"),
    ("_call_lightning_module_hook", ""): ("hook_name", "args"),
    ("ModelCheckpoint", "_save_checkpoint"): ("filepath",),
    ("ModelCheckpoint", "_save_topk_checkpoint"): (),
    ("ModelCheckpoint", "_save_last_checkpoint"): (),
    ("Trainer", "fit"): ("ckpt_path",),
}


def missing_locals(package: Package) -> list[str]:
    """What is looked for on the call stack and is not in this version of the package."""
    return [
        f"{name} in {'.'.join(filter(None, where))}()"
        for where, names in _LOCALS.items()
        for name in names
        if name not in _code(package, *where).co_varnames
    ]


def _code(package: Package, name: str, method: str = "") -> CodeType:
    found = getattr(package, name)
    code: CodeType = (getattr(found, method) if method else found).__code__
    return code


@functools.cache
def _hook_calls(package: Package) -> tuple[frozenset[CodeType], frozenset[CodeType]]:
    """The functions that call hooks: of callbacks and of the module, and all others."""
    known = {_code(package, "_call_callback_hooks"), _code(package, "_call_lightning_module_hook"), call_turn.__code__}
    others = {_code(package, "_call_strategy_hook"), _code(package, "_call_lightning_datamodule_hook")}
    return frozenset(known), frozenset(others)


def turns(trainer: Any, hook: str) -> list[tuple[str, Any]]:
    """Everyone who has a turn in a hook, by name, in Lightning's order; None is the module."""
    callbacks = _named(trainer.callbacks)
    if hook != "on_train_epoch_end":
        return [*callbacks, (MODULE, None)]
    # those that watch a metric come last, so that they see what the module logs at the epoch's end
    last = [named for named in callbacks if is_a(named[1], "EarlyStopping", "Checkpoint")]
    return [*(named for named in callbacks if named not in last), (MODULE, None), *last]


def _named(callbacks: Iterable[Any]) -> list[tuple[str, Any]]:
    seen: dict[str, int] = {}
    named = []
    for callback in callbacks:
        kind = f"{type(callback).__module__}.{type(callback).__qualname__}"
        seen[kind] = seen.get(kind, 0) + 1
        named.append((f"{kind}#{seen[kind]}", callback))
    return named


def find_place(trainer: Any) -> Place | str:
    """Where the save that is on the call stack takes place; a text says where else than in one of `EXACT_HOOKS`."""
    frames: dict[CodeType, FrameType] = {}
    frame: FrameType | None = sys._getframe(1)
    known, others = _hook_calls(package_of(trainer))
    while frame is not None and frame.f_code not in known | others:
        frames[frame.f_code] = frame
        if frame.f_globals.get("__name__", "").endswith(".signal_connector"):
            return "in a signal handler"
        frame = frame.f_back
    if trainer.state.fn != "fit":
        return "outside of fit"
    if frame is None:
        return "outside of any hook"
    hook = frame.f_locals["hook_name"]
    if trainer.sanity_checking:
        return f"in {hook} of the sanity check"
    if hook not in EXACT_HOOKS or frame.f_code in others:
        return f"in {hook}"
    return _place(trainer, frame, hook, frames)


def _place(trainer: Any, frame: FrameType, hook: str, frames: dict[CodeType, FrameType]) -> Place | str:
    saver = frame.f_locals.get("callback")
    order = turns(trainer, hook)
    mine = next((at for at, (_, callback) in enumerate(order) if callback is saver), None)
    if mine is None:
        return f"in {hook} of a callback that the Trainer does not have"
    over, arguments = tuple(name for name, _ in order[: mine + 1]), tuple(frame.f_locals["args"])
    package = package_of(trainer)
    saving = frames.get(_code(package, "ModelCheckpoint", "_save_checkpoint"))
    if not is_a(saver, "ModelCheckpoint") or saving is None:
        return Place(hook, over, arguments)
    saves_last = _code(package, "ModelCheckpoint", "_save_topk_checkpoint") in frames
    return Place(hook, over, arguments, saver, str(saving.f_locals["filepath"]), saves_last)


def is_at_boundary(error: BaseException, function: Callable[..., Any]) -> bool:
    """Whether Lightning itself raised ``error`` in ``function``, where it ends training after a SIGTERM."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return is_a(error, "SIGTERMException") and trace is not None and trace.tb_frame.f_code is function.__code__


def names_a_file(trainer: Any) -> bool:
    """Whether the user named the checkpoint to start from, rather than let Lightning look for the last or the best."""
    if trainer._checkpoint_connector._user_managed:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _code(package_of(trainer), "Trainer", "fit"):
        frame = frame.f_back
    return frame is None or frame.f_locals["ckpt_path"] not in (None, "last", "best", "hpc")
