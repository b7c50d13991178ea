"""Encoders and decoders (SegNet): our maxima with PyTorch's unpooling."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from poolgrad.torch import convert  # noqa: E402


class SegNet(nn.Module):
    """Three stages down and three up, which put values back where they came from."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        of = {name: getattr(nn, f"{name}{dims}d") for name in ("Conv", "MaxPool", "MaxUnpool")}
        channels = (1, 4, 6, 8)
        pairs = [*pairwise(channels)]
        self.down = nn.ModuleList(of["Conv"](i, o, 3, padding=1) for i, o in pairs)
        self.pools = nn.ModuleList(of["MaxPool"](2, 2, 0, 1, True) for _ in pairs)
        self.unpools = nn.ModuleList(of["MaxUnpool"](2) for _ in pairs)
        self.up = nn.ModuleList(of["Conv"](o, i, 3, padding=1) for i, o in reversed(pairs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = []
        for conv, pool in zip(self.down, self.pools, strict=True):
            size = x.shape[-(x.dim() - 2) :]
            x, where = pool(conv(x).relu())
            places.append((where, size))
        for unpool, conv in zip(self.unpools, self.up, strict=True):
            where, size = places.pop()
            x = conv(unpool(x, where, output_size=size))
        return x


def curve(dims: int, change: Callable[[SegNet], Any], steps: int = 10) -> list[float]:
    torch.manual_seed(0)
    net, x = SegNet(dims), torch.randn(2, 1, *(13, 12, 9)[:dims])
    change(net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        loss = (net(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_half_converted_network_trains_as_before(dims: int) -> None:
    expected = curve(dims, lambda net: None)
    assert expected[-1] < expected[0]
    changes: list[Callable[[SegNet], Any]] = [
        lambda net: convert(net.pools),
        lambda net: convert(net.pools[1]),
        convert,
        lambda net: convert(net, fuse=True),
    ]
    for change in changes:
        assert curve(dims, change) == expected
