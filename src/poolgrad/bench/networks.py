"""Whole networks, as they are and after our one line: how fast, how lean, and whether the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn

from poolgrad.bench.measure import median_and_spread, take_turns, using_threads
from poolgrad.bench.result import EAGER, Result
from poolgrad.bench.rows import Limits, chosen_by
from poolgrad.bench.steps import infer, kept_bytes, outcome, train
from poolgrad.torch import accelerate, convert

INSTALL = "pip install --no-deps pytorchcv monai"
_EXACT, _CLOSE = 0.0, 1e-6  # how far networks may be apart that only take maxima, and others
_NEVER_SLOWER = 0.98


@dataclass(frozen=True)
class Network:
    """A network of somebody else's, with random weights.

    Attributes
    ----------
    title : str
        What it is called.
    module, function, arguments
        What makes it.
    shape : tuple of int
        Of its input.
    training : bool
        Whether a step of training is timed, forward and backward, or inference.
    change : str
        Our line: ``"convert"``, ``"convert(fuse=True)"`` or ``"accelerate"``.
    limits : Limits
        What it must reach.
    """

    title: str
    module: str
    function: str
    shape: tuple[int, ...]
    training: bool = False
    limits: Limits = field(default_factory=Limits)
    change: Literal["convert", "convert(fuse=True)", "accelerate"] = "convert"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What it is found by."""
        return f"{self.title} {'training step' if self.training else 'inference'}, {self.change}"

    @property
    def package(self) -> str:
        """What has to be installed."""
        return self.module.partition(".")[0]

    def make(self) -> nn.Module:
        """The network."""
        torch.manual_seed(0)
        network: nn.Module = getattr(import_module(self.module), self.function)(**self.arguments)
        return network.train(self.training)


def _zoo(
    title: str, module: str, function: str, batch: int, faster: float, apart: float, side: int = 224
) -> Network:
    limits = Limits(faster=faster, apart=apart)
    return Network(
        title, f"pytorchcv.models.{module}", function, (batch, 3, side, side), limits=limits
    )


def _trained(network: Network, faster: float, kept: float | None = None) -> Network:
    limits = Limits(faster=faster, kept=kept, apart=network.limits.apart)
    return replace(network, training=True, limits=limits)


def _u_net(dims: int, shape: tuple[int, ...]) -> Network:
    return Network(
        f"{dims}-D U-Net",
        "monai.networks.nets.basic_unet",
        "BasicUNet",
        shape,
        limits=Limits(faster=_NEVER_SLOWER, apart=_EXACT),
        arguments={"spatial_dims": dims, "in_channels": 1, "out_channels": 2},
    )


_SQUEEZENET = _zoo("SqueezeNet 1.0", "squeezenet", "squeezenet_v1_0", 16, 1.5, _CLOSE)
_VGG16 = _zoo("VGG-16", "vgg", "vgg16", 4, 0, _EXACT)
_OTHERS = (
    _zoo("ResNet-50", "resnet", "resnet50", 4, _NEVER_SLOWER, _CLOSE),
    _zoo("DenseNet-121", "densenet", "densenet121", 4, _NEVER_SLOWER, _CLOSE),
    _zoo("MobileNet", "mobilenet", "mobilenet_w1", 8, _NEVER_SLOWER, _CLOSE),
    _u_net(2, (4, 1, 128, 128)),
    _u_net(3, (1, 1, 64, 64, 64)),
)
NETWORKS: tuple[Network, ...] = (
    _SQUEEZENET,
    _zoo("Inception v3", "inceptionv3", "inceptionv3", 8, 1.2, _CLOSE, side=299),
    _zoo("VGG-11", "vgg", "vgg11", 8, 1.15, _EXACT),
    _zoo("ResNet-18", "resnet", "resnet18", 16, 1.1, _CLOSE),
    replace(_zoo("AlexNet", "alexnet", "alexnet", 16, 1.3, _CLOSE), change="accelerate"),
    _trained(_SQUEEZENET, 1.12),
    *_OTHERS,
    *(_trained(network, _NEVER_SLOWER) for network in _OTHERS),
    _trained(_VGG16, _NEVER_SLOWER, kept=0.87),
    replace(_trained(_VGG16, _NEVER_SLOWER, kept=0.56), change="convert(fuse=True)"),
)


def select(parts: Sequence[str] = ()) -> list[Network]:
    """The networks with any of these parts in their names, or all.

    Raises
    ------
    ValueError
        If there is no network for one of the parts.
    ModuleNotFoundError
        If what makes one of them is not installed.
    """
    chosen = chosen_by(parts, NETWORKS, "network")
    for network in chosen:
        if not find_spec(network.package):
            raise ModuleNotFoundError(
                f"{network.title} comes from {network.package}, which is not installed: {INSTALL}"
            )
    return chosen


def measure(network: Network, threads: int, turns: int) -> Result:
    """Time a network as it is and with our line, in turns.

    Parameters
    ----------
    network : Network
        Which.
    threads : int
        PyTorch's, which are ours, too.
    turns : int
        How often each is timed.

    Returns
    -------
    Result
        `kept`: the bytes kept for backward over PyTorch's; `apart`: the norm of the difference
        between outputs, or between the gradients of all parameters, over that of PyTorch's.
    """
    theirs = network.make()
    ours, context = theirs, accelerate if network.change == "accelerate" else nullcontext
    if network.change != "accelerate":
        ours = deepcopy(theirs)
        convert(ours, fuse=network.change == "convert(fuse=True)")
    x = torch.randn(network.shape, generator=torch.Generator().manual_seed(0))
    run = train if network.training else infer
    with using_threads(threads):
        calls = {
            "poolgrad": (lambda: run(ours, x), context),
            EAGER: (lambda: run(theirs, x), nullcontext),
        }
        times = take_turns(calls, turns, slow=math.inf)
        apart = _apart(outcome(calls["poolgrad"]), outcome(calls[EAGER]))
        kept = None
        if network.training:
            kept = kept_bytes(calls["poolgrad"], ours) / kept_bytes(calls[EAGER], theirs)
    seconds, spread = median_and_spread(times["poolgrad"])
    return Result(
        name=network.name,
        dtype="float32",
        shape="x".join(map(str, network.shape)),
        seconds=seconds,
        spread=spread,
        floor=None,
        beside=None,
        peers={EAGER: median_and_spread(times[EAGER])[0]},
        limits=network.limits,
        kept=kept,
        apart=apart,
    )


def _apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The difference over the whole, of the outputs or of all gradients.

    A gradient of its own may be nothing but what rounding left of a zero.
    """
    pairs = list(zip(ours, theirs, strict=True))
    parts = (pairs[:1], pairs[1:])
    return max(_norm(a - b for a, b in part) / (_norm(b for _, b in part) or 1.0) for part in parts)


def _norm(tensors: Iterable[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(t.double())) for t in tensors))
