"""Checks the layers of `poolgrad.torch.layers` with finite differences and repeated calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poolgrad.tools.check.cases import distinct
from poolgrad.tools.check.gradients import Gradients
from poolgrad.torch import layers

_STEP = 1e-6  # of the central differences
_SEED = 5  # of parameters and random draws


class LayerCase(NamedTuple):
    """A layer, and an input for it.

    Attributes
    ----------
    make : callable
        Returns the layer, with new parameters. The random draws of a layer must be repeatable: its
        generator is an integer seed or PyTorch's default generator.
    shape : tuple of int
        Shape of the input; its elements are distinct, and their differences are large against a
        step of a finite difference.
    others : callable
        Returns further arguments of a call, which are not differentiated.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (2, 2, 6, 6)
    others: Callable[[], tuple[Any, ...]] = tuple


def _table() -> tuple[Tensor]:
    """Return boxes in both images of an input; some overlap, or lie partly outside."""
    first, second = [0, 0.3, 1.2, 3.6, 4.1], [0, 2.0, 2.5, 7.5, 5.0]
    return (torch.tensor([first, [1, -2.4, 0.0, 2.6, 9.0], second]),)


def _listed() -> tuple[list[Tensor]]:
    """Return boxes as a list with an array for each image; the second image has none."""
    (table,) = _table()
    return ([table[:, 1:], torch.empty(0, 4)],)


# For each layer its cases, with every argument that changes the computation.
LAYERS: dict[str, tuple[LayerCase, ...]] = {
    "BlurPool2d": (
        LayerCase(layers.BlurPool2d),
        LayerCase(lambda: layers.BlurPool2d(4, (2, 3), "circular"), (2, 2, 5, 7)),
        LayerCase(lambda: layers.BlurPool2d(7), (2, 2, 2, 3)),  # smaller than the reflection
    ),
    "MaxBlurPool2d": (
        LayerCase(layers.MaxBlurPool2d),
        LayerCase(lambda: layers.MaxBlurPool2d((3, 2), 1, 2, "replicate")),
    ),
    "BlurConv2d": (
        LayerCase(lambda: layers.BlurConv2d(2, 3, 3, padding=1)),
        LayerCase(lambda: layers.BlurConv2d(2, 3, 3, padding_mode="circular", bias=False)),
    ),
    "AdaptivePolyphasePool2d": (
        LayerCase(layers.AdaptivePolyphasePool2d),
        LayerCase(lambda: layers.AdaptivePolyphasePool2d((3, 2), 1, 3)),
        LayerCase(lambda: layers.AdaptivePolyphasePool2d(2, np.inf, 2, "reflect"), (2, 2, 5, 5)),
    ),
    "LIP2d": (
        LayerCase(lambda: layers.LIP2d(2)),
        LayerCase(lambda: layers.LIP2d(2, 2, padding=0, logits=nn.Conv2d(2, 2, 1))),
        LayerCase(lambda: layers.LIP2d(2, 3, 1, logits=nn.Conv2d(2, 1, 1))),
    ),
    "GatedPool2d": (
        LayerCase(lambda: layers.GatedPool2d(2)),
        LayerCase(lambda: layers.GatedPool2d(2, 3, 2, 1, per="channel")),
    ),
    "TreePool2d": (
        LayerCase(lambda: layers.TreePool2d(2)),
        LayerCase(lambda: layers.TreePool2d(2, 3, 2, 1, depth=3, per="channel")),
    ),
    "GeM2d": (
        LayerCase(layers.GeM2d),
        LayerCase(lambda: layers.GeM2d(2, 1.5, True, eps=0)),
    ),
    "LogSumExp2d": (
        LayerCase(layers.LogSumExp2d),
        LayerCase(lambda: layers.LogSumExp2d(2, -2.0, True)),
    ),
    "S3Pool2d": (
        LayerCase(lambda: layers.S3Pool2d(generator=3)),
        LayerCase(lambda: layers.S3Pool2d((3, 2), (1, 2), 4), (2, 2, 5, 7)),
        LayerCase(lambda: layers.S3Pool2d(grid_size=4).eval(), (2, 2, 5, 7)),
    ),
    "SpatialPyramidPool2d": (
        LayerCase(layers.SpatialPyramidPool2d),
        LayerCase(lambda: layers.SpatialPyramidPool2d((3, 1), "avg"), (2, 2, 5, 7)),
    ),
    "AttentionPool2d": (
        LayerCase(lambda: layers.AttentionPool2d(4, (3, 2), heads=2), (2, 4, 3, 2)),
        LayerCase(lambda: layers.AttentionPool2d(2, 3, out_channels=3), (2, 2, 3, 3)),
    ),
    "AttentionPoolLatent": (
        LayerCase(lambda: layers.AttentionPoolLatent(4, heads=2), (2, 4, 3, 2)),
        LayerCase(lambda: layers.AttentionPoolLatent(2, 1, 3, 3), (2, 2, 3, 3)),
    ),
    "RoIPool2d": (
        LayerCase(lambda: layers.RoIPool2d(2), others=_table),
        LayerCase(lambda: layers.RoIPool2d((3, 2), 0.5), (2, 2, 5, 7), _listed),
    ),
    "RoIAlign2d": (
        LayerCase(lambda: layers.RoIAlign2d(2), others=_table),
        LayerCase(lambda: layers.RoIAlign2d((3, 2), 0.5, 2, True), (2, 2, 5, 7), _listed),
    ),
    "Head": tuple(
        LayerCase(partial(layers.make_head, name, 2, (3, 4), 3), (2, 2, 3, 4))
        for name in layers.HEADS
    ),
}


def prepared(case: LayerCase) -> tuple[nn.Module, NDArray[Any]]:
    """Return the layer in float64, and its input.

    Noise is added to the initial parameters, because a closed gate or a convolution of zeros would
    hide a wrong gradient.
    """
    with _seeded(), torch.no_grad():
        layer = case.make().double()
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return layer, distinct(case.shape, "float64") / 2


def call(case: LayerCase, layer: nn.Module, x: Tensor) -> Tensor:
    """Return the output of a layer, with the same random draws in every call."""
    with _seeded():
        y: Tensor = layer(x, *case.others())
    return y


@contextmanager
def _seeded() -> Iterator[None]:
    """Seed PyTorch's CPU generator only; `torch.manual_seed` seeds all devices, which is slow."""
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(_SEED)
    try:
        yield
    finally:
        generator.set_state(state)


def answer(case: LayerCase, layer: nn.Module, x: NDArray[Any]) -> tuple[Gradients, NDArray[Any]]:
    """Return the output, the gradients by PyTorch, and the cotangent."""
    leaf = torch.tensor(x, requires_grad=True)
    y = call(case, layer, leaf)
    gy = np.random.default_rng(y.numel()).normal(1, 0.5, y.shape)
    names, parameters = zip(*layer.named_parameters(), strict=True) if _learns(layer) else ((), ())
    gx, *others = torch.autograd.grad(
        y, (leaf, *parameters), torch.from_numpy(gy), allow_unused=True, materialize_grads=True
    )
    gradients = {name: g.numpy() for name, g in zip(names, others, strict=True)}
    return Gradients(y.detach().numpy(), gx.numpy(), gradients), gy


def _learns(layer: nn.Module) -> bool:
    return next(layer.parameters(), None) is not None


@torch.no_grad()
def differences(
    case: LayerCase, layer: nn.Module, x: NDArray[Any], gy: NDArray[Any]
) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """Compute the gradients of input and parameters by central differences."""
    tensor, cotangent = torch.tensor(x), torch.from_numpy(gy)

    def slopes(values: Tensor) -> NDArray[Any]:
        flat, found = values.view(-1), np.zeros(values.numel())
        for i in range(len(flat)):
            here = flat[i].item()
            flat[i] = here + _STEP
            above = call(case, layer, tensor)
            flat[i] = here - _STEP
            below = call(case, layer, tensor)
            flat[i] = here
            found[i] = ((above - below) * cotangent).sum().item() / (2 * _STEP)
        return found.reshape(values.shape)

    return slopes(tensor), {name: slopes(p.data) for name, p in layer.named_parameters()}


def same(a: Gradients, b: Gradients) -> bool:
    """Whether two answers are equal to the last bit."""
    return (
        np.array_equal(a.y, b.y)
        and np.array_equal(a.gx, b.gx)
        and all(np.array_equal(g, b.parameters[name]) for name, g in a.parameters.items())
    )
