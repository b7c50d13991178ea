"""Wrong samples and ratios of fractional windows, wrong indices and sizes of unpooling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expected_errors import refused
from frontend_calls import Front, as_tensor, torch

import poolgrad

X = np.arange(32.0).reshape(1, 2, 4, 4)
INF, NAN = np.inf, np.nan


def run(front: Front, fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    """Pool; all but the input goes to poolgrad as it is, which `front.run` would convert."""
    given = as_tensor(x) if front.name == "torch" else x
    return getattr(poolgrad, fun)(given, *args, **kwargs)


# Fractional windows


@pytest.mark.parametrize("fun", ["fractional_max_pool2d", "fractional_max_pool3d"])
def test_both_and_neither_of_size_and_ratio(front: Front, fun: str) -> None:
    x = np.ones((1, 2, *(4,) * int(fun[-2])))
    for kwargs in ({}, {"output_size": 2, "output_ratio": 0.5}):
        with pytest.raises(ValueError, match=r"^exactly one of output_size and output_ratio must"):
            run(front, fun, x, 2, **kwargs)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (0, ValueError), (1, ValueError), (0.0, ValueError), (1.0, ValueError), (-0.5, ValueError),
        (NAN, ValueError), (INF, ValueError), ((0.5, 1.0), ValueError), ((0.0, 0.5), ValueError),
        ((0.5, 0.5, 0.5), ValueError), ((), ValueError), (0.2, ValueError), (10**400, ValueError),
        ("0.5", TypeError), (True, TypeError), (0.5j, TypeError), (("0.5", 0.5), TypeError),
        ({0.5}, TypeError), (b"5", TypeError), ((0.5, None), TypeError), (object(), TypeError),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else repr(v)[:16],
)  # fmt: skip
def test_output_ratio(front: Front, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^output_ratio\b"):
        run(front, "fractional_max_pool2d", X, 1, output_ratio=value)


@pytest.mark.parametrize("value", [-0.1, -1e-30, 1.0, 1.5, NAN, INF, -INF, 1e30])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_samples_outside(front: Front, value: float, dtype: str) -> None:
    samples = np.full((1, 2, 2), 0.5, dtype)
    samples[0, 1, 0] = value
    given: Any = samples if front.name == "numpy" else torch.from_numpy(samples)
    with pytest.raises(ValueError, match=r"^_random_samples must be in \[0, 1\)"):
        run(front, "fractional_max_pool2d", X, 2, 2, _random_samples=given)


@pytest.mark.parametrize("dtype", ["i8", "i4", "?", "c16", "U1", "O"])
def test_samples_of_another_dtype(front: Front, dtype: str) -> None:
    given: Any = np.zeros((1, 2, 2), dtype)
    if front.name == "torch" and dtype not in ("U1", "O"):
        given = torch.from_numpy(given)
    with pytest.raises(TypeError, match=r"^_random_samples\b"):
        run(front, "fractional_max_pool2d", X, 2, 2, _random_samples=given)


@pytest.mark.parametrize(
    "value",
    [0.5, "half", object(), [[0.5], [0.5, 0.5]], np.ma.zeros((1, 2, 2))],
    ids=["float", "str", "object", "ragged", "masked"],
)
def test_samples_that_are_no_samples(front: Front, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^_random_samples\b"):
        run(front, "fractional_max_pool2d", X, 2, 2, _random_samples=value)


# Unpooling

Y = np.ones((1, 2, 2, 2))
ZEROS = np.zeros((1, 2, 2, 2), np.int64)


def as_given(front: Front, indices: Any) -> Any:
    known = isinstance(indices, np.ndarray) and indices.dtype.kind in "iufb"
    return torch.from_numpy(indices) if front.name == "torch" and known else indices


@pytest.mark.parametrize("dtype", ["i4", "i2", "u1", "f4", "f8", "?"])
def test_unpool_indices_of_another_dtype(front: Front, dtype: str) -> None:
    name = {"?": "bool"}.get(dtype, np.dtype(dtype).name)
    with refused(TypeError, "indices must be of dtype int64, got", name):
        run(front, "max_unpool2d", Y, as_given(front, ZEROS.astype(dtype)), 2)


@pytest.mark.parametrize("shape", [(), (8,), (1, 2, 2), (1, 2, 2, 1), (2, 2, 2, 2), (0, 2, 2, 2)])
def test_unpool_indices_of_another_shape(front: Front, shape: tuple[int, ...]) -> None:
    with refused(ValueError, "indices must have the shape of x", f"{Y.shape}, got {shape}"):
        run(front, "max_unpool2d", Y, as_given(front, np.zeros(shape, np.int64)), 2)


@pytest.mark.parametrize(
    "value",
    [None, 0, "0", [[0], [0, 1]], object(), np.ma.zeros((1, 2, 2, 2), dtype=np.int64)],
    ids=["none", "int", "str", "ragged", "object", "masked"],
)
def test_unpool_indices_that_are_no_array(front: Front, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^indices\b"):
        run(front, "max_unpool2d", Y, value, 2)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ((7, 7), ValueError), ((1, 4), ValueError), ((4, 6), ValueError), (0, ValueError),
        ((4,) * 3, ValueError), ((1, 2, 4, 4, 4), ValueError), (2.0, TypeError), ("4", TypeError),
        (True, TypeError), ((4, "4"), TypeError), (-4, ValueError), (2**63, ValueError),
    ],
    ids=lambda v: v.__name__ if isinstance(v, type) else repr(v),
)  # fmt: skip
def test_unpool_output_size(front: Front, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^output_size\b"):
        run(front, "max_unpool2d", Y, as_given(front, ZEROS), 2, output_size=value)


def test_unpool_windows(front: Front) -> None:
    for kwargs, name in (
        ({"kernel_size": 0}, "kernel_size"), ({"kernel_size": 2, "stride": 0}, "stride"),
        ({"kernel_size": 2, "padding": -1}, "padding"), ({"kernel_size": 2.0}, "kernel_size"),
        ({"kernel_size": 2, "padding": "same"}, "padding"), ({"kernel_size": (2,) * 3}, "kernel"),
        ({"kernel_size": 2, "padding": [(0, 1), (0, 1)]}, "padding"),
        ({"kernel_size": 1, "padding": 1}, "kernel_size 1 with padding 1"),
        ({"kernel_size": 2, "stride": 2**60}, "an output"),
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError), match=rf"^{name}"):
            run(front, "max_unpool2d", Y, as_given(front, ZEROS), **kwargs)
