"""Calls whose types mypy must infer where NumPy is installed, but no other framework; never run."""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import poolgrad


def arrays(x: NDArray[np.float32]) -> None:
    assert_type(poolgrad.max_pool2d(x, 2), NDArray[np.float32])
    assert_type(poolgrad.max_pool2d(x, [2, 2], ties="split"), NDArray[np.float32])
    assert_type(poolgrad.avg_pool2d([[1.0, 2.0]], 1), NDArray[Any])
    pair = poolgrad.max_pool2d(x, 2, return_indices=True)
    assert_type(pair, tuple[NDArray[np.float32], NDArray[np.int64]])
    assert_type(poolgrad.vjp(poolgrad.max_pool2d, x, 2)[1](x), NDArray[np.float32])


def refused(x: NDArray[np.float32]) -> None:
    poolgrad.max_pool2d(x, "2")  # type: ignore
    poolgrad.max_pool2d(x, 2, ties="last")  # type: ignore
    poolgrad.maxpool2d(x, 2)  # type: ignore
