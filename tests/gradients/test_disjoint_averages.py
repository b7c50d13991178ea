"""Gradients of averages whose windows do not overlap: each input has one share, or none."""

from __future__ import annotations

import numpy as np
import pytest

import poolgrad


def gradient(
    gy: np.ndarray, sizes: tuple[int, ...], kernel: int, stride: int, padding: int
) -> np.ndarray:
    """Return the shares by definition, along one axis after the other."""
    for axis, size in enumerate(sizes, -len(sizes)):
        outputs = gy.shape[axis]
        spread = np.zeros((outputs, size), gy.dtype)
        for o in range(outputs):
            begin = o * stride - padding
            spread[o, max(begin, 0) : max(begin + kernel, 0)] = 1
        gy = np.moveaxis(np.moveaxis(gy, axis, -1) @ spread, -1, axis)
    return gy / kernel ** len(sizes)


@pytest.mark.parametrize("layout", ["channels first", "channels last", "three channels last"])
@pytest.mark.parametrize("kernel", range(2, 11))
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_each_input_gets_the_share_of_its_window(dims: int, kernel: int, layout: str) -> None:
    function = getattr(poolgrad, f"avg_pool{dims}d")
    random = np.random.default_rng(kernel)
    last = layout != "channels first"
    channels = {"channels first": 2, "channels last": 16, "three channels last": 3}[layout]
    for stride in (kernel, kernel + 1, kernel + 3):
        for padding in (0, kernel // 2):
            sizes = tuple(int(n) for n in random.integers(2 * kernel, 5 * kernel, dims))
            shape = (2, *sizes, channels) if last else (2, channels, *sizes)
            x = random.standard_normal(shape).astype(np.float32)
            y, pullback = poolgrad.vjp(function, x, kernel, stride, padding, channels_last=last)
            gy = random.integers(-8, 9, y.shape).astype(np.float32)  # sums are exact
            first = np.moveaxis(gy, -1, 1) if last else gy
            expected = gradient(first, sizes, kernel, stride, padding)
            gx = pullback(gy)
            gx = np.moveaxis(gx, -1, 1) if last else gx
            np.testing.assert_allclose(gx, expected, rtol=1e-6)
