"""Cache of bound kernel calls, keyed by the arguments and the layout of the input.

The work of a pooling depends on its arguments and on the shape, strides and dtype of its input.
A front end defines which attributes of its arrays form the key (a `Kind`, of the compiled module,
because reading them is most of the cost of a small call). Its `bound_call` returns a function that
repeats the call for another array with the same key, or None if the call cannot be cached.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, cast

from poolgrad.contract import Buffer, Request
from poolgrad.core import Layout, Plan, Steps, with_kernels
from poolgrad.operators import Prepared

_MAX_CALLS = 4096  # of one function; a full cache is cleared


class CallCache(dict[Hashable, Callable[[Any], Any]]):
    """The bound calls of one function, by key."""

    def keep(self, key: Hashable, bound: Callable[[Any], Any] | None) -> None:
        """Store a bound call, unless it is None."""
        if bound is not None:
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


LOOKUPS: dict[type, Lookup] = {}  # by the exact type of an array


def is_cacheable(request: Request) -> bool:
    """Whether the call has no `out`, no indices, and no operand other than plain numbers."""
    plain = all(type(value) in (int, float) for value in request.operands)
    return request.out is None and not request.return_indices and plain


class _Recorder:
    """Replaces a plan's kernels and records their names and arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.calls.append((name, args))


def recorded(layout: Layout, run: Callable[[Plan], None]) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the kernel calls of an operator, by running it with a recorder."""
    recorder = _Recorder()
    run(with_kernels(layout, cast(Any, recorder)))
    return recorder.calls


_Maker = Callable[[Buffer], Callable[[], Any]]


def steps(
    ready: Prepared,
    outputs: Sequence[Buffer],
    inputs: int,
    run: Callable[[Plan, tuple[object, ...], tuple[object, ...], object], None],
    maker: _Maker,
    threads: Callable[[], int],
    checks: Sequence[Callable[[Any], None]] = (),
) -> Callable[..., Any]:
    """Bind the kernel calls of an operator, for any arrays with the same layout.

    Parameters
    ----------
    ready : Prepared
        The operator, prepared for this layout.
    outputs : sequence of Buffer
        The arrays that it writes and returns.
    inputs : int
        Number of arrays that it reads.
    run : callable
        Calls the operator with a plan, the input arrays, the output arrays and the number of
        threads.
    maker : callable
        Returns, for a buffer, the function that allocates such an array.
    threads : callable
        Returns the number of threads.
    checks : sequence of callable
        For each input array, a function that raises an error if the kernels cannot read it.
    """
    slots = tuple(object() for _ in range(inputs + len(outputs) + 1))
    calls = recorded(
        ready.layout, lambda plan: run(plan, slots[:inputs], slots[inputs:-1], slots[-1])
    )
    checked = [(check, (slot,)) for check, slot in zip(checks, slots, strict=False)]
    bound = [(getattr(ready.plan.kernels, name), args) for name, args in calls]
    return Steps((*checked, *bound), slots, tuple(map(maker, outputs)), threads).run


def forward(
    ready: Prepared,
    maker: _Maker,
    threads: Callable[[], int],
    operand: Any = None,
    keep: bool = False,
    checks: Sequence[Callable[[Any], None]] = (),
) -> Callable[[Any], Any]:
    """Bind the forward pass of an operator that reads one array and numbers; see `steps`.

    The bound call returns the output or, with `keep`, a tuple of the output and the residual.
    """
    operator = ready.operator
    unwanted = (None,) * (keep and operator.learned)

    def run(plan: Plan, inputs: Any, outputs: Any, count: Any) -> None:
        kept = (*outputs[1:], *unwanted)
        operator.forward(plan, inputs[0], operand, outputs[0], kept, count, *ready.options)

    return steps(ready, (ready.output, *needed(ready) * keep), 1, run, maker, threads, checks)


def needed(ready: Prepared) -> tuple[Buffer, ...]:
    """The residual without that of a learned parameter: numbers need no gradient."""
    return ready.residual[:-1] if ready.operator.learned else ready.residual


def pull(
    ready: Prepared,
    maker: _Maker,
    threads: Callable[[], int],
    operand: Any = None,
    checks: Sequence[Callable[[Any], None]] = (),
) -> Callable[..., Any]:
    """Bind the pullback of an operator; see `steps`.

    The bound call takes the cotangent, the input if the operator is nonlinear, and the residual.
    """
    operator = ready.operator
    first = 1 + operator.curved

    def run(plan: Plan, inputs: Any, outputs: Any, count: Any) -> None:
        x = inputs[1] if operator.curved else None
        residual = inputs[first:]
        operator.pull(plan, inputs[0], x, operand, residual, outputs[0], count, *ready.options)

    return steps(ready, (ready.input,), first + len(needed(ready)), run, maker, threads, checks)


def squeezed(request: Request, ready: Prepared, pool: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a call that removes the pooled axes, unless the request keeps them."""
    if request.keepdims:
        return pool
    pooled = ready.layout.pooled
    return lambda x: pool(x).squeeze(pooled)
