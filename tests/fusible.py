"""Networks whose ReLUs and maxima may become one, and some whose may not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Blocks(nn.Module):
    """Its own code calls ReLUs and maxima, two of them in training only."""

    def __init__(self, *, inplace: bool = False) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(1, 4, 3), nn.ReLU(inplace)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.beside, self.beside_relu, self.beside_pool = (
            nn.Conv2d(4, 4, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu(self.conv(x)))
        if self.training:
            return x.sum() + self.beside_pool(self.beside_relu(self.beside(x))).sum()
        return x


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(True), nn.MaxPool2d(2))
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.pool(self.relu(x)) if x.sum() > 0 else x


def row(*between: nn.Module, inplace: bool = False, pool: nn.Module | None = None) -> nn.Sequential:
    pool = nn.MaxPool2d(2) if pool is None else pool
    return nn.Sequential(nn.Conv2d(1, 4, 3), *between, nn.ReLU(inplace), pool)


def image() -> torch.Tensor:
    return torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def outcome(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The outputs, and the gradients of the input and of all parameters."""
    net.zero_grad()
    leaf = x.clone().requires_grad_()
    y = net(leaf * 1)
    y.square().sum().backward()
    return [y.detach(), leaf.grad, *(p.grad for p in net.parameters() if p.grad is not None)]


def kept(net: nn.Module, x: torch.Tensor) -> int:
    """The bytes that are kept for the way back."""
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        net(x)
    return sum(sizes.values())


def operators(graph: Any) -> list[str]:
    """The operators of an exported or a TorchScript graph; its text also has source paths."""
    if isinstance(graph, torch.fx.Graph):
        return [str(node.target) for node in graph.nodes if node.op == "call_function"]
    made: list[str] = []
    blocks = [graph]
    while blocks:
        for node in blocks.pop().nodes():
            made.append(node.pyname() if node.kind() == "prim::PythonOp" else node.kind())
            blocks += node.blocks()
    return made


def assert_same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


class Code(nn.Module):
    """What is in `forward` is all that it does with a ReLU and a maximum."""

    def __init__(
        self, forward: Callable[[Any, torch.Tensor], Any], *, inplace: bool = False
    ) -> None:
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(1, 4, 3), nn.ReLU(inplace), nn.MaxPool2d(2)
        self.way = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.way(self, x)


def _read_twice(net: Any, x: torch.Tensor) -> torch.Tensor:
    between = net.relu(net.conv(x))
    return net.pool(between) + between[..., ::2, ::2]


def called_twice(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.pool(net.relu(net.conv(x))) + net.pool(net.conv(x))


def _relu_twice(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.pool(net.relu(net.conv(x))) + net.relu(net.conv(x))[..., ::2, ::2]


def _given_back(net: Any, x: torch.Tensor) -> Any:
    between = net.relu(net.conv(x))
    return torch.cat([net.pool(between).flatten(), between.flatten()])


def _other_in_training(net: Any, x: torch.Tensor) -> torch.Tensor:
    between = net.relu(net.conv(x))
    return net.pool(between) + (between.sum() if net.training else 0)


def _function(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.pool(net.conv(x).relu())


def overwritten(net: Any, x: torch.Tensor) -> torch.Tensor:
    made = net.conv(x)
    return net.pool(net.relu(made)) + made[..., ::2, ::2]


def changed_between(net: Any, x: torch.Tensor) -> torch.Tensor:
    made = net.conv(x)
    between = net.relu(made)
    made.sub_(1)
    return net.pool(between) + made[..., ::2, ::2]


NOT_ALONE = [_read_twice, _relu_twice, _given_back, _other_in_training, _function]
