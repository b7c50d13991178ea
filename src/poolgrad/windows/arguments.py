"""Checks the arguments that describe windows, and normalises them to tuples of integers.

An argument may be a Python number, a sequence of them, or an array of any framework.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from reprlib import repr as short
from typing import Any, Literal, SupportsIndex, TypeGuard, TypeVar

import numpy as np

T = TypeVar("T")

Ints = SupportsIndex | Sequence[SupportsIndex]
Padding = Ints | Sequence[Sequence[SupportsIndex]] | Literal["valid", "same"]
Pairs = tuple[tuple[int, int], ...]

LIMIT = 2**61  # exclusive, of each number: sums and products of a few still fit 64 bits


def has_memory(name: str, tensor: Any) -> bool:
    """Whether the elements of a tensor of PyTorch, the argument `name`, are in memory.

    Those of meta and fake tensors, of compilers and transformations, and of wrapper subclasses are
    not, whatever the type of the tensor. Those of nested tensors count as not being there.

    Raises
    ------
    RuntimeError
        If the storage does not hold all elements, because it was freed or shrunk: PyTorch lets
        anyone do this (`UntypedStorage.resize_`), and reads beyond it.
    """
    if tensor.is_nested:
        return False
    try:
        storage = tensor.untyped_storage()
        if storage.device.type == "meta":  # also of fake tensors
            return False
        storage.data_ptr()
    except RuntimeError:  # there is no storage, or it has no address
        return False
    least = tensor.numel()
    if least and not tensor.is_contiguous():  # the distance from the first to the last element
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        least = 1 + sum((n - 1) * step for n, step in steps)
    held = storage.nbytes() // tensor.itemsize - tensor.storage_offset()
    if least and held < least:
        raise RuntimeError(
            f"{name} must have memory for {least} elements, got a tensor of shape "
            f"{tuple(tensor.shape)} whose storage holds {max(held, 0)}: it was freed or shrunk"
        )
    return True


def _is_tensor(value: object) -> bool:
    # PyTorch may not be installed; a proxy of `torch.fx` has every attribute, its class has not.
    return hasattr(type(value), "untyped_storage")


def _tensors(value: object) -> Iterator[Any]:
    """Return the tensors that NumPy or `repr` would read: the value itself, or its elements."""
    rest: list[Any] = [value]
    seen: dict[int, Any] = {}  # a list may contain itself
    while rest:
        part = rest.pop()
        if _is_tensor(part):
            yield part
            continue
        if isinstance(part, dict):
            inside = [*part, *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            inside = [] if {*map(type, part)} <= {int, float, str} else [*part]
        elif getattr(getattr(part, "dtype", None), "hasobject", None) is True:
            inside = [part.tolist()] if hasattr(part, "tolist") else []
        else:
            continue
        if id(part) not in seen:
            seen[id(part)] = part
            rest += inside


def in_memory(name: str, value: Any) -> Any:
    """Return the argument `name` in a form that Python and NumPy can read.

    Every value of a caller that is read by its own methods passes through this function. Zero
    tensors, which have no memory, are copied.

    Raises
    ------
    RuntimeError
        If a tensor, or one in a list, does not have memory for all elements; see `has_memory`.
    """
    if isinstance(value, int):  # or a compiler's symbol, which has no attributes
        return value
    for tensor in _tensors(value):
        has_memory(name, tensor)
    return value.clone() if _is_tensor(value) and _is_zero(value) else value


def _is_zero(tensor: Any) -> bool:
    """Whether a tensor is one of zeros that PyTorch stores as a shape alone."""
    return bool(getattr(tensor, "_is_zerotensor", bool)())


def _can_be_shown(tensor: Any) -> bool:
    try:
        return _is_zero(tensor) or has_memory("", tensor)
    except RuntimeError:
        return False


def brief(value: object) -> str:
    """Return ``repr(value)`` for an error message; if it is long, shortened or the shape.

    Tensors without readable memory, which `repr` would read, are described.
    """
    kind = type(value).__name__
    is_shown = all(map(_can_be_shown, _tensors(value)))
    text = repr(value) if is_shown else ""
    if text and len(text) <= 100 and "\n" not in text:
        return text
    try:
        shape = getattr(value, "shape", None)
    except RuntimeError:  # nested tensors have none
        shape = None
    if is_shown:
        return short(value) if shape is None else f"an array of shape {tuple(shape)} ({kind})"
    if shape is None:
        return f"a {kind} that contains a tensor without readable memory"
    dtype = getattr(value, "dtype", None)
    return f"a tensor of shape {tuple(shape)} and dtype {dtype} without readable memory ({kind})"


def one_or_each(dims: int) -> str:
    """Describe an argument that is one integer, or one for each axis."""
    return "an integer" if dims == 1 else f"an integer or a sequence of {dims} integers"


def integer(name: str, value: object, shown: object, accepted: str) -> int:
    """Return `value` as an int.

    Raises
    ------
    TypeError
        If `value` is not an integer; the message shows the whole argument, `shown`.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(in_memory(name, value))
    except TypeError:  # also an array of several elements, although it has `__index__`
        pass
    raise TypeError(f"{name} must be {accepted}, got {brief(shown)}")


def unmasked(name: str, value: T) -> T:
    """Return the argument `name`.

    Raises
    ------
    TypeError
        If it is a masked array of NumPy, whose methods ignore elements.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must have no mask; fill it first, with {name}.filled")
    return value


def to_python(name: str, value: object) -> object:
    """Convert numbers and arrays of a framework, the argument `name`, to Python's."""
    if isinstance(value, int) or not hasattr(value, "tolist"):  # or a compiler's symbol
        return value
    array: Any = in_memory(name, unmasked(name, value))
    try:
        return array.tolist()
    except RuntimeError as error:  # of a sparse, quantized, nested or meta tensor
        raise TypeError(
            f"{name} must hold numbers that Python can read, got {brief(array)}"
        ) from error


def is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    """Return whether `value` is a sequence other than text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def flag(name: str, value: object) -> bool:
    """Return an option that is True or False as Python's bool; NumPy's are accepted."""
    on = value if isinstance(value, bool) else to_python(name, value)
    if not isinstance(on, bool):
        raise TypeError(f"{name} must be True or False, got {brief(value)}")
    return on


def per_axis(
    name: str, value: object, dims: int, accepted: str = "", optional: bool = False
) -> tuple[Any, ...]:
    """Return one integer (or None, if `optional`) for each axis, from one or a sequence.

    Raises
    ------
    TypeError, ValueError
        If it is neither. The message contains `accepted`, by default the text of `one_or_each`.
    """
    accepted = accepted or one_or_each(dims)
    plain = to_python(name, value)
    given = plain if is_sequence(plain) else [plain]
    if len(given) not in (1, dims):
        raise ValueError(f"{name} must be {accepted}, got {brief(value)}")
    numbers = tuple(
        None if optional and v is None else integer(name, to_python(name, v), value, accepted)
        for v in given
    )
    return numbers if len(numbers) == dims else numbers * dims


def positive(
    name: str, value: object, dims: int, accepted: str = "", optional: bool = False
) -> tuple[Any, ...]:
    """Return one positive integer below 2**61 for each axis; `accepted`, `optional`: `per_axis`.

    Raises
    ------
    TypeError, ValueError
        If a number is not a positive integer below 2**61, or the length is not that of the axes.
    """
    numbers = per_axis(name, value, dims, accepted, optional)
    known = [1, *(n for n in numbers if n is not None)]
    if min(known) < 1:
        raise ValueError(f"{name} must be positive, got {brief(value)}")
    check_limit(name, known, value)
    return numbers


def check_limit(name: str, numbers: Sequence[int], shown: object) -> None:
    """Raise ValueError if a number is 2**61 or larger; the message shows `shown`."""
    if max(numbers) >= LIMIT:
        raise ValueError(f"{name} must be less than 2**61, got {brief(shown)}")


def padding_pairs(value: object, dims: int) -> Pairs | Literal["same"]:
    """Return ``(low, high)`` for each axis, or ``"same"``.

    Raises
    ------
    TypeError, ValueError
        If the value is negative, or not integers, pairs of integers, ``"valid"`` or ``"same"``.
    """
    each = "" if dims == 1 else f"a sequence of {dims} integers, "
    pairs_of = "a pair (low, high)" if dims == 1 else f"{dims} pairs (low, high)"
    accepted = f'an integer, {each}{pairs_of}, "valid" or "same"'
    if isinstance(value, str):
        if value.lower() not in ("valid", "same"):
            raise ValueError(f"padding must be {accepted}, got {brief(value)}")
        return "same" if value.lower() == "same" else ((0, 0),) * dims
    pairs: Pairs
    plain = to_python("padding", value)
    if is_sequence(plain) and any(is_sequence(v) for v in plain):
        ends = [v for v in plain if is_sequence(v) and len(v) == 2]
        if not len(ends) == len(plain) == dims:
            raise ValueError(f"padding must be {accepted}, got {brief(value)}")
        pairs = tuple(
            (integer("padding", low, value, accepted), integer("padding", high, value, accepted))
            for low, high in ends
        )
    else:
        pairs = tuple((p, p) for p in per_axis("padding", value, dims, accepted))
    numbers = [p for pair in pairs for p in pair]
    if min(numbers) < 0:
        raise ValueError(f"padding must not be negative, got {brief(value)}")
    check_limit("padding", numbers, value)
    return pairs
