"""Properties of pooling: which transformations leave it unchanged or commute with it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from frontend_calls import FRONTS, NUMPY, TORCH, Front
from hypothesis import given
from hypothesis import strategies as st

import poolgrad

KERNEL = 3
SELECTING = ["max_pool2d", "relu_max_pool2d", "min_pool2d", "median_pool2d"]
WEIGHING = ["avg_pool2d", "log_mean_exp_pool2d", "soft_pool2d", "mixed_pool2d"]
WINDOW = list(itertools.product(range(KERNEL), range(KERNEL)))


def peak_at(row: int, column: int) -> np.ndarray:
    """One bright spot on a 9x9 image: nine windows of 3x3."""
    x = np.zeros((1, 1, 9, 9))
    x[0, 0, row, column] = 1
    return x


@pytest.mark.parametrize(("row", "column"), WINDOW)
def test_a_shift_within_the_window_leaves_the_maximum(front: Front, row: int, column: int) -> None:
    here = front.run("max_pool2d", peak_at(3 + row, 3 + column), KERNEL)
    expected = np.zeros((1, 1, 3, 3))
    expected[0, 0, 1, 1] = 1
    np.testing.assert_array_equal(here, expected)


@pytest.mark.parametrize(("row", "column"), WINDOW)
def test_the_gradient_follows_the_winner(front: Front, row: int, column: int) -> None:
    x = peak_at(3 + row, 3 + column) - np.arange(81.0).reshape(9, 9) / 1000
    gy = np.zeros((1, 1, 3, 3))
    gy[0, 0, 1, 1] = 5
    gx = front.vjp("max_pool2d", x, KERNEL)[1](gy)
    np.testing.assert_array_equal(gx, 5 * peak_at(3 + row, 3 + column))


def test_a_shift_out_of_the_window_moves_the_maximum(front: Front) -> None:
    inside = front.run("max_pool2d", peak_at(4, 5), KERNEL)
    outside = front.run("max_pool2d", peak_at(4, 6), KERNEL)
    assert inside[0, 0, 1, 1] == 1
    assert outside[0, 0, 1, 1] == 0
    assert outside[0, 0, 1, 2] == 1


def test_a_shifted_patch_keeps_only_the_outputs_whose_winner_stays(front: Front) -> None:
    x = np.zeros((1, 1, 6, 6))
    x[0, 0, 1, 1], x[0, 0, 4, 2] = 2, 3  # one winner amid its window, one at an edge
    before = front.run("max_pool2d", x, KERNEL)[0, 0]
    after = front.run("max_pool2d", np.roll(x, 1, axis=3), KERNEL)[0, 0]
    assert before[0, 0] == after[0, 0] == 2
    assert (before[1, 0], after[1, 0]) == (3, 0)
    assert (before[1, 1], after[1, 1]) == (0, 3)


@pytest.mark.parametrize("fun", SELECTING + WEIGHING)
@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    steps=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_a_shift_by_the_stride_shifts_the_output(
    fun: str, kernel: int, stride: int, steps: tuple[int, int]
) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 20, 20))
    shifted = x[..., steps[0] * stride :, steps[1] * stride :]
    for front in [front for front in FRONTS if front in (NUMPY, TORCH)]:  # JAX compiles each shape
        y, moved = front.run(fun, x, kernel, stride), front.run(fun, shifted, kernel, stride)
        np.testing.assert_array_equal(moved, y[..., steps[0] :, steps[1] :])
        assert moved.size > 0


def test_a_shift_by_less_than_the_stride_does_not(front: Front) -> None:
    x = np.arange(64.0).reshape(8, 8)
    y, moved = front.run("max_pool2d", x, 2), front.run("max_pool2d", x[:, 1:], 2)
    assert not np.array_equal(moved, y[:, : moved.shape[1]])


@pytest.mark.parametrize("fun", [*SELECTING, "avg_pool2d"])
def test_the_order_within_a_window_does_not_matter(front: Front, fun: str) -> None:
    r = np.random.default_rng(3)
    x = r.integers(-50, 50, (4, 4, 9)).astype(float)  # 4x4 windows of nine places
    mixed = r.permuted(x, axis=2)

    def image(windows: np.ndarray) -> np.ndarray:
        return windows.reshape(4, 4, 3, 3).swapaxes(1, 2).reshape(12, 12)

    assert not np.array_equal(image(x), image(mixed))
    np.testing.assert_array_equal(
        front.run(fun, image(x), KERNEL), front.run(fun, image(mixed), KERNEL)
    )


@pytest.mark.parametrize("fun", SELECTING + WEIGHING)
def test_a_constant_stays(front: Front, fun: str) -> None:
    y = front.run(fun, np.full((2, 9, 9), 0.1), KERNEL, 2)
    # float64: nine times 0.1, over nine
    np.testing.assert_allclose(y, np.full((2, 4, 4), 0.1), rtol=1e-15)


@pytest.mark.parametrize("fun", [*SELECTING, "avg_pool2d"])
@pytest.mark.parametrize("flip", [(2,), (3,), (2, 3)])
def test_mirrors_commute(front: Front, fun: str, flip: tuple[int, ...]) -> None:
    # Integers, so that the average's sums are exact in either order; 3x3 at distance 2 fits 9x9.
    x = np.random.default_rng(5).permutation(162).reshape(1, 2, 9, 9).astype(float)
    y = front.run(fun, x, KERNEL, 2)
    mirrored = front.run(fun, np.flip(x, flip).copy(), KERNEL, 2)
    np.testing.assert_array_equal(mirrored, np.flip(y, flip))


def test_maximum_commutes_with_whatever_keeps_the_order(front: Front) -> None:
    x = np.random.default_rng(6).standard_normal((2, 3, 8, 8))
    y = front.run("max_pool2d", x, KERNEL, 2, 1)
    np.testing.assert_array_equal(
        front.run("max_pool2d", np.maximum(x, 0), KERNEL, 2, 1), np.maximum(y, 0)
    )
    np.testing.assert_array_equal(front.run("max_pool2d", x * 2, KERNEL, 2, 1), y * 2)


def test_average_is_linear(front: Front) -> None:
    r = np.random.default_rng(7)
    a, b = r.integers(-9, 9, (2, 2, 8, 8)).astype(float)
    y = [front.run("avg_pool2d", v, 2, 1, 1) for v in (a, b, 2 * a - 3 * b)]
    np.testing.assert_array_equal(y[2], 2 * y[0] - 3 * y[1])  # quarters of integers: exact


@pytest.mark.parametrize("fun", ["max_pool2d", "avg_pool2d"])
def test_the_gradient_is_conserved(front: Front, fun: str) -> None:
    """Without padding, what comes in by the outputs goes out by the inputs, to the last bit."""
    x = np.random.default_rng(8).standard_normal((2, 3, 9, 9))
    gy = 4 * np.random.default_rng(9).integers(-9, 9, (2, 3, 4, 4)).astype(float)
    gx = front.vjp(fun, x, 2, 2)[1](gy)
    assert gx.sum() == gy.sum()


@pytest.mark.parametrize("fun", SELECTING + WEIGHING)
def test_leading_axes_are_independent(front: Front, fun: str) -> None:
    r = np.random.default_rng(10)
    x, order = r.standard_normal((6, 7, 7)), r.permutation(6)
    y = front.run(fun, x, KERNEL, 2, 1)
    np.testing.assert_array_equal(front.run(fun, x[order], KERNEL, 2, 1), y[order])
    np.testing.assert_array_equal(
        front.run(fun, x.reshape(2, 3, 7, 7), KERNEL, 2, 1), y.reshape(2, 3, 4, 4)
    )


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["max", "min", "avg", "lp", "log_mean_exp", "median"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_windows_along_one_axis(axis: int, name: str, last: bool) -> None:
    """The same in a volume, however its axes lie, as in signals."""
    x = np.random.default_rng(3).integers(-9, 9, (2, 7, 6, 35)).astype(np.float32)
    extra = {"lp": (3.0,)}.get(name, ())
    ones = [1, 1, 1]
    volume = {
        "kernel_size": (*ones[:axis], 5, *ones[axis + 1 :]),
        "stride": 1,
        "padding": tuple(2 * (a == axis) for a in range(3)),
    }
    signals = np.moveaxis(x, 1 + axis, -1)
    how: dict[str, Any] = {"kernel_size": 5, "stride": 1, "padding": 2}
    expected, pullback = poolgrad.vjp(getattr(poolgrad, f"{name}_pool1d"), signals, *extra, **how)
    gradient = pullback(signals)
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)):  # as it lies in memory
        array = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
        how = {**volume, "channels_last": last}
        pool, shown = getattr(poolgrad, f"{name}_pool3d"), array[..., None] if last else array
        y, pullback = poolgrad.vjp(pool, shown, *extra, **how)
        y, gx = (a[..., 0] if last else a for a in (y, pullback(shown)))
        close = 0 if name in ("max", "min", "median") else 1e-5
        for found, wanted in ((y, expected), (gx, gradient)):
            np.testing.assert_allclose(np.moveaxis(found, 1 + axis, -1), wanted, close, close)
