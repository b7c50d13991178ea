"""Stochastic pooling: its draws are reproducible, the same everywhere, and distributed as promised.

All seeds are fixed. Bounds on frequencies are five standard deviations of the binomial
distribution, which a right sampler leaves once in two million draws of a seed.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from adversarial_arrays import LAYOUTS, Layout
from frontend_calls import DASK, FRONTS, Front, torch
from instruction_sets import BEST, each_but_the_best
from large_calls import activations
from processes import assert_runs

import poolgrad

pytestmark = pytest.mark.without(dask="the draws for one chunk would depend on all other chunks")
SHAPES = {1: (3, 4, 50), 2: (2, 5, 17, 23), 3: (2, 3, 6, 7, 9)}


def draw(front: Front, x: np.ndarray, *args: Any, seed: Any = 5, **kwargs: Any) -> tuple[Any, Any]:
    dims = x.ndim - 2
    fun = f"stochastic_pool{dims}d"
    return front.run(fun, x, *args, generator=seed, return_indices=True, **kwargs)


def splitmix(seed: int, index: np.ndarray) -> np.ndarray:
    """The published generator (Steele, Lea & Flood 2014), as numbers in [0, 1)."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + (index.astype(np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def drawn_by_hand(windows: np.ndarray, seed: int) -> np.ndarray:
    """The place drawn from each of the windows, shape (outputs, places)."""
    u = splitmix(seed, np.arange(len(windows)))
    parts = np.cumsum(np.maximum(windows.astype(np.float64), 0), 1)
    total = parts[:, -1:]
    by_part = np.argmax(parts > u[:, None] * total, 1)
    return np.where(total[:, 0] > 0, by_part, (u * windows.shape[1]).astype(int))


@pytest.mark.parametrize("seed", [0, 1, 5, 2**32, 2**63 - 1])
def test_the_draw_is_the_documented_one(front: Front, seed: int) -> None:
    x = activations((4, 3, 60))
    places = drawn_by_hand(x.reshape(-1, 6), seed).reshape(4, 3, 10)
    y, indices = draw(front, x, 6, seed=seed)
    np.testing.assert_array_equal(indices, places + 6 * np.arange(10))
    np.testing.assert_array_equal(y, np.take_along_axis(x, indices, 2))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("args", [(2,), (3, 2, 1), (3, 1), (4, 3, 2)], ids=repr)
def test_threads_and_frameworks_draw_the_same(dims: int, args: Any) -> None:
    x = activations(SHAPES[dims])
    made = []
    for front in [front for front in FRONTS if front is not DASK]:
        for threads in range(1, 6):
            poolgrad.set_num_threads(threads)
            if torch is not None:
                torch.set_num_threads(threads)
            made.append(draw(front, x, *args, ceil_mode=len(args) > 1))
    for y, indices in made[1:]:
        np.testing.assert_array_equal(indices, made[0][1])
        np.testing.assert_array_equal(y, made[0][0])


@pytest.mark.without(jax="its arrays have one layout")
@pytest.mark.parametrize(
    "layout", [m for m in LAYOUTS if not m.id.startswith(("exp", "over"))], ids=lambda m: m.id
)
def test_memory_formats_draw_the_same(front: Front, layout: Layout) -> None:
    x = activations(SHAPES[2])
    expected = draw(front, x, 3, 2, 1)
    y, indices = draw(front, layout.make(x), 3, 2, 1)
    np.testing.assert_array_equal(y, expected[0])
    np.testing.assert_array_equal(indices, expected[1])


def test_large_enough_for_several_threads_in_every_format(front: Front) -> None:
    x = activations((3, 16, 90, 91))
    expected = draw(front, x, 3, 2, 1)
    again = draw(front, np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1), 3, 2, 1)
    for a, b in zip(again, expected, strict=True):
        np.testing.assert_array_equal(a, b)


DIGEST = """
import sys
import numpy as np
import poolgrad
from poolgrad import core
sys.path.insert(0, {tests!r})
from large_calls import activations
assert core.instruction_set() == {isa!r}
for dtype in ("f2", "f4", "f8"):
    for shape, fun in (((3, 4, 50), "stochastic_pool1d"), ((2, 5, 17, 23), "stochastic_pool2d")):
        for order in "CF":
            x = np.asarray(activations(shape, dtype), order=order)
            y, i = getattr(poolgrad, fun)(x, 3, 2, 1, generator=9, return_indices=True)
            print(y.tobytes().hex()[:4000], i.tobytes().hex()[:4000])
"""


@pytest.mark.dispatch
@each_but_the_best
def test_instruction_sets_draw_the_same(isa: str) -> None:
    tests = os.path.dirname(os.path.dirname(__file__))
    said = [
        assert_runs(DIGEST.format(isa=which, tests=tests), POOLGRAD_ISA=which)
        for which in (BEST, isa)
    ]
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == 12


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_the_dtype_does_not_decide(front: Front, dtype: str) -> None:
    x = np.random.default_rng(1).integers(0, 8, (2, 3, 12, 12)).astype(float)  # exact in all
    expected = draw(front, x, 3)[1]
    np.testing.assert_array_equal(draw(front, x.astype(dtype), 3)[1], expected)


# Frequencies

N = 20_000


def frequencies(front: Front, window: list[float], seed: int = 1, dtype: str = "f8") -> np.ndarray:
    x = np.tile(np.array(window, dtype), N)[None, None]
    indices = draw(front, x, len(window), seed=seed)[1]
    return np.bincount(indices.ravel() % len(window), minlength=len(window)) / N


def assert_distributed(got: np.ndarray, expected: Any) -> None:
    p = np.asarray(expected, float)
    bound = 5 * np.sqrt(p * (1 - p) / N)
    assert (np.abs(got - p) <= bound).all(), (got, p, bound)


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        ([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4]),
        ([5, 0, 0, 15], [0.25, 0, 0, 0.75]),
        ([1e-3, 1], [1 / 1001, 1000 / 1001]),
        ([7], [1]),
        ([-3, 1, -1, 3], [0, 0.25, 0, 0.75]),  # what is negative counts as zero
        ([0, 0, 0, 0, 0], [0.2] * 5),  # nothing to go by: all alike
        ([-1, -2, 0, -0.0], [0.25] * 4),
        ([-5, -1], [0.5, 0.5]),
        ([1e308, 1e308, 1e308, 1e308], [0.25] * 4),  # whose sum is more than the largest number
        ([1e308, 0, 5e307, 1.5e308], [1 / 3, 0, 1 / 6, 1 / 2]),
        ([5e-324, 0], [1, 0]),
        ([1e308, 5e-324], [1, 0]),
    ],
    ids=str,
)
def test_frequencies_are_the_probabilities(front: Front, window: Any, expected: Any) -> None:
    assert_distributed(frequencies(front, window), expected)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_frequencies_of_small_dtypes(front: Front, dtype: str) -> None:
    info = np.finfo(dtype)
    assert_distributed(frequencies(front, [float(info.max)] * 4, dtype=dtype), [0.25] * 4)
    tiny = float(info.smallest_subnormal)
    assert_distributed(frequencies(front, [tiny, 0, 3 * tiny], dtype=dtype), [0.25, 0, 0.75])


def test_padding_is_never_drawn(front: Front) -> None:
    x = np.full((N, 1, 1), -1.0)
    y, indices = draw(front, x, 5, 1, 2)
    assert (indices == 0).all()
    assert (y == -1).all()


def test_zeros_are_never_drawn_where_there_is_something_else(front: Front) -> None:
    x = np.where(np.random.default_rng(0).random((8, 8, 30, 30)) < 0.9, 0.0, 1e-30)
    y = draw(front, x, 3)[0]
    some = poolgrad.max_pool2d(x, 3) > 0
    assert (y[some] > 0).all()
    assert 0 < some.mean() < 1


def test_neighbours_and_seeds_are_independent(front: Front) -> None:
    """Of two draws with probability one half each of the four pairs comes up once in four."""
    x = np.ones((1, 1, 2 * N))
    first, second = (draw(front, x, 2, seed=s)[1].ravel() % 2 for s in (10, 11))
    for a, b in ((first, second), (first[:-1], first[1:]), (first[:-64], first[64:])):
        pairs = np.bincount(2 * a + b, minlength=4) / len(a)
        assert np.abs(pairs - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / len(a))


def test_evaluation_is_the_mean_of_all_draws(front: Front) -> None:
    x = np.random.default_rng(4).standard_normal((1, 2, 6, 6))
    repeated = np.broadcast_to(x, (N, 2, 6, 6))
    drawn = draw(front, repeated, 3)[0]
    expected = front.run("stochastic_pool2d", x, 3, training=False)
    bound = 5 * drawn.std(0) / np.sqrt(N)
    assert (np.abs(drawn.mean(0) - expected[0]) <= bound).all()
    assert drawn.std(0).min() > 0.1


def test_the_gradient_goes_to_what_was_drawn(front: Front) -> None:
    x = np.random.default_rng(6).standard_normal((2, 3, 9, 9))
    indices = draw(front, x, 3)[1]
    y, pullback = front.vjp("stochastic_pool2d", x, 3, generator=5)
    gy = np.random.default_rng(7).standard_normal(y.shape)
    expected = np.zeros((6, 81))
    np.put_along_axis(expected, indices.reshape(6, 9), gy.reshape(6, 9), 1)
    np.testing.assert_array_equal(pullback(gy), expected.reshape(x.shape))


# Generators


def test_a_numpy_generator_moves_on_and_can_be_made_again() -> None:
    x = activations(SHAPES[2])
    a, b = np.random.default_rng(1), np.random.default_rng(1)
    first, second = (poolgrad.stochastic_pool2d(x, 3, generator=a) for _ in range(2))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(poolgrad.stochastic_pool2d(x, 3, generator=b), first)
    np.testing.assert_array_equal(poolgrad.stochastic_pool2d(x, 3, generator=b), second)


@pytest.mark.without(jax="JAX draws with a key or a seed only")
def test_without_a_generator_every_call_draws_anew(front: Front) -> None:
    x = np.arange(1.0, 10001).reshape(1, 100, 100)
    drawn = [front.run("stochastic_pool2d", x, 10) for _ in range(3)]
    assert len({d.tobytes() for d in drawn}) == 3


def test_integers_of_numpy_are_seeds() -> None:
    x = activations(SHAPES[2])
    expected = poolgrad.stochastic_pool2d(x, 3, generator=7)
    for seed in (np.int64(7), np.uint8(7)):
        np.testing.assert_array_equal(poolgrad.stochastic_pool2d(x, 3, generator=seed), expected)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_a_torch_generator_moves_on_and_can_be_made_again() -> None:
    x = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    for fun, args in ((poolgrad.stochastic_pool2d, (3,)), (poolgrad.fractional_max_pool2d, (2, 8))):
        a, b = (torch.Generator().manual_seed(4) for _ in range(2))
        first, second = (fun(x, *args, generator=a) for _ in range(2))
        assert not torch.equal(first, second)
        assert torch.equal(fun(x, *args, generator=b), first)
        assert torch.equal(fun(x, *args, generator=b), second)


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_manual_seed_governs_what_has_no_generator() -> None:
    x = torch.rand(2, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    for fun, args in ((poolgrad.stochastic_pool2d, (3,)), (poolgrad.fractional_max_pool2d, (2, 8))):
        with torch.random.fork_rng():
            made = []
            for seed in (1, 1, 2):
                torch.manual_seed(seed)
                made.append(fun(x, *args))
        assert torch.equal(made[0], made[1])
        assert not torch.equal(made[0], made[2])


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_a_seed_leaves_the_default_generator_alone() -> None:
    x = torch.rand(1, 2, 9, 9, generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    poolgrad.stochastic_pool2d(x, 3, generator=3)
    poolgrad.fractional_max_pool2d(x, 2, 3, generator=3)
    poolgrad.stochastic_pool2d(x, 3, training=False)
    assert torch.equal(torch.get_rng_state(), before)
