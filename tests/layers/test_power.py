"""The learned generalised mean and log-mean-exp: their limits, gradients and errors."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from layer_checks import (  # noqa: E402
    check_compiled,
    check_copies,
    check_exported,
    check_gradients,
    check_unbatched,
    distinct,
    exporters,
)
from torch import nn  # noqa: E402

from poolgrad.torch.layers.power import GeM2d, LogSumExp2d  # noqa: E402

LAYERS: dict[str, Any] = {"GeM2d": GeM2d, "LogSumExp2d": LogSumExp2d}
ARGUMENT = {"GeM2d": "norm_type", "LogSumExp2d": "r"}
each_layer = pytest.mark.parametrize("name", LAYERS)
each_channels = pytest.mark.parametrize("channels", [None, 3])


def image(*shape: int) -> torch.Tensor:
    return distinct(*(shape or (2, 3, 5, 4)))


@each_channels
def test_gem_with_power_one_is_the_average(channels: int | None) -> None:
    x = image()
    torch.testing.assert_close(GeM2d(channels, norm_type=1.0).double()(x), x.mean((2, 3)))


@each_channels
def test_gem_comes_close_to_the_maximum(channels: int | None) -> None:
    """Of n values the power mean lies between ``max * n ** (-1 / p)`` and the maximum."""
    x = image()
    for p in (10.0, 100.0, 1000.0):
        y = GeM2d(channels, norm_type=p).double()(x)
        assert (y < x.amax((2, 3))).all()
        assert (y >= x.amax((2, 3)) * 20 ** (-1 / p)).all()
    torch.testing.assert_close(y, x.amax((2, 3)), rtol=4e-3, atol=0)


@each_channels
def test_log_mean_exp_with_a_small_r_is_the_average(channels: int | None) -> None:
    """``average + r * variance / 2`` to first order."""
    x = image() - 1
    y = LogSumExp2d(channels, r=1e-4).double()(x)
    torch.testing.assert_close(y, x.mean((2, 3)), rtol=0, atol=1e-4)
    slope = (y - x.mean((2, 3))) / 1e-4
    torch.testing.assert_close(slope, x.var((2, 3), correction=0) / 2, rtol=1e-3, atol=0)


@each_channels
def test_log_mean_exp_comes_close_to_the_maximum(channels: int | None) -> None:
    """Of n values it lies between ``max - log(n) / r`` and the maximum."""
    x = image() - 1
    for r in (10.0, 100.0, 1000.0):
        y = LogSumExp2d(channels, r=r).double()(x)
        assert (y < x.amax((2, 3))).all()
        assert (y >= x.amax((2, 3)) - math.log(20) / r - 1e-12).all()
    torch.testing.assert_close(y, x.amax((2, 3)), rtol=0, atol=4e-3)


def test_gem_is_what_its_authors_compute() -> None:
    """Inputs below `eps`, too: they count as `eps`, and get no gradient."""
    x = (image() - 1).requires_grad_()
    gem = GeM2d(norm_type=2.5, eps=1e-3).double()
    authors = x.clamp(min=1e-3).pow(gem.norm_type).mean((2, 3)).pow(1 / gem.norm_type)
    torch.testing.assert_close(gem(x), authors)
    ours, theirs = (torch.autograd.grad(y.sum(), (x, gem.norm_type)) for y in (gem(x), authors))
    torch.testing.assert_close(ours, theirs)
    assert (ours[0][x < 1e-3] == 0).all()


def test_gem_without_eps_takes_sizes() -> None:
    x = image() - 1
    y = GeM2d(norm_type=2.0, eps=0).double()(x)
    torch.testing.assert_close(y, x.square().mean((2, 3)).sqrt())


@each_channels
@each_layer
def test_gradients(name: str, channels: int | None) -> None:
    check_gradients(LAYERS[name](channels), image(2, 3, 3, 2))


@each_layer
def test_the_argument_is_learned(name: str) -> None:
    """Gradient descent comes closer to what another layer has."""
    x = image()
    teacher, layer = (LAYERS[name](**{ARGUMENT[name]: v}).double() for v in (4.0, 2.0))
    descent = torch.optim.SGD(layer.parameters(), lr=1.0)
    before = getattr(layer, ARGUMENT[name]).item()
    losses = []
    for _ in range(20):
        descent.zero_grad()
        loss = nn.functional.mse_loss(layer(x), teacher(x))
        loss.backward()
        descent.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert before < getattr(layer, ARGUMENT[name]).item() < 4.0


@each_layer
def test_shapes(name: str) -> None:
    for channels, extent in ((None, ()), (3, (3,))):
        layer = LAYERS[name](channels)
        assert getattr(layer, ARGUMENT[name]).shape == extent
        assert layer(image().float()).shape == (2, 3)
        assert LAYERS[name](channels, keepdims=True)(image().float()).shape == (2, 3, 1, 1)
        assert LAYERS[name](channels, keepdims=True)(image()[0].float()).shape == (3, 1, 1)
    check_unbatched(layer, image().float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@each_layer
def test_small_dtypes(name: str, dtype: torch.dtype) -> None:
    layer = LAYERS[name](3)
    y = layer(image().to(dtype))
    assert y.dtype == dtype
    expected = layer.double()(image().to(dtype).double())
    torch.testing.assert_close(y.double(), expected, rtol=torch.finfo(dtype).eps * 4, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1.0, -1.0, 1e30, -1e30])
@each_channels
@each_layer
def test_standard_operators_compute_the_same(
    name: str, channels: int | None, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operations for other devices and for export; values whose powers overflow, too."""
    layer = LAYERS[name](channels, **{ARGUMENT[name]: 2.5}).double()
    if name == "GeM2d":
        layer.eps = 0
    elif abs(scale) < 1:
        return  # of inputs so close together only the kernels take the logarithm exactly
    elif scale < 0:
        nn.init.constant_(layer.r, -2.5)
    x = (image() - 1 if abs(scale) == 1 else image()) * scale
    results = []
    for ours in (True, False):
        if not ours:
            monkeypatch.setattr("poolgrad.torch.layers.power.pools", lambda x: False)
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        results.append((y, torch.autograd.grad(y.sum(), (leaf, *layer.parameters()))))
    (y, gradients), (theirs, their_gradients) = results
    torch.testing.assert_close(theirs, y, rtol=1e-12, atol=0)
    torch.testing.assert_close(their_gradients, gradients, rtol=1e-9, atol=1e-12)


WITHOUT_KERNELS: dict[str, Any] = {
    "compiled": lambda gradient, layer: torch.compile(gradient(layer), backend="aot_eager"),
    "exported": lambda gradient, layer: gradient(
        torch.export.export(layer, (torch.rand(1, 2, 3, 3),)).module()
    ),
    "traced": lambda gradient, layer: gradient(
        torch.jit.trace(layer, (torch.rand(1, 2, 3, 3),), check_trace=False)
    ),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "way", [*(pytest.param(w, marks=pytest.mark.slow) for w in ("compiled", "exported")), "traced"]
)
@pytest.mark.parametrize("layer", [GeM2d(eps=0), GeM2d(2, norm_type=20.0), LogSumExp2d(2)], ids=str)
def test_maps_of_one_value_have_the_gradient_of_the_kernels(layer: Any, way: str) -> None:
    def gradient(layer: Any) -> Any:
        return torch.func.grad(lambda x: layer(x).sum())

    torch.compiler.reset()
    run = WITHOUT_KERNELS[way](gradient, layer)
    for x in (torch.zeros(1, 2, 3, 3), torch.full((1, 2, 3, 3), 2.0)):
        torch.testing.assert_close(run(x), gradient(layer)(x))


EXTREMES = [
    [0.0] * 4, [2.0] * 4, [1.0, 1.001, 0.999, 1.0], [6e4, 6e4, 6e4, 1.0], [5.9e4, -5.9e4, 1.0, 0.0],
    [math.inf, 1.0, 2.0, 3.0], [-math.inf, 1.0, 2.0, 3.0], [6.1e-5, 0.0, 0.0, 0.0],
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "layer",
    [
        GeM2d(norm_type=20.0),
        GeM2d(norm_type=0.5, eps=0),
        GeM2d(eps=0),
        LogSumExp2d(),
        LogSumExp2d(r=-2.0),
    ],
    ids=str,
)
def test_extreme_values_without_kernels(
    layer: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.tensor(EXTREMES).to(dtype).reshape(-1, 1, 2, 2)
    finite = x[x.isfinite().flatten(1).all(1)]

    def computed() -> tuple[Any, ...]:
        leaf = finite.clone().requires_grad_()
        return layer(x), *torch.autograd.grad(layer(leaf).sum(), (leaf, *layer.parameters()))

    expected = computed()
    monkeypatch.setattr("poolgrad.torch.layers.power.pools", lambda x: False)
    close = {"rtol": 4 * torch.finfo(dtype).eps, "atol": 1e-6}
    for came, theirs in zip(computed()[:2], expected, strict=False):
        torch.testing.assert_close(came, theirs, **close)
    torch.testing.assert_close(computed()[2], expected[2], rtol=1e-3, atol=1e-6)


@each_channels
@each_layer
@exporters
def test_exported(name: str, channels: int | None, dynamo: bool) -> None:
    check_exported(LAYERS[name](channels), image().float(), dynamo)


@each_layer
def test_copies_and_compiler(name: str) -> None:
    check_copies(lambda: LAYERS[name](3), image().float())
    check_compiled(LAYERS[name](3), image().float())


@each_layer
def test_bad_arguments(name: str) -> None:
    layer, argument = LAYERS[name], ARGUMENT[name]
    for value in ("three", None, True, 1j, [1.0]):
        with pytest.raises(TypeError, match=f"^{argument} must be a number, got"):
            layer(**{argument: value})
    for value in (float("nan"), float("inf"), 0):
        with pytest.raises(ValueError, match=f"^{argument} must"):
            layer(**{argument: value})
    for value in ("three", 1.5, True):
        with pytest.raises(TypeError, match=r"^channels must be an integer, got"):
            layer(value)
    with pytest.raises(ValueError, match=r"^channels must be positive, got 0"):
        layer(0)
    with pytest.raises(TypeError, match=r"^keepdims must be True or False, got"):
        layer(keepdims=2)
    with pytest.raises(ValueError, match=r"^x must have 4 channels.*got 3 \(shape \(2, 3, 5, 4\)"):
        layer(4)(image())
    with pytest.raises(ValueError, match=r"^x must have the shape \(N, C, H, W\) or"):
        layer()(image(5, 4))
    with pytest.raises(ValueError, match=r"^x must have at least one channel, row and column"):
        layer()(torch.ones(2, 3, 0, 4))
    with pytest.raises(TypeError, match=r"^x must be a tensor of floating-point.*got torch.int64"):
        layer()(torch.ones(2, 3, 4, 4, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"^x must be a tensor, got .*list"):
        layer()([[1.0]])


def test_bad_powers() -> None:
    with pytest.raises(ValueError, match=r"^norm_type must be positive, got -1"):
        GeM2d(norm_type=-1)
    with pytest.raises(ValueError, match=r"^eps must not be negative, got -1"):
        GeM2d(eps=-1)
    gem = GeM2d()
    with torch.no_grad():
        gem.norm_type.fill_(-1.0)
    with pytest.raises(ValueError, match=r"^norm_type must be positive"):
        gem(image().float())
