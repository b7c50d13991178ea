"""`convert(model, fuse=True)`: a ReLU and the maximum that follows it, in one pass."""

from __future__ import annotations

import copy
import io
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from poolgrad import torch as layers  # noqa: E402
from poolgrad.torch import convert, fusion, revert  # noqa: E402


def row(*between: nn.Module, inplace: bool = False, pool: nn.Module | None = None) -> nn.Sequential:
    pool = nn.MaxPool2d(2) if pool is None else pool
    return nn.Sequential(nn.Conv2d(1, 4, 3), *between, nn.ReLU(inplace), pool)


def image() -> torch.Tensor:
    return torch.randn(2, 1, 12, 12, generator=torch.Generator().manual_seed(0))


def outcome(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The outputs, and the gradients of the input and of all parameters."""
    net.zero_grad()
    leaf = x.clone().requires_grad_()
    y = net(leaf * 1)
    y.square().sum().backward()
    return [y.detach(), leaf.grad, *(p.grad for p in net.parameters() if p.grad is not None)]


def kept(net: nn.Module, x: torch.Tensor) -> int:
    """The bytes that are kept for the backward pass."""
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        net(x)
    return sum(sizes.values())


def operators(graph: Any) -> list[str]:
    """The operators of an exported or a TorchScript graph; its text also has source paths."""
    if isinstance(graph, torch.fx.Graph):
        return [str(node.target) for node in graph.nodes if node.op == "call_function"]
    found: list[str] = []
    blocks = [graph]
    while blocks:
        for node in blocks.pop().nodes():
            found.append(node.pyname() if node.kind() == "prim::PythonOp" else node.kind())
            blocks += node.blocks()
    return found


def assert_same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def shared_relu() -> nn.Sequential:
    relu = nn.ReLU()
    pool = nn.MaxPool2d(2)
    convolutions = (nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 2, 3))
    first, second, third = convolutions
    return nn.Sequential(first, relu, second, relu, pool, third, relu)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": row,
    "in place": lambda: row(inplace=True),
    "padded": lambda: row(pool=nn.MaxPool2d(3, 2, 1, ceil_mode=True)),
    "normalised, in place": lambda: row(nn.BatchNorm2d(4), inplace=True),
    "nested": lambda: nn.Sequential(row(), nn.Conv2d(4, 2, 3), nn.ReLU(), nn.MaxPool2d(2)),
    "ReLU shared with other layers": shared_relu,
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_unchanged_and_less_is_kept(name: str, training: bool) -> None:
    net, x = NETWORKS[name]().train(training), image()
    fused = copy.deepcopy(net)
    assert len(convert(fused, fuse=True).fused) == (2 if name == "nested" else 1)
    assert_same(outcome(fused, x), outcome(net, x))
    assert fused.training is training
    converted = copy.deepcopy(net)
    convert(converted)
    assert kept(fused, x) <= kept(converted, x) - 4 * 2 * 4 * 10 * 10  # output of the ReLU


@pytest.mark.parametrize("change", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), revert])
@pytest.mark.parametrize("name", NETWORKS)
def test_copies_work_and_revert_undoes_it(name: str, change: Any) -> None:
    net, x = NETWORKS[name]().eval(), image()
    kinds, y = [type(m) for m in net.modules()], net(x)
    names, keys = [n for n, _ in net.named_modules()], net.state_dict().keys()
    convert(net, fuse=True)
    assert [type(m) for m in net.modules()] != kinds
    changed = change(net)
    net = changed if isinstance(changed, nn.Module) else net
    assert torch.equal(net(x), y)
    revert(net)
    assert [type(m) for m in net.modules()] == kinds
    assert [n for n, _ in net.named_modules()] == names
    assert net.state_dict().keys() == keys
    assert not any("converted" in vars(m) for m in net.modules())


def test_the_report_names_the_pairs() -> None:
    report = convert(nn.ModuleDict({"a": row(), "b": nn.Identity()}), fuse=True)
    assert [(m.names, m.kind, m.reason) for m in report.fused] == [
        (("a.2",), "MaxPool2d", "with the ReLU a.1")
    ]
    assert str(report).endswith("1 fused\n  a.2: MaxPool2d: with the ReLU a.1")
    again = row()
    assert convert(again).fused == ()
    assert [m.names for m in convert(again, fuse=True).fused] == [("2",)]
    assert [m.names for m in convert(again, fuse=True).fused] == [("2",)]
    with pytest.raises(TypeError, match="fuse must be True or False, got 1"):
        convert(again, fuse=1)  # type: ignore[arg-type]


class Code(nn.Module):
    """A network whose own code passes the output of the ReLU on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.relu(self.conv(x)))


class Own(nn.Sequential):
    """A container that may read the output of any of its modules."""


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        Code,
        lambda: Own(*row()),
        lambda: nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), nn.MaxPool2d(2)),
        lambda: row(pool=nn.MaxPool2d(2, dilation=2)),
        lambda: row(nn.Dropout(), inplace=True),
        lambda: nn.Sequential(nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.LeakyReLU(), nn.MaxPool2d(2)),
        lambda: nn.Sequential(nn.ReLU(), nn.Identity(), nn.MaxPool2d(2)),
    ],
)
def test_what_somebody_else_may_read_is_not_fused(
    make: Callable[[], nn.Module], training: bool
) -> None:
    net, x = make().train(training), image()
    fused = copy.deepcopy(net)
    assert convert(fused, fuse=True).fused == ()
    torch.manual_seed(0)
    expected = outcome(net, x)
    torch.manual_seed(0)
    assert_same(outcome(fused, x), expected)


def test_parts_of_a_network_compute_what_they_did() -> None:
    """Networks are cut, and their modules are called one by one, for features."""
    net, x = row(inplace=True), image()
    between = net[0](x)
    expected = [net[:2](x), net[2:](x), net[1:](between.clone()), net[1](between.clone()), net(x)]
    convert(net, fuse=True)
    parts = [net[:2](x), net[2:](x), net[1:](between.clone()), net[1](between.clone()), net(x)]
    assert_same(parts, expected)
    net[1:](between)
    assert torch.equal(between, expected[0])  # overwritten, as the container cannot know its owner


def _forward_of_an_instance(net: Any) -> None:
    net[1].forward = types.MethodType(lambda self, x: torch.relu(x) + 1, net[1])


def _set(position: int, make: Callable[[Any], nn.Module]) -> Callable[[Any], None]:
    return lambda net: net.__setitem__(position, make(net))


CHANGES: list[Callable[[Any], Any]] = [
    _forward_of_an_instance,
    _set(1, lambda net: nn.LeakyReLU()),
    _set(1, lambda net: nn.ReLU(inplace=True)),
    _set(2, lambda net: nn.Identity()),
    _set(2, lambda net: torch.jit.script(net[2])),
    lambda net: net.insert(2, nn.Conv2d(4, 4, 3)),
    lambda net: net.append(nn.MaxPool2d(2)),
    lambda net: net.__delitem__(2),
    lambda net: isinstance(net[2], layers.MaxPool2d) and revert(net[2]),
    lambda net: isinstance(net[2], layers.MaxPool2d) and convert(net[2], fuse=True),
    lambda net: convert(net) and None,
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript's
@pytest.mark.parametrize("change", CHANGES)
def test_changes_after_fusing_have_their_effect(change: Callable[[Any], Any]) -> None:
    net, x = row(), image()
    fused = copy.deepcopy(net)
    assert convert(fused, fuse=True).fused
    for each in (net, fused):
        torch.manual_seed(0)
        change(each)
    assert_same(outcome(fused, x), outcome(net, x))


def test_indices_are_those_of_the_relu() -> None:
    net = row()
    assert convert(net, fuse=True).fused
    net[2].return_indices = True
    y, indices = net(image())
    assert_same([y, indices], [*nn.functional.max_pool2d(net[:2](image()), 2, return_indices=True)])


HOOKS: dict[str, Callable[[nn.Module, list[Any]], Any]] = {
    "after": lambda m, seen: m.register_forward_hook(lambda m, i, o: seen.extend([*i, o.clone()])),
    "before": lambda m, seen: m.register_forward_pre_hook(lambda m, i: seen.append(i[0].clone())),
    "changes": lambda m, seen: m.register_forward_hook(lambda m, i, o: o - 0.25),
    "changes before": lambda m, seen: m.register_forward_pre_hook(lambda m, i: (i[0] - 0.25,)),
    "back": lambda m, seen: m.register_full_backward_hook(lambda m, i, o: seen.extend([*i, *o])),
    "global": lambda m, seen: nn.modules.module.register_module_forward_hook(
        lambda m, i, o: seen.extend([*i, o.clone()])
    ),
}


@pytest.mark.parametrize("position", [0, 1, 2])
@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("early", [False, True])
def test_hooks_see_and_change_the_same(position: int, kind: str, early: bool) -> None:
    def run(change: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net, seen = row(), []
        handles = [HOOKS[kind](net[position], seen)] if early else []
        if change:
            convert(net, fuse=True)
        if not early:
            handles.append(HOOKS[kind](net[position], seen))
        results = outcome(net, image())
        for handle in handles:
            handle.remove()
        return results + [t.detach() for t in seen if t is not None]

    assert_same(run(True), run(False))


def test_what_a_hook_of_a_convolution_sees_is_overwritten() -> None:
    net, seen = row(inplace=True), []
    net[0].register_forward_hook(lambda m, i, o: seen.append(o.detach()))
    assert convert(net, fuse=True).fused == ()
    net(image())
    assert seen[0].min() == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [row, pytest.param(NETWORKS["padded"], marks=pytest.mark.slow)])
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

    expected = all_of_it()
    assert convert(net, fuse=True).fused
    for a, b in zip(all_of_it(), expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    exported = operators(torch.export.export(net, (x,)).graph)
    assert not any(name.startswith("poolgrad.") for name in exported)
    assert sum(name.startswith("aten.relu") for name in exported) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_compiles_pytorchs_modules() -> None:
    net, x = row().eval(), image()
    y = net(x)
    convert(net, fuse=True)
    compiled = torch.jit.script(net)
    found = operators(compiled.inlined_graph)
    assert not any(name.startswith("poolgrad::") for name in found)
    assert found.count("aten::relu") == found.count("aten::max_pool2d") == 1
    torch.testing.assert_close(compiled(x), y)
    assert type(net) is fusion.FusedSequential
    assert torch.equal(net(x), y)


def test_other_tensors_are_pooled_by_pytorch() -> None:
    net = row().eval()
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
