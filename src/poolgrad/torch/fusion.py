"""A ReLU and the maximum that reads it become one: what is between is not made or kept.

Such a ReLU gives a tensor that is not made yet. The maximum takes the ReLU's input instead; whoever
else reads the tensor, it is made. So numbers and gradients do not depend on who reads what, and
what `fuse` finds out about a network only decides where this is worth while.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from poolgrad.torch._compat import (
    has_global_hooks,
    tree_map_only,
    version_of,
    without_torch_function,
    wrapper_subclass,
)
from poolgrad.torch.arrays import is_plain
from poolgrad.torch.modules import Maximum, Pool
from poolgrad.torch.pools import MaxPool1d, MaxPool2d, MaxPool3d

# What a ReLU gives


class Deferred(Tensor):
    """What a ReLU gives, made when somebody reads it."""

    source: Tensor  # the ReLU's input
    version: int | None  # of the input, then
    node: Any  # of autograd's graph
    made: Tensor | None

    @classmethod
    def of(cls, x: Tensor) -> Tensor:
        """The ReLU of a tensor."""
        deferred: Deferred = _Defer.apply(x)  # type: ignore[no-untyped-call]
        with without_torch_function():
            deferred.node = deferred.grad_fn
        deferred.source, deferred.made = x, None
        deferred.version = None if x.is_inference() else version_of(x)
        return deferred

    def unread(self) -> Tensor | None:
        """The ReLU's input, if nobody has read or wrapped this yet."""
        with without_torch_function():
            same = self.grad_fn is self.node
        return self._intact() if self.made is None and same else None

    def value(self) -> Tensor:
        """The tensor that this stands for; the gradient goes the way of this one."""
        if self.made is None:
            with torch.enable_grad():
                self.made = _Make.apply(self)  # type: ignore[no-untyped-call]
        made: Tensor = self.made
        return made

    def _intact(self) -> Tensor:
        if self.version is not None and version_of(self.source) != self.version:
            raise RuntimeError(
                "the input of a fused ReLU was changed in place before its output was read: "
                "convert this network without fuse=True"
            )
        return self.source

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """For what asks tensors: all of PyTorch's functions."""
        args, kwargs = tree_map_only(Deferred, Deferred.value, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """For what does not ask tensors: PyTorch's own C++, under its own differentiation."""
        args, kwargs = tree_map_only(Deferred, _relu_of, (args, kwargs or {}))
        return func(*args, **kwargs)


def _relu_of(deferred: Deferred) -> Tensor:
    return deferred._intact().detach().relu()


class _Defer(torch.autograd.Function):
    """From a tensor to its ReLU, not made: the gradient of a ReLU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x  # not saved: whoever counts what is kept would count what goes with this node
        deferred: Tensor = wrapper_subclass(
            Deferred, x.shape, strides=x.stride(), dtype=x.dtype, device=x.device
        )
        return deferred

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return torch.ops.aten.threshold_backward(gradients[0], ctx.x.detach(), 0)


class _Make(torch.autograd.Function):
    """From what is not made to the same, made."""

    @staticmethod
    def forward(ctx: Any, deferred: Deferred) -> Tensor:
        return _relu_of(deferred)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]


# The modules


class PassingReLU(nn.ReLU):
    """A ReLU that leaves its work to the maximum which reads it."""

    def forward(self, input: Tensor) -> Tensor:
        """The ReLU, not made yet where our kernels could make it."""
        if torch.compiler.is_compiling() or not is_plain(input) or not input.is_floating_point():
            return super().forward(input)
        return super().forward(input) if _is_watched(self) else Deferred.of(input)

    def __prepare_scriptable__(self) -> nn.Module:
        """What TorchScript compiles in its place."""
        return nn.ReLU(self.inplace)


class _Reading(Maximum):
    """A maximum that does the work of a `PassingReLU`, too."""

    def forward(self, input: Tensor) -> Any:
        """The maximum of the input."""
        if type(input) is Deferred:
            source = None if self.return_indices else input.unread()
            if source is not None:
                return self.rectified(source)
            input = input.value()
        return super().forward(input)


def _reading(pool: type[Pool]) -> type[nn.Module]:
    return type(f"Reading{pool.__name__}", (_Reading, pool), {"__module__": __name__})


ReadingMaxPool1d, ReadingMaxPool2d, ReadingMaxPool3d = map(
    _reading, (MaxPool1d, MaxPool2d, MaxPool3d)
)
_READERS: dict[type[nn.Module], type[nn.Module]] = {
    MaxPool1d: ReadingMaxPool1d,
    MaxPool2d: ReadingMaxPool2d,
    MaxPool3d: ReadingMaxPool3d,
}
_BEFORE: dict[type[nn.Module], type[nn.Module]] = {
    **{reader: pool for pool, reader in _READERS.items()},
    PassingReLU: nn.ReLU,
}


def _is_watched(module: nn.Module) -> bool:
    """Whether a call of it is more than its forward."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks) or has_global_hooks()


# Where it is worth while


class Fused(NamedTuple):
    """What was found in a network: ReLUs with their maxima, and why there may be more."""

    pairs: list[tuple[nn.Module, nn.Module]]
    obstacle: str = ""


def fuse(model: nn.Module) -> Fused:
    """Let each maximum of ours that alone reads a ReLU do its work, in place."""
    for module in model.modules():
        unfuse(module)
    pairs, obstacle = [], ""
    try:
        pairs = _pairs_of_graphs(model)
    except Exception as error:  # whatever the network's own code makes of what is no tensor
        obstacle = f"{type(error).__name__}: {error}".partition("\n")[0]
        pairs = list(_neighbours(model))
    for relu, pool in pairs:
        relu.__class__ = PassingReLU
        pool.__class__ = _READERS[type(pool)]
    return Fused(pairs, obstacle)


def before(module: nn.Module) -> type[nn.Module]:
    """The class of a module before `fuse`."""
    return _BEFORE.get(type(module), type(module))


def unfuse(module: nn.Module) -> None:
    """Undo what `fuse` did to a module."""
    module.__class__ = before(module)


# Modules that give a tensor of their own, which nobody else has if they are not watched: it makes
# no difference then whether a ReLU overwrites it.
_MAKERS = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm,
)  # fmt: skip


def _may_pass(relu: Any, made_by: nn.Module | None) -> bool:
    own = made_by is not None and type(made_by) in _MAKERS and not _is_watched(made_by)
    return type(relu) is nn.ReLU and (own or not relu.inplace)


def _may_read(pool: Any) -> bool:
    """Whether no window may be empty, which would be 0, and there are no indices of zeros."""
    windows = type(pool) in _READERS and pool.dilation in (1, (1,) * pool.dims)
    return windows and not pool.return_indices and pool._is_pytorchs()


def _neighbours(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """ReLUs with maxima behind them, in each `nn.Sequential`."""
    for module in model.modules():
        if type(module) is nn.Sequential:
            line = [None, *module]
            for made_by, relu, pool in zip(line, line[1:], line[2:], strict=False):
                if _may_pass(relu, made_by) and _may_read(pool):
                    yield relu, pool


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return isinstance(module, Pool) or super().is_leaf_module(module, name)


class _Calls:
    """The modules that a network calls in one mode.

    What is traced is a copy, whose parameters are the network's: it runs the network's own code,
    which may keep what it is given, count its calls or draw random numbers.
    """

    def __init__(self, model: nn.Module, training: bool) -> None:
        own: dict[int, Any] = {id(p): p for p in model.parameters()}
        for module in model.modules():
            hooks = (value for name, value in vars(module).items() if name.endswith("_hooks"))
            own |= {id(value): OrderedDict() for value in hooks}
        twin = deepcopy(model, own)
        for module in twin.modules():
            module.training = training
        state = random.getstate()
        with torch.random.fork_rng(devices=[]):
            graph = _Tracer().trace(twin)
        random.setstate(state)
        modules = dict(model.named_modules(remove_duplicate=False))
        nodes = (node for node in graph.nodes if node.op == "call_module")
        self.called: dict[fx.Node, nn.Module] = {node: modules[str(node.target)] for node in nodes}
        self._times = Counter(self.called.values())

    def beside(self, node: fx.Node, others: Collection[fx.Node]) -> nn.Module | None:
        """The only other module there, if this one is called once."""
        if self._times[self.called[node]] != 1 or len(others) != 1:
            return None
        (other,) = others
        return self.called.get(other)


def _pairs_of_graphs(model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """ReLUs and maxima that read nothing else and are read by nothing else, in either mode."""
    readers: dict[nn.Module, set[Any]] = defaultdict(set)  # by ReLU, what reads it
    for calls in (_Calls(model, training) for training in (False, True)):
        for node, module in calls.called.items():
            read = node.all_input_nodes
            if type(module) is nn.ReLU:
                alone = len(read) == 1 and len(read[0].users) == 1
                passes = alone and _may_pass(module, calls.beside(node, read))
                readers[module].add(calls.beside(node, node.users) if passes else None)
    pools = Counter(pool for only in readers.values() for pool in only)
    return [
        (relu, pool)
        for relu, (pool, *others) in readers.items()
        if not others and _may_read(pool) and pools[pool] == 1
    ]
