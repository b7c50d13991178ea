"""Launches kernels: now, recorded for later, seen by a compiler, or prepared and repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

THREADS = 128  # of a program: eight elements for each, 128 bits of a 2-byte type
WARP = 64 if torch.version.hip else 32
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
        tensors: their numbers among them, and among the tensors of the method followed by `made`.
    made : list of tuple
        Shapes and dtypes of the tensors that one launch writes and a later one reads.
    """

    steps: list[tuple[Callable[..., Any], tuple[Any, ...], list[tuple[int, int]]]]
    made: list[tuple[torch.Size, torch.dtype]]

    def run(self, arguments: list[Tensor]) -> None:
        """Launch everything, for these tensors among the arguments of the method."""
        device = arguments[0].device
        tensors = [t.view(torch.uint8) if t.dtype is torch.bool else t for t in arguments]
        tensors += [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.made]
        with torch.cuda.device_of(arguments[0]):
            for repeat, args, positions in self.steps:
                filled = [*args]
                for position, number in positions:
                    filled[position] = tensors[number]
                repeat(*filled)


def _bind(launches: list[Launch], arguments: list[Tensor]) -> _BoundLaunches | None:
    """Run launches; bind them if no other tensors than `arguments` are their input."""
    numbers = {t.data_ptr(): n for n, t in enumerate(arguments) if t.numel()}
    complete = True
    made: list[tuple[torch.Size, torch.dtype]] = []
    steps = []
    for one in launches:
        repeat, positions = _launched(one), []
        first_number = next(n for n, a in enumerate(one.args) if not torch.is_tensor(a))
        for position, tensor in enumerate(one.args):
            if not torch.is_tensor(tensor) or not tensor.numel():
                continue
            address = tensor.data_ptr()
            if address not in numbers:
                complete &= position > first_number  # not written by an earlier launch
                numbers[address] = len(arguments) + len(made)
                made.append((tensor.shape, tensor.dtype))
            positions.append((position, numbers[address]))
        filled = {position for position, _ in positions}
        args = tuple(None if n in filled else a for n, a in enumerate(one.args))
        steps.append((repeat, args, positions))
    return _BoundLaunches(steps, made) if complete else None


_MAX_BOUND = 64  # of one layout, whose tensors mostly have the same strides


def repeated(method: Callable[..., None]) -> Callable[..., None]:
    """Let a method of `Kernels` prepare its launches once for each layout of its tensors.

    Preparing views, tiles and constants, and Triton's own preparation of a launch, take longer than
    small kernels. The method computes nothing with tensors but what it launches.
    """
    name = method.__name__

    @wraps(method)
    def run(self: Any, *args: Any) -> None:
        tensors: list[Tensor] = []
        if _record.get() is not None or _is_traced.get():
            method(self, *args)
            return
        key = (name, *[_layout_of(a, tensors) for a in args], tensors[0].device)
        bound = self.bound.get(key)
        if bound:
            bound.run(tensors)
            return
        used = [t.data_ptr() for t in tensors if t.numel()]
        # One tensor as two arguments: its address is ambiguous.
        if bound is not None or len({*used}) < len(used):
            method(self, *args)
            return
        with recorded() as launches:
            method(self, *args)
        if len(self.bound) >= _MAX_BOUND:
            self.bound.clear()
        self.bound[key] = _bind(launches, tensors) or ()

    return run


def _layout_of(value: Any, tensors: list[Tensor]) -> Any:
    """Return what the preparation of a launch reads of an argument; append it if it is a tensor."""
    if isinstance(value, Tensor):
        tensors.append(value)
        # Triton compiles for addresses that are multiples of 16.
        return value.dtype, value.stride(), value.data_ptr() % 16 == 0
    if isinstance(value, list | tuple):
        return tuple([_layout_of(v, tensors) for v in value])
    return value if isinstance(value, int | str) else None  # kernels read no other numbers
