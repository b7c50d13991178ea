"""Chunks in whatever form NumPy holds them: all operators, forward and backward, and on a cluster.

Arrays that come from another process are not aligned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from adversarial_arrays import LAYOUTS
from expected_errors import refused
from robustness.calls import example

dask = pytest.importorskip("dask", reason="Dask is not installed")

import dask.array as da  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad.functional import FUNCTIONS  # noqa: E402

# The draws of stochastic and fractional pooling are refused.
NAMES = [name for name in FUNCTIONS if not name.startswith(("stochastic", "fractional"))]
SOME = [name for name in NAMES if "1d" not in name and "3d" not in name]
AS_HELD = {
    layout.id: layout.make
    for layout in LAYOUTS
    if layout.id in ("byte-swapped", "read-only", "record-field", "reversed", "unaligned")
}


def _held(make: Callable[[Any], Any], block: Any) -> Any:
    return make(block) if block.ndim else block


def _same(a: Any) -> Any:
    return a


def _results(
    name: str, x: Any, kwargs: dict[str, Any], lazy: Callable[[Any], Any] = _same
) -> list[Any]:
    """Output, gradient and gradients of learned arguments; `lazy` makes an array a Dask array."""
    given = {k: lazy(v) if np.ndim(v) > 1 else v for k, v in kwargs.items()}
    y, pullback = poolgrad.vjp(FUNCTIONS[name], lazy(x), **given)
    gy = np.random.default_rng(1).integers(-4, 5, y.shape).astype(y.dtype)
    gy = lazy(gy)
    return [y, pullback(gy), *pullback.parameters(gy).values()]


def _call(name: str, last: bool = False) -> tuple[Any, dict[str, Any]]:
    shape, kwargs = example(name, last)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return x, kwargs


def _equal(name: str, found: list[Any], expected: list[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, 1e-5, 1e-6, err_msg=name)


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("held", AS_HELD)
def test_chunks_as_numpy_may_hold_them(held: str, declared: bool) -> None:
    """`declared`: whether Dask's dtype has the byte order of the chunks."""
    make = AS_HELD[held]

    def lazy(a: Any) -> Any:
        meta = make(a[:0]) if declared and a.ndim else a[:0] if a.ndim else None
        chunked = da.from_array(a, chunks=tuple(-(-n // 2) for n in a.shape))
        return chunked.map_blocks(lambda block: _held(make, block), meta=meta)

    with dask.config.set(scheduler="synchronous"):
        for name in SOME:
            x, kwargs = _call(name)
            (found,) = dask.compute(_results(name, x, kwargs, lazy))
            _equal(name, found, _results(name, x, kwargs))


def _returned(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that makes a Dask array, whose chunks are not as its meta declares."""

    def lazy(a: Any) -> Any:
        chunked = da.from_array(a, chunks=tuple(-(-n // 2) for n in a.shape))
        return chunked.map_blocks(change, meta=a[:0])

    return lazy


@pytest.mark.parametrize("dtype", ["int16", "float64", "float32"])
def test_chunks_of_another_dtype_than_declared(dtype: str) -> None:
    with dask.config.set(scheduler="synchronous"):
        for name in SOME:
            x, kwargs = _call(name)
            x = np.round(4 * x).astype("float64" if dtype == "float32" else "float32")
            kwargs = {k: np.round(v) if k == "logits" else v for k, v in kwargs.items()}
            lazy = _returned(lambda b: b.astype(dtype if b.dtype.kind == "f" else "int32"))
            (found,) = dask.compute(_results(name, x, kwargs, lazy))
            _equal(name, found, _results(name, x, kwargs))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (np.ma.masked_array, TypeError, "without a mask"),
        (lambda b: b + 1j, TypeError, "complex"),
        (lambda b: np.concatenate([b, b]), ValueError, "chunks of the shape that Dask expects"),
        (lambda b: b[:0], ValueError, "chunks of the shape that Dask expects"),
    ],
)
def test_refused_chunks(change: Any, error: type[Exception], words: str) -> None:
    unlike = _returned(change)
    with dask.config.set(scheduler="synchronous"):
        for name in SOME:
            x, kwargs = _call(name)
            lazy = _returned(_same)
            given = {k: lazy(v) if np.ndim(v) > 1 else v for k, v in kwargs.items()}
            results = {"x": FUNCTIONS[name](unlike(x), **given)}
            y, pullback = poolgrad.vjp(FUNCTIONS[name], lazy(x), **given)
            gy = np.ones(y.shape, y.dtype)
            if y.ndim:
                results["gy"] = pullback(unlike(gy))
            for k, v in kwargs.items():
                if np.ndim(v) > 1:
                    results[k] = FUNCTIONS[name](lazy(x), **given | {k: unlike(v)})
            for argument, result in results.items():
                with refused(error, argument, words):
                    result.compute()


class _Subclass(np.ndarray):
    """An array with nothing of its own."""


@pytest.mark.parametrize("kind", [np.matrix, _Subclass])
def test_chunks_of_subclasses(kind: Any) -> None:
    x = np.random.default_rng(0).standard_normal((7, 8))
    for name in ("max_pool2d", "lp_pool2d", "range_pool2d"):
        args = (2.5, 2) if name == "lp_pool2d" else (2,)
        y, pullback = poolgrad.vjp(FUNCTIONS[name], da.from_array(x.view(kind), chunks=3), *args)
        expected, back = poolgrad.vjp(FUNCTIONS[name], x, *args)
        gradient = pullback(da.from_array(expected.view(kind), chunks=2)).compute()
        assert type(gradient) is np.ndarray
        np.testing.assert_allclose(y.compute(), expected, 1e-14)
        np.testing.assert_allclose(gradient, back(expected), 1e-14)


def test_unpooling_reads_planes_and_keeps_the_chunks_of_images() -> None:
    x, kwargs = _call("max_unpool2d")
    lazy = da.from_array(x, chunks=2)
    y, pullback = poolgrad.vjp(poolgrad.max_unpool2d, lazy, **kwargs)
    assert y.numblocks == lazy.numblocks
    assert pullback(y).chunks == lazy.chunks


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", SOME)
def test_chunks_without_elements(name: str, last: bool) -> None:
    x, kwargs = _call(name, last)

    def lazy(a: Any) -> Any:
        return da.from_array(a, chunks=tuple((0, n // 2, 0, n - n // 2, 0) for n in a.shape))

    with dask.config.set(scheduler="synchronous"):
        (found,) = dask.compute(_results(name, x, kwargs, lazy))
    _equal(name, found, _results(name, x, kwargs))


def test_one_parameter_of_one_channel_and_chunks_without_it() -> None:
    x, alpha = np.arange(32.0).reshape(2, 1, 4, 4), np.array([0.3])
    lazy = da.from_array(x, chunks=((2,), (0, 1), (4,), (4,)))
    expected, own = poolgrad.vjp(poolgrad.mixed_pool2d, x, 2, alpha=alpha)
    y, pullback = poolgrad.vjp(poolgrad.mixed_pool2d, lazy, 2, alpha=alpha)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(pullback(y), own(expected))


@pytest.mark.parametrize("swapped", [False, True])
def test_unpooling_takes_indices_of_either_byte_order(swapped: bool) -> None:
    x, kwargs = _call("max_unpool2d")
    indices = AS_HELD["byte-swapped"](kwargs["indices"])
    given = kwargs | {"indices": indices if swapped else da.from_array(indices, chunks=2)}
    found = poolgrad.max_unpool2d(da.from_array(x, chunks=2), **given).compute()
    np.testing.assert_array_equal(found, poolgrad.max_unpool2d(x, **kwargs))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as two,
        distributed.Client(two) as client,
    ):
        yield client


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_gradients_on_two_worker_processes(name: str, cluster: Any) -> None:
    x, kwargs = _call(name)

    def lazy(a: Any) -> Any:
        return da.from_array(a, chunks=tuple(-(-n // 2) for n in a.shape))

    for dtype in (np.float32, np.float64):
        (found,) = dask.compute(_results(name, x.astype(dtype), kwargs, lazy), scheduler=cluster)
        _equal(name, found, _results(name, x.astype(dtype), kwargs))


def test_objects_as_operands() -> None:
    x, objects = da.ones((1, 4, 4)), np.full((1, 4, 4), 1, object)
    with pytest.raises(TypeError, match=r"^logits must be of a floating dtype, got object$"):
        poolgrad.lip_pool2d(x, objects, 2)
    with pytest.raises(TypeError, match=r"^indices must be of dtype int64, got object$"):
        poolgrad.max_unpool2d(x, objects, 2)
