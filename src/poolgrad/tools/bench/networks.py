"""The table of networks that are timed unchanged and with poolgrad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from poolgrad.tools.bench.rows import chosen_by

if TYPE_CHECKING:
    from torch import nn

INSTALL = "pip install --no-deps pytorchcv monai"


@dataclass(frozen=True)
class Network:
    """A published network with random weights.

    Attributes
    ----------
    title : str
        Name of the network.
    module, function, arguments
        The call that builds the network.
    shape : tuple of int
        Shape of the input.
    training : bool
        Whether a step of training is timed, forward and backward, or inference.
    change : str
        The change: ``"convert"``, ``"convert(fuse=True)"`` or ``"accelerate"``.
    """

    title: str
    module: str
    function: str
    shape: tuple[int, ...]
    training: bool = False
    change: Literal["convert", "convert(fuse=True)", "accelerate"] = "convert"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the row."""
        return f"{self.title} {'training step' if self.training else 'inference'}, {self.change}"

    @property
    def package(self) -> str:
        """The package that has to be installed."""
        return self.module.partition(".")[0]

    def make(self) -> nn.Module:
        """Build the network with random weights."""
        import torch

        torch.manual_seed(0)
        network: nn.Module = getattr(import_module(self.module), self.function)(**self.arguments)
        return network.train(self.training)


def vgg16() -> nn.Module:
    """Build VGG-16 as torchvision does: its features are an `nn.Sequential`, which can be fused."""
    from torch import nn

    layers: list[nn.Module] = []
    channels = 3
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten()]
    for inputs in (512 * 7 * 7, 4096):
        layers += [nn.Linear(inputs, 4096), nn.ReLU(inplace=True), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


def _zoo(title: str, module: str, function: str, batch: int, side: int = 224) -> Network:
    return Network(title, f"pytorchcv.models.{module}", function, (batch, 3, side, side))


def _trained(network: Network) -> Network:
    return replace(network, training=True)


def _u_net(dims: int, shape: tuple[int, ...]) -> Network:
    return Network(
        f"{dims}-D U-Net",
        "monai.networks.nets.basic_unet",
        "BasicUNet",
        shape,
        arguments={"spatial_dims": dims, "in_channels": 1, "out_channels": 2},
    )


_SQUEEZENET = _zoo("SqueezeNet 1.0", "squeezenet", "squeezenet_v1_0", 16)
_VGG16 = Network("VGG-16", __name__, "vgg16", (4, 3, 224, 224))
_OTHERS = (
    _zoo("ResNet-50", "resnet", "resnet50", 4),
    _zoo("DenseNet-121", "densenet", "densenet121", 4),
    _zoo("MobileNet", "mobilenet", "mobilenet_w1", 8),
    _u_net(2, (4, 1, 128, 128)),
    _u_net(3, (1, 1, 64, 64, 64)),
)
NETWORKS: tuple[Network, ...] = (
    _SQUEEZENET,
    _zoo("Inception v3", "inceptionv3", "inceptionv3", 8, side=299),
    _zoo("VGG-11", "vgg", "vgg11", 8),
    _zoo("ResNet-18", "resnet", "resnet18", 16),
    replace(_zoo("AlexNet", "alexnet", "alexnet", 16), change="accelerate"),
    _trained(_SQUEEZENET),
    *_OTHERS,
    *(_trained(network) for network in _OTHERS),
    _trained(_VGG16),
    replace(_trained(_VGG16), change="convert(fuse=True)"),
)


def select(parts: Sequence[str] = ()) -> list[Network]:
    """Return the networks whose names contain any of these parts, or all networks.

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
