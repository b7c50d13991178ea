"""What a caller says of windows, in any form, becomes a rule: plain integers, of no size of input.

All errors about such arguments live here; see docs/semantics.md for the rules.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Literal, SupportsIndex, TypeGuard

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


def _integer(name: str, value: object, shown: object) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} must be made of integers, got {shown!r}")
    return operator.index(value)


def _plain(value: object) -> object:
    """Numbers and arrays of a framework as Python's own."""
    if isinstance(value, int):  # or a compiler's symbol for one, which cannot be asked for more
        return value
    return value.tolist() if hasattr(value, "tolist") else value


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def per_axis(name: str, value: object, dims: int) -> tuple[int, ...]:
    """One integer for each of `dims` axes, from an integer or as many of them."""
    given = _plain(value)
    if isinstance(given, SupportsIndex):
        return (_integer(name, given, value),) * dims
    if not _is_sequence(given):
        raise TypeError(f"{name} must be an integer or {dims} of them, got {value!r}")
    if len(given) not in (1, dims):
        raise ValueError(f"{name} must be an integer or {dims} of them, got {value!r}")
    numbers = tuple(_integer(name, _plain(v), value) for v in given)
    return numbers if len(numbers) == dims else numbers * dims


def _padding(value: object, dims: int) -> tuple[tuple[int, int], ...]:
    """``(low, high)`` for each axis; SAME for `"same"`."""
    accepted = f'an integer, {dims} of them, {dims} pairs (low, high), "valid" or "same"'
    if isinstance(value, str):
        if value.lower() not in ("valid", "same"):
            raise ValueError(f"padding must be {accepted}, got {value!r}")
        return ((SAME, SAME) if value.lower() == "same" else (0, 0),) * dims
    pairs: tuple[tuple[int, int], ...]
    given = _plain(value)
    if _is_sequence(given) and any(_is_sequence(v) for v in given):
        ends = [v for v in given if _is_sequence(v) and len(v) == 2]
        if not len(ends) == len(given) == dims:
            raise ValueError(f"padding must be {accepted}, got {value!r}")
        pairs = tuple(
            (_integer("padding", lo, value), _integer("padding", hi, value)) for lo, hi in ends
        )
    else:
        pairs = tuple((p, p) for p in per_axis("padding", value, dims))
    if any(p < 0 for pair in pairs for p in pair):
        raise ValueError(f"padding must not be negative, got {value!r}")
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
    kernel = per_axis("kernel_size", kernel_size, dims)
    # PyTorch takes an empty stride for none
    unset = stride is None or (_is_sequence(stride) and not len(stride))
    strides = kernel if unset else per_axis("stride", stride, dims)
    dilate = per_axis("dilation", dilation, dims)
    pad = _padding(padding, dims)
    for name, numbers, shown in (
        ("kernel_size", kernel, kernel_size),
        ("stride", strides, stride),
        ("dilation", dilate, dilation),
    ):
        if min(numbers) < 1:
            raise ValueError(f"{name} must be positive, got {shown!r}")
    if not isinstance(ceil_mode, bool):
        raise TypeError(f"ceil_mode must be True or False, got {ceil_mode!r}")
    for name, numbers, shown in (
        ("kernel_size", kernel, kernel_size),
        ("stride", strides, stride),
        ("dilation", dilate, dilation),
        ("padding", tuple(p for pair in pad for p in pair), padding),
    ):
        if max(numbers) >= TOO_MUCH:
            raise ValueError(f"{name} must be less than 2**61, got {shown!r}")
    return tuple(
        (k, s, lo, hi, d, int(ceil_mode))
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
    given = _plain(output_size)
    sizes = list(given) if _is_sequence(given) else [given] * dims
    if len(sizes) == 1:
        sizes *= dims
    if len(sizes) != dims:
        raise ValueError(
            f"output_size must be an integer, None or {dims} of them, got {output_size!r}"
        )
    outputs = [0 if s is None else _integer("output_size", s, output_size) for s in sizes]
    if any(s is not None and n < 1 for s, n in zip(sizes, outputs, strict=True)):
        raise ValueError(f"output_size must be positive, got {output_size!r}")
    if max(outputs) >= TOO_MUCH:
        raise ValueError(f"output_size must be less than 2**61, got {output_size!r}")
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
    kernel = per_axis("kernel_size", kernel_size, dims)
    outputs = per_axis("output_size", output_size, dims)
    for name, numbers, shown in (
        ("kernel_size", kernel, kernel_size),
        ("output_size", outputs, output_size),
    ):
        if min(numbers) < 1:
            raise ValueError(f"{name} must be positive, got {shown!r}")
        if max(numbers) >= TOO_MUCH:
            raise ValueError(f"{name} must be less than 2**61, got {shown!r}")
    return tuple((k, n, 0, 0, 1, FRACTIONAL) for k, n in zip(kernel, outputs, strict=True))


def whole(dims: int) -> Rule:
    """The rule of one window over everything."""
    return ((0, 1, 0, 0, 1, 0),) * dims
