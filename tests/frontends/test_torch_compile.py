"""torch.compile(fullgraph=True): same numbers, memory formats and gradients, no graph break."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from processes import assert_runs

import poolgrad

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

# PyTorch's own, on importing its compiler.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")

POOLS: dict[str, Callable[[Any], Any]] = {
    "max": lambda x: poolgrad.max_pool2d(x, 3, 2, 1),
    "max-same": lambda x: poolgrad.max_pool2d(x, 3, 2, "same"),
    "max-split": lambda x: poolgrad.max_pool2d(x, 3, 2, 1, ties="split"),
    "max-indices": lambda x: poolgrad.max_pool2d(x, 2, return_indices=True),
    "max-wide-routes": lambda x: poolgrad.max_pool2d(x, 17, 2, 8),
    "max-channels-last": lambda x: poolgrad.max_pool2d(x, 2, channels_last=True),
    "avg": lambda x: poolgrad.avg_pool2d(x, 3, 2, 1, True, False),
    "adaptive-max": lambda x: poolgrad.adaptive_max_pool2d(x, 4),
    "adaptive-avg": lambda x: poolgrad.adaptive_avg_pool2d(x, (3, 5)),
    "global-avg": poolgrad.global_avg_pool,
    "lp": lambda x: poolgrad.lp_pool2d(x, 2.0, 2),
    "range": lambda x: poolgrad.range_pool2d(x, 2),
    "lip": lambda x: poolgrad.lip_pool2d(x, x * 2, 2),
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def there_and_back(pool: Callable[[Any], Any], x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    made = pool(x)
    y, *indices = made if isinstance(made, tuple) else (made,)
    y.backward(torch.linspace(-1, 1, y.numel()).view_as(y))
    return [y.detach(), *indices, x.grad]


def check(compiled: Callable[[Any], Any], eager: Callable[[Any], Any], x: torch.Tensor) -> None:
    poolgrad.max_pool2d(x.detach(), 2)  # see test_the_first_call_may_be_a_compiled_one
    for got, expected in zip(there_and_back(compiled, x), there_and_back(eager, x), strict=True):
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()


# Without code generation: what is traced is what matters here, and each trace takes half a second.


@pytest.mark.parametrize("name", ["max", "max-indices", "adaptive-avg", "range", "lip"])
def test_static_shapes(name: str) -> None:
    pool = POOLS[name]
    compiled = torch.compile(pool, fullgraph=True, dynamic=False, backend="aot_eager")
    check(compiled, pool, torch.randn(2, 3, 9, 9))
    check(compiled, pool, torch.randn(3, 4, 12, 10).contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("max", "adaptive-avg") else pytest.mark.slow)
        for name in POOLS
    ],
)
def test_dynamic_shapes(name: str) -> None:
    pool = POOLS[name]
    compiled = torch.compile(pool, fullgraph=True, dynamic=True, backend="aot_eager")
    for shape in ((2, 3, 9, 9), (3, 4, 12, 10)):
        check(compiled, pool, torch.randn(shape))
    if name in ("max", "max-split"):
        last = torch.randn(3, 5, 11, 10).contiguous(memory_format=torch.channels_last)
        check(compiled, pool, last)


@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler for inductor"
)
def test_a_network_with_code_generation() -> None:
    from poolgrad import torch as layers

    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.ReLU(),
        layers.MaxPool2d(3, 2, 1),
        layers.AvgPool2d(2),
        layers.GlobalMaxPool2d(ties="split"),
        torch.nn.Linear(4, 2),
    ).double()
    x = torch.randn(2, 3, 16, 16).double()
    network(x).sum().backward()
    expected = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    compiled = torch.compile(network, fullgraph=True)
    torch.testing.assert_close(compiled(x), network(x), rtol=1e-12, atol=1e-12)  # float64
    compiled(x).sum().backward()
    for parameter, gradient in zip(network.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in POOLS if n != "max-indices"])
def test_transformations_of_functions(name: str) -> None:
    """By `poolgrad.portable`: custom operators cannot be transformed in a graph."""
    func, pool, x = torch.func, POOLS[name], torch.randn(2, 3, 8, 9)
    for transformed in (
        func.grad(lambda x: pool(x).square().sum()),
        func.vmap(pool),
        lambda x: func.jvp(pool, (x,), (x,))[1],
    ):
        compiled = torch.compile(transformed, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(x), transformed(x))


def test_the_compiler_does_not_trace_into_operators_after_a_graph_break() -> None:
    """Reading a tensor breaks the graph inside of the function; the rest of it runs eagerly."""

    def pool(x: torch.Tensor) -> torch.Tensor:
        return poolgrad.max_pool2d(x, torch.tensor([3, 2]), padding=1)

    check(torch.compile(pool, backend="aot_eager"), pool, torch.randn(2, 3, 9, 9))


FIRST_CALL = """
import warnings
warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
import torch, poolgrad
weight = torch.nn.Parameter(torch.ones(1, 1, 4, 4))
{before}
pool = torch.compile(lambda x: poolgrad.max_pool2d({what}, 2), fullgraph=True, backend="aot_eager")
print(tuple(pool(torch.ones(1, 1, 4, 4)).shape))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "what"),
    [
        ("", "x"),
        ("poolgrad.max_pool2d(torch.ones(1, 4, 4), 2)", "weight"),
    ],
    ids=["tensor", "parameter"],
)
def test_the_first_call_may_be_a_compiled_one(before: str, what: str) -> None:
    """In a fresh process: nothing of this type has been pooled before."""
    code = FIRST_CALL.format(before=before, what=what)
    assert assert_runs(code, timeout=100).strip() == "(1, 1, 2, 2)"


CONVERTED = """
import warnings
warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
import torch
from poolgrad.torch import convert
network = torch.nn.Sequential(torch.nn.MaxPool2d(2), torch.nn.AvgPool2d(2))
convert(network)
x = torch.arange(64.0).view(1, 1, 8, 8)
print(torch.compile(network, fullgraph=True, backend="eager")(x).flatten().tolist())
"""


@pytest.mark.slow
def test_two_converted_pools_are_compiled_in_a_fresh_process() -> None:
    """The trace of the first pool imports its front end, which must not disturb the second."""
    assert assert_runs(CONVERTED, timeout=100).strip() == "[18.0, 22.0, 50.0, 54.0]"


def test_importing_the_modules_makes_the_operators() -> None:
    """An exported program needs torch.ops.poolgrad before it pools its first tensor."""
    code = "import poolgrad.torch, torch; print(torch.ops.poolgrad.max.default)"
    assert assert_runs(code).strip() == "poolgrad.max.default"


def test_an_exported_program_gives_the_same() -> None:
    from poolgrad import torch as layers

    network = torch.nn.Sequential(layers.MaxPool2d(3, 2, 1), layers.GlobalAvgPool2d())
    x = torch.randn(2, 3, 9, 9)
    poolgrad.max_pool2d(x, 2)
    exported = torch.export.export(network, (x,)).module()
    assert torch.equal(exported(x), network(x))


def test_errors_keep_their_words() -> None:
    compiled = torch.compile(lambda x: poolgrad.max_pool2d(x, 9), backend="aot_eager")
    with pytest.raises(Exception, match="kernel_size 9"):
        compiled(torch.ones(1, 1, 4, 4))


def test_functions_with_equal_arguments_are_compiled_apart() -> None:
    torch.compiler.reset()
    x = torch.rand(1, 2, 6, 6)
    for name in ("avg_pool2d", "adaptive_avg_pool2d", "max_pool2d", "adaptive_max_pool2d"):
        pool = getattr(poolgrad, name)
        compiled = torch.compile(pool, backend="eager", fullgraph=True)
        assert torch.equal(compiled(x, 2), pool(x, 2)), name
