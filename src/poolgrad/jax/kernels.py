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
from poolgrad.core import axis_integers
from poolgrad.interface import Buffer
from poolgrad.jax import portable
from poolgrad.jax.sharding import sharded
from poolgrad.jax.static import Static
from poolgrad.operators import Prepared

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

    def results(ready: Prepared) -> list[Buffer]:
        return [ready.output, *ready.residual[:keep]]

    return _call(pool, "forward", x.shape, results, x, None, operands, ())


def jvp(*args: Array, pool: Static, learned: bool) -> list[Array]:
    """Compute the tangent of the output."""
    if pool.operator.nonlinear:
        return portable.jvp(*args, pool=pool, learned=learned)
    t, *rest = args
    _, operands, residual = pool.held(tuple(rest))
    return _call(pool, "jvp", t.shape, lambda ready: [ready.output], t, None, operands, residual)


def vjp(gy: Array, *args: Array, pool: Static, sizes: tuple[int, ...], learned: bool) -> Any:
    """Compute the gradients of the input and, if requested, of the learned argument."""
    x, operands, residual = pool.held(args)
    shape = pool.before(gy.shape, sizes)
    gradients = _call(pool, "vjp", shape, lambda ready: [ready.input], gy, x, operands, residual)
    if learned:
        (theta,), layout = operands, pool.prepared(gy, shape).layout
        others = pool.operator.operand.summed_axes(theta.shape, layout)
        slopes = gy.astype(residual[-1].dtype) * residual[-1]
        gradients.append(slopes.sum(others, dtype=jnp.float64).astype(theta.dtype))
    return gradients


_THREADS: Any = object()  # stands for XLA's number of threads


class _Placeholder:
    """A placeholder for an array while the kernel calls of an operator are recorded."""

    def __init__(self, array: Any) -> None:
        self.array = array


def _call(
    pool: Static,
    method: str,
    in_shape: Shape,
    results: Callable[[Prepared], list[Buffer]],
    source: Array,
    x: Array | None,
    operands: Sequence[Array],
    residual: Sequence[Array],
) -> list[Array]:
    """Call the kernels of an operator through XLA and return their results.

    Parameters
    ----------
    pool : Static
        The operator.
    method : str
        Its method: ``"forward"``, ``"vjp"`` or ``"jvp"``.
    in_shape : tuple of int
        Shape of the input.
    results : callable
        Returns the buffers of the results, for a prepared call.
    source, x, operands, residual : array or sequence of array
        What the method reads; see `KernelCall`.
    """
    operator, sizes = pool.operator, pool.sizes(in_shape)
    # 64-bit integers may be disabled outside.
    wide = (i.astype(jnp.int64) if i.dtype == jnp.int32 else i for i in operands)
    inputs = (source, *(() if x is None else (x,)), *wide, *residual)
    operand_index = 1 + (x is not None)

    def local(*arrays: Array) -> list[Array]:
        shape = pool.before(arrays[0].shape, sizes)
        ready = pool.prepared(arrays[0], shape)
        shapes = [ShapeDtypeStruct(b.shape, jnp.dtype(b.dtype)) for b in results(ready)]
        sources, targets = [_Placeholder(a) for a in arrays], [_Placeholder(s) for s in shapes]
        kept: tuple[Any, ...] = (*sources[operand_index + len(operands) :],)
        if method == "forward" and targets[1:]:
            kept = (*targets[1:], *(None,) * (len(ready.residual) - len(targets[1:])))
        how: dict[str, Any] = {"residual": kept, "threads": _THREADS}
        if operands:
            operand = sources[operand_index]
            how["operand"] = operator.operand.kernel_form(operand, operand.array.size, lambda o: o)
        if x is not None:
            how["x"] = sources[1]

        def run(kernels: Any) -> None:
            getattr(operator, method)(ready.call(sources[0], targets[0], kernels, **how))

        values: dict[_Placeholder, Array] = dict(zip(sources, arrays, strict=True))
        whole = sources[0] if arrays[0].shape == shape else targets[0]
        for name, args in recorded(run):
            _run(name, args, values, whole, _plan_attributes(ready))
        return [values[h] for h in targets]

    pooled = pool.prepared(source, in_shape).layout.pooled
    return sharded(pool, local, inputs, pooled, operand_index)


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


def _plan_attributes(ready: Prepared) -> dict[str, Any]:
    """Return the attributes that describe the plan of a call."""
    layout = ready.layout
    axes = zip(layout.pooled, layout.window.axes, strict=True)
    return {
        "in_dtype": layout.dtype,
        "out_dtype": layout.out_dtype,
        "route_bits": np.int64(ready.route_bits),
        "inner_axis": np.int64(ready.inner),
        "axes": _integers(n for axis, windows in axes for n in (axis, *axis_integers(windows))),
    }


def _integers(numbers: Iterable[int]) -> np.ndarray:
    return np.array([*numbers], np.int64)


register()
