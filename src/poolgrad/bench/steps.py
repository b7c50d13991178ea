"""A step of any network: what comes out, and what is kept on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch import Tensor, nn

# What makes a step, and the context that it is made in.
Call = tuple[Callable[[], list[Tensor]], Callable[[], AbstractContextManager[Any]]]


def forward(network: nn.Module, x: Tensor) -> list[Tensor]:
    """Every tensor in the outputs of the network."""
    return _tensors(network(x))


def infer(network: nn.Module, x: Tensor) -> list[Tensor]:
    """The outputs."""
    with torch.inference_mode():
        return forward(network, x)


def train(network: nn.Module, x: Tensor) -> list[Tensor]:
    """The outputs, then the gradients of the parameters."""
    network.zero_grad()
    outputs = forward(network, x)
    loss_of(outputs).backward()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    return [y.detach() for y in outputs] + gradients


def loss_of(outputs: list[Tensor]) -> Tensor:
    """Something that every output has a share in."""
    return torch.stack([y.square().mean() for y in outputs if y.requires_grad]).sum()


def _tensors(y: Any) -> list[Tensor]:
    if isinstance(y, Tensor):
        return [y]
    parts = y.values() if isinstance(y, Mapping) else y if isinstance(y, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def outcome(call: Call) -> list[Tensor]:
    """What comes out, with the same dropout each time."""
    torch.manual_seed(0)
    run, context = call
    with context():
        return run()


def kept_bytes(call: Call, network: nn.Module) -> int:
    """The bytes that are kept between forward and backward, each storage once, but no parameter."""
    own = _storages(network.parameters())
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages.update(_storages([tensor]))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outcome(call)
    return sum(size for place, size in storages.items() if place not in own)


def pooling_bytes(network: nn.Module, x: Tensor) -> int:
    """The bytes that only poolings keep."""
    pooling: dict[int, int] = {}
    others = _storages(network.parameters())
    nodes = [y.grad_fn for y in forward(network, x) if y.grad_fn is not None]
    seen = {*nodes}
    while nodes:
        node = nodes.pop()
        (pooling if is_pooling(node.name()) else others).update(_storages(_saved_by(node)))
        later = [n for n, _ in node.next_functions if n is not None and n not in seen]
        seen.update(later)
        nodes += later
    return sum(size for place, size in pooling.items() if place not in others)


def is_pooling(name: str) -> bool:
    """Whether an operator, or a node of autograd's graph, of this name pools."""
    return "pool" in name.lower()


def _saved_by(node: Any) -> list[Tensor]:
    saved = [*getattr(node, "saved_tensors", ())]
    for name in dir(node):
        if name.startswith("_saved_"):
            with suppress(RuntimeError):  # changed since, in place
                saved.append(getattr(node, name))
    return [tensor for tensor in saved if isinstance(tensor, Tensor)]


def _storages(tensors: Any) -> dict[int, int]:
    """The size of each memory that a tensor lies in."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}
