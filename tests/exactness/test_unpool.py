"""Max unpooling: the inverse of max pooling where it exists, and the rules where it does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontend_calls import Front, torch

import poolgrad

DTYPES = ["f2", "f4", "f8", "i1", "u1", "i2", "i4", "i8", "?"]


def test_duplicates_by_hand(front: Front) -> None:
    """The last in row-major order stays, and it alone has a gradient."""
    x = np.array([[[1.0, 2.0, 3.0, 4.0]]])
    indices = np.array([[[5, 0, 5, 0]]])
    expected = [[[4.0, 0, 0, 0, 0, 3.0, 0, 0]]]
    y, pullback = front.vjp("max_unpool1d", x, indices=indices, kernel_size=2)
    np.testing.assert_array_equal(y, expected)
    gx = pullback(np.arange(1.0, 9.0).reshape(1, 1, 8))
    np.testing.assert_array_equal(gx, [[[0, 0, 6.0, 1.0]]])


def test_a_later_zero_overwrites(front: Front) -> None:
    x = np.array([[3.0, 0.0]])
    y = front.run("max_unpool1d", x, indices=np.array([[1, 1]]), kernel_size=2)
    np.testing.assert_array_equal(y, np.zeros((1, 4)))


@pytest.mark.slow_in("jax", "dask")
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("shape", [(6, 5, 40, 40), (1, 1, 300, 300), (1, 90_000)])
def test_duplicates_in_one_place(front: Front, threads: int, shape: tuple[int, ...]) -> None:
    """Far apart in memory, with several threads at work: still the last one."""
    poolgrad.set_num_threads(threads)
    dims = 1 if len(shape) == 2 else 2
    r = np.random.default_rng(0)
    x = r.standard_normal(shape)
    size = int(np.prod(shape[-dims:])) * 2**dims
    indices = r.integers(0, size // 50, shape)  # each place is asked for by a dozen
    y, pullback = front.vjp(f"max_unpool{dims}d", x, indices=indices, kernel_size=2)
    planes = x.reshape(-1, np.prod(shape[-dims:]))
    where = indices.reshape(planes.shape)
    gy = r.standard_normal(y.shape)
    expected, gx = np.zeros((len(planes), size)), np.zeros_like(planes)
    for p in range(len(planes)):
        last = dict(zip(where[p].tolist(), range(planes.shape[1]), strict=True))
        places, winners = np.array(list(last.items())).T
        expected[p, places] = planes[p, winners]
        gx[p, winners] = gy.reshape(len(planes), size)[p, places]
    np.testing.assert_array_equal(y.reshape(expected.shape), expected)
    np.testing.assert_array_equal(pullback(gy).reshape(gx.shape), gx)


@pytest.mark.slow_in("jax", "dask")
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_inverse_of_a_maximum(front: Front, dims: int, dtype: str, channels_last: bool) -> None:
    shape = (2, 3, *(7,) * dims)
    x = np.random.default_rng(dims).integers(1, 99, shape).astype(dtype)
    x = np.moveaxis(x, 1, -1) if channels_last else x
    last: dict[str, Any] = {"channels_last": channels_last}
    y, indices = front.run(f"max_pool{dims}d", x, 2, 2, 1, return_indices=True, **last)
    windows: dict[str, Any] = {"kernel_size": 2, "stride": 2, "padding": 1}
    back = front.run(
        f"max_unpool{dims}d", y, indices=indices, output_size=x.shape, **windows, **last
    )
    assert back.dtype == x.dtype
    assert back.shape == x.shape
    np.testing.assert_array_equal(back[back != 0], x[back != 0])
    again, same = front.run(f"max_pool{dims}d", back, 2, 2, 1, return_indices=True, **last)
    np.testing.assert_array_equal(again, y)
    np.testing.assert_array_equal(same, indices)


@pytest.mark.parametrize("threads", [1, 2])
def test_an_invalid_index_leaves_out_as_it_was(threads: int) -> None:
    """All indices are checked before anything is written, also those of the last plane."""
    poolgrad.set_num_threads(threads)
    x = np.ones((4, 8, 6, 6))
    indices = np.tile(np.arange(36).reshape(6, 6), (4, 8, 1, 1))
    indices[-1, -1, -1, -1] = 144
    out = np.full((4, 8, 12, 12), 7.0)
    with pytest.raises(ValueError, match="got 144"):
        poolgrad.max_unpool2d(x, indices, 2, out=out)
    np.testing.assert_array_equal(out, 7.0)


def test_pulling_is_gathering_and_pooling_back(front: Front) -> None:
    """Unpooling a gradient along a maximum's indices is that maximum's own pullback."""
    x = np.random.default_rng(5).standard_normal((2, 3, 8, 8))
    y, pullback = front.vjp("max_pool2d", x, 2)
    indices = front.run("max_pool2d", x, 2, return_indices=True)[1]
    gy = np.random.default_rng(6).standard_normal(y.shape)
    unpooled = front.run("max_unpool2d", gy, indices=indices, kernel_size=2)
    np.testing.assert_array_equal(unpooled, pullback(gy))
    pullback = front.vjp("max_unpool2d", y, indices=indices, kernel_size=2)[1]
    np.testing.assert_array_equal(pullback(x), y)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (None, (8, 10)), (9, (9, 9)), ((7, 11), (7, 11)), ([9, 9], (9, 9)), ((9,), (9, 9)),
        ((1, 1, 7, 9), (7, 9)), ((5, 6, 9, 10), (9, 10)), (np.array([8, 9]), (8, 9)),
    ],
    ids=repr,
)  # fmt: skip
def test_output_size(front: Front, size: Any, expected: tuple[int, int]) -> None:
    x = np.ones((1, 1, 4, 5))
    indices = np.arange(20).reshape(x.shape)
    given = size.tolist() if isinstance(size, np.ndarray) and front.name == "torch" else size
    y = front.run("max_unpool2d", x, indices=indices, kernel_size=2, output_size=given)
    assert y.shape == (1, 1, *expected)
    assert y.ravel()[:20].sum() == y.sum() == 20


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf, -0.0])
def test_special_values_pass(front: Front, special: float) -> None:
    y = front.run(
        "max_unpool1d", np.array([[special, 1.0]]), indices=np.array([[3, 0]]), kernel_size=2
    )
    np.testing.assert_array_equal(y, [[1.0, 0, 0, special]])
    assert np.signbit(y[0, 3]) == np.signbit(special)
    assert not np.signbit(y[0, 1])


@pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("name", ["float32", "float64", "int64", "uint8"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
def test_pytorch(dims: int, name: str, channels_last: bool) -> None:
    """Bit for bit where indices differ: with duplicates PyTorch promises nothing."""
    formats = {2: torch.channels_last, 3: torch.channels_last_3d}
    if channels_last and dims not in formats:
        return
    generator = torch.Generator().manual_seed(dims)
    for size, kernel, stride, padding in ((8, 2, 2, 0), (9, 3, 3, 1), (7, 1, 3, 0), (9, 2, 3, 1)):
        x = torch.randint(1, 100, (2, 3, *(size,) * dims), generator=generator)
        x = x.to(getattr(torch, name))
        F, windows = torch.nn.functional, (kernel, stride, padding)
        y, indices = getattr(F, f"max_pool{dims}d")(x.float(), *windows, return_indices=True)
        y = y.to(x.dtype)
        if channels_last:
            y = y.contiguous(memory_format=formats[dims])
            indices = indices.contiguous(memory_format=formats[dims])
        for sizes in (None, x.shape, x.shape[2:]):
            fits = [(n - 1) * stride - 2 * padding + kernel for n in y.shape[2:]] == [size] * dims
            if sizes is None and not fits:
                continue  # then indices may lie outside
            made = []
            for module in (poolgrad, F):
                # which PyTorch has for floating dtypes only
                leaf = y.double() if module is F and not y.is_floating_point() else y.clone()
                leaf.requires_grad_(y.is_floating_point())
                back = getattr(module, f"max_unpool{dims}d")(
                    leaf, indices, *windows, output_size=sizes
                )
                made.append([back.detach().to(y.dtype)])
                if leaf.requires_grad:
                    back.backward(torch.arange(back.numel()).view(back.shape).to(back.dtype))
                    made[-1].append(leaf.grad)
            for ours, theirs in zip(*made, strict=True):
                assert torch.equal(ours, theirs), (windows, sizes)
