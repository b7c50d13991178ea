"""Jitted JAX calls against NumPy, with 64-bit numbers, with the kernels and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from expected_errors import attempt
from frontend_calls import native
from jax.interpreters import mlir
from robustness.calls import Case

import poolgrad
from poolgrad.jax import portable
from poolgrad.jax.primitives import derivative_p, forward_p, lowering

KINDS = (
    "max", "relu_max", "min", "median", "stochastic", "fractional_max", "max_unpool", "avg", "lp",
    "log_mean_exp", "soft", "expected", "mixed", "adaptive_max", "adaptive_avg", "global_max",
    "global_lp",
)  # fmt: skip
CLOSE = {"float64": 1e-10, "float32": 2e-5, "float16": 2e-3, "bfloat16": 2e-2}
WEIGHTED = ("avg", "lp", "log_mean_exp", "soft", "expected", "mixed")


def compare(case: Case) -> None:
    """A jitted call gives what NumPy gives, or the same error."""
    ours, theirs = (attempt(lambda f=f: f(case)) for f in (_by_numpy, _by_jax))
    if isinstance(ours, Exception):
        assert type(theirs) is type(ours)
        assert str(theirs) == str(ours)
    else:
        # Shares of a gradient are no whole numbers: their sum depends on its order.
        summed = case.operator in WEIGHTED or case.kwargs.get("ties") == "split"
        same(ours, theirs, summed)


def _by_jax(case: Case) -> tuple[Any, ...]:
    function = getattr(poolgrad, case.fun)
    x, kwargs = native(case.x), {k: native(v) for k, v in case.kwargs.items()}

    def pool(x: Any) -> Any:
        return function(x, *case.args, **kwargs)

    def both(x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return (pool(x),)
        y, pullback = jax.vjp(pool, x)
        return y, pullback(jnp.asarray(case.gradient(y.shape).astype(y.dtype)))[0]

    with jax.enable_x64(True):
        return tuple(map(np.asarray, jax.jit(both)(jnp.asarray(x))))


def _by_numpy(case: Case) -> tuple[Any, ...]:
    function, x = getattr(poolgrad, case.fun), native(case.x)
    if x.dtype.kind not in "fV":
        return (function(x, *case.args, **case.kwargs),)
    y, pullback = poolgrad.vjp(function, x, *case.args, **case.kwargs)
    return y, pullback(case.gradient(y.shape).astype(y.dtype))


def same(ours: Any, theirs: Any, summed: bool) -> None:
    """Equal to the bit, or to rounding where something is summed."""
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        tolerance = CLOSE.get(a.dtype.name, 0.0) if summed else 0.0
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(known(a), known(b), tolerance, tolerance)


def known(x: np.ndarray) -> np.ndarray:
    """Numbers that NumPy's own tests know: bfloat16 is none."""
    return x.astype(np.float64) if x.dtype.kind in "fV" else x


@contextmanager
def without_kernels() -> Iterator[None]:
    """As if the processor were a device without kernels of ours."""
    kept = mlir._platform_specific_lowerings["cpu"]  # JAX has no way to take one back
    ways: dict[Any, Callable[..., Any]] = {
        forward_p: portable.forward,
        derivative_p: portable.derivative,
    }
    before = {p: kept[p] for p in ways}
    jax.clear_caches()
    for primitive, way in ways.items():
        mlir.register_lowering(primitive, lowering(way), platform="cpu")
    try:
        yield
    finally:
        kept.update(before)
        jax.clear_caches()
