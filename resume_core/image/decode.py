"""Structure to state. What comes in may be damaged or made by hand: every surprise is a CorruptCheckpointError."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from resume_core.collector import collector_paused
from resume_core.errors import CorruptCheckpointError, ResumeError, UnsupportedStateError
from resume_core.image.dtypes import BY_NAME
from resume_core.image.encode import FACTORIES
from resume_core.image.leaves import DECODERS, user_leaf
from resume_core.image.quiet import plain_tensors
from resume_core.image.views import Dims, c_strides, dense_strides, file_shape


def unflatten(structure: Any, tensors: Mapping[str, torch.Tensor], *, plain: bool = False, path: str = "") -> Any:
    """Put a tree together again. Tensors share memory with ``tensors`` wherever the layout allows.

    Args:
        structure: :attr:`Flat.structure`, or what :func:`loads` read.
        tensors: name to tensor, in the types and shapes of the file's header.
        plain: whether the file was laid out in C order (``Layout.plan(..., plain=True)``).
        path: the file, for messages.

    Raises:
        CorruptCheckpointError: the structure is malformed, or it and the tensors do not belong together.
        UnsupportedStateError: it holds a leaf that the script has not registered, or whose decode raised.
    """
    decoder = _Decoder(tensors, path, plain=plain)
    try:
        with plain_tensors(), collector_paused():
            tree = decoder.decode(structure, "")
    except RecursionError as error:
        raise CorruptCheckpointError(f"{path or 'structure'} is nested too deep", path=path) from error
    if unused := decoder.unused():
        raise decoder.corrupt("", f"it does not name these tensors of the file: {', '.join(unused[:5])}")
    return tree


D = TypeVar("D", bound=dict[Any, Any])


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError(f"{value!r:.80} is not a list")
    return value


def _dims(value: Any) -> Dims:
    for dim in _list(value):
        if type(dim) is not int or not 0 <= dim < 2**63:
            raise ValueError(f"{value!r:.80} are no sizes")
    return tuple(value)


class _Decoder:
    """One walk over one structure."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], path: str, *, plain: bool) -> None:
        self._tensors = tensors
        self._plain = plain
        self._path = path
        self._made: dict[str, torch.Tensor] = {}

    def unused(self) -> list[str]:
        """Names that no node has asked for."""
        return [name for name in self._tensors if name not in self._made]

    def corrupt(self, place: str, what: str) -> CorruptCheckpointError:
        where = f"{self._path or 'structure'}{f', at {place!r}' if place else ''}"
        return CorruptCheckpointError(f"{where}: {what}. Restore an older checkpoint.", path=self._path)

    def decode(self, node: Any, place: str) -> Any:
        kind = type(node)
        if node is None or kind in (str, int, bool) or (kind is float and math.isfinite(node)):
            return node
        if kind is list:
            return self._items(place, node)
        if kind is dict and "$" in node:
            return self._typed(node, place)
        if kind is dict:
            return {key: self.decode(child, f"{place}.{key}") for key, child in node.items()}
        raise self.corrupt(place, f"{node!r:.80} is not plain JSON")

    def _typed(self, node: dict[str, Any], place: str) -> Any:
        fields = dict(node)
        kind = fields.pop("$")
        try:
            if kind in self._KINDS:
                return self._KINDS[kind](self, place, **fields)
            if kind in DECODERS:
                return DECODERS[kind](**fields)
        except (ResumeError, RecursionError):
            raise
        except Exception as error:  # a function of the table met fields that it did not write
            raise self.corrupt(place, f"{node!r:.120} is malformed ({error!r:.200})") from error
        raise self.corrupt(place, f"the kind {kind!r:.80} is not known to this version")

    def _items(self, place: str, items: Any) -> list[Any]:
        return [self.decode(item, f"{place}.{index}") for index, item in enumerate(_list(items))]

    def _tuple(self, place: str, *, items: Any) -> tuple[Any, ...]:
        return tuple(self._items(place, items))

    def _set(self, place: str, *, items: Any) -> set[Any]:
        return set(self._items(place, items))

    def _frozenset(self, place: str, *, items: Any) -> frozenset[Any]:
        return frozenset(self._items(place, items))

    def _fill(self, target: D, place: str, items: Any) -> D:
        for index, pair in enumerate(_list(items)):
            key, value = _list(pair)
            target[self.decode(key, f"{place}.key{index}")] = self.decode(value, f"{place}.{index}")
        if len(target) != len(items):
            raise ValueError("a key occurs twice")
        return target

    def _dict(self, place: str, *, items: Any) -> dict[Any, Any]:
        return self._fill({}, place, items)

    def _ordered_dict(self, place: str, *, items: Any) -> OrderedDict[Any, Any]:
        return self._fill(OrderedDict(), place, items)

    def _counter(self, place: str, *, items: Any) -> Counter[Any]:
        return self._fill(Counter(), place, items)

    def _defaultdict(self, place: str, *, items: Any, factory: str | None) -> defaultdict[Any, Any]:
        return self._fill(defaultdict(FACTORIES[factory]), place, items)

    def _user(self, place: str, *, name: str, value: Any) -> Any:
        leaf = user_leaf(name)
        if leaf is None:
            raise UnsupportedStateError(
                f"The checkpoint holds a {name!r:.200} at {place!r}, and this script has not said how to read it. "
                f"Call resume_core.register_leaf(cls, encode, decode, name={name!r:.200}) before training starts, "
                "as the script that saved it did.",
                path=place,
            )
        decoded = self.decode(value, place)
        try:
            return leaf.decode(decoded)
        except Exception as error:
            raise UnsupportedStateError(
                f"The decode function registered for {name!r} raised {error!r} on the value at {place!r}.",
                path=place,
            ) from error

    def _array(self, place: str, *, tensor: Any) -> np.ndarray[Any, Any]:
        decoded = self.decode(tensor, place)
        if type(decoded) is not torch.Tensor or decoded.requires_grad:
            raise TypeError("an array needs a tensor without gradient")
        return decoded.numpy()

    def _tensor(self, place: str, **fields: Any) -> torch.Tensor:
        return self._made_as(torch.Tensor, place, **fields)

    def _parameter(self, place: str, **fields: Any) -> torch.Tensor:
        return self._made_as(torch.nn.Parameter, place, **fields)

    def _made_as(
        self,
        cls: type[torch.Tensor],
        place: str,
        *,
        alias: str | None = None,
        requires_grad: bool = False,
        **stored: Any,
    ) -> torch.Tensor:
        if type(requires_grad) is not bool:
            raise TypeError("requires_grad is not a bool")
        if alias is None:
            made = _as(cls, self._read(place, **stored), requires_grad=requires_grad)
            self._made[stored["name"]] = made
            return made
        first = self._made[alias]
        if stored:
            raise TypeError("an alias has no fields of its own")
        same = type(first) is cls and first.requires_grad == requires_grad
        return first if same else _as(cls, first.detach(), requires_grad=requires_grad)

    def _read(self, place: str, *, name: str, dtype: str, shape: Any, stride: Any = None) -> torch.Tensor:
        """The tensor ``name`` of the file, in its own type, shape and strides."""
        if name in self._made or name not in self._tensors:
            state = "named twice" if name in self._made else "missing from the file"
            raise self.corrupt(place, f"the tensor {name!r:.200} is {state}")
        stored, entry, dims = self._tensors[name], BY_NAME[dtype], _dims(shape)
        in_order = c_strides(dims)
        strides = in_order if stride is None else _dims(stride)
        expected = file_shape(entry, dims, strides, plain=self._plain)
        if len(strides) != len(dims) or stored.dtype != entry.carrier or stored.shape != expected:
            raise self.corrupt(
                place,
                f"the tensor {name!r:.200} is {stored.dtype} {list(stored.shape)} in the file, expected "
                f"{entry.carrier} {list(expected)}",
            )
        if strides == in_order and stored.dtype == entry.dtype:
            return stored
        if strides != in_order and dense_strides(dims, strides) != strides:
            raise ValueError(f"the strides {strides} leave holes or overlap")
        elements = stored.reshape(-1).view(entry.dtype)
        return _reordered(elements, dims, strides) if self._plain else elements.as_strided(dims, strides)

    _KINDS: ClassVar[dict[str, Callable[..., Any]]] = {
        "tuple": _tuple,
        "set": _set,
        "frozenset": _frozenset,
        "dict": _dict,
        "OrderedDict": _ordered_dict,
        "Counter": _counter,
        "defaultdict": _defaultdict,
        "leaf": _user,
        "numpy.ndarray": _array,
        "tensor": _tensor,
        "parameter": _parameter,
    }


def _as(cls: type[torch.Tensor], tensor: torch.Tensor, *, requires_grad: bool) -> torch.Tensor:
    if cls is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.detach().requires_grad_() if requires_grad else tensor


def _reordered(elements: torch.Tensor, dims: Dims, strides: Dims) -> torch.Tensor:
    """Elements in C order to a tensor of ``strides``: a view when they lie in C order as well."""
    if strides == c_strides(dims):
        return elements.view(dims)
    target = torch.empty_strided(dims, strides, dtype=elements.dtype, device=elements.device)
    return target.copy_(elements.view(dims))
