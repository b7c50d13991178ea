"""Indices of `global_max_pool`: values and shape."""

from __future__ import annotations

import numpy as np
import pytest
from frontend_calls import Front, torch

import poolgrad
from poolgrad.indices import convert_indices

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
SIZES = {1: (7,), 2: (5, 6), 3: (4, 3, 5)}


def example(dims: int) -> np.ndarray:
    """Few different numbers, so that several are equal to the largest; a NaN in one plane."""
    x = np.random.default_rng(dims).integers(0, 4, (2, 3, *SIZES[dims])).astype(np.float32)
    x[(1, 2, *(1,) * dims)] = np.nan
    return x


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("ties", ["first", "split", "zero"])
def test_positions_of_the_first_winners(front: Front, dims: int, keepdims: bool, ties: str) -> None:
    x = example(dims)
    planes = x.reshape(2, 3, -1)
    expected = np.where(np.isnan(planes).any(-1), np.isnan(planes).argmax(-1), planes.argmax(-1))
    shape = (2, 3, *(1,) * dims * keepdims)
    asked = {"keepdims": keepdims, "return_indices": True, "ties": ties}
    y, indices = front.run("global_max_pool", x, **asked)
    assert indices.dtype == np.int64
    np.testing.assert_array_equal(indices, expected.reshape(shape))
    np.testing.assert_array_equal(y, front.run("global_max_pool", x, keepdims=keepdims, ties=ties))
    slow = poolgrad.reference.global_max_pool(x, **asked)
    np.testing.assert_array_equal(slow[0], y)
    np.testing.assert_array_equal(slow[1], indices)


@pytest.mark.parametrize("keepdims", [False, True])
def test_channels_last(front: Front, keepdims: bool) -> None:
    x = example(2)
    asked = {"keepdims": keepdims, "return_indices": True}
    _, first = front.run("global_max_pool", x, **asked)
    moved = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    _, last = front.run("global_max_pool", moved, **asked, channels_last=True)
    assert last.shape == ((2, 1, 1, 3) if keepdims else (2, 3))
    np.testing.assert_array_equal(last, np.moveaxis(first, 1, -1))


def test_integers(front: Front) -> None:
    y, indices = front.run("global_max_pool", np.array([[[1, 5, 5]]]), return_indices=True)
    assert (y.tolist(), indices.tolist()) == ([[5]], [[1]])


def test_kept_axes_convert_and_go_back(front: Front) -> None:
    x = np.random.default_rng(0).random((2, 3, 4, 4))
    y, indices = front.run("global_max_pool", x, keepdims=True, return_indices=True)
    whole = convert_indices(indices, x.shape, "torch", "onnx")
    np.testing.assert_array_equal(x.ravel()[whole], y)
    back = front.run("max_unpool2d", y, indices=indices, kernel_size=4)
    np.testing.assert_array_equal(back, np.where(x == y, x, 0))


@needs_torch
def test_as_pytorchs_one_adaptive_bin() -> None:
    from poolgrad.torch import GlobalMaxPool1d, GlobalMaxPool2d, GlobalMaxPool3d

    layers = {1: GlobalMaxPool1d, 2: GlobalMaxPool2d, 3: GlobalMaxPool3d}
    for dims, layer in layers.items():
        x = torch.from_numpy(example(dims)).requires_grad_()
        theirs = getattr(torch.nn.functional, f"adaptive_max_pool{dims}d")
        expected = theirs(x, 1, return_indices=True)
        for made in (
            poolgrad.global_max_pool(x, keepdims=True, return_indices=True),
            layer(keepdims=True, return_indices=True)(x),
        ):
            for ours, other in zip(made, expected, strict=True):
                assert torch.equal(ours.nan_to_num(9), other.nan_to_num(9))
        y, indices = layer(return_indices=True)(x)
        assert y.shape == indices.shape == (2, 3)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(gradient.flatten(2).argmax(-1), indices)


@needs_torch
def test_under_vmap() -> None:
    x = torch.rand(4, 2, 3, 5, 5)
    made = torch.func.vmap(lambda x: poolgrad.global_max_pool(x, return_indices=True))(x)
    for each, whole in zip(made, zip(*map(one, x), strict=True), strict=True):
        assert torch.equal(each, torch.stack(whole))


def one(x: object) -> tuple[object, object]:
    made: tuple[object, object] = poolgrad.global_max_pool(x, return_indices=True)
    return made


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_what_is_no_flag_is_refused(front: Front, value: object) -> None:
    with pytest.raises(TypeError, match=r"^return_indices must be True or False, got"):
        front.run("global_max_pool", example(1), return_indices=value)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
@pytest.mark.parametrize("size", [1023, 1024, 1025, 2048, 5000])  # some of whole vectors, some not
def test_long_rows_have_the_first_winner(size: int, dtype: str) -> None:
    generator = np.random.default_rng(size)
    rows = [generator.integers(-9, 9, size), generator.permutation(size), np.arange(size)]
    rows += [np.arange(size)[::-1], np.zeros(size), np.r_[np.zeros(size - 1), 1]]
    x = np.stack(rows).astype(dtype)[None]
    y, indices = poolgrad.global_max_pool(x, return_indices=True)
    np.testing.assert_array_equal(indices, x.argmax(-1))
    np.testing.assert_array_equal(y, x.max(-1))
    np.testing.assert_array_equal(poolgrad.global_max_pool(x), y)


@pytest.mark.parametrize("size", [1024, 3000])
def test_long_rows_of_numbers_that_are_none_or_no_less(size: int) -> None:
    x = np.random.default_rng(0).standard_normal((1, 6, size)).astype(np.float32)
    x[0, 0, [5, size // 2, size - 1]] = np.nan  # the last NaN wins
    x[0, 1] = -np.inf
    x[0, 2, [7, 900]] = np.inf, -np.inf
    x[0, 3] = -0.0
    x[0, 3, size // 2 :] = 0.0  # equal: the first stays, with its sign
    x[0, 4] = -np.inf
    x[0, 4, size - 2] = -(2.0**100)
    x[0, 5, [3, 1000]] = np.inf
    y, indices = poolgrad.global_max_pool(x, return_indices=True)
    best = int(x[0, 5].argmax())
    np.testing.assert_array_equal(indices[0], [size - 1, 0, 7, 0, size - 2, best])
    np.testing.assert_array_equal(y[0], [np.nan, -np.inf, np.inf, -0.0, -(2.0**100), np.inf])
    for row in (y, poolgrad.global_max_pool(x)):
        assert np.signbit(row[0, 3])
