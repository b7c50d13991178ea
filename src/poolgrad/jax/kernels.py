"""The primitives on CPUs: our compiled kernels, through XLA's foreign-function interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
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
from poolgrad.jax.sharding import spread
from poolgrad.recipes import recorded

Shape = tuple[int, ...]

TARGET = "poolgrad"


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
    try:
        jax.ffi.register_ffi_target(TARGET, handler, platform="cpu")
    except Exception as error:
        raise ImportError(
            f"this jaxlib ({version('jaxlib')}) does not take poolgrad's kernels, which were "
            f"built for another version of XLA's interface: {error}. Build poolgrad again "
            "with this jaxlib installed"
        ) from error


def forward(x: Array, *given: Array, pool: Pooling, keep: int) -> list[Array]:
    """The output and the first arrays of the residual."""

    def made(layout: Layout) -> list[Buffer]:
        kept = pool.operator.residual(layout, *pool.options)
        return [_output(layout), *kept[:keep]]

    def run(plan: Plan, arrays: _Holes, made: _Holes) -> None:
        missing = len(pool.operator.residual(plan, *pool.options)) - keep
        residual = (*made[1:], *(None,) * missing) if keep else ()
        operand = _operand(pool, arrays[1:])
        pool.operator.forward(plan, arrays[0], operand, made[0], residual, _THREADS, *pool.options)

    return _call(pool, _same, made, run, (x, *_given(pool, given)), beside=1)


def push(*args: Array, pool: Pooling, learned: bool) -> list[Array]:
    """The tangent of the output."""
    if pool.operator.curved:
        return portable.push(*args, pool=pool, learned=learned)
    t, *rest = args
    _, given, residual = pool.held(tuple(rest))
    first = 1 + pool.given

    def run(plan: Plan, arrays: _Holes, made: _Holes) -> None:
        operand, kept = _operand(pool, arrays[1:first]), tuple(arrays[first:])
        pool.operator.push(plan, arrays[0], operand, kept, made[0], _THREADS, *pool.options)

    held = (t, *_given(pool, given), *residual)
    return _call(pool, _same, lambda layout: [_output(layout)], run, held, beside=1)


def pull(gy: Array, *args: Array, pool: Pooling, sizes: tuple[int, ...], learned: bool) -> Any:
    """The gradients of the input and, if it is wanted, of the argument."""
    x, given, residual = pool.held(args)
    first = 1 + pool.operator.curved
    second = first + pool.given

    def run(plan: Plan, arrays: _Holes, made: _Holes) -> None:
        values = arrays[1] if pool.operator.curved else None
        operand, kept = _operand(pool, arrays[first:second]), tuple(arrays[second:])
        way = (plan, arrays[0], values, operand, kept, made[0], _THREADS)
        pool.operator.pull(*way, *pool.options)

    def before(shape: Shape) -> Shape:
        return pool.before(shape, sizes)

    held = (gy, *(() if x is None else (x,)), *_given(pool, given), *residual)
    gradients = _call(pool, before, lambda layout: [_input(layout)], run, held, beside=first)
    if learned:
        layout = pool.layout(before(gy.shape), gy.dtype.name)
        slopes = gy.astype(residual[-1].dtype) * residual[-1]
        gradients.append(_summed(pool, slopes, given[0], layout))
    return gradients


def _same(shape: Shape) -> Shape:
    return shape


def _output(layout: Layout) -> Buffer:
    return Buffer(layout.out_shape, layout.order, layout.out_dtype)


def _input(layout: Layout) -> Buffer:
    return Buffer(layout.in_shape, layout.order, layout.dtype)


def _summed(pool: Pooling, slopes: Array, theta: Array, layout: Layout) -> Array:
    """The gradient of a learned parameter, from that of each output."""
    others = pool.operator.operand.summed_axes(theta.shape, layout)
    return slopes.sum(others, dtype=jnp.float64).astype(theta.dtype)


_THREADS: Any = object()  # stands for as many as XLA has


def _given(pool: Pooling, given: Sequence[Array]) -> tuple[Array, ...]:
    """The extra operand as the kernels read it: JAX may have no 64-bit integers outside of here."""
    return tuple(i.astype(jnp.int64) if i.dtype == jnp.int32 else i for i in given)


class _Hole:
    """What stands for an array while an operator is watched."""

    def __init__(self, array: Any) -> None:
        self.array = array


_Holes = Sequence[_Hole]


def _operand(pool: Pooling, holes: _Holes) -> Any:
    """The placeholder of the extra operand, as an operator's methods take it."""
    if not holes:
        return None
    (hole,) = holes
    return pool.operator.operand.kernel_form(hole, hole.array.size, lambda hole: hole)


def _call(
    pool: Pooling,
    in_shape: Callable[[Shape], Shape],
    made: Callable[[Layout], list[Buffer]],
    run: Callable[[Plan, _Holes, _Holes], None],
    given: tuple[Array, ...],
    beside: int,
) -> list[Array]:
    """The kernels that an operator calls, called by XLA; what they made.

    Parameters
    ----------
    pool : Pooling
        The operator.
    in_shape : callable
        The shape of the input, from that of the first array.
    made : callable
        The arrays that are made, for a layout.
    run : callable
        Calls the operator, with a plan, what stands for the given arrays, and for those made.
    given : tuple of array
        What is read.
    beside : int
        Which of these is the operator's own argument, if it has one.
    """

    def local(*given: Array) -> list[Array]:
        layout = pool.layout(in_shape(given[0].shape), given[0].dtype.name)
        shapes = [ShapeDtypeStruct(b.shape, jnp.dtype(b.dtype)) for b in made(layout)]
        sources, targets = [_Hole(a) for a in given], [_Hole(s) for s in shapes]
        values: dict[_Hole, Array] = dict(zip(sources, given, strict=True))
        whole = sources[0] if given[0].shape == layout.in_shape else targets[0]
        for name, args in recorded(layout, lambda plan: run(plan, sources, targets)):
            _run(name, args, values, whole, _described(pool, layout))
        return [values[h] for h in targets]

    pooled = pool.layout(in_shape(given[0].shape), given[0].dtype.name).pooled
    return spread(pool, local, given, pooled, beside)


def _run(
    name: str, asked: Sequence[Any], values: dict[_Hole, Array], whole: _Hole, plan: list[str]
) -> None:
    """Call one kernel; what it made is put among the values.

    `whole`: an array of the input's shape; `plan`: in words.
    """
    args = [_Hole(a) if isinstance(a, np.ndarray) else a for a in asked]
    values |= {
        a: jnp.full(a.array.shape, a.array.item(), a.array.dtype)
        for a in args
        if isinstance(a, _Hole) and isinstance(a.array, np.ndarray)
    }
    listed = [a for arg in args for a in (arg if isinstance(arg, list) else [arg])]
    mentioned = list(dict.fromkeys(a for a in (whole, *listed) if isinstance(a, _Hole)))
    operands = [h for h in mentioned if h in values]
    results = [h for h in mentioned if h not in values]
    names = {h: f"<{k}" for k, h in enumerate(operands)}
    names |= {h: f">{k}" for k, h in enumerate(results)}
    words = " ".join([name, names[whole], *plan, *_words(args, names)])
    call = jax.ffi.ffi_call(TARGET, [h.array for h in results])
    values |= zip(results, call(*(values[h] for h in operands), words=words), strict=True)


def _described(pool: Pooling, layout: Layout) -> list[str]:
    """A plan in words."""
    bits = pool.operator.route_bits(layout.window, *pool.options)
    axes = zip(layout.pooled, layout.window.axes, strict=True)
    numbers = [bits, pool.inner(layout.in_shape), len(layout.pooled)]
    numbers += [n for axis, windows in axes for n in (axis, *as_kernels_take(windows))]
    return [layout.dtype, layout.out_dtype, *map(str, numbers)]


def _words(args: Sequence[Any], names: dict[_Hole, str]) -> list[str]:
    """The arguments of a kernel in words; see csrc/xla/handler.cpp."""
    words: list[str] = []
    for arg in args:
        if isinstance(arg, list):
            words += [f"[{len(arg)}", *_words(arg, names)]
        elif isinstance(arg, _Hole):
            words.append(names[arg])
        elif arg is _THREADS:
            words.append("*")
        else:
            words.append(
                "-" if arg is None else str(int(arg)) if isinstance(arg, bool) else str(arg)
            )
    return words


register()
