"""Every spelling of a repeated call goes the short way, and gives what the long way gives."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

import poolgrad
from poolgrad import call_cache

X = np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype(np.float32)

SPELLINGS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "int": ((3,), {}),
    "list": (([3, 3],), {}),
    "tuple": (((3, 3),), {}),
    "keywords": ((), {"kernel_size": 3, "stride": [2, 2], "padding": 1}),
    "pairs in lists": ((3,), {"padding": [[0, 1], [1, 0]]}),
    "pairs in a list": ((3,), {"padding": [(0, 1), (1, 0)]}),
    "indices": ((3,), {"return_indices": True}),
    "indices of ties": ((3,), {"return_indices": True, "ties": "split"}),
    "packed routes": (([2, 2],), {"routes": "packed"}),
}


def counted(monkeypatch: pytest.MonkeyPatch, kind: type) -> list[object]:
    """The keys that are looked up from now on in vain."""
    known, missed = call_cache.LOOKUPS[kind], []

    def key(args: Any, kwargs: Any) -> Any:
        missed.append(known.key(args, kwargs))
        return missed[-1]

    monkeypatch.setitem(call_cache.LOOKUPS, kind, known._replace(key=key))
    return missed


def same(one: Any, other: Any) -> None:
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (one, other)), strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.asarray(a).dtype == np.asarray(b).dtype


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", ["max_pool2d", "min_pool2d"])
def test_a_spelling_is_described_once(
    name: str, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, (args, kwargs) = getattr(poolgrad, name), SPELLINGS[spelling]
    expected = pool(np.asfortranarray(X), *args, **kwargs)  # of another layout: another bound call
    pool(X, *args, **kwargs)
    missed = counted(monkeypatch, np.ndarray)
    same(pool(X, *args, **kwargs), expected)
    assert not missed


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_tensors_in_every_spelling(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    args, kwargs = SPELLINGS[spelling]
    expected = poolgrad.max_pool2d(X, *args, **kwargs)
    t, leaf = torch.tensor(X), torch.tensor(X, requires_grad=True)
    for x in (t, leaf):
        poolgrad.max_pool2d(x, *args, **kwargs)
    missed = counted(monkeypatch, torch.Tensor)
    for x in (t, leaf):
        y = poolgrad.max_pool2d(x, *args, **kwargs)
        same(tuple(a.detach() for a in y) if isinstance(y, tuple) else y.detach(), expected)
    # The routes of ties="split" are not those that indices are made from.
    assert len(missed) == (2 if spelling == "indices of ties" else 0)


def test_a_list_may_change() -> None:
    size = [3, 3]
    for _ in range(2):
        assert poolgrad.max_pool2d(X, size).shape == (2, 3, 3, 3)
    size[0] = 2
    assert poolgrad.max_pool2d(X, size).shape == (2, 3, 4, 3)


@pytest.mark.parametrize("keepdims", [False, True])
def test_global_indices(keepdims: bool) -> None:
    expected = X.reshape(6, 81).argmax(1).reshape((2, 3, 1, 1) if keepdims else (2, 3))
    for _ in range(2):
        _, indices = poolgrad.global_max_pool(X, keepdims=keepdims, return_indices=True)
        np.testing.assert_array_equal(indices, expected)


def test_gradients_with_indices() -> None:
    torch = pytest.importorskip("torch")
    leaf = torch.tensor(X, requires_grad=True)
    (expected,) = torch.autograd.grad(poolgrad.max_pool2d(leaf, 3, 2).square().sum(), leaf)
    for _ in range(3):
        y, indices = poolgrad.max_pool2d(leaf, 3, 2, return_indices=True)
        assert not indices.requires_grad
        (gx,) = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
        assert torch.equal(gx.detach(), expected)
        (twice,) = torch.autograd.grad(gx.sum(), leaf)
        assert bool((twice != 0).any())


def test_modules_use_the_cache_of_their_function(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    import poolgrad.torch as layers

    t = torch.tensor(X)
    modules = [layers.MaxPool2d(3, [2, 2]), layers.AvgPool2d(3), layers.GlobalAvgPool2d()]
    expected = [module(t[:, :, ::1].double()) for module in modules]
    for module in modules:
        module(t)
    missed = counted(monkeypatch, torch.Tensor)
    for module, y in zip(modules, expected, strict=True):
        torch.testing.assert_close(module(t).double(), y, rtol=1e-5, atol=1e-6)
    assert not missed
    modules[0].stride = 3  # a change counts
    assert modules[0](t).shape == (2, 3, 3, 3)
    assert layers.GlobalAvgPool1d()(t).shape == (2, 3, 9)


def test_a_shrunk_storage_is_refused_after_a_recipe() -> None:
    torch = pytest.importorskip("torch")
    for _ in range(2):
        t = torch.tensor(X)
        poolgrad.max_pool2d(t, 3)
        t.untyped_storage().resize_(64)
        with pytest.raises(RuntimeError, match="x must have memory"):
            poolgrad.max_pool2d(t, 3)


# vjp and its pullback

CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "max": (poolgrad.max_pool2d, ([3, 3], 2), {}),
    "packed": (poolgrad.max_pool2d, (2,), {"routes": "packed"}),
    "split": (poolgrad.min_pool2d, (3,), {"ties": "split"}),
    "avg": (poolgrad.avg_pool2d, (3, 2, 1), {}),
    "lp": (poolgrad.lp_pool2d, (2.5, 3), {}),
    "soft": (poolgrad.soft_pool2d, (3,), {}),
    "global": (poolgrad.global_max_pool, (), {}),
    "global lp": (poolgrad.global_lp_pool, (3.0,), {"keepdims": True, "mean": True}),
    "learned": (poolgrad.lp_pool2d, (np.array([2.0, 3.0, 1.5]), 3), {}),
    "drawn": (poolgrad.stochastic_pool2d, (3,), {"generator": 1}),
    "fractional": (poolgrad.fractional_max_pool2d, (2, 4), {"generator": 1}),
}


@pytest.mark.parametrize("name", CALLS)
def test_pullbacks_again(name: str) -> None:
    fun, args, kwargs = CALLS[name]
    x = abs(X)
    y, pullback = poolgrad.vjp(fun, x, *args, **kwargs)
    gy = np.random.default_rng(1).standard_normal(y.shape).astype(y.dtype)
    again = np.asfortranarray(gy)  # needs the long way
    expected = poolgrad.vjp(fun, np.asfortranarray(x), *args, **kwargs)[1](again)
    for _ in range(2):
        other, repeated = poolgrad.vjp(fun, x, *args, **kwargs)
        same(other, y)
        for each in (pullback, repeated):
            for cotangent in (gy, again, gy.astype(np.float64), gy.tolist()):
                np.testing.assert_allclose(each(cotangent), expected, rtol=1e-5, atol=1e-6)
        assert repr(repeated) == repr(pullback)
        assert repeated.parameters(gy).keys() == pullback.parameters(gy).keys()


def test_a_repeated_vjp_is_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        poolgrad.vjp(poolgrad.max_pool2d, X, [3, 3])
    missed = counted(monkeypatch, np.ndarray)
    poolgrad.vjp(poolgrad.max_pool2d, X, [3, 3])
    assert not missed


@pytest.mark.parametrize("bad", [np.ones((2, 3, 3, 2), np.float32), np.ones(1), "gy", None])
def test_a_wrong_cotangent_is_refused_each_time(bad: object) -> None:
    for _ in range(2):
        _, pullback = poolgrad.vjp(poolgrad.max_pool2d, X, 3)
        with pytest.raises((TypeError, ValueError), match="gy must"):
            pullback(bad)


@pytest.mark.parametrize("copied", [lambda p: pickle.loads(pickle.dumps(p)), deepcopy])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_a_pullback_pickles(name: str, dtype: str, copied: Callable[[Any], Any]) -> None:
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    fun, args, kwargs = CALLS[name]
    y, pullback = poolgrad.vjp(fun, abs(X).astype(dtype), *args, **kwargs)
    gy = np.ones_like(y)
    expected = pullback(gy)
    assert expected.dtype == y.dtype
    own = copied(pullback)
    assert repr(own) == repr(pullback)
    same(own(gy), expected)
    for key, value in pullback.parameters(gy).items():
        same(own.parameters(gy)[key], value)
    if name in ("max", "packed", "global", "drawn"):
        same(own.routes, pullback.routes)
        assert not own.routes.flags.writeable
    same(copied(own)(gy), expected)


def test_pullbacks_of_regions_and_compositions_pickle() -> None:
    boxes = np.array([[0, 1.0, 1.0, 6.0, 6.0]])
    calls: list[tuple[Any, ...]] = [
        (poolgrad.roi_pool, X, boxes, 2),
        (poolgrad.roi_align, X, boxes, 2),
        (poolgrad.range_pool2d, X, 3),
        (poolgrad.lip_pool2d, X, X, 3),
    ]
    for fun, *args in calls:
        y, pullback = poolgrad.vjp(fun, *args)
        same(pickle.loads(pickle.dumps(pullback))(np.ones_like(y)), pullback(np.ones_like(y)))


def test_pullbacks_of_dask_pickle() -> None:
    da = pytest.importorskip("dask.array")
    x = da.from_array(X, chunks=(1, 3, 4, 9))
    for fun, *args in ((poolgrad.max_pool2d, 3), (poolgrad.lp_pool2d, 2.0, 3)):
        y, pullback = poolgrad.vjp(fun, x, *args)
        own = pickle.loads(pickle.dumps(pullback))
        same(own(da.ones_like(y)).compute(), pullback(da.ones_like(y)).compute())


def test_the_benchmark_times_every_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    from poolgrad.tools.bench import overhead

    for name, value in {"_TURNS": 1, "_CALLS": 1, "_NEW_SHAPES": 2}.items():
        monkeypatch.setattr(overhead, name, value)
    timed = overhead.measure()
    assert {t.arrays for t in timed} <= {"NumPy", "PyTorch"}
    assert all(t.seconds > 0 for t in timed)
    assert [t.ratio for t in timed if t.spelling == t.beside] == [1.0] * len(
        {t.arrays for t in timed}
    )
    lines = overhead.markdown(timed).splitlines()
    assert len(lines) == 2 + len(timed)
    assert {line.count("|") for line in lines} == {6}
