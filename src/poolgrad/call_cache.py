"""Cache of bound kernel calls, keyed by the arguments and the layout of the input.

The work of a pooling depends on its arguments and on the shape, strides and dtype of its input.
A front end defines which attributes of its arrays form the key (a `TensorSpec`, of the compiled
module, because reading them is most of the cost of a small call). Its `bound_call` returns a
function that repeats the call for another array with the same key, or None if the call cannot be
cached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from poolgrad import buffers
from poolgrad.core import BoundCalls
from poolgrad.interface import Buffer, Request
from poolgrad.operands import Seed
from poolgrad.operators import OPERATORS, Prepared

_MAX_CALLS = 4096  # of one function; a full cache is cleared


class CallCache(dict[Hashable, Callable[[Any], Any]]):
    """The bound calls of one function, by key."""

    def keep(self, key: Hashable, bound: Callable[[Any], Any]) -> None:
        """Store a bound call."""
        if len(self) >= _MAX_CALLS:
            self.clear()
        self[key] = bound


class Lookup(NamedTuple):
    """Looks up cached calls for one type of array. The array is the first argument.

    Attributes
    ----------
    call : callable
        Returns the result of a cached call, or None if the call is not in the cache.
    key : callable
        Returns the key of a call, or None if the call cannot be cached.
    """

    call: Callable[[CallCache, tuple[Any, ...], dict[str, Any]], Any]
    key: Callable[[tuple[Any, ...], dict[str, Any]], Hashable]


# By the exact type of an array. NumPy's is there from the beginning: PyTorch's compiler does not
# trace a first call that reads an empty table to which the import of a front end adds a type.
LOOKUPS: dict[type, Lookup] = {np.ndarray: Lookup(buffers.SPEC.call, buffers.SPEC.key)}


def is_cacheable(request: Request) -> bool:
    """Whether kernels compute the call, without `out`, and plain numbers are its only operands.

    A seed is none of these: each call has another one, so that the cache would fill with calls that
    are never repeated.
    """
    operator = OPERATORS[request.operator]
    if request.out is not None or not operator.has_kernels("cpu", request.options):
        return False
    return not request.operands or (
        all(type(value) in (int, float) for value in request.operands)
        and not isinstance(operator.operand, Seed)
    )


class _Recorder:
    """Replaces the kernels of a layout and records their names and arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.calls.append((name, args))


def recorded(run: Callable[[Any], None]) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the kernel calls of ``run(kernels)`` by name, with the arguments that it passes."""
    recorder = _Recorder()
    run(recorder)
    return recorder.calls


_Maker = Callable[[Buffer], buffers.Maker]
_Slots = tuple[object, ...]


def _bind(
    ready: Prepared,
    run: Callable[[Any, _Slots, _Slots, object], None],
    inputs: int,
    outputs: Sequence[Buffer],
    returned: int,
    maker: _Maker,
    threads: Callable[[], int],
) -> Callable[..., Any]:
    """Bind the kernel calls of an operator, for any arrays with the same layout.

    Parameters
    ----------
    ready : Prepared
        The operator, prepared for this layout.
    run : callable
        Calls the operator with kernels, the input arrays, the output arrays and the number of
        threads.
    inputs : int
        Number of arrays that it reads.
    outputs : sequence of Buffer
        The arrays that it writes.
    returned : int
        How many of the written arrays are the result; the others are temporary.
    maker : callable
        Returns, for a buffer, the call that allocates such an array.
    threads : callable
        Returns the number of threads.
    """
    slots = tuple(object() for _ in range(inputs + len(outputs) + 1))
    calls = recorded(lambda kernels: run(kernels, slots[:inputs], slots[inputs:-1], slots[-1]))
    bound = tuple((getattr(ready.kernels, name), args) for name, args in calls)
    # NumPy's arrays are allocated fastest.
    makers = (*map(maker, outputs[:returned]), *map(buffers.maker, outputs[returned:]))
    return BoundCalls(bound, slots, makers, threads, returned).run


def forward(
    ready: Prepared,
    maker: _Maker,
    threads: Callable[[], int],
    operand: Any = None,
    keep: Sequence[Buffer] = (),
    indices: bool = False,
) -> Callable[[Any], Any]:
    """Bind the forward pass of an operator that reads one array and numbers; see `_bind`.

    The bound call returns the output or, if there is more, a tuple of the output, the `indices` of
    a selecting operator, and the residual that is kept (`keep`), whose last array may belong to a
    learned argument.
    """
    residual = keep or ready.residual * indices  # indices are made from routes
    unwanted = (None,) * (len(ready.residual) - len(residual)) * bool(residual)
    found = (ready.per_output("int64"),) * indices

    def run(kernels: Any, inputs: _Slots, outputs: _Slots, count: object) -> None:
        routes = outputs[1 + indices :]
        how = {"residual": (*routes, *unwanted), "operand": operand, "threads": count}
        ready.operator.forward(ready.call(inputs[0], outputs[0], kernels, **how))
        if indices:
            kernels.route_indices(routes[0], outputs[1], None, count)

    made = (ready.output, *found, *residual)
    return _bind(ready, run, 1, made, 1 + indices + len(keep), maker, threads)


def vjp(
    ready: Prepared, maker: _Maker, threads: Callable[[], int], operand: Any = None
) -> Callable[..., Any]:
    """Bind the pullback of an operator; see `_bind`.

    The bound call takes the cotangent, the input if the operator is nonlinear, and the residual.
    """
    first = 1 + ready.operator.nonlinear

    def run(kernels: Any, inputs: _Slots, outputs: _Slots, count: object) -> None:
        x = inputs[1] if ready.operator.nonlinear else None
        how = {"residual": inputs[first:], "operand": operand, "x": x, "threads": count}
        ready.operator.vjp(ready.call(inputs[0], outputs[0], kernels, **how))

    return _bind(ready, run, first + len(ready.needed), (ready.input,), 1, maker, threads)


def squeezed(request: Request, ready: Prepared, pool: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that removes the pooled axes, unless the request keeps them."""
    if request.keepdims:
        return pool
    pooled = ready.layout.pooled
    if request.return_indices:
        return lambda x: tuple(array.squeeze(pooled) for array in pool(x))
    return lambda x: pool(x).squeeze(pooled)
