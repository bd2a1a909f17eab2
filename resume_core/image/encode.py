"""State to structure: a tree of live objects becomes strict JSON and a table of tensors."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from resume_core.collector import collector_paused
from resume_core.errors import UnsupportedStateError
from resume_core.image.leaves import (
    LEAVES,
    NUMPY_BYTES,
    NUMPY_SCALAR,
    USER_LEAVES,
    Leaf,
    encode_float,
    qualified_name,
)
from resume_core.image.memory import TENSORS, Known, KnownDict, Memory, signature
from resume_core.image.nodes import refusal, tensor_node
from resume_core.image.quiet import plain_tensors
from resume_core.image.views import ViewNames, same_view
from resume_core.text import dumps

MAX_DEPTH = 100
"""Containers within one another. More is a mistake, or a linked list; Python's own recursion limit is 1,000 calls."""

FACTORIES: dict[str | None, Callable[[], Any] | None] = {
    None: None,
    **{kind.__name__: kind for kind in (list, dict, set, tuple, int, float, bool, str)},
}
"""What a defaultdict may have as its factory, by name."""

_FACTORY_NAMES = {factory: name for name, factory in FACTORIES.items()}
_MAX_PLAIN_BITS = 1024  # Python itself refuses to read decimals of more than 4,300 digits
_MAX_REPR = 1000
_SHORT_KEYS = {str, int, float, bool, type(None)}
_SPLIT_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")  # two characters that JSON would join into one


@dataclass(frozen=True)
class Flat:
    """A tree taken apart.

    Attributes:
        structure: JSON; every tensor in it is a node that names its entry in ``tensors``.
        tensors: name to live tensor, no copy, detached from autograd. Names are dotted paths.
        aliases: name of a tensor that is the same view as an earlier one, to the name of that one; it is not in
            ``tensors``. As the metadata of a plain file they let ``safetensors.torch.load_model`` work.
        plan: the same object for two trees of one :class:`Memory` only if a plan for one file fits the other.
    """

    structure: Any
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    plan: object = None


def flatten(tree: Any, *, path: str = "", lenient: bool = False, memory: Memory | None = None) -> Flat:
    """Take a tree apart into JSON and tensors.

    Exact are: values, types, the order of dicts, and of tensors dtype, shape, the strides of dense ones, which are
    the same view of the same memory, ``requires_grad``, being a ``Parameter``. Tensors that are not dense
    (``x[::2]``, ``expand``) are stored dense in the same order of dimensions.

    Not kept: a tensor's device, ``.grad`` and attributes; attributes of a dict (``_metadata`` of a ``state_dict``);
    that *different* views overlap (each is stored by itself); NaN payloads outside tensors and arrays.

    Args:
        tree: nested dicts, lists, tuples, sets, numbers, text, tensors and what else the table knows.
        path: prefix of the dotted names.
        lenient: record what is not supported, and tensors, as their ``repr``; never raises.
        memory: of the walk before, over a tree like this one; brought up to date.

    Raises:
        UnsupportedStateError: a value that cannot be stored exactly; ``path`` names its place.
    """
    encoder = _Encoder(memory or Memory(), lenient=lenient)
    try:
        with plain_tensors(), collector_paused():
            structure = encoder.encode(tree, path)
            if memory and not encoder.is_sound(memory):
                encoder = _Encoder(Memory(), lenient=lenient)
                structure = encoder.encode(tree, path)
    except RecursionError as error:
        if not lenient:
            raise UnsupportedStateError(f"state at {path!r} is nested too deep", path=path) from error
        structure = _recorded(tree)
    except Exception:  # a dict that another thread changes, a property that raises
        if not lenient:
            raise
        structure = _recorded(tree)
    return Flat(structure, encoder.tensors, encoder.aliases, memory and encoder.remember(memory))


def _recorded(value: Any) -> dict[str, Any]:
    try:
        text = repr(value)[:_MAX_REPR]
    except Exception as error:  # a broken __repr__ must not stop a save
        text = f"<repr raised {type(error).__name__}>"
    return {"$": "repr", "type": qualified_name(type(value)), "value": text}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _key_name(key: Any, index: int) -> str:
    """How a key appears in dotted names: itself when it is short and always the same, else its place."""
    return str(key) if type(key) in _SHORT_KEYS else f"[{index}]"


def _has_plain_keys(value: dict[Any, Any]) -> bool:
    """True for a dict that can be a JSON object: keys of exactly str, none of them the mark of a typed node."""
    return {*map(type, value)} <= {str} and "$" not in value and _is_json_text("\0".join(value))


def _is_json_text(text: str) -> bool:
    return text.isascii() or not _SPLIT_PAIR.search(text)


class _Encoder:
    """One walk over one tree."""

    def __init__(self, memory: Memory, *, lenient: bool) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.aliases: dict[str, str] = {}
        self._lenient = lenient
        self._known, self._known_dicts = memory.known, memory.dicts  # of the walk before
        self._found: dict[str, Known] = {}
        self._found_dicts: dict[str, KnownDict] = {}
        self._addresses: list[int] = []
        self._num_new = 0  # tensors that were not as they are in the walk before
        self._views = ViewNames()
        self._open: set[int] = set()  # ids of the containers around the present value

    def is_sound(self, memory: Memory) -> bool:
        """Whether the tensors that were taken for known ones have their names to themselves, and share memory with no
        others than before."""
        num_found = len(self._found)
        if len(self.tensors) + len(self.aliases) != len(self._addresses):
            return False
        if self._num_new == num_found or len({*self._addresses}) == num_found:
            return True
        return not self._num_new and memory.has_same_aliases(self._addresses)

    def remember(self, memory: Memory) -> object:
        """Bring ``memory`` up to date; its plan."""
        if self._num_new or len(self._found) != len(memory.known):
            memory.plan = object()
        memory.known, memory.dicts, memory.addresses = self._found, self._found_dicts, self._addresses
        return memory.plan

    def encode(self, value: Any, path: str) -> Any:
        handler = self._HANDLERS.get(type(value))
        return handler(self, value, path) if handler else self._from_table(value, path)

    def _refuse(self, value: Any, path: str, what: str = "") -> Any:
        if self._lenient:
            return _recorded(value)
        cls = type(value)
        teach = f" or teach it: resume_core.register_leaf({cls.__name__}, encode, decode) before training starts,"
        raise UnsupportedStateError(
            f"The state at {path!r} is {what or 'a ' + qualified_name(cls)}, which a checkpoint cannot hold. Turn it "
            "into plain values (dict, list, tuple, set, numbers, text, dense tensors, arrays),"
            f"{teach if cls not in self._HANDLERS and cls not in LEAVES else ''} or keep it out of the state.",
            path=path,
        )

    def _from_table(self, value: Any, path: str) -> Any:
        cls = type(value)
        if cls in USER_LEAVES:
            return self._container(value, path)
        leaf = LEAVES.get(cls) or (NUMPY_SCALAR if isinstance(value, np.generic) else None)
        if leaf is None:
            return self._refuse(value, path, "a tensor subclass" if isinstance(value, torch.Tensor) else "")
        return self._simple(leaf, value, path)

    def _simple(self, leaf: Leaf, value: Any, path: str) -> Any:
        try:
            return {"$": leaf.kind, **leaf.encode(value)}
        except TypeError as error:
            return self._refuse(value, path, str(error))

    def _same(self, value: Any, path: str) -> Any:
        return value

    def _int(self, value: int, path: str) -> Any:
        return value if value.bit_length() <= _MAX_PLAIN_BITS else {"$": "int", "hex": hex(value)}

    def _float(self, value: float, path: str) -> Any:
        return encode_float(value)

    def _str(self, value: str, path: str) -> Any:
        if _is_json_text(value):
            return value
        return self._simple(Leaf("str", _surrogate_fields, str), value, path)

    def _container(self, value: Any, path: str) -> Any:
        if id(value) in self._open:
            return self._refuse(value, path, "a container that holds itself")
        if len(self._open) >= MAX_DEPTH:
            return self._refuse(value, path, f"nested more than {MAX_DEPTH} levels deep")
        self._open.add(id(value))
        try:
            return self._CONTAINERS.get(type(value), _Encoder._user)(self, value, path)
        finally:
            self._open.discard(id(value))

    def _dict_again(self, value: dict[Any, Any], path: str) -> Any:
        """A dict that may hold what it held in the walk before: that of each parameter does.

        Whether the names of its tensors are still free is looked at for all at the end.
        """
        known = self._known_dicts.get(path)
        tensors = None if known is None else known.tensors(value)
        if known is None or tensors is None:
            return self._container(value, path)
        self._found_dicts[path] = known
        self._found.update(known.known)
        self._addresses += [tensor.data_ptr() for tensor in tensors]
        self.tensors.update(zip(known.names, tensors, strict=True))
        return known.node

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.encode(value, _join(path, str(index))) for index, value in enumerate(values)]

    def _tuple(self, value: tuple[Any, ...], path: str) -> Any:
        return {"$": "tuple", "items": self._items(value, path)}

    def _set(self, value: set[Any] | frozenset[Any], path: str) -> Any:
        """Sorted by its JSON, as the order of a set of strings differs from process to process."""
        num_before = len(self.tensors) + len(self.aliases)
        items = self._items(value, path)
        if len(self.tensors) + len(self.aliases) == num_before:  # an alias must come after its target
            items.sort(key=dumps)
        return {"$": type(value).__name__, "items": items}

    def _dict(self, value: dict[Any, Any], path: str) -> Any:
        if not _has_plain_keys(value):
            return self._learnt(value, path, {"$": "dict", "items": self._pairs(value, path)})
        prefix = _join(path, "")
        node = {key: self.encode(child, prefix + key) for key, child in value.items()}
        return self._learnt(value, path, node)

    def _dict_subclass(self, value: dict[Any, Any], path: str) -> Any:
        node = {"$": type(value).__name__, "items": self._pairs(value, path)}
        return self._learnt(value, path, node)

    def _learnt(self, value: dict[Any, Any], path: str, node: Any) -> Any:
        """``node``, which is remembered for the next walk where that spares it much."""
        kinds = {*map(type, value.values())}
        if not value or self._lenient or {*map(type, value)} - {str, int}:
            return node
        paths = [_join(path, str(key)) for key in value]
        known: KnownDict | None = None
        if kinds <= TENSORS:
            known = KnownDict.of_tensors(value, node, {each: self._found[each] for each in paths})
        elif kinds == {dict}:
            inner = [self._found_dicts.get(each) for each in paths]
            rows = [one for one in inner if one is not None and one.is_row]
            known = KnownDict.of_dicts(value, node, rows) if len(rows) == len(inner) else None
        if known is not None:
            self._found_dicts[path] = known
        return node

    def _defaultdict(self, value: defaultdict[Any, Any], path: str) -> Any:
        factory: Any = value.default_factory
        if not (factory is None or isinstance(factory, type)) or factory not in _FACTORY_NAMES:
            return self._refuse(value, path, f"a defaultdict whose factory is {_recorded(factory)['value']}")
        return {**self._dict_subclass(value, path), "factory": _FACTORY_NAMES[factory]}

    def _pairs(self, value: dict[Any, Any], path: str) -> list[Any]:
        return [
            [
                # most are numbers of parameters
                self._int(key, path) if type(key) is int else self.encode(key, _join(path, f"key{index}")),
                self.encode(child, _join(path, _key_name(key, index))),
            ]
            for index, (key, child) in enumerate(value.items())
        ]

    def _user(self, value: Any, path: str) -> Any:
        leaf = USER_LEAVES[type(value)]
        try:
            plain = leaf.encode(value)
        except Exception as error:
            if self._lenient:
                return _recorded(value)
            raise UnsupportedStateError(
                f"The encode function registered for {leaf.name} raised {error!r} on the state at {path!r}.",
                path=path,
            ) from error
        return {"$": "leaf", "name": leaf.name, "value": self.encode(plain, path)}

    def _array(self, value: np.ndarray[Any, Any], path: str) -> Any:
        if self._lenient:
            return _recorded(value)
        if value.dtype.name not in _TORCH_ARRAYS or not value.dtype.isnative:
            return self._simple(NUMPY_BYTES, value, path)
        walkable = all(step >= 0 and step % value.itemsize == 0 for step in value.strides)
        shared = value if walkable and value.flags.writeable else value.copy(order="K")
        return {"$": "numpy.ndarray", "tensor": self._tensor(torch.from_numpy(shared), path)}

    def _tensor(self, value: torch.Tensor, path: str) -> Any:
        if self._lenient:
            return _recorded(value)
        known = self._known.get(path)
        if known is None or signature(value) != known.signature or not self._still_fits(known, value):
            if why := refusal(value):
                return self._refuse(value, path, why)
            known = self._new(value, path)
        name = known.name
        self._found[path] = known
        self._addresses.append(value.data_ptr())
        if known.first == name:
            self.tensors[name] = value.detach() if value.requires_grad else value
        else:
            self.aliases[name] = known.first
        return known.node

    def _still_fits(self, known: Known, value: torch.Tensor) -> bool:
        """Whether name and alias can be those of before; that it is no alias now is looked at for all at the end."""
        if not self._is_free(known.name):
            return False
        return known.first == known.name or same_view(value, self.tensors.get(known.first, value.new_empty(0)))

    def _new(self, value: torch.Tensor, path: str) -> Known:
        self._num_new += 1
        name = self._name(path)
        first = self._views.first_name(name, value)
        found = signature(value)
        assert found is not None  # what has none was refused
        return Known(found, name, first, tensor_node(name, first, value))

    def _is_free(self, name: str) -> bool:
        return not (name in self.tensors or name in self.aliases)

    def _name(self, path: str) -> str:
        """A name that no other tensor of the tree has and that every reader of the format takes."""
        name = path if path.isascii() else path.encode("utf-8", "backslashreplace").decode()
        name = base = name or "value"
        num_taken = 1
        while not self._is_free(name) or name == "__metadata__":
            num_taken += 1
            name = f"{base}~{num_taken}"
        return name

    _CONTAINERS: ClassVar[dict[type, Callable[[_Encoder, Any, str], Any]]] = {
        list: _items,
        tuple: _tuple,
        set: _set,
        frozenset: _set,
        dict: _dict,
        OrderedDict: _dict_subclass,
        Counter: _dict_subclass,
        defaultdict: _defaultdict,
    }
    _HANDLERS: ClassVar[dict[type, Callable[[_Encoder, Any, str], Any]]] = {
        type(None): _same,
        bool: _same,
        str: _str,
        int: _int,
        float: _float,
        torch.Tensor: _tensor,
        torch.nn.Parameter: _tensor,
        np.ndarray: _array,
        **dict.fromkeys(_CONTAINERS, _container),
        dict: _dict_again,
        OrderedDict: _dict_again,
    }


_TORCH_ARRAYS = (
    {"bool", "float16", "float32", "float64", "complex64", "complex128"}
    | {f"int{bits}" for bits in (8, 16, 32, 64)}
    | {f"uint{bits}" for bits in (8, 16, 32, 64)}
)  # numpy types whose arrays torch can share


def _surrogate_fields(value: str) -> dict[str, Any]:
    return LEAVES[bytes].encode(value.encode("utf-8", "surrogatepass"))
