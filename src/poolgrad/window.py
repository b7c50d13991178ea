"""Where the outputs look: a rule and the size of the input become a `Window`.

All shape rules and all errors about geometry live here, and every front end calls them; see
docs/semantics.md for the rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from poolgrad.rule import FRACTIONAL, PART, SAME, TOO_MUCH, AxisRule, Rule

_INT64_MAX = 2**63 - 1
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
    if reach >= TOO_MUCH:
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
