"""Pooling of regions of interest of JAX arrays: values, transformations, batches and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from regions import CALLS, NAMES, boxes, listed, maps  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad import reference  # noqa: E402

each_call = pytest.mark.parametrize(("name", "kwargs"), CALLS, ids=NAMES)
each_name = pytest.mark.parametrize("name", ["roi_pool", "roi_align"])
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def textbook(name: str, x: Any, table: Any, size: Any, kwargs: Any, gy: Any) -> tuple[Any, Any]:
    y, pullback = reference.vjp(getattr(reference, name), x, table, size, **kwargs)
    return y, pullback(gy)


@each_call
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_textbook(name: str, kwargs: dict[str, Any], dtype: str) -> None:
    """Compiled: the output, both modes, and the gradient of the gradient, which is the pooling."""
    x, table, size = maps(dtype=dtype), boxes(), (3, 2)
    gy = np.random.default_rng(2).normal(size=(12, 3, *size)).astype(dtype)
    expected, gradient = textbook(name, x, table, size, kwargs, gy)

    @jax.jit
    def results(x: Any, gy: Any) -> Any:
        call = lambda x: getattr(poolgrad, name)(x, table, size, **kwargs)  # noqa: E731
        y, pullback = jax.vjp(call, x)
        (gx,), transpose = jax.vjp(pullback, gy)
        return y, gx, jax.jvp(call, (x,), (x,))[1], transpose((x,))[0]

    with jax.enable_x64(dtype == "float64"):
        y, gx, tangent, second = results(jnp.asarray(x), jnp.asarray(gy))
    assert (y.dtype, gx.dtype, gx.shape) == (x.dtype, x.dtype, x.shape)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    for made in (y, tangent, second):
        np.testing.assert_allclose(made, expected, **close)
    np.testing.assert_allclose(gx, gradient, **close)


@each_name
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats(name: str, dtype: str) -> None:
    x, table = jnp.asarray(maps(dtype=np.float32)).astype(dtype), boxes()
    y, pullback = jax.vjp(lambda x: getattr(poolgrad, name)(x, table, 3), x)
    wide, gradient = textbook(name, np.asarray(x, np.float32), table, 3, {}, np.asarray(y, "f4"))
    close = {"rtol": TOLERANCE[dtype], "atol": 4 * TOLERANCE[dtype]}
    np.testing.assert_allclose(np.asarray(y, np.float32), wide, **close)
    np.testing.assert_allclose(np.asarray(pullback(y)[0], np.float32), gradient, **close)


@each_name
def test_derivatives_of_higher_order(name: str) -> None:
    """Also forward over reverse; compared with PyTorch's kernels and autograd."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x, table = maps((2, 1, 4, 5)), boxes(5, size=16)

    def loss(x: Any) -> Any:
        return (getattr(poolgrad, name)(x, table, 2) ** 3).sum()

    with jax.enable_x64(True):
        hessian = jax.jit(jax.hessian(loss))(jnp.asarray(x))
        reverse = jax.jacrev(jax.grad(loss))(jnp.asarray(x))
    table = torch.from_numpy(table)
    expected = torch.autograd.functional.hessian(loss, torch.from_numpy(x))
    for made in (hessian, reverse):
        np.testing.assert_allclose(made, expected, rtol=1e-12, atol=1e-12)


@each_name
@pytest.mark.parametrize("dims", [(0, None), (None, 1), (2, 0)])
def test_vmap(name: str, dims: tuple[int | None, int | None]) -> None:
    """Over inputs, boxes or both, before and after differentiation; boxes are clipped apart."""
    xs = [maps((2, 3, 6, 7), np.float32, seed=n) for n in range(3)]
    tables = [boxes(8, seed=n).astype(np.float32) for n in range(3)]
    x = xs[0] if dims[0] is None else np.stack(xs, dims[0])
    table = tables[0] if dims[1] is None else np.stack(tables, dims[1])
    pool = getattr(poolgrad, name)

    def gradient(x: Any, table: Any) -> Any:
        return jax.grad(lambda x: (pool(x, table, 3) ** 2).sum())(x)

    inner = jax.jit(jax.vmap(gradient, dims))(x, table)
    outer = jax.grad(lambda x: (jax.vmap(lambda x, t: pool(x, t, 3), dims)(x, table) ** 2).sum())(x)
    one_by_one = [
        gradient(xs[n * (dims[0] is not None)], tables[n * (dims[1] is not None)]) for n in range(3)
    ]
    np.testing.assert_allclose(inner, np.stack(one_by_one), rtol=1e-5, atol=1e-6)
    if dims[0] is None:
        one_by_one = [sum(one_by_one)]
    whole = one_by_one[0] if dims[0] is None else np.stack(one_by_one, dims[0])
    np.testing.assert_allclose(outer, whole, rtol=1e-5, atol=1e-5)


@each_name
def test_boxes_of_both_forms(name: str) -> None:
    """Lists and arrays of JAX or NumPy, also traced; boxes have no gradient."""
    pool, x = getattr(poolgrad, name), jnp.asarray(maps(dtype=np.float32))
    own, table = listed(boxes(), 2)
    expected = poolgrad.roi_pool if name == "roi_pool" else poolgrad.roi_align
    y = expected(np.asarray(x), table, 3)
    parts = [jnp.asarray(one) for one in own]
    for given in (table, jnp.asarray(table), own, parts, [one.tolist() for one in own]):
        np.testing.assert_allclose(pool(x, given, 3), y, rtol=1e-5, atol=1e-6)
    traced = jax.jit(lambda given: pool(x, given, 3))
    for given in (jnp.asarray(table), parts):
        np.testing.assert_allclose(traced(given), y, rtol=1e-5, atol=1e-6)
    slope = jax.grad(lambda t: pool(x, t, 3).sum())(jnp.asarray(table))
    assert not slope.any()


@each_name
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (0, 3, 4, 5), (2, 0, 4, 5)])
def test_no_boxes_and_no_channels(name: str, shape: Any) -> None:
    x, table = jnp.ones(shape), np.zeros((0 if shape[1] else 2, 5))
    y, pullback = jax.vjp(lambda x: getattr(poolgrad, name)(x, table, (2, 3)), x)
    assert y.shape == (len(table), shape[1], 2, 3)
    assert pullback(y)[0].shape == shape


@each_name
def test_jax_arrays_have_no_vjp(name: str) -> None:
    with pytest.raises(TypeError, match="JAX differentiates its own arrays"):
        poolgrad.vjp(getattr(poolgrad, name), jnp.ones((1, 1, 2, 2)), np.zeros((1, 5)), 2)


def test_traced_boxes_are_clipped() -> None:
    """Their values cannot be checked: an image that does not exist is the nearest one."""
    x, table = jnp.asarray(maps(dtype=np.float32)), np.array([[7.0, 1, 1, 4, 4]])
    y = jax.jit(lambda t: poolgrad.roi_pool(x, t, 2))(table)
    np.testing.assert_array_equal(y, poolgrad.roi_pool(x, np.array([[1.0, 1, 1, 4, 4]]), 2))
