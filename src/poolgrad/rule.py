"""What a caller says of windows, in any form, becomes a rule: plain integers, of no size of input.

All errors about such arguments live here; see docs/semantics.md for the rules.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from reprlib import repr as short
from typing import Literal, TypeGuard

Ints = int | Sequence[int]
Padding = int | Sequence[int] | Sequence[tuple[int, int]] | Literal["valid", "same"]

# One axis of windows, before the size of the input is known: (kernel, stride, lo, hi, dilation,
# ceil). SAME as padding stands for "what makes out = ceil(in / stride)"; a kernel of 0 for adaptive
# bins, their number in the place of the stride (0: as many as there are inputs); a ceil of
# FRACTIONAL for windows that begin where a table says, their number there, too. Plain integers, so
# that any framework can carry them through its graphs.
#
# With four more, (first, count, before, after), `count` of these windows from number `first` on,
# over a part of their input, before and after which there are so many.
AxisRule = tuple[int, ...]
Rule = tuple[AxisRule, ...]
SAME = -1
FRACTIONAL = 2

TOO_MUCH = 2**61  # for one number: sums and products of a few still fit


def brief(value: object) -> str:
    """Return ``repr(value)`` for an error; if that is long, cut, or for an array its shape."""
    text = repr(value)
    if len(text) <= 100 and "\n" not in text:
        return text
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return short(value) if shape is None else f"an array of shape {tuple(shape)} ({kind})"


def _one_or_each(dims: int) -> str:
    return "an integer" if dims == 1 else f"an integer or a sequence of {dims} integers"


def _integer(name: str, value: object, shown: object, accepted: str) -> int:
    """Return `value` as an int; an error shows the whole argument, `shown`."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:  # also an array of several elements, although it has `__index__`
        pass
    raise TypeError(f"{name} must be {accepted}, got {brief(shown)}")


def _plain(value: object) -> object:
    """Numbers and arrays of a framework as Python's own."""
    if isinstance(value, int):  # or a compiler's symbol for one, which cannot be asked for more
        return value
    return value.tolist() if hasattr(value, "tolist") else value


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def flag(name: str, value: object) -> bool:
    """Return an option that is True or False as Python's bool; NumPy's are accepted."""
    on = _plain(value)
    if not isinstance(on, bool):
        raise TypeError(f"{name} must be True or False, got {brief(value)}")
    return on


def per_axis(name: str, value: object, dims: int, accepted: str = "") -> tuple[int, ...]:
    """One integer for each of `dims` axes, from an integer or as many of them.

    Raises
    ------
    TypeError, ValueError
        With the text `accepted`, by default that of an integer or one for each axis.
    """
    accepted = accepted or _one_or_each(dims)
    given = _plain(value)
    if not _is_sequence(given):
        return (_integer(name, given, value, accepted),) * dims
    if len(given) not in (1, dims):
        raise ValueError(f"{name} must be {accepted}, got {brief(value)}")
    numbers = tuple(_integer(name, _plain(v), value, accepted) for v in given)
    return numbers if len(numbers) == dims else numbers * dims


def positive(name: str, value: object, dims: int) -> tuple[int, ...]:
    """One positive integer below 2**61 for each axis, from an integer or as many of them."""
    numbers = per_axis(name, value, dims)
    if min(numbers) < 1:
        raise ValueError(f"{name} must be positive, got {brief(value)}")
    if max(numbers) >= TOO_MUCH:
        raise ValueError(f"{name} must be less than 2**61, got {brief(value)}")
    return numbers


def _padding(value: object, dims: int) -> tuple[tuple[int, int], ...]:
    """``(low, high)`` for each axis; SAME for `"same"`."""
    each = "" if dims == 1 else f"a sequence of {dims} integers, "
    pairs_of = "a pair (low, high)" if dims == 1 else f"{dims} pairs (low, high)"
    accepted = f'an integer, {each}{pairs_of}, "valid" or "same"'
    if isinstance(value, str):
        if value.lower() not in ("valid", "same"):
            raise ValueError(f"padding must be {accepted}, got {brief(value)}")
        return ((SAME, SAME) if value.lower() == "same" else (0, 0),) * dims
    pairs: tuple[tuple[int, int], ...]
    given = _plain(value)
    if _is_sequence(given) and any(_is_sequence(v) for v in given):
        ends = [v for v in given if _is_sequence(v) and len(v) == 2]
        if not len(ends) == len(given) == dims:
            raise ValueError(f"padding must be {accepted}, got {brief(value)}")
        pairs = tuple(
            (_integer("padding", lo, value, accepted), _integer("padding", hi, value, accepted))
            for lo, hi in ends
        )
    else:
        pairs = tuple((p, p) for p in per_axis("padding", value, dims, accepted))
    if any(p < 0 for pair in pairs for p in pair):
        raise ValueError(f"padding must not be negative, got {brief(value)}")
    if any(p >= TOO_MUCH for pair in pairs for p in pair):
        raise ValueError(f"padding must be less than 2**61, got {brief(value)}")
    return pairs


def fixed(
    dims: int,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: object = False,
) -> Rule:
    """The rule of windows of one size at equal distances.

    Parameters
    ----------
    dims : int
        Pooled axes: 1, 2 or 3.
    kernel_size, stride, dilation : int or sequence of int
        One number for all axes, or one an axis. No stride means the kernel size.
    padding : int, sequence of int, sequence of (low, high), "valid" or "same"
        Any size.
    ceil_mode : bool
        Whether a last window that is cut off by the end of the input counts.

    Returns
    -------
    Rule

    Raises
    ------
    TypeError, ValueError
        With the argument named, what is accepted, and what came.
    """
    if (  # the usual call, told apart at once: a small pooling takes no longer than this function
        type(kernel_size) is type(padding) is type(dilation) is int
        and (stride is None or type(stride) is int)
        and type(ceil_mode) is bool
    ):
        step = kernel_size if stride is None else stride
        if min(kernel_size, step, padding + 1, dilation) > 0 and (
            max(kernel_size, step, padding, dilation) < TOO_MUCH
        ):
            return ((kernel_size, step, padding, padding, dilation, int(ceil_mode)),) * dims
    kernel = positive("kernel_size", kernel_size, dims)
    # PyTorch takes an empty stride for none
    unset = stride is None or (_is_sequence(stride) and not len(stride))
    strides = kernel if unset else positive("stride", stride, dims)
    dilate = positive("dilation", dilation, dims)
    pad, ceil = _padding(padding, dims), flag("ceil_mode", ceil_mode)
    return tuple(
        (k, s, lo, hi, d, int(ceil))
        for k, s, (lo, hi), d in zip(kernel, strides, pad, dilate, strict=True)
    )


def adaptive(dims: int, output_size: object) -> Rule:
    """The rule of bins that give as many outputs as asked for, whatever the size of the input.

    Parameters
    ----------
    dims : int
        Pooled axes: 1, 2 or 3.
    output_size : int, None, or sequence of them
        Outputs along each axis; None keeps the size of the input.

    Returns
    -------
    Rule
    """
    accepted = f"{_one_or_each(dims)} (None keeps the size of the input)"
    given = _plain(output_size)
    sizes = list(given) if _is_sequence(given) else [given] * dims
    if len(sizes) == 1:
        sizes *= dims
    if len(sizes) != dims:
        raise ValueError(f"output_size must be {accepted}, got {brief(output_size)}")
    outputs = [0 if s is None else _integer("output_size", s, output_size, accepted) for s in sizes]
    if any(s is not None and n < 1 for s, n in zip(sizes, outputs, strict=True)):
        raise ValueError(f"output_size must be positive, got {brief(output_size)}")
    if max(outputs) >= TOO_MUCH:
        raise ValueError(f"output_size must be less than 2**61, got {brief(output_size)}")
    return tuple((0, n, 0, 0, 1, 0) for n in outputs)


def fractional(dims: int, kernel_size: object, output_size: object) -> Rule:
    """The rule of windows of one size that give as many outputs as asked for, and begin anywhere.

    Parameters
    ----------
    dims : int
        Pooled axes: 1, 2 or 3.
    kernel_size, output_size : int or sequence of int
        Size of the windows and outputs along each axis.

    Returns
    -------
    Rule
    """
    kernel = positive("kernel_size", kernel_size, dims)
    outputs = positive("output_size", output_size, dims)
    return tuple((k, n, 0, 0, 1, FRACTIONAL) for k, n in zip(kernel, outputs, strict=True))


def whole(dims: int) -> Rule:
    """The rule of one window over everything."""
    return ((0, 1, 0, 0, 1, 0),) * dims


def grouped(numbers: Sequence[int]) -> Rule:
    """Return the rule of the numbers that a graph carries as one list, checked.

    Raises
    ------
    ValueError
        If no public function makes such a rule.
    """
    rule = tuple(tuple(numbers[a : a + 6]) for a in range(0, len(numbers), 6))
    if len(numbers) not in (6, 12, 18):
        raise ValueError(
            "rule must hold six numbers (kernel, stride, low padding, high padding, dilation, "
            f"ceil_mode) for each of 1, 2 or 3 axes, got {brief(list(numbers))}"
        )
    fractional = {axis[5] == FRACTIONAL for axis in rule}
    if len(fractional) > 1 or not all(map(_is_axis, rule)):
        raise ValueError(
            "rule must hold (kernel, stride, low padding, high padding, dilation, ceil_mode) with "
            "a positive kernel, stride and dilation, padding of at least 0 (or -1 twice for "
            '"same") and a ceil_mode of 0 or 1; (0, bins, 0, 0, 1, 0); or, on all axes, (kernel, '
            f"outputs, 0, 0, 1, 2); each number below 2**61; got {brief(list(numbers))}"
        )
    return rule


def _is_axis(axis: AxisRule) -> bool:
    """Whether these six numbers are those of some windows."""
    kernel, stride, lo, hi, dilation, ceil = axis
    if max(kernel, stride, lo, hi, dilation) >= TOO_MUCH:
        return False
    if kernel == 0:
        return stride >= 0 and axis[2:] == (0, 0, 1, 0)
    if min(kernel, stride, dilation) < 1:
        return False
    if ceil == FRACTIONAL:
        return axis[2:5] == (0, 0, 1)
    return ceil in (0, 1) and (min(lo, hi) >= 0 or lo == hi == SAME)
