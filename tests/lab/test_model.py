from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import poolgrad.torch
from poolgrad.lab import LabError, Settings
from poolgrad.lab.model import Design, Network, ScaledConv2d, Standardise
from poolgrad.lab.pools import HEADS, NAMES, build


def network(size: tuple[int, int] = (8, 8), channels: int = 1, **options: Any) -> Network:
    images = np.random.default_rng(0).integers(0, 17, (6, channels, *size), np.uint8)
    return Network(images, 10, Settings.from_options({"data": "images.npz", **options}))


@pytest.mark.parametrize(
    ("pool", "kind"),
    [
        ("max", poolgrad.torch.MaxPool2d),
        ("avg", poolgrad.torch.AvgPool2d),
        ("strided", nn.Conv2d),
    ],
)
def test_the_pooling_is_ours(pool: str, kind: type[nn.Module]) -> None:
    model = network(pool=pool)
    assert type(model.pool) is kind
    kinds = [type(layer) for layer in model.after]
    assert kinds.count(kind) == (1 if pool != "strided" else 3)
    assert poolgrad.torch.GlobalAvgPool2d in kinds
    assert not {nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d} & {*kinds, type(model.pool)}


@pytest.mark.parametrize("pool", ["max", "avg", "strided"])
@pytest.mark.parametrize(
    ("kernel", "stride", "maps"),
    [
        (1, 1, [(8, 8), (8, 8), (8, 8)]),
        (2, 2, [(8, 8), (4, 4), (2, 2)]),
        (2, 1, [(8, 8), (7, 7), (6, 6)]),
        (3, 2, [(8, 8), (4, 4), (2, 2)]),  # overlapping
        (3, 1, [(8, 8), (8, 8), (8, 8)]),
        (2, 3, [(8, 8), (3, 3), (1, 1)]),  # with gaps
        (4, 4, [(8, 8), (2, 2)]),  # the second time the windows would not fit
        (8, 8, [(8, 8), (1, 1)]),
        (7, 1, [(8, 8), (8, 8), (8, 8)]),
        (1, 8, [(8, 8), (1, 1)]),
    ],
)
def test_every_kernel_and_stride(
    pool: str, kernel: int, stride: int, maps: list[tuple[int, int]]
) -> None:
    model = network(pool=pool, kernel=kernel, stride=stride)
    assert model.maps == maps
    first = model.pool(model.before(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)))
    assert first.shape == (2, 32, *maps[1])
    scores = model(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    assert scores.shape == (2, 10)
    scores.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": 9}, "^--kernel 9 is too large: .* 8 x 8$"),
        ({"stride": 9}, "^--stride 9 is too large: .* 8 x 8$"),
        ({"kernel": 9, "stride": 1}, "^--kernel 9 "),
    ],
)
def test_windows_larger_than_the_images(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LabError, match=message):
        network(**options)


def test_larger_images_are_pooled_more_often() -> None:
    poolings = {side: len(network((side, side)).maps) - 1 for side in (4, 8, 16, 32, 64)}
    assert poolings == {4: 1, 8: 2, 16: 3, 32: 4, 64: 4}
    assert network((8, 64)).maps == [(8, 64), (4, 32), (2, 16)]


def test_the_strided_network_downsamples_alike_and_counts_its_weights() -> None:
    pooled, strided = network(pool="max", kernel=3), network(pool="strided", kernel=3)
    assert pooled.maps == strided.maps
    extra = sum(c * (c * 9 + 1) for c in (32, 64)[: len(pooled.maps) - 1])
    assert strided.parameter_count == pooled.parameter_count + extra


@pytest.mark.parametrize(
    ("images", "batch_size", "momentum"),
    [(126, None, 0.1), (126, 64, 0.5), (126, 126, 1.0), (640, 64, 0.1), (2000, 64, 0.1)],
)
def test_running_statistics_span_an_epoch_at_most(
    images: int, batch_size: int | None, momentum: float
) -> None:
    options = {} if batch_size is None else {"batch_size": batch_size}
    model = Network(np.zeros((images, 1, 8, 8)), 3, Settings.from_options(options))
    found = [layer.momentum for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert found == [momentum] * 3


def test_pixels_are_standardised_per_channel() -> None:
    images = np.random.default_rng(0).normal([3, -5], [1, 20], (50, 8, 8, 2)).transpose(0, 3, 1, 2)
    out = Standardise(images)(torch.from_numpy(images))
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.mean(dim=(0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    deviation = out.std(dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(deviation, torch.ones(2), atol=1e-5, rtol=0)


def test_a_constant_channel_is_no_division_by_zero() -> None:
    images = np.full((4, 1, 8, 8), 7, np.uint8)
    assert (Standardise(images)(torch.from_numpy(images)) == 0).all()


@pytest.mark.parametrize("pool", NAMES)
@pytest.mark.parametrize("size", [(8, 8), (11, 32)])
def test_every_downsampling_trains(pool: str, size: tuple[int, int]) -> None:
    model = network(size, 2, pool=pool)
    scores = model(torch.randint(0, 17, (3, 2, *size), dtype=torch.uint8))
    assert scores.shape == (3, 10)
    scores.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    if pool == "none":
        assert model.maps == [size] * len(model.maps)
        dilations = [m.dilation[0] for m in model.modules() if isinstance(m, nn.Conv2d)]
        assert dilations == [2**k for k in range(len(dilations))]


@pytest.mark.parametrize("pool", [name for name in NAMES if name != "none"])
@pytest.mark.parametrize("padding", ["zeros", "circular"])
def test_downsamplings_halve_any_map(pool: Any, padding: Any) -> None:
    layer = build(pool, 4, padding=padding).eval()
    for side in (2, 3, 4, 7, 16):
        height = layer(torch.rand(2, 4, side, 12)).shape[2]
        assert height in (side // 2, (side + 1) // 2)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_gives_a_score_for_each_class(head: str) -> None:
    model = network((16, 16), pool="avg", head=head)
    model(torch.zeros(2, 1, 16, 16, dtype=torch.uint8)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_standardised_weights_keep_the_variance_behind_a_relu() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 16, 24, 24)
    for _ in range(6):
        layer = ScaledConv2d(16, 16, 3, padding=1, padding_mode="circular")
        with torch.no_grad():
            layer.weight.mul_(7).add_(3)  # neither scale nor mean of the weights matters
            x = layer(x.relu())
    assert 0.4 < float(x.std()) < 2.5


def test_standardised_weights_do_not_see_the_batch() -> None:
    images = np.random.default_rng(0).integers(0, 17, (8, 1, 16, 16), np.uint8)
    settings = Settings.from_options({"data": "images.npz"})
    model = Network(images, 10, settings, Design((16, 32, 32), "weights"))
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in model.modules())
    assert len(model.maps) == 3
    batch = torch.from_numpy(images)
    torch.testing.assert_close(model(batch)[:1], model(batch[:1]))


def test_the_receptive_field_without_downsampling_is_that_of_the_others() -> None:
    """How far a pixel in the middle of the last map, before the head, looks to each side."""
    reach = {}
    for pool in ("none", "strided"):
        model = network((32, 32), pool=pool)
        inputs = torch.rand(1, 1, 32, 32, requires_grad=True)
        body = nn.Sequential(*model.before[1:], model.pool, *model.after[:-2]).eval()
        y = body(inputs)
        y[0, :, y.shape[2] // 2, y.shape[3] // 2].sum().backward()
        assert inputs.grad is not None
        reach[pool] = int((inputs.grad[0, 0].abs().sum(1) > 0).sum())
    assert abs(reach["none"] - reach["strided"]) <= 16
    assert min(reach.values()) >= 16
