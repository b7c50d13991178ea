"""Local importance-based pooling lies between average and maximum, as its logits say."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad.torch import LIP2d  # noqa: E402
from poolgrad.torch.layers.lip import lip_pool2d  # noqa: E402

WINDOWS = [(2, 2, 0), (3, 2, 1), ((3, 2), (1, 2), (1, 0))]
windows = pytest.mark.parametrize("window", WINDOWS, ids=str)


def maps(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def gradients(y: Any, x: Any) -> Any:
    return torch.autograd.grad((y * y.detach().cos()).sum(), x, retain_graph=True)[0]


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Any) -> Any:
        return self.factor * x


def both(x: Any, factor: float, window: Any) -> list[Any]:
    """By the function and by the layer, with logits of `factor` times the input."""
    layer = LIP2d(x.shape[-3], *window, logits=Times(factor))
    return [lip_pool2d(x, factor * x, *window), layer(x)]


@windows
def test_logits_of_zero_give_the_average(window: Any) -> None:
    x = maps(2, 3, 8, 7).requires_grad_()
    expected = poolgrad.avg_pool2d(x, *window, count_include_pad=False)
    for y in both(x, 0, window):
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(gradients(y, x), gradients(expected, x))


@windows
def test_logits_of_the_input_give_soft_pooling(window: Any) -> None:
    x = maps(2, 3, 8, 7).requires_grad_()
    expected = poolgrad.soft_pool2d(x, *window)
    for y in both(x, 1, window):
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(gradients(y, x), gradients(expected, x))


@windows
def test_large_logits_of_the_input_are_near_the_maximum(window: Any) -> None:
    x = maps(2, 3, 8, 7)
    most, mean = poolgrad.max_pool2d(x, *window), lip_pool2d(x, 0 * x, *window)
    before = mean
    for factor in (1, 5, 20, 100):
        for y in both(x, factor, window):
            assert (y <= most + 1e-12).all()
            assert (y >= before - 1e-12).all()
        before = y
    twenty = lip_pool2d(x, 20 * x, *window)
    # k inputs d below the maximum have the weight k exp(-20 d): k d exp(-20 d) < k / (20 e)
    assert (most - twenty).max() < 5 / (20 * 2.718)
    assert (most - twenty).mean() < 0.02
    torch.testing.assert_close(lip_pool2d(x, 1e5 * x, *window), most)


def test_huge_logits_do_not_overflow() -> None:
    x = maps(2, 3, 8, 8).float()
    offset = torch.tensor([-3e4, 0.0, 3e4])[:, None, None]
    torch.testing.assert_close(lip_pool2d(x, x + offset), lip_pool2d(x, x), rtol=1e-2, atol=1e-2)
    apart = 1e4 * maps(2, 3, 8, 8, seed=1).float()
    y = lip_pool2d(x.requires_grad_(), apart.requires_grad_())
    y.sum().backward()
    assert y.isfinite().all()
    assert x.grad.isfinite().all()
    assert apart.grad.isfinite().all()


def test_the_layer_begins_as_an_average() -> None:
    x = maps(2, 3, 9, 9)
    expected = poolgrad.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
    torch.testing.assert_close(LIP2d(3).double()(x), expected)


def trained(channels: int = 3) -> Any:
    torch.manual_seed(0)
    layer = LIP2d(channels).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
    return layer


def test_the_default_logits_are_those_of_the_authors() -> None:
    """A convolution of 3x3, instance normalisation, and 12 times a sigmoid."""
    layer, x = trained(), maps(2, 3, 8, 8)
    conv, norm = layer.logits.conv, layer.logits.norm
    y = torch.nn.functional.conv2d(x, conv.weight, padding=1)
    mean, variance = y.mean((2, 3), keepdim=True), y.var((2, 3), keepdim=True, unbiased=False)
    scaled = (y - mean) / (variance + 1e-5).sqrt()
    logits = 12 * (scaled * norm.weight[:, None, None] + norm.bias[:, None, None]).sigmoid()
    torch.testing.assert_close(layer.logits(x), logits)
    assert [tuple(p.shape) for p in layer.parameters()] == [(3, 3, 3, 3), (3,), (3,)]


def test_both_ways_to_average_agree() -> None:
    """The quotient of averages, for bounded logits, and the softmax of each window."""
    layer, x = trained(), maps(2, 3, 9, 8).requires_grad_()
    leaves = [x, *layer.parameters()]
    quotient, softmax = layer(x), lip_pool2d(x, layer.logits(x))
    torch.testing.assert_close(quotient, softmax)
    weights = torch.randn_like(quotient)
    for a, b in zip(
        torch.autograd.grad((quotient * weights).sum(), leaves),
        torch.autograd.grad((softmax * weights).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_small_floats_lose_no_more_than_their_rounding(dtype: Any) -> None:
    x = (100 * maps(2, 3, 8, 8)).to(dtype)
    layer = trained().to(dtype)
    expected = lip_pool2d(x.double(), layer.logits(x).double())
    torch.testing.assert_close(layer(x).double(), expected, rtol=0, atol=0.5)


def test_one_channel_of_logits_is_for_all() -> None:
    x, logits = maps(2, 3, 8, 8), maps(2, 1, 8, 8, seed=1)
    assert torch.equal(lip_pool2d(x, logits), lip_pool2d(x, logits.repeat(1, 3, 1, 1)))


def test_a_map_of_one_pixel_stays() -> None:
    x = maps(1, 3, 1, 1)
    torch.testing.assert_close(trained()(x), x)


def test_it_learns_which_inputs_matter() -> None:
    """Of values that carry a mark in another channel, whether large or small."""
    torch.manual_seed(1)
    marks = (torch.rand(16, 1, 8, 8) < 0.25).float()
    x = torch.cat((torch.randn(16, 1, 8, 8), marks), 1)
    target = lip_pool2d(x, 12 * marks, 2, 2, 0)[:, :1]
    layer = LIP2d(2, 2, 2, 0)
    descent = torch.optim.Adam(layer.parameters(), lr=0.02)

    def loss() -> Any:
        return nn.functional.mse_loss(layer(x)[:, :1], target)

    first = loss().item()
    for _ in range(250):
        descent.zero_grad()
        error = loss()
        error.backward()
        descent.step()
    assert error.item() < 0.3 * first


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: LIP2d(0), "channels must be positive, got 0"),
        (lambda: LIP2d(3, 0), "kernel_size must be positive"),
        (lambda: LIP2d(3, 3, 0), "stride must be positive"),
        (
            lambda: LIP2d(3, 3, 2, 2),
            r"padding must be .* half of kernel_size=\(3, 3\), got 2",
        ),
        (lambda: LIP2d(3, 3, 2, -1), "padding must be from 0"),
        (lambda: LIP2d(3, logits=torch.exp), "logits must be a module or None, got"),
        (lambda: LIP2d(3)(maps(1, 2, 4, 4)), "x must have 3 channels, got"),
        (
            lambda: LIP2d(3, 3, 2, 0)(maps(3, 2, 4)),
            r"kernel_size \(3, 3\) must fit into",
        ),
        (lambda: LIP2d(3, logits=nn.AvgPool2d(2))(maps(1, 3, 4, 4)), "logits must have the shape"),
        (lambda: lip_pool2d(maps(1, 3, 4, 4), maps(3, 4, 4)), "logits must have the shape of x"),
        (lambda: lip_pool2d(maps(1, 3, 4, 4), 0.0), "logits must be a tensor of floating-point"),
        (lambda: lip_pool2d(maps(4, 4), maps(4, 4)), r"x must have the shape \(N, C, H, W\) or"),
    ],
)
def test_bad_arguments(make: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        make()
