"""Typed interface to the compiled kernels.

A `Plan` holds the windows, the layout of the arrays that the kernels write, and the kernels.
`operators.prepare` caches plans by arguments, shapes and memory formats.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from poolgrad.windows import Axis, Window, WindowKind, WindowSpec, axis_names, brief, resolve

try:
    from poolgrad import _kernels
except ImportError as error:  # pragma: no cover - only in a broken installation
    raise ImportError(
        "poolgrad's compiled kernels are missing or do not load on this machine "
        f"({error}). Install a wheel, or build them with: pip install . "
        "(in a checkout, not with src/ on the path alone)"
    ) from error

# Results of at least this many bytes use cached memory.
LARGE = 1 << 20
BoundCalls = _kernels.BoundCalls
CachedBlock = _kernels.CachedBlock
Regions = _kernels.Regions
TensorSpec = _kernels.TensorSpec

_MAX_THREADS = 4096
_MAX_ELEMENTS = (2**63 - 1) // 8


def instruction_set() -> str:
    """Return the instruction set whose kernels are in use, such as ``"avx512"``.

    It is the best that the machine supports, or the one that the environment variable
    ``POOLGRAD_ISA`` names.
    """
    return str(_kernels.instruction_set())


def instruction_sets() -> list[str]:
    """Return the instruction sets that this machine supports, best first."""
    return list(_kernels.instruction_sets())


def _default_threads() -> int:
    for name in ("POOLGRAD_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "").strip()
        if value:
            if not value.isdigit() or not 1 <= int(value) <= _MAX_THREADS:
                if name == "OMP_NUM_THREADS":  # may be a list for nested regions, which is ignored
                    continue
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
            return int(value)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_threads: int | None = None


def get_num_threads() -> int:
    """Return the number of threads that pool NumPy arrays.

    It is the value of ``POOLGRAD_NUM_THREADS``, else of ``OMP_NUM_THREADS``, else the number of
    processors that this process may use. Tensors are pooled with PyTorch's number of threads.

    Returns
    -------
    int

    Raises
    ------
    ValueError
        If ``POOLGRAD_NUM_THREADS`` is not an integer from 1 to 4096.
    """
    global _threads
    if _threads is None:
        _threads = _default_threads()
    return _threads


def set_num_threads(threads: int) -> None:
    """Set the number of threads that pool NumPy arrays. The results do not depend on it.

    Parameters
    ----------
    threads : int
        A number from 1 to 4096.

    Raises
    ------
    ValueError
        If `threads` is not such an integer.
    """
    global _threads
    whole = isinstance(threads, int) and not isinstance(threads, bool)
    if not whole or not 1 <= threads <= _MAX_THREADS:
        raise ValueError(
            f"threads must be an integer from 1 to {_MAX_THREADS}, got {brief(threads)}"
        )
    _threads = threads


def share_threads(library: str) -> bool:
    """Run the kernels on a framework's OpenMP threads, which would compete with other threads.

    Parameters
    ----------
    library : str
        Path of a loaded library of the framework, which uses OpenMP.

    Returns
    -------
    bool
        False if the library has no such threads.
    """
    return bool(_kernels.share_threads(library))


def xla_handler() -> Any:
    """Return the handlers of XLA's stages, in capsules; None in a build without XLA."""
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
    except (AttributeError, OSError, ValueError):  # a system without this information
        return 1 << 30
    return min(1 << 30, memory // 8)


CACHE_LIMIT = _cache_limit()
_kernels.limit_cache(CACHE_LIMIT)
if (_streamed := _bytes_set("POOLGRAD_STREAM_BYTES")) is not None:
    _kernels.limit_nontemporal_stores(_streamed)


class Cache(Protocol):
    """Memory of large results that is reused for later results."""

    def empty(self) -> None:
        """Free what no result uses."""

    def use(self) -> tuple[int, int]:
        """Return the bytes that results use, and the bytes that are kept for later results."""


class _Blocks:
    """The cache of the compiled kernels, for NumPy arrays and scratch memory."""

    empty = staticmethod(_kernels.empty_cache)
    use = staticmethod(_kernels.cache_use)


CACHES: list[Cache] = [_Blocks()]  # a front end with a cache of its own adds it


def empty_cache() -> None:
    """Return the cached memory of released results to the system.

    The memory of results of 1 MiB or more is reused for later results, because the page faults of
    new memory take longer than most poolings. The environment variable ``POOLGRAD_CACHE_BYTES``
    limits the cached bytes of NumPy arrays, and those of PyTorch tensors; the default is 1 GiB, or
    an eighth of the machine's memory if that is less.
    """
    for cache in CACHES:
        cache.empty()


def cache_use() -> tuple[int, int]:
    """Return the bytes of live large results, and the bytes that are cached for later ones."""
    uses = [cache.use() for cache in CACHES]
    return sum(used for used, _ in uses), sum(kept for _, kept in uses)


def advise_huge_pages(address: int, size: int) -> None:
    """Ask the system for huge pages, which need fewer page faults, for memory not yet written."""
    _kernels.advise_huge_pages(address, size)


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

    @property
    def winner_shape(self) -> tuple[int, ...]:
        """Shape of the residual of ``ties="split"``: for each output one bit for each tap."""
        return (*self.out_shape, -(-self.window.tap_count // 8))


class Plan(NamedTuple):
    """A layout and the compiled kernels for it."""

    layout: Layout
    kernels: _kernels.Plan


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


def plan(layout: Layout, inner: int, route_bits: int) -> Plan:
    """Return the plan of a layout: the layout and its kernels.

    Parameters
    ----------
    layout : Layout
        The layout.
    inner : int
        The argument `inner` of `lay_out`.
    route_bits : int
        Bits of a packed route; 0 for whole bytes.
    """
    axes = [as_kernels_take(axis) for axis in layout.window.axes]
    shape, pooled = list(layout.in_shape), list(layout.pooled)
    dtypes = (layout.dtype, layout.out_dtype)
    kernels = _kernels.Plan(axes, shape, pooled, inner, *dtypes, route_bits)
    return Plan(layout, kernels)


def as_kernels_take(axis: Axis) -> tuple[int, ...]:
    """Flatten an axis to the integers that the kernels take; csrc/python/plan.hpp rebuilds it."""
    origin = axis.origin
    return (
        int(axis.kind), axis.size, axis.out, axis.kernel, axis.stride_or_bins, axis.lo, axis.hi,
        axis.dilation, origin.first, origin.before, origin.inputs, origin.outputs,
    )  # fmt: skip
