"""Wide windows in narrow planes, computed on transposed planes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")

import poolgrad  # noqa: E402

PLANES = 811  # enough for two threads, and no multiple of any vector's lanes
# Rows of 19, 5, 9, and 11 outputs: each leaves lanes idle in some of the vectors of 16, 8 and 4.
WINDOWS = [  # shape of a plane, kernel, stride, padding, dilation
    ((20, 19), (13, 13), 1, 6, 1),
    ((9, 9), (5, 5), 1, 0, 1),
    ((21, 14), (9, 6), (2, 1), ((4, 3), (2, 3)), (1, 2)),
    ((4, 5), (8, 5), 1, ((5, 4), (9, 1)), 1),  # some windows hold nothing
]


def _planes(kind: str, shape: tuple[int, int], dtype: Any) -> np.ndarray:
    random = np.random.default_rng(5)
    x = random.integers(0, 9, (PLANES, *shape)).astype(dtype)
    if kind == "whole":
        return x
    x -= np.asarray(4, dtype)
    chance = random.random(x.shape)
    x[chance < {"ties": 0.0, "low": 0.9, "nan": 0.1}[kind]] = -np.inf
    if kind == "nan":
        x[:400][chance[:400] > 0.97] = np.nan  # the others are looked at as if there were none
    return x


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("ties", np.float32), ("low", np.float32), ("nan", np.float32), ("whole", np.uint8),
     ("low", np.float16), pytest.param("nan", np.float64, marks=pytest.mark.slow),
     pytest.param("nan", ml_dtypes.bfloat16, marks=pytest.mark.slow),
     pytest.param("whole", np.int64, marks=pytest.mark.slow)],
    ids=lambda v: v if isinstance(v, str) else np.dtype(v).name,
)  # fmt: skip
@pytest.mark.parametrize("fun", ["max_pool2d", "min_pool2d", "relu_max_pool2d"])
def test_planes_are_what_each_is_alone(fun: str, kind: str, dtype: Any, window: Any) -> None:
    poolgrad.set_num_threads(2)
    shape, kernel, stride, padding, dilation = window
    x = _planes(kind, shape, dtype)
    pool = getattr(poolgrad, fun)
    windows = {"stride": stride, "padding": padding, "dilation": dilation}
    if np.dtype(dtype).kind in "iu":
        together = pool(x, kernel, **windows)
        np.testing.assert_array_equal(together, [pool(p, kernel, **windows) for p in x])
        return
    for ties in ("first", "zero"):
        y, pullback = poolgrad.vjp(pool, x, kernel, ties=ties, **windows)
        gy = np.random.default_rng(6).integers(1, 9, y.shape).astype(y.dtype)
        alone = [poolgrad.vjp(pool, p, kernel, ties=ties, **windows) for p in x]
        for array, planes in [
            (y, [own for own, _ in alone]),
            (pullback(gy), [back(g) for (_, back), g in zip(alone, gy, strict=True)]),
        ]:
            bits = f"u{array.itemsize}"
            np.testing.assert_array_equal(array.view(bits), [p.view(bits) for p in planes])


def test_indices_of_planes() -> None:
    poolgrad.set_num_threads(2)
    x = _planes("ties", (20, 19), np.float32)
    y, indices = poolgrad.max_pool2d(x, 13, 1, 6, return_indices=True)
    np.testing.assert_array_equal(np.take_along_axis(x.reshape(PLANES, -1),
                                                     indices.reshape(PLANES, -1), 1),
                                  y.reshape(PLANES, -1))  # fmt: skip
    alone = [poolgrad.max_pool2d(p, 13, 1, 6, return_indices=True)[1] for p in x]
    np.testing.assert_array_equal(indices, alone)
