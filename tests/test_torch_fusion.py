"""`convert(model, fuse=True)`: a ReLU and the maximum that is its only reader become one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402

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
    assert "fused in nn.Sequential only, as torch.fx says TraceError: " in said
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


NOT_ALONE = [_read_twice, _called_twice, _relu_twice, _given_back, _other_in_training, _function]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        *(lambda way=way: Code(way) for way in NOT_ALONE),
        lambda: Code(_overwritten, inplace=True),
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
    assert type(net) is fusion.FusedSequential
    assert_same([net[:2](x), net[2:](x), net(x)], parts)
    between = x
    for layer, expected in zip(net, [None, parts[0], parts[2]], strict=True):
        between = layer(between)
        assert expected is None or torch.equal(between, expected)


@pytest.mark.parametrize("make", [row, Blocks])
def test_hooks_see_what_they_saw(make: Callable[[], Any]) -> None:
    net, x = make().eval(), image()
    relu, pool = next(m for m in net.modules() if type(m) is nn.ReLU), None
    seen: list[torch.Tensor] = []
    relu.register_forward_hook(lambda module, inputs, y: seen.append(y))
    y = net(x)
    assert convert(net, fuse=True).fused
    assert torch.equal(net(x), y)
    pool = next(m for m in net.modules() if isinstance(m, nn.MaxPool2d))
    pool.register_forward_hook(lambda module, inputs, y: seen.append(y))
    assert torch.equal(net(x), y)
    theirs, alone, both, last = seen
    assert torch.equal(theirs, alone)
    assert torch.equal(theirs, both)
    assert torch.equal(last, net.get_submodule("pool")(theirs) if make is Blocks else y)


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
        torch.testing.assert_close(a, b)
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
