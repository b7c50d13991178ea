"""Routes of two or four bits: the same results with less memory between forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from expected_errors import refused
from frontend_calls import torch

import poolgrad
from poolgrad.windows import fixed, flatten

EMPTY = {"padding": 3}  # windows of two by two that hold padding only

BITS = [
    ("max_pool2d", (1,), {}, 2),
    ("max_pool2d", (2,), {}, 2),
    ("max_pool2d", (2,), {"ties": "zero"}, 4),
    ("max_pool2d", (2, 2), EMPTY, 4),
    ("max_pool1d", (3,), {"ties": "zero"}, 2),
    ("max_pool3d", (2,), {}, 4),
    ("max_pool2d", ((5, 3), 1), {}, 4),
    ("max_pool2d", (4, 1, 2), {}, 4),
    ("max_pool2d", (4, 4), {"ties": "zero"}, 8),
    ("max_pool2d", (5,), {"padding": 2}, 8),
    ("max_pool2d", (4, 1), EMPTY, 4),
    ("max_pool2d", ((1, 17), 1, (0, 8)), {}, 8),
    ("max_pool2d", (2, 2), {"dilation": 3}, 2),
    ("relu_max_pool1d", (3,), {}, 2),
    ("relu_max_pool2d", (2,), {}, 4),
    ("relu_max_pool2d", (4,), {}, 8),
    ("min_pool2d", (2,), {}, 2),
    ("median_pool2d", (3,), {}, 4),
    ("stochastic_pool2d", (2,), {"generator": 3}, 2),
    ("adaptive_max_pool2d", (5,), {}, 4),
    ("fractional_max_pool2d", (2, 5), {"generator": 3}, 2),
    ("max_pool2d", (3, 1), {"ties": "split"}, 16),  # nine bits of winners, whatever is asked for
]


def image(dims: int, channels_last: bool) -> np.ndarray:
    sizes = (11, 13, 9)[-dims:]
    shape = (2, *sizes, 5) if channels_last else (2, 5, *sizes)
    x = np.random.default_rng(dims).integers(-3, 4, shape).astype(np.float32)
    x[0, 0, 1, ...] = np.nan
    return x


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("name", "args", "kwargs", "bits"), BITS)
def test_results_are_those_of_bytes(
    name: str, args: Any, kwargs: dict[str, Any], bits: int, channels_last: bool
) -> None:
    x = image(int(name[-2]), channels_last)
    if "stochastic" in name:
        x = np.nan_to_num(x, nan=1)
    fun, kwargs = getattr(poolgrad, name), kwargs | {"channels_last": channels_last}
    y, pullback = poolgrad.vjp(fun, x, *args, **kwargs)
    same, packed = poolgrad.vjp(fun, x, *args, routes="packed", **kwargs)
    np.testing.assert_array_equal(same, y)
    gy = np.random.default_rng(0).integers(-4, 5, y.shape).astype(y.dtype)
    np.testing.assert_array_equal(packed(gy), pullback(gy))
    np.testing.assert_array_equal(packed.mask(), pullback.mask())
    if kwargs.get("ties") != "split":
        np.testing.assert_array_equal(packed.routes, pullback.routes)
        assert not packed.routes.flags.writeable
        with_indices = fun(x, *args, return_indices=True, **kwargs)
        packed_too = fun(x, *args, return_indices=True, routes="packed", **kwargs)
        np.testing.assert_array_equal(packed_too[1], with_indices[1])
    width = y.shape[-2 if channels_last else -1]
    assert packed._residual[0].nbytes == y.size // width * -(-width * bits // 8) or bits == 16


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 8, 16, 33, 64, 70_000])
@pytest.mark.parametrize("kernel", [2, 9])
@pytest.mark.parametrize("name", ["max_pool1d", "relu_max_pool1d"])
def test_rows_of_any_length(name: str, kernel: int, width: int, threads: int) -> None:
    """Pieces of long rows, several short ones at once, and what is left of eight."""
    before = poolgrad.get_num_threads()
    poolgrad.set_num_threads(threads)
    x = np.random.default_rng(width).standard_normal((3, 5, kernel * width), np.float32)
    y, pullback = poolgrad.vjp(getattr(poolgrad, name), x, kernel)
    _, packed = poolgrad.vjp(getattr(poolgrad, name), x, kernel, routes="packed")
    np.testing.assert_array_equal(packed.routes, pullback.routes)
    np.testing.assert_array_equal(packed(y), pullback(y))
    poolgrad.set_num_threads(before)


@pytest.mark.parametrize("name", ["max_pool2d", "stochastic_pool2d", "global_max_pool"])
def test_other_words_are_refused(name: str) -> None:
    args = () if name.startswith("global") else (2,)
    for value in ("bits", ""):
        with refused(ValueError, 'routes must be "bytes" or "packed", got', repr(value)):
            getattr(poolgrad, name)(np.ones((1, 1, 4, 4)), *args, routes=value)
    with refused(TypeError, "routes must be a string, got", 2):
        getattr(poolgrad, name)(np.ones((1, 1, 4, 4)), *args, routes=2)


def test_integers_have_indices() -> None:
    x = np.arange(36, dtype=np.int32).reshape(1, 1, 6, 6)
    made = poolgrad.max_pool2d(x, 2, routes="packed", return_indices=True)
    assert made[1].ravel().tolist() == [7, 9, 11, 19, 21, 23, 31, 33, 35]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own use of it
@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["max_pool2d", "relu_max_pool2d", "stochastic_pool2d"])
def test_tensors(name: str, channels_last: bool) -> None:
    from poolgrad import torch as layers

    fun, func = getattr(poolgrad, name), torch.func
    how: dict[str, Any] = {"generator": 3} if name.startswith("stochastic") else {}
    x = torch.randn(2, 6, 9, 11, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x

    def outcome(routes: str) -> list[torch.Tensor]:
        def pool(x: torch.Tensor) -> torch.Tensor:
            return fun(x, 2, routes=routes, **how)

        leaf = x.clone().requires_grad_()
        pool(leaf).square().sum().backward()
        torch.compiler.reset()
        compiled = torch.compile(pool, backend="aot_eager", fullgraph=True)
        again = x.clone().requires_grad_()
        compiled(again).square().sum().backward()
        made = [leaf.grad, again.grad, pool(x), func.jvp(pool, (x,), (x.cos(),))[1]]
        if not how:  # a draw from one seed in every example is refused
            made += [func.vmap(pool)(x), func.vmap(func.grad(lambda x: pool(x).sum()), -1)(x)]
        return made

    for a, b in zip(outcome("packed"), outcome("bytes"), strict=True):
        assert torch.equal(a, b)
    leaf = x.clone().requires_grad_()
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda t: t):
        fun(leaf, 2, routes="packed", **how)
    bits = 4 if name.startswith("relu") else 2
    seed = 8 * len(how)
    assert sum(t.nbytes for t in saved) == 2 * 6 * 4 * -(-5 * bits // 8) + seed
    module = layers.MODULES[name](2, routes="packed", **how)
    assert 'routes="packed"' in repr(module).replace("'", '"')
    assert torch.equal(module(x), fun(x, 2, **how))


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
def test_residuals_of_other_shapes_are_refused() -> None:
    x = torch.randn(1, 2, 8, 8)
    y, routes = torch.ops.poolgrad.max(x, flatten(fixed(2, 2)), False, "first", "packed")
    where = (flatten(fixed(2, 2)), [1, 2, 8, 8], False, -1, "first")
    torch.ops.poolgrad.max_vjp(y, routes, *where, "packed")
    with pytest.raises(ValueError, match="residual must be uint8 of shape"):
        torch.ops.poolgrad.max_vjp(y, routes, *where, "bytes")
    with pytest.raises(ValueError, match='routes must be "bytes" or "packed"'):
        torch.ops.poolgrad.max_vjp(y, routes, *where, "bits")
