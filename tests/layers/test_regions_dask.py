"""Pooling of regions of interest of Dask arrays, in chunks of images and channels."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from regions import CALLS, NAMES, boxes, listed, maps

import poolgrad

da = pytest.importorskip("dask.array", reason="Dask is not installed")

each_name = pytest.mark.parametrize("name", ["roi_pool", "roi_align"])
X, TABLE = maps((4, 3, 11, 13)), boxes(images=4)


@pytest.mark.parametrize(("name", "kwargs"), CALLS, ids=NAMES)
@pytest.mark.parametrize("chunks", [-1, (1, 1, 4, 5), ((1, 3), 2, 11, 13)], ids=str)
def test_the_same_bits_in_all_chunks(name: str, kwargs: dict[str, Any], chunks: Any) -> None:
    pool = getattr(poolgrad, name)
    expected, textbook = poolgrad.vjp(pool, X, TABLE, (3, 2), **kwargs)
    x = da.from_array(X, chunks=chunks)
    y, pullback = poolgrad.vjp(pool, x, TABLE, (3, 2), **kwargs)
    assert (y.shape, y.dtype, y.chunks[1]) == (expected.shape, expected.dtype, x.chunks[1])
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(pool(x, TABLE, (3, 2), **kwargs), expected)
    gy = np.random.default_rng(0).normal(size=y.shape)
    for given in (gy, da.from_array(gy, chunks=5), gy.astype(np.float32)):
        gx = pullback(given)
        assert (gx.shape, gx.dtype, gx.chunks[:2]) == (x.shape, x.dtype, x.chunks[:2])
        np.testing.assert_array_equal(gx, textbook(np.asarray(given)))
    if name == "roi_pool":
        np.testing.assert_array_equal(pullback.indices, textbook.indices)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(pullback))(gy), textbook(gy))


@each_name
@pytest.mark.parametrize("dtype", ["float16", ">f4", "float32"])
def test_dtypes_and_lists(name: str, dtype: str) -> None:
    pool, x, (own, table) = getattr(poolgrad, name), X.astype(dtype), listed(TABLE, 4)
    expected, lazy = pool(x, table, 3), da.from_array(x, chunks=(1, 2, -1, -1))
    for given in (own, table, table.astype(np.float64), [one.tolist() for one in own]):
        y = pool(lazy, given, 3)
        assert y.dtype == expected.dtype
        np.testing.assert_array_equal(y, expected)


@each_name
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (0, 3, 4, 5), (2, 0, 4, 5)])
def test_no_boxes_and_no_channels(name: str, shape: Any) -> None:
    x, table = da.ones(shape, chunks=(1, 1, 2, 2)), np.zeros((0 if shape[1] else 2, 5))
    y, pullback = poolgrad.vjp(getattr(poolgrad, name), x, table, (2, 3))
    assert y.compute().shape == (len(table), shape[1], 2, 3)
    assert pullback(y).compute().shape == shape


@each_name
def test_later_changes_of_boxes_change_nothing(name: str) -> None:
    table = TABLE.copy()
    y, pullback = poolgrad.vjp(getattr(poolgrad, name), da.from_array(X, chunks=2), table, 3)
    expected, textbook = poolgrad.vjp(getattr(poolgrad, name), X, TABLE, 3)
    table[:] = 0
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(pullback(expected), textbook(expected))


@each_name
def test_cotangents_of_another_shape(name: str) -> None:
    _, pullback = poolgrad.vjp(getattr(poolgrad, name), da.from_array(X, chunks=2), TABLE, 3)
    with pytest.raises(ValueError, match="gy must have the shape of the output"):
        pullback(np.ones((12, 3, 3, 2)))
