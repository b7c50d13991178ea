"""Averages of quantised integers: exact sums, one rounding to float32, ties to even.

They are compared with PyTorch's averages of quantised tensors, and with a formula in exact integers
that spells out each rounding.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from adversarial_arrays import LAYOUTS, Layout
from expected_errors import refused
from frontend_calls import Front, torch
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import poolgrad
from poolgrad.tools import algorithms

INT8, UINT8 = np.dtype(np.int8), np.dtype(np.uint8)
each_dtype = pytest.mark.parametrize("dtype", [INT8, UINT8], ids=str)
Array = np.ndarray


def integers(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


def sums(
    x: Array, kernel: Any, stride: Any, padding: Any, include_pad: bool, override: int | None
) -> tuple[Array, Array, Array]:
    """The sum of each window, its number of inputs, and its divisor; with floor, not ceil_mode."""
    dims = len(kernel)
    axes = zip(x.shape[-dims:], kernel, stride, padding, strict=True)
    sizes = [(n + 2 * p - k) // s + 1 for n, k, s, p in axes]
    total = np.zeros((*x.shape[:-dims], *sizes), np.int64)
    count, divisor = np.zeros(sizes, np.int64), np.zeros(sizes, np.int64)
    for output in itertools.product(*map(range, sizes)):
        starts = [o * s - p for o, s, p in zip(output, stride, padding, strict=True)]
        inside = [slice(max(b, 0), max(b + k, 0)) for b, k in zip(starts, kernel, strict=True)]
        window = x[(..., *inside)].astype(np.int64)
        total[(..., *output)] = window.sum(tuple(range(-dims, 0)))
        count[output] = np.prod(window.shape[-dims:])
        divisor[output] = override or (np.prod(kernel) if include_pad else count[output])
    return total, count, divisor


def rounded(
    total: Array, count: Array, divisor: Array, dtype: np.dtype[Any], x_zero: int, y_zero: int,
    ratio: float = 1.0,
) -> Array:  # fmt: skip
    """What `quantization` is documented to compute."""
    exact = total - count * x_zero  # in integers
    factor = (np.float32(ratio) / divisor.astype(np.float32)).astype(np.float32)
    mean = (exact.astype(np.float32) * factor).astype(np.float32)
    return np.clip(np.rint(mean) + y_zero, np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)


CALLS = [
    ((2,), {}), ((3, 1, 1), {}), ((3, 2, 1), {"count_include_pad": False}),
    (((2, 7), 1), {}), ((2,), {"divisor_override": 1}), ((3,), {"divisor_override": -2}),
    (((4, 7), 3), {}),
]  # fmt: skip


@each_dtype
@pytest.mark.parametrize(("args", "more"), CALLS, ids=repr)
@pytest.mark.parametrize("zeros", [(0, 0), (7, 7), (127, 127), (-128, 255), (255, -128)], ids=repr)
def test_the_documented_rounding(
    front: Front, dtype: np.dtype[Any], args: Any, more: dict[str, Any], zeros: tuple[int, int]
) -> None:
    x = integers((2, 3, 12, 14), dtype)
    kernel, stride, padding = (*args, *(args[:1] if len(args) == 1 else ()), 0, 0)[:3]
    two = [v if isinstance(v, tuple) else (v, v) for v in (kernel, stride, padding)]
    parts = sums(x, *two, more.get("count_include_pad", True), more.get("divisor_override"))
    quantization = ((0.5, zeros[0]), (0.5, zeros[1]))
    y = front.run("avg_pool2d", x, *args, quantization=quantization, **more)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, rounded(*parts, dtype, *zeros))


@each_dtype
def test_one_pair_is_the_quantisation_of_both(front: Front, dtype: np.dtype[Any]) -> None:
    x = integers((2, 3, 9), dtype)
    for args in ((2,), (3, 1, 1)):
        both = front.run("avg_pool1d", x, *args, quantization=((0.3, 5), (0.3, 5)))
        assert np.array_equal(front.run("avg_pool1d", x, *args, quantization=(0.3, 5)), both)
        assert np.array_equal(front.run("avg_pool1d", x, *args, quantization=[2, 5]), both)


def test_scales(front: Front) -> None:
    x = integers((1, 4, 6, 6), UINT8)
    for scale, scale_of_y in ((0.1, 0.3), (1.0, 3), (2.0, 0.7), (1e-3, 1e-4)):
        y = front.run("avg_pool2d", x, 3, quantization=((scale, 9), (scale_of_y, 100)))
        parts = sums(x, (3, 3), (3, 3), (0, 0), True, None)
        assert np.array_equal(y, rounded(*parts, UINT8, 9, 100, scale / scale_of_y))
        real = (scale * (x.astype(float) - 9)).reshape(1, 4, 2, 3, 2, 3).mean((3, 5))
        wanted = np.clip(real / scale_of_y + 100, 0, 255)
        assert (np.abs(y - wanted) <= 0.5 + 1e-4).all()


def test_ties_are_rounded_to_even(front: Front) -> None:
    x = np.array([[1, 2, 2, 3, 3, 4]], np.uint8)  # 1.5, 2.5, 3.5
    assert front.run("avg_pool1d", x, 2, quantization=(1.0, 0)).tolist() == [[2, 2, 4]]
    # of the real numbers: 0.5, 1.5, 2.5 above the zero point
    assert front.run("avg_pool1d", x, 2, quantization=(1.0, 1)).tolist() == [[1, 3, 3]]


def test_clamping_and_padding(front: Front) -> None:
    x = np.array([[100, -100, 127, 127]], np.int8)
    y = front.run("avg_pool1d", x, 1, quantization=((1.0, -100), (1.0, 0)))
    assert y.tolist() == [[127, 0, 127, 127]]
    assert front.run("avg_pool1d", -x, 2, divisor_override=1, quantization=(1.0, 0)).tolist() == [
        [0, -128]
    ]
    # Padding is the real number 0; a window of padding alone gives the zero point.
    y = front.run("avg_pool1d", x, 1, 1, 1, quantization=(1.0, 9))
    assert y.tolist() == [[9, 100, -100, 127, 127, 9]]


@each_dtype
@pytest.mark.parametrize("size", [250, 300], ids=["float32", "float64"])  # in which bytes are added
def test_large_windows(dtype: np.dtype[Any], size: int) -> None:
    info, shape = np.iinfo(dtype), (1, 2, size, size + 3)
    for x in (
        np.full(shape, info.min, dtype),
        np.full(shape, info.max, dtype),
        integers(shape, dtype),
    ):
        parts = [x[..., o : o + size].astype(np.int64).sum((-2, -1)) for o in range(4)]
        total, count = np.stack(parts, -1)[:, :, None], np.full(4, size * size)
        for zero, divisor in itertools.product((info.min, info.max, 3), (None, size * size // 2)):
            how = {"divisor_override": divisor, "quantization": (1.0, zero)}
            expected = rounded(total, count, np.full(4, divisor or size * size), dtype, zero, zero)
            for order in ("C", "F"):
                y = poolgrad.avg_pool2d(np.asarray(x, order=order), size, 1, **how)
                assert np.array_equal(y, expected)


def test_a_sum_beyond_32_bits() -> None:
    x, size = integers((1, 4200, 4200), UINT8), 4200**2
    y = poolgrad.avg_pool2d(x, 4200, quantization=(1.0, 0))
    total = int(x.sum(dtype=np.int64))
    assert total > 2**31
    assert y.item() == rounded(*map(np.array, (total, size, size)), UINT8, 0, 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda m: m.id)
def test_layouts(layout: Layout) -> None:
    x = layout.make(integers((2, 16, 11, 13), INT8))
    for args in ((2,), (3, 1, 1), ((11, 13),), ((5, 1), 1)):
        arrays = (x, np.ascontiguousarray(x, INT8))
        y, expected = (poolgrad.avg_pool2d(a, *args, quantization=(1.0, 5)) for a in arrays)
        np.testing.assert_array_equal(y, expected, strict=True)


@pytest.mark.parametrize(
    "algorithm", ["plane_means", "register_blocked", "unrolled", "column_sums", "separable"]
)
def test_algorithms(algorithm: str) -> None:
    x = integers((2, 5, 24, 33), UINT8)
    calls: list[Any] = [(2,), (3, 2, 1), (3, 1, 1), (6,), ((24, 33),)]
    expected = [poolgrad.avg_pool2d(x, *args, quantization=(1.0, 77)) for args in calls]
    with algorithms.forced(algorithm):
        found = [poolgrad.avg_pool2d(x, *args, quantization=(1.0, 77)) for args in calls]
    for a, b in zip(found, expected, strict=True):
        assert np.array_equal(a, b)


@each_dtype
def test_other_windows_and_arguments(dtype: np.dtype[Any]) -> None:
    x = integers((2, 3, 8, 9), dtype)
    how = {"quantization": (1.0, 3)}
    out = np.empty((2, 3, 4, 4), dtype)
    y = poolgrad.avg_pool2d(x, 2, **how)
    assert poolgrad.avg_pool2d(x, 2, out=out, **how) is out
    assert np.array_equal(y, out)
    last = poolgrad.avg_pool2d(np.moveaxis(x, 1, -1), 2, channels_last=True, **how)
    assert np.array_equal(np.moveaxis(last, -1, 1), y)
    assert np.array_equal(poolgrad.avg_pool2d(x, 2, **how), y)  # a cached call
    assert poolgrad.avg_pool2d(x[:0], 2, **how).shape == (0, 3, 4, 4)
    for more in ({"ceil_mode": True}, {"dilation": 2}, {"padding": "same"}):
        y, r = (p.avg_pool2d(x, 3, 2, **more, **how) for p in (poolgrad, poolgrad.reference))  # type: ignore[attr-defined]
        assert np.array_equal(y, r)


# Refusals


@pytest.mark.parametrize(
    ("value", "error"),
    [(2.0, TypeError), (("1", 0), TypeError), ((None, 0), TypeError), ((True, False), TypeError),
     ([], ValueError), ((1.0,), ValueError), ((1.0, 0, 2), ValueError), (((1.0, 0),), ValueError),
     ((0.0, 0), ValueError), ((-1.0, 0), ValueError), ((np.nan, 0), ValueError),
     ((np.inf, 0), ValueError), ((1.0, 2.5), ValueError), ((1.0, 256), ValueError),
     ((1.0, -129), ValueError), (((1.0, 0), (0, 0)), ValueError),
     (((1e30, 0), (1e-30, 0)), ValueError)],
    ids=repr,
)  # fmt: skip
def test_bad_quantization(front: Front, value: object, error: type[Exception]) -> None:
    with refused(error, "quantization", value):
        front.run("avg_pool2d", integers((1, 2, 4, 4), UINT8), 2, quantization=value)


@pytest.mark.parametrize("dtype", ["float32", "int16", "bool"])
def test_other_dtypes_are_refused(front: Front, dtype: str) -> None:
    with refused(TypeError, "x must be of dtype int8 or uint8 for quantization", dtype):
        front.run("avg_pool2d", np.ones((1, 2, 4, 4), dtype), 2, quantization=(1.0, 0))


def test_no_gradient() -> None:
    x = integers((1, 2, 4, 4), UINT8)
    with refused(TypeError, "x must be of a floating dtype to have a gradient", "uint8"):
        poolgrad.vjp(poolgrad.avg_pool2d, x, 2, quantization=(1.0, 0))


def test_lists_of_unequal_lengths_are_refused(front: Front) -> None:
    x, pairs = integers((1, 2, 4, 4), UINT8), ((1.0, 0), (1.0,))
    with pytest.raises(ValueError, match=r"quantization must be \(scale, zero_point\), or"):
        front.run("avg_pool2d", x, 2, quantization=pairs)


def test_arrays_of_numbers(front: Front) -> None:
    x = integers((1, 2, 4, 4), UINT8)
    y = front.run("avg_pool2d", x, 2, quantization=((0.5, 7), (0.25, 3)))
    for pairs in (np.array([[0.5, 7], [0.25, 3]]), [(np.float32(0.5), np.uint8(7)), (0.25, 3.0)]):
        assert np.array_equal(front.run("avg_pool2d", x, 2, quantization=pairs), y)


# PyTorch's quantised tensors

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
deprecated = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
ENGINES = ("x86", "fbgemm", "onednn")


def quantized(x: Array, zero: int, scale: float = 0.1) -> Any:
    return torch._make_per_tensor_quantized_tensor(torch.from_numpy(x), scale, zero)


@st.composite
def quantized_calls(draw: st.DrawFn, dims: int) -> tuple[Any, dict[str, Any]]:
    """A tensor, with channels first or last, and arguments that PyTorch accepts."""
    dtype, last = draw(st.sampled_from([INT8, UINT8])), dims > 1 and draw(st.booleans())
    kernel = draw(st.tuples(*[st.integers(1, 4)] * dims))
    stride = draw(st.tuples(*[st.integers(1, 3)] * dims))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    # With channels last, PyTorch rounds ties of the channels after the last whole vector in
    # another way, and how many these are depends on the processor. An image of one element
    # has its channels last in any format.
    sizes = tuple(draw(st.integers(max(k, 2), 24 if dims < 3 else 6)) for k in kernel)
    channels = 32 if last or dims == 3 else draw(st.integers(1, 5))
    info = np.iinfo(dtype)
    x = integers((draw(st.integers(1, 2)), channels, *sizes), dtype, draw(st.integers(0, 99)))
    q = quantized(x, draw(st.integers(info.min, info.max)), draw(st.sampled_from([1.0, 0.07])))
    if last:
        q = q.contiguous(memory_format=(torch.channels_last, torch.channels_last_3d)[dims - 2])
    given = {"kernel_size": kernel, "stride": stride, "padding": padding}
    given |= {"ceil_mode": draw(st.booleans()), "count_include_pad": draw(st.booleans())}
    if dims > 1:
        given["divisor_override"] = draw(st.sampled_from([None, None, 1, 3, 14, -2]))
    return q, given


@needs_torch
@deprecated
@pytest.mark.hypothesis
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_bits_of_pytorch(dims: int) -> None:
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        pytest.skip("PyTorch has vectorised averages of quantised tensors for AVX only")
    ours, theirs = (getattr(p, f"avg_pool{dims}d") for p in (poolgrad, torch.nn.functional))
    engine = torch.backends.quantized.engine

    @settings(max_examples=examples(60))
    @given(quantized_calls(dims), st.sampled_from(ENGINES))
    def check(call: tuple[Any, dict[str, Any]], which: str) -> None:
        q, how = call
        torch.backends.quantized.engine = which
        expected, y = theirs(q, **how), ours(q, **how)
        assert (y.dtype, y.q_scale(), y.q_zero_point()) == (q.dtype, q.q_scale(), q.q_zero_point())
        assert torch.equal(y.int_repr(), expected.int_repr())

    try:
        check()
    finally:
        torch.backends.quantized.engine = engine


@needs_torch
@deprecated
def test_quantised_tensors() -> None:
    x = integers((2, 16, 9, 8), UINT8)
    q, part = quantized(x, 77), quantized(x[:, ::2, 1:].copy(), 77)
    y = poolgrad.avg_pool2d(q[:, ::2, 1:], 2)  # a view
    assert torch.equal(y.int_repr(), poolgrad.avg_pool2d(part, 2).int_repr())
    last = q.contiguous(memory_format=torch.channels_last)
    assert poolgrad.avg_pool2d(last, 2).is_contiguous(memory_format=torch.channels_last)
    assert poolgrad.global_avg_pool(q).shape == (2, 16)
    expected = torch.nn.functional.max_pool2d(q, 3, 2, 1)
    assert torch.equal(poolgrad.max_pool2d(q, 3, 2, 1).int_repr(), expected.int_repr())
    least = poolgrad.min_pool2d(torch.from_numpy(x), 2)
    assert torch.equal(poolgrad.min_pool2d(q, 2).int_repr(), least)
    assert poolgrad.torch.AvgPool2d(2)(q).is_quantized
    assert poolgrad.torch.AvgPool2d(2, padding="same")(q).is_quantized
    assert poolgrad.avg_pool2d(q[:0], 2).shape == (0, 16, 4, 4)
    one = quantized(np.array([[[[120]]]], np.int8), 1, 1.0)  # one channel, as with channels first
    y = poolgrad.avg_pool2d(one, 1, divisor_override=14).int_repr()
    assert y.item() == 10  # as PyTorch rounds 119 / 14 + 1 = 9.5 with AVX


@needs_torch
@pytest.mark.filterwarnings("ignore:torch.quantize_per")
def test_other_quantised_tensors_are_refused() -> None:
    x, q = torch.ones(1, 2, 4, 4), quantized(integers((1, 2, 4, 4), UINT8), 7)
    scales, zeros = torch.tensor([0.1, 0.2]), torch.zeros(2, dtype=torch.int64)
    of_channels = torch.quantize_per_channel(x, scales, zeros, 1, torch.qint8)
    wide = torch.quantize_per_tensor(x, 0.1, 0, torch.qint32)
    words = "x may be a quantized tensor only of dtype qint8 or quint8, with one scale"
    calls: list[tuple[Any, Any, tuple[Any, ...], dict[str, Any], str]] = [
        (poolgrad.soft_pool2d, q, (2,), {}, "for soft"),
        (poolgrad.lp_pool2d, q, (2.0, 2), {}, "for lp"),
        (poolgrad.relu_max_pool2d, q, (2,), {}, "for relu_max"),
        (poolgrad.stochastic_pool2d, q, (2,), {}, "for stochastic"),
        (poolgrad.fractional_max_pool2d, q, (2, None, 0.5), {}, "for fractional_max"),
        (poolgrad.max_pool2d, q, (2,), {"return_indices": True}, "for max"),
        (poolgrad.avg_pool2d, q, (2,), {"quantization": (0.1, 7)}, "torch.quint8"),
        (poolgrad.avg_pool2d, of_channels, (2,), {}, "torch.per_channel_affine"),
        (poolgrad.max_pool2d, wide, (2,), {}, "torch.qint32"),
    ]
    for function, of_x, args, how, came in calls:
        with refused(TypeError, words, came):
            function(of_x, *args, **how)
    for function in (poolgrad.avg_pool2d, poolgrad.max_pool2d):
        with pytest.raises(TypeError, match="vjp supports NumPy and Dask arrays"):
            poolgrad.vjp(function, q, 2)


@needs_torch
def test_without_kernels(no_kernels: None) -> None:
    x = integers((2, 3, 9, 8), INT8)
    for args, how in (((2,), {}), ((3, 2, 1), {"count_include_pad": False})):
        how |= {"quantization": ((0.3, 5), (0.2, -7))}
        y = poolgrad.avg_pool2d(torch.from_numpy(x), *args, **how)
        assert np.array_equal(y, poolgrad.avg_pool2d(x, *args, **how))
