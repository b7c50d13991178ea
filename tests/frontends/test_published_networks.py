"""Networks of other authors: the same outputs, gradients and losses after `convert`.

They come with `pip install --no-deps pytorchcv monai`, which the test extra has not.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
for package in ("pytorchcv", "monai"):
    pytest.importorskip(
        package, reason=f"{package} is not installed: pip install --no-deps {package}"
    )

from torch import Tensor, nn  # noqa: E402

from poolgrad.torch import accelerate, convert  # noqa: E402

# The networks' own warnings; tests/frontends/test_torch_segnet.py trains a small network.
pytestmark = pytest.mark.filterwarnings("ignore")


def _of(package: str, module: str, name: str, shape: tuple[int, ...], **arguments: Any) -> Any:
    def make() -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        network = getattr(import_module(f"{package}.{module}"), name)(**arguments)
        return network, torch.randn(shape)

    return make


def _zoo(module: str, name: str, side: int = 224, **arguments: Any) -> Any:
    return _of("pytorchcv.models", module, name, (1, 3, side, side), num_classes=10, **arguments)


def _monai(module: str, name: str, shape: tuple[int, ...], **arguments: Any) -> Any:
    return _of("monai.networks.nets", module, name, shape, in_channels=1, **arguments)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "AlexNet": _zoo("alexnet", "alexnet"),
    "VGG-11": _zoo("vgg", "vgg11"),
    "SqueezeNet": _zoo("squeezenet", "squeezenet_v1_1"),
    "ResNet-18": _zoo("resnet", "resnet18"),
    "DenseNet-121": _zoo("densenet", "densenet121"),
    "MobileNet": _zoo("mobilenet", "mobilenet_wd4"),
    "ShuffleNet": _zoo("shufflenet", "shufflenet_g1_wd4"),
    "Inception v3": _zoo("inceptionv3", "inceptionv3", 299),
    "NASNet": _zoo("nasnet", "nasnet_4a1056"),
    "VoVNet": _zoo("vovnet", "vovnet27s"),
    "U-Net": _monai("basic_unet", "BasicUNet", (2, 1, 64, 64), spatial_dims=2, out_channels=2),
    "U-Net of volumes": _monai(
        "basic_unet",
        "BasicUNet",
        (1, 1, 32, 32, 32),
        spatial_dims=3,
        out_channels=2,
        features=(8, 8, 16, 32, 64, 8),
    ),
    "DenseNet of volumes": _monai(
        "densenet", "DenseNet121", (2, 1, 32, 32, 32), spatial_dims=3, out_channels=2
    ),
    "DenseNet of signals": _monai(
        "densenet", "DenseNet121", (2, 1, 256), spatial_dims=1, out_channels=2
    ),
}
# Those with poolings that no other network has, and small ones; the others each night
EACH_TIME = (
    "AlexNet", "SqueezeNet", "ResNet-18", "U-Net", "U-Net of volumes", "DenseNet of signals",
)  # fmt: skip
FUSED = ("DenseNet of volumes", "DenseNet of signals")  # neighbours in an nn.Sequential
EXACT = ("VGG-11", "U-Net", "U-Net of volumes")  # these only take maxima


def losses(network: nn.Module, x: Tensor, steps: int) -> Tensor:
    """A training curve, with the same dropout each time."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    curve = []
    for _ in range(steps):
        outputs = network(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = torch.stack([(y - 1).square().mean() for y in outputs]).sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        curve.append(loss.detach())
    return torch.stack(curve)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow if n in EACH_TIME else pytest.mark.nightly)
        for n in NETWORKS
    ],
)
def test_steps_of_training(name: str) -> None:
    """To the bit where a network only takes maxima; else in float64.

    Normalised by what they have seen so far: by the images at hand, the last digit of an average
    grows in every step, as it does between one of PyTorch's threads and two.
    """
    theirs, x = NETWORKS[name]()
    theirs.eval()
    exact = name in EXACT
    if not exact:
        theirs, x = theirs.double(), x.double()
    converted, accelerated = copy.deepcopy(theirs), copy.deepcopy(theirs)
    report = convert(converted, fuse=True)
    assert report.replaced or report.calls
    assert bool(report.fused) == (name in FUSED)
    steps = 3 if name in EACH_TIME else 10
    expected = losses(theirs, x, steps)
    assert (expected.diff() != 0).all()
    allowed = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(losses(converted, x, steps), expected, **allowed)
    with accelerate():
        torch.testing.assert_close(losses(accelerated, x, steps), expected, **allowed)
