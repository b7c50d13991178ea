"""Objects that NumPy converts to an array are pooled as that array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expected_errors import refused

import poolgrad

X = np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)


class Wrapped:
    """An array of a library that poolgrad does not know."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._array


class Exposed:
    """The same by the older protocol, as image libraries have it."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @property
    def __array_interface__(self) -> Any:
        return self._array.__array_interface__


@pytest.mark.parametrize("kind", [Wrapped, Exposed])
@pytest.mark.parametrize(
    ("fun", "args"), [("max_pool2d", (2,)), ("soft_pool2d", (2,)), ("global_avg_pool", ())]
)
def test_what_has_an_array(kind: Any, fun: str, args: Any) -> None:
    pool = getattr(poolgrad, fun)
    y = pool(kind(X), *args)
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, pool(X, *args))
    y, pullback = poolgrad.vjp(pool, kind(X), *args)
    np.testing.assert_array_equal(pullback(y), poolgrad.vjp(pool, X, *args)[1](y))


def test_indices_and_learned_arguments() -> None:
    y, indices = poolgrad.max_pool2d(X, 2, return_indices=True)
    back = poolgrad.max_unpool2d(Wrapped(y), Wrapped(indices), 2)
    np.testing.assert_array_equal(back, poolgrad.max_unpool2d(y, indices, 2))
    alpha = np.array([0.25, 0.75])
    mixed = poolgrad.mixed_pool2d(X, 2, alpha=Wrapped(alpha))
    np.testing.assert_array_equal(mixed, poolgrad.mixed_pool2d(X, 2, alpha=alpha))


def test_tables() -> None:
    pandas = pytest.importorskip("pandas")
    series = pandas.Series([1.0, 3.0, 2.0, 6.0])
    assert poolgrad.max_pool1d(series, 2).tolist() == [3, 6]
    assert poolgrad.max_pool2d(pandas.DataFrame(np.eye(4)), 2).tolist() == [[1, 0], [0, 1]]


def test_pictures() -> None:
    image = pytest.importorskip("PIL.Image").fromarray(np.arange(16, dtype=np.uint8).reshape(4, 4))
    assert poolgrad.max_pool2d(image, 2).tolist() == [[5, 7], [13, 15]]
    assert poolgrad.global_max_pool(image).item() == 15


def test_what_cannot_be_converted_or_holds_no_numbers() -> None:
    class Far(Wrapped):
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
            raise TypeError("lies on another device")

    with refused(TypeError, "x must be", "lies on another device"):
        poolgrad.max_pool2d(Far(X), 2)
    with refused(TypeError, "x must be of dtype", "<U3"):
        poolgrad.max_pool2d(Wrapped(np.full((4, 4), "abc")), 2)
    with refused(ValueError, "x must have at least 2 axes", (4,)):
        poolgrad.max_pool2d(Wrapped(X[0, 0, 0]), 2)
