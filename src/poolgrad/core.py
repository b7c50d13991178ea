"""The typed door to the compiled kernels.

A `Plan` knows the windows, the layout of everything that the kernels write, and the kernels;
`operators.prepare` remembers it for each set of arguments, shapes and memory formats.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from poolgrad.windows import Axis, Window, WindowKind, WindowSpec, axis_names, resolve

try:
    from poolgrad import _kernels
except ImportError as error:  # pragma: no cover - only in a broken installation
    raise ImportError(
        "poolgrad's compiled kernels are missing or do not load on this machine "
        f"({error}). Install a wheel, or build them with: pip install . "
        "(in a checkout, not with src/ on the path alone)"
    ) from error

# A result of so many bytes or more lies in memory that is used again.
LARGE = 1 << 20
Memory = _kernels.Memory
Kind = _kernels.Kind
Regions = _kernels.Regions
Steps = _kernels.Steps

_MOST_THREADS = 4096
_MOST_ELEMENTS = (2**63 - 1) // 8


def instruction_set() -> str:
    """The instruction set whose kernels are in use, such as ``"avx512"``.

    The best that the machine has, or the one named by the environment variable ``POOLGRAD_ISA``.
    """
    return str(_kernels.instruction_set())


def instruction_sets() -> list[str]:
    """The instruction sets that this machine can run, best first."""
    return list(_kernels.instruction_sets())


def _default_threads() -> int:
    for name in ("POOLGRAD_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "").strip()
        if value:
            if not value.isdigit() or not 1 <= int(value) <= _MOST_THREADS:
                if name == "OMP_NUM_THREADS":  # may be a list for nested regions: not ours
                    continue
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
            return int(value)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_threads: int | None = None


def get_num_threads() -> int:
    """How many threads NumPy arrays are pooled with.

    ``POOLGRAD_NUM_THREADS``, else ``OMP_NUM_THREADS``, else the processors this process may use.
    Tensors are pooled with as many threads as their framework was told to use.
    """
    global _threads
    if _threads is None:
        _threads = _default_threads()
    return _threads


def set_num_threads(threads: int) -> None:
    """Set how many threads NumPy arrays are pooled with. The results do not depend on it.

    Raises
    ------
    ValueError
        If `threads` is not a positive integer.
    """
    global _threads
    whole = isinstance(threads, int) and not isinstance(threads, bool)
    if not whole or not 1 <= threads <= _MOST_THREADS:
        raise ValueError(f"threads must be an integer from 1 to {_MOST_THREADS}, got {threads!r}")
    _threads = threads


def share_threads(library: str) -> bool:
    """Let a framework's own threads do the work: they are awake, and would be in the way of others.

    Parameters
    ----------
    library : str
        The path of a library of the framework, which is loaded and uses OpenMP.

    Returns
    -------
    bool
        False if it has no such threads.
    """
    return bool(_kernels.share_threads(library))


def xla_handler() -> Any:
    """The handlers of XLA's stages, in capsules; None where they were built without XLA."""
    return _kernels.xla_handler()


def _bytes_set(name: str) -> int | None:
    value = os.environ.get(name, "").strip()
    if not value:
        return None
    if not (value.isascii() and value.isdecimal()) or int(value) >= 2**63:
        raise ValueError(f"{name} must be a number of bytes, got {value!r}")
    return int(value)


def _cache_limit() -> int:
    given = _bytes_set("POOLGRAD_CACHE_BYTES")
    if given is not None:
        return given
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # a system that does not say
        return 1 << 30
    return min(1 << 30, memory // 8)


_kernels.limit_cache(_cache_limit())
if (_streamed := _bytes_set("POOLGRAD_STREAM_BYTES")) is not None:
    _kernels.limit_streams(_streamed)


def empty_cache() -> None:
    """Give the memory of large results that are gone back to the system.

    Results of a mebibyte or more lie in memory that the next ones use again, as fresh memory costs
    more time than most poolings. At most ``POOLGRAD_CACHE_BYTES`` (an environment variable; a
    gibibyte, or an eighth of the machine's memory if that is less) wait to be used again.
    """
    _kernels.empty_cache()


def cache_use() -> tuple[int, int]:
    """Bytes of memory in large results, and bytes that wait for the next."""
    used, kept = _kernels.cache_use()
    return int(used), int(kept)


@dataclass(frozen=True, slots=True)
class Layout:
    """The windows of one kind of array, and how everything that the kernels write lies in memory.

    Attributes
    ----------
    window : Window
        The windows.
    in_shape, out_shape : tuple of int
        Shapes in the order in which the caller sees the axes.
    order : tuple of int
        The axes from the slowest to the fastest in memory: the memory format of the input.
    pooled : tuple of int
        The pooled axes.
    channel : int
        The axis of channels; -1 if there is none.
    dtype, out_dtype : str
        Of the input and of the output.
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
        """What sums over a window are kept in."""
        wide = ("float64", "int32", "uint32", "int64")
        return "float64" if self.dtype in wide else "float32"

    @property
    def channels(self) -> int:
        """How many numbers a learned argument has, if it has one for each channel."""
        return self.in_shape[self.channel] if self.channel >= 0 else 1

    @property
    def route_dtype(self) -> str:
        """What holds a tap of a window and one value more, for "nowhere"."""
        taps = self.window.tap_count
        return "uint8" if taps <= 255 else "uint16" if taps <= 65535 else "uint32"

    @property
    def winner_shape(self) -> tuple[int, ...]:
        """Shape of what ``ties="split"`` keeps: for each output one bit for each tap."""
        return (*self.out_shape, -(-self.window.tap_count // 8))


class Plan(NamedTuple):
    """A layout and the compiled kernels for it."""

    layout: Layout
    kernels: _kernels.Plan


@lru_cache(maxsize=4096)
def inner_axis(
    shape: tuple[int, ...], strides: tuple[int, ...], spec: WindowSpec, channels_last: bool
) -> int:
    """The axis that is not pooled and lies innermost in memory; -1 if there is none.

    It is what decides about the memory format of outputs and gradients: such an axis stays
    innermost, and everything else lies in the order of the axes.
    """
    dims = spec.dims
    first = len(shape) - dims - channels_last
    if first < 0:
        return -1  # too few axes: `plan` has the words for that
    if spec.kind is WindowKind.FRACTIONAL:
        return -1  # windows of each channel lie elsewhere: channels cannot be pooled side by side
    if shape[first + dims - 1] > 1 and strides[first + dims - 1] == 1:
        return -1
    batch = [*range(first), *range(first + dims, len(shape))]
    inner = [a for a in batch if shape[a] > 1 and strides[a] == 1]
    if not inner:  # a slice along the innermost axis: its stride is still the smallest
        steps = {a: s for a, s in enumerate(strides) if shape[a] > 1 and s > 0}
        least = min(steps.values(), default=0)
        inner = [a for a in batch if steps.get(a) == least]
    # If the pooled axes have size one, the strides of a contiguous array and of one with channels
    # last are the same: it counts as contiguous.
    if not inner or (inner[-1] < first and _in_order(shape, strides, strides[inner[-1]])):
        return -1
    return int(inner[-1])


def _in_order(shape: tuple[int, ...], strides: tuple[int, ...], least: int) -> bool:
    """Whether this is a contiguous array, but for steps of `least` elements along the last axis."""
    expected = least
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True


def first_pooled(shape: tuple[int, ...], dims: int, channels_last: bool) -> int:
    """The first axis of an input of this shape that is pooled.

    Raises
    ------
    ValueError
        If it has too few axes.
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
    """The layout for an input of this shape and memory format.

    Parameters
    ----------
    spec : WindowSpec
        The windows.
    shape : tuple of int
        Of the input; may be a framework's symbolic integers.
    channels_last : bool
        Whether the pooled axes are those before the last, rather than the last.
    inner : int
        What `inner_axis` says of the input.
    dtype, out_dtype : str
        Of the input and of the output.

    Returns
    -------
    Layout

    Raises
    ------
    ValueError
        If the input has too few axes, or the windows do not fit it.
    """
    dims = spec.dims
    first = first_pooled(shape, dims, channels_last)
    window = resolve(spec, shape[first : first + dims])
    out_shape = shape[:first] + window.out + shape[first + dims :]
    known = [size for size in out_shape if isinstance(size, int)]  # of symbols nobody can tell
    if math.prod(known) > _MOST_ELEMENTS:
        raise ValueError(f"an output of shape {out_shape} would overflow memory")
    pooled = tuple(range(first, first + dims))
    outer = tuple(a for a in range(len(shape)) if a not in pooled and a != inner)
    order = outer + pooled + (() if inner < 0 else (inner,))
    channel = len(shape) - 1 if channels_last else first - 1
    return Layout(window, shape, out_shape, order, pooled, channel, dtype, out_dtype)


def plan(layout: Layout, inner: int, route_bits: int) -> Plan:
    """A layout and its kernels.

    Parameters
    ----------
    layout, inner
        From `lay_out`, and what it was told.
    route_bits : int
        Of a packed route; 0 where they are whole bytes.
    """
    axes = [as_kernels_take(axis) for axis in layout.window.axes]
    shape, pooled = list(layout.in_shape), list(layout.pooled)
    dtypes = (layout.dtype, layout.out_dtype)
    kernels = _kernels.Plan(axes, shape, pooled, inner, *dtypes, route_bits)
    return Plan(layout, kernels)


def as_kernels_take(axis: Axis) -> tuple[int, ...]:
    """An axis as the flat integers that the kernels take; csrc/python/plan.hpp rebuilds it."""
    origin = axis.origin
    return (
        int(axis.kind), axis.size, axis.out, axis.kernel, axis.stride, axis.lo, axis.hi,
        axis.dilation, origin.first, origin.before, origin.inputs, origin.outputs,
    )  # fmt: skip
