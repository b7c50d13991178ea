"""Calls whose types mypy and pyright must infer, and calls that they must refuse; never run."""

from typing import Any, assert_type

import dask.array as da
import jax
import numpy as np
import torch
from numpy.typing import NDArray

import poolgrad
from poolgrad.jax import nn
from poolgrad.torch import AvgPool2d, GlobalLPPool2d, MaxPool2d, StochasticPool2d


def arrays(x: NDArray[np.float32], t: torch.Tensor, j: jax.Array) -> None:
    assert_type(poolgrad.max_pool2d(x, 2), NDArray[np.float32])
    assert_type(poolgrad.max_pool2d(t, 2), torch.Tensor)
    assert_type(poolgrad.max_pool2d(t, 2, ties="zero", routes="packed"), torch.Tensor)
    assert_type(poolgrad.max_pool2d(j, 2), jax.Array)
    assert_type(poolgrad.avg_pool1d(t, [2], padding="same"), torch.Tensor)
    assert_type(poolgrad.lp_pool3d(x, 2.0, (1, 2, 2)), NDArray[np.float32])
    assert_type(poolgrad.global_avg_pool(j, keepdims=True), jax.Array)
    assert_type(poolgrad.adaptive_avg_pool2d(t, (None, 3)), torch.Tensor)
    assert_type(poolgrad.avg_pool2d([[1.0, 2.0]], 1), NDArray[Any])
    assert_type(poolgrad.max_pool2d(x, np.int64(2), (np.int64(2), 1)), NDArray[np.float32])
    assert_type(poolgrad.log_mean_exp_pool2d(x, 2, r=2.0), NDArray[np.float32])


def averages(i: NDArray[np.uint8], b: NDArray[np.bool], x: NDArray[np.float32]) -> None:
    assert_type(poolgrad.avg_pool2d(i, 2), NDArray[np.floating[Any]])
    assert_type(poolgrad.global_avg_pool(b), NDArray[np.floating[Any]])
    assert_type(poolgrad.avg_pool2d(x, 2), NDArray[np.float32])
    assert_type(poolgrad.avg_pool2d(i, 2, quantization=(0.1, 3)), NDArray[np.uint8])
    assert_type(poolgrad.avg_pool2d(i, 2, quantization=None), NDArray[np.floating[Any]])
    assert_type(poolgrad.max_pool2d(i, 2), NDArray[np.uint8])


def lazy(d: da.Array) -> None:
    assert_type(poolgrad.min_pool2d(d, 2), da.Array)


def indices(t: torch.Tensor, wanted: bool) -> None:
    assert_type(poolgrad.max_pool2d(t, 2, return_indices=False), torch.Tensor)
    assert_type(poolgrad.max_pool2d(t, 2, return_indices=True), tuple[torch.Tensor, torch.Tensor])
    y, i = poolgrad.max_pool2d(t, 2, 2, 0, 1, False, True)
    assert_type(y, torch.Tensor)
    assert_type(i, torch.Tensor)
    either = poolgrad.max_pool2d(t, 2, return_indices=wanted)
    assert_type(either, torch.Tensor | tuple[torch.Tensor, torch.Tensor])
    assert_type(poolgrad.max_unpool2d(y, i, 2), torch.Tensor)


def indices_of_arrays(x: NDArray[np.float32], wanted: bool) -> None:
    assert_type(
        poolgrad.min_pool2d(x, 2, return_indices=True),
        tuple[NDArray[np.float32], NDArray[np.int64]],
    )
    assert_type(
        poolgrad.global_max_pool(x, return_indices=wanted),
        NDArray[np.float32] | tuple[NDArray[np.float32], NDArray[np.int64]],
    )
    assert_type(
        poolgrad.adaptive_max_pool2d([[1.0]], 1, True), tuple[NDArray[Any], NDArray[np.int64]]
    )


def modules() -> None:
    assert_type(MaxPool2d(2), MaxPool2d)
    MaxPool2d(3, stride=2, padding="same", ties="split")
    AvgPool2d((2, 3), count_include_pad=False)
    GlobalLPPool2d(torch.nn.Parameter(torch.ones(3)), mean=True)
    StochasticPool2d(2, generator=torch.Generator())
    plain: torch.nn.MaxPool2d = MaxPool2d(2)
    del plain


def jax_modules(j: jax.Array, key: jax.Array) -> None:
    pool = nn.MaxPool2d(3, stride=2, padding="same", ties="split")
    assert_type(pool, nn.MaxPool2d)
    assert_type(pool.channels_last, bool)
    assert_type(nn.AvgPool2d((2, 3), count_include_pad=False)(j, key=key), jax.Array)
    assert_type(nn.LPPool2d(jax.numpy.ones(3), 2, mean=True)(j), jax.Array)
    assert_type(nn.LipPool1d(2)(j, j), jax.Array)
    assert_type(nn.MaxUnpool3d(2)(j, j, (4, 4, 4)), jax.Array)
    assert_type(poolgrad.jax.nn.GlobalLPPool2d(norm_type=3.0)(j), jax.Array)
    nn.StochasticPool2d(2)(j, key=key, training=False)


def refused_by_jax_modules(j: jax.Array) -> None:
    nn.MaxPool2d("x")  # type: ignore
    nn.MaxPool2d(2, foo=3)  # type: ignore
    nn.MaxPool2d()  # type: ignore
    nn.MaxPool2d(2)(j, rngs=3)  # type: ignore
    nn.MaxPool2d(2).stride = 3  # type: ignore
    nn.LipPool2d(2)(j)  # type: ignore


def refused(t: torch.Tensor) -> None:
    MaxPool2d("x")  # type: ignore
    MaxPool2d(2, foo=3)  # type: ignore
    MaxPool2d()  # type: ignore
    poolgrad.max_pool2d(t)  # type: ignore
    poolgrad.max_pool2d(t, "2")  # type: ignore
    poolgrad.max_pool2d(t, 2, kernel=3)  # type: ignore
    poolgrad.max_pool2d(3.5, 2)  # type: ignore
    poolgrad.avg_pool2d(t, 2, return_indices=True)  # type: ignore
    poolgrad.maxpool2d(t, 2)  # type: ignore
    poolgrad.min_pool2d(t, 2, 2, 0, 1)  # type: ignore
    poolgrad.max_pool2d(t, 2, ties="last")  # type: ignore
    poolgrad.min_pool2d(t, 2, routes="bits")  # type: ignore
    MaxPool2d(2, ties="all")  # type: ignore
