"""Computes the arguments of kernels (memory views, tiles), and launches kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from poolgrad.windows import Axis, Layout, WindowKind

TILE = 1024  # elements of a tile
THREADS = 128  # of a program: eight elements for each, 128 bits of a 2-byte type
WARP = 64 if torch.version.hip else 32
FEW = len(WindowKind)  # kind of fixed windows if an axis has fewer than could hold one input
CONTRACTION = {"enable_fp_fusion": False}  # a * b + c is rounded twice on every device


class View(NamedTuple):
    """A tensor with the axes (n, p, depth, height, width, channel): sizes and strides."""

    tensor: Tensor
    planes: int  # of the axes that are not pooled, n and p together
    sizes: tuple[int, int, int]  # depth, height, width
    channels: int
    strides: tuple[int, ...]  # p, n, depth, height, width, channel
    p: int  # the size of axis p


class Launch(NamedTuple):
    """One launch of a kernel, as recorded instead of being run."""

    kernel: Any
    grid: int
    args: tuple[Any, ...]
    constants: dict[str, Any]


# Context variables, because other threads launch kernels at the same time.
_record: ContextVar[list[Launch] | None] = ContextVar("_record", default=None)
_is_traced: ContextVar[bool] = ContextVar("_is_traced", default=False)


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Record launches of this thread instead of running them; tensors may be on ``meta``."""
    launches: list[Launch] = []
    token = _record.set(launches)
    try:
        yield launches
    finally:
        _record.reset(token)


@contextmanager
def traced() -> Iterator[None]:
    """Make launches of this thread visible to the compiler (`torch.library.wrap_triton`)."""
    token = _is_traced.set(True)
    try:
        yield
    finally:
        _is_traced.reset(token)


def launch(kernel: Any, grid: int, *args: Any, **constants: Any) -> None:
    """Run a kernel with `grid` programs; the last pointers are those it writes."""
    if not grid:
        return
    record = _record.get()
    if record is not None:
        record.append(Launch(kernel, grid, args, constants))
    elif _is_traced.get():
        torch.library.wrap_triton(kernel)[(grid,)](*args, **constants, num_warps=warps(constants))
    else:
        _launched(Launch(kernel, grid, args, constants))


def warps(constants: dict[str, Any], size: int = WARP) -> int:
    """Return the number of warps of a program; `size`: the threads of a warp."""
    # Measured: along the width without pairs, outputs, and inputs under windows of stride 1, are
    # faster with fewer elements for each thread.
    fewer = constants.get("CHANNELS_LAST") is False and not constants.get("PAIRS")
    if "OVER" in constants:  # a tile of inputs
        fewer = fewer and constants["S"][2] == 1
    return THREADS * (2 if fewer else 1) // size


def _launched(one: Launch) -> Callable[..., Any]:
    """Launch a kernel; return a function that repeats it, for tensors of the same layouts."""
    kernel, grid, args, constants = one
    options = constants | {"num_warps": warps(constants)} | CONTRACTION
    if not args[0].is_cuda:  # the interpreter, which takes no options
        options = constants
    with torch.cuda.device_of(args[0]):
        compiled = kernel[(grid,)](*args, **options)
        if compiled is None:  # interpreted
            return partial(kernel[(grid,)], **options)
        run = compiled[(grid, 1, 1)]
    rest = [constants[name] for name in kernel.arg_names[len(args) :]]
    return lambda *given: run(*given, *rest)


class _BoundLaunches(NamedTuple):
    """The launches of a method of the kernels, for any tensors of the same layouts.

    Attributes
    ----------
    steps : list of tuple
        For each launch: the function that repeats it, its arguments, and which of these are
        tensors: their places among them, and in the tensors of the method followed by `made`.
    made : list of tuple
        Shapes and dtypes of the tensors that one launch writes and a later one reads.
    """

    steps: list[tuple[Callable[..., Any], tuple[Any, ...], list[tuple[int, int]]]]
    made: list[tuple[torch.Size, torch.dtype]]

    def run(self, given: list[Tensor]) -> None:
        """Launch everything, for these arguments of the method."""
        device = given[0].device
        tensors = [t.view(torch.uint8) if t.dtype is torch.bool else t for t in given]
        tensors += [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.made]
        with torch.cuda.device_of(given[0]):
            for repeat, args, places in self.steps:
                filled = [*args]
                for place, number in places:
                    filled[place] = tensors[number]
                repeat(*filled)


def _bind(launches: list[Launch], given: list[Tensor]) -> _BoundLaunches | None:
    """Run launches; bind them if no other tensors than `given` are their input."""
    numbers = {t.data_ptr(): n for n, t in enumerate(given) if t.numel()}
    complete = True
    made: list[tuple[torch.Size, torch.dtype]] = []
    steps = []
    for one in launches:
        repeat, places = _launched(one), []
        first_number = next(n for n, a in enumerate(one.args) if not torch.is_tensor(a))
        for place, tensor in enumerate(one.args):
            if not torch.is_tensor(tensor) or not tensor.numel():
                continue
            address = tensor.data_ptr()
            if address not in numbers:
                complete &= place > first_number  # not written by an earlier launch
                numbers[address] = len(given) + len(made)
                made.append((tensor.shape, tensor.dtype))
            places.append((place, numbers[address]))
        taken = {place for place, _ in places}
        args = tuple(None if place in taken else a for place, a in enumerate(one.args))
        steps.append((repeat, args, places))
    return _BoundLaunches(steps, made) if complete else None


_MAX_BOUND = 64  # of one layout, whose tensors mostly have the same strides


def repeated(method: Callable[..., None]) -> Callable[..., None]:
    """Let a method of `LayoutKernels` prepare its launches once for each layout of its tensors.

    Preparing views, tiles and constants, and Triton's own preparation of a launch, take longer than
    small kernels. The method computes nothing with tensors but what it launches.
    """
    name = method.__name__

    @wraps(method)
    def run(self: Any, *args: Any) -> None:
        given: list[Tensor] = []
        if _record.get() is not None or _is_traced.get():
            method(self, *args)
            return
        key = (name, *(_layout_of(a, given) for a in args), given[0].device)
        bound = self.bound.get(key)
        if bound:
            bound.run(given)
            return
        used = [t.data_ptr() for t in given if t.numel()]
        # One tensor as two arguments: its address is ambiguous.
        if bound is not None or len({*used}) < len(used):
            method(self, *args)
            return
        with recorded() as launches:
            method(self, *args)
        if len(self.bound) >= _MAX_BOUND:
            self.bound.clear()
        self.bound[key] = _bind(launches, given) or ()

    return run


def _layout_of(value: Any, given: list[Tensor]) -> Any:
    """Return what the preparation of a launch reads of an argument; append tensors to `given`."""
    if isinstance(value, Tensor):
        given.append(value)
        # Triton compiles for addresses that are multiples of 16.
        return value.dtype, value.stride(), value.data_ptr() % 16 == 0
    if isinstance(value, list | tuple):
        return tuple(_layout_of(v, given) for v in value)
    return value if isinstance(value, int | str) else None  # kernels read no other numbers


def view(tensor: Tensor, layout: Layout) -> View:
    """The memory view of an input or output of this layout; a copy if it has too many strides."""
    if tensor.dtype == torch.bool:
        tensor = tensor.view(torch.uint8)
    order, pooled = layout.order, layout.pooled
    inner = order[-1:] if order[-1] not in pooled else ()
    outer = [(tensor.shape[a], tensor.stride(a)) for a in order[: len(order) - len(inner)]]
    merged: list[tuple[int, int]] = []
    for size, stride in outer[: len(outer) - len(pooled)]:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    if len(merged) > 2:
        back = [order.index(a) for a in range(len(order))]
        return view(tensor.permute(order).contiguous().permute(back), layout)
    (n, s_n), (p, s_p) = [(1, 0)] * (2 - len(merged)) + merged
    missing = 3 - len(pooled)
    sizes = (1,) * missing + tuple(tensor.shape[a] for a in pooled)
    strides = (0,) * missing + tuple(tensor.stride(a) for a in pooled)
    channels = tensor.shape[inner[0]] if inner else 1
    last = tensor.stride(inner[0]) if inner else 0
    return View(tensor, n * p, sizes, channels, (s_p, s_n, *strides, last), p)  # type: ignore[arg-type]


def contiguous(tensor: Tensor, planes: int, sizes: Any, channels: int) -> View:
    """The memory view of a tensor whose elements lie in the order of the axes."""
    d, h, w = sizes
    strides = (d * h * w * channels, 0, h * w * channels, w * channels, channels, 1)
    return View(tensor, planes, (d, h, w), channels, strides, planes)


def axes_of(layout: Layout) -> tuple[Axis, Axis, Axis]:
    """Depth, height and width; axes that are not pooled have one window of one tap."""
    axes = layout.window.axes
    return (Axis(1, 1, 1),) * (3 - len(axes)) + axes  # type: ignore[return-value]


def kind(axis: Axis) -> int:
    """Return the kind of the windows of an axis, a constant of `geometry`."""
    if axis.adaptive:
        return int(WindowKind.ADAPTIVE)
    if axis.fractional:
        return int(WindowKind.FRACTIONAL)
    return int(WindowKind.FIXED) if _most_fixed(axis) <= axis.out else FEW


def constants(axes: tuple[Axis, Axis, Axis]) -> dict[str, tuple[int, ...]]:
    """The constants of a kernel that describe windows, each along depth, height and width."""
    return {
        "K": tuple(a.kernel for a in axes),
        "S": tuple(a.stride_or_bins for a in axes),
        "LO": tuple(a.lo for a in axes),
        "DIL": tuple(a.dilation for a in axes),
        "KIND": tuple(map(kind, axes)),
    }


def windows_over(
    axes: tuple[Axis, ...], samples: Tensor | None = None
) -> dict[str, tuple[int, ...]]:
    """The constant ``OVER``: along each axis, the largest number of windows that hold one input.

    Samples of two bytes have so few digits that many windows may begin at one input.
    """
    coarse = samples is not None and samples.itemsize == 2
    return {"OVER": tuple(_most_over(a, coarse) for a in axes)}


def _most_over(axis: Axis, coarse: bool) -> int:
    if axis.adaptive:
        most = -(-axis.out // axis.size) + 1
    elif axis.fractional:
        most = axis.out if coarse else axis.kernel + 1
    else:
        most = _most_fixed(axis)
    return min(most, axis.out)


def _most_fixed(axis: Axis) -> int:
    """Return how many windows of a fixed stride may hold one input, if the axis is long."""
    return (axis.kernel - 1) * axis.dilation // axis.stride + 1


def index_type(*views: View, axes: tuple[Axis, ...] = (), elements: int = 0) -> Any:
    """The type of offsets and positions: int64 if one of them may be 2**31 or more.

    `elements`: the size of an array without a view, or the number of taps of a window.
    """
    limit = 2**31 - TILE * 8
    large = elements >= limit or any(_largest_position(a) >= limit for a in axes)
    for v in views:
        shape = (v.p, v.planes // max(v.p, 1), *v.sizes, v.channels)
        reach = sum((n - 1) * abs(s) for n, s in zip(shape, v.strides, strict=True))
        large |= max(reach, v.planes * math.prod(v.sizes) * v.channels) >= limit
    return tl.int64 if large else tl.int32


def _largest_position(axis: Axis) -> int:
    """Return a bound of the numbers that `geometry` computes along an axis."""
    if axis.adaptive:
        return axis.size * axis.out + max(axis.size, axis.out)
    return axis.size + axis.lo + axis.hi + axis.kernel * axis.dilation


class Tiles(NamedTuple):
    """The tiling of an array."""

    rows: int
    lanes: int
    grid: int
    constants: dict[str, Any]


def tiles(rows: int, lanes: int, last: bool, index: Any, tile: int = TILE) -> Tiles:
    """Return the tiling of an array of these rows and lanes; `last`: lanes are channels.

    The width of a tile is the power of two from 8 to 128 that leaves the fewest lanes unused.
    """
    width = min((128, 64, 32, 16, 8), key=lambda n: (-(-lanes // n) * n, -n))
    height = tile // width
    grid = -(-rows // height) * -(-lanes // width)
    found = {"CHANNELS_LAST": last, "INDEX": index, "ROWS": height, "LANES": width}
    return Tiles(rows, lanes, grid, found)


def align(cut: Tiles, given: View, in_w: int, out_w: int) -> dict[str, tuple[int, ...]]:
    """The constant ``ALIGN``: powers of two up to 16 that divide the terms of addresses.

    Triton itself specialises on multiples of 16 only, but rows of 56 two-byte elements are also
    aligned to 128 bits.
    """
    steps = given.strides[:4] + (given.strides[4:5] if cut.constants["CHANNELS_LAST"] else ())
    numbers = ((cut.lanes,), (in_w,), (out_w,), steps)
    return {"ALIGN": tuple(_power_of_two(*n) for n in numbers)}


def _power_of_two(*numbers: int) -> int:
    return math.gcd(16, *numbers)


def sum_type(dtype: torch.dtype) -> Any:
    """Return the Triton type in which sums of this dtype are accumulated."""
    return tl.float64 if dtype == torch.float64 else tl.float32
