"""`WindowSpec`: windows as the caller describes them, before the size of the input is known."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, NamedTuple

from poolgrad.windows import arguments
from poolgrad.windows.arguments import LIMIT, Pairs

if TYPE_CHECKING:
    from poolgrad.windows.resolve import Axis


class WindowKind(IntEnum):
    """Kinds of windows along an axis."""

    FIXED = 0
    """Windows of one size at equal distances."""
    ADAPTIVE = 1
    """A given number of bins that cover the input."""
    FRACTIONAL = 2
    """Windows of one size; random samples determine where they begin."""


class WindowSpec(NamedTuple):
    """Windows along one to three axes; hashable and immutable.

    Each tuple has one entry per axis. A field that the kind does not use is empty.

    Attributes
    ----------
    kind : WindowKind
        FIXED uses `kernel_size`, `stride`, `padding`, `dilation` and `ceil_mode`; ADAPTIVE uses
        `output_size`; FRACTIONAL uses `kernel_size` and `output_size`.
    kernel_size, stride, dilation : tuple of int
        Taps of a window, distance between windows, distance between taps.
    padding : tuple of (low, high), or "same"
        Padding before and after the input. "same": the amount that makes the output size
        ``ceil(input size / stride)``.
    ceil_mode : bool
        If True, use ceil instead of floor to compute the output size, so that a last, partial
        window is kept.
    output_size : tuple of (int or None)
        Number of windows; None stands for the number of inputs.
    slices : tuple of Axis
        If not empty, only these windows are pooled, from a part of the input; see `Axis.sliced`.
    """

    kind: WindowKind
    kernel_size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: Pairs | Literal["same"] = ()
    dilation: tuple[int, ...] = ()
    ceil_mode: bool = False
    output_size: tuple[int | None, ...] = ()
    slices: tuple[Axis, ...] = ()

    @property
    def dims(self) -> int:
        """Number of pooled axes."""
        return len(self.kernel_size or self.output_size)


def fixed(
    dims: int,
    kernel_size: object,
    stride: object = None,
    padding: object = 0,
    dilation: object = 1,
    ceil_mode: object = False,
) -> WindowSpec:
    """Return the spec of windows of one size at equal distances.

    Parameters
    ----------
    dims : int
        Number of pooled axes: 1, 2 or 3.
    kernel_size, stride, dilation : int or sequence of int
        One number for all axes, or one per axis. The default stride is the kernel size.
    padding : int, sequence of int, sequence of (low, high), "valid" or "same"
        Any size.
    ceil_mode : bool
        If True, use ceil instead of floor to compute the output size, so that a last, partial
        window is kept.

    Returns
    -------
    WindowSpec

    Raises
    ------
    TypeError, ValueError
        If an argument has another form, another length than 1 or `dims`, or is out of range.
    """
    if (  # fast path of the usual call
        type(kernel_size) is type(padding) is type(dilation) is int
        and (stride is None or type(stride) is int)
        and type(ceil_mode) is bool
    ):
        step = kernel_size if stride is None else stride
        if min(kernel_size, step, padding + 1, dilation) > 0 and (
            max(kernel_size, step, padding, dilation) < LIMIT
        ):
            return WindowSpec(
                WindowKind.FIXED,
                (kernel_size,) * dims,
                (step,) * dims,
                ((padding, padding),) * dims,
                (dilation,) * dims,
                ceil_mode,
            )
    kernel = arguments.positive("kernel_size", kernel_size, dims)
    # PyTorch treats an empty stride as None
    unset = stride is None or (arguments.is_sequence(stride) and not len(stride))
    strides = kernel if unset else arguments.positive("stride", stride, dims)
    dilations = arguments.positive("dilation", dilation, dims)
    pairs = arguments.padding_pairs(padding, dims)
    ceil = arguments.flag("ceil_mode", ceil_mode)
    return WindowSpec(WindowKind.FIXED, kernel, strides, pairs, dilations, ceil)


def adaptive(dims: int, output_size: object) -> WindowSpec:
    """Return the spec of a given number of bins, for inputs of any size.

    Parameters
    ----------
    dims : int
        Number of pooled axes: 1, 2 or 3.
    output_size : int, None, or sequence of them
        Number of outputs along each axis; None keeps the size of the input.

    Returns
    -------
    WindowSpec

    Raises
    ------
    TypeError, ValueError
        If `output_size` has another form, or a number is not positive or too large.
    """
    accepted = f"{arguments.one_or_each(dims)} (None keeps the size of the input)"
    outputs = arguments.positive("output_size", output_size, dims, accepted, optional=True)
    return WindowSpec(WindowKind.ADAPTIVE, output_size=outputs)


def fractional(dims: int, kernel_size: object, output_size: object) -> WindowSpec:
    """Return the spec of a given number of windows, whose positions depend on random samples.

    Parameters
    ----------
    dims : int
        Number of pooled axes: 1, 2 or 3.
    kernel_size, output_size : int or sequence of int
        Size of the windows, and number of outputs along each axis.

    Returns
    -------
    WindowSpec

    Raises
    ------
    TypeError, ValueError
        If an argument does not consist of positive integers.
    """
    kernel = arguments.positive("kernel_size", kernel_size, dims)
    outputs = arguments.positive("output_size", output_size, dims)
    return WindowSpec(WindowKind.FRACTIONAL, kernel, output_size=outputs)


def whole(dims: int) -> WindowSpec:
    """Return the spec of one window over the whole input."""
    return adaptive(dims, 1)


# A spec as a flat list of integers, because PyTorch's custom operators support nothing else.
# [kind, same padding (0 or 1), ceil_mode (0 or 1), then the kind's numbers, each for every axis].

_COUNTS = {WindowKind.FIXED: 5, WindowKind.ADAPTIVE: 1, WindowKind.FRACTIONAL: 2}
_AS_MANY_AS_INPUTS = 0  # stands for None


def flatten(spec: WindowSpec) -> list[int]:
    """Flatten the spec to a list of integers; `unflatten` rebuilds it."""
    same = spec.padding == "same"
    pairs = ((0, 0),) * spec.dims if spec.padding == "same" else spec.padding
    numbers = [int(spec.kind), int(same), int(spec.ceil_mode), *spec.kernel_size, *spec.stride]
    if spec.kind is WindowKind.FIXED:
        numbers += [*(low for low, _ in pairs), *(high for _, high in pairs)]
    outputs = [_AS_MANY_AS_INPUTS if n is None else n for n in spec.output_size]
    return [*numbers, *spec.dilation, *outputs]


def unflatten(numbers: Sequence[int]) -> WindowSpec:
    """Rebuild the spec from the integers of `flatten`, checked.

    Raises
    ------
    ValueError
        If no spec has this form. Direct calls of a custom operator may pass any integers.
    """
    try:
        spec = _rebuilt(*numbers)
        if spec.dims <= 3 and flatten(spec) == [*numbers]:
            return spec
    except (TypeError, ValueError):
        pass  # numbers that the constructors refuse; others they would change, such as a stride
    raise ValueError(
        "window must hold a kind (0 fixed, 1 adaptive, 2 fractional), same padding and "
        "ceil_mode (0 or 1 each), then for each of 1, 2 or 3 axes kernel sizes, strides, low "
        "padding, high padding and dilations (fixed), output sizes, 0 for that of the input "
        "(adaptive), or kernel sizes and output sizes (fractional), each number "
        f"below 2**61; got {arguments.brief(list(numbers))}"
    )


def _rebuilt(kind: int, same: int, ceil: int, *rest: int) -> WindowSpec:
    dims = len(rest) // _COUNTS[WindowKind(kind)]
    first, *others = (rest[k : k + dims] for k in range(0, len(rest), dims))
    if kind == WindowKind.ADAPTIVE:
        return adaptive(dims, [None if n == _AS_MANY_AS_INPUTS else n for n in first])
    if kind == WindowKind.FRACTIONAL:
        return fractional(dims, first, *others)
    stride, low, high, dilation = others
    padding = "same" if same else list(zip(low, high, strict=True))
    return fixed(dims, first, stride, padding, dilation, bool(ceil))
