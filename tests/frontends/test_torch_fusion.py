"""`convert(model, fuse=True)`: a ReLU and a maximum that is its only reader, in one pass."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from fusible import (  # noqa: E402
    NOT_ALONE,
    Blocks,
    Code,
    Untraceable,
    assert_same,
    changed_between,
    image,
    kept,
    operators,
    outcome,
    overwritten,
    row,
)
from torch import nn  # noqa: E402

from poolgrad import torch as layers  # noqa: E402
from poolgrad.torch import convert, revert  # noqa: E402

MADE: dict[str, Callable[[], nn.Module]] = {
    "in a row": row,
    "in a row, in place": lambda: row(inplace=True),
    "in a row, padded": lambda: row(pool=nn.MaxPool2d(3, 2, 1, ceil_mode=True)),
    "in a row, normalised": lambda: row(nn.BatchNorm2d(4), inplace=True),
    "two in a row": lambda: nn.Sequential(row(), nn.Conv2d(4, 2, 3), nn.ReLU(), nn.MaxPool2d(2)),
    "by code": Blocks,
    "by code, in place": lambda: Blocks(inplace=True),
    "by code that cannot be traced": Untraceable,
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MADE)
def test_the_numbers_stay_and_less_is_kept(name: str, training: bool) -> None:
    net, x = MADE[name]().train(training), image()
    fused = copy.deepcopy(net)
    report = convert(fused, fuse=True)
    pairs = {"two in a row": 2, "by code": 2, "by code, in place": 2}
    assert len(report.fused) == pairs.get(name, 1)
    assert_same(outcome(fused, x), outcome(net, x))
    assert fused.training is training
    only_converted = copy.deepcopy(net)
    convert(only_converted)
    between = 4 * 2 * 4 * 10 * 10  # bytes of what the ReLU gives
    assert kept(fused, x) <= kept(only_converted, x) - between


@pytest.mark.parametrize("change", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), revert])
@pytest.mark.parametrize("name", MADE)
def test_copies_work_and_revert_undoes_it(name: str, change: Any) -> None:
    net, x = MADE[name]().eval(), image()
    kinds, y = [type(m) for m in net.modules()], net(x)
    names, keys = [n for n, _ in net.named_modules()], net.state_dict().keys()
    convert(net, fuse=True)
    assert [type(m) for m in net.modules()] != kinds
    made = change(net)
    net = made if isinstance(made, nn.Module) else net
    assert torch.equal(net(x), y)
    revert(net)
    assert [type(m) for m in net.modules()] == kinds
    assert [n for n, _ in net.named_modules()] == names
    assert net.state_dict().keys() == keys
    assert not any("converted" in vars(m) for m in net.modules())


def test_the_report_says_where() -> None:
    report = convert(nn.ModuleDict({"a": row(), "b": nn.Identity()}), fuse=True)
    assert [(m.names, m.kind, m.reason) for m in report.fused] == [
        (("a.2",), "MaxPool2d", "with the ReLU a.1")
    ]
    assert "1 fused\n  a.2: MaxPool2d: with the ReLU a.1" in str(report)
    said = str(convert(Untraceable(), fuse=True))
    assert "fused in nn.Sequential only, because torch.fx failed: TraceError: " in said
    assert str(convert(row(), fuse=True)).endswith("  2: MaxPool2d: with the ReLU 1")
    again = row()
    assert convert(again).fused == ()
    assert [m.names for m in convert(again, fuse=True).fused] == [("2",)]
    assert [m.names for m in convert(again, fuse=True).fused] == [("2",)]
    with pytest.raises(TypeError, match="fuse must be True or False, got 1"):
        convert(again, fuse=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        *(lambda way=way: Code(way) for way in NOT_ALONE),
        lambda: Code(overwritten, inplace=True),
        lambda: Code(changed_between),
        lambda: Code(lambda net, x: net.pool(net.relu(x)), inplace=True),
        lambda: row(pool=nn.MaxPool2d(2, dilation=2)),
        lambda: row(nn.Dropout(), inplace=True),
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.LeakyReLU(), nn.MaxPool2d(2)),
        lambda: nn.Sequential(nn.ReLU(), nn.Identity(), nn.MaxPool2d(2)),
    ],
)
def test_what_somebody_else_reads_is_left_alone(
    make: Callable[[], nn.Module], training: bool
) -> None:
    net, x = make().train(training), image()
    fused = copy.deepcopy(net)
    assert convert(fused, fuse=True).fused == ()
    torch.manual_seed(0)
    theirs = outcome(net, x)
    torch.manual_seed(0)
    assert_same(outcome(fused, x), theirs)


def test_parts_of_a_row_are_themselves() -> None:
    """Networks are cut, and their layers called one by one, for features."""
    net, x = row(), image()
    parts = [net[:2](x), net[2:](x), net(x)]
    convert(net, fuse=True)
    assert_same([net[:2](x) + 0, net[2:](x), net(x)], parts)
    between = x
    for layer, expected in zip(net, [None, parts[0], parts[2]], strict=True):
        between = layer(between)
        assert expected is None or torch.equal(between, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript's
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(row, marks=pytest.mark.slow),
        Blocks,
        pytest.param(lambda: row(pool=nn.MaxPool2d(3, 2, 1)), marks=pytest.mark.slow),
    ],
)
def test_every_mode(make: Callable[[], nn.Module]) -> None:
    net, x = make().eval(), image()

    def all_of_it() -> list[torch.Tensor]:
        from torch.utils.checkpoint import checkpoint

        def loss(x: torch.Tensor) -> torch.Tensor:
            return net(x).square().sum()

        func = torch.func
        leaf = x.clone().requires_grad_()
        checkpoint(net, leaf, use_reentrant=False).square().sum().backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = net(x)
        with torch.inference_mode():
            inferred = net(x)
        return [
            net(x.to(memory_format=torch.channels_last)), net(x[0]), leaf.grad,
            func.grad(loss)(x), func.vmap(net)(x[None]), func.jvp(net, (x,), (x,))[1],
            func.jacrev(net)(x[:1]), func.hessian(loss)(x[:1, :, :6, :6]), mixed, inferred,
            torch.export.export(net, (x,)).module()(x), torch.fx.symbolic_trace(net)(x),
            torch.jit.trace(net, (x,))(x), torch.compile(net, backend="eager", fullgraph=True)(x),
        ]  # fmt: skip

    theirs = all_of_it()
    assert convert(net, fuse=True).fused
    for a, b in zip(all_of_it(), theirs, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    exported = operators(torch.export.export(net, (x,)).graph)
    assert not any(name.startswith("poolgrad.") for name in exported)
    assert sum(name.startswith("aten.relu") for name in exported) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [row, Blocks])
def test_torchscript_compiles_pytorchs_modules(make: Callable[[], nn.Module]) -> None:
    net, x = make().eval(), image()
    y = net(x)
    convert(net, fuse=True)
    compiled = torch.jit.script(net)
    made = operators(compiled.inlined_graph)
    assert not any(name.startswith("poolgrad::") for name in made)
    pairs = 2 if make is Blocks else 1  # one of them in training only
    assert made.count("aten::relu") == made.count("aten::max_pool2d") == pairs
    torch.testing.assert_close(compiled(x), y)


def test_other_tensors_are_rectified_once() -> None:
    """Those that our kernels do not take go through PyTorch's ReLU and PyTorch's maximum."""
    for make in (row, Blocks):
        net = make().eval()
        convert(net, fuse=True)
        assert net.to("meta")(image().to("meta")).shape == (2, 4, 5, 5)
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    numbers = torch.arange(-8, 8).reshape(1, 4, 4)
    y = net(numbers)
    convert(net, fuse=True)
    assert torch.equal(net(numbers), y)


# The module that is both


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_exported_it_is_pytorchs_two(dims: int) -> None:
    module = getattr(layers, f"ReLUMaxPool{dims}d")(3, 2, 1)
    x = torch.randn(2, 3, *(12, 9, 8)[:dims])
    y = module(x)
    exported = torch.export.export(module, (x,))
    traced = torch.jit.trace(module, (x,))
    assert not any(name.startswith("poolgrad.") for name in operators(exported.graph))
    assert not any(name.startswith("poolgrad::") for name in operators(traced.inlined_graph))
    for run in (exported.module(), traced, torch.fx.symbolic_trace(module)):
        assert torch.equal(run(x), y)
    for own in ({"ties": "zero"}, {"dilation": 2}, {"padding": 2}):
        module = getattr(layers, f"ReLUMaxPool{dims}d")(3, **own)
        exported = torch.export.export(module, (x,))
        assert any(name.startswith("poolgrad.") for name in operators(exported.graph))
        assert torch.equal(exported.module()(x), module(x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_onnx_files_have_standard_operators() -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    net, x = nn.Sequential(row(), layers.ReLUMaxPool2d(2)).eval(), image()
    convert(net, fuse=True)
    file = io.BytesIO()
    torch.onnx.export(net, (x,), file, dynamo=False)
    nodes = onnx.load_from_string(file.getvalue()).graph.node
    assert {node.domain for node in nodes} == {""}
    kinds = [node.op_type for node in nodes if node.op_type in ("Relu", "MaxPool")]
    assert kinds == ["Relu", "MaxPool", "Relu", "MaxPool"]
