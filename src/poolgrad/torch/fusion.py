"""Fuses a ReLU with the maximum that reads it: the tensor between them is not computed or kept.

The ReLU returns a lazy tensor (`LazyReLU`). The maximum reads the ReLU's input instead. If anything
else reads the lazy tensor, its value is computed. Results and gradients therefore do not depend on
the readers; `fuse` only decides which pairs of a network are worth fusing.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from poolgrad.torch._compat import (
    has_global_hooks,
    is_observed,
    is_transformed,
    tree_map_only,
    version_of,
    without_dispatch_modes,
    without_torch_function,
    without_transforms,
    wrapper_subclass,
)
from poolgrad.torch.arrays import checked, is_direct_for_kernels
from poolgrad.torch.modules import Maximum, Pool
from poolgrad.torch.pools import MaxPool1d, MaxPool2d, MaxPool3d

# The lazy tensor


@contextmanager
def _as_created() -> Iterator[None]:
    """Restore the circumstances in which lazy ReLUs are created.

    What a reader computes is stored for all readers. It must not depend on inference mode,
    transformations or modes that are active around the first of them.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(without_torch_function())
        if is_transformed():
            stack.enter_context(without_transforms())
        if is_observed():
            stack.enter_context(without_dispatch_modes())
        yield


class LazyReLU(Tensor):
    """The output of a ReLU, computed when it is first read."""

    source: _Source
    node: Any  # of autograd's graph
    computed: Tensor | None
    is_fused: bool  # whether a maximum has read the source instead

    @classmethod
    def of(cls, x: Tensor) -> Tensor:
        """Return the lazy ReLU of a tensor."""
        source = _Source(x)
        lazy: LazyReLU = _Lazy.apply(x, source)  # type: ignore[no-untyped-call]
        with without_torch_function():
            lazy.node = lazy.grad_fn
        lazy.source, lazy.computed, lazy.is_fused = source, None, False
        return lazy

    def take_source(self) -> Tensor | None:
        """Return the ReLU's input if this tensor has not been read or wrapped yet, else None."""
        with without_torch_function():
            same = self.grad_fn is self.node
        if self.computed is not None or not same:
            return None
        self.is_fused = True
        return self.source.intact()

    def value(self) -> Tensor:
        """Return the ReLU's output; its gradient flows through this tensor."""
        if self.computed is None:
            with _as_created():
                self.computed = _Compute.apply(self)  # type: ignore[no-untyped-call]
        computed: Tensor = self.computed
        return computed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute the ReLU for PyTorch's Python functions.

        Raises
        ------
        RuntimeError
            If the gradient of this tensor is asked for after a maximum has read the ReLU's input:
            that of the maximum does not flow through this tensor.
        """
        if func in _OF_GRADIENTS:
            tree_map_only(LazyReLU, _refuse_if_fused, (args, kwargs))
        args, kwargs = tree_map_only(LazyReLU, LazyReLU.value, (args, kwargs or {}))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute the ReLU for PyTorch's C++ code, which runs below autograd.

        Raises
        ------
        RuntimeError
            If the code changes this tensor: the change would be lost.
        """
        arguments = func._schema.arguments
        given = {a.name: v for a, v in zip(arguments, args, strict=False)} | (kwargs or {})
        written = (a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
        if any(isinstance(given.get(name), LazyReLU) for name in written):
            raise RuntimeError(
                f"the output of a fused ReLU cannot be changed by {func}: convert this network "
                "without fuse=True"
            )
        args, kwargs = tree_map_only(LazyReLU, _relu_of, (args, kwargs or {}))
        return func(*args, **kwargs)


# What reads the gradient of a tensor, or a hook that does.
_grad_fn: Any = Tensor.grad_fn
_OF_GRADIENTS = {
    Tensor.register_hook,
    Tensor.retain_grad,
    _grad_fn.__get__,
    torch.autograd.grad,
}


def _refuse_if_fused(lazy: LazyReLU) -> None:
    if lazy.is_fused:
        raise RuntimeError(
            "the gradient of a fused ReLU's output is not known after its maximum has read it: "
            "register hooks before, or convert this network without fuse=True"
        )


class _Source:
    """The input of a lazy ReLU, and where the ReLU's gradient is zero.

    The gradient is determined when the output is first read, as PyTorch's ReLU keeps its output:
    the input may be changed in place afterwards.
    """

    def __init__(self, x: Tensor) -> None:
        # An alias with the present place in the graph: `detach_`, `requires_grad_` and `data`
        # may change the tensor itself, which PyTorch's ReLU does not read again.
        self._x = x[...] if x.requires_grad and torch.is_grad_enabled() else x.detach()
        self._closed: Tensor | None = None
        self._version = version_of(x)

    def intact(self) -> Tensor:
        """Return the input.

        Raises
        ------
        RuntimeError
            If it was changed in place.
        """
        if version_of(self._x) != self._version:
            raise RuntimeError(
                "the input of a fused ReLU was changed in place before its output was read: "
                "convert this network without fuse=True"
            )
        return self._x

    def closed(self) -> Tensor:
        """Return where the gradient is zero: a private tensor of one byte for each element."""
        if self._closed is None:
            with _as_created():
                self._closed = self._checked() <= 0  # false for NaN, as in PyTorch
        return self._closed

    def relu(self) -> Tensor:
        """Return the ReLU's output."""
        if self._x.requires_grad:
            self.closed()
        return self._checked().relu()

    def _checked(self) -> Tensor:
        """Return the input, without its graph, for operations of PyTorch."""
        return checked("the input of a fused ReLU", self.intact().detach())


def _relu_of(lazy: LazyReLU) -> Tensor:
    return lazy.source.relu()


class _Lazy(torch.autograd.Function):
    """Creates the lazy ReLU of a tensor; its backward pass is that of ReLU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: _Source) -> Tensor:
        ctx.source = source
        lazy: Tensor = wrapper_subclass(
            LazyReLU, x.shape, strides=x.stride(), dtype=x.dtype, device=x.device
        )
        return lazy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].masked_fill(ctx.source.closed(), 0), None


class _Compute(torch.autograd.Function):
    """Computes the value of a lazy tensor."""

    @staticmethod
    def forward(ctx: Any, lazy: LazyReLU) -> Tensor:
        return _relu_of(lazy)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0]


# The modules


class FusedReLU(nn.ReLU):
    """A ReLU that returns a lazy tensor, for the maximum that reads it."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the ReLU: a lazy tensor where the kernels support the input.

        A tensor of inference mode has no version counter, which tells whether it was changed.
        """
        plain = not torch.compiler.is_compiling() and is_direct_for_kernels(input)
        if plain and input.is_floating_point() and _has_version(input) and not _is_watched(self):
            return LazyReLU.of(input)
        return super().forward(input)

    def __prepare_scriptable__(self) -> nn.Module:
        """Return the module that TorchScript compiles instead."""
        return nn.ReLU(self.inplace)


class _FusedMaximum(Maximum):
    """A maximum that also applies the ReLU of a `FusedReLU`."""

    def forward(self, input: Tensor) -> Any:
        """Return the maximum of the input."""
        if type(input) is LazyReLU:
            source = None if self.return_indices else input.take_source()
            if source is not None:
                return self.rectified(source)
            input = input.value()
        return super().forward(input)


def _fused_maximum(pool: type[Pool]) -> type[nn.Module]:
    return type(f"Reading{pool.__name__}", (_FusedMaximum, pool), {"__module__": __name__})


ReadingMaxPool1d, ReadingMaxPool2d, ReadingMaxPool3d = map(
    _fused_maximum, (MaxPool1d, MaxPool2d, MaxPool3d)
)
_FUSED: dict[type[nn.Module], type[nn.Module]] = {
    MaxPool1d: ReadingMaxPool1d,
    MaxPool2d: ReadingMaxPool2d,
    MaxPool3d: ReadingMaxPool3d,
}
_BEFORE: dict[type[nn.Module], type[nn.Module]] = {
    **{reader: pool for pool, reader in _FUSED.items()},
    FusedReLU: nn.ReLU,
}


def _has_version(x: Tensor) -> bool:
    """Whether PyTorch counts the changes of a tensor, and of results of its operations."""
    return not (x.is_inference() or torch.is_inference_mode_enabled())


def _is_watched(module: nn.Module) -> bool:
    """Whether hooks observe the calls of a module."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in hooks) or has_global_hooks()


# Which modules are fused


class Fused(NamedTuple):
    """The fused pairs of ReLU and maximum, and why the network could not be traced, if so."""

    pairs: list[tuple[nn.Module, nn.Module]]
    obstacle: str = ""


def fuse(model: nn.Module) -> Fused:
    """Fuse each maximum of poolgrad that is the only reader of a ReLU with it, in place."""
    for module in model.modules():
        unfuse(module)
    pairs, obstacle = [], ""
    try:
        pairs = _pairs_of_graphs(model)
    except Exception as error:  # the network's own code may fail on fx proxies
        obstacle = f"{type(error).__name__}: {error}".partition("\n")[0]
        pairs = list(_neighbours(model))
    for relu, pool in pairs:
        relu.__class__ = FusedReLU
        pool.__class__ = _FUSED[type(pool)]
    return Fused(pairs, obstacle)


def before(module: nn.Module) -> type[nn.Module]:
    """Return the class that a module had before `fuse`."""
    return _BEFORE.get(type(module), type(module))


def unfuse(module: nn.Module) -> None:
    """Undo what `fuse` did to a module."""
    module.__class__ = before(module)


# Modules that return a new tensor. Without hooks nothing else can hold this tensor, so an in-place
# ReLU may overwrite it.
_OVERWRITABLE_OUTPUT = (
    nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm,
)  # fmt: skip


def _is_fusible_relu(relu: Any, made_by: nn.Module | None) -> bool:
    own = made_by is not None and type(made_by) in _OVERWRITABLE_OUTPUT and not _is_watched(made_by)
    return type(relu) is nn.ReLU and (own or not relu.inplace)


def _is_fusible_maximum(pool: Any) -> bool:
    """Whether fusing is exact: no window can be empty (result 0), and no indices are returned."""
    windows = type(pool) in _FUSED and pool.dilation in (1, (1,) * pool.dims)
    return windows and not pool.return_indices and pool._equals_pytorch()


def _neighbours(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield each ReLU that is followed by a maximum in an `nn.Sequential`."""
    for module in model.modules():
        if type(module) is nn.Sequential:
            line = [None, *module]
            for made_by, relu, pool in zip(line, line[1:], line[2:], strict=False):
                if _is_fusible_relu(relu, made_by) and _is_fusible_maximum(pool):
                    yield relu, pool


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return isinstance(module, Pool) or super().is_leaf_module(module, name)


class _Calls:
    """The modules that a network calls in training or evaluation mode.

    A copy that shares the network's parameters is traced, because tracing runs the network's own
    code, which may store its inputs, count its calls or draw random numbers.
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
        try:
            with torch.random.fork_rng(devices=[]):
                graph = _Tracer().trace(twin)
        finally:
            random.setstate(state)
        modules = dict(model.named_modules(remove_duplicate=False))
        nodes = (node for node in graph.nodes if node.op == "call_module")
        self.called: dict[fx.Node, nn.Module] = {node: modules[str(node.target)] for node in nodes}
        self._times = Counter(self.called.values())

    def only_neighbour(self, node: fx.Node, others: Collection[fx.Node]) -> nn.Module | None:
        """Return the module of the only other node, if this module is called once, else None."""
        if self._times[self.called[node]] != 1 or len(others) != 1:
            return None
        (other,) = others
        return self.called.get(other)


def _pairs_of_graphs(model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    """Return pairs of a ReLU and the maximum that is its only reader in both modes."""
    readers: dict[nn.Module, set[Any]] = defaultdict(set)  # by ReLU, what reads it
    for calls in (_Calls(model, training) for training in (False, True)):
        for node, module in calls.called.items():
            read = node.all_input_nodes
            if type(module) is nn.ReLU:
                alone = len(read) == 1 and len(read[0].users) == 1
                passes = alone and _is_fusible_relu(module, calls.only_neighbour(node, read))
                readers[module].add(calls.only_neighbour(node, node.users) if passes else None)
    pools = Counter(pool for only in readers.values() for pool in only)
    return [
        (relu, pool)
        for relu, (pool, *others) in readers.items()
        if not others and _is_fusible_maximum(pool) and pools[pool] == 1
    ]
