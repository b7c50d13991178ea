"""Runs a step of a network, and measures the bytes that it keeps for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch
from torch import Tensor, nn

# The function that runs a step, and the context in which it runs.
Call = tuple[Callable[[], list[Tensor]], Callable[[], AbstractContextManager[Any]]]


def forward(network: nn.Module, x: Tensor) -> list[Tensor]:
    """Return every tensor in the outputs of the network."""
    return _tensors(network(x))


def infer(network: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the outputs."""
    with torch.inference_mode():
        return forward(network, x)


def train(network: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the outputs, then the gradients of the parameters."""
    network.zero_grad()
    outputs = forward(network, x)
    loss_of(outputs).backward()
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    return [y.detach() for y in outputs] + gradients


def loss_of(outputs: list[Tensor]) -> Tensor:
    """Return a scalar that depends on every output."""
    return torch.stack([y.square().mean() for y in outputs if y.requires_grad]).sum()


def _tensors(y: Any) -> list[Tensor]:
    if isinstance(y, Tensor):
        return [y]
    parts = y.values() if isinstance(y, Mapping) else y if isinstance(y, list | tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def outcome(call: Call) -> list[Tensor]:
    """Run the step with the same dropout each time."""
    torch.manual_seed(0)
    run, context = call
    with context():
        return run()


def kept_bytes(call: Call, network: nn.Module) -> int:
    """Return the bytes kept for the backward pass: each storage once, without parameters."""
    own = _storages(network.parameters())
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages.update(_storages([tensor]))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outcome(call)
    return sum(size for address, size in storages.items() if address not in own)


def pooling_bytes(network: nn.Module, x: Tensor) -> int:
    """Return the bytes that only poolings keep."""
    pooling: dict[int, int] = {}
    others = _storages(network.parameters())
    nodes = [y.grad_fn for y in forward(network, x) if y.grad_fn is not None]
    visited = {*nodes}
    while nodes:
        node = nodes.pop()
        (pooling if is_pooling(node.name()) else others).update(_storages(_saved_by(node)))
        later = [n for n, _ in node.next_functions if n is not None and n not in visited]
        visited.update(later)
        nodes += later
    return sum(size for address, size in pooling.items() if address not in others)


def is_pooling(name: str) -> bool:
    """Whether the name of an operator or autograd node is that of a pooling."""
    return "pool" in name.lower()


def _saved_by(node: Any) -> list[Tensor]:
    saved = [*getattr(node, "saved_tensors", ())]
    for name in dir(node):
        if name.startswith("_saved_"):
            with suppress(RuntimeError):  # changed since, in place
                saved.append(getattr(node, name))
    return [tensor for tensor in saved if isinstance(tensor, Tensor)]


def _storages(tensors: Any) -> dict[int, int]:
    """Return the size of each storage by its address."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}
