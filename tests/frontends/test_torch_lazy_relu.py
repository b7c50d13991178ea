"""The lazy ReLU of `convert(fuse=True)`: every reader sees the values of a ReLU."""

from __future__ import annotations

import copy
import pickle
import random
import types
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from fusible import NOT_ALONE, Blocks, Code, assert_same, called_twice, image, outcome, row  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from poolgrad import torch as layers  # noqa: E402
from poolgrad.torch import convert, fusion, revert  # noqa: E402

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


ANYTHING = [*NOT_ALONE, called_twice, _optional, _drawn, _asked, _stored, _wrapped, _again]


def fuse_all(net: nn.Module) -> None:
    """Every ReLU and every maximum, whoever reads what."""
    convert(net)
    for module in net.modules():
        if type(module) is nn.ReLU:
            module.__class__ = fusion.FusedReLU
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
    late = fusion.LazyReLU.of(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="changed in place before its output was read"):
        late.sum()


# The circumstances of the ReLU, of its first reader and of the maximum may differ


def _first_read_by(context: Callable[[], Any]) -> Callable[[nn.Sequential, torch.Tensor], Any]:
    def run(net: nn.Sequential, x: torch.Tensor) -> Any:
        between = net[0](x * 1)
        with context():
            between.max()
        return net[1](between), between.sin()

    return run


def _transformed(transform: Callable[..., Any]) -> Callable[[nn.Sequential, torch.Tensor], Any]:
    def run(net: nn.Sequential, x: torch.Tensor) -> Any:
        between = net[0](x * 1)
        one = torch.ones(())
        came = transform(lambda a: a * between + net[1](between).sum(), one)
        between.register_hook(lambda g: 3 * g)
        return came, between * 2, transform(lambda a: a * between, one)

    return run


def _changed(change: Callable[[torch.Tensor], Any]) -> Callable[[nn.Sequential, torch.Tensor], Any]:
    def run(net: nn.Sequential, x: torch.Tensor) -> Any:
        given = x * 1
        between = net[0](given)
        change(given)
        return net[1](between)

    return run


def _in_inference_mode(net: nn.Sequential, x: torch.Tensor) -> Any:
    with torch.inference_mode():
        given = x.clone()
        between = net[0](given)
        given.neg_()
        return net[1](between).clone(), between.is_inference()


def _on_a_tensor_of_inference_mode(net: nn.Sequential, x: torch.Tensor) -> Any:
    with torch.inference_mode():
        given = x.clone()
    between = net[0](given)
    with torch.inference_mode():
        given.neg_()
    return net[1](between), between.is_inference()


def _without_gradient(net: nn.Sequential, x: torch.Tensor) -> Any:
    with torch.no_grad():
        between = [net[0](x), net[0](x)]
        between[1].max()
    return [net[1](b) for b in between], x * 1


def _tracked_later(net: nn.Sequential, x: torch.Tensor) -> Any:
    late = x.detach().clone()
    between = net[0](late)
    late.requires_grad_()
    return net[1](between), between * 2, x * 1


def _fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


CIRCUMSTANCES: dict[str, Callable[[nn.Sequential, torch.Tensor], Any]] = {
    "read in inference mode": _first_read_by(torch.inference_mode),
    "read without gradient": _first_read_by(torch.no_grad),
    "read under a fake mode": _first_read_by(_fake),
    "read under a device": _first_read_by(lambda: torch.device("meta")),
    "vmap": _transformed(lambda f, a: torch.vmap(f)(a.expand(3))),
    "grad": _transformed(lambda f, a: torch.func.grad(lambda a: f(a).sum())(a)),
    "jvp": _transformed(lambda f, a: torch.func.jvp(f, (a,), (a,))[1]),
    "in inference mode": _in_inference_mode,
    "of inference mode": _on_a_tensor_of_inference_mode,
    "without gradient": _without_gradient,
    "tracked later": _tracked_later,
    "detached later": _changed(lambda x: x.detach_()),
    "data set later": _changed(lambda x: setattr(x, "data", -x.data)),
    "data of another shape": _changed(lambda x: setattr(x, "data", torch.zeros(1))),
}


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the fake mode reads it
@pytest.mark.parametrize("name", CIRCUMSTANCES)
def test_the_circumstances_of_a_reader_change_nothing(name: str) -> None:
    def gradient_and_results(net: nn.Sequential) -> list[Any]:
        x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
        results = torch.utils._pytree.tree_leaves(CIRCUMSTANCES[name](net, x))
        tensors = [r for r in results if isinstance(r, torch.Tensor)]
        tracked = [t for t in tensors if t.requires_grad]
        if tracked:
            sum(t.sin().sum() for t in tracked).backward()
        flags = [r for r in results if not isinstance(r, torch.Tensor)]
        return [*(t.requires_grad for t in tensors), *flags, x.grad, *tensors]

    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    expected = gradient_and_results(net)
    assert convert(net, fuse=True).fused
    for came, theirs in zip(gradient_and_results(net), expected, strict=True):
        assert type(came) is type(theirs)
        torch.testing.assert_close(came, theirs, rtol=0, atol=0)


# What reads the gradient of the ReLU's output. The maximum's gradient does not flow through it.
OF_GRADIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "register_hook": lambda r, y: r.register_hook(lambda g: 2 * g),
    "retain_grad": lambda r, y: r.retain_grad(),
    "grad_fn": lambda r, y: r.grad_fn.register_prehook(lambda g: (3 * g[0],)),
    "several hooks": lambda r, y: torch.autograd.graph.register_multi_grad_hook([r], print),
    "grad": lambda r, y: torch.autograd.grad(y.sum() + r.sum(), r),
}


def lazy_pair(x: torch.Tensor) -> tuple[Any, Any]:
    net = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    convert(net, fuse=True)
    return net[0](x), net[1]


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_the_gradient_of_the_output_is_refused_after_the_maximum_has_read_it(name: str) -> None:
    r, pool = lazy_pair(torch.randn(1, 1, 4, 4, requires_grad=True) * 1)
    y = pool(r)
    with pytest.raises(RuntimeError, match="without fuse=True"):
        OF_GRADIENTS[name](r, y)


def test_a_hook_before_the_maximum_works() -> None:
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    for factor in (0, 2):
        r, pool = lazy_pair(x * 1)
        r.register_hook(lambda g, factor=factor: factor * g)
        (gx,) = torch.autograd.grad(pool(r).sum(), x)
        (expected,) = torch.autograd.grad(F.max_pool2d(x.relu(), 2).sum(), x)
        assert torch.equal(gx, factor * expected)


@torch.jit.script
def _incremented(t: torch.Tensor) -> torch.Tensor:
    t.add_(1)
    return t


@pytest.mark.parametrize("change", [_incremented, lambda r: r.set_(torch.ones(1, 1, 4, 4))])
def test_changes_that_would_be_lost_are_refused(change: Callable[[Any], Any]) -> None:
    with torch.no_grad():
        r, _ = lazy_pair(torch.randn(1, 1, 4, 4))
        # TorchScript drops the message.
        with pytest.raises(RuntimeError, match=r"without fuse=True|TorchScript"):
            change(r)


@pytest.mark.parametrize("size", [0, 64])
def test_a_freed_input_is_not_read(size: int) -> None:
    with torch.no_grad():
        r, pool = lazy_pair(x := torch.randn(1, 1, 256, 256))
        x.untyped_storage().resize_(size)
        for read in (torch.sum, pool):
            with pytest.raises(RuntimeError, match="memory"):
                read(r)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_changes_in_other_modes_are_not_overlooked(context: Any) -> None:
    x = torch.randn(2, 3)
    late = fusion.LazyReLU.of(x)
    with context():
        x.neg_()
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
    late = fusion.LazyReLU.of(x)
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


def test_a_network_that_cannot_be_traced_leaves_the_state_of_random_numbers() -> None:
    class Drawing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * random.random() if x.sum() > random.random() * 2 else x

    state = random.getstate()
    assert "torch.fx failed" in str(convert(nn.Sequential(row(), Drawing()), fuse=True))
    assert random.getstate() == state


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:`torch.jit.script` is")
@pytest.mark.slow
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
