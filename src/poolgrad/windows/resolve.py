"""Resolves a `WindowSpec` against the size of an input: `Window`, one `Axis` per pooled axis.

All shape rules and all errors about geometry are in this file; docs/semantics.md states the rules.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from poolgrad.windows.arguments import LIMIT
from poolgrad.windows.spec import WindowKind, WindowSpec

_INT64_MAX = 2**63 - 1
_MAX_TAPS = 2**32 - 2  # routes have at most four bytes, and one value means "no winner"


class Origin(NamedTuple):
    """Position of a slice of windows in the whole axis.

    Pooling a slice adds numbers in the same order as pooling the whole axis.

    Attributes
    ----------
    first, before : int
        Index of the first window, and of the first input.
    outputs, inputs : int
        Number of windows and inputs of the whole axis.
    """

    first: int
    before: int
    outputs: int
    inputs: int


class Axis(NamedTuple):
    """Windows along one axis of known size.

    A fixed window ``o`` contains the inputs ``o * stride - lo + k * dilation`` for
    ``k < kernel``. An adaptive one contains those from ``floor(o * size / bins)`` to
    ``ceil((o + 1) * size / bins)``, at most `kernel` of them; the bins of a slice are those of the
    whole axis. A fractional one contains `kernel` inputs; its start differs from plane to plane.
    """

    size: int
    out: int
    kernel: int
    stride: int = 1
    lo: int = 0
    hi: int = 0
    dilation: int = 1
    kind: WindowKind = WindowKind.FIXED
    slice_of: Origin | None = None

    @property
    def adaptive(self) -> bool:
        """Whether the windows are bins of different sizes."""
        return self.kind is WindowKind.ADAPTIVE

    @property
    def fractional(self) -> bool:
        """Whether random samples determine where the windows begin."""
        return self.kind is WindowKind.FRACTIONAL

    @property
    def stride_or_bins(self) -> int:
        """The stride, or the number of bins of an adaptive axis: one number for the kernels."""
        return self.origin.outputs if self.adaptive else self.stride

    @property
    def origin(self) -> Origin:
        """Position of these windows in the whole axis, which may be this axis."""
        return self.slice_of or Origin(0, 0, self.out, self.size)

    def bins(self, outputs: Any) -> tuple[Any, Any]:
        """Return first and last (exclusive) input of an adaptive bin, or of an array of bins."""
        first, before, bins, n = self.origin
        begin, end = (outputs + first) * n, (outputs + first + 1) * n
        return begin // bins - before, -(-end // bins) - before

    def sliced(self, outputs: tuple[int, int], inputs: tuple[int, int]) -> Axis:
        """Return a part of the windows, as windows of a part of the inputs."""
        (first, stop), (begin, end) = outputs, inputs
        origin = Origin(first, begin, self.out, self.size)
        lo, hi = max(self.lo - first * self.stride, 0), self.hi if end == self.size else 0
        size, out = end - begin, stop - first
        return self._replace(size=size, out=out, lo=lo, hi=hi, slice_of=origin)

    def taps(self, output: int) -> list[tuple[int, int]]:
        """Return ``(tap, input)`` for every valid input of one window, in order."""
        if self.fractional:
            raise ValueError("the positions of fractional windows differ from plane to plane")
        if self.adaptive:
            return list(enumerate(range(*self.bins(output))))
        start = output * self.stride - self.lo
        inputs = ((k, start + k * self.dilation) for k in range(self.kernel))
        return [(k, i) for k, i in inputs if 0 <= i < self.size]


@dataclass(frozen=True)
class Window:
    """The windows of one input: one `Axis` for each pooled axis.

    Parameters
    ----------
    axes : tuple of Axis
        The pooled axes: depth, height, width, or the last of these.
    """

    axes: tuple[Axis, ...]

    @property
    def out(self) -> tuple[int, ...]:
        """Outputs along each pooled axis."""
        return tuple(map(attrgetter("out"), self.axes))

    @property
    def kernel(self) -> tuple[int, ...]:
        """Taps of a window along each pooled axis."""
        return tuple(map(attrgetter("kernel"), self.axes))

    @property
    def fractional(self) -> bool:
        """Whether random samples determine where the windows begin."""
        return any(a.fractional for a in self.axes)

    @property
    def tap_count(self) -> int:
        """Taps of a window; a route is a number below this."""
        return math.prod(self.kernel)


def _adaptive_axis(name: str, size: int, out: int) -> Axis:
    if size * out > _INT64_MAX // 2:
        raise ValueError(f"output_size of {out} along the {name} would overflow memory")
    if size % out == 0:
        return Axis(size, out, size // out, size // out)
    # Bins begin at multiples of gcd / out, so that the widest covers one input more than most.
    widest = size // out + (2 if size % out > math.gcd(size, out) else 1)
    return Axis(size, out, widest, kind=WindowKind.ADAPTIVE)


def _fractional_axis(name: str, size: int, kernel: int, out: int) -> Axis:
    if kernel + out - 1 > size:
        raise ValueError(
            f"kernel_size {kernel} and output_size {out} need {kernel + out - 1} inputs along the "
            f"{name}, got {size}"
        )
    return Axis(size, out, kernel, kind=WindowKind.FRACTIONAL)


def _axis(name: str, spec: WindowSpec, a: int, size: int) -> Axis:
    """Return the windows along axis `a` of the spec; `name` is its name in errors."""
    if size < 1:
        raise ValueError(f"the {name} of the input must be positive, got {size}")
    if spec.kind is WindowKind.FIXED:
        return _fixed_axis(name, spec, a, size)
    out = spec.output_size[a] or size
    if spec.kind is WindowKind.FRACTIONAL:
        return _fractional_axis(name, size, spec.kernel_size[a], out)
    return _adaptive_axis(name, size, out)


def _fixed_axis(name: str, spec: WindowSpec, a: int, size: int) -> Axis:
    kernel, stride, dilation = spec.kernel_size[a], spec.stride[a], spec.dilation[a]
    reach = (kernel - 1) * dilation + 1
    if reach >= LIMIT:
        raise ValueError(f"kernel_size and dilation span too many inputs along the {name}: {reach}")
    if spec.padding == "same":
        total = max((-(-size // stride) - 1) * stride + reach - size, 0)
        lo, hi = total // 2, total - total // 2
    else:
        lo, hi = spec.padding[a]
    span = size + lo + hi - reach
    out = (-(-span // stride) if spec.ceil_mode else span // stride) + 1
    if spec.ceil_mode:  # a window must begin inside the input or its low padding
        out = min(out, (size + lo - 1) // stride + 1)
    if out < 1:
        spans = f" with dilation {dilation} spans {reach} inputs and" if dilation > 1 else ""
        padded = f" and padding ({lo}, {hi})" if lo or hi else ""
        raise ValueError(
            f"kernel_size {kernel}{spans} is larger than x, which has size {size} along the {name}"
            f"{padded}"
        )
    # A larger stride than the padded input is equivalent to one of its size.
    return Axis(size, out, kernel, min(stride, size + lo + hi), lo, hi, dilation)


AXIS_NAMES = ("depth", "height", "width")


def axis_names(dims: int) -> tuple[str, ...]:
    """Return the names of the pooled axes in messages."""
    return ("length",) if dims == 1 else AXIS_NAMES[3 - dims :]


def resolve(spec: WindowSpec, sizes: tuple[int, ...]) -> Window:
    """Return the windows of an input of these sizes.

    Parameters
    ----------
    spec : WindowSpec
        The windows.
    sizes : tuple of int
        Size of the input along each pooled axis; symbolic integers are accepted.

    Returns
    -------
    Window

    Raises
    ------
    ValueError
        If an output would be empty or overflow memory.
    """
    if spec.slices:
        return Window(spec.slices)
    numbered = enumerate(zip(axis_names(spec.dims), sizes, strict=True))
    window = Window(tuple(_axis(name, spec, a, size) for a, (name, size) in numbered))
    if window.tap_count > _MAX_TAPS:
        raise ValueError(
            f"kernel_size {window.kernel} has {window.tap_count} taps, "
            f"at most {_MAX_TAPS} are supported"
        )
    if math.prod(window.out) > _INT64_MAX // 8:
        raise ValueError(f"an output of {window.out} would overflow memory")
    return window


def require_valid_inputs(window: Window) -> None:
    """Raise an error unless every window contains at least one input.

    Raises
    ------
    ValueError
        If a window contains padding only; the axis is named.
    """
    for name, axis in zip(axis_names(len(window.axes)), window.axes, strict=True):
        empty = _window_without_input(axis)
        if empty is not None:
            raise ValueError(
                f"padding leaves window {empty} along the {name} without any input: "
                "there is nothing to pool there"
            )


def has_empty_windows(window: Window) -> bool:
    """Whether some window contains padding only."""
    return any(_window_without_input(axis) is not None for axis in window.axes)


def _window_without_input(axis: Axis) -> int | None:
    if axis.kind is not WindowKind.FIXED:
        return None
    if axis.lo > (axis.kernel - 1) * axis.dilation:
        return 0
    if (axis.out - 1) * axis.stride - axis.lo >= axis.size:
        return axis.out - 1
    if axis.dilation > axis.size:  # taps may skip the input
        return next((o for o in range(axis.out) if not axis.taps(o)), None)
    return None
