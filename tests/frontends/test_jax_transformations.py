"""JAX's transformations: derivatives of any order, batching, compilation, several devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from processes import assert_runs

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import poolgrad  # noqa: E402

# One call for each kind of derivative: routes, shares, means, weights, learned arguments, draws.
CALLS: dict[str, Any] = {
    "max": lambda x: poolgrad.max_pool2d(x, 2, 1),
    "split": lambda x: poolgrad.max_pool2d(x, 2, 1, ties="split"),
    "packed": lambda x: poolgrad.max_pool2d(x, 2, 1, routes="packed"),
    "min": lambda x: poolgrad.min_pool2d(x, 3, 2, 1),
    "avg": lambda x: poolgrad.avg_pool2d(x, 3, 2, 1),
    "adaptive": lambda x: poolgrad.adaptive_avg_pool2d(x, 2),
    "soft": lambda x: poolgrad.soft_pool1d(x, 2),
    "expected": lambda x: poolgrad.stochastic_pool1d(x, 2, training=False),
    "draw": lambda x: poolgrad.stochastic_pool2d(x, 2, generator=1),
    "fractional": lambda x: poolgrad.fractional_max_pool2d(
        x, 2, output_size=2, _random_samples=np.full((2, 1, 2), 0.3)
    ),
    "unpool": lambda x: poolgrad.max_unpool2d(
        x, np.argsort(np.arange(32.0).reshape(2, 1, 4, 4) % 7, None).reshape(2, 1, 4, 4) % 64, 2
    ),
}
LEARNED: dict[str, Any] = {
    "lp": lambda x, p: poolgrad.lp_pool1d(x, p, 2),
    "log_mean_exp": lambda x, r: poolgrad.log_mean_exp_pool1d(x, 2, r=r),
    "mixed": lambda x, a: poolgrad.mixed_pool2d(x, 2, alpha=a),
}


def _input(n: int = 2) -> Any:
    """No two alike, and none near zero."""
    order = np.random.default_rng(0).permutation(n * 16)
    return jnp.asarray((order.reshape(n, 1, 4, 4) + 0.5) / (8.0 * n))


# Third derivatives of one that is not linear stand for all: compiling them takes half a minute.
@pytest.mark.parametrize(
    ("name", "order"),
    [
        pytest.param(name, 2, marks=() if name in ("max", "soft") else pytest.mark.slow)
        for name in CALLS
    ]
    + [pytest.param("soft", 3, marks=pytest.mark.slow)],
)
def test_derivatives(name: str, order: int) -> None:
    with jax.enable_x64(True):
        call = jax.jit(lambda x: CALLS[name](x) ** 3)
        check_grads(call, (_input(),), order, modes=("fwd", "rev"), atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_derivatives_of_learned_arguments(name: str, order: int) -> None:
    with jax.enable_x64(True):
        call = jax.jit(lambda x, p: LEARNED[name](x, p) ** 2)
        at = (_input(), jnp.asarray(1.75))
        check_grads(call, at, order, modes=("fwd", "rev"), atol=5e-3, rtol=5e-3)


def test_third_derivatives() -> None:
    """Of a sum of cubes, by hand: 6 for each input that wins."""
    x = jnp.asarray([1.0, 3.0, -2.0, 0.5])

    def loss(x: Any) -> Any:
        return (poolgrad.max_pool1d(x, 2) ** 3).sum()

    third = jax.jacfwd(jax.hessian(loss))(x)
    expected = np.zeros((4, 4, 4))
    expected[1, 1, 1] = expected[3, 3, 3] = 6
    np.testing.assert_array_equal(third, expected)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("max", "soft", "unpool") else pytest.mark.slow)
        for name in CALLS
    ],
)
def test_batches_along_any_axis(name: str) -> None:
    x = jnp.stack([_input(), _input()[::-1], 1 - _input()]).astype(jnp.float32)

    def both(x: Any) -> Any:
        y, pullback = jax.vjp(CALLS[name], x)
        return y, pullback(jnp.ones_like(y))[0]

    expected = [jnp.stack(each) for each in zip(*map(both, x), strict=True)]
    for axis in (0, 1, 4, -1):
        moved = jnp.moveaxis(x, 0, axis)
        for way in (lambda f: f, jax.jit):
            found = way(jax.vmap(both, in_axes=axis))(moved)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, 1e-6)


@pytest.mark.parametrize("name", LEARNED)
def test_batches_of_learned_arguments(name: str) -> None:
    """A gradient for each of the batch, not their sum."""
    x, p = jnp.stack([_input(), 1 - _input()]), jnp.asarray([1.5, 2.5])

    def gradients(x: Any, p: Any) -> Any:
        return jax.grad(lambda x, p: LEARNED[name](x, p).sum(), (0, 1))(x, p)

    for x_axis, p_axis in ((0, 0), (0, None), (None, 0)):
        xs = x if x_axis == 0 else x[0]
        ps = p if p_axis == 0 else p[0]
        found = jax.vmap(gradients, (x_axis, p_axis))(xs, ps)
        for n in range(2):
            own = gradients(x[n] if x_axis == 0 else xs, p[n] if p_axis == 0 else ps)
            for a, b in zip(found, own, strict=True):
                np.testing.assert_allclose(a[n], b, 1e-5)


def test_one_number_for_inputs_without_channels() -> None:
    x = jax.random.uniform(jax.random.key(0), (3, 7, 8))

    def loss(p: Any) -> Any:
        return jax.vmap(lambda a: poolgrad.lp_pool2d(a, p, 2))(x).sum()

    alone = sum(jax.grad(lambda p, a=a: poolgrad.lp_pool2d(a, p, 2).sum())(2.5) for a in x)
    for p in (jnp.asarray(2.5), jnp.asarray([2.5])):
        np.testing.assert_allclose(jax.grad(loss)(p), jnp.full(p.shape, alone), 1e-5)


def test_hessian_and_checkpoint() -> None:
    def loss(x: Any) -> Any:
        return (poolgrad.max_pool1d(x, 2) ** 3).sum()

    x = jnp.asarray([1.0, 3.0, -2.0, 0.5])
    np.testing.assert_array_equal(jax.hessian(loss)(x), jnp.diag(jnp.asarray([0, 18.0, 0, 3.0])))
    again = jax.grad(jax.checkpoint(loss))(x)
    np.testing.assert_array_equal(again, jax.grad(loss)(x))


def test_a_gradient_that_nobody_asks_for_is_not_computed() -> None:
    lowered = jax.jit(lambda x: poolgrad.max_pool2d(x, 2)).lower(jnp.ones((4, 4))).as_text()
    assert lowered.count("tensor<2x2xui8>") == 0  # no routes, either


@pytest.mark.parametrize("name", ["avg", "adaptive", "unpool"])
def test_the_transpose_of_a_linear_pooling_is_its_pullback(name: str) -> None:
    x = _input()
    y, pullback = jax.vjp(CALLS[name], x)
    for way in (lambda f: f, jax.jit):
        (found,) = way(jax.linear_transpose(CALLS[name], x))(y)
        np.testing.assert_array_equal(found, pullback(y)[0])


def test_a_maximum_has_no_transpose() -> None:
    with pytest.raises(NotImplementedError, match="max is not linear, so it has no transpose"):
        jax.linear_transpose(CALLS["max"], _input())(jnp.ones((2, 1, 3, 3)))


SPREAD = """
import numpy as np, jax, jax.numpy as jnp, poolgrad
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

x = np.random.default_rng(0).random((4, 2, 6, 6), np.float32)
calls = {
    "max": lambda x: poolgrad.max_pool2d(x, 3, 2, 1),
    "last": lambda x: poolgrad.max_pool2d(x, 2, channels_last=True),
    "split": lambda x: poolgrad.max_pool2d(x, 2, ties="split"),
    "avg": lambda x: poolgrad.avg_pool2d(x, 3, 2, 1),
    "soft": lambda x: poolgrad.soft_pool2d(x, 2),
    "lp": lambda x: poolgrad.lp_pool2d(x, jnp.array([2.0, 3.5]), 2),
    "draw": lambda x: poolgrad.stochastic_pool2d(x, 2, generator=1),
}
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(kind,))
    for name, pool in calls.items():
        gradient = jax.grad(lambda x: (pool(x) ** 2).sum())
        expected = gradient(jnp.asarray(x))
        for spec in (P("batch"), P(None, "batch"), P(None, None, "batch")):
            if kind == AxisType.Explicit and spec != P("batch"):
                continue
            spread = jax.device_put(x, NamedSharding(mesh, spec))
            found = jax.jit(gradient)(spread)
            np.testing.assert_allclose(found, expected, 1e-5)
            text = jax.jit(gradient).lower(spread).compile().as_text()
            alone = spec != P(None, None, "batch") and name != "draw"
            alone = alone and not (name == "last" and spec != P("batch"))
            assert ("all-gather" not in text) or not alone, (name, spec)
            if alone:
                assert found.sharding.is_equivalent_to(spread.sharding, 4), (name, spec)
    split = jax.shard_map(
        jax.grad(lambda x: (calls["max"](x) ** 2).sum()),
        mesh=mesh, in_specs=P("batch"), out_specs=P("batch"),
    )
    spread = jax.device_put(x, NamedSharding(mesh, P("batch")))
    expected = jax.grad(lambda x: (calls["max"](x) ** 2).sum())(jnp.asarray(x))
    np.testing.assert_array_equal(jax.jit(split)(spread), expected)
    if kind == AxisType.Auto:  # the other wants to be told where inputs are
        alpha, x32 = jnp.float32(0.3), jnp.asarray(x)
        both = lambda x, p: poolgrad.mixed_pool2d(x, 2, alpha=p)
        for specs, out, given in (
            ((P("batch"), P()), P("batch"), (x32, alpha)),
            ((P(), P("batch")), P(None, "batch"), (x32[:, :1], jnp.array([0.3, 0.7]))),
        ):
            def pool(x, p):
                return both(x, p if p.ndim == 0 else p[0])

            split = jax.shard_map(pool, mesh=mesh, in_specs=specs, out_specs=out)
            def whole(x, p):
                if p.ndim == 0:
                    return both(x, p)
                return jnp.concatenate([both(x, q) for q in p], 1)

            def slopes(f):
                return jax.grad(lambda x, p: (f(x, p) ** 2).sum(), (0, 1))(*given)

            for a, b in zip(slopes(jax.jit(split)), slopes(whole), strict=True):
                np.testing.assert_allclose(a, b, 1e-4)
        try:
            jax.jit(jax.shard_map(pool, mesh=mesh, in_specs=specs, out_specs=P()))(*given)
        except ValueError:
            pass
        else:
            raise AssertionError("devices may not disagree about what all have")
    with jax.set_mesh(mesh):
        y = jax.jit(lambda x: poolgrad.max_pool2d(x, 2))(jnp.ones((2, 3, 6, 8)))
        np.testing.assert_array_equal(y, np.ones((2, 3, 3, 4)))
print("spread")
"""


@pytest.mark.slow
def test_arrays_that_are_spread_over_devices() -> None:
    """Batches, and channels, are pooled where they lie; what must be together is brought there."""
    flags = "--xla_force_host_platform_device_count=2"
    assert "spread" in assert_runs(SPREAD, timeout=240, XLA_FLAGS=flags)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("platforms", [["cpu"], ["cpu", "cuda"]], ids=str)
def test_a_compiled_program_can_be_stored(platforms: list[str], x64: bool) -> None:
    def both(x: Any) -> Any:
        y, pullback = jax.vjp(lambda x: poolgrad.max_pool2d(x, 2), x)
        return y, pullback(y)[0]

    known = jax.export.DisabledSafetyCheck.custom_call("poolgrad")
    with jax.enable_x64(x64):
        x = jnp.arange(16.0).reshape(4, 4)
        exported = jax.export.export(jax.jit(both), platforms=platforms, disabled_checks=[known])(x)
        again = jax.export.deserialize(exported.serialize())
        for a, b in zip(again.call(x), both(x), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", [n for n in CALLS if n not in ("fractional", "unpool")])
def test_a_batch_of_any_size(name: str) -> None:
    """A program is made once for all sizes of a batch."""

    def both(x: Any) -> Any:
        y, pullback = jax.vjp(CALLS[name], x)
        return y, pullback(y)[0]

    (size,) = jax.export.symbolic_shape("b")
    shape = jax.ShapeDtypeStruct((size, 1, 4, 4), jnp.float32)
    known = jax.export.DisabledSafetyCheck.custom_call("poolgrad")
    platforms = ["cpu", "cuda"]  # the program holds JAX's own operations, too
    exported = jax.export.export(jax.jit(both), platforms=platforms, disabled_checks=[known])(shape)
    for n in (1, 5):
        x = _input(n).astype(jnp.float32)
        for a, b in zip(exported.call(x), both(x), strict=True):
            np.testing.assert_allclose(a, b, 1e-6)


@pytest.mark.parametrize("name", [*CALLS, *LEARNED])
def test_a_program_without_implicit_rank_promotion(name: str) -> None:
    """Differentiated, and compiled for a device without kernels."""
    call = CALLS.get(name) or (lambda x: LEARNED[name](x, 2.0))
    x = jax.ShapeDtypeStruct((2, 1, 4, 4), jnp.float32)

    def slope(x: Any) -> Any:
        return jax.grad(lambda x: (call(x) ** 2).sum())(x)

    with jax.numpy_rank_promotion("raise"):
        y, tangent = jax.eval_shape(lambda x: jax.jvp(call, (x,), (x,)), x)
        assert tangent.shape == y.shape
        assert jax.eval_shape(jax.grad(lambda x: (slope(x) ** 2).sum()), x).shape == x.shape
        exported = jax.export.export(jax.jit(slope), platforms=["cuda"])(x)
        assert [a.shape for a in exported.out_avals] == [x.shape]
