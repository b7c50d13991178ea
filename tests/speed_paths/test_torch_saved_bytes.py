"""What autograd keeps between forward and backward: routes, not inputs."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import poolgrad.torch as layers  # noqa: E402


def images(size: int = 9) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))


class Saved:
    """What autograd keeps between forward and backward."""

    def __init__(self, pool: Any, x: torch.Tensor) -> None:
        self.tensors: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t):
            self.y = pool(x)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self.tensors.append(tensor)
        return tensor


@pytest.mark.parametrize(
    "pool",
    [
        layers.MaxPool2d(2),
        layers.MaxPool2d(3, 2, 1, ties="zero"),
        layers.MaxPool2d(3, 2, return_indices=True),
        layers.AdaptiveMaxPool2d(3),
        layers.GlobalMaxPool2d(),
    ],
    ids=str,
)
@pytest.mark.parametrize("memory", ["contiguous_format", "channels_last"])
def test_backward_keeps_one_byte_of_route_for_each_output(pool: Any, memory: str) -> None:
    x = images(12).contiguous(memory_format=getattr(torch, memory)).requires_grad_()
    saved = Saved(pool, x)
    y = saved.y[0] if isinstance(saved.y, tuple) else saved.y
    assert [t.dtype for t in saved.tensors] == [torch.uint8]
    assert saved.tensors[0].numel() == y.numel()
    inputs = x.untyped_storage().data_ptr()
    assert saved.tensors[0].untyped_storage().data_ptr() != inputs
    y.sum().backward()
    assert x.grad.count_nonzero() > 0


def test_backward_of_split_keeps_bits_and_of_an_average_nothing() -> None:
    x = images(12).requires_grad_()
    saved = Saved(layers.MaxPool2d(3, ties="split"), x)  # nine places: two bytes of bits
    assert [(t.dtype, t.numel()) for t in saved.tensors] == [(torch.uint8, 2 * saved.y.numel())]
    assert Saved(layers.AvgPool2d(3), x).tensors == []
    assert Saved(layers.MaxPool2d(2), x.detach()).tensors == []  # nothing without a gradient


def test_wider_routes_only_for_large_windows() -> None:
    x = torch.randn(1, 1, 40, 40, requires_grad=True)
    for kernel, dtype in ((15, torch.uint8), (16, torch.uint16)):
        saved = Saved(layers.MaxPool2d(kernel, 1), x)
        assert [t.dtype for t in saved.tensors] == [dtype]
        saved.y.sum().backward()


def test_the_input_may_change_after_the_forward() -> None:
    """PyTorch's own refuses this backward: it kept the input."""
    leaf = images().requires_grad_()
    x = leaf * 1
    y = layers.MaxPool2d(2)(x)
    (expected,) = torch.autograd.grad(y.sum(), leaf, retain_graph=True)
    x.data.zero_()
    x.add_(1)
    y.sum().backward()
    assert torch.equal(leaf.grad, expected)
    assert expected.count_nonzero() == y.numel()
