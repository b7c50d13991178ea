"""Calls that were made before, made again without being looked at again.

What a pooling does depends on its arguments and on the kind of its input: shape, strides and dtype.
A front end says what its arrays are asked (a `Kind`, of the compiled module: asking is most of what
a small call costs) and makes of a call a recipe, the function that does the same to another array
of that kind (`recipe`; None if there is none).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, cast

from poolgrad.contract import Buffer, Request
from poolgrad.core import Layout, Plan, Steps
from poolgrad.operators import Prepared

_MOST = 4096  # recipes of one function


class Recipes(dict[Hashable, Callable[[Any], Any]]):
    """The recipes of one function, by their keys."""

    def keep(self, key: Hashable, recipe: Callable[[Any], Any]) -> None:
        """Keep a recipe; not more than so many."""
        if len(self) >= _MOST:
            self.clear()
        self[key] = recipe


class Known(NamedTuple):
    """How the calls with arrays of one type are known. The array is the first argument.

    Attributes
    ----------
    call : callable
        The result of a call that has a recipe among those of its function; else None.
    key : callable
        What a recipe is to be kept under; None if this call cannot have one.
    """

    call: Callable[[Recipes, tuple[Any, ...], dict[str, Any]], Any]
    key: Callable[[tuple[Any, ...], dict[str, Any]], Hashable]


KNOWN: dict[type, Known] = {}  # by the exact type of an array


def may_repeat(request: Request) -> bool:
    """Whether such a call reads and writes the input, what it returns and numbers, and no more."""
    return request.out is None and all(type(value) in (int, float) for value in request.operands)


class _Recorder:
    """In place of a plan's kernels: notes which are called, and with what."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.calls.append((name, args))


def recorded(layout: Layout, run: Callable[[Plan], None]) -> list[tuple[str, tuple[Any, ...]]]:
    """The kernels that an operator calls, and with what, found out by watching it do so."""
    recorder = _Recorder()
    run(Plan(layout, cast(Any, recorder)))
    return recorder.calls


_Maker = Callable[[Buffer], Callable[[], Any]]


def steps(
    ready: Prepared,
    made: Sequence[Buffer],
    given: int,
    run: Callable[[Plan, tuple[object, ...], tuple[object, ...], object], None],
    maker: _Maker,
    threads: Callable[[], int],
    returned: int,
) -> Callable[..., Any]:
    """What an operator does to any arrays of one kind.

    Parameters
    ----------
    ready : Prepared
        The operator on one kind of array.
    made : sequence of Buffer
        The arrays that it writes.
    given : int
        How many it reads.
    run : callable
        Calls it, with a plan, the arrays that are given, those that are made and the number of
        threads.
    maker : callable
        Makes of a buffer the function that makes such an array, not initialised.
    threads : callable
        How many threads to use.
    returned : int
        How many of the arrays that it writes are the result.
    """
    holes = tuple(object() for _ in range(given + len(made) + 1))
    calls = recorded(
        ready.layout, lambda plan: run(plan, holes[:given], holes[given:-1], holes[-1])
    )
    bound = tuple((getattr(ready.plan.kernels, name), args) for name, args in calls)
    from poolgrad import numpy as front  # whose arrays are allocated fastest

    makers = (*map(maker, made[:returned]), *map(front.maker, made[returned:]))
    return Steps(bound, holes, makers, threads, returned).run


def forward(
    ready: Prepared,
    maker: _Maker,
    threads: Callable[[], int],
    operand: Any = None,
    keep: Sequence[Buffer] = (),
    indices: bool = False,
) -> Callable[[Any], Any]:
    """The forward pass of an operator that reads one array, and numbers; see `steps`.

    It gives the output or, if there is more, a tuple of the output, the `indices` of a selecting
    operator, and what is to be kept: the residual (`keep`), the last of a learned parameter or not.
    """
    operator = ready.operator
    residual = keep or ready.residual * indices  # indices are made from routes
    unwanted = (None,) * (len(ready.residual) - len(residual)) * bool(residual)
    found = (ready.per_output("int64"),) * indices

    def run(plan: Plan, given: Any, made: Any, count: Any) -> None:
        routes = made[1 + indices :]
        kept = (*routes, *unwanted)
        operator.forward(plan, given[0], operand, made[0], kept, count, *ready.options)
        if indices:
            plan.kernels.route_indices(routes[0], made[1], None, count)

    made = (ready.output, *found, *residual)
    return steps(ready, made, 1, run, maker, threads, 1 + indices + len(keep))


def needed(ready: Prepared) -> tuple[Buffer, ...]:
    """The residual without that of a learned parameter: numbers need no gradient."""
    return ready.residual[:-1] if ready.operator.learned else ready.residual


def pull(
    ready: Prepared,
    maker: _Maker,
    threads: Callable[[], int],
    operand: Any = None,
) -> Callable[..., Any]:
    """Its pullback: takes the gradient, the input if the operator is curved, and what was kept."""
    operator = ready.operator
    first = 1 + operator.curved

    def run(plan: Plan, given: Any, made: Any, count: Any) -> None:
        x = given[1] if operator.curved else None
        residual = given[first:]
        operator.pull(plan, given[0], x, operand, residual, made[0], count, *ready.options)

    return steps(ready, (ready.input,), first + len(needed(ready)), run, maker, threads, 1)


def squeezed(request: Request, ready: Prepared, pool: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same without the pooled axes, unless they are to be kept."""
    if request.keepdims:
        return pool
    pooled = ready.layout.pooled
    if request.return_indices:
        return lambda x: tuple(array.squeeze(pooled) for array in pool(x))
    return lambda x: pool(x).squeeze(pooled)
