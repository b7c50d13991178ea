"""Every operator with JAX arrays, on the CPU and on simulated devices, against NumPy and XLA."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from adversarial_arrays import FINITE, VALUES
from hypothesis import given, settings
from profiles import examples
from robustness.calls import FLOATS, INTEGERS, OF_INTEGERS, example
from strategies import cases

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from jax_calls import KINDS, WEIGHTED, compare, without_kernels  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad.functional import FUNCTIONS  # noqa: E402


def drawn(kind: str, without: tuple[str, ...] = ()) -> Any:
    """Calls of a kind; weighted operators without infinities and NaN, which other tests cover."""
    plain = kind.removeprefix("adaptive_").removeprefix("global_")
    values = FINITE if plain in (*WEIGHTED, "stochastic") else VALUES
    values = [v for v in values if v.id not in without]
    dtypes = FLOATS + INTEGERS if plain in OF_INTEGERS else FLOATS
    return cases(kind, values=values, dtypes=dtypes)


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_numpy_when_compiled(kind: str) -> None:
    @settings(max_examples=examples(2))
    @given(drawn(kind))
    def check(case: Any) -> None:
        compare(case)

    check()


@pytest.mark.hypothesis
@pytest.mark.parametrize("kind", KINDS)
def test_equal_on_devices_without_kernels(kind: str) -> None:
    # XLA takes subnormal numbers for zeros. Gradients of Lp there go through the product of the
    # norm, its gradient and the slope, which overflows if the norm is near the largest number.
    without = ("subnormal", "huge") if "lp" in kind else ("subnormal",)

    @settings(max_examples=examples(2))
    @given(drawn(kind, without))
    def check(case: Any) -> None:
        compare(case)

    with without_kernels():
        check()


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [("lp", {"norm_type": 3.0}), ("lp", {"norm_type": 0.5}), ("stochastic", {"training": False})],
)
def test_huge_and_tiny_numbers_without_kernels(name: str, kwargs: dict[str, Any]) -> None:
    """Whose squares are none: what divides by the largest must not divide by that."""
    x = np.random.default_rng(0).uniform(0.5, 2, (6, 6))
    function = partial(getattr(poolgrad, f"{name}_pool2d"), kernel_size=2, **kwargs)
    scales = (1e-200, 1e-100, 1e100, 1e300)
    with without_kernels(), jax.enable_x64(True):
        gradient = jax.jit(jax.grad(lambda x: function(x).sum()))
        gradients = {scale: gradient(jnp.asarray(x * scale)) for scale in scales}
    usual = jax.grad(lambda x: function(x).sum())(jnp.asarray(x, jnp.float32))
    for scale, found in gradients.items():
        np.testing.assert_allclose(found, usual, 1e-5, 1e-6, err_msg=str(scale))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_devices_need_no_kernels(name: str) -> None:
    """Lowered for a GPU, forward and backward, without one."""
    shape, kwargs = example(name)
    x = jnp.ones(shape)

    def both(x: Any) -> Any:
        y, pullback = jax.vjp(lambda x: FUNCTIONS[name](x, **kwargs), x)
        return y, pullback(y)

    module = jax.export.export(jax.jit(both), platforms=["cuda"])(x).mlir_module()
    assert "stablehlo" in module
    assert "custom_call @poolgrad" not in module
    assert "callback" not in module
    assert "stablehlo.scatter" not in module


@pytest.mark.parametrize(
    ("k", "s", "p", "dtype"),
    [
        (3, 2, 1, jnp.float32),
        (2, 2, 0, jnp.bfloat16),
        *(
            pytest.param(*window, dtype, marks=pytest.mark.slow)
            for window, dtype in [
                ((3, 2, 1), jnp.bfloat16),
                ((2, 2, 0), jnp.float32),
                *product([(3, 1, 1), (5, 3, 2)], [jnp.float32, jnp.bfloat16]),
            ]
        ),
    ],
)
def test_equal_to_xla(k: int, s: int, p: int, dtype: Any) -> None:
    x = jax.random.normal(jax.random.key(0), (2, 9, 11, 3)).astype(dtype)
    padding = ((0, 0), (p, p), (p, p), (0, 0))

    def theirs(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, k, k, 1), (1, s, s, 1), padding)

    def summed(x: Any) -> Any:
        return lax.reduce_window(x, 0.0, lax.add, (1, k, k, 1), (1, s, s, 1), padding)

    def ours(x: Any) -> Any:
        return poolgrad.max_pool2d(x, k, s, p, channels_last=True)

    gy = jnp.round(4 * jax.random.normal(jax.random.key(1), ours(x).shape)).astype(dtype)
    for way in (lambda f: f, jax.jit):
        (y, pullback), (y0, pullback0) = jax.vjp(way(ours), x), jax.vjp(way(theirs), x)
        np.testing.assert_array_equal(y, y0)
        np.testing.assert_array_equal(pullback(gy)[0], pullback0(gy)[0])
    mean = poolgrad.avg_pool2d(x, k, s, p, channels_last=True)
    close = 1e-6 if dtype == jnp.float32 else 2e-2
    np.testing.assert_allclose(
        np.asarray(mean, np.float32), np.asarray(summed(x), np.float32) / k**2, close, close
    )


def test_winners_are_where_numpy_finds_them() -> None:
    x = np.random.default_rng(0).integers(0, 4, (2, 3, 8, 9)).astype(np.float32)
    samples = np.full((2, 3, 2), 0.375)
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("max_pool2d", (3, 2, 1), {"dilation": 2}),
        ("max_pool2d", (2,), {"ties": "split"}),
        ("min_pool2d", (2,), {"ties": "zero", "routes": "packed"}),
        ("adaptive_max_pool2d", (5,), {}),
        ("global_max_pool", (), {"keepdims": True}),
        ("fractional_max_pool2d", (2,), {"output_size": 4, "_random_samples": samples}),
    ]  # fmt: skip
    for name, args, kwargs in calls:
        function = getattr(poolgrad, name)
        for last in (False, True):
            given = np.moveaxis(x, 1, -1).copy() if last else x
            how = {**kwargs, "channels_last": last, "return_indices": True}
            expected = function(given, *args, **how)
            for way in (lambda f: f, jax.jit):
                found = way(lambda x, f=function, a=args, h=how: f(x, *a, **h))(jnp.asarray(given))
                np.testing.assert_array_equal(found[0], expected[0])
                np.testing.assert_array_equal(found[1], expected[1])
                assert found[1].dtype == jnp.int32  # JAX's word for it, without 64 bits


def test_unpooling_undoes_pooling() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 3, 6, 8))
    y, indices = poolgrad.max_pool2d(x, 2, return_indices=True)
    back = poolgrad.max_unpool2d(y, indices, 2)
    np.testing.assert_array_equal(poolgrad.max_pool2d(back + 0 * x, 2), jnp.maximum(y, 0))
    gradient = jax.grad(lambda y: (poolgrad.max_unpool2d(y, indices, 2) ** 2).sum())(y)
    np.testing.assert_array_equal(gradient, 2 * y)


def test_byte_swapped_arrays_beside_a_jax_array() -> None:
    x = np.random.default_rng(0).random((2, 3, 8, 8), np.float32)
    y, indices = poolgrad.max_pool2d(jnp.asarray(x), 2, return_indices=True)
    samples = x[..., 0, :2]
    for call, operand in (
        (lambda a: poolgrad.fractional_max_pool2d(y, 2, output_size=2, _random_samples=a), samples),
        (lambda a: poolgrad.max_unpool2d(y, a, 2), np.asarray(indices)),
        (lambda a: poolgrad.lip_pool2d(jnp.asarray(x), a, 2), x),
    ):
        swapped = operand.astype(operand.dtype.newbyteorder())
        np.testing.assert_array_equal(call(swapped), call(operand))


def test_booleans_are_unpooled_without_kernels() -> None:
    x, indices = np.array([True, False, True]), np.array([4, 0, 2])
    with without_kernels():
        y = jax.jit(lambda x: poolgrad.max_unpool1d(x, indices, 2, output_size=6))(x)
    assert y.dtype == bool
    np.testing.assert_array_equal(y, poolgrad.max_unpool1d(x, indices, 2, output_size=6))


def test_integers_without_wide_numbers() -> None:
    """Their mean is float64 where JAX has that, else float32."""
    x = jnp.arange(12).reshape(3, 4)
    assert poolgrad.avg_pool2d(x, 2).dtype == jnp.float32
    with jax.enable_x64(True):
        assert poolgrad.avg_pool2d(jnp.arange(12).reshape(3, 4), 2).dtype == jnp.float64


def test_nothing_is_kept_that_need_not_be() -> None:
    """Of a maximum a byte for each output, of an average nothing; never the input."""
    x = jnp.ones((4, 8, 8))
    _, pullback = jax.vjp(lambda x: poolgrad.max_pool2d(x, 2), x)
    kept = [leaf for leaf in jax.tree.leaves(pullback) if hasattr(leaf, "nbytes")]
    assert [(a.dtype.name, a.shape) for a in kept] == [("uint8", (4, 4, 4))]
    _, pullback = jax.vjp(lambda x: poolgrad.max_pool2d(x, 2, routes="packed"), x)
    kept = [leaf for leaf in jax.tree.leaves(pullback) if hasattr(leaf, "nbytes")]
    assert sum(a.nbytes for a in kept) == 4 * 4 * 4 // 4
    _, pullback = jax.vjp(lambda x: poolgrad.avg_pool2d(x, 2), x)
    assert not [leaf for leaf in jax.tree.leaves(pullback) if getattr(leaf, "nbytes", 0) > 8]


def test_the_same_key_draws_the_same() -> None:
    x = jax.random.uniform(jax.random.key(0), (2, 3, 8, 8))
    key = jax.random.key(1)
    first = poolgrad.stochastic_pool2d(x, 2, generator=key)
    np.testing.assert_array_equal(first, poolgrad.stochastic_pool2d(x, 2, generator=key))
    np.testing.assert_array_equal(
        first, jax.jit(lambda x, k: poolgrad.stochastic_pool2d(x, 2, generator=k))(x, key)
    )
    other = poolgrad.stochastic_pool2d(x, 2, generator=jax.random.key(2))
    assert not np.array_equal(first, other)
    np.testing.assert_array_equal(  # a seed draws what it draws in NumPy
        poolgrad.stochastic_pool2d(x, 2, generator=7),
        poolgrad.stochastic_pool2d(np.asarray(x), 2, generator=7),
    )
    y = poolgrad.fractional_max_pool2d(x, 2, output_size=3, generator=key)
    assert y.shape == (2, 3, 3, 3)
    np.testing.assert_array_equal(
        y, poolgrad.fractional_max_pool2d(x, 2, output_size=3, generator=key)
    )
