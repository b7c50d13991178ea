"""Implements the primitives on CPUs with the compiled kernels, through XLA's FFI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct

from poolgrad import core
from poolgrad.call_cache import recorded
from poolgrad.core import Layout, Plan, as_kernels_take
from poolgrad.interface import Buffer, per_input, per_output
from poolgrad.jax import portable
from poolgrad.jax.sharding import sharded
from poolgrad.jax.static import Static

Shape = tuple[int, ...]

TARGET = "poolgrad"


def register() -> None:
    """Register the kernels with XLA.

    Raises
    ------
    ImportError
        If they were built without XLA's interface, or for another one.
    """
    handlers = core.xla_handler()
    if handlers is None:
        raise ImportError(
            "poolgrad was built without jaxlib, whose headers its kernels need to run under JAX. "
            "Install a wheel, or build it again with jaxlib installed"
        )
    try:
        jax.ffi.register_ffi_target(TARGET, handlers, platform="cpu")
    except Exception as error:
        raise ImportError(
            f"this jaxlib ({version('jaxlib')}) does not support poolgrad's kernels, which were "
            f"built for another version of XLA's interface: {error}. Build poolgrad again "
            "with this jaxlib installed"
        ) from error


def forward(x: Array, *operands: Array, pool: Static, keep: int) -> list[Array]:
    """Compute the output and the first arrays of the residual."""

    def made(layout: Layout) -> list[Buffer]:
        kept = pool.operator.residual(layout, *pool.options)
        return [_output(layout), *kept[:keep]]

    def run(plan: Plan, arrays: _Placeholders, made: _Placeholders) -> None:
        missing = len(pool.operator.residual(plan.layout, *pool.options)) - keep
        residual = (*made[1:], *(None,) * missing) if keep else ()
        operand = _operand(pool, arrays[1:])
        pool.operator.forward(plan, arrays[0], operand, made[0], residual, _THREADS, *pool.options)

    return _call(pool, _same, made, run, (x, *_wide_operands(pool, operands)), operand_index=1)


def jvp(*args: Array, pool: Static, learned: bool) -> list[Array]:
    """Compute the tangent of the output."""
    if pool.operator.nonlinear:
        return portable.jvp(*args, pool=pool, learned=learned)
    t, *rest = args
    _, operands, residual = pool.held(tuple(rest))
    first = 1 + pool.operand_count

    def run(plan: Plan, arrays: _Placeholders, made: _Placeholders) -> None:
        operand, kept = _operand(pool, arrays[1:first]), tuple(arrays[first:])
        pool.operator.jvp(plan, arrays[0], operand, kept, made[0], _THREADS, *pool.options)

    held = (t, *_wide_operands(pool, operands), *residual)
    return _call(pool, _same, lambda layout: [_output(layout)], run, held, operand_index=1)


def vjp(gy: Array, *args: Array, pool: Static, sizes: tuple[int, ...], learned: bool) -> Any:
    """Compute the gradients of the input and, if requested, of the learned argument."""
    x, operands, residual = pool.held(args)
    first = 1 + pool.operator.nonlinear
    second = first + pool.operand_count

    def run(plan: Plan, arrays: _Placeholders, made: _Placeholders) -> None:
        values = arrays[1] if pool.operator.nonlinear else None
        operand, kept = _operand(pool, arrays[first:second]), tuple(arrays[second:])
        way = (plan, arrays[0], values, operand, kept, made[0], _THREADS)
        pool.operator.vjp(*way, *pool.options)

    def before(shape: Shape) -> Shape:
        return pool.before(shape, sizes)

    held = (gy, *(() if x is None else (x,)), *_wide_operands(pool, operands), *residual)
    gradients = _call(
        pool, before, lambda layout: [per_input(layout)], run, held, operand_index=first
    )
    if learned:
        layout = pool.layout(before(gy.shape), gy.dtype.name)
        slopes = gy.astype(residual[-1].dtype) * residual[-1]
        gradients.append(_summed(pool, slopes, operands[0], layout))
    return gradients


def _same(shape: Shape) -> Shape:
    return shape


def _output(layout: Layout) -> Buffer:
    return per_output(layout, layout.out_dtype)


def _summed(pool: Static, slopes: Array, theta: Array, layout: Layout) -> Array:
    """Sum the derivatives of outputs to the gradient of a learned parameter."""
    others = pool.operator.operand.summed_axes(theta.shape, layout)
    return slopes.sum(others, dtype=jnp.float64).astype(theta.dtype)


_THREADS: Any = object()  # stands for XLA's number of threads


def _wide_operands(pool: Static, operands: Sequence[Array]) -> tuple[Array, ...]:
    """Return the extra operand in the form of the kernels; 64-bit integers may be disabled."""
    return tuple(i.astype(jnp.int64) if i.dtype == jnp.int32 else i for i in operands)


class _Placeholder:
    """A placeholder for an array while the kernel calls of an operator are recorded."""

    def __init__(self, array: Any) -> None:
        self.array = array


_Placeholders = Sequence[_Placeholder]


def _operand(pool: Static, holes: _Placeholders) -> Any:
    """Return the placeholder of the extra operand, in the form of an operator's methods."""
    if not holes:
        return None
    (hole,) = holes
    return pool.operator.operand.kernel_form(hole, hole.array.size, lambda hole: hole)


def _call(
    pool: Static,
    in_shape: Callable[[Shape], Shape],
    made: Callable[[Layout], list[Buffer]],
    run: Callable[[Plan, _Placeholders, _Placeholders], None],
    arrays: tuple[Array, ...],
    operand_index: int,
) -> list[Array]:
    """Call the kernels of an operator through XLA and return their results.

    Parameters
    ----------
    pool : Static
        The operator.
    in_shape : callable
        Returns the shape of the input, from that of the first array.
    made : callable
        Returns the buffers of the results, for a layout.
    run : callable
        Calls the operator with a plan and placeholders of the inputs and of the results.
    arrays : tuple of array
        The inputs.
    operand_index : int
        Index of the extra operand among the inputs, if there is one.
    """

    def local(*arrays: Array) -> list[Array]:
        layout = pool.layout(in_shape(arrays[0].shape), arrays[0].dtype.name)
        shapes = [ShapeDtypeStruct(b.shape, jnp.dtype(b.dtype)) for b in made(layout)]
        sources, targets = [_Placeholder(a) for a in arrays], [_Placeholder(s) for s in shapes]
        values: dict[_Placeholder, Array] = dict(zip(sources, arrays, strict=True))
        whole = sources[0] if arrays[0].shape == layout.in_shape else targets[0]
        for name, args in recorded(layout, lambda plan: run(plan, sources, targets)):
            _run(name, args, values, whole, _plan_attributes(pool, layout))
        return [values[h] for h in targets]

    pooled = pool.layout(in_shape(arrays[0].shape), arrays[0].dtype.name).pooled
    return sharded(pool, local, arrays, pooled, operand_index)


def _run(
    name: str,
    arguments: Sequence[Any],
    values: dict[_Placeholder, Array],
    whole: _Placeholder,
    plan: dict[str, Any],
) -> None:
    """Call one kernel and add the arrays that it writes to `values`.

    `whole` is an array of the input's shape. csrc/xla/README.md describes the attributes.
    """
    args = [a for a in arguments if a is not _THREADS]
    args = [_Placeholder(a) if isinstance(a, np.ndarray) else a for a in args]
    values |= {
        a: jnp.full(a.array.shape, a.array.item(), a.array.dtype)
        for a in args
        if isinstance(a, _Placeholder) and isinstance(a.array, np.ndarray)
    }
    listed = next((a for a in args if isinstance(a, list)), [])
    flat = [a for arg in args for a in (arg if isinstance(arg, list) else [arg])]
    holes = list(dict.fromkeys(a for a in (whole, *flat) if isinstance(a, _Placeholder)))
    operands = [h for h in holes if h in values]
    results = [h for h in holes if h not in values]
    numbers: dict[_Placeholder | None, int] = {h: k for k, h in enumerate(operands)}
    numbers |= {h: -2 - k for k, h in enumerate(results)}
    numbers[None] = -1
    call = jax.ffi.ffi_call(TARGET, [h.array for h in results])
    made = call(
        *(values[h] for h in operands),
        kernel=name,
        option=next((a for a in args if isinstance(a, str)), ""),
        arrays=_integers(numbers[a] for a in flat if a is None or isinstance(a, _Placeholder)),
        integers=_integers(a for a in args if isinstance(a, int)),
        list=np.int64(len(listed)),
        input=np.int64(numbers[whole]),
        **plan,
    )
    values |= zip(results, made, strict=True)


def _plan_attributes(pool: Static, layout: Layout) -> dict[str, Any]:
    """Return the attributes that describe the plan of a call."""
    axes = zip(layout.pooled, layout.window.axes, strict=True)
    return {
        "in_dtype": layout.dtype,
        "out_dtype": layout.out_dtype,
        "route_bits": np.int64(pool.operator.route_bits(layout.window, *pool.options)),
        "inner_axis": np.int64(pool.inner(layout.in_shape)),
        "axes": _integers(n for axis, windows in axes for n in (axis, *as_kernels_take(windows))),
    }


def _integers(numbers: Iterable[int]) -> np.ndarray:
    return np.array([*numbers], np.int64)


register()
