"""`Layout`: the windows of an input, and the memory formats of the arrays of a call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from poolgrad.windows.resolve import Window, axis_names, resolve
from poolgrad.windows.spec import WindowKind, WindowSpec

_MAX_ELEMENTS = (2**63 - 1) // 8


@dataclass(frozen=True, slots=True)
class Layout:
    """The windows of an input, and the memory layout of the arrays that the kernels write.

    Attributes
    ----------
    window : Window
        The windows.
    in_shape, out_shape : tuple of int
        Shapes, in the caller's order of axes.
    order : tuple of int
        The axes from the slowest to the fastest in memory, which is the memory format of the input.
    pooled : tuple of int
        The pooled axes.
    channel : int
        The axis of channels; -1 if there is none.
    dtype, out_dtype : str
        Dtypes of the input and of the output.
    """

    window: Window
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    order: tuple[int, ...]
    pooled: tuple[int, ...]
    channel: int
    dtype: str
    out_dtype: str

    @property
    def sum_dtype(self) -> str:
        """Dtype of sums over a window."""
        wide = ("float64", "int32", "uint32", "int64")
        return "float64" if self.dtype in wide else "float32"

    @property
    def channels(self) -> int:
        """Number of channels: the length of a learned argument with one number for each channel."""
        return self.in_shape[self.channel] if self.channel >= 0 else 1

    @property
    def route_dtype(self) -> str:
        """Dtype of routes, which holds every tap index and one more value, for "no winner"."""
        taps = self.window.tap_count
        return "uint8" if taps <= 255 else "uint16" if taps <= 65535 else "uint32"


@lru_cache(maxsize=4096)
def inner_axis(
    shape: tuple[int, ...], strides: tuple[int, ...], spec: WindowSpec, channels_last: bool
) -> int:
    """Return the axis that is not pooled and lies innermost in memory; -1 if there is none.

    It determines the memory format of outputs and gradients: this axis stays innermost, and all
    other axes are in row-major order.
    """
    dims = spec.dims
    first = len(shape) - dims - channels_last
    if first < 0:
        return -1  # too few axes: `first_pooled` raises the error
    if spec.kind is WindowKind.FRACTIONAL:
        return -1  # each channel has its own windows, so channels are not pooled together
    strides = (*map(abs, strides),)  # an axis in reverse order has the same place in memory
    if shape[-1] > 1 and strides[-1] == 0:  # broadcast: the same format as its copy
        return len(shape) - 1 if channels_last else -1
    if shape[first + dims - 1] > 1 and strides[first + dims - 1] == 1:
        return -1
    batch = [*range(first), *range(first + dims, len(shape))]
    inner = [a for a in batch if shape[a] > 1 and strides[a] == 1]
    if not inner:  # a slice along the innermost axis still has the smallest stride
        steps = {a: s for a, s in enumerate(strides) if shape[a] > 1 and s > 0}
        least = min(steps.values(), default=0)
        inner = [a for a in batch if steps.get(a) == least]
    # If the pooled axes have size one, an array with channels last has the same strides as a
    # contiguous one, and counts as contiguous.
    if not inner or (inner[-1] < first and _in_order(shape, strides, strides[inner[-1]])):
        return -1
    return int(inner[-1])


def _in_order(shape: tuple[int, ...], strides: tuple[int, ...], least: int) -> bool:
    """Whether the array is contiguous, except for a stride of `least` along the last axis."""
    expected = least
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def first_pooled(shape: tuple[int, ...], dims: int, channels_last: bool) -> int:
    """Return the first pooled axis of an input of this shape.

    Raises
    ------
    ValueError
        If the input has too few axes.
    """
    first = len(shape) - dims - channels_last
    if first < 0:
        axes = [*axis_names(dims), *(["channels"] if channels_last else [])]
        count = "1 axis" if len(axes) == 1 else f"{len(axes)} axes"
        order = " with channels_last=True" if channels_last else ""
        raise ValueError(
            f"x must have at least {count} ({', '.join(axes)}){order}, got shape {shape}"
        )
    return first


def lay_out(
    spec: WindowSpec,
    shape: tuple[int, ...],
    channels_last: bool,
    inner: int,
    dtype: str,
    out_dtype: str,
) -> Layout:
    """Compute the layout for an input of this shape and memory format.

    Parameters
    ----------
    spec : WindowSpec
        The windows.
    shape : tuple of int
        Shape of the input, whose sizes may be symbolic integers of a framework.
    channels_last : bool
        Whether the pooled axes are those before the last axis, rather than the last axes.
    inner : int
        The result of `inner_axis` for the input.
    dtype, out_dtype : str
        Dtypes of the input and of the output.

    Returns
    -------
    Layout

    Raises
    ------
    ValueError
        If the input has too few axes, the windows do not fit the input, or `inner` is pooled.
    """
    dims = spec.dims
    first = first_pooled(shape, dims, channels_last)
    window = resolve(spec, shape[first : first + dims])
    out_shape = shape[:first] + window.out + shape[first + dims :]
    known = [size for size in out_shape if isinstance(size, int)]  # symbolic sizes are skipped
    if math.prod(known) > _MAX_ELEMENTS:
        raise ValueError(f"an output of shape {out_shape} would overflow memory")
    pooled = tuple(range(first, first + dims))
    if inner != -1 and (inner in pooled or not 0 <= inner < len(shape)):
        raise ValueError(f"inner must be -1 or an axis that is not pooled, got {inner}")
    outer = tuple(a for a in range(len(shape)) if a not in pooled and a != inner)
    order = outer + pooled + (() if inner < 0 else (inner,))
    channel = len(shape) - 1 if channels_last else first - 1
    return Layout(window, shape, out_shape, order, pooled, channel, dtype, out_dtype)
