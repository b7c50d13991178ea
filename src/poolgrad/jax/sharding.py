"""Runs the kernels on sharded arrays: each device pools its own part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import Array
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from poolgrad.jax.composed import wide
from poolgrad.jax.pooling import Pooling


def spread(
    pool: Pooling,
    local: Callable[..., list[Array]],
    given: Sequence[Array],
    pooled: tuple[int, ...],
    beside: int,
) -> list[Array]:
    """Apply `local` to the part of the arrays on each device.

    Parameters
    ----------
    pool : Pooling
        The operator. A random draw needs the whole batch, because the draws depend on it.
    local : callable
        Function of arrays, for any sizes of the axes that are not pooled.
    given : sequence of array
        Its arguments; the first has the rank of the input.
    pooled : tuple of int
        The pooled axes, which are not sharded.
    beside : int
        Index of the extra operand among the arguments, if there is one.
    """
    made = jax.eval_shape(local, *given)
    operand = pool.operator.operand
    apart = not operand.is_positional
    common = [a if apart and a not in pooled else None for a in range(given[0].ndim)]
    leading = [a for a in common if a is not None]
    own = operand.axes(leading, common)

    def shared(arrays: Sequence[Any], at: int) -> list[list[int | None]]:
        """Return, for each axis of each array, the corresponding axis of the first array."""
        axes = [own if k == at else common for k in range(len(arrays))]
        pairs = zip(axes, arrays, strict=True)
        return [[*(known + [None] * array.ndim)][: array.ndim] for known, array in pairs]

    sides = shared(given, beside if pool.given else -1), shared(made, -1)
    whole: list[str] = []

    def named(axis: int | None) -> str:
        if axis is not None:
            return f"b{axis}"
        whole.append(f"w{len(whole)}")
        return whole[-1]

    words = (", ".join(" ".join(map(named, axes)) or "..." for axes in side) for side in sides)
    split = custom_partitioning(local)

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        # For replicated arrays JAX may report fewer axes.
        known = getattr(arguments[0].sharding, "spec", ())
        spec = [*known, *(None,) * len(common)]

        def over(side: list[list[int | None]]) -> list[NamedSharding]:
            specs = ([None if a is None else spec[a] for a in axes] for axes in side)
            return [NamedSharding(mesh, PartitionSpec(*s)) for s in specs]

        return mesh, wide(local), over(sides[1]), tuple(over(sides[0]))

    split.def_partition(
        partition=partition,
        sharding_rule=" -> ".join(words),
        need_replication_factors=tuple(whole),
    )
    outputs: list[Array] = split(*given)
    return outputs
