"""Calls that were made before, made again without being looked at again.

What a pooling does depends on its arguments and on the kind of its input: shape, strides and dtype.
A front end says what its arrays are asked (a `Kind`, of the compiled module: asking is most of what
a small call costs) and makes of a call a recipe, the function that does the same to another array
of that kind (`recipe`; None if there is none).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from poolgrad.contract import Buffer, Request
from poolgrad.operators import Prepared

_MOST = 4096  # recipes of one function


class Recipes(dict[Hashable, Callable[[Any], Any]]):
    """The recipes of one function, by their keys."""

    def keep(self, key: Hashable, recipe: Callable[[Any], Any] | None) -> None:
        """Keep a recipe, if there is one; not more than so many."""
        if recipe is not None:
            if len(self) >= _MOST:
                self.clear()
            self[key] = recipe


class Known(NamedTuple):
    """How the calls with arrays of one type are known. The array is the first argument.

    Attributes
    ----------
    find : callable
        The recipe for a call, or None, among those of its function.
    key : callable
        What a recipe is to be kept under; None if this call cannot have one.
    """

    find: Callable[[Recipes, tuple[Any, ...], dict[str, Any]], Callable[[Any], Any] | None]
    key: Callable[[tuple[Any, ...], dict[str, Any]], Hashable]


KNOWN: dict[type, Known] = {}  # by the exact type of an array


def may_repeat(request: Request) -> bool:
    """Whether the input is all that such a call reads or writes, besides what it returns."""
    return request.out is None and not request.return_indices and not request.arguments


def forward(
    ready: Prepared,
    options: tuple[Any, ...],
    maker: Callable[[Buffer], Callable[[], Any]],
    threads: Callable[[], int],
) -> Callable[[Any], Any]:
    """The forward pass of an operator that reads one array, and keeps nothing.

    Parameters
    ----------
    ready : Prepared
        The operator on one kind of array.
    options : tuple
        Of the operator.
    maker : callable
        Makes of a buffer the function that makes such an array, not initialised.
    threads : callable
        How many threads to use.
    """
    run, plan = ready.operator.forward, ready.plan
    room = maker(Buffer(plan.out_shape, plan.order, plan.out_dtype))

    def pool(x: Any) -> Any:
        y = room()
        run(plan, x, None, y, (), threads(), *options)
        return y

    return pool


def squeezed(request: Request, ready: Prepared, pool: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same without the pooled axes, unless they are to be kept."""
    if request.keepdims:
        return pool
    pooled = ready.plan.pooled
    return lambda x: pool(x).squeeze(pooled)
