"""Selecting operators against the compiled CPU kernels: the same bits, routes and gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from watching import Copies  # noqa: E402

import poolgrad.torch.triton as package  # noqa: E402
from poolgrad.dtypes import name_of  # noqa: E402
from poolgrad.interface import Selection  # noqa: E402
from poolgrad.operators import OPERATORS, Prepared, prepare  # noqa: E402
from poolgrad.torch.adapter import ADAPTERS, Static  # noqa: E402
from poolgrad.torch.arrays import DTYPES, empty, inner_of  # noqa: E402
from poolgrad.torch.triton.launch import recorded  # noqa: E402
from poolgrad.windows import WindowSpec, adaptive, fixed, fractional, whole  # noqa: E402

pytestmark = pytest.mark.usefixtures("on_triton")


class Windows(NamedTuple):
    """Windows and the shape that they pool; the comment is why they are here."""

    name: str
    spec: WindowSpec
    shape: tuple[int, ...]


WINDOWS = [
    Windows("2x2 stride 2", fixed(2, 2), (2, 3, 8, 10)),  # pairs from one load
    Windows("3x3 stride 2", fixed(2, 3, 2, 1), (2, 3, 9, 11)),  # an odd padding, a lone tap
    Windows("3x3 stride 1", fixed(2, 3, 1, 1), (1, 2, 7, 6)),  # windows that overlap
    Windows("4x4 stride 2", fixed(2, 4, 2, 1), (1, 2, 9, 9)),  # two pairs, cut at both ends
    Windows("few windows", fixed(2, (5, 3), 1), (1, 2, 6, 4)),  # fewer than taps of an axis
    Windows("dilated", fixed(2, 2, 1, 1, 2), (1, 2, 7, 6)),
    Windows("ceil_mode", fixed(2, 3, 2, 0, 1, True), (1, 2, 8, 8)),
    Windows("padding only", fixed(2, (3, 2), (2, 1), ((5, 0), (0, 4))), (1, 2, 7, 6)),
    Windows("separable", fixed(2, (9, 7), (1, 2), 3), (1, 2, 14, 13)),
    Windows(
        "separable, 3-D", fixed(3, (4, 3, 4), (1, 2, 2), (0, 1, 0), (1, 2, 1)), (1, 2, 7, 9, 9)
    ),
    Windows("separable, every second plane", fixed(3, (1, 6, 6), (2, 1, 2), 0), (1, 2, 5, 7, 8)),
    Windows("adaptive", adaptive(2, (3, 4)), (1, 2, 7, 9)),
    Windows("more bins than inputs", adaptive(2, (9, 4)), (1, 2, 7, 9)),
    Windows("planes", whole(2), (3, 4, 9, 9)),  # a tree reduction
    Windows("1-D", fixed(1, 3, 2, 1), (2, 3, 9)),
    Windows("3-D", fixed(3, 3, 2, 1), (1, 2, 5, 5, 6)),
]


def named(name: str) -> Windows:
    return next(w for w in WINDOWS if w.name == name)


def values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Few numbers, so that there are ties; of floats also NaN, an infinity and -0."""
    x = torch.randint(-3, 4, shape, generator=torch.manual_seed(len(shape)))
    if dtype == torch.bool:
        return x > 0
    x = x.to(dtype)
    if dtype.is_floating_point:
        flat = x.view(-1)
        flat[::17], flat[::13], flat[::11] = float("nan"), -float("inf"), -0.0
    return x


def prepared(name: str, windows: Windows, x: torch.Tensor, options: tuple[str, str]) -> Prepared:
    inner = inner_of(x, windows.spec, False)
    return prepare(
        name, windows.spec, Selection(*options), tuple(x.shape), False, inner, name_of(x.dtype)
    )


def numbers(shape: tuple[int, ...], x: torch.Tensor, seed: int) -> torch.Tensor:
    # Whole numbers: the interpreter cuts sums off where it should round them to bfloat16.
    return torch.randint(-4, 5, shape, generator=torch.manual_seed(seed)).to(x.device, x.dtype)


def on_cpu(ready: Prepared, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Output, residual, gradient and tangent of the compiled kernels."""
    y = empty(ready.output, x)
    residual = tuple(empty(b, x) for b in ready.residual)
    ready.operator.forward(ready.call(x, y, residual=residual))
    if not x.is_floating_point():
        return y, *residual
    gx, tangent = empty(ready.input, x), torch.empty_like(y)
    gy = numbers(ready.layout.out_shape, x, 1)
    ready.operator.vjp(ready.call(gy, gx, residual=residual))
    t = numbers(ready.layout.in_shape, x, 2)
    ready.operator.jvp(ready.call(t, tangent, residual=residual))
    return y, *residual, gx, tangent


def on_gpu(ready: Prepared, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The same of the engine that GPUs use: the Triton kernels, or `poolgrad.portable`."""
    adapter, static = ADAPTERS[ready.operator.name], Static(ready)
    y, *residual = adapter.forward(static, x)
    if not x.is_floating_point():
        return y, *residual
    gx = adapter.vjp(static, numbers(ready.layout.out_shape, x, 1), *residual)
    tangent = adapter.jvp(static, numbers(ready.layout.in_shape, x, 2), *residual)
    return y, *residual, gx, tangent


def bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().cpu().contiguous()
    same = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(same[tensor.itemsize])


def assert_same_bits(
    name: str, windows: Windows, x: torch.Tensor, options: tuple[str, str], device: str
) -> None:
    expected = on_cpu(prepared(name, windows, x, options), x)
    # `to` keeps strides that leave no gaps; others are kept by the CPU, where nothing is copied.
    moved = x.to(device)
    made = on_gpu(prepared(name, windows, moved, options), moved)
    if OPERATORS[name].has_kernels("cuda", OPERATORS[name].options(*options)):
        for a, b in zip(made, expected, strict=True):
            assert torch.equal(bits(a), bits(b))
        return
    # `poolgrad.portable` selects the same inputs, but converts NaN and divides in another order.
    (y, route, *rest), (expected_y, expected_route, *others) = made, expected
    torch.testing.assert_close(y.cpu(), expected_y, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(bits(route), bits(expected_route))
    for a, b in zip(rest, others, strict=True):
        torch.testing.assert_close(a.cpu(), b, equal_nan=True)


OPTIONS = [("first", "bytes"), ("first", "packed"), ("zero", "bytes"), ("split", "bytes")]


def laid_out(x: torch.Tensor, channels_last: bool) -> torch.Tensor:
    if not channels_last:
        return x
    last = [0, *range(2, x.dim()), 1]
    back = [last.index(a) for a in range(x.dim())]
    return x.permute(last).contiguous().permute(back)


# The kernels of min and ReLU + max differ in one comparison, which four kinds of windows show.
FEW = [named(n) for n in ("3x3 stride 2", "padding only", "separable", "planes")]
EXTREMES = [("max", w) for w in WINDOWS] + [(n, w) for n in ("min", "relu_max") for w in FEW]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
@pytest.mark.parametrize(("name", "windows"), EXTREMES, ids=lambda v: getattr(v, "name", v))
def test_extremes(
    name: str, windows: Windows, options: tuple[str, str], channels_last: bool, device: str
) -> None:
    x = laid_out(values(windows.shape, torch.float32), channels_last)
    assert_same_bits(name, windows, x, options, device)


OTHER_DTYPES = [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16]
OTHER_DTYPES += [torch.uint16, torch.int32, torch.uint32, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", OTHER_DTYPES, ids=str)
@pytest.mark.parametrize("name", ["max", "min", "median"])
def test_dtypes(name: str, dtype: torch.dtype, device: str) -> None:
    own = (
        "2x2 stride 2" if name == "median" else "padding only"
    )  # a median needs an input in every window
    for windows in (named("3x3 stride 2"), named(own)):
        assert_same_bits(name, windows, values(windows.shape, dtype), OPTIONS[0], device)


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
@pytest.mark.parametrize(
    "windows", [named("3x3 stride 2"), named("adaptive"), named("1-D")], ids=lambda w: w.name
)
def test_median(windows: Windows, options: tuple[str, str], device: str) -> None:
    assert_same_bits("median", windows, values(windows.shape, torch.float32), options, device)


@pytest.mark.parametrize(
    "windows", [named("2x2 stride 2"), named("separable"), named("planes")], ids=lambda w: w.name
)
def test_64_bit_offsets(windows: Windows, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of tensors of 2**31 elements, on few."""
    from poolgrad.torch.triton import kernels, views

    monkeypatch.setattr(kernels, "index_type", lambda *_, **__: views.tl.int64)
    assert_same_bits("max", windows, values(windows.shape, torch.float32), OPTIONS[0], device)


def test_strides_are_read_as_they_are(device: str) -> None:
    """A slice of channels, a crop, and three axes of planes that cannot be merged."""
    windows = Windows("", fixed(2, 3, 2, 1), ())
    full = values((4, 6, 4, 11, 12), torch.float32)
    for x in (full[0, :, 1:3, 1:, 2:], full[::2, 1:5, ::2], full[..., ::2], full.movedim(1, 0)):
        assert_same_bits("max", windows, x, OPTIONS[0], device)


def test_an_empty_batch_launches_nothing(device: str) -> None:
    assert_same_bits("max", WINDOWS[0], values((0, 3, 8, 10), torch.float32), OPTIONS[0], device)


def test_wide_gradients_are_those_of_the_cpu(device: str) -> None:
    """Of windows that are pooled axis by axis, numbers whose sums are rounded."""
    windows = named("separable")
    x = torch.randn(windows.shape, generator=torch.manual_seed(0), dtype=torch.float64)
    gy = torch.randn((1, 2, 12, 7), generator=torch.manual_seed(1), dtype=torch.float64)
    expected = gradient(prepared("max", windows, x, OPTIONS[0]), x, gy)
    moved = x.to(device)
    ready = package.on_device(prepared("max", windows, moved, OPTIONS[0]))
    found = gradient(ready, moved, gy.to(device))
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-14, atol=1e-14)


def gradient(ready: Prepared, x: torch.Tensor, gy: torch.Tensor) -> torch.Tensor:
    y, gx = empty(ready.output, x), empty(ready.input, x)
    residual = tuple(empty(b, x) for b in ready.residual)
    ready.operator.forward(ready.call(x, y, residual=residual))
    ready.operator.vjp(ready.call(gy, gx, residual=residual))
    return gx


SPECS = {"fractional_max": fractional(2, 3, 4), "max_unpool": adaptive(2, 18)}


CALLS = [(o.name, o.options()) for o in OPERATORS.values() if not o.composed]
CALLS += [("max", Selection("split"))]


@pytest.mark.parametrize(("name", "options"), CALLS, ids=str)
def test_the_host_reads_no_numbers(name: str, options: tuple[Any, ...]) -> None:
    """Tensors without numbers: no call waits for the device, copies a number to it, or allocates
    by what is there.

    So CUDA graphs can capture the calls.
    """
    operator, adapter = OPERATORS[name], ADAPTERS[name]
    x = torch.empty((2, 3, 9, 9), device="meta")
    spec = SPECS.get(name, fixed(2, 3, 2, 1))
    ready = prepare(name, spec, options, tuple(x.shape), False, -1, "float32")
    given: tuple[torch.Tensor, ...] = ()
    if operator.operand.count:
        dtype, shapes, _ = operator.operand.accepted(ready.layout)
        given = (torch.empty(shapes[0], dtype=DTYPES[dtype], device="meta"),)
    static = Static(ready)
    held = (x,) if operator.nonlinear else ()
    with recorded() as launches, Copies() as copies:
        made = adapter.forward(static, x, *given)
        y, *residual = made if isinstance(made, tuple) else (made,)
        gx = adapter.vjp(static, y, *held, *given, *residual)
        if not operator.nonlinear:
            assert adapter.jvp(static, gx, *given, *residual).is_meta
    assert not copies.names
    assert (len(launches) >= 2) == operator.has_kernels("cuda", operator.options(*options))
    assert all(tensor.is_meta for one in launches for tensor in one.args if torch.is_tensor(tensor))
