"""The U-Net: shapes, gradients and the number of weights, for every downsampling."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from poolgrad.lab import LabError
from poolgrad.lab.pools import NAMES
from poolgrad.lab.segment.unet import (
    UNet,
    make_resampling,
    matched_widths,
    parameter_count,
)
from poolgrad.lab.segment.variants import DEFAULT_VARIANTS, REFERENCE, VARIANTS

WIDTHS = (4, 6, 8)


def test_the_table() -> None:
    assert set(DEFAULT_VARIANTS) == {"max_unpool", "max_upsample", "strided", "dilated"}
    assert set(NAMES) - set(VARIANTS) == {"max", "none"}  # max_upsample and dilated
    with pytest.raises(LabError, match=r"must be one of max_unpool, .*; got 'none'"):
        UNet(1, 2, "none", WIDTHS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_and_gradients(variant: str) -> None:
    torch.manual_seed(0)
    network = UNet(3, 4, variant, WIDTHS)
    with torch.no_grad():  # some begin with zeros, which stop gradients
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    for size in ((16, 16), (17, 23), (19, 16)):
        images = torch.randn(2, 3, *size, requires_grad=True)
        scores = network(images)
        assert scores.shape == (2, 4, *size)
        network.zero_grad()
        scores.square().mean().backward()
        assert images.grad is not None
        assert images.grad.abs().sum() > 0
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("variant", DEFAULT_VARIANTS)
def test_kernels(variant: str, kernel: int) -> None:
    network = UNet(1, 2, variant, WIDTHS, kernel)
    for size in ((16, 17), (21, 18)):
        assert network(torch.zeros(1, 1, *size)).shape == (1, 2, *size)


@pytest.mark.parametrize("variant", DEFAULT_VARIANTS)
def test_the_downsampling_carries_gradient_and_all_the_context(variant: str) -> None:
    """A far pixel changes a score, though two plain convolutions on each side do not reach it."""
    torch.manual_seed(0)
    network = UNet(1, 2, variant, WIDTHS).double()
    images = torch.randn(1, 1, 48, 48, dtype=torch.float64)
    images.requires_grad_()
    network(images)[0, :, 24, 24].sum().backward()
    assert images.grad is not None
    seen = images.grad[0, 0].nonzero()
    reach = (seen.max(0).values - seen.min(0).values + 1).tolist()
    assert min(reach) > 20  # 9 x 9 without the deeper levels


@pytest.mark.parametrize("variant", [*DEFAULT_VARIANTS, "lip", "gated", "tree"])
def test_as_many_weights(variant: str) -> None:
    widths = (8, 16, 32)
    budget = parameter_count(UNet(1, 2, REFERENCE, widths))
    chosen = matched_widths(1, 2, variant, widths)
    assert chosen[:2] == widths[:2]
    assert abs(parameter_count(UNet(1, 2, variant, chosen)) / budget - 1) < 0.03


def test_matching_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    matched_widths(1, 2, "lip", WIDTHS)
    assert torch.equal(torch.get_rng_state(), before)


def test_unpooling_returns_maxima_to_their_places() -> None:
    unpooling = make_resampling("max_unpool", 1, 1)
    unpooling.reduce = nn.Identity()
    x = torch.tensor([[1.0, 5, 2, 0, 1], [3, 4, 9, 1, 1], [1, 1, 1, 1, 1]])[None, None]
    pooled, indices = unpooling.down(x)
    assert pooled[0, 0].tolist() == [[5, 9]]
    back = unpooling.up(pooled, indices, (3, 5))[0, 0]
    assert back.tolist() == [[0, 5, 0, 0, 0], [0, 0, 9, 0, 0], [0, 0, 0, 0, 0]]
