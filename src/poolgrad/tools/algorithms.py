"""Lists the algorithms of the kernels, records which of them a call uses, and forces one.

``csrc/choose.cpp`` chooses; the names here are those of its table. Needs nothing but NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

import poolgrad._kernels as _kernels  # noqa: PLR0402 - as in `core`
from poolgrad.buffers import allocate, as_buffer, dtype_named
from poolgrad.dtypes import FLOATS
from poolgrad.interface import Buffer
from poolgrad.numpy import FRONT_END
from poolgrad.windows import brief


class KernelRun(NamedTuple):
    """One kernel call: its algorithm, its number of tasks, and the threads that run them."""

    algorithm: str
    tasks: int
    threads: int


def names() -> list[str]:
    """Return the names of all algorithms, forward and backward."""
    return list(_kernels.algorithms())


@contextmanager
def forced(name: str) -> Iterator[None]:
    """Force this algorithm for every call that it handles, for tests and benchmarks.

    Calls that it does not handle use the default algorithm; `steps` returns what was used. The
    setting applies to all threads of the process.

    Raises
    ------
    ValueError
        If there is no algorithm of this name.
    """
    if name not in names():
        raise ValueError(f"an algorithm is one of {', '.join(names())}, got {brief(name)}")
    _kernels.force_algorithm(name)
    try:
        yield
    finally:
        _kernels.force_algorithm("")


def steps(call: Callable[[], Any], dry: bool = False) -> list[KernelRun]:
    """Return the kernel calls that `call` makes on this thread.

    Parameters
    ----------
    call : callable
        Takes no arguments.
    dry : bool
        Plan the kernel calls only: no array is read or written.
    """
    return [KernelRun(*step) for step in _kernels.trace(call, dry)]


class KernelCall(NamedTuple):
    """A call of a public function with a NumPy array, whose kernels can be run repeatedly.

    Attributes
    ----------
    forward, backward : callable
        Run the kernels. `forward` stores what `backward` needs, if requested.
    forward_bytes, backward_bytes : int
        Bytes that must be moved: every array that is read or written, once.
    out_shape : tuple of int
        Shape of the output.
    differentiable : bool
        Whether there is a backward pass for this dtype.
    """

    forward: Callable[[], None]
    backward: Callable[[], None]
    forward_bytes: int
    backward_bytes: int
    out_shape: tuple[int, ...]
    differentiable: bool


def _bytes(buffers: Sequence[Buffer]) -> int:
    return sum(math.prod(b.shape) * dtype_named(b.dtype).itemsize for b in buffers)


def bind(
    function: Callable[..., Any],
    x: np.ndarray,
    arguments: Mapping[str, Any],
    threads: int,
    stored: bool = True,
) -> KernelCall:
    """Allocate the arrays of a call, so that its kernels can be run alone.

    Parameters
    ----------
    function : callable
        A public pooling function.
    x : NumPy array
        The input.
    arguments : mapping
        Further arguments of the function.
    threads : int
        Threads of the kernels.
    stored : bool
        Whether the forward pass stores what the backward pass needs.
    """
    made: Any = FRONT_END.call(function.describe(x, **arguments))  # type: ignore[attr-defined]
    ready, operator = made.ready, made.ready.operator
    y, gx, *kept = map(allocate, (ready.output, ready.input, *ready.residual))
    own, out, gradient, *residual = map(as_buffer, (made.x, y, gx, *kept))
    how = {"operand": made.kernel_operand, "threads": threads}
    first = ready.call(own, out, residual=(*residual,) if stored else (), **how)
    last = ready.call(out, gradient, residual=(*residual,), x=own, **how)

    def forward() -> None:
        operator.forward(first)

    def backward() -> None:
        operator.vjp(last)

    written = y.nbytes + (_bytes(ready.residual) if stored else 0)
    read = y.nbytes + _bytes(ready.residual) + (made.x.nbytes if operator.nonlinear else 0)
    return KernelCall(
        forward,
        backward,
        made.x.nbytes + written,
        read + gx.nbytes,
        ready.layout.out_shape,
        made.x.dtype.name in FLOATS,
    )
