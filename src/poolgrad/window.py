"""Where the outputs look: every form of argument becomes a `Window`.

All shape rules and all errors about geometry live here, and every front end calls them; see
docs/semantics.md for the rules.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, SupportsIndex, TypeGuard

Ints = int | Sequence[int]
Padding = int | Sequence[int] | Sequence[tuple[int, int]] | Literal["valid", "same"]

# One axis of windows, before the size of the input is known: (kernel, stride, lo, hi, dilation,
# ceil). SAME as padding stands for "what makes out = ceil(in / stride)"; a kernel of 0 for adaptive
# bins, their number in the place of the stride (0: as many as there are inputs); a ceil of
# FRACTIONAL for windows that begin where a table says, their number there, too. n * PART added to
# ceil stands for the windows from number n - 1 on, of more: `lo` is what pads the first of all, and
# a hi of -m stands for m inputs after these; of bins, lo and hi are the inputs around these, and
# the kernel is minus their number. Plain integers, so that any framework can carry them through its
# graphs.
AxisRule = tuple[int, int, int, int, int, int]
Rule = tuple[AxisRule, ...]
SAME = -1
FRACTIONAL = 2
PART = 4

_INT64_MAX = 2**63 - 1
_TOO_MUCH = 2**61  # for one number: sums and products of a few still fit
_MAX_PLACES = 2**32 - 2  # routes have at most four bytes, and one value means "nowhere"


class Axis(NamedTuple):
    """Windows along one axis of known size.

    Output ``o`` looks at the inputs ``o * stride - lo + k * dilation`` for ``k < kernel``; if
    `adaptive`, at those of a bin; if `table`, at the `kernel` inputs from where a table says, which
    differs from plane to plane. There are `stride` bins, of at most `kernel` inputs; bin ``b``
    holds those from ``floor(b * n / stride)`` to ``ceil((b + 1) * n / stride)`` of ``n = lo + size
    + hi``, of which the axis has all but the first `lo` and the last `hi`. If `part` is not 0,
    output 0 is number ``part - 1`` of more; `before` and `after` inputs lie around these.
    """

    size: int
    out: int
    kernel: int
    stride: int = 1
    lo: int = 0
    hi: int = 0
    dilation: int = 1
    adaptive: bool = False
    table: bool = False
    part: int = 0
    before: int = 0
    after: int = 0

    def bins(self, outputs: Any) -> tuple[Any, Any]:
        """First and last (exclusive) input of an adaptive bin, or of an array of them."""
        n, number = self.lo + self.size + self.hi, outputs + max(self.part - 1, 0)
        return number * n // self.stride - self.lo, -(-(number + 1) * n // self.stride) - self.lo

    def places(self, output: int) -> list[tuple[int, int]]:
        """``(place in the window, input)`` for every real input of one window, in order."""
        if self.table:
            raise ValueError("where fractional windows begin differs from plane to plane")
        if self.adaptive:
            return list(enumerate(range(*self.bins(output))))
        start = output * self.stride - self.lo
        inputs = ((k, start + k * self.dilation) for k in range(self.kernel))
        return [(k, i) for k, i in inputs if 0 <= i < self.size]

    def extent(self, output: int) -> int:
        """How many places of one window lie inside the padded input."""
        if self.adaptive:
            return len(self.places(output))
        start = output * self.stride - self.lo
        end = self.size + self.hi
        return sum(start + k * self.dilation < end for k in range(self.kernel))


@dataclass(frozen=True)
class Window:
    """The windows of one input: one `Axis` for each pooled axis.

    Parameters
    ----------
    axes : tuple of Axis
        Depth, height, width, as many as are pooled.
    """

    axes: tuple[Axis, ...]

    @property
    def out(self) -> tuple[int, ...]:
        """Outputs along each pooled axis."""
        return tuple(a.out for a in self.axes)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Places of a window along each pooled axis."""
        return tuple(a.kernel for a in self.axes)

    @property
    def placed(self) -> bool:
        """Whether samples place the windows."""
        return any(a.table for a in self.axes)

    @property
    def places(self) -> int:
        """Places of a window; a route is a number below this."""
        return math.prod(self.kernel)


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
            max(kernel_size, step, padding, dilation) < _TOO_MUCH
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
        if max(numbers) >= _TOO_MUCH:
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
    if max(outputs) >= _TOO_MUCH:
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
        if max(numbers) >= _TOO_MUCH:
            raise ValueError(f"{name} must be less than 2**61, got {shown!r}")
    return tuple((k, n, 0, 0, 1, FRACTIONAL) for k, n in zip(kernel, outputs, strict=True))


def whole(dims: int) -> Rule:
    """The rule of one window over everything."""
    return ((0, 1, 0, 0, 1, 0),) * dims


def _adaptive_axis(name: str, rule: AxisRule, size: int) -> Axis:
    count, number, lo, hi, _, mode = rule
    n = lo + size + hi
    bins = number or n
    if n * bins > _INT64_MAX // 2:
        raise ValueError(
            f"output_size asks for {bins} outputs along the {name}, more than fit memory"
        )
    if n % bins == 0:
        return Axis(size, bins, n // bins, n // bins)
    # Bins begin at multiples of gcd / bins: the widest reaches into one input more than most.
    widest = n // bins + (2 if n % bins > math.gcd(n, bins) else 1)
    if count == 0:
        return Axis(size, bins, widest, bins, adaptive=True)
    part = mode // PART
    return Axis(size, -count, widest, bins, lo, hi, adaptive=True, part=part, before=lo, after=hi)


def _fractional_axis(name: str, size: int, kernel: int, out: int) -> Axis:
    if kernel + out - 1 > size:
        raise ValueError(
            f"kernel_size {kernel} and output_size {out} need {kernel + out - 1} inputs along the "
            f"{name}, got {size}"
        )
    return Axis(size, out, kernel, table=True)


def _axis(name: str, rule: AxisRule, size: int) -> Axis:
    kernel, stride, lo, hi, dilation, mode = rule
    part, ceil = divmod(mode, PART)
    if size < 1:
        raise ValueError(f"the {name} of the input must be positive to be pooled, got {size}")
    if kernel <= 0:
        return _adaptive_axis(name, rule, size)
    if ceil == FRACTIONAL:
        return _fractional_axis(name, size, kernel, stride)
    reach = (kernel - 1) * dilation + 1
    if reach >= _TOO_MUCH:
        raise ValueError(f"kernel_size and dilation span {reach} inputs along the {name}, too many")
    if lo == SAME:
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        lo, hi = total // 2, total - total // 2
    ahead = max(part - 1, 0) * stride - lo  # where the first window begins
    before, lo = max(ahead, 0), max(-ahead, 0)
    after, hi = max(-hi, 0), max(hi, 0)
    span = size + lo + hi - reach
    out = (-(-span // stride) if ceil else span // stride) + 1
    if ceil:  # a window must begin inside the input or its low padding
        out = min(out, (size + lo - 1) // stride + 1)
    if out < 1:
        raise ValueError(
            f"kernel_size {kernel} with dilation {dilation} spans {reach} inputs, more than the "
            f"{size} along the {name} with padding ({lo}, {hi}): the output would be empty"
        )
    # A stride beyond the padded input is as good as one that just leaves it.
    step = stride if part else min(stride, size + lo + hi)
    return Axis(size, out, kernel, step, lo, hi, dilation, False, False, part, before, after)


AXIS_NAMES = ("depth", "height", "width")


def axis_names(dims: int) -> tuple[str, ...]:
    """What the pooled axes are called in messages."""
    return ("length",) if dims == 1 else AXIS_NAMES[3 - dims :]


def resolve(rule: Rule, sizes: tuple[int, ...]) -> Window:
    """The windows that a rule makes of an input.

    Parameters
    ----------
    rule : Rule
        From `fixed`, `adaptive`, `fractional` or `whole`.
    sizes : tuple of int
        Size of the input along each pooled axis.

    Returns
    -------
    Window

    Raises
    ------
    ValueError
        If an output would be empty or not fit any memory.
    """
    names = axis_names(len(rule))
    axes = tuple(_axis(n, r, s) for n, r, s in zip(names, rule, sizes, strict=True))
    window = Window(axes)
    if window.places > _MAX_PLACES:
        raise ValueError(
            f"kernel_size {window.kernel} has {window.places} places, "
            f"at most {_MAX_PLACES} are supported"
        )
    if math.prod(window.out) > _INT64_MAX // 8:
        raise ValueError(f"an output of {window.out} would overflow memory")
    return window


def require_real_inputs(window: Window) -> None:
    """Refuse windows that hold padding only.

    Raises
    ------
    ValueError
        If there is one; the axis is named.
    """
    for name, axis in zip(axis_names(len(window.axes)), window.axes, strict=True):
        empty = _window_without_input(axis)
        if empty is not None:
            raise ValueError(
                f"padding leaves window {empty} along the {name} without any input: "
                "there is nothing to pool there"
            )


def has_empty_windows(window: Window) -> bool:
    """Whether some window holds padding only."""
    return any(_window_without_input(axis) is not None for axis in window.axes)


def _window_without_input(axis: Axis) -> int | None:
    if axis.adaptive or axis.table:
        return None
    if axis.lo > (axis.kernel - 1) * axis.dilation:
        return 0
    if (axis.out - 1) * axis.stride - axis.lo >= axis.size:
        return axis.out - 1
    if axis.dilation > axis.size:  # places may step over the input
        return next((o for o in range(axis.out) if not axis.places(o)), None)
    return None
