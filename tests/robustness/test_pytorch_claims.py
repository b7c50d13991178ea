"""The claims of PyTorch's own pooling tests (test/nn/test_pooling.py), tested under `accelerate`.

Each test checks one claim about CPU tensors: against values written by hand, or against PyTorch
without `accelerate`.

Left out, because they are claims about CUDA: the launch configurations of channels-last adaptive
averages, arrays of more than 2**31 elements, and memory leaks. Claims that PyTorch tests on CUDA
alone but that hold for any device (means of float16 that overflow as sums, unusual strides of axes
of length one, bfloat16) are tested here on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from poolgrad.torch import accelerate  # noqa: E402

Pool = Callable[[Tensor], Any]

FLOATS = (torch.float32, torch.float64)
HALVES = (torch.float16, torch.bfloat16)
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def accelerated() -> Iterator[None]:
    with accelerate():
        yield


def pooled(pool: Pool, x: Tensor, gy: Tensor | None = None, kernels: str = "") -> list[Tensor]:
    """The outputs, then the gradient for the cotangent `gy` (default: ones).

    `kernels`: part of the name of the pooling's backward node.
    """
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = pool(leaf)
    outputs = y if isinstance(y, tuple) else (y,)
    assert kernels in backward_nodes(outputs[0])
    gy = torch.ones_like(outputs[0]) if gy is None else gy
    (gradient,) = torch.autograd.grad(outputs[0], leaf, gy)
    return [output.detach() for output in outputs] + [gradient]


def backward_nodes(y: Tensor) -> str:
    """Names from the output to the input: views may follow and precede a pooling."""
    node, names = y.grad_fn, []
    while node is not None:
        names.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    return " ".join(names)


def assert_equal(ours: list[Tensor], theirs: list[Tensor], rounding: float = 0.0) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=rounding, atol=rounding, equal_nan=True)


def assert_as_pytorch(
    pool: Pool,
    x: Tensor,
    gy: Tensor | None = None,
    rounding: float = 0.0,
    kernels: str = "poolgrad",
) -> list[Tensor]:
    """Same outputs, indices and gradient under `accelerate` as without; returns the former."""
    theirs = pooled(pool, x, gy)
    with accelerate():
        ours = pooled(pool, x, gy, kernels)
    assert_equal(ours, theirs, rounding)
    return ours


def assert_layout(pool: Pool, x: Tensor, gy_dtype: Any = None, rounding: float = 0.0) -> None:
    """Channels-last input: channels-last outputs, and the numbers of the contiguous input."""
    y = pool(x)
    shape = (y[0] if isinstance(y, tuple) else y).shape
    gy = torch.randint(1, 10, shape).to(x.dtype)
    last = LAST[x.dim()]
    for given, format in ((x.contiguous(), torch.contiguous_format), (x, last)):
        ours = assert_as_pytorch(pool, given, gy.contiguous(memory_format=format), rounding)
        for output in ours[:-1]:
            assert output.is_contiguous(memory_format=format)


def assert_empty(module: nn.Module, x: Tensor) -> None:
    """An empty batch gives an empty output, and a gradient of the input's shape."""
    expected = module(x).shape
    with accelerate():
        x = x.detach().requires_grad_()
        y = module(x)
        y.sum().backward()
    assert y.shape == expected
    assert y.numel() == 0
    assert x.grad is not None
    assert x.grad.shape == x.shape


def window_sums(x: Tensor, kernel: tuple[int, ...]) -> Tensor:
    """Sums of windows that do not overlap, over the last axes."""
    for axis, k in zip(range(-len(kernel), 0), kernel, strict=True):
        n = x.shape[axis] // k
        x = x.narrow(axis, 0, n * k).unflatten(axis, (n, k)).sum(axis)
    return x


def ones_of(*shape: int, last: bool = False, dtype: Any = torch.float32) -> Tensor:
    x = torch.ones(*shape, dtype=dtype)
    return x.contiguous(memory_format=LAST[len(shape)]) if last else x


# Averages


@pytest.mark.parametrize("divisor", [None, 1, 7])
def test_averages_of_every_kernel_size_are_sums_over_a_divisor(
    divisor: int | None, accelerated: None
) -> None:
    for sizes, pool in (((5, 8), F.avg_pool2d), ((3, 4, 5), F.avg_pool3d)):
        x = torch.rand(1, *sizes, dtype=torch.float64)
        for kernel in product(*(range(1, n + 1) for n in sizes)):
            found = pool(x, kernel, divisor_override=divisor)
            expected = window_sums(x, kernel) / (divisor or math.prod(kernel))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_ceil_mode_makes_no_average_of_nothing(d: int) -> None:
    kernel = ((1,), (1, 2), (1, 2, 3))[d - 1]
    pool = partial(
        getattr(F, f"avg_pool{d}d"),
        kernel_size=kernel,
        stride=2,
        padding=(0, 1) if d == 2 else 0,
        ceil_mode=True,
        count_include_pad=True,
    )
    y, gradient = assert_as_pytorch(pool, 10 * torch.randn(1, 16, *[4] * d), rounding=1e-5)
    assert y.isfinite().all()
    assert gradient.isfinite().all()


AVERAGES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "overlapping": ((4, 8, 7, 7), {"kernel_size": 3, "stride": 1}),
    "valid inputs only": (
        (4, 8, 8, 8),
        {"kernel_size": 3, "padding": 1, "count_include_pad": False},
    ),
    "padded": ((4, 8, 7, 7), {"kernel_size": 5, "padding": 2, "stride": 1}),
    "divisor": ((4, 8, 8, 8), {"kernel_size": 3, "divisor_override": 42}),
    "wide": ((4, 8, 8, 8), {"kernel_size": 7}),
    "halves": ((4, 64, 28, 28), {"kernel_size": 2}),
    "odd": ((2, 65, 15, 15), {"kernel_size": 3, "stride": 2}),
    "channels of one vector and one": ((1, 129, 8, 8), {"kernel_size": 3, "stride": 2}),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", AVERAGES)
def test_averages_with_channels_last(name: str, dtype: Any) -> None:
    shape, arguments = AVERAGES[name]
    x = torch.randn(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)
    assert_layout(nn.AvgPool2d(**arguments), x, rounding=ROUNDING[dtype])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ["avg", "adaptive avg", "adaptive max"])
@pytest.mark.parametrize("last", [False, True])
def test_two_byte_floats_are_the_rounded_results_of_float32(
    name: str, dtype: Any, last: bool
) -> None:
    pools = {
        "avg": nn.AvgPool2d(7, 1),
        "adaptive avg": nn.AdaptiveAvgPool2d((7, 7)),
        "adaptive max": nn.AdaptiveMaxPool2d((7, 7)),
    }
    for channels in (19, 65):
        x = torch.randint(1, 10, (3, channels, 8, 8)).to(dtype)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        y, gradient = assert_as_pytorch(pools[name], x, rounding=ROUNDING[dtype])
        assert y.is_contiguous(
            memory_format=torch.channels_last if last else torch.contiguous_format
        )
        assert (y.dtype, gradient.dtype) == (dtype, dtype)
        with accelerate():
            wide = pooled(pools[name], x.float())
        assert_equal([y, gradient], [t.to(dtype) for t in wide])


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("d", [1, 2, 3])
def test_averages_of_two_byte_floats_in_every_dimension(d: int, dtype: Any) -> None:
    x = torch.randn(8, 4, *[16] * d).to(dtype)
    sizes = (3, 5, 7)[-d:]
    for pool in (
        getattr(nn, f"AvgPool{d}d")(3, stride=2),
        getattr(nn, f"AdaptiveAvgPool{d}d")(sizes),
    ):
        with accelerate():
            narrow, wide = pooled(pool, x), pooled(pool, x.float())
        assert_equal(narrow, [t.to(dtype) for t in wide])


@pytest.mark.parametrize("last", [False, True])
def test_means_whose_sum_overflows_are_finite(last: bool, accelerated: None) -> None:
    x = 250 * ones_of(1, 2, 256, 256, last=last, dtype=torch.float16)
    assert torch.equal(F.adaptive_avg_pool2d(x, 2), torch.full((1, 2, 2, 2), 250).half())


# Adaptive windows


@pytest.mark.parametrize("name", ["Max", "Avg"])
def test_an_output_size_of_none_keeps_the_size(name: str, accelerated: None) -> None:
    for d in (2, 3):
        module = getattr(nn, f"Adaptive{name}Pool{d}d")((2,) * (d - 1) + (None,))
        x = torch.randn((4,) * (d + 1))
        y = module(x)
        assert y.shape == (4,) + (2,) * (d - 1) + (4,)
        parts = x.unflatten(1, (2, 2)).unflatten(3, (2, 2)) if d == 3 else x.unflatten(1, (2, 2))
        axes = (2, 4) if d == 3 else (2,)
        expected = parts.amax(axes) if name == "Max" else parts.mean(axes)
        torch.testing.assert_close(y, expected)


def test_an_output_size_that_overflows_is_an_error(accelerated: None) -> None:
    with pytest.raises(RuntimeError):
        nn.AdaptiveMaxPool1d(0x3FFFFFFFFFFFFFFF)(torch.empty(2, 2, 2))


@pytest.mark.parametrize("sliced", [False, True])
def test_adaptive_averages_with_channels_last(sliced: bool) -> None:
    x = torch.randint(1, 10, (4, 8, 8, 8)).float().contiguous(memory_format=torch.channels_last)
    assert_layout(nn.AdaptiveAvgPool2d((7, 7)), x[:, ::2] if sliced else x, rounding=1e-5)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize(
    ("shape", "bins"),
    [
        ((4, 8, 10, 10), (7, 7)),
        ((4, 8, 9, 14), (5, 8)),
        ((4, 8, 11, 11), (1, 1)),
        ((2, 1, 3, 3), (1, 1)),
        ((4, 8, 10, 10, 10), (7, 7, 7)),
        ((4, 8, 11, 11, 11), (1, 1, 1)),
        ((2, 1, 3, 3, 3), (1, 1, 1)),
    ],
)
def test_adaptive_maxima_with_channels_last(
    shape: tuple[int, ...], bins: tuple[int, ...], sliced: bool, dtype: Any
) -> None:
    x = torch.randint(1, 10, shape).to(dtype).contiguous(memory_format=LAST[len(shape)])
    pool = getattr(nn, f"AdaptiveMaxPool{len(bins)}d")(bins, return_indices=True)
    x = x[:, ::2] if sliced else x
    ours = assert_as_pytorch(pool, x)
    assert_as_pytorch(pool, x.contiguous())
    for output in ours[:2]:
        assert output.is_contiguous(memory_format=LAST[len(shape)])


@pytest.mark.parametrize("format", ["contiguous", "channels last", "slices"])
def test_the_mean_of_a_plane_and_its_strides(format: str) -> None:
    x = torch.randint(1, 10, (2, 3, 6, 6)).float()
    if format == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
    x = x[::2, ::2, ::2, ::2] if format == "slices" else x
    y, gradient = assert_as_pytorch(nn.AdaptiveAvgPool2d(1), x, kernels="Mean")
    torch.testing.assert_close(y, x.mean((-1, -2), keepdim=True))
    torch.testing.assert_close(gradient, torch.full(x.shape, 1 / x[0, 0].numel()))
    c = y.shape[1]
    assert y.stride() == ((c, 1, c, c) if format == "channels last" else (c, 1, 1, 1))


def test_the_mean_of_a_volume_and_its_strides() -> None:
    x = torch.randn(2, 3, 6, 6, 6)
    y, _ = assert_as_pytorch(nn.AdaptiveAvgPool3d(1), x, kernels="Mean")
    torch.testing.assert_close(y, x.mean((-1, -2, -3), keepdim=True), rtol=1e-5, atol=1e-6)
    assert y.stride() == (3, 1, 1, 1, 1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.short, torch.int, torch.long])
def test_adaptive_windows_take_no_integers(dtype: Any, accelerated: None) -> None:
    for name, d in product(("Max", "Avg"), (2, 3)):
        module = getattr(nn, f"Adaptive{name}Pool{d}d")((2,) * d)
        with pytest.raises(RuntimeError, match="not implemented"):
            module(torch.ones((4,) * (d + 1), dtype=dtype))


@pytest.mark.parametrize("name", ["max", "avg"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_no_bins_have_no_gradient(name: str, d: int, accelerated: None) -> None:
    x = torch.rand((1, 64, 10, 9) if d > 1 else (1, 64), requires_grad=True)
    with pytest.raises(RuntimeError, match="Expected grad_output to have non-zero size"):
        getattr(F, f"adaptive_{name}_pool{d}d")(x, 0).sum().backward()


@pytest.mark.slow
def test_bins_of_odd_sizes_lie_where_integers_say() -> None:
    """Where bins begin must not be computed in float32: pytorch#81409."""
    x = torch.randint(0, 256, (1, 5873, 3693)).float()
    rows, columns = 3527, 2219
    for name in ("avg", "max"):
        with accelerate():
            y = getattr(F, f"adaptive_{name}_pool2d")(x, (rows, columns))
            deep = getattr(F, f"adaptive_{name}_pool3d")(x[None], (1, rows, columns))
        assert torch.equal(deep[0], y)
        for i, j in ((0, 0), (rows - 1, columns - 1), (1763, 1109), (2047, 2048), (3525, 7)):
            top, bottom = i * 5873 // rows, -(-(i + 1) * 5873 // rows)
            left, right = j * 3693 // columns, -(-(j + 1) * 3693 // columns)
            window = x[0, top:bottom, left:right]
            expected = window.amax() if name == "max" else window.mean()
            torch.testing.assert_close(y[0, i, j], expected)


# Empty batches, and sizes


EMPTY: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(5), (0, 10)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(5), (0, 10, 10)),
    "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(5), (0, 10, 10, 10)),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(3), (0, 16, 50)),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(3), (0, 16, 50, 32)),
    "AdaptiveMaxPool3d": (lambda: nn.AdaptiveMaxPool3d(3), (0, 16, 20, 24, 31)),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(3, output_ratio=0.5), (0, 16, 50, 32)),
    "FractionalMaxPool3d": (
        lambda: nn.FractionalMaxPool3d(3, output_ratio=0.5),
        (0, 16, 20, 32, 32),
    ),
    "MaxPool1d": (lambda: nn.MaxPool1d(3, stride=2), (0, 16, 50)),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, stride=2), (0, 16, 50, 32)),
    "MaxPool3d": (lambda: nn.MaxPool3d(3, stride=2), (0, 16, 20, 24, 31)),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, stride=2), (0, 16, 20, 32)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_batch_has_an_empty_gradient(name: str) -> None:
    make, shape = EMPTY[name]
    x = torch.ones(shape)
    assert_empty(make(), x)
    if name == "AvgPool2d":
        assert_empty(make(), x.contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize(
    "name", [n for n in EMPTY if n != "MaxPool1d" and not n.startswith("AdaptiveAvg")]
)
def test_no_channels_are_an_error(name: str, accelerated: None) -> None:
    make, shape = EMPTY[name]
    with pytest.raises(RuntimeError, match=r"Expected|3D or 4D"):
        make()(torch.ones(1, 0, *shape[2:]))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_unpooling_an_empty_batch(d: int, accelerated: None) -> None:
    pool = getattr(nn, f"MaxPool{d}d")(2, stride=2, return_indices=True)
    x = torch.randn(0, 10, *[10] * d, requires_grad=True)
    y = getattr(nn, f"MaxUnpool{d}d")(2, stride=2)(*pool(x))
    y.sum().backward()
    assert y.shape == x.shape
    assert x.grad is not None
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("name", ["max", "avg"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_sizes_of_outputs(name: str, d: int, accelerated: None) -> None:
    pool = getattr(F, f"{name}_pool{d}d")
    for expected, sizes, arguments in (
        ((3, 3, 4), (5, 6, 7), {"kernel_size": 1, "stride": 2, "ceil_mode": True}),
        ((2, 3, 3), (3, 4, 5), {"kernel_size": 2, "stride": 2, "padding": 1}),
        ((2, 3, 3), (3, 4, 5), {"kernel_size": 2, "stride": 2, "padding": 1, "ceil_mode": True}),
    ):
        assert pool(torch.randn(1, 1, *sizes[:d]), **arguments).shape == (1, 1, *expected[:d])


@pytest.mark.parametrize("name", ["max", "avg"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_size_that_float32_cannot_count(name: str, d: int, accelerated: None) -> None:
    x = torch.ones(1, 1, 2**24 + 1, *[1] * (d - 1))
    assert torch.equal(getattr(F, f"{name}_pool{d}d")(x, 1, stride=1, padding=0), x)


@pytest.mark.parametrize("name", ["max", "avg"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_stride_of_zero_is_an_error(name: str, d: int, accelerated: None) -> None:
    x = torch.ones(1, 2, *[4] * d)
    words = "stride should not be zero|stride must be greater than zero"
    with pytest.raises(RuntimeError, match=words):
        getattr(F, f"{name}_pool{d}d")(x, kernel_size=2, stride=0)
    with pytest.raises(RuntimeError, match=words):
        getattr(nn, f"{name.title()}Pool{d}d")(kernel_size=2, stride=0)(x)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_window_larger_than_the_input_is_an_error(d: int, accelerated: None) -> None:
    x = torch.ones(1, 1, *[4] * d)
    with pytest.raises(RuntimeError, match=r"too small|smaller than"):
        getattr(F, f"max_pool{d}d_with_indices")(x, 3, stride=2, padding=0, dilation=2)
    with pytest.raises(RuntimeError, match=r"too small|smaller than"):
        getattr(F, f"avg_pool{d}d")(x, 6, stride=2)


# Maxima


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("x", "arguments", "expected"),
    [
        ([[1]], (1, None, 0, 1), [[1]]),
        ([[1]], (2, None, 1, 2), [[-math.inf]]),
        ([[1], [1]], (2, None, 1, 2), [[-math.inf], [-math.inf]]),
        ([[1, 2]], (2, 1, 1, 2), [[2, 1]]),
        ([[1, 2]], (2, 2, 1, 2, False, True), [[2, 2]]),
    ],
)
def test_maxima_of_few_elements(
    x: list[list[int]], arguments: Any, expected: Any, dtype: Any, accelerated: None
) -> None:
    y = nn.MaxPool1d(*arguments)(torch.tensor(x, dtype=dtype))
    assert torch.equal(y, torch.tensor(expected, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_maxima_of_negative_integers(dtype: Any, format: Any, accelerated: None) -> None:
    x = torch.tensor([[[[-1, -2], [-3, -4]]]], dtype=dtype).to(memory_format=format)
    assert torch.equal(nn.MaxPool2d(2, 2, 1, 2, False, True)(x), torch.full_like(x, -4))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_maxima_with_and_without_indices_are_equal(ceil_mode: bool, dtype: Any) -> None:
    sliced = torch.randn(5, 151, 33, dtype=dtype)[::2, ::3, ::2]
    inputs = [sliced, sliced.transpose(1, 2), torch.randn(9, 31, 17, dtype=dtype)]
    for x, kernel, stride, dilation in product(inputs, (1, 3, 4), (1, 3), (1, 2)):
        pool = partial(
            F.max_pool1d,
            kernel_size=kernel,
            stride=stride,
            padding=kernel // 2,
            dilation=dilation,
            ceil_mode=ceil_mode,
        )
        theirs = pool(x)
        with accelerate():
            assert torch.equal(pool(x), theirs)
            assert torch.equal(pool(x, return_indices=True)[0], theirs)


@pytest.mark.parametrize("dtype", [*FLOATS, *HALVES])
@pytest.mark.parametrize(
    ("shape", "kernel", "stride"),
    [
        ((4, 8, 8, 8), 7, None),
        ((4, 65, 8, 8), 7, 1),
        ((1, 19, 20, 10), 8, 2),
        ((4, 64, 28, 28), 2, None),
        ((4, 8, 7, 7), 3, 1),
        ((2, 65, 15, 15), 3, 2),
        ((1, 129, 8, 8), 3, 2),
        ((4, 8, 8, 8, 8), (5, 6, 7), None),
        ((4, 8, 7, 7, 7), 3, 1),
        ((2, 33, 9, 9, 9), (1, 2, 3), 2),
        ((1, 79, 4, 4, 4), 3, 2),
    ],
)
def test_maxima_with_channels_last(
    shape: tuple[int, ...], kernel: Any, stride: Any, dtype: Any
) -> None:
    pool = getattr(nn, f"MaxPool{len(shape) - 2}d")(kernel, stride, return_indices=True)
    x = torch.randn(shape).to(dtype).contiguous(memory_format=LAST[len(shape)])
    # PyTorch adds gradients of windows that overlap in float16, ours in float32.
    assert_layout(pool, x, rounding=ROUNDING[dtype] if dtype in HALVES else 0.0)
    if dtype in HALVES:
        with accelerate():
            y, indices, gradient = pooled(pool, x)
            wide, same, rounded = pooled(pool, x.float())
        assert torch.equal(indices, same)
        assert_equal([y, gradient], [wide.to(dtype), rounded.to(dtype)])


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize(
    ("sizes", "kernel", "stride", "padding"),
    [((10, 10), 2, 1, 1), ((9, 14), 2, 1, 1), ((11, 11), 4, 2, 2)],
)
def test_dilated_maxima_with_channels_last(
    sizes: tuple[int, int], kernel: int, stride: int, padding: int, sliced: bool
) -> None:
    pool = nn.MaxPool2d(kernel, stride, padding, 2, return_indices=True)
    x = torch.randint(1, 10, (4, 8, *sizes)).float().contiguous(memory_format=torch.channels_last)
    assert_layout(pool, x[:, ::2] if sliced else x)


@pytest.mark.parametrize("shape", [(6, 12, 13, 14), (16, 9, 19, 8)])
def test_volumes_with_channels_last_without_a_batch(shape: tuple[int, ...]) -> None:
    x = torch.randn(1, *shape).contiguous(memory_format=torch.channels_last_3d)[0]
    pool = nn.MaxPool3d((1, 2, 3), 2, return_indices=True)
    y, indices, _ = assert_as_pytorch(pool, x)
    for output in (y, indices):
        assert output[None].is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("name", ["MaxPool", "AdaptiveMaxPool"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_the_indices_and_the_gradient_of_increasing_numbers(name: str, d: int) -> None:
    """The last input of every window wins, and changed indices are an error."""
    x = torch.arange(1.0, 4 ** (d + 1) + 1).view(2, 2, *[4] * d).requires_grad_()
    wins = torch.zeros(4)
    wins[1::2] = 1
    expected = wins
    for _ in range(d - 1):
        expected = wins[:, None] * expected.flatten()
        expected = expected.flatten()
    expected = expected.view(*[4] * d).expand(x.shape)
    winners = expected[0, 0].flatten().nonzero().view(*[2] * d).expand(2, 2, *[2] * d)
    with accelerate():
        y, indices = getattr(nn, f"{name}{d}d")(2, return_indices=True)(x)
    assert torch.equal(indices, winners)
    assert torch.equal(y.flatten(), x.detach()[expected.bool()])
    assert y.requires_grad
    assert not indices.requires_grad
    y.backward(torch.ones_like(y), retain_graph=True)
    assert torch.equal(x.grad, expected)
    indices.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(torch.ones_like(y))


@pytest.mark.parametrize("name", ["MaxPool", "AdaptiveMaxPool"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_indices_without_a_batch(name: str, d: int, accelerated: None) -> None:
    pool = getattr(nn, f"{name}{d}d")(3, return_indices=True)
    x = torch.randn(3, *(5, 6, 7)[:d])
    assert torch.equal(pool(x)[1], pool(x[None])[1][0])


@pytest.mark.parametrize("number", [math.nan, -math.inf])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_windows_of_nan_and_of_minus_infinity(number: float, d: int) -> None:
    x = torch.full((1, 1, *[3] * d), number)
    for pool in (
        partial(getattr(F, f"max_pool{d}d"), kernel_size=3, return_indices=True),
        partial(getattr(F, f"adaptive_max_pool{d}d"), output_size=1, return_indices=True),
    ):
        y, _, gradient = assert_as_pytorch(pool, x)
        assert_equal([y], [torch.full_like(y, number)])
        assert gradient.sum() == 1
    with accelerate():
        one = torch.full((1, 1, *[1] * d), number)
        y, index = getattr(F, f"max_pool{d}d")(one, 1, return_indices=True)
        assert_equal([y, index], [one, torch.zeros_like(index)])
        if d > 1:
            z = getattr(nn, f"FractionalMaxPool{d}d")(2, output_size=1)(x.requires_grad_())
            z.backward(torch.ones_like(z))
            assert_equal([z.detach()], [torch.full_like(z, number)])
            assert x.grad is not None
            assert x.grad.sum() == 1


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_every_place_of_a_long_axis_has_its_gradient(axis: int, accelerated: None) -> None:
    shape = [16] * 4
    shape[axis] = 256
    x = torch.randn(shape, requires_grad=True)
    F.max_pool3d(x, 1).sum().backward()
    assert torch.equal(x.grad, torch.ones(shape))


def test_axes_of_length_one_may_have_any_stride() -> None:
    strides = (30, 1234, 6, 2, 1)
    strange = torch.randn(7 * 30).as_strided((7, 1, 5, 3, 2), strides)
    for pool in (F.max_pool3d, F.avg_pool3d):
        theirs = pool(strange.contiguous(), (5, 1, 1))
        with accelerate():
            torch.testing.assert_close(pool(strange, (5, 1, 1)), theirs)
    x = torch.randn(1, 3, 4, 4, 4)
    pool = partial(F.avg_pool3d, kernel_size=3, padding=1, stride=2)
    gy = torch.randn(pool(x).shape)
    strange = gy.as_strided(gy.shape, (2 * gy.stride(0), *gy.stride()[1:]))
    assert strange.is_contiguous()
    with accelerate():
        assert_equal(pooled(pool, x, strange), pooled(pool, x, gy))


# Fractional windows


@pytest.mark.parametrize("d", [2, 3])
def test_derivatives_of_fractional_maxima(d: int, accelerated: None) -> None:
    samples = torch.rand(1, 2, d, dtype=torch.float64)
    pool = partial(
        getattr(F, f"fractional_max_pool{d}d"),
        kernel_size=(2,) * d,
        output_size=(3,) * d,
        _random_samples=samples,
    )
    for shape in ((1, 2), (2,)):
        x = torch.randn(*shape, *[5] * d, dtype=torch.float64, requires_grad=True)
        assert "poolgrad" in backward_nodes(pool(x))
        assert pool(x).shape == (*shape, *[3] * d)
        assert torch.autograd.gradcheck(pool, (x,), fast_mode=True)
        assert torch.autograd.gradgradcheck(pool, (x,), fast_mode=True)


@pytest.mark.parametrize("d", [2, 3])
def test_fractional_windows_of_no_such_size_are_an_error(d: int, accelerated: None) -> None:
    pool = getattr(F, f"fractional_max_pool{d}d")
    x, samples = torch.randn(2, *[7] * d), torch.rand(1, 2, d)
    for n in range(d):
        with pytest.raises(RuntimeError, match="kernel_size must either"):
            pool(x, (1,) * n, output_size=(3,) * d, _random_samples=samples)
        with pytest.raises(RuntimeError, match="output_size must either"):
            pool(x, (2,) * d, output_size=(3,) * n, _random_samples=samples)
    for axis, word in enumerate(("time", "height", "width")[-d:]):
        sizes = [3] * d
        sizes[axis] = 9
        with pytest.raises(RuntimeError, match=f"too large relative to input {word}"):
            pool(x, (2,) * d, output_size=sizes, _random_samples=samples)


@pytest.mark.parametrize("d", [2, 3])
def test_fractional_windows_of_no_output_or_no_sample(d: int, accelerated: None) -> None:
    module = getattr(nn, f"FractionalMaxPool{d}d")
    kernel, sizes = [3, 2, 2][-d:], [0, 1, 1][:d]
    assert module(kernel, output_size=sizes)(torch.rand(16, 50, 32, 32)[:, -32:]).numel() == 0
    samples = torch.rand(0, 16, d)
    pool = module(kernel, output_size=[1] * d, _random_samples=samples)
    assert pool(torch.randn(0, 16, *[32] * d)).shape == (0, 16, *[1] * d)
    with pytest.raises(RuntimeError, match="Expect _random_samples"):
        pool(torch.randn(1, 16, *[32] * d))


# Unpooling


def test_unpooling_to_a_size() -> None:
    pool, unpool = nn.MaxPool2d(3, stride=2, return_indices=True), nn.MaxUnpool2d(3, stride=2)
    large, small = torch.rand(1, 1, 6, 6), torch.rand(1, 1, 5, 5)
    large[..., 4, 4] = 100
    small[..., :4:2, :4:2] = 100
    with accelerate():
        with pytest.raises(RuntimeError):
            unpool(*pool(large))
        y, indices = pool(small)
        for h, w in product(range(3, 10), repeat=2):
            if {h, w} <= {4, 5, 6}:
                size = (1, 1, h, w) if h == 6 else (h, w)
                assert unpool(y, indices, output_size=size).shape == (1, 1, h, w)
            else:
                with pytest.raises(ValueError, match="output_size"):
                    unpool(y, indices, (h, w))


def test_unpooling_with_channels_last(accelerated: None) -> None:
    x = torch.randn(2, 10, 9, 9)
    pool, unpool = nn.MaxPool2d(3, stride=2, return_indices=True), nn.MaxUnpool2d(3, stride=2)
    results = []
    for format in (torch.channels_last, torch.contiguous_format):
        y, indices = pool(x.contiguous(memory_format=format))
        y.requires_grad_()
        z = unpool(y, indices)
        assert z.is_contiguous(memory_format=format)
        z.backward(torch.arange(1.0, z.numel() + 1).view(z.shape))
        results.append([z.detach(), y.grad])
    assert_equal(*results)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own use of it
@pytest.mark.parametrize("d", [1, 2, 3])
def test_derivatives_of_unpooling(d: int, accelerated: None) -> None:
    pool, unpool = getattr(F, f"max_pool{d}d"), getattr(F, f"max_unpool{d}d")
    x = torch.randn(1, 2, *[4 + (d == 1)] * d, dtype=torch.float64, requires_grad=True)
    y, indices = pool(x, 2, stride=2, return_indices=True)
    assert torch.equal(unpool(y, indices, 2), unpool(y, indices, 2, stride=2))
    sizes = [unpool(y, indices, 2, output_size=s) for s in (x.shape, tuple(x.shape), x.shape[2:])]
    assert torch.equal(sizes[0], sizes[1])
    assert torch.equal(sizes[0], sizes[2])
    assert torch.autograd.gradcheck(unpool, (y, indices, 2), check_forward_ad=True)


def test_unpooling_volumes_needs_three_sizes(accelerated: None) -> None:
    x = torch.ones(1, 3, 1, 1, 1)
    with pytest.raises(RuntimeError):
        F.max_unpool3d(x, torch.zeros(x.shape, dtype=torch.int64), [1, 1])


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [((2, 2), (1, 3, 4, 5)), ((2, 3), (2, 1, 4, 2)), ((2, 2, 2), (1, 3, 4, 5))],
)
def test_indices_beyond_the_plane_are_an_error(
    kernel: tuple[int, ...], shape: tuple[int, ...], accelerated: None
) -> None:
    unpool = getattr(nn, f"MaxUnpool{len(kernel)}d")(kernel)
    size = math.prod(kernel) * math.prod(shape[-len(kernel) :])
    indices = torch.zeros(shape, dtype=torch.int64)
    for index in (-1, size):
        indices.view(-1)[0] = index
        with pytest.raises(RuntimeError, match="Found an invalid max index:"):
            unpool(torch.rand(shape), indices)
    indices.view(-1)[0] = size - 1
    x = torch.rand(shape)
    first = unpool(x, indices)[(0,) * (len(shape) - len(kernel))]
    assert first.flatten()[-1] == x.flatten()[0]


# Quantized tensors: PyTorch's operators


@pytest.mark.filterwarnings("ignore:.*quantiz:UserWarning", "ignore:.*quantiz:DeprecationWarning")
def test_bad_arguments_of_quantized_maxima_are_errors(accelerated: None) -> None:
    x = torch.quantize_per_tensor(torch.randn(1), 0.1, 10, torch.quint2x4)
    with pytest.raises(RuntimeError):
        torch.quantized_max_pool1d(x, [])
    x = torch.quantize_per_tensor(torch.randn(1, 1, 1, 1, 1), -0.1, -10, torch.qint32)
    with pytest.raises(RuntimeError, match="Expected dilation >= 1"):
        torch.quantized_max_pool3d(x, (1, 1, 1), (1, 1, 1), (0, 0, 0), (-3, 1, 1))
