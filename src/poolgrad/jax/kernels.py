"""Implements the primitives on CPUs with the compiled kernels, through XLA's FFI."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, ShapeDtypeStruct

from poolgrad import core
from poolgrad.call_cache import recorded
from poolgrad.dtypes import DTYPE_NAMES
from poolgrad.jax import portable
from poolgrad.jax.sharding import sharded
from poolgrad.jax.static import Static
from poolgrad.operators import Prepared

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
    return _call(pool, "forward", x, None, operands, keep=keep)


def derivative(*args: Array, pool: Static, learned: bool, transpose: bool) -> list[Array]:
    """Compute the tangent of the output, or the gradients of input and learned argument."""
    if pool.operator.nonlinear and not transpose:
        return portable.derivative(*args, pool=pool, learned=learned, transpose=transpose)
    source, (x, operands, residual) = args[0], pool.operator.split(args[1:])
    made = _call(pool, "vjp" if transpose else "jvp", source, x, operands, residual)
    if learned:
        (theta,), layout = operands, pool.prepared(source, made[0].shape).layout
        others = pool.operator.operand.summed_axes(theta.shape, layout)
        slopes = source.astype(residual[-1].dtype) * residual[-1]
        made.append(slopes.sum(others, dtype=jnp.float64).astype(theta.dtype))
    return made


class _Slot:
    """Stands for an array while the kernel calls of an operator are recorded.

    `array` is its shape and dtype until a kernel writes it.
    """

    def __init__(self, array: Any) -> None:
        self.array = array


def _call(
    pool: Static,
    method: str,
    source: Array,
    x: Array | None,
    operands: Sequence[Array],
    residual: Sequence[Array] = (),
    keep: int = 0,
) -> list[Array]:
    """Call the kernels of an operator through XLA and return their results.

    Parameters
    ----------
    pool : Static
        The operator.
    method : str
        Its method: ``"forward"``, ``"vjp"`` or ``"jvp"``.
    source, x, operands, residual : array or sequence of array
        What the method reads; see `KernelCall`.
    keep : int
        How many arrays of the residual the forward pass returns.
    """
    operator = pool.operator
    # 64-bit integers may be disabled outside.
    wide = (i.astype(jnp.int64) if i.dtype == jnp.int32 else i for i in operands)
    inputs = (source, *(() if x is None else (x,)), *wide, *residual)
    operand_index = 1 + (x is not None)

    def local(*arrays: Array) -> list[Array]:
        shape = pool.before(arrays[0].shape)
        ready = pool.prepared(arrays[0], shape)
        made = [ready.input if method == "vjp" else ready.output, *ready.residual[:keep]]
        shapes = [ShapeDtypeStruct(b.shape, jnp.dtype(b.dtype)) for b in made]
        sources, targets = [*map(_Slot, arrays)], [*map(_Slot, shapes)]
        kept: tuple[Any, ...] = (*sources[operand_index + len(operands) :],)
        if keep:
            kept = (*targets[1:], *(None,) * (len(ready.residual) - keep))
        how = {"residual": kept, "threads": None, "x": None if x is None else sources[1]}
        if operands:
            operand = sources[operand_index]
            how["operand"] = operator.operand.kernel_form(operand, operand.array.size, lambda o: o)

        def run(kernels: Any) -> None:
            getattr(operator, method)(ready.call(sources[0], targets[0], kernels, **how))

        whole = targets[0] if method == "vjp" else sources[0]
        for name, args in recorded(run):
            _run(name, args, whole, ready)
        return [slot.array for slot in targets]

    pooled = pool.prepared(source, pool.before(source.shape)).layout.pooled
    return sharded(pool, local, inputs, pooled, operand_index)


def _run(name: str, arguments: Sequence[Any], whole: _Slot, ready: Prepared) -> None:
    """Call one kernel and store the arrays that it writes in their slots.

    `whole` is an array of the input's shape. csrc/bindings/xla/README.md describes the attributes.
    """
    layout = ready.layout
    args = [
        _Slot(jnp.full(a.shape, a.item(), a.dtype)) if isinstance(a, np.ndarray) else a
        for a in arguments[:-1]  # without the number of threads: XLA has one
    ]
    slots = dict.fromkeys(a for a in (whole, *args) if isinstance(a, _Slot))
    results = [s for s in slots if isinstance(s.array, ShapeDtypeStruct)]
    operands = [s for s in slots if s not in results]
    numbers: dict[_Slot | None, int] = {s: k for k, s in enumerate(operands)}
    numbers |= {s: -2 - k for k, s in enumerate(results)}
    numbers[None] = -1
    made = jax.ffi.ffi_call(TARGET, [s.array for s in results])(
        *(s.array for s in operands),
        kernel=name,
        arrays=_integers(numbers[a] for a in args if a is None or isinstance(a, _Slot)),
        integers=_integers(
            int(np.float32(a).view(np.int32)) if isinstance(a, float) else a
            for a in args
            if isinstance(a, (int, float))
        ),
        input=np.int64(numbers[whole]),
        in_dtype=np.int64(DTYPE_NAMES.index(layout.dtype)),
        out_dtype=np.int64(DTYPE_NAMES.index(layout.out_dtype)),
        route_bits=np.int64(ready.route_bits),
        inner_axis=np.int64(ready.inner),
        axes=_integers(core.axis_integers(layout)),
    )
    for slot, array in zip(results, made, strict=True):
        slot.array = array


def _integers(numbers: Iterable[int]) -> np.ndarray:
    return np.array([*numbers], np.int64)


register()
