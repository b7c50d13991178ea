"""The primitives on CPUs: our compiled kernels, through XLA's foreign-function interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct

from poolgrad import core
from poolgrad.contract import Buffer
from poolgrad.core import Layout, Plan, as_kernels_take
from poolgrad.jax import portable
from poolgrad.jax.pooling import Pooling
from poolgrad.recipes import recorded

# The same handler under two names: XLA may split a batch where examples do not depend on where in
# the batch they are.
SPLIT, WHOLE = "poolgrad", "poolgrad_whole"


def register() -> None:
    """Tell XLA of the kernels.

    Raises
    ------
    ImportError
        If they were built without XLA's interface, or for another one.
    """
    handler = core.xla_handler()
    if handler is None:
        raise ImportError(
            "poolgrad was built without jaxlib, whose headers its kernels need to run under JAX. "
            "Install a wheel, or build it again with jaxlib installed"
        )
    for name in (SPLIT, WHOLE):
        try:
            jax.ffi.register_ffi_target(name, handler, platform="cpu")
        except Exception as error:
            raise ImportError(
                f"this jaxlib ({jax.lib.__version__}) does not take poolgrad's kernels, which were "
                f"built for another version of XLA's interface: {error}. Build poolgrad again "
                "with this jaxlib installed"
            ) from error
    jax.ffi.register_ffi_target_as_batch_partitionable(SPLIT)


def forward(x: Array, *given: Array, pool: Pooling, keep: int) -> list[Array]:
    """The output and the first arrays of the residual."""
    layout = pool.layout(x.shape, x.dtype.name)
    output = Buffer(layout.out_shape, (), layout.out_dtype)
    kept = pool.operator.residual(layout, *pool.options)

    def run(plan: Plan, arrays: Sequence[Any], made: Sequence[Any]) -> None:
        argument = _argument(pool, layout, arrays[1:])
        residual = (*made[1:], *(None,) * (len(kept) - keep)) if keep else ()
        pool.operator.forward(plan, arrays[0], argument, made[0], residual, _THREADS, *pool.options)

    return _call(pool, layout, (x, *_given(pool, given)), (output, *kept[:keep]), run)


def push(*args: Array, pool: Pooling, learned: bool) -> list[Array]:
    """The tangent of the output."""
    if pool.operator.curved:
        return portable.push(*args, pool=pool, learned=learned)
    t, *rest = args
    _, given, residual = pool.held(tuple(rest))
    layout = pool.layout(t.shape, t.dtype.name)
    output = Buffer(layout.out_shape, (), layout.out_dtype)

    def run(plan: Plan, arrays: Sequence[Any], made: Sequence[Any]) -> None:
        argument = _argument(pool, layout, arrays[1 : 1 + pool.given])
        kept = tuple(arrays[1 + pool.given :])
        pool.operator.push(plan, arrays[0], argument, kept, made[0], _THREADS, *pool.options)

    return _call(pool, layout, (t, *_given(pool, given), *residual), (output,), run)


def pull(gy: Array, *args: Array, pool: Pooling, sizes: tuple[int, ...], learned: bool) -> Any:
    """The gradients of the input and, if it is wanted, of the argument."""
    x, given, residual = pool.held(args)
    layout = pool.layout(pool.before(gy.shape, sizes), gy.dtype.name)
    target = Buffer(layout.in_shape, (), layout.dtype)
    first = 1 + pool.operator.curved
    held = (gy, *(() if x is None else (x,)), *_given(pool, given), *residual)

    def run(plan: Plan, arrays: Sequence[Any], made: Sequence[Any]) -> None:
        values = arrays[1] if pool.operator.curved else None
        argument = _argument(pool, layout, arrays[first : first + pool.given])
        kept = tuple(arrays[first + pool.given :])
        pool.operator.pull(
            plan, arrays[0], values, argument, kept, made[0], _THREADS, *pool.options
        )

    gradients = _call(pool, layout, held, (target,), run)
    if learned:
        gradients.append(_summed(gy.astype(residual[-1].dtype) * residual[-1], given[0], layout))
    return gradients


def _summed(slopes: Array, argument: Array, layout: Layout) -> Array:
    """The gradient of a learned argument, from that of each output."""
    others = tuple(a for a in range(slopes.ndim) if not (argument.ndim and a == layout.channel))
    return slopes.sum(others, dtype=jnp.float64).astype(argument.dtype)


_THREADS = object()  # stands for as many as XLA has


def _given(pool: Pooling, given: Sequence[Array]) -> tuple[Array, ...]:
    """The array beside the input as the kernels read it."""
    if pool.kind == "indices":
        return tuple(i.astype(jnp.int64) for i in given)
    return tuple(given)


def _argument(pool: Pooling, layout: Layout, holes: Sequence[Any]) -> Any:
    """What stands for the array beside the input, as an operator's methods take it."""
    if not holes:
        return None
    return (holes[0], holes[0].size) if pool.kind == "learned" else holes[0]


class _Hole:
    """What stands for an array while an operator is watched."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.size = array.size


def _call(
    pool: Pooling,
    layout: Layout,
    given: Sequence[Array],
    made: Sequence[Buffer],
    run: Callable[[Plan, Sequence[Any], Sequence[Any]], None],
) -> list[Array]:
    """The kernels that an operator calls, called by XLA; what they made."""
    shapes = [ShapeDtypeStruct(b.shape, jnp.dtype(b.dtype)) for b in made]
    holes = [_Hole(a) for a in (*given, *shapes)]
    values: dict[_Hole, Array] = dict(zip(holes, given, strict=False))
    target = WHOLE if pool.kind in ("seed", "learned") else SPLIT
    whole = holes[0] if given[0].shape == layout.in_shape else holes[len(given)]
    split = holes[: len(given)], holes[len(given) :]
    for name, asked in recorded(layout, lambda plan: run(plan, *split)):
        args = [_Hole(a) if isinstance(a, np.ndarray) else a for a in asked]
        values |= {a: jnp.asarray(a.array) for a in args if isinstance(a, _Hole) and a not in holes}
        used = [whole, *(a for arg in args for a in (arg if isinstance(arg, list) else [arg]))]
        mentioned = list(dict.fromkeys(a for a in used if isinstance(a, _Hole)))
        operands = [h for h in mentioned if h in values]
        results = [h for h in mentioned if h not in values]
        names = {h: f"<{k}" for k, h in enumerate(operands)}
        names |= {h: f">{k}" for k, h in enumerate(results)}
        words = " ".join([name, names[whole], *_described(pool, layout), *_words(args, names)])
        call = jax.ffi.ffi_call(target, [h.array for h in results])
        outputs = call(*(values[h] for h in operands), words=words)
        values |= zip(results, outputs, strict=True)
    return [values[h] for h in split[1]]


def _described(pool: Pooling, layout: Layout) -> list[str]:
    """A plan in words."""
    bits = pool.operator.route_bits(layout.window, *pool.options)
    axes = zip(layout.pooled, layout.window.axes, strict=True)
    numbers = [bits, pool.inner(layout.in_shape), len(layout.pooled)]
    numbers += [n for axis, windows in axes for n in (axis, *as_kernels_take(windows))]
    return [layout.dtype, layout.out_dtype, *map(str, numbers)]


def _words(args: Sequence[Any], names: dict[_Hole, str]) -> list[str]:
    """The arguments of a kernel in words; see csrc/xla.cpp."""
    words: list[str] = []
    for arg in args:
        if isinstance(arg, list):
            words += [f"[{len(arg)}", *_words(arg, names)]
        elif isinstance(arg, _Hole):
            words.append(names[arg])
        elif arg is _THREADS:
            words.append("*")
        else:
            words.append("-" if arg is None else str(int(arg)) if arg in (True, False) else str(arg))
    return words


register()
