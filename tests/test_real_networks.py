"""Networks that nobody here wrote: the same numbers, gradients and losses after our one line.

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

pytestmark = pytest.mark.filterwarnings("ignore")  # the networks' own


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
NOT_FUSED = ("MobileNet", "NASNet", "U-Net", "U-Net of volumes")  # no maximum reads a ReLU alone
EXACT = ("VGG-11", "U-Net", "U-Net of volumes")  # these only take maxima


def losses(network: nn.Module, x: Tensor, steps: int = 10) -> Tensor:
    """A training curve, with the same dropout each time."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(network.parameters(), 1e-4)
    curve = []
    for _ in range(steps):
        outputs = network(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = torch.stack([(y - 1).square().mean() for y in outputs]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.detach())
    return torch.stack(curve)


@pytest.mark.parametrize("name", NETWORKS)
def test_ten_steps_of_training(name: str) -> None:
    """In float64, as a difference may become ten times larger with each step.

    So it does in MobileNet, as PyTorch's own between one thread and two: 7e-16 after a step, 1e-5
    after ten.
    """
    theirs, x = NETWORKS[name]()
    theirs, x = theirs.double(), x.double()
    converted, accelerated = copy.deepcopy(theirs), copy.deepcopy(theirs)
    report = convert(converted, fuse=True)
    assert report.replaced or report.calls
    assert bool(report.fused) == (name not in NOT_FUSED)
    expected = losses(theirs, x)
    assert (expected.diff() != 0).all()
    allowed = 0 * expected if name in EXACT else 1e-13 * 10.0 ** torch.arange(len(expected))
    assert ((losses(converted, x) - expected).abs() <= allowed * expected).all()
    with accelerate():
        assert ((losses(accelerated, x) - expected).abs() <= allowed * expected).all()
    copied = copy.deepcopy(theirs)
    convert(copied, fuse=True)
    with torch.inference_mode():
        y, z = theirs.eval()(x), copied.eval()(x)
    torch.testing.assert_close(z, y, **({"rtol": 0, "atol": 0} if name in EXACT else {}))
