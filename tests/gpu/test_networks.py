"""Networks on the Triton kernels: what changes them, and what runs around them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from robustness.calls import example  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from poolgrad.functional import FUNCTIONS  # noqa: E402
from poolgrad.torch import accelerate, convert  # noqa: E402


def network() -> nn.Module:
    """Layers that pool in four ways, two of them behind a ReLU."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.AvgPool2d(3, 1, 1), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(16, 2),
    )  # fmt: skip


def step(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """Outputs and gradients of one step."""
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return y.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)


def assert_same_step(model: nn.Module, changed: nn.Module, x: Tensor, **close: float) -> None:
    for expected, found in zip(step(model, x), step(changed, x), strict=True):
        torch.testing.assert_close(found, expected, **close)


@pytest.fixture
def images(device: str) -> Tensor:
    return torch.randn(2, 3, 16, 12, generator=torch.manual_seed(1)).to(device)


@pytest.mark.parametrize("fuse", [False, True])
def test_converted_networks(fuse: bool, images: Tensor, device: str, on_triton: list[str]) -> None:
    model = network().to(device)
    changed = deepcopy(model)
    report = convert(changed, fuse=fuse)
    assert len(report.replaced) == 4
    assert len(report.fused) == 2 * fuse
    assert_same_step(model, changed, images, rtol=1e-5, atol=1e-6)
    largest = "relu_max" if fuse else "max"
    assert on_triton[:4] == [largest, largest, "avg", "max"]
    assert len(on_triton) == 8  # forward and backward


def test_accelerated_functions(images: Tensor, device: str, on_triton: list[str]) -> None:
    model = network().to(device)
    expected = step(model, images)
    with accelerate():
        found = step(model, images)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert {"max", "avg"} <= set(on_triton)


def test_kernels_of_gpus_are_registered_and_given_back(
    images: Tensor, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as PyTorch has kernels of GPUs here: those that it composes.

    Fractional windows, which have none here, are left to PyTorch: poolgrad has none for GPUs.
    """
    from poolgrad.torch import accelerate as module

    source = vars(sys.modules[module.__module__])
    names = ("max_pool1d", "max_pool2d", "fractional_max_pool2d")
    assert {*names} < {*source["_OPERATORS"]}
    monkeypatch.setitem(source, "_OPERATORS", names)
    monkeypatch.setitem(source, "_devices", lambda: [source["_CPU"], source["_GPU"]])
    kernels = [torch.library.get_kernel("aten::max_pool2d", key) for key in source["_GPU"]]
    with module():
        changed = [torch.library.get_kernel("aten::max_pool2d", key) for key in source["_GPU"]]
        found = nn.functional.max_pool2d(images, 2)
    restored = [torch.library.get_kernel("aten::max_pool2d", key) for key in source["_GPU"]]
    assert torch.equal(found, nn.functional.max_pool2d(images, 2))
    assert [repr(k) for k in restored] == [repr(k) for k in kernels]
    assert all(repr(k) not in map(repr, kernels) for k in changed)


def test_mixed_precision(images: Tensor, device: str, on_triton: list[str]) -> None:
    """Pooling takes the type that the convolution before it gives."""
    model = network().to(device)
    changed = deepcopy(model)
    convert(changed)
    with torch.autocast(device, torch.bfloat16):
        made = nn.Sequential(*changed[:3])(images)
        expected = nn.Sequential(*model[:3])(images)
    assert made.dtype == torch.bfloat16
    assert torch.equal(made, expected)
    made.float().sum().backward()
    expected.float().sum().backward()
    assert torch.equal(changed[0].weight.grad, model[0].weight.grad)
    assert on_triton == ["max", "max"]


def test_distributed_data_parallel(
    images: Tensor, device: str, on_triton: list[str], tmp_path: Path
) -> None:
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    model = network().to(device)
    changed = deepcopy(model)
    convert(changed)
    file = f"file://{tmp_path}/rendezvous"
    distributed.init_process_group("gloo", init_method=file, rank=0, world_size=1)
    try:
        parallel = DistributedDataParallel(changed)
        assert_same_step(model, parallel, images, rtol=1e-5, atol=1e-6)
    finally:
        distributed.destroy_process_group()
    assert on_triton


# What adds by scatter, and what PyTorch refuses on CUDA under `use_deterministic_algorithms(True)`:
# on the CPU it refuses less, so its operators are watched. Sums of integers are deterministic.
REFUSED = {
    "index_add", "index_add_", "scatter_add", "scatter_add_",
    "put_", "histc", "bincount", "kthvalue", "median", "scatter_reduce", "scatter_reduce_",
    "_segment_reduce", "resize_",
    "avg_pool3d_backward", "max_pool3d_with_indices_backward", "max_unpool2d", "max_unpool3d",
    "adaptive_max_pool2d_backward", "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward", "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward",
}  # fmt: skip


class Watching(TorchDispatchMode):
    """The names of PyTorch's operators with floating tensors, as they run, also inside of ours."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._key = device.upper()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "poolgrad":
            keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, self._key))
            with self:
                return torch.library.get_kernel(func, self._key).call_boxed(keys, *args)
        if any(isinstance(a, Tensor) and a.is_floating_point() for a in args):
            self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def differentiate(name: str, device: str) -> None:
    shape, kwargs = example(name)
    x = torch.tensor(np.random.default_rng(3).random(shape), device=device, requires_grad=True)
    tensors = {
        k: torch.tensor(v, device=device) if isinstance(v, np.ndarray) else v
        for k, v in kwargs.items()
    }
    y = FUNCTIONS[name](x, **tensors)
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    slope.square().sum().backward()


NAMES = [name for name in FUNCTIONS if not name.startswith("roi")]


@pytest.mark.parametrize("way", ["on_triton", "on_portable"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_refused_in_deterministic_mode(
    name: str, way: str, device: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(way)
    watching = Watching(device)
    with deterministic(), watching:
        differentiate(name, device)
    assert "sum" in watching.names
    assert not watching.names & (REFUSED | {"cumsum"})
