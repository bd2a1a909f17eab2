"""Where the elements of a tensor lie: strides, dense or not, the same memory twice."""

from __future__ import annotations

from functools import lru_cache

import torch

from resume_core.image.dtypes import DType

Dims = tuple[int, ...]


@lru_cache(maxsize=8192)
def c_strides(shape: Dims) -> Dims:
    """Strides, in elements, that torch gives a fresh tensor of ``shape``."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=8192)
def dense_strides(shape: Dims, strides: Dims) -> Dims:
    """Strides of the copy that is stored: exactly ``strides`` where these are dense, else dense in the same order.

    The rule is that of ``clone()`` (``at::infer_dense_strides`` in ``aten/src/ATen/ExpandUtils.cpp``), so that a
    resumed run computes on what a clone in the saving run would have been. Empty tensors keep their strides.
    ``torch.empty_like`` on the meta device says the same, but imports 500 modules for it.
    """
    if 0 in shape or is_dense(shape, strides):
        return strides
    step, found = 1, [0] * len(shape)
    for dim in _innermost_first(shape, strides):
        found[dim] = step
        step *= shape[dim]
    return tuple(found)


def is_dense(shape: Dims, strides: Dims) -> bool:
    """True when the elements fill their memory without holes or overlap, in any order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _innermost_first(shape: Dims, strides: Dims) -> list[int]:
    """Dimensions by stride, in an insertion sort in which a stride of 0 (expanded) is smaller than none."""
    order = list(reversed(range(len(shape))))
    for end in range(1, len(order)):
        at = end
        for other in range(end - 1, -1, -1):
            swap = _comparison(shape, strides, order[other], order[at])
            if swap < 0:
                break
            if swap > 0:
                order[other], order[at] = order[at], order[other]
                at = other
    return order


def _comparison(shape: Dims, strides: Dims, inner: int, outer: int) -> int:
    """1 when the two dimensions are the wrong way round, -1 when right, 0 when nothing says."""
    if strides[inner] == 0 or strides[outer] == 0:
        return 0
    if strides[inner] != strides[outer]:
        return 1 if strides[inner] > strides[outer] else -1
    return int(shape[inner] > shape[outer])


def stored_strides(tensor: torch.Tensor) -> Dims:
    """Strides, in elements, of the dense copy of ``tensor`` that an image holds."""
    shape, strides = tensor.shape, tensor.stride()
    return strides if strides == c_strides(shape) else dense_strides(shape, strides)


def physical_order(strides: Dims) -> list[int]:
    """The dimensions from the outermost in memory to the innermost."""
    return sorted(range(len(strides)), key=lambda dim: -strides[dim])


def file_shape(dtype: DType, shape: Dims, strides: Dims, *, plain: bool) -> Dims:
    """The shape in the file's header: logical in a plain file, else as the elements lie in memory.

    A carrier of several elements (:class:`~resume_core.image.dtypes.DType`) adds a last dimension.
    """
    in_order = plain or strides == c_strides(shape)
    dims = shape if in_order else tuple(shape[dim] for dim in physical_order(strides))
    return dims if dtype.num_carriers == 1 else (*dims, dtype.num_carriers)


def same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True when both show the same elements of the same memory in the same shape: tied, not merely overlapping."""
    return (
        a.data_ptr() == b.data_ptr()
        and a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.device == b.device
        and a.is_conj() == b.is_conj()
        and a.is_neg() == b.is_neg()
    )


class ViewNames:
    """Remembers named tensors, to find the name under which the same view came before."""

    def __init__(self) -> None:
        self._at: dict[int, list[tuple[str, torch.Tensor]]] = {}

    def first_name(self, name: str, tensor: torch.Tensor) -> str:
        """The first name of this view: ``name`` itself when it is new. Tensors without memory are always new."""
        address = tensor.data_ptr()
        if address == 0:
            return name
        seen = self._at.setdefault(address, [])
        for other_name, other in seen:
            if same_view(tensor, other):
                return other_name
        seen.append((name, tensor))
        return name
