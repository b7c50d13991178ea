"""`convert` and `revert` keep a network the same in every way in which PyTorch uses it."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import warnings
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import poolgrad.torch as layers  # noqa: E402
from poolgrad.torch import convert, revert  # noqa: E402


def pools() -> dict[str, nn.Module]:
    """One of each of PyTorch's classes, with arguments of all kinds."""
    made: dict[str, nn.Module] = {}
    for d in (1, 2, 3):
        made |= {
            f"max{d}": getattr(nn, f"MaxPool{d}d")(3, 2, 1, ceil_mode=True),
            f"avg{d}": getattr(nn, f"AvgPool{d}d")([2] * d, padding=1, count_include_pad=False),
            f"lp{d}": getattr(nn, f"LPPool{d}d")(2, 3, 2),
            f"adaptive_max{d}": getattr(nn, f"AdaptiveMaxPool{d}d")(3),
            f"adaptive_avg{d}": getattr(nn, f"AdaptiveAvgPool{d}d")((4,) * d if d > 1 else 4),
        }
    for d in (2, 3):
        samples = torch.full((2, 3, d), 0.3)
        fractional = getattr(nn, f"FractionalMaxPool{d}d")
        made[f"fractional{d}"] = fractional(2, output_size=3, _random_samples=samples)
        made[f"drawn{d}"] = fractional(2, output_ratio=0.6)
    return made


NAMES = [*pools()]


def image(name: str, last: bool = False) -> torch.Tensor:
    dims = int(name[-1])
    x = torch.randn(2, 3, *[7] * dims, generator=torch.Generator().manual_seed(1))
    if last and dims > 1:
        formats = {2: torch.channels_last, 3: torch.channels_last_3d}
        x = x.contiguous(memory_format=formats[dims])
    return x.requires_grad_()


def results(pool: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    y = pool(x)
    return y, torch.autograd.grad((y * torch.arange(y.numel()).reshape(y.shape)).sum(), x)[0]


class Net(nn.Module):
    """Pools in modules, shared and held in a list, and in functions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.same = self.pool
        self.blocks = nn.Sequential(nn.ReLU(), nn.AvgPool2d(3, 1, 1), nn.BatchNorm2d(4))
        self.held = [self.pool]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.held[0](self.blocks(self.conv(x)))
        return F.adaptive_avg_pool2d(self.same(x), 2)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_gradients_stay(name: str, last: bool) -> None:
    pool, x = pools()[name], image(name, last)
    theirs = results(pool, x)
    assert len(convert(pool).replaced) == 1
    assert type(pool).__module__ == "poolgrad.torch"
    ours = results(pool, x)
    exact = "max" in name or "fractional" in name or "drawn" in name
    for a, b in zip(theirs, ours, strict=True):
        torch.testing.assert_close(a, b, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-5)
    assert "poolgrad" in type(pool(x).grad_fn).__name__ or "Squeeze" in str(pool(x).grad_fn)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_changes_and_revert_undoes_it(name: str) -> None:
    pool = pools()[name]
    kind, before, said = type(pool), dict(vars(pool)), repr(pool)
    pool.register_forward_hook(lambda *_: None)
    hooks = dict(pool._forward_hooks)
    convert(pool)
    assert isinstance(pool, kind)
    assert type(pool) is getattr(layers, kind.__name__)
    assert {n: vars(pool)[n] for n in before} == before
    assert repr(pool) == said or "Fractional" in said  # of which PyTorch prints nothing
    assert pool._forward_hooks == hooks
    assert not convert(pool).replaced
    revert(pool)
    assert type(pool) is kind
    assert vars(pool) == before
    assert not revert(pool).replaced


def test_a_network_with_shared_modules_and_hooks() -> None:
    net, x = Net(), torch.randn(2, 1, 12, 12)
    seen: list[Any] = []
    net.pool.register_forward_hook(lambda module, given, y: seen.append(module))
    net.eval()
    keys, y = [*net.state_dict()], net(x)
    report = convert(net)
    assert [m.names for m in report.replaced] == [("pool", "same"), ("blocks.1",)]
    assert [(m.names, m.reason) for m in report.calls] == [(("",), "adaptive_avg_pool2d")]
    assert str(report).splitlines() == [
        "2 replaced",
        "  pool, same: MaxPool2d",
        "  blocks.1: AvgPool2d",
        "1 with calls of pooling functions, which only accelerate() replaces",
        "  (the network): Net: adaptive_avg_pool2d",
    ]
    assert net.held[0] is net.pool is net.same
    assert not net.pool.training
    assert [*net.state_dict()] == keys
    torch.testing.assert_close(net(x), y)
    assert seen == [net.pool] * 4


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_work_and_may_be_reverted(copied: Any) -> None:
    net, x = Net(), torch.randn(2, 1, 12, 12)
    convert(net)
    twin = copied(net)
    assert torch.equal(twin(x), net(x))
    assert len(revert(twin).replaced) == 2
    assert type(twin.pool) is nn.MaxPool2d
    assert type(net.pool) is layers.MaxPool2d
    fresh = Net()
    fresh.load_state_dict(net.state_dict())
    torch.testing.assert_close(fresh.eval()(x), net.eval()(x))


def test_our_own_modules_stay_ours() -> None:
    net = nn.Sequential(layers.MaxPool2d(2, padding="same"), nn.MaxPool2d(2))
    assert [m.names for m in convert(net).replaced] == [("1",)]
    assert [m.names for m in revert(net).replaced] == [("1",)]
    assert type(net[0]) is layers.MaxPool2d


class Other(nn.MaxPool2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(-x)


def test_what_may_do_something_else_is_left_alone() -> None:
    replaced = nn.MaxPool2d(2)
    replaced.forward = lambda x: x  # type: ignore[method-assign]
    net = nn.Sequential(
        Other(2), nn.LPPool2d(3, 2), nn.LPPool2d(2, 2, ceil_mode=True), replaced,
        nn.LocalResponseNorm(2), nn.MaxUnpool2d(2),
    )  # fmt: skip
    kinds = [type(m) for m in net]
    report = convert(net)
    assert not report.replaced
    assert [type(m) for m in net] == kinds
    assert [m.reason.partition(" ")[0] for m in report.left] == [
        "a", "norm_type", "with", "its", "PyTorch"
    ]  # fmt: skip
    assert [m.reason for m in report.calls] == ["local_response_norm"]


@pytest.mark.parametrize("function", [convert, revert])
def test_only_modules(function: Any) -> None:
    with pytest.raises(TypeError, match=r"model must be an nn\.Module, got list"):
        function([nn.MaxPool2d(2)])


def test_unpooling_along_indices_of_overlapping_windows_keeps_pytorchs_gradient() -> None:
    """As in ENet: the unpooling's own windows do not overlap."""
    pool, unpool = nn.MaxPool2d(3, 2, 1, return_indices=True), nn.MaxUnpool2d(2)
    x = torch.randn(1, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    y, where = pool(x)
    assert all(plane.unique().numel() < plane.numel() for plane in where[0])
    gradients = []
    for _ in range(2):
        values = y.clone().requires_grad_()
        unpool(values, where, output_size=x.shape).mul(x).sum().backward()
        gradients.append(values.grad)
        convert(unpool)
    assert torch.equal(*gradients)


# What our kernels do not pool


def test_other_tensors_go_to_pytorch() -> None:
    pool, mean = nn.MaxPool2d(2), nn.AvgPool2d(2)
    numbers = torch.arange(16).reshape(1, 4, 4)
    with warnings.catch_warnings(action="ignore"):
        quantized = torch.quantize_per_tensor(torch.randn(1, 1, 4, 4), 0.1, 0, torch.quint8)
    expected = [mean(numbers), pool(numbers), pool(quantized).int_repr()]
    for module in (pool, mean):
        convert(module)
    came = [mean(numbers), pool(numbers), pool(quantized).int_repr()]
    for a, b in zip(expected, came, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert pool(torch.empty(1, 3, 4, 4, device="meta")).shape == (1, 3, 2, 2)
    with torch._subclasses.FakeTensorMode():
        assert pool(torch.empty(1, 3, 4, 4)).shape == (1, 3, 2, 2)


def test_tensor_subclasses_see_pytorchs_operators() -> None:
    seen: list[str] = []

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kw: Any = None) -> Any:
            seen.append(getattr(func, "__name__", ""))
            return super().__torch_function__(func, types, args, kw or {})

    pool = nn.MaxPool2d(2)
    convert(pool)
    y = pool(torch.randn(1, 4, 4).as_subclass(Loud))
    assert type(y) is Loud
    assert "max_pool2d" in " ".join(seen)


@pytest.mark.parametrize("error", [TypeError, ValueError])
def test_a_fault_of_a_kernel_is_shown(error: type[Exception], monkeypatch: Any) -> None:
    def fails(*args: Any) -> None:
        raise error("a fault")

    from poolgrad.torch.function import FRONT_END

    x = torch.rand(1, 2, 6, 6)
    monkeypatch.setattr(FRONT_END, "forward", fails)
    monkeypatch.setattr(FRONT_END, "bound_call", lambda request: None)
    pool, wrong = nn.MaxPool2d((3, 2), 5), nn.MaxPool2d(0)  # arguments of no other test: not cached
    convert(pool)
    convert(wrong)
    with pytest.raises(error, match="a fault"):
        pool(x)
    with pytest.raises(RuntimeError, match="zero"):  # PyTorch's own error
        wrong(x)


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("number", [np.int64, torch.tensor])
def test_numbers_of_other_libraries(number: Any, fuse: bool) -> None:
    net = nn.Sequential(
        nn.ReLU(), nn.MaxPool2d(number(3), padding=number(1)), nn.AvgPool2d(2, padding=number(1))
    )
    x = torch.randn(1, 2, 8, 8)
    y = net(x)
    assert len(convert(net, fuse=fuse).fused) == fuse
    torch.testing.assert_close(net(x), y)
    own = nn.Sequential(nn.ReLU(), layers.MaxPool2d(2, dilation=np.array([1, 1])))
    expected = own(x)
    assert len(convert(own, fuse=fuse).fused) == fuse
    assert torch.equal(own(x), expected)


@pytest.mark.parametrize("fuse", [False, True])
def test_errors_are_pytorchs(fuse: bool) -> None:
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(9))
    convert(net, fuse=fuse)
    with pytest.raises(RuntimeError, match="Output size is too small"):
        net(torch.randn(1, 2, 8, 8))


def interrupt_at(step: int, call: Callable[[], Any]) -> bool:
    """Raise KeyboardInterrupt before line number `step` of poolgrad or PyTorch; whether it came."""
    lines = count()

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if event == "line" and next(lines) == step:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("change", [convert, revert])
def test_an_interrupted_conversion_leaves_a_network_that_works(change: Any) -> None:
    x = torch.randn(1, 1, 8, 8)
    for step in range(1000):
        net = nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(2))
        expected = net(x)
        if change is revert:
            convert(net)
        if not interrupt_at(step, lambda net=net: change(net)):
            break
        assert torch.equal(net(x), expected)
        convert(net)
        assert [type(m) for m in net] == [layers.MaxPool2d, layers.AvgPool2d]
        revert(net)
        assert [type(m) for m in net] == [nn.MaxPool2d, nn.AvgPool2d]
        assert torch.equal(net(x), expected)
    assert 20 < step < 1000


def test_indices_are_pytorchs() -> None:
    net = nn.ModuleList([nn.MaxPool2d(2, 2, 0, 1, True), nn.MaxUnpool2d(2)])
    x = torch.randn(1, 2, 6, 6)
    y, where = net[0](x)
    back = net[1](y, where)
    for several in (net[:1], net):
        convert(several)
        assert torch.equal(net[0](x)[1], where)
        assert torch.equal(net[1](*net[0](x)), back)


# Every mode


def plain(graph: Any) -> bool:
    """Whether a graph has none of our operators."""
    return not any(name in str(graph) for name in ("ops.poolgrad", "poolgrad::"))


def test_exported_programs_have_standard_operators() -> None:
    net, x = Net().eval(), torch.randn(2, 1, 12, 12)
    y = net(x)
    convert(net)
    exported = torch.export.export(net, (x,))
    assert plain(exported.graph)
    torch.testing.assert_close(exported.module()(x), y)
    for own in (layers.MaxPool2d(3, padding="same"), layers.LPPool2d(3, 2)):  # PyTorch has none
        exported = torch.export.export(own, (x,))
        assert not plain(exported.graph)
        assert torch.equal(exported.module()(x), own(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_compiles_pytorchs_modules() -> None:
    net, x = Net().eval(), torch.randn(2, 1, 12, 12)
    del net.held
    net.forward = lambda x: net.same(net.blocks(net.conv(x)))  # type: ignore[method-assign]
    pools, y = nn.Sequential(net.conv, net.blocks, net.pool), net(x)
    convert(pools)
    for compiled in (torch.jit.trace(pools, (x,)), torch.jit.script(pools)):
        assert plain(compiled.inlined_graph)
        torch.testing.assert_close(compiled(x), y)
    assert type(pools[2]) is nn.MaxPool2d  # PyTorch keeps what it compiled instead


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnx_files_have_standard_operators() -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    net, x = Net().eval(), torch.randn(2, 1, 16, 16)
    y = net(x)
    convert(net)
    file = io.BytesIO()
    torch.onnx.export(net, (x,), file, dynamo=False)
    model = onnx.load_from_string(file.getvalue())
    assert {node.domain for node in model.graph.node} == {""}
    assert {"MaxPool", "AveragePool"} <= {node.op_type for node in model.graph.node}
    session = runtime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    (came,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(came, y.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_fx_traces_it() -> None:
    net, x = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.AvgPool2d(2)), image("max2")
    x = x[:, :1]
    y = net(x)
    convert(net)
    torch.testing.assert_close(torch.fx.symbolic_trace(net)(x), y)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_it_has_our_operators(dynamic: bool) -> None:
    net, x = nn.Sequential(nn.MaxPool2d(2), nn.AvgPool2d(3, 1)), torch.randn(2, 3, 12, 12)
    y = net(x)
    convert(net)
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(net, backend=keep, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(compiled(x), y)
    torch.testing.assert_close(compiled(x[..., :10]), net(x[..., :10]))
    assert not plain(graphs[0].graph)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own use of it
def test_transformations_checkpoints_and_autocast() -> None:
    from torch.utils.checkpoint import checkpoint

    pool, x = nn.MaxPool2d(2), torch.randn(2, 3, 6, 6)

    def all_of_it() -> list[torch.Tensor]:
        def loss(x: torch.Tensor) -> torch.Tensor:
            return pool(x).square().sum()

        leaf = x.clone().requires_grad_()
        checkpoint(pool, leaf, use_reentrant=False).square().sum().backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = pool(nn.functional.conv2d(x, torch.ones(1, 3, 1, 1)))
        with torch.inference_mode():
            inferred = pool(x)
        func = torch.func
        return [
            func.grad(loss)(x), func.vmap(pool)(x[None]), func.jvp(pool, (x,), (x,))[1],
            func.jacrev(pool)(x), func.hessian(loss)(x[:1, :1]), leaf.grad, mixed, inferred,
        ]  # fmt: skip

    theirs = all_of_it()
    convert(pool)
    for a, b in zip(theirs, all_of_it(), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b)


def test_a_training_curve_stays() -> None:
    def train(change: bool) -> list[float]:
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.ReLU(),
            nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(16, 2),
        )  # fmt: skip
        if change:
            assert len(convert(net).replaced) == 2
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        x, goal = torch.randn(8, 1, 14, 14), torch.randint(2, (8,))
        losses = []
        for _ in range(10):
            loss = F.cross_entropy(net(x), goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert train(True) == train(False)
