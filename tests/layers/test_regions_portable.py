"""`poolgrad.portable.regions` computes what the kernels compute, on the device of a tensor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regions import CALLS, NAMES, boxes, listed, maps, random_regions, without_kernels

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
strict = pytest.importorskip("array_api_strict", reason="array-api-strict is not installed")

import poolgrad  # noqa: E402
from poolgrad.portable import regions as portable  # noqa: E402
from poolgrad.portable.regions import PortableMap  # noqa: E402
from poolgrad.region_maps import bins  # noqa: E402

poolgrad.roi_pool(torch.ones(1, 1, 1, 1), torch.zeros(1, 5), 1)  # now there are operators
OPS = torch.ops.poolgrad
# RoIAlign with more samples than inputs, too, whose weights are computed in another way
EVERY = [
    *CALLS,
    ("roi_align", {"sampling_ratio": 9}),
    ("roi_align", {"sampling_ratio": 9, "aligned": True}),
]
each_call = pytest.mark.parametrize(
    ("name", "kwargs"), EVERY, ids=[*NAMES, "roi_align of 9", "roi_align of 9, aligned"]
)
each_name = pytest.mark.parametrize("name", ["roi_pool", "roi_align"])
TOLERANCE = {"float64": 1e-12, "float32": 4e-6, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)


def compare(
    name: str, x: Any, table: Any, size: Any, kwargs: dict[str, Any], tolerance: float
) -> None:
    """Outputs, winners and gradients against the kernels; those of maxima are equal."""
    where, shape = bins(size, **({"spatial_scale": 1.0} | kwargs)), list(x.shape)
    regions = PortableMap(shape, table, str(x.dtype).removeprefix("torch."), where)
    close = {"rtol": tolerance, "atol": 8 * tolerance, "equal_nan": True}
    exact = {"rtol": 0, "atol": 0, "equal_nan": True}
    winners = None
    if name == "roi_pool":
        expected, indices = OPS.roi_pool(x, table, *where[:2])
        y, winners = regions.pool(x)
        torch.testing.assert_close(winners, indices)
        assert torch.equal(torch.signbit(y), torch.signbit(expected))
        tangent = regions.apply(x, indices)
        torch.testing.assert_close(
            tangent, OPS.roi_pool_gather(x, indices, table, where[0]), **exact
        )
    else:
        expected = OPS.roi_align(x, table, *where)
        y = regions.apply(x)
    torch.testing.assert_close(y, expected, **(exact if name == "roi_pool" else close))
    gy = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(x.dtype)
    if name == "roi_pool":
        expected = OPS.roi_pool_backward(gy, winners, table, shape)
    else:
        expected = OPS.roi_align_backward(gy, table, shape, *where[1:])
    torch.testing.assert_close(regions.apply(gy, winners, transpose=True), expected, **close)


@each_call
@pytest.mark.parametrize("size", [1, (3, 2), (7, 9)])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_results_of_the_kernels(name: str, kwargs: dict[str, Any], size: Any, dtype: str) -> None:
    x = torch.from_numpy(maps()).to(getattr(torch, dtype))
    compare(name, x, torch.from_numpy(boxes()), size, kwargs, TOLERANCE[dtype])


@pytest.mark.parametrize("chunk", [1, 2000, 20_000])
@each_call
def test_chunks(
    name: str, kwargs: dict[str, Any], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portable, "_TILE", chunk)
    compare(name, torch.from_numpy(maps()), torch.from_numpy(boxes()), 3, kwargs, 1e-12)


@settings(max_examples=60, deadline=None)
@random_regions(most_samples=5)
def test_random_boxes(
    corners: Any, shape: Any, size: Any, scale: float, ratio: int, aligned: bool, dtype: str
) -> None:
    table = [[0, min(a, c), min(b, d), max(a, c), max(b, d)] for a, b, c, d in corners]
    x, where = torch.from_numpy(maps(shape, dtype)), {"spatial_scale": scale}
    for name, kwargs in (
        ("roi_pool", {}),
        ("roi_align", dict(sampling_ratio=ratio, aligned=aligned)),
    ):
        compare(name, x, torch.tensor(table), size, where | kwargs, 4 * TOLERANCE[dtype])


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([math.nan, 1.0, 2.0, -math.inf, math.inf, 0.0, -0.0]),
        min_size=30,
        max_size=30,
    ),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.float64]),
)
def test_winners_among_equals_and_nans(values: list[float], dtype: Any) -> None:
    """The last NaN wins, or the first of equal inputs; inputs that no sample reads do nothing."""
    x = torch.tensor(values, dtype=dtype).reshape(1, 1, 5, 6)
    table = torch.tensor([[0, 0, 0, 5, 4], [0, 1, 1, 3, 2], [0, -3, 2, 2, 9.0]])
    for size in (1, 2, 3):
        compare("roi_pool", x, table, size, {}, 2e-3)
        for ratio in (0, 1, 2, 8):
            compare("roi_align", x, table, size, {"sampling_ratio": ratio}, 2e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_boxes(dtype: str) -> None:
    """Outside the map, of no size, a million times as large as it, with many bins and samples."""
    x = torch.from_numpy(maps((2, 1, 8, 9), dtype))
    far = 2.0**29
    table = torch.tensor(
        [
            [0, 50.0, 60, 70, 80],
            [1, -9.0, -9, -3, -3],
            [0, 4, 3, 4, 3],
            [1, 4.5, 3.5, 4.5, 3.5],
            [0, -far, -far, far, far],
            [1, 0, 0, 2 * far, 2 * far],
        ],
        dtype=torch.float64,
    )
    for size in (2, (1, 1000)):
        compare("roi_pool", x, table, size, {}, 1e-5)
        # The kernels add 65536 weights in the dtype of the input.
        for ratio, tolerance in ((0, 1e-5), (1, 1e-5), (3, 1e-5), (65536, 1e-3)):
            for aligned in (False, True):
                kwargs = {"sampling_ratio": ratio, "aligned": aligned}
                compare("roi_align", x, table, size, kwargs, tolerance)


def test_samples_at_the_edges_of_the_map() -> None:
    """A sample up to one pixel outside is the edge, a sample further away is 0."""
    x = torch.tensor([[[[1.0, 2.0, 3.0]]]])
    for at, value in ((-1.0, 1), (-1.01, 0), (2.5, 3), (3.0, 3), (3.01, 0)):
        for ratio in (1, 7):
            table = torch.tensor([[0, at + 0.5, 0.5, at + 0.5, 0.5]])
            y = PortableMap(x.shape, table, "float32", bins(1, 1.0, ratio, True)).apply(x)
            assert y.item() == pytest.approx(value), at


@each_call
def test_arrays_of_the_standard(name: str, kwargs: dict[str, Any]) -> None:
    """Only operations of the array-API standard are used."""
    pool, x, table = getattr(poolgrad, name), maps(), boxes()
    expected, textbook = poolgrad.vjp(pool, x, table, 3, **kwargs)
    rows = strict.asarray(table)
    own, ordered = listed(table, 2)
    for rows_or_table in (rows, table):
        y, pullback = poolgrad.vjp(pool, strict.asarray(x), rows_or_table, 3, **kwargs)
        assert isinstance(y, type(rows))
        np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-13, atol=1e-13)
        gx = np.asarray(pullback(y))
        np.testing.assert_allclose(gx, textbook(expected), rtol=1e-12, atol=1e-12)
        if name == "roi_pool":
            np.testing.assert_array_equal(np.asarray(pullback.indices), textbook.indices)
    expected = pool(x, ordered, 3, **kwargs)
    for parts in (own, [strict.asarray(one) for one in own], [one.tolist() for one in own]):
        y = pool(strict.asarray(x), parts, 3, **kwargs)
        np.testing.assert_allclose(np.asarray(y), expected, rtol=1e-13, atol=1e-13)


@each_name
def test_errors_of_arrays_of_the_standard(name: str) -> None:
    pool, x, good = getattr(poolgrad, name), strict.ones((2, 1, 4, 4)), [0.0, 1, 1, 2, 2]
    for bad in ([2.0, 1, 1, 2, 2], [0, 3, 1, 2, 2], [0, 1, 1, math.nan, 2], [0.5, 1, 1, 2, 2]):
        for table in (np.array([good, bad]), strict.asarray([good, bad])):
            with pytest.raises(ValueError, match="boxes must begin with the index of one of 2"):
                pool(x, table, 2)
    with pytest.raises(ValueError, match=r"boxes must be an array of shape \(K, 5\)"):
        pool(x, strict.ones((5,)), 2)
    with pytest.raises(TypeError, match=r"input must be of dtype .* got int64"):
        pool(strict.ones((2, 1, 4, 4), dtype=strict.int64), np.array([good]), 2)
    with pytest.raises(ValueError, match="gy must have the shape of the output"):
        poolgrad.vjp(pool, x, np.array([good]), 2)[1](strict.ones((1, 1, 2, 3)))


# Devices


@each_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_public_functions(name: str, dtype: Any, no_kernels: None) -> None:
    """Boxes in both forms; gradients of first and second order, and forward mode."""
    x, table = torch.from_numpy(maps((2, 1, 4, 5))).requires_grad_(), torch.from_numpy(boxes(3))
    table = (table / 3).abs().sort(dim=1).values.to(dtype)
    table[:, 0] = torch.tensor([0, 0, 1])
    pool = getattr(poolgrad, name)
    listed = [table[:2, 1:], table[2:, 1:]]
    torch.testing.assert_close(pool(x, listed, 2), pool(x, table, 2), rtol=0, atol=0)
    call = lambda x: pool(x, table, 2).square()  # noqa: E731
    assert torch.autograd.gradcheck(call, x, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, x, fast_mode=True)


@each_name
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (0, 3, 4, 5), (2, 0, 4, 5)])
def test_no_boxes_and_no_channels(name: str, shape: Any, no_kernels: None) -> None:
    x = torch.ones(shape, requires_grad=True)
    table = torch.zeros(0 if shape[1] else 2, 5)
    y = getattr(poolgrad, name)(x, table, (2, 3))
    assert y.shape == (len(table), shape[1], 2, 3)
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert not x.grad.any()
    if not shape[0]:
        with pytest.raises(ValueError, match="boxes must be empty if input has no images"):
            getattr(poolgrad, name)(x, torch.zeros(1, 5), 2)


@each_name
@pytest.mark.parametrize("device", ["meta", "cuda"])
def test_tensors_without_numbers(name: str, device: str) -> None:
    """On the device ``meta``, gradients too, and on a GPU that fake tensors stand for."""
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x = torch.empty(2, 3, 6, 7, dtype=torch.bfloat16, device=device)
        x.requires_grad_(device == "meta")  # autograd needs a real GPU
        for table in (
            torch.empty(4, 5, device=device),
            torch.empty(4, 5),
            [torch.empty(1, 4), torch.empty(3, 4, device=device)],
        ):
            y = getattr(poolgrad, name)(x, table, (4, 5))
            assert (y.shape, y.dtype, y.device) == ((4, 3, 4, 5), x.dtype, x.device)
            if device == "meta":
                (gx,) = torch.autograd.grad(y.sum(), x)
                assert (gx.shape, gx.dtype, gx.device) == (x.shape, x.dtype, x.device)


@each_name
@pytest.mark.parametrize(
    "box",
    [
        [2.0, 1, 1, 2, 2],
        [-1.0, 1, 1, 2, 2],
        [0.5, 1, 1, 2, 2],
        [math.nan, 1, 1, 2, 2],
        [0, 3, 1, 2, 2],
        [0, 1, 3, 2, 2],
        [0, 1, 1, math.nan, 2],
        [0, 1, 1, 2, math.inf],
        [0, -(2.0**31), 1, 2, 2],
    ],
)
def test_boxes_are_checked_on_the_device(name: str, box: Any, no_kernels: None) -> None:
    """On a GPU this is an assertion on the device."""
    x, table = torch.ones(2, 1, 4, 4), torch.tensor([[0, 1.0, 1, 2, 2], box])
    with pytest.raises(RuntimeError, match="boxes must begin with the index of one of 2 images"):
        getattr(poolgrad, name)(x, table, 2)


# Reads numbers on the host, scatters, or is refused by PyTorch in its deterministic mode
WRONG = (
    "_local_scalar_dense", "nonzero", "masked_select", "unique", "scatter", "index_add",
    "index_put", "put_", "cumsum", "mm", "bmm", "addmm", "bincount", "histc",
)  # fmt: skip


@each_call
def test_operations(name: str, kwargs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """No number is read by the host, nothing is scattered, and temporary arrays are bounded."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: set[str] = set()
            self.largest = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            self.names.add(func.overloadpacket.__name__)
            for tensor in made if isinstance(made, tuple | list) else [made]:
                storage = tensor.untyped_storage()
                self.largest = max(self.largest, storage.nbytes() // tensor.itemsize)
            return made

    monkeypatch.setattr(portable, "_TILE", 2**15)
    x, table = torch.from_numpy(maps((2, 40, 11, 13))), torch.from_numpy(boxes(200))
    where, shape = bins(3, **({"spatial_scale": 1.0} | kwargs)), list(x.shape)
    with Watch() as watch:
        portable.accepted(table, 2, where.spatial_scale)
        regions = PortableMap(shape, table, "float64", where)
        y, indices = regions.pool(x) if name == "roi_pool" else (regions.apply(x), None)
        regions.apply(y, indices, transpose=True)
    assert "sum" in watch.names
    assert not [n for n in watch.names for w in WRONG if n == w or n.startswith(f"{w}_")]
    assert watch.largest <= max(2**15, y.numel())
