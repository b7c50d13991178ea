"""A ReLU and the maximum that is its only reader become one: what is between is not made or kept.

Neighbours in an `nn.Sequential` are called as one by it. Elsewhere it is the network's own code
that calls them: there the ReLU passes on what it gets, and the maximum does the work of both. That
takes the graph of all calls, to know that nobody else reads what the ReLU gives.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import _has_any_global_hook

from poolgrad.torch.arrays import pools
from poolgrad.torch.modules import Maximum, MaxPool1d, MaxPool2d, MaxPool3d, Pool


class Fused(NamedTuple):
    """What was found in a network: ReLUs with their maxima, and why there may be more."""

    pairs: list[tuple[nn.Module, nn.Module]]
    obstacle: str = ""


def fuse(model: nn.Module) -> Fused:
    """Make one of each ReLU and the maximum of ours that is its only reader, in place."""
    for module in model.modules():
        unfuse(module)
    pairs = []
    for module in model.modules():
        if type(module) is nn.Sequential and "forward" not in vars(module):
            own = [(relu, pool) for relu, pool in _steps(module) if pool is not None]
            if own:
                module.__class__ = FusedSequential
                pairs += own
    try:
        elsewhere = [p for p in _pairs_of_graphs(model) if p not in pairs]
    except Exception as error:  # whatever the network's own code makes of what is no tensor
        return Fused(pairs, f"{type(error).__name__}: {error}".partition("\n")[0])
    for relu, pool in elsewhere:
        relu.__class__ = PassingReLU
        pool.__class__ = _READERS[type(pool)]
    return Fused(pairs + elsewhere)


def before(module: nn.Module) -> type[nn.Module]:
    """The class of a module before `fuse`."""
    return _BEFORE.get(type(module), type(module))


def unfuse(module: nn.Module) -> None:
    """Undo what `fuse` did to a module."""
    module.__class__ = before(module)


# Neighbours


class FusedSequential(nn.Sequential):
    """An `nn.Sequential` that calls a ReLU and the maximum behind it as one."""

    def forward(self, input: Any) -> Any:
        """All modules, one after the other."""
        for module, pool in _steps(self):
            if pool is None:
                input = module(input)
            elif _is_watched(module) or _is_watched(pool):
                input = pool(module(input))
            else:
                input = pool.rectified(input)
        return input

    def __prepare_scriptable__(self) -> nn.Module:
        """What TorchScript compiles in its place."""
        return nn.Sequential(OrderedDict(self._modules))


def _steps(modules: nn.Sequential) -> Iterator[tuple[nn.Module, Any]]:
    """The modules; beside a ReLU the maximum behind it, if they are one step."""
    every, k = [None, *modules, None], 1
    while k + 1 < len(every):
        made_by, module, after = every[k - 1 : k + 2]
        one = _fit(module, after) and (not module.inplace or isinstance(made_by, _MAKERS))
        yield module, after if one else None
        k += 1 + one


# Modules that give a tensor of their own: whether a ReLU overwrites it makes no difference.
_MAKERS = (_ConvNd, _NormBase, nn.GroupNorm, nn.LayerNorm, nn.Linear)


def _fit(relu: Any, pool: Any) -> bool:
    """Whether they are exactly these, no window may be empty, and no index of a zero is wanted."""
    return (
        type(relu) is nn.ReLU
        and type(pool) in _READERS
        and pool.dilation in (1, (1,) * pool.dims)
        and not pool.return_indices
        and pool._is_pytorchs()
    )


def _is_watched(module: nn.Module) -> bool:
    """Whether a call of it is more than its forward."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return (
        any(getattr(module, name) for name in hooks)
        or "forward" in vars(module)
        or _has_any_global_hook()
    )


# Elsewhere


class PassingReLU(nn.ReLU):
    """A ReLU that leaves its work to the maximum which is its only reader."""

    def forward(self, input: Tensor) -> Tensor:
        """The input, unless somebody looks at what a ReLU gives, or the maximum is not ours."""
        return input if pools(input) and not _is_watched(self) else super().forward(input)

    def __prepare_scriptable__(self) -> nn.Module:
        """What TorchScript compiles in its place."""
        return nn.ReLU(self.inplace)


class _Reading(Maximum):
    """The maximum behind a `PassingReLU`."""

    def forward(self, input: Tensor) -> Any:
        """The maximum of the ReLU of the input."""
        if not pools(input):  # then the ReLU did its work
            return super().forward(input)
        return self.rectified(input)


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
    FusedSequential: nn.Sequential,
}


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return isinstance(module, Pool) or super().is_leaf_module(module, name)


class _Calls:
    """The modules that a network calls in one mode."""

    def __init__(self, model: nn.Module, training: bool) -> None:
        modules = dict(model.named_modules(remove_duplicate=False))
        with _in_mode(model, training):
            graph = _Tracer().trace(model)
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
    sources: dict[nn.Module, set[Any]] = defaultdict(set)  # by maximum, what it reads
    readers: dict[nn.Module, set[Any]] = defaultdict(set)  # by ReLU, what reads it
    for calls in (_Calls(model, training) for training in (False, True)):
        for node, module in calls.called.items():
            read = node.all_input_nodes
            if type(module) in _READERS:
                sources[module].add(calls.beside(node, read))
            elif type(module) is nn.ReLU:
                made = isinstance(calls.beside(node, read), _MAKERS) and len(read[0].users) == 1
                own = made or not module.inplace
                readers[module].add(calls.beside(node, node.users) if own else None)
    return [
        (relu, pool)
        for relu, (pool, *others) in readers.items()
        if not others and _fit(relu, pool) and sources[pool] == {relu}
    ]


@contextmanager
def _in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """All modules training or not; by their flags alone, as a network may do more in `train`."""
    flags = {module: module.training for module in model.modules()}
    try:
        for module in flags:
            module.training = training
        yield
    finally:
        for module, flag in flags.items():
            module.training = flag
