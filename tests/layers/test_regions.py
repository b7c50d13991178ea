"""Pooling of regions of interest of NumPy arrays: the textbook, ONNX Runtime, and edges."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regions import CALLS, NAMES, boxes, listed, maps, random_regions

import poolgrad
from poolgrad import reference

HALF = np.array([0, 0.5, 0.5, 0.5, 0.5])  # from the centre of a pixel with `aligned`
each_call = pytest.mark.parametrize(("name", "kwargs"), CALLS, ids=NAMES)
TOLERANCE = {"float64": 1e-13, "float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}


def both(name: str) -> tuple[Any, Any]:
    return getattr(poolgrad, name), getattr(reference, name)


# What they compute


def test_pool_by_hand() -> None:
    """Corners are rounded to (1, 1) and (4, 4), both included: four rows in bins of two."""
    x = np.arange(36.0).reshape(1, 1, 6, 6)
    table = np.array([[0, 0.5, 1.4, 4.4, 3.5]])
    y, pullback = poolgrad.vjp(poolgrad.roi_pool, x, table, 2)
    assert y.tolist() == [[[[14, 16], [26, 28]]]]
    assert pullback.indices.tolist() == [[[[14, 16], [26, 28]]]]
    gx = pullback(np.array([[[[1.0, 2.0], [3.0, 4.0]]]]))
    assert {int(i): gx.flat[i] for i in np.flatnonzero(gx)} == {14: 1, 16: 2, 26: 3, 28: 4}


def test_pool_of_negative_halves() -> None:
    """Halves are rounded away from zero: -0.5 to -1, so the first of three columns is outside."""
    x = np.array([[[[5.0, 7.0, 6.0]]]])
    y = poolgrad.roi_pool(x, np.array([[0, -0.5, 0, 1.4, 0]]), (1, 3))
    assert y.tolist() == [[[[0, 5, 7]]]]


def test_align_by_hand() -> None:
    """One sample at (1.25, 2) in the middle of a box, between the rows 1 and 2."""
    x = np.arange(12.0).reshape(1, 1, 3, 4)
    table = np.array([[0, 1.0, 0.5, 3.0, 2.0]])
    y, pullback = poolgrad.vjp(poolgrad.roi_align, x, table, 1, sampling_ratio=1)
    assert y.tolist() == [[[[0.75 * 6 + 0.25 * 10]]]]
    gx = pullback(np.array([[[[8.0]]]]))
    assert {int(i): gx.flat[i] for i in np.flatnonzero(gx)} == {6: 6, 10: 2}


@each_call
@pytest.mark.parametrize("size", [1, (3, 2), 7])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_textbook(name: str, kwargs: dict[str, Any], size: Any, dtype: str) -> None:
    fast, slow = both(name)
    x, table = maps(dtype=dtype), boxes()
    y, pullback = poolgrad.vjp(fast, x, table, size, **kwargs)
    expected, textbook = reference.vjp(slow, x, table, size, **kwargs)
    assert (y.dtype, y.shape) == (x.dtype, expected.shape)
    assert y.flags.c_contiguous
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(fast(x, table, size, **kwargs), y)
    gy = np.random.default_rng(2).normal(size=y.shape).astype(dtype)
    gx = pullback(gy)
    assert (gx.dtype, gx.shape) == (x.dtype, x.shape)
    np.testing.assert_allclose(gx, textbook(gy), rtol=8 * tolerance, atol=8 * tolerance)


def test_bfloat16() -> None:
    small = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed").bfloat16
    x, table = maps(dtype=small), boxes()
    for name, kwargs in CALLS:
        fast, _ = both(name)
        y, pullback = poolgrad.vjp(fast, x, table, 3, **kwargs)
        wide, wider = poolgrad.vjp(fast, x.astype(np.float32), table, 3, **kwargs)
        np.testing.assert_array_equal(y, wide.astype(small))
        np.testing.assert_array_equal(pullback(y), wider(y.astype(np.float32)).astype(small))


@settings(max_examples=60, deadline=None)
@random_regions(most_samples=3)
def test_random_boxes(
    corners: Any, shape: Any, size: Any, scale: float, ratio: int, aligned: bool, dtype: str
) -> None:
    table = np.array([[0, min(a, c), min(b, d), max(a, c), max(b, d)] for a, b, c, d in corners])
    x, tolerance = maps(shape, dtype), 8 * TOLERANCE[dtype]
    for name, args in (("roi_pool", ()), ("roi_align", (ratio, aligned))):
        fast, slow = both(name)
        y, pullback = poolgrad.vjp(fast, x, table, size, scale, *args)
        expected, textbook = reference.vjp(slow, x, table, size, scale, *args)
        np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)
        gy = np.linspace(-1, 1, y.size).reshape(y.shape).astype(dtype)
        np.testing.assert_allclose(pullback(gy), textbook(gy), rtol=tolerance, atol=tolerance)


@each_call
def test_the_pullback_is_the_transpose(name: str, kwargs: dict[str, Any]) -> None:
    """RoIAlign is linear, and RoIPool is where no winner changes: differences are exact."""
    fast, _ = both(name)
    x, table = maps((2, 1, 5, 6)), boxes(5, size=16)
    y, pullback = poolgrad.vjp(fast, x, table, 2, **kwargs)
    gy = np.random.default_rng(3).normal(size=y.shape)
    gx, step = pullback(gy), 1e-6
    for i in np.ndindex(x.shape):
        above, below = x.copy(), x.copy()
        above[i] += step
        below[i] -= step
        difference = fast(above, table, 2, **kwargs) - fast(below, table, 2, **kwargs)
        assert (difference * gy).sum() / (2 * step) == pytest.approx(gx[i], abs=1e-8)


# ONNX Runtime


def onnx_runtime(operator: str, inputs: dict[str, Any], **attributes: Any) -> Any:
    onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    types = {"float32": onnx.TensorProto.FLOAT, "int64": onnx.TensorProto.INT64}
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node(operator, [*inputs], ["y"], **attributes)],
        operator,
        [info(n, types[v.dtype.name], v.shape) for n, v in inputs.items()],
        [info("y", types["float32"], None)],
    )
    opset = [onnx.helper.make_opsetid("", 16)]  # the first with coordinate_transformation_mode
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    made = model.SerializeToString()
    return runtime.InferenceSession(made, providers=["CPUExecutionProvider"]).run(None, inputs)[0]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("aligned", [False, True], ids=["output_half_pixel", "half_pixel"])
def test_onnx_roi_align(seed: int, aligned: bool) -> None:
    """`aligned` is ONNX's half_pixel, the other is output_half_pixel.

    Conventions are the same to the least: with output_half_pixel, too, a region of less than a
    pixel becomes one pixel wide; with half_pixel a box of no size gives zeros (sampling_ratio 0) or
    samples one point (any other).
    """
    x, table = maps(dtype=np.float32, seed=seed), boxes(40, seed=seed).astype(np.float32)
    given = {"x": x, "rois": table[:, 1:], "images": table[:, 0].astype(np.int64)}
    for ratio, scale, size in (
        (0, 1.0, (3, 4)),
        (1, 0.5, (7, 7)),
        (2, 0.37, (1, 5)),
        (3, 2.0, (2, 2)),
    ):
        expected = onnx_runtime(
            "RoiAlign", given, mode="avg", sampling_ratio=ratio, spatial_scale=scale,
            output_height=size[0], output_width=size[1],
            coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
        )  # fmt: skip
        y = poolgrad.roi_align(x, table, size, scale, ratio, aligned)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_onnx_max_roi_pool(seed: int) -> None:
    """Rounding, bins and the zeros of empty bins are ONNX Runtime's to the bit."""
    x, table = maps(dtype=np.float32, seed=seed), boxes(40, seed=seed).astype(np.float32)
    for scale, size in ((1.0, (3, 4)), (0.5, (7, 7)), (0.37, (1, 5)), (2.0, (2, 2))):
        how = {"pooled_shape": size, "spatial_scale": scale}
        expected = onnx_runtime("MaxRoiPool", {"x": x, "rois": table}, **how)
        np.testing.assert_array_equal(poolgrad.roi_pool(x, table, size, scale), expected)


# Layouts, forms and threads


def test_a_list_is_a_table() -> None:
    x, (own, table) = maps((3, 2, 11, 13)), listed(boxes(images=2), 3)  # the last image has none
    for name, kwargs in CALLS:
        fast, _ = both(name)
        expected = fast(x, table, 3, **kwargs)
        np.testing.assert_array_equal(fast(x, own, 3, **kwargs), expected)
        np.testing.assert_array_equal(fast(x, tuple(own), 3, **kwargs), expected)
        plain = [one.tolist() for one in own]  # [] for none
        np.testing.assert_array_equal(fast(x, plain, 3, **kwargs), expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "uint8", ">f8", "int32"])
def test_boxes_of_any_real_dtype(dtype: str) -> None:
    x, table = maps(), np.array([[0, 1, 2, 9, 8], [1, 0, 3, 4, 7]])
    for name, kwargs in CALLS:
        fast, _ = both(name)
        expected = fast(x, table.astype(np.float64), 3, **kwargs)
        np.testing.assert_array_equal(fast(x, table.astype(dtype), 3, **kwargs), expected)


@each_call
def test_any_strides(name: str, kwargs: dict[str, Any]) -> None:
    fast, _ = both(name)
    x, table = maps((4, 6, 11, 13), np.float32)[::2, ::3], boxes()
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    swapped = x.astype(">f4")
    y, pullback = poolgrad.vjp(fast, np.ascontiguousarray(x), table, 3, **kwargs)
    gx = pullback(y)
    assert not x.flags.c_contiguous
    for other in (x, last, swapped, x[:, ::-1][:, ::-1], np.asfortranarray(x)):
        before = other.copy()
        own, back = poolgrad.vjp(fast, other, table[::-1].copy()[::-1], 3, **kwargs)
        np.testing.assert_array_equal(own, y)
        np.testing.assert_array_equal(back(own[:, :, ::-1][:, :, ::-1]), gx)
        np.testing.assert_array_equal(other, before)


@each_call
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_bits_for_every_number_of_threads(
    name: str, kwargs: dict[str, Any], dtype: str
) -> None:
    """Many boxes overlap, in more channels than one task computes."""
    fast, _ = both(name)
    x, table = maps((3, 37, 11, 13), dtype), boxes(60, images=3)
    gy = np.random.default_rng(4).normal(size=(60, 37, 3, 3)).astype(dtype)
    made = []
    before = poolgrad.get_num_threads()
    try:
        for threads in (1, 2, 5, 1):
            poolgrad.set_num_threads(threads)
            y, pullback = poolgrad.vjp(fast, x, table, 3, **kwargs)
            made.append((y.tobytes(), pullback(gy).tobytes()))
    finally:
        poolgrad.set_num_threads(before)
    assert len(set(made)) == 1


def test_the_pullback_keeps_neither_input_nor_boxes() -> None:
    for name, kwargs in CALLS:
        x, table = maps(), boxes()
        y, pullback = poolgrad.vjp(both(name)[0], x, table, 3, **kwargs)
        gx = pullback(y)
        x[:], table[:] = 0, 0
        np.testing.assert_array_equal(pullback(y), gx)
        assert f"<RegionPullback of {name}: gradients of (12, 3, 3, 3) to (2, 3" in repr(pullback)
        assert str(pullback(y.astype(np.float16)).dtype) == "float64"


def test_indices() -> None:
    _, pullback = poolgrad.vjp(poolgrad.roi_pool, maps(), boxes(), 3)
    assert pullback.indices.dtype == np.int32
    assert pullback.indices.min() == -1  # of boxes outside
    with pytest.raises(ValueError, match="read-only"):
        pullback.indices[:] = 0
    _, other = poolgrad.vjp(poolgrad.roi_align, maps(), boxes(), 3)
    with pytest.raises(TypeError, match="roi_align has no indices"):
        _ = other.indices


@pytest.mark.parametrize("gy", [np.ones((12, 3, 3, 2)), np.ones(4), 1.0, [1.0]])
def test_cotangents_of_another_shape(gy: Any) -> None:
    for name in ("roi_pool", "roi_align"):
        _, pullback = poolgrad.vjp(both(name)[0], maps(), boxes(), 3)
        with pytest.raises(
            ValueError, match=r"gy must have the shape of the output, \(12, 3, 3, 3\)"
        ):
            pullback(gy)


# Values that are not finite


def test_pool_keeps_the_rules_of_poolgrad() -> None:
    """A NaN wins, the last of several; the first of equal inputs does; -inf is a value."""
    nan, inf = np.nan, np.inf
    x = np.array([[1, 1, nan, 2], [1, 1, 3, nan], [-inf, -inf, 0, -0.0], [-inf, -inf, -0.0, 0]])
    table = np.array([[0, 0, 0, 3, 3]])
    for dtype in (np.float32, np.float64):
        y, pullback = poolgrad.vjp(poolgrad.roi_pool, x[None, None].astype(dtype), table, 2)
        np.testing.assert_array_equal(y, [[[[1, nan], [-inf, 0]]]])
        assert pullback.indices.tolist() == [[[[0, 7], [8, 10]]]]
        assert not np.signbit(y[..., 1, 1])


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([np.nan, 1.0, 2.0, -np.inf, 0.0, -0.0]), min_size=30, max_size=30
    ),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_winners_among_equals_and_nans(values: list[float], dtype: Any) -> None:
    x = np.array(values, dtype).reshape(1, 1, 5, 6)
    table = np.array([[0, 0, 0, 5, 4], [0, 1, 1, 3, 2], [0, -3, 2, 2, 9]])
    for size in (1, 2, 3):
        y, pullback = poolgrad.vjp(poolgrad.roi_pool, x, table, size)
        _, textbook = reference.vjp(reference.roi_pool, x, table, size)
        gy = np.arange(1.0, 1 + y.size).reshape(y.shape).astype(dtype)
        np.testing.assert_array_equal(pullback(gy), textbook(gy))
        flat = x.reshape(-1)
        np.testing.assert_array_equal(y, np.where(pullback.indices < 0, 0, flat[pullback.indices]))


def test_align_reads_nothing_but_its_samples() -> None:
    """A weight of zero times infinity is nothing."""
    x = np.full((1, 1, 5, 5), np.inf)
    x[..., 1:3, 1:3] = [[1, 2], [3, 4]]
    y = poolgrad.roi_align(x, np.array([[0, 1.0, 1, 2, 2]]), 1, sampling_ratio=1)
    assert y.tolist() == [[[[2.5]]]]
    whole = poolgrad.roi_align(x, np.array([[0, 1.5, 1.5, 2.5, 2.5]]), 1, aligned=True)
    assert whole.tolist() == [[[[2.5]]]]  # at the centre between the four


# Boxes at and beyond the edges


def test_boxes_outside_give_zeros_and_no_gradient() -> None:
    x = maps() + 1
    table = np.array([[0, 50.0, 60, 70, 80], [1, -9, -9, -3, -3], [0, 3, 90, 5, 99]])
    for name, kwargs in (("roi_pool", {}), ("roi_align", {}), ("roi_align", {"sampling_ratio": 2})):
        y, pullback = poolgrad.vjp(both(name)[0], x, table, 2, **kwargs)
        assert not y.any()
        assert not pullback(np.full(y.shape, np.nan)).any()


def test_a_sample_within_a_pixel_of_the_edge_is_the_edge() -> None:
    x = np.array([[[[1.0, 2.0, 3.0]]]])
    for at, value in ((-1.0, 1), (-1.01, 0), (2.5, 3), (3.0, 3), (3.01, 0)):
        table = np.array([[0, at, 0, at, 0]])
        y = poolgrad.roi_align(x, table + HALF, 1, 1.0, 1, True)
        assert y.item() == pytest.approx(value), at


def test_boxes_of_no_size() -> None:
    """Without `aligned` they are a pixel wide; with it they have no samples, by default."""
    x, table = maps(), np.array([[0, 4.0, 3, 4, 3]])
    pixel = np.array([[0, 4.0, 3, 5, 4]])
    np.testing.assert_array_equal(poolgrad.roi_align(x, table, 2), poolgrad.roi_align(x, pixel, 2))
    np.testing.assert_array_equal(poolgrad.roi_pool(x, table, 1), x[:1, :, 3:4, 4:5])
    assert not poolgrad.roi_align(x, table, 2, aligned=True).any()
    point = poolgrad.roi_align(x, table + HALF, 1, 1.0, 3, True)
    np.testing.assert_allclose(point, x[:1, :, 3:4, 4:5], rtol=1e-15)


@pytest.mark.parametrize("images", [0, 2])
def test_no_boxes(images: int) -> None:
    for name, kwargs in CALLS:
        x = np.ones((images, 3, 4, 5), np.float32)
        for none in (np.zeros((0, 5)), [np.zeros((0, 4))] * images, [[]] * images):
            y, pullback = poolgrad.vjp(both(name)[0], x, none, (7, 6), **kwargs)
            assert (y.shape, y.dtype) == ((0, 3, 7, 6), x.dtype)
            assert pullback(y).shape == x.shape
            assert not pullback(y).any()


def test_no_channels() -> None:
    for name in ("roi_pool", "roi_align"):
        y, pullback = poolgrad.vjp(both(name)[0], np.ones((2, 0, 4, 5)), boxes(), 2)
        assert y.shape == (12, 0, 2, 2)
        assert pullback(y).shape == (2, 0, 4, 5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_boxes_much_larger_than_the_map(dtype: str) -> None:
    """Of a box a million times as wide only the samples in the map are computed."""
    x = np.ones((1, 1, 8, 9), dtype)
    table = np.array([[0, -(2.0**29), -(2.0**29), 2.0**29, 2.0**29], [0, 0, 0, 2.0**30, 2.0**30]])
    start = time.perf_counter()
    for aligned in (False, True):
        y = poolgrad.roi_align(x, table, 2, aligned=aligned)
        assert np.isfinite(y).all()
        assert y.max() < 1e-3
    assert poolgrad.roi_pool(x, table, 2)[0, 0, 1, 1] == 1
    assert time.perf_counter() - start < 5


def test_many_samples() -> None:
    """As many as are allowed along each axis: their average is the integral."""
    x = np.arange(20.0).reshape(1, 1, 4, 5)
    y = poolgrad.roi_align(x, np.array([[0, 0.5, 0.5, 4.5, 3.5]]), 1, 1.0, 65536, True)
    assert y.item() == pytest.approx(x.mean(), abs=1e-6)


def test_many_bins() -> None:
    x = maps((1, 1, 3, 4))
    for name in ("roi_pool", "roi_align"):
        y = both(name)[0](x, np.array([[0, 0.0, 0, 3, 2]]), (1, 100_000))
        assert y.shape == (1, 1, 1, 100_000)
        assert 0 < y.max() <= x.max()
