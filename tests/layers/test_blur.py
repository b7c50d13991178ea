"""Blurring layers: a depthwise binomial convolution, and what it leaves of high frequencies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.signal import convolve2d

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad.torch import BlurConv2d, BlurPool2d, MaxBlurPool2d  # noqa: E402
from poolgrad.torch.layers.blur import extend  # noqa: E402

ROWS = {
    1: [1],
    2: [1, 1],
    3: [1, 2, 1],
    4: [1, 3, 3, 1],
    5: [1, 4, 6, 4, 1],
    7: [1, 6, 15, 20, 15, 6, 1],
}
PAD_MODES: dict[str, Any] = {
    "reflect": "reflect", "replicate": "edge", "zeros": "constant", "circular": "wrap",
}  # fmt: skip


def maps(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "zeros", "circular"])
@pytest.mark.parametrize("filter_size", ROWS)
@pytest.mark.parametrize("size", [(9, 8), (3, 5), (1, 1), (2, 1)])
def test_it_is_a_binomial_convolution_of_the_padded_map(
    mode: str, filter_size: int, size: tuple[int, int]
) -> None:
    """By SciPy, of what NumPy pads: also where the map is smaller than the padding."""
    x = maps(2, 3, *size)
    row = np.array(ROWS[filter_size]) / 2 ** (filter_size - 1)
    around = ((filter_size - 1) // 2, filter_size // 2)
    pads = ((0, 0), (0, 0), around, around)
    padded = np.pad(x.numpy(), pads, mode=PAD_MODES[mode])
    y = BlurPool2d(filter_size, (2, 3), mode)(x)
    for n in range(2):
        for c in range(3):
            full = convolve2d(padded[n, c], np.outer(row, row), mode="valid")
            np.testing.assert_allclose(y[n, c], full[::2, ::3], atol=1e-14)


def test_it_is_pytorchs_depthwise_convolution() -> None:
    x = maps(2, 5, 8, 8)
    conv = nn.Conv2d(5, 5, 3, 2, 1, groups=5, bias=False, padding_mode="reflect").double()
    row = torch.tensor([1.0, 2.0, 1.0])
    conv.weight.data[:] = torch.outer(row, row) / 16
    torch.testing.assert_close(BlurPool2d()(x), conv(x))


@pytest.mark.parametrize("filter_size", ROWS)
@pytest.mark.parametrize("k", [9, 11, 13, 15])
def test_aliases_fall_as_the_response_of_the_filter_says(filter_size: int, k: int) -> None:
    """A wave of k periods in 32 pixels has k - 16 periods in the 16 that a stride of 2 keeps.

    It is left ``cos(pi k / 32) ** (filter_size - 1)`` of it: all by a bare stride, 0.5 % at k = 15
    by a filter of 3.
    """
    wave = torch.cos(2 * math.pi * k * torch.arange(32, dtype=torch.float64) / 32 + 0.3)
    x = wave.expand(1, 1, 32, 32)
    kept = BlurPool2d(filter_size, 2, "circular")(x)
    bare = BlurPool2d(1, 2, "circular")(x)
    torch.testing.assert_close(bare, x[..., ::2, ::2])

    def alias(y: Any) -> float:
        return torch.fft.fft(y[0, 0, 0])[k - 16].abs().item()

    response = math.cos(math.pi * k / 32) ** (filter_size - 1)
    assert alias(bare) == pytest.approx(8)
    assert alias(kept) / alias(bare) == pytest.approx(response, rel=1e-9)


def test_the_highest_frequency_vanishes() -> None:
    board = (torch.arange(8)[:, None] + torch.arange(8)) % 2
    x = (2.0 * board - 1).expand(1, 2, 8, 8)
    assert (BlurPool2d(1)(x) == -1).all()
    assert (BlurPool2d(2, padding_mode="circular")(x) == 0).all()
    assert (BlurPool2d(3)(x) == 0).all()


@pytest.mark.parametrize("filter_size", [3, 5])
def test_constants_stay(filter_size: int) -> None:
    for mode in ("reflect", "replicate", "circular"):
        y = BlurPool2d(filter_size, padding_mode=mode)(torch.full((1, 2, 7, 6), 3.0))
        assert y.shape == (1, 2, 4, 3)
        assert (y == 3).all()


def test_the_maximum_is_blurred() -> None:
    x = maps(2, 3, 9, 8)
    dense = torch.nn.functional.max_pool2d(x, (3, 2), 1)
    expected = BlurPool2d(5, 2, "replicate")(dense)
    assert torch.equal(MaxBlurPool2d((3, 2), 2, 5, "replicate")(x), expected)
    assert torch.equal(dense, poolgrad.max_pool2d(x, (3, 2), 1))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_small_maps(size: int) -> None:
    """As deep layers of small images have: a window larger than the map is the map."""
    x = maps(2, 3, size, size).requires_grad_()
    for layer in (BlurPool2d(), MaxBlurPool2d(), MaxBlurPool2d(3)):
        y = layer(x)
        assert y.shape[-1] >= 1
        assert y.isfinite().all()
        assert (torch.autograd.grad(y.sum(), x)[0] != 0).any()


def test_convolution_then_relu_then_blur() -> None:
    torch.manual_seed(0)
    layer = BlurConv2d(3, 4, 3, stride=2, padding=1, filter_size=5).double()
    x = maps(2, 3, 8, 8)
    expected = BlurPool2d(5)(torch.relu(layer.conv(x)))
    assert torch.equal(layer(x), expected)
    assert layer.conv.stride == (1, 1)
    assert layer(x).min() >= 0
    assert BlurConv2d(3, 4, 3, bias=False).conv.bias is None


def test_circular_convolution_and_blur_commute_with_shifts_of_the_stride() -> None:
    layer = BlurConv2d(3, 4, 3, padding=1, padding_mode="circular").double()
    x = maps(2, 3, 8, 8)
    moved = layer(x.roll((2, 4), (-2, -1)))
    torch.testing.assert_close(moved, layer(x).roll((1, 2), (-2, -1)))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "zeros", "circular"])
def test_padding_is_numpys(mode: str) -> None:
    for shape in ((1, 2, 1, 5), (2, 3, 4), (1, 1, 2, 2)):
        x = maps(*shape)
        pads = ((0, 0),) * (x.dim() - 2) + ((3, 4), (2, 5))
        expected = np.pad(x.numpy(), pads, mode=PAD_MODES[mode])
        np.testing.assert_array_equal(extend(x, (3, 4), (2, 5), mode), expected)


def test_blurring_is_smoother_than_a_stride() -> None:
    """What the layer is for: a shift by one pixel changes the output less."""
    x = torch.rand(4, 8, 32, 32, generator=torch.Generator().manual_seed(1))

    def changes(layer: nn.Module) -> float:
        y = layer(x)
        return float((layer(x.roll(1, -1)) - y).abs().mean() / y.std())

    blurred = changes(MaxBlurPool2d(filter_size=5, padding_mode="circular"))
    assert blurred < 0.8 * changes(nn.MaxPool2d(2))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"filter_size": 0}, "filter_size must be positive, got 0"),
        ({"filter_size": 2.5}, "filter_size must be an integer"),
        ({"stride": 0}, "stride must be positive"),
        ({"stride": (1, 2, 3)}, "stride must be an integer or a sequence of 2 integers"),
        ({"padding_mode": "mirror"}, "padding_mode must be one of 'reflect', 'replicate'"),
        ({"padding_mode": 1}, "padding_mode must be one of"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], text: str) -> None:
    for layer in (BlurPool2d, MaxBlurPool2d, lambda **k: BlurConv2d(1, 1, 3, **k)):
        with pytest.raises((TypeError, ValueError), match=text):
            layer(**arguments)


def test_bad_channels_of_the_convolution() -> None:
    with pytest.raises(ValueError, match="in_channels must be positive, got 0"):
        BlurConv2d(0, 1, 3)
    with pytest.raises(ValueError, match="x must have 3 channels, got"):
        BlurConv2d(3, 1, 3)(maps(1, 2, 4, 4))


# The filter is computed in every call


@pytest.mark.parametrize("make", [BlurPool2d, MaxBlurPool2d, lambda: BlurConv2d(2, 2, 1)])
@pytest.mark.parametrize("way", ["to_empty", "assign", "half", "meta"])
def test_the_filter_survives_what_replaces_tensors(make: Any, way: str) -> None:
    layer, x = make(), torch.rand(1, 2, 6, 6)
    expected, state = layer(x), layer.state_dict()
    if way == "half":
        for parameter in layer.parameters():
            nn.init.ones_(parameter)
        expected = layer(x)
        layer = layer.half().float()
    elif way == "assign":
        with torch.device("meta"):
            layer = make()
        layer.load_state_dict(state, assign=True)
    else:
        with torch.device("meta" if way == "meta" else "cpu"):
            layer = make()
        layer.to_empty(device="cpu")
        layer.load_state_dict(state)
    assert torch.equal(layer(x), expected)
    assert not [*layer.buffers()]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("filter_size", [*range(1, 16)])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_weights_of_the_filter_sum_to_one(dtype: Any, filter_size: int, autocast: bool) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y = BlurPool2d(filter_size)(torch.full((1, 1, 16, 16), 1.0, dtype=dtype))
    # From a size of 14 on, partial sums have more bits than float32.
    rounding = 1e-6 if dtype == torch.float32 and filter_size > 13 else 0
    torch.testing.assert_close(y, torch.ones(1, 1, 8, 8, dtype=dtype), rtol=0, atol=rounding)


def test_a_filter_made_in_inference_mode_is_not_kept() -> None:
    with torch.inference_mode():
        BlurPool2d()(torch.ones(1, 1, 4, 4))
    x = torch.ones(1, 1, 4, 4, requires_grad=True)
    BlurPool2d()(x).sum().backward()
    assert x.grad.sum() == 4
