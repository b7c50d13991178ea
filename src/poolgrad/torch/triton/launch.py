"""Launches kernels: now, recorded for later, seen by a compiler, or prepared and repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor

WARP = 64 if torch.version.hip else 32
CONTRACTION = {"enable_fp_fusion": False}  # a * b + c is rounded twice on every device


class Launch(NamedTuple):
    """One launch of a kernel.

    Attributes
    ----------
    kernel : object
        The kernel, a function of Triton.
    grid, threads : int
        Number of programs, and threads of each.
    read, numbers, written : tuple
        The arguments: tensors that the kernel reads, integers, and tensors that it writes.
    constants : dict
        The arguments that are constants, by name.
    """

    kernel: Any
    grid: int
    threads: int
    read: tuple[Tensor, ...]
    numbers: tuple[int, ...]
    written: tuple[Tensor, ...]
    constants: dict[str, Any]

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments that are not constants, in the order of the kernel."""
        return (*self.read, *self.numbers, *self.written)


def launch(one: Launch) -> None:
    """Run a kernel, or record or trace it, as the current context demands."""
    if one.grid:
        (_launcher.get() or _launched)(one)


def _launched(one: Launch) -> Callable[..., Any]:
    """Launch a kernel; return a function that repeats it, for tensors of the same layouts."""
    kernel, args = one.kernel, one.args
    options = one.constants | {"num_warps": one.threads // WARP} | CONTRACTION
    if not args[0].is_cuda:  # the interpreter, which takes no options
        options = one.constants
    with torch.cuda.device_of(args[0]):
        compiled = kernel[(one.grid,)](*args, **options)
        if compiled is None:  # interpreted
            return partial(kernel[(one.grid,)], **options)
        run = compiled[(one.grid, 1, 1)]
    rest = [one.constants[name] for name in kernel.arg_names[len(args) :]]
    return lambda *given: run(*given, *rest)


def _traced(one: Launch) -> None:
    kernel, warps = torch.library.wrap_triton(one.kernel), one.threads // WARP
    kernel[(one.grid,)](*one.args, **one.constants, num_warps=warps)


# What is done instead of a launch; other threads launch kernels at the same time.
_launcher: ContextVar[Callable[[Launch], Any] | None] = ContextVar("_launcher", default=None)


@contextmanager
def _launching(launcher: Callable[[Launch], Any]) -> Iterator[None]:
    token = _launcher.set(launcher)
    try:
        yield
    finally:
        _launcher.reset(token)


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Record launches of this thread instead of running them; tensors may be on ``meta``."""
    launches: list[Launch] = []
    with _launching(launches.append):
        yield launches


def traced() -> AbstractContextManager[None]:
    """Make launches of this thread visible to the compiler (`torch.library.wrap_triton`)."""
    return _launching(_traced)


def _run_and_bind(launches: list[Launch], arguments: list[Tensor]) -> Callable[..., None] | None:
    """Run the launches of a method; return a function that repeats them for its arguments.

    Returns None if they read a tensor that is no argument and was not written before.
    """
    positions = {t.data_ptr(): n for n, t in enumerate(arguments) if t.numel()}
    is_complete = True
    allocated: list[tuple[torch.Size, torch.dtype]] = []  # of the other tensors that are written
    unused: list[Tensor] = []  # empty tensors, for pointers that a kernel does not write
    # Of each launch the function that repeats it, positions of the tensors that it reads, its
    # integers, and positions of those that it writes: arguments, allocated and unused tensors.
    steps: list[tuple[Callable[..., Any], list[int], tuple[int, ...], list[int]]] = []
    for one in launches:
        repeat, written = _launched(one), []
        is_complete &= all(t.data_ptr() in positions for t in one.read)
        for tensor in one.written:
            if not tensor.numel():
                unused.insert(0, tensor)
                written.append(-len(unused))
                continue
            address = tensor.data_ptr()
            if address not in positions:
                positions[address] = len(arguments) + len(allocated)
                allocated.append((tensor.shape, tensor.dtype))
            written.append(positions[address])
        read = [positions.get(t.data_ptr(), 0) for t in one.read]
        steps.append((repeat, read, one.numbers, written))

    def run(arguments: list[Tensor]) -> None:
        tensors = [t.view(torch.uint8) if t.dtype is torch.bool else t for t in arguments]
        new = arguments[0].new_empty
        tensors += [*(new(shape, dtype=dtype) for shape, dtype in allocated), *unused]
        with torch.cuda.device_of(arguments[0]):
            for repeat, read, numbers, written in steps:
                repeat(*[tensors[n] for n in read], *numbers, *[tensors[n] for n in written])

    return run if is_complete else None


_MAX_BOUND = 64  # of one layout, whose tensors mostly have the same strides


def repeated(method: Callable[..., None]) -> Callable[..., None]:
    """Let a method of `Kernels` prepare its launches once for each layout of its tensors.

    Preparing views, tiles and constants, and Triton's own preparation of a launch, take longer than
    small kernels. The method computes nothing with tensors but what it launches.
    """
    name = method.__name__

    @wraps(method)
    def run(self: Any, *args: Any) -> None:
        if _launcher.get() is not None:
            method(self, *args)
            return
        tensors: list[Tensor] = []
        key = (name, *[_layout_of(a, tensors) for a in args], tensors[0].device)
        bound = self.bound.get(key)
        if bound:
            bound(tensors)
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
        self.bound[key] = _run_and_bind(launches, tensors) or False  # cannot be repeated

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
