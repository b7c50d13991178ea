"""Where the outputs look: a rule and the size of the input become a `Window`.

All shape rules and all errors about geometry live here, and every front end calls them; see
docs/semantics.md for the rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from poolgrad.rule import FRACTIONAL, SAME, TOO_MUCH, AxisRule, Rule

_INT64_MAX = 2**63 - 1
_MAX_PLACES = 2**32 - 2  # routes have at most four bytes, and one value means "nowhere"


class Part(NamedTuple):
    """Some windows of more, over some inputs of more.

    They are pooled as all of them are: numbers are added in the same order.

    Attributes
    ----------
    first, before : int
        The number of the first window, and of the first input.
    outputs, inputs : int
        How many windows and inputs there are.
    """

    first: int
    before: int
    outputs: int
    inputs: int


class Axis(NamedTuple):
    """Windows along one axis of known size.

    Output ``o`` looks at the inputs ``o * stride - lo + k * dilation`` for ``k < kernel``; if
    `adaptive`, at bin ``o``, of those from ``floor(o * size / stride)`` to ``ceil((o + 1) * size /
    stride)``, at most `kernel` of them; if `table`, at the `kernel` inputs from where a table says,
    which differs from plane to plane. If it is a `part`, bins are those of the whole.
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
    part: Part | None = None

    @property
    def whole(self) -> Part:
        """What it is a part of: itself, if of nothing else."""
        return self.part or Part(0, 0, self.out, self.size)

    def bins(self, outputs: Any) -> tuple[Any, Any]:
        """First and last (exclusive) input of an adaptive bin, or of an array of them."""
        first, before, _, n = self.whole
        begin, end = (outputs + first) * n, (outputs + first + 1) * n
        return begin // self.stride - before, -(-end // self.stride) - before

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


def _adaptive_axis(name: str, size: int, out: int) -> Axis:
    if size * out > _INT64_MAX // 2:
        raise ValueError(
            f"output_size asks for {out} outputs along the {name}, more than fit memory"
        )
    if size % out == 0:
        return Axis(size, out, size // out, size // out)
    # Bins begin at multiples of gcd / out: the widest reaches into one input more than most.
    widest = size // out + (2 if size % out > math.gcd(size, out) else 1)
    return Axis(size, out, widest, out, adaptive=True)


def _fractional_axis(name: str, size: int, kernel: int, out: int) -> Axis:
    if kernel + out - 1 > size:
        raise ValueError(
            f"kernel_size {kernel} and output_size {out} need {kernel + out - 1} inputs along the "
            f"{name}, got {size}"
        )
    return Axis(size, out, kernel, table=True)


def _axis(name: str, rule: AxisRule, size: int) -> Axis:
    if len(rule) > 6:
        return _part(name, rule, size)
    kernel, stride, lo, hi, dilation, ceil = rule
    if size < 1:
        raise ValueError(f"the {name} of the input must be positive to be pooled, got {size}")
    if kernel == 0:
        return _adaptive_axis(name, size, stride or size)
    if ceil == FRACTIONAL:
        return _fractional_axis(name, size, kernel, stride)
    reach = (kernel - 1) * dilation + 1
    if reach >= TOO_MUCH:
        raise ValueError(f"kernel_size and dilation span {reach} inputs along the {name}, too many")
    if lo == SAME:
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        lo, hi = total // 2, total - total // 2
    span = size + lo + hi - reach
    out = (-(-span // stride) if ceil else span // stride) + 1
    if ceil:  # a window must begin inside the input or its low padding
        out = min(out, (size + lo - 1) // stride + 1)
    if out < 1:
        spans = f" with dilation {dilation} spans {reach} inputs and" if dilation > 1 else ""
        padded = f" and padding ({lo}, {hi})" if lo or hi else ""
        raise ValueError(
            f"kernel_size {kernel}{spans} is larger than x, which has size {size} along the {name}"
            f"{padded}"
        )
    # A stride beyond the padded input is as good as one that just leaves it.
    return Axis(size, out, kernel, min(stride, size + lo + hi), lo, hi, dilation)


def _part(name: str, rule: AxisRule, size: int) -> Axis:
    first, count, before, after = rule[6:]
    every = _axis(name, rule[:6], before + size + after)
    part = Part(first, before, every.out, every.size)
    if every.adaptive:
        return every._replace(size=size, out=count, part=part)
    lo, hi = max(every.lo - first * every.stride, 0), 0 if after else every.hi
    return every._replace(size=size, out=count, lo=lo, hi=hi, part=part)


AXIS_NAMES = ("depth", "height", "width")


def axis_names(dims: int) -> tuple[str, ...]:
    """What the pooled axes are called in messages."""
    return ("length",) if dims == 1 else AXIS_NAMES[3 - dims :]


def resolve(rule: Rule, sizes: tuple[int, ...]) -> Window:
    """The windows that a rule makes of an input.

    Parameters
    ----------
    rule : Rule
        From `fixed`, `adaptive`, `fractional` or `whole`, or of a part of those windows.
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
