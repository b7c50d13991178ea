"""Modules for JAX: the functions, as pytrees that Flax NNX, Equinox and Optax can use."""

from __future__ import annotations

import copy
import dataclasses
import doctest
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poolgrad

jax = pytest.importorskip("jax")
jnp = jax.numpy
nn = pytest.importorskip("poolgrad.jax.nn")

KEY = jax.random.key(3)
IMAGES = jax.random.normal(KEY, (2, 6, 6, 3))
# The arguments that a module needs, and those that a call needs, by the name of the class.
NEEDED = {"LPPool": {"norm_type": 3.0}, "FractionalMaxPool": {"output_size": 2}}
WINDOWS = ("kernel_size", "output_size")


def arguments(name: str) -> dict[str, Any]:
    """Arguments of a constructor, beside its defaults."""
    takes = inspect.signature(getattr(nn, name)).parameters
    required = {n: 2 for n, p in takes.items() if n in WINDOWS and p.default is p.empty}
    return required | NEEDED.get(name[:-2], {})


def made(name: str, **more: Any) -> Any:
    return getattr(nn, name)(**arguments(name), **more)


def function_of(name: str) -> Any:
    """The public function, found by its name without underscores and capitals."""
    own = {f.replace("_", ""): f for f in poolgrad.__all__}
    words = name.lower()
    return getattr(poolgrad, own.get(words) or own[words[:-2]])


def batch(name: str) -> Any:
    """An input with channels last, of as many pooled axes as the module has."""
    dims = int(name[-2])
    return jax.random.normal(KEY, (2, *[4] * dims, 3))


def beside(name: str, x: Any) -> tuple[Any, ...]:
    """What a call takes after the input."""
    if name.startswith("LipPool"):
        return (2 * x,)
    if name.startswith("MaxUnpool"):
        plane = int(np.prod(x.shape[1:-1])) * 2 ** (x.ndim - 2)
        where = np.random.default_rng(0).permuted(
            np.broadcast_to(np.arange(plane)[:, None], (2, plane, 3)), axis=1
        )
        return (jnp.asarray(where[:, : int(np.prod(x.shape[1:-1]))].reshape(x.shape)),)
    return ()


@pytest.mark.parametrize("name", nn.__all__)
def test_a_module_calls_its_function(name: str) -> None:
    pool, x, function = made(name), batch(name), function_of(name)
    takes = inspect.signature(function).parameters
    drawn = {"generator": KEY} if "generator" in takes else {}
    more = beside(name, x)
    expected = function(x, *more, **arguments(name), channels_last=True, **drawn)
    np.testing.assert_array_equal(pool(x, *more, key=KEY), expected)
    if "2d" in name:  # the others take longer to compile, and differ in nothing else
        jitted = jax.jit(lambda pool, x: pool(x, *more, key=KEY))(pool, x)
        np.testing.assert_allclose(jitted, expected, rtol=1e-6)


@pytest.mark.parametrize("name", nn.__all__)
def test_signature_documentation_and_copies(name: str) -> None:
    kind, pool = getattr(nn, name), made(name)
    own, function = inspect.signature(kind).parameters, function_of(name)
    left_out = ("x", "out", "dim", "generator", "_random_samples", "indices", "logits")
    left_out += ("output_size",) if name.startswith("MaxUnpool") else ()
    kept = [p for p in inspect.signature(function).parameters.values() if p.name not in left_out]
    if name.startswith("MaxPool"):  # in the order of torch.nn
        assert own.keys() == {p.name for p in kept}
    else:
        assert [*own] == [p.name for p in kept]
    assert own.keys() == {f.name for f in dataclasses.fields(kind)}
    for p in kept:
        assert own[p.name].default == (True if p.name == "channels_last" else p.default)
        assert p.name in kind.__doc__
    assert f"\nParameters\n{'-' * 10}\n" in kind.__doc__
    assert inspect.getmodule(kind) is nn
    for same in (pickle.loads(pickle.dumps(pool)), copy.deepcopy(pool), dataclasses.replace(pool)):
        assert same == pool
        assert hash(same) == hash(pool)
    assert eval(repr(pool), vars(nn)) == pool
    assert jax.tree.leaves(pool) == []
    with pytest.raises(dataclasses.FrozenInstanceError):
        pool.channels_last = False


def test_modules_of_two_dimensions_are_in_the_api_reference() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api" / "jax.md").read_text()
    listed = re.findall(r"^::: poolgrad\.jax\.nn\.(\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(name for name in nn.__all__ if name.endswith("2d"))


def test_every_public_pooling_has_modules() -> None:
    pooled = {function_of(name).__name__ for name in nn.__all__}
    assert pooled == {n for n in poolgrad.functional.__all__ if "pool" in n}


def test_channels_first_is_the_layout_of_equinox() -> None:
    image = jnp.moveaxis(IMAGES[0], -1, 0)
    y = nn.MaxPool2d(2, channels_last=False)(image)
    np.testing.assert_array_equal(y, jnp.moveaxis(nn.MaxPool2d(2)(IMAGES[0]), -1, 0))


def test_global_modules_take_any_leading_axes() -> None:
    assert nn.GlobalAvgPool2d()(IMAGES[0]).shape == (3,)
    assert nn.GlobalAvgPool1d(keepdims=True)(IMAGES).shape == (2, 6, 1, 3)
    assert nn.GlobalMaxPool2d(channels_last=False)(IMAGES).shape == (2, 6)


# Learned arguments

LEARNED = {
    "lp": lambda p: nn.LPPool2d(p, 2),
    "log_mean_exp": lambda p: nn.LogMeanExpPool2d(2, r=p),
    "mixed": lambda p: nn.MixedPool2d(2, alpha=p),
    "global lp": lambda p: nn.GlobalLPPool2d(norm_type=p, mean=True),
    "global log_mean_exp": lambda p: nn.GlobalLogMeanExpPool2d(r=p),
}


@pytest.mark.parametrize("form", LEARNED)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_an_array_is_a_leaf_with_the_gradient_of_the_function(form: str, shape: Any) -> None:
    pool = LEARNED[form](jnp.full(shape, 2.5))
    (leaf,) = jax.tree.leaves(pool)
    (path, _), *_ = jax.tree_util.tree_leaves_with_path(pool)
    name = path[0].name
    assert leaf is getattr(pool, name)

    def loss(value: Any) -> Any:
        given = {f.name: getattr(pool, f.name) for f in dataclasses.fields(pool)}
        return pool.function(IMAGES, **given | {name: value}).sum()

    gradient = jax.jit(jax.grad(lambda pool: pool(IMAGES).sum()))(pool)
    assert type(gradient) is type(pool)
    np.testing.assert_array_equal(getattr(gradient, name), jax.jit(jax.grad(loss))(leaf))


@pytest.mark.parametrize("form", LEARNED)
def test_a_number_is_a_constant_and_sequences_are_leaves(form: str) -> None:
    assert jax.tree.leaves(LEARNED[form](2)) == []
    for value in ([1, 2, 3], (1.0, 2.0, 3.0), np.arange(1, 4), jnp.arange(1, 4)):
        (leaf,) = jax.tree.leaves(LEARNED[form](value))
        assert leaf.dtype == jnp.float32
        np.testing.assert_array_equal(leaf, [1, 2, 3])


def test_trees_may_hold_anything_while_they_are_transformed() -> None:
    pool = nn.MixedPool2d(2, alpha=jnp.array(0.25))
    mask = jax.tree.map(lambda leaf: True, pool)
    assert mask.alpha is True
    assert jax.tree.structure(mask) == jax.tree.structure(pool)
    assert jax.tree.structure(pool) != jax.tree.structure(nn.MixedPool2d(2, alpha=0.25))


def test_vmap_over_modules_and_scan() -> None:
    alphas = jnp.array([0.0, 0.5, 1.0])
    pools = jax.vmap(lambda alpha: nn.MixedPool2d(2, alpha=alpha))(alphas)
    each = [nn.MixedPool2d(2, alpha=float(a))(IMAGES) for a in alphas]
    np.testing.assert_allclose(jax.vmap(lambda p: p(IMAGES))(pools), jnp.stack(each), rtol=1e-6)
    scanned = jax.lax.scan(lambda carry, p: (carry, p(IMAGES)), None, pools)[1]
    np.testing.assert_allclose(scanned, jnp.stack(each), rtol=1e-6)


def test_an_optimiser_changes_a_learned_argument() -> None:
    optax = pytest.importorskip("optax")
    pool, optimiser = nn.LPPool2d(jnp.array(2.0), 2), optax.adam(0.1)
    state = optimiser.init(pool)
    gradient = jax.grad(lambda pool: pool(jnp.abs(IMAGES)).sum())(pool)
    updates, _ = optimiser.update(gradient, state)
    assert optax.apply_updates(pool, updates).norm_type == pytest.approx(2.1)  # norms fall with p


# Random numbers


def test_a_key_draws_and_is_needed() -> None:
    pool = nn.StochasticPool2d(3, 1)
    first, second = jax.random.split(KEY)
    assert (pool(IMAGES, key=first) != pool(IMAGES, key=second)).any()
    np.testing.assert_array_equal(pool(IMAGES, key=first), pool(IMAGES, key=first))
    drawn = jax.vmap(lambda key: pool(IMAGES, key=key))(jax.random.split(KEY))
    np.testing.assert_array_equal(drawn[0], pool(IMAGES, key=first))
    for kind in (pool, nn.FractionalMaxPool2d(2, 3)):
        with pytest.raises(TypeError, match=r"^key must be a key of jax\.random, got None: "):
            kind(IMAGES)
        with pytest.raises(TypeError, match=r"^key must be a key of jax\.random, got 7: "):
            kind(IMAGES, key=7)


def test_without_training_it_is_the_mean() -> None:
    mean = poolgrad.stochastic_pool2d(IMAGES, 2, training=False, channels_last=True)
    both = nn.StochasticPool2d(2, return_indices=True)
    np.testing.assert_array_equal(both(IMAGES, training=False), mean)
    np.testing.assert_array_equal(nn.StochasticPool2d(2, training=False)(IMAGES), mean)
    assert len(both(IMAGES, key=KEY)) == 2
    with pytest.raises(TypeError, match="training must be True or False, got 1"):
        both(IMAGES, training=1)


# Wrong arguments


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (nn.MaxPool2d, r"MaxPool2d\(\) missing a required argument: 'kernel_size'"),
        (lambda: nn.MaxPool2d(2, foo=3), r"MaxPool2d\(\) has no argument 'foo'"),
        (lambda: nn.MaxPool2d(window_shape=2), "did you mean 'kernel_size'"),
        (lambda: nn.MaxPool2d(0), "kernel_size must be"),
        (lambda: nn.MaxPool2d(2, padding="full"), "padding must be"),
        (lambda: nn.MaxPool2d(2, ties="last"), "ties must be"),
        (lambda: nn.MaxPool2d(2, channels_last=None), "channels_last must be True or False"),
        (lambda: nn.LPPool2d(-1, 2), "norm_type must be positive, got -1"),
        (lambda: nn.LPPool2d(jnp.array([2.0, 0.0]), 2), "norm_type must be positive, got 0"),
        (lambda: nn.LPPool2d(True, 2), "norm_type must be a real number"),
        (lambda: nn.LPPool2d("two", 2), "norm_type must be a real number"),
        (lambda: nn.LPPool2d(jnp.ones(3, bool), 2), "norm_type must be a real number"),
        (lambda: nn.LogMeanExpPool2d(2, r=0.0), "r must not be 0"),
        (lambda: nn.MixedPool2d(2, alpha=jnp.inf), "alpha must be finite"),
        (lambda: nn.MixedPool2d(2, alpha=jnp.ones((2, 2))), r"alpha must be .* shape \(2, 2\)"),
    ],
)
def test_wrong_arguments_are_named_when_a_module_is_made(wrong: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        wrong()


def test_a_wrong_number_of_channels_is_named_in_the_call() -> None:
    with pytest.raises(ValueError, match="alpha must be a number or one for each of 3 channels"):
        nn.MixedPool2d(2, alpha=jnp.ones(2))(IMAGES)


def test_sequences_make_structures_that_can_be_hashed() -> None:
    pool = nn.MaxPool2d([2, 3], padding=[[0, 1], [1, 0]], stride=np.array([1, 2]))
    assert (pool.kernel_size, pool.padding, pool.stride) == ((2, 3), ((0, 1), (1, 0)), (1, 2))
    assert jax.jit(pool)(IMAGES).shape == (2, 6, 3, 3)


def test_examples_of_the_page_of_modules_run() -> None:
    result = doctest.testmod(nn, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    assert result.attempted > 5


# Flax and Equinox


def test_in_a_module_of_flax_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")

    class Network(nnx.Module):
        def __init__(self, rngs: Any) -> None:
            self.conv = nnx.Conv(3, 4, (3, 3), rngs=rngs)
            self.pool = nn.LPPool2d(nnx.Param(jnp.array(2.0)), 2)
            self.draw = nn.StochasticPool2d(3, 2)
            self.mean = nn.GlobalAvgPool2d()

        def __call__(self, x: Any, key: Any) -> Any:
            return self.mean(self.draw(self.pool(jnp.abs(self.conv(x))), key=key))

    network = Network(nnx.Rngs(0))
    optimiser = nnx.Optimizer(network, optax.sgd(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(network: Any, optimiser: Any, key: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda network: network(IMAGES, key).sum())(network)
        optimiser.update(network, gradients)
        return loss

    losses = [float(step(network, optimiser, KEY)) for _ in range(3)]
    assert losses[0] > losses[1] > losses[2]
    norm_type = network.pool.norm_type
    assert isinstance(norm_type, nnx.Param)
    assert norm_type[...] > 2
    y = nnx.Sequential(network.conv, nn.MaxPool2d(2), nn.GlobalAvgPool2d())(IMAGES)
    assert y.shape == (2, 4)


def test_in_a_module_of_equinox() -> None:
    eqx = pytest.importorskip("equinox")
    pools = [
        nn.LPPool2d(jnp.array(2.0), 2, channels_last=False),
        nn.StochasticPool2d(2, channels_last=False),
        nn.MixedPool2d(1, alpha=0.5, channels_last=False),
    ]
    network = eqx.nn.Sequential([eqx.nn.Conv2d(3, 4, 3, padding=1, key=KEY), *pools])
    x = jnp.moveaxis(IMAGES, -1, 1)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def loss(network: Any, x: Any) -> Any:
        keys = jax.random.split(KEY, len(x))
        return jax.vmap(lambda image, key: network(image, key=key))(jnp.abs(x), keys).sum()

    value, gradients = loss(network, x)
    assert np.isfinite(value)
    assert gradients[1].norm_type != 0
    assert gradients[3] == network[3]
    changed = eqx.tree_at(lambda n: n[1].norm_type, network, jnp.array(3.0))
    assert changed[1] != network[1]
    assert changed[1].norm_type == 3
