"""What only a GPU can show: CUDA graphs, streams, several devices, inductor, gradient scaling."""

from __future__ import annotations

import os
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("triton", reason="Triton is not installed")

from gpu_calls import CALLS, DETERMINED, made, name_of, outcome  # noqa: E402
from robustness.calls import example  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import poolgrad  # noqa: E402
from poolgrad.functional import FUNCTIONS  # noqa: E402
from poolgrad.torch import convert  # noqa: E402

# PyTorch uses the same GPU.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@pytest.fixture(autouse=True)
def _on_a_gpu(device: str) -> None:
    if device == "cpu":
        pytest.skip("needs a GPU: POOLGRAD_TEST_DEVICE=cuda")


def captured(run: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of a call, and what it writes to; kernels are compiled and loaded before."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
        with torch.cuda.graph(graph, stream=stream):
            written = run()
    torch.cuda.current_stream().wait_stream(stream)
    return graph, written


# PyTorch warns of gradients that are accumulated on another stream; here none is accumulated.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")
@pytest.mark.parametrize("call", DETERMINED, ids=name_of)
def test_cuda_graphs_replay_with_other_inputs(call: Any, device: str) -> None:
    pool, x = made(call, device)
    graph, written = captured(lambda: outcome(pool, x))
    with torch.no_grad():
        x.copy_(torch.randn(x.shape, generator=torch.manual_seed(6)))
    graph.replay()
    torch.cuda.synchronize()
    for found, expected in zip(written, outcome(pool, x), strict=True):
        assert torch.equal(found, expected)


def test_cuda_graphs_draw_other_numbers_in_each_replay(device: str) -> None:
    x = torch.rand(4, 8, 32, 32, device=device)
    graph, y = captured(lambda: poolgrad.stochastic_pool2d(x, 2))
    draws = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        draws.append(y.clone())
    assert not torch.equal(*draws)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("call", CALLS, ids=name_of)
def test_ten_runs_give_equal_bits(call: Any, channels_last: bool, device: str) -> None:
    """Of the output, the gradient, and the second derivatives."""
    pool, x = made(call, device, 256, channels_last)

    def bits() -> list[Tensor]:
        y = pool(x)
        gy = torch.linspace(-1, 1, y.numel(), device=device).view(y.shape).requires_grad_()
        (gx,) = torch.autograd.grad(y, x, gy, create_graph=True)
        second = torch.autograd.grad(gx.square().sum(), (x, gy), allow_unused=True)
        return [t.detach().view(torch.int32) for t in (y, gx, *second) if t is not None]

    first = bits()
    for _ in range(9):
        assert all(torch.equal(a, b) for a, b in zip(first, bits(), strict=True))


def test_launches_run_on_the_current_stream(device: str) -> None:
    """Behind a kernel that takes long, which another stream would not wait for."""
    x = torch.zeros(8, 16, 64, 64, device=device, requires_grad=True)
    outcome(lambda t: poolgrad.max_pool2d(t, 2), x)  # compiles
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        x[..., 1::2, 1::2] = 3
        with torch.enable_grad():
            y, gx = outcome(lambda t: poolgrad.max_pool2d(t, 2), x)
    stream.synchronize()
    assert bool((y == 3).all())
    assert torch.equal(gx, (x == 3).to(x.dtype))


def test_a_device_that_is_not_the_current_one(device: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.randn(2, 3, 16, 16, device=f"{device}:1", requires_grad=True)
    here = x.detach().to(f"{device}:0").requires_grad_()
    for pool in (poolgrad.max_pool2d, poolgrad.avg_pool2d, poolgrad.soft_pool2d):
        found = outcome(lambda t, pool=pool: pool(t, 3, 2, 1), x)
        expected = outcome(lambda t, pool=pool: pool(t, 3, 2, 1), here)
        for a, b in zip(found, expected, strict=True):
            assert a.device == x.device
            assert torch.equal(a.cpu(), b.cpu())


# Inductor warns of settings that it would rather have, such as TF32.
ignored = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@ignored
@pytest.mark.parametrize("call", DETERMINED, ids=name_of)
def test_inductor_gives_the_same(call: Any, device: str) -> None:
    pool, x = made(call, device)
    torch._dynamo.reset()
    compiled = torch.compile(lambda t: pool(t * 2) + 1, fullgraph=True, dynamic=False)
    expected = outcome(lambda t: pool(t * 2) + 1, x)
    for found, other in zip(outcome(compiled, x), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-5, atol=1e-6)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(4, 4, 3, padding=1), nn.AvgPool2d(2), nn.AdaptiveMaxPool2d(2),
    )  # fmt: skip


def images(device: str) -> Tensor:
    return torch.randn(2, 3, 16, 12, generator=torch.manual_seed(1)).to(device)


@ignored
def test_inductor_captures_a_converted_network_in_cuda_graphs(device: str) -> None:
    model, x = network().to(device), images(device).requires_grad_()
    expected = outcome(model, x)
    convert(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    for _ in range(3):  # warms up, captures, replays
        torch.compiler.cudagraph_mark_step_begin()
        for found, other in zip(outcome(compiled, x), expected, strict=True):
            torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)


def test_gradient_scaling(device: str) -> None:
    """A step in float16 changes the parameters as the step of the unchanged network does."""
    model = network().to(device)
    changed = deepcopy(model)
    convert(changed)
    for one in (model, changed):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler(device, init_scale=1024.0)
        with torch.autocast(device, torch.float16):
            loss = one(images(device)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 1024  # no gradient was infinite or NaN
    for found, expected in zip(changed.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


# Other libraries, whose arrays on a GPU are pooled by operations of theirs (`poolgrad.portable`)


@pytest.mark.parametrize("call", CALLS, ids=name_of)
def test_arrays_of_cupy(call: Any) -> None:
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    (x, gy, kwargs), function = numbers(call), FUNCTIONS[call[0]]
    y, pullback = poolgrad.vjp(function, x, **kwargs)
    on_gpu = {k: cupy.asarray(v) if isinstance(v, np.ndarray) else v for k, v in kwargs.items()}
    found, vjp = poolgrad.vjp(function, cupy.asarray(x), **on_gpu)
    assert isinstance(found, cupy.ndarray)
    np.testing.assert_allclose(found.get(), y, rtol=1e-5, atol=1e-6)
    outputs = zip(_tuple(vjp(cupy.asarray(gy(y)))), _tuple(pullback(gy(y))), strict=True)
    for mine, expected in outputs:
        np.testing.assert_allclose(mine.get(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("call", DETERMINED, ids=name_of)
def test_arrays_of_jax(call: Any) -> None:
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    (x, gy, kwargs), function = numbers(call), FUNCTIONS[call[0]]
    y, pullback = poolgrad.vjp(function, x, **kwargs)
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    found, vjp = jax.vjp(jax.jit(lambda t: function(t, **kwargs)), jax.numpy.asarray(x))
    np.testing.assert_allclose(found, y, rtol=1e-5, atol=1e-6)
    expected = _tuple(pullback(gy(y)))[0]
    np.testing.assert_allclose(vjp(jax.numpy.asarray(gy(y)))[0], expected, rtol=1e-4, atol=1e-5)


def numbers(call: tuple[str, dict[str, Any]]) -> tuple[Any, Callable[[Any], Any], dict[str, Any]]:
    """An input of `example`, a function that makes cotangents of an output, and the arguments."""
    shape, kwargs = example(call[0])
    rng = np.random.default_rng(5)
    x = rng.standard_normal(shape).astype(np.float32)
    for name, value in kwargs.items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            kwargs[name] = value.astype(np.float32)
    return (
        x,
        lambda y: np.linspace(-1, 1, y.size, dtype=np.float32).reshape(y.shape),
        kwargs | call[1],
    )


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
