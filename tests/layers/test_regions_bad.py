"""Pooling of regions of interest: bad boxes and arguments, the kernels' own door, and Ctrl-C."""

from __future__ import annotations

import signal
import time
from typing import Any

import numpy as np
import pytest

import poolgrad
from poolgrad.core import Regions

X, BOX = np.ones((2, 3, 6, 7), np.float32), np.array([[0, 1.0, 1, 4, 4]])
nan, inf = np.nan, np.inf


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([2, 1, 1, 4, 4], r"boxes\[1\] must begin with the index of an image, a whole"),
        ([-1, 1, 1, 4, 4], "whole number from 0 to 1, got -1"),
        ([0.5, 1, 1, 4, 4], "whole number from 0 to 1, got 0.5"),
        ([nan, 1, 1, 4, 4], "whole number from 0 to 1, got nan"),
        ([inf, 1, 1, 4, 4], "whole number from 0 to 1, got inf"),
        ([1e300, 1, 1, 4, 4], "whole number from 0 to 1, got 1e"),
        ([0, nan, 1, 4, 4], r"boxes\[1\] must have finite .*\(x1, y1, x2, y2\) = \(nan, 1, 4"),
        ([0, 1, 1, inf, 4], "must have finite coordinates"),
        ([0, 1, -inf, 4, 4], "must have finite coordinates"),
        ([0, 4, 1, 3, 4], r"boxes\[1\] must have x1 <= x2 and y1 <= y2, got .*\(4, 1, 3, 4\)"),
        ([0, 1, 4.5, 4, 4], r"x1 <= x2 and y1 <= y2, got .*\(1, 4.5, 4, 4\)"),
        ([0, 1, 1, 4, 1e300], r"within 2\*\*30 pixels of the origin"),
        ([0, -2.0**31, 1, 4, 4], r"within 2\*\*30 pixels of the origin"),
    ],
)  # fmt: skip
def test_bad_boxes(row: list[float], message: str) -> None:
    table = np.array([BOX[0], row])
    for name in ("roi_pool", "roi_align"):
        with pytest.raises(ValueError, match=message):
            getattr(poolgrad, name)(X, table, 2)
        with pytest.raises(ValueError, match=message):
            poolgrad.vjp(getattr(poolgrad, name), X, table, 2)


def test_boxes_that_are_far_off_when_scaled() -> None:
    with pytest.raises(ValueError, match="also when scaled"):
        poolgrad.roi_align(X, BOX * 2.0**20, 2, 1024.0)


def test_boxes_without_images() -> None:
    with pytest.raises(ValueError, match="boxes must be empty if input has no images, got 1"):
        poolgrad.roi_pool(X[:0], BOX, 2)


@pytest.mark.parametrize(
    ("boxes", "error", "message"),
    [
        (BOX[0], ValueError, r"boxes must be an array of shape \(K, 5\)"),
        (BOX[:, 1:], ValueError, r"got boxes of shape \(1, 4\)"),
        (BOX[None], ValueError, r"got boxes of shape \(1, 1, 5\)"),
        (BOX.astype(complex), TypeError, "boxes must contain real numbers, got complex128"),
        (BOX > 0, TypeError, "boxes must contain real numbers, got bool"),
        (None, TypeError, "boxes must contain real numbers, got object"),
        (BOX.astype(str), TypeError, "boxes must contain real numbers"),
        (
            [BOX[:, 1:]],
            ValueError,
            "boxes must have one array for each of 2 images, got a list of 1",
        ),
        ([BOX[:, 1:]] * 3, ValueError, "one array for each of 2 images, got a list of 3"),
        ([BOX, BOX], ValueError, r"got boxes\[0\] of shape \(1, 5\)"),
        ([BOX[:, 1:], BOX[0, 1:]], ValueError, r"got boxes\[1\] of shape \(4,\)"),
        ([BOX[:, 1:], None], TypeError, r"boxes\[1\] must contain real numbers"),
        ([BOX[:, 1:], [[1, 2, 3, 4], [1]]], ValueError, r"boxes\[1\] must be an array of shape"),
        (np.ma.masked_array(BOX), TypeError, "boxes must have no mask"),
    ],
)
def test_boxes_that_are_none(boxes: Any, error: type[Exception], message: str) -> None:
    for name in ("roi_pool", "roi_align"):
        with pytest.raises(error, match=message):
            getattr(poolgrad, name)(X, boxes, 2)


@pytest.mark.parametrize(
    ("input", "error", "message"),
    [
        (X[0], ValueError, r"input must have shape \(N, C, H, W\) .* got shape \(3, 6, 7\)"),
        (X[..., :0], ValueError, "at least one row and one column"),
        (X[:, :, :0], ValueError, "at least one row and one column"),
        (X.astype(int), TypeError, "input must be of dtype float16, .* or float64, got int64"),
        (X.astype(complex), TypeError, "got complex128"),
        (None, TypeError, "input must be an array of NumPy, PyTorch, JAX, Dask or an array-API"),
        (np.ma.masked_array(X), TypeError, "input must have no mask"),
        (np.broadcast_to(np.float32(0), (1, 1, 2**16, 2**16)), ValueError, "2.*31 - 1 positions"),
    ],
)
def test_bad_inputs(input: Any, error: type[Exception], message: str) -> None:
    for name in ("roi_pool", "roi_align"):
        with pytest.raises(error, match=message):
            getattr(poolgrad, name)(input, BOX, 2)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"output_size": 0}, ValueError, "output_size must be .*, got 0"),
        ({"output_size": (2, -1)}, ValueError, "output_size must be"),
        ({"output_size": 2.0}, TypeError, "output_size must be"),
        ({"output_size": (2, 2, 2)}, ValueError, "output_size must be"),
        ({"output_size": (2**31, 2**31)}, ValueError, "output_size .* would overflow memory"),
        ({"spatial_scale": 0.0}, ValueError, "spatial_scale must be greater than 0"),
        ({"spatial_scale": -1}, ValueError, "spatial_scale must be greater than 0"),
        ({"spatial_scale": nan}, ValueError, "spatial_scale must be .*, got nan"),
        ({"spatial_scale": inf}, ValueError, r"at most 2\*\*30, got inf"),
        ({"spatial_scale": "1"}, TypeError, "spatial_scale must be a number, got '1'"),
        ({"spatial_scale": True}, TypeError, "spatial_scale must be a number, got True"),
    ],
)
def test_bad_arguments(kwargs: Any, error: type[Exception], message: str) -> None:
    for name in ("roi_pool", "roi_align"):
        with pytest.raises(error, match=message):
            getattr(poolgrad, name)(X, BOX, **({"output_size": 2} | kwargs))


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"sampling_ratio": 1.5}, TypeError, "sampling_ratio must be an integer, got 1.5"),
        ({"sampling_ratio": True}, TypeError, "sampling_ratio must be an integer, got True"),
        ({"sampling_ratio": 65537}, ValueError, "sampling_ratio must be at most 65536, got 65537"),
        ({"aligned": 1}, TypeError, "aligned must be True or False, got 1"),
    ],
)
def test_bad_sampling(kwargs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        poolgrad.roi_align(X, BOX, 2, **kwargs)


def test_an_output_that_no_memory_holds() -> None:
    for name in ("roi_pool", "roi_align"):
        with pytest.raises(MemoryError):
            getattr(poolgrad, name)(X, BOX, (2**28, 2**28))


@pytest.mark.parametrize("library", ["jax", "dask"])
def test_errors_are_the_same_for_other_libraries(library: str) -> None:
    xp = pytest.importorskip({"jax": "jax.numpy", "dask": "dask.array"}[library])
    x = xp.asarray(X)
    for name in ("roi_pool", "roi_align"):
        pool = getattr(poolgrad, name)
        with pytest.raises(ValueError, match=r"boxes\[0\] must have x1 <= x2 and y1 <= y2"):
            pool(x, BOX[:, [0, 3, 2, 1, 4]], 2)
        with pytest.raises(ValueError, match="one array for each of 2 images, got a list of 1"):
            pool(x, [BOX[:, 1:]], 2)
        with pytest.raises(TypeError, match=r"boxes\[1\] must contain real numbers"):
            pool(x, [BOX[:, 1:], None], 2)
        with pytest.raises(ValueError, match=r"input must have shape \(N, C, H, W\)"):
            pool(x[0], BOX, 2)
        with pytest.raises(TypeError, match=r"input must be of dtype .*, got int32"):
            pool(x.astype("int32"), BOX, 2)
        with pytest.raises(ValueError, match=r"output_size .* would overflow memory"):
            pool(x, BOX, (2**31, 2**31))


# The kernels' own door


def door(shape: Any = (2, 3, 6, 7), size: Any = (2, 2), table: Any = BOX, **how: Any) -> Regions:
    how = {"dtype": "float32", "boxes": table, "spatial_scale": 1.0} | how
    return Regions(shape, size, **how)


Y, PLACES = np.zeros((1, 3, 2, 2), np.float32), np.zeros((1, 3, 2, 2), np.int32)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"shape": (2, 3, 6)}, "lack an axis"),
        ({"size": (2,)}, "lack an axis"),
        ({"shape": (2, -3, 6, 7)}, "negative"),
        ({"shape": (2, 3, 0, 7)}, "less than one"),
        ({"size": (0, 2)}, "less than one"),
        ({"shape": (2**31, 2**31, 6, 7)}, "too large"),
        ({"shape": (2, 3, 2**40, 2**40)}, "too large"),
        ({"shape": (2, 3, 2**20, 2**20)}, "positions in a plane"),
        ({"size": (2**31, 2**31)}, "too large"),
        ({"dtype": "float16"}, "float32 or float64"),
        ({"spatial_scale": nan}, "spatial_scale"),
        ({"spatial_scale": 2.0**31}, "spatial_scale"),
        ({"table": BOX[:, :4].copy()}, "another shape"),
        ({"table": BOX[0]}, "another shape"),
        ({"table": np.repeat(BOX, 2, 0)[:, ::-1]}, "not contiguous"),
        ({"table": BOX.astype(np.float32)}, "items of another size"),
    ],
)
def test_regions_that_do_not_fit(kwargs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        door(**kwargs)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X[:1]}, "another shape"),
        ({"x": X.astype(np.float64)}, "items of another size"),
        ({"x": np.asfortranarray(X)}, "not contiguous"),
        ({"y": Y[:, :2]}, "another shape"),
        ({"y": np.zeros((1, 3, 2, 4), np.float32)[..., ::2]}, "not contiguous"),
        ({"indices": PLACES.astype(np.int64)}, "items of another size"),
    ],
)
def test_arrays_that_do_not_fit(arrays: Any, message: str) -> None:
    given = {"x": X, "y": Y, "indices": PLACES} | arrays
    with pytest.raises(ValueError, match=message):
        door().pool(given["x"], given["y"], given["indices"], 1)
    if "indices" not in arrays:
        with pytest.raises(ValueError, match=message):
            door().align(given["x"], given["y"], 1, False, 1)
        with pytest.raises(ValueError, match=message):
            door().align_backward(given["y"], given["x"], 1, False, 1)


@pytest.mark.parametrize("bad", [-2, 42, 2**31 - 1, -(2**31)])
def test_indices_outside_their_plane(bad: int) -> None:
    places = PLACES.copy()
    places[0, 1, 1, 0] = bad
    with pytest.raises(ValueError, match="indices must be -1 or from 0 to 41"):
        door().pool_backward(Y, places, X.copy(), 2)
    with pytest.raises(ValueError, match="indices must be -1 or from 0 to 41"):
        door().pool_gather(X, places, Y.copy(), 2)


def test_too_many_samples_at_the_door() -> None:
    with pytest.raises(ValueError, match="sampling_ratio must be at most 65536"):
        door().align(X, Y.copy(), 65537, False, 1)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there is no timer")
def test_ctrl_c_ends_a_long_call() -> None:
    x, table = np.ones((1, 64, 500, 500), np.float32), np.array([[0, 0.0, 0, 500, 500]] * 2000)

    def interrupt(*unused: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    start = time.perf_counter()
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            poolgrad.roi_align(x, table, 7)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.perf_counter() - start < 5  # the whole call takes tens of seconds
