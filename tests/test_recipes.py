"""Calls that are made again go a shorter way: it leads to the same place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import poolgrad
from poolgrad import recipes

X = np.random.default_rng(0).standard_normal((2, 3, 9, 9)).astype(np.float32)
NAMES = ("max_pool2d", "min_pool2d", "median_pool2d", "avg_pool2d", "adaptive_avg_pool2d")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [3, (3, 2)])
def test_the_second_call_gives_the_same(name: str, size: int | tuple[int, int]) -> None:
    pool = getattr(poolgrad, name)
    for x in (X, X.transpose(0, 1, 3, 2), np.asfortranarray(X), X.astype(">f4"), torch.tensor(X)):
        expected = getattr(poolgrad.reference, name)(np.asarray(x, np.float32), size)
        for _ in range(3):
            np.testing.assert_allclose(pool(x, size), expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(
                pool(x, size, channels_last=False), expected, rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_equal_arguments_of_another_type_are_still_refused(kind: object) -> None:
    x = kind(X)  # type: ignore[operator]
    for _ in range(2):
        poolgrad.max_pool2d(x, 1, 1, 0)
        poolgrad.max_pool2d(x, (1, 1), stride=(1, 1), padding=((0, 0), (0, 0)))
        for wrong in (1.0, True, (1.0, 1), (True, 1), ((1, 1), 1)):
            with pytest.raises(TypeError, match="kernel_size"):
                poolgrad.max_pool2d(x, wrong, 1, 0)
        with pytest.raises(TypeError, match="ceil_mode"):
            poolgrad.max_pool2d(x, 1, 1, 0, 1, 0)
        with pytest.raises(TypeError, match="ties"):
            poolgrad.max_pool2d(x, 1, ties=None)
        with pytest.raises((TypeError, ValueError), match="padding"):
            poolgrad.max_pool2d(x, 1, padding=((0.0, 0), (0, 0)))


def test_keys_tell_calls_apart() -> None:
    calls = [
        ((X, 2), {}), ((X, 2, 2), {}), ((X, 2), {"stride": 2}), ((X, 2), {"padding": 2}),
        ((X, True), {}), ((X, (2, 2)), {}), ((X, (2, True)), {}), ((X, 1), {}), ((X, (1, 2)), {}),
        ((X[:1], 2), {}), ((X.astype(np.float64), 2), {}), ((X.T, 2), {}), ((X, None), {}),
        ((X, 2, None), {}), ((X, 2, "stride", 2), {}),
    ]  # fmt: skip
    keys = [recipes.key_of(args, kwargs) for args, kwargs in calls]
    for (k, one), (m, other) in itertools.combinations(enumerate(keys), 2):
        assert one is not None
        assert one != other, (calls[k], calls[m])


def test_a_name_among_the_values_is_still_refused() -> None:
    poolgrad.max_pool2d(X, 2, padding=1)
    with pytest.raises(TypeError, match="stride"):
        poolgrad.max_pool2d(X, 2, "padding", 1)  # type: ignore[arg-type]


def test_what_may_change_has_no_key() -> None:
    for args in ((X, [2]), (X, np.int64(2)), (X, 2.0), (X, ((1, 2), (1, 2))), ([1.0], 1), ()):
        assert recipes.key_of(args, {}) is None
    record = np.zeros(4, np.dtype([("a", "u1"), ("x", "f4")]))["x"]
    assert recipes.key_of((record, 2), {}) is None


def test_no_more_than_so_many_are_kept() -> None:
    kept = recipes.Recipes()
    for k in range(3 * recipes._MOST):
        kept.keep(k, str)
        assert len(kept) <= recipes._MOST
    kept.keep("none", None)
    assert "none" not in kept


def test_what_pytorch_watches_goes_the_long_way() -> None:
    from poolgrad.torch.function import kind_of

    x = torch.tensor(X)
    assert kind_of(x) is not None
    leaf = x.clone().requires_grad_()
    assert kind_of(leaf) is None
    with torch.no_grad():
        assert kind_of(leaf) is not None
    for odd in (x.to("meta"), x.to_sparse(), torch._neg_view(x), torch._efficientzerotensor(2, 2)):
        assert kind_of(odd) is None
    seen = []
    torch.func.vmap(lambda a: seen.append(kind_of(a)) or a)(x)
    with forward_ad.dual_level():
        seen.append(kind_of(x))
    with torch.utils._python_dispatch._disable_current_modes(), torch.device("cpu"):
        seen.append(kind_of(x))  # a mode of functions
    assert seen == [None, None, None]


def test_gradients_after_a_recipe() -> None:
    x = torch.tensor(X, requires_grad=True)
    with torch.no_grad():
        poolgrad.max_pool2d(x, 3)
    for _ in range(2):
        y = poolgrad.max_pool2d(x, 3)
        assert y.requires_grad
        (gx,) = torch.autograd.grad(y.sum(), x)
        assert int((gx != 0).sum()) == y.numel()
