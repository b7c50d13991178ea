"""`convert(model, fuse=True)`: a ReLU and the maximum that is its only reader become one."""

from __future__ import annotations

import copy
import io
import pickle
import random
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

from poolgrad import torch as layers  # noqa: E402
from poolgrad.torch import convert, fusion, revert  # noqa: E402


class Blocks(nn.Module):
    """Its own code calls ReLUs and maxima, two of them in training only."""

    def __init__(self, *, inplace: bool = False) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(1, 4, 3), nn.ReLU(inplace)
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.beside, self.beside_relu, self.beside_pool = (
            nn.Conv2d(4, 4, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu(self.conv(x)))
        if self.training:
            return x.sum() + self.beside_pool(self.beside_relu(self.beside(x))).sum()
        return x


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(True), nn.MaxPool2d(2))
        self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return self.pool(self.relu(x)) if x.sum() > 0 else x


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
    """The bytes that are kept for the way back."""
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        net(x)
    return sum(sizes.values())


def assert_same(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


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
    assert "fused in nn.Sequential only, as torch.fx says: TraceError: " in said
    assert str(convert(row(), fuse=True)).endswith("  2: MaxPool2d: with the ReLU 1")
    again = row()
    assert convert(again).fused == ()
    assert [m.names for m in convert(again, fuse=True).fused] == [("2",)]
    assert [m.names for m in convert(again, fuse=True).fused] == [("2",)]
    with pytest.raises(TypeError, match="fuse must be True or False, got 1"):
        convert(again, fuse=1)  # type: ignore[arg-type]


class Code(nn.Module):
    """What is in `forward` is all that it does with a ReLU and a maximum."""

    def __init__(
        self, forward: Callable[[Any, torch.Tensor], Any], *, inplace: bool = False
    ) -> None:
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(1, 4, 3), nn.ReLU(inplace), nn.MaxPool2d(2)
        self.way = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.way(self, x)


def _read_twice(net: Any, x: torch.Tensor) -> torch.Tensor:
    between = net.relu(net.conv(x))
    return net.pool(between) + between[..., ::2, ::2]


def _called_twice(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.pool(net.relu(net.conv(x))) + net.pool(net.conv(x))


def _relu_twice(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.pool(net.relu(net.conv(x))) + net.relu(net.conv(x))[..., ::2, ::2]


def _given_back(net: Any, x: torch.Tensor) -> Any:
    between = net.relu(net.conv(x))
    return torch.cat([net.pool(between).flatten(), between.flatten()])


def _other_in_training(net: Any, x: torch.Tensor) -> torch.Tensor:
    between = net.relu(net.conv(x))
    return net.pool(between) + (between.sum() if net.training else 0)


def _function(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.pool(net.conv(x).relu())


def _overwritten(net: Any, x: torch.Tensor) -> torch.Tensor:
    made = net.conv(x)
    return net.pool(net.relu(made)) + made[..., ::2, ::2]


def _changed_between(net: Any, x: torch.Tensor) -> torch.Tensor:
    made = net.conv(x)
    between = net.relu(made)
    made.sub_(1)
    return net.pool(between) + made[..., ::2, ::2]


NOT_ALONE = [_read_twice, _relu_twice, _given_back, _other_in_training, _function]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        *(lambda way=way: Code(way) for way in NOT_ALONE),
        lambda: Code(_overwritten, inplace=True),
        lambda: Code(_changed_between),
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


# Whatever a network does with its modules, it does the same after fusing


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.block = nn.Sequential(nn.Conv2d(1, 4, 3), self.relu, nn.MaxPool2d(2))
        self.last, self.pool = nn.Conv2d(4, 4, 3), nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pool(self.relu(self.last(self.block(x))))


class Inside(nn.Module):
    """A ReLU that PyTorch's own module calls, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.layer = nn.TransformerEncoderLayer(5, 1, 8, 0.0, self.relu, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.pool(self.relu(self.conv(x))).flatten(1, 2))


def _optional(net: Any, x: torch.Tensor, skip: Any = None) -> torch.Tensor:
    between = net.relu(net.conv(x))
    return between.mean((2, 3)) if skip is None else net.pool(between)


def _drawn(net: Any, x: torch.Tensor) -> torch.Tensor:
    between = net.relu(net.conv(x))
    return net.pool(between) if torch.rand(()) < 0.5 else between[..., ::2, ::2]


def _asked(net: Any, x: torch.Tensor) -> torch.Tensor:
    between = net.relu(net.conv(x))
    return net.pool(between) if not isinstance(x, torch.Tensor) else between.amax(-1)


def _stored(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.tap = net.relu(net.conv(x))
    return net.pool(net.tap) + 0 * x.sum() if not isinstance(x, torch.Tensor) else net.tap.exp()


def _wrapped(net: Any, x: torch.Tensor) -> torch.Tensor:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return 2 * gradients[0]

    between = net.relu(net.conv(x))
    return net.pool(between) + (Twice.apply(between).sum() if isinstance(x, torch.Tensor) else 0)


def _again(net: Any, x: torch.Tensor) -> torch.Tensor:
    from torch.utils.checkpoint import checkpoint

    if not isinstance(x, torch.Tensor):
        return net.pool(net.relu(net.conv(x)))
    between = checkpoint(lambda x: net.relu(net.conv(x)), x, use_reentrant=True)
    return net.pool(between)


ANYTHING = [*NOT_ALONE, _called_twice, _optional, _drawn, _asked, _stored, _wrapped, _again]


def fuse_all(net: nn.Module) -> None:
    """Every ReLU and every maximum, whoever reads what."""
    convert(net)
    for module in net.modules():
        if type(module) is nn.ReLU:
            module.__class__ = fusion.PassingReLU
        elif type(module) is layers.MaxPool2d:
            module.__class__ = fusion.ReadingMaxPool2d


@pytest.mark.parametrize("make", [Shared, Inside, *(lambda w=w: Code(w) for w in ANYTHING)])
def test_any_code_gives_the_same(make: Callable[[], nn.Module]) -> None:
    net, x = make(), image()
    fused = copy.deepcopy(net)
    fuse_all(fused)
    for seed in range(8):
        torch.manual_seed(seed)
        theirs = outcome(net, x)
        torch.manual_seed(seed)
        assert_same(outcome(fused, x), theirs)


def _replace_forward(net: Any) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        between = self.relu(self.conv(x))
        return self.pool(between) + between.sum()

    net.forward = types.MethodType(forward, net)


def _set(name: str, module: Callable[[Any], nn.Module]) -> Callable[[Any], None]:
    return lambda net: setattr(net, name, module(net))


def _want_indices(net: Any) -> None:
    net.pool.return_indices = True
    net.way = lambda net, x: net.pool(net.relu(net.conv(x)))[1] + 0.0 * net.conv(x).sum()


def _take_another_way(net: Any) -> None:
    net.way = lambda net, x: net.relu(net.conv(x))


AFTERWARDS: list[Callable[[Any], Any]] = [
    _replace_forward, _want_indices, _take_another_way,
    _set("pool", lambda net: nn.Identity()), _set("relu", lambda net: nn.LeakyReLU()),
    _set("relu", lambda net: copy.deepcopy(net.relu)),
    _set("pool", lambda net: torch.jit.script(net.pool)),
    lambda net: isinstance(net.pool, layers.MaxPool2d) and revert(net.pool),
    lambda net: isinstance(net.pool, layers.MaxPool2d) and convert(net.pool, fuse=True),
    lambda net: convert(net) and None,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("change", AFTERWARDS)
def test_what_is_changed_after_fusing_does_as_it_would_have(change: Callable[[Any], Any]) -> None:
    net, x = Code(lambda net, x: net.pool(net.relu(net.conv(x)))), image()
    fused = copy.deepcopy(net)
    assert convert(fused, fuse=True).fused
    for each in (net, fused):
        change(each)
    assert_same(outcome(fused, x), outcome(net, x))


def test_changes_of_the_input_are_not_overlooked() -> None:
    x = torch.randn(2, 3)
    late = fusion.Deferred.of(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="changed in place before its output was read"):
        late.sum()


@pytest.mark.parametrize(
    "read",
    [
        lambda t: torch.from_numpy(t.detach().numpy()), lambda t: torch.tensor(t.tolist()),
        lambda t: t[0], lambda t: t.clone(), lambda t: torch.cat([t, t]), lambda t: t @ t.T,
        lambda t: torch.from_dlpack(t.detach()), lambda t: pickle.loads(pickle.dumps(t.detach())),
        lambda t: copy.deepcopy(t.detach()), lambda t: torch.tensor(t.shape), lambda t: t.data,
        lambda t: torch.tensor(float(t.detach().sum())), lambda t: torch.stack([*t]),
        torch.ops.aten.relu, lambda t: torch.special.expit(t).type(torch.float64),
    ],
)  # fmt: skip
def test_who_reads_what_is_not_made_reads_a_relu(read: Callable[[torch.Tensor], Any]) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    late = fusion.Deferred.of(x)
    assert isinstance(late, torch.Tensor)
    assert torch.equal(read(late), read(x.relu()))
    assert repr(late) == repr(late.value())


# Hooks


def _modules(net: Any) -> dict[str, nn.Module]:
    return {"conv": net[0], "relu": net[1], "pool": net[2]}


HOOKS: dict[str, Callable[[nn.Module, list[Any]], Any]] = {
    "after": lambda m, seen: m.register_forward_hook(lambda m, i, o: seen.extend([*i, o.clone()])),
    "before": lambda m, seen: m.register_forward_pre_hook(lambda m, i: seen.append(i[0].clone())),
    "changes": lambda m, seen: m.register_forward_hook(lambda m, i, o: o - 0.25),
    "changes before": lambda m, seen: m.register_forward_pre_hook(lambda m, i: (i[0] - 0.25,)),
    "back": lambda m, seen: m.register_full_backward_hook(lambda m, i, o: seen.extend([*i, *o])),
}


@pytest.mark.parametrize("name", ["conv", "relu", "pool"])
@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("early", [False, True])
def test_hooks_see_what_they_saw(name: str, kind: str, early: bool) -> None:
    def run(change: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net, seen = row(), []
        hook = lambda: HOOKS[kind](_modules(net)[name], seen)  # noqa: E731
        if early:
            hook()
        if change:
            assert convert(net, fuse=True).fused
        if not early:
            hook()
        return outcome(net, image()) + [t.detach() for t in seen if t is not None]

    assert_same(run(True), run(False))


def test_what_a_hook_of_a_convolution_sees_is_overwritten() -> None:
    net, seen = row(inplace=True), []
    net[0].register_forward_hook(lambda m, i, o: seen.append(o.detach()))
    assert convert(net, fuse=True).fused == ()
    net(image())
    assert seen[0].min() == 0


# What tracing leaves behind


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = row()
        self.register_buffer("count", torch.zeros(()))
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.last = x
        return self.net(x) + torch.rand(()) + random.random()


def test_a_network_is_not_changed_by_looking_at_it() -> None:
    net = Counting()
    seen: list[Any] = []
    net.net.register_forward_hook(lambda *given: seen.append(given))
    states = torch.get_rng_state(), random.getstate()
    assert convert(net, fuse=True).fused
    assert net.count == 0
    assert net.last is None
    assert not seen
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:`torch.jit.script` is")
@pytest.mark.parametrize("transform", ["vmap", "jvp"])
def test_a_part_that_is_compiled_under_a_transform(transform: str) -> None:
    net, x = Blocks().eval(), image()
    run = {
        "vmap": lambda: torch.func.vmap(net)(x[None]),
        "jvp": lambda: torch.func.jvp(net, (x,), (x,))[1],
    }[transform]
    expected = run()
    convert(net, fuse=True)
    net.pool.compile(backend="eager")
    torch.testing.assert_close(run(), expected)
    torch.testing.assert_close(net(x), Blocks.forward(net, x))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript's
@pytest.mark.parametrize("make", [row, Blocks, lambda: row(pool=nn.MaxPool2d(3, 2, 1))])
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
    exported = str(torch.export.export(net, (x,)).graph)
    assert "poolgrad" not in exported
    assert exported.count("aten.relu") == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("make", [row, Blocks])
def test_torchscript_compiles_pytorchs_modules(make: Callable[[], nn.Module]) -> None:
    net, x = make().eval(), image()
    y = net(x)
    convert(net, fuse=True)
    compiled = torch.jit.script(net)
    assert "poolgrad" not in str(compiled.inlined_graph)
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
    assert "ops.poolgrad" not in str(exported.graph)
    assert "poolgrad::" not in str(traced.inlined_graph)
    for run in (exported.module(), traced, torch.fx.symbolic_trace(module)):
        assert torch.equal(run(x), y)
    for own in ({"ties": "zero"}, {"dilation": 2}, {"padding": 2}):
        module = getattr(layers, f"ReLUMaxPool{dims}d")(3, **own)
        exported = torch.export.export(module, (x,))
        assert "poolgrad" in str(exported.graph)
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
