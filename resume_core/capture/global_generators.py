"""Random generators that code draws from and no object holds which a run captures: found, so that they can be named.

Looked at is code, which is never run: a function's names, what they mean where it was defined, and the functions and
classes of the user's own among those. What is installed has generators for ends of its own, such as names of files.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from resume_core.capture.generators import GENERATORS, find_generators, shared_generators, walk
from resume_core.capture.installed import is_installed
from resume_core.capture.kinds import is_a

__all__ = [
    "find_global_generators",
    "find_training_generators",
    "generator_note",
    "generators_of_loader",
    "running_code",
]

_MAX_FUNCTIONS = 10_000
_MAX_ITEMS = 256
_MAX_NAMES = 10  # told in one sentence
_OURS = frozenset({"resume_core", "lightning_resume", "accelerate_resume"})
_FRAMEWORKS = frozenset({"torch", "torchmetrics", "lightning", "pytorch_lightning", "transformers", "accelerate"})
# run again from the same state by each attempt, before it trains
_BEFORE_TRAINING = ("__init__", "__post_init__", "setup", "prepare_data", "reset_parameters", "init", "_init")
_BEFORE_TRAINING_PARTS = ("configure_", "dataloader", "create_optimizer", "create_scheduler")

Names = Iterable[tuple[str, Any]]


def find_global_generators(root: Any) -> tuple[str, ...]:
    """Names of module-level generators that the code of ``root`` uses, or the functions of the user's that it calls.

    They may be shared with the training loop, so reseeding them would move its draws; they are reported instead.

    Returns:
        Names like ``"my_module.rng"``, sorted.
    """
    search = _Search(known=find_generators(root), packages=frozenset())
    for value in walk(root):
        search.waiting += _functions(value)
    return search.run()


def find_training_generators(
    owners: Iterable[Any], *, code: Names = (), known: Iterable[Any] = (), closed: Iterable[object] = ()
) -> tuple[str, ...]:
    """Names of generators that code of the user's own draws from while it trains, and that nothing captures.

    Args:
        owners: modules, callbacks and the like: the methods of their classes are looked at, those of the objects and
            functions that they hold, and what both call. Methods that run before training are left out.
        code: what a training loop uses, by name; see `running_code`.
        known: generators that are captured or seeded already.
        closed: objects that are not looked into.

    Returns:
        Names like ``"my_module.rng"``, sorted.
    """
    owners = tuple(owners)
    packages = frozenset(type(owner).__module__.partition(".")[0] for owner in owners) - _FRAMEWORKS
    search = _Search(known, packages)
    modules = [child for owner in owners if isinstance(owner, torch.nn.Module) for child in owner.modules()]
    for value in (*modules, *walk(owners, closed)):
        search.follow(type(value).__mro__[:-1])
        if is_a(value, types.FunctionType):
            search.look("", value)
    for name, value in code:
        search.look(name, value)
    return search.run()


def generator_note(names: Sequence[str], advice: str) -> str:
    """What to tell users of generators that a resume loses.

    Args:
        names: of the generators.
        advice: where to keep them, as the end of a sentence.
    """
    shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
    return (
        f"random generators that training draws from and that are in no state: {shown}. After a resume they begin as "
        f"in a new run, so what they draw differs: {advice}."
    )


def generators_of_loader(loader: Any) -> tuple[Any, ...]:
    """What a loader draws from: captured or seeded where it is resumable, told of elsewhere where it is not."""
    parts = ("dataset", "collate_fn", "sampler", "batch_sampler", "generator")
    return find_generators([getattr(loader, part, None) for part in parts])


def running_code() -> Iterator[tuple[str, Any]]:
    """What the user's functions that are running now still use behind the call that they have made, by name.

    That is a training loop, where it asks for its epochs; what made its data stands before and is left out.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_own(frame.f_code, frame.f_globals.get("__name__"), frozenset()):
            yield from _used_behind(frame)
        frame = frame.f_back


def _used_behind(frame: types.FrameType) -> Iterator[tuple[str, Any]]:
    names = set[str]()
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset > frame.f_lasti and instruction.opname.startswith(("LOAD_", "STORE_FAST_LOAD")):
            used = instruction.argval
            for each in used if isinstance(used, tuple) else (used,):
                names |= set(_code_names(each)) if is_a(each, types.CodeType) else {each} & {str(each)}
    in_module = frame.f_locals is frame.f_globals
    module = frame.f_globals.get("__name__", "")
    # cells of what is not assigned yet are missing
    found = {} if in_module else {name: frame.f_locals[name] for name in names if name in frame.f_locals}
    yield from ((f"{name} in {frame.f_code.co_name}()", value) for name, value in found.items())
    yield from _meanings(names - found.keys(), frame.f_globals, module)
    for value in found.values():
        yield from _members(value, names)


def _code_names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_names(constant)


def _plain_function(member: Any) -> types.FunctionType | None:
    function: Any = getattr(member, "fget", None) if is_a(member, property) else member
    function = function.__func__ if is_a(function, (staticmethod, classmethod)) else function
    return function if is_a(function, types.FunctionType) else None


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """A function itself, the methods of an object's class, or else nothing."""
    members = [value] if is_a(value, types.FunctionType) else []
    for cls in type(value).__mro__[:-1]:
        members += cls.__dict__.values()
    yield from filter(None, map(_plain_function, members))


def _members(value: Any, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Attributes of a module or class that code with these names may mean."""
    if is_a(value, (types.ModuleType, type)):
        members = vars(value)
        yield from ((f"{value.__name__}.{name}", members[name]) for name in names if name in members)


def _meanings(names: Iterable[str], values: dict[str, Any], module: str) -> Iterator[tuple[str, Any]]:
    """What code can mean by its names: globals, and members of the modules and classes among them."""
    names = set(names)
    found = {name: values[name] for name in names if name in values}
    yield from ((f"{module}.{name}", value) for name, value in found.items())
    for value in found.values():
        yield from _members(value, names)


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    yield from _meanings(_code_names(function.__code__), function.__globals__, function.__module__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not yet assigned
            yield f"{name} in {function.__qualname__.partition('.<locals>')[0]}()", cell.cell_contents


def _is_own(code: types.CodeType, module: str | None, packages: frozenset[str]) -> bool:
    """Whether code is of the user's: not installed, or in a package of theirs that is."""
    package = str(module).partition(".")[0]
    return package in packages or (package not in _OURS and not is_installed(code.co_filename))


def _runs_before_training(name: str) -> bool:
    return name.startswith(_BEFORE_TRAINING) or any(part in name for part in _BEFORE_TRAINING_PARTS)


class _Search:
    """Goes from functions to those that they use.

    Args:
        known: generators that are not named.
        packages: installed ones that are the user's.
    """

    def __init__(self, known: Iterable[Any], packages: frozenset[str]) -> None:
        self._known = {id(value) for value in (*shared_generators(), *known)}
        self._packages = packages
        self._names, self._seen, self._classes = set[str](), set[types.CodeType](), set[type]()
        self.waiting: list[types.FunctionType] = []
        """Functions whose code is looked at."""

    def run(self) -> tuple[str, ...]:
        """The names of what was found."""
        while self.waiting and len(self._seen) < _MAX_FUNCTIONS:
            function = self.waiting.pop()
            if function.__code__ not in self._seen:
                self._seen.add(function.__code__)
                for name, value in _used(function):
                    self.look(name, value)
        return tuple(sorted(self._names))

    def look(self, name: str, value: Any) -> None:
        """At what a function uses by that name."""
        if is_a(value, types.FunctionType):
            if _is_own(value.__code__, value.__module__, self._packages):
                self.waiting.append(value)
        elif is_a(value, type):
            self.follow(value.__mro__[:-1])
        elif any(is_a(each, GENERATORS) and id(each) not in self._known for each in _held(value)):
            self._names.add(name)
        elif not is_a(value, types.ModuleType):
            self.follow(type(value).__mro__[:-1])

    def follow(self, classes: Iterable[type]) -> None:
        """The methods of those that are the user's, but for what runs before training."""
        for cls in classes:
            if cls in self._classes:
                continue
            self._classes.add(cls)
            for name, member in vars(cls).items():
                function = None if _runs_before_training(name) else _plain_function(member)
                if function is not None and _is_own(function.__code__, function.__module__, self._packages):
                    self.waiting.append(function)


def _held(value: Any) -> Iterable[Any]:
    """A generator, or those that stand in a container."""
    if is_a(value, (list, tuple, set, frozenset)):
        return value if len(value) <= _MAX_ITEMS else ()
    if is_a(value, dict):
        return list(dict.values(value)) if len(value) <= _MAX_ITEMS else ()
    return (value,)
