"""Converts the pooling modules of a network to poolgrad's, and back.

Only the class of a module changes. It stays the same object, so that names, hooks, shared modules
and references to it are kept. poolgrad's classes are subclasses of PyTorch's, so ``isinstance``
holds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from inspect import unwrap
from types import CodeType, FunctionType

from torch import nn

from poolgrad.torch import fusion
from poolgrad.torch.base import SUBCLASSES, Pool, difference_from_pytorch
from poolgrad.windows import flag

# PyTorch's pooling functions: those of its modules, and functions that call them.
_is_pooling = re.compile(
    r"(max|avg|lp|adaptive_max|adaptive_avg|fractional_max)_pool[123]d(_with_indices)?"
    "|local_response_norm"
).fullmatch


@dataclass(frozen=True)
class Module:
    """A module of a network in a report.

    Attributes
    ----------
    names : tuple of str
        Names in the network, several if the module is shared; `""` is the network itself.
    kind : str
        Name of the class before the conversion.
    reason : str
        Why it was not replaced, or which functions it calls; may be empty.
    """

    names: tuple[str, ...]
    kind: str
    reason: str = ""

    def __str__(self) -> str:
        names = ", ".join(name or "(the network)" for name in self.names)
        return f"{names}: {self.kind}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class Report:
    """The result of `convert` or `revert`; printed as a list.

    Attributes
    ----------
    replaced : tuple of Module
        Modules whose class was changed.
    left : tuple of Module
        Pooling modules that were not replaced, and why.
    calls : tuple of Module
        Modules that call pooling functions, which `convert` cannot replace.
    fused : tuple of Module
        Maxima that were fused with a ReLU, and the names of the ReLUs.
    """

    replaced: tuple[Module, ...] = ()
    left: tuple[Module, ...] = ()
    calls: tuple[Module, ...] = ()
    fused: tuple[Module, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} replaced", *(f"  {module}" for module in self.replaced)]
        for title, modules in (
            ("fused", self.fused),
            ("not replaced", self.left),
            ("with calls of pooling functions, which only accelerate() replaces", self.calls),
        ):
            if modules:
                lines += [f"{len(modules)} {title}", *(f"  {module}" for module in modules)]
        return "\n".join(lines)


def convert(model: nn.Module, *, fuse: bool = False) -> Report:
    """Replace PyTorch's pooling modules in a network by poolgrad's, in place.

    The new modules compute the same results in less time and store less for the backward pass.
    Hooks, names, shared modules, ``state_dict`` keys and the training flag are kept. ``isinstance``
    holds, because poolgrad's classes are subclasses of PyTorch's. PyTorch's operators compute what
    poolgrad's kernels do not support (tensors on other devices, tensor subclasses, quantized and
    integer averages), and are used in exported programs.

    Parameters
    ----------
    model : nn.Module
        The network, or one pooling module. It is changed.
    fuse : bool
        If True, also fuse each maximum with the `nn.ReLU` before it in an `nn.Sequential`: the
        tensor between them is neither computed nor stored. Default: False.

    Returns
    -------
    Report
        The modules that were replaced, those that were not and why, the modules that call pooling
        functions, and the fused modules.

    Raises
    ------
    TypeError
        If `model` is not a module, or `fuse` is not True or False.

    See Also
    --------
    revert : Undoes the conversion.
    accelerate : Replaces pooling functions, too.

    Notes
    -----
    A fused maximum computes `relu_max_pool2d`: the same values, except that -0 becomes +0.

    Only modules of exactly PyTorch's classes are replaced, because a subclass may compute something
    else. An `nn.LPPool2d` is replaced if `norm_type` is even and `ceil_mode` is False: PyTorch
    takes no absolute values, while poolgrad does. `nn.MaxUnpool2d` is never replaced: if several
    values have the same index, PyTorch gives the gradient to all of them, poolgrad to the one that
    is kept.

    Examples
    --------
    >>> from torch import nn
    >>> from poolgrad.torch import convert, revert
    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.LPPool2d(3, 2))
    >>> print(convert(net))
    1 replaced
      2: MaxPool2d
    1 not replaced
      3: LPPool2d: norm_type 3 is not even: poolgrad takes absolute values, PyTorch does not
    >>> net[2], isinstance(net[2], nn.MaxPool2d)
    (MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False), True)
    >>> print(revert(net))
    1 replaced
      2: MaxPool2d
    """
    fuse = flag("fuse", fuse)
    replaced, left, calls, modules = [], [], [], _modules(model)
    for module, names in modules.items():
        kind = type(module).__name__
        if functions := _called(module):
            calls.append(Module(names, kind, ", ".join(functions)))
        if not isinstance(module, tuple(SUBCLASSES)) or isinstance(module, Pool):
            continue
        if obstacle := _obstacle(module):
            left.append(Module(names, kind, obstacle))
        else:
            replaced.append(Module(names, kind))
            ours = SUBCLASSES[type(module)]
            # In this order, an interrupted conversion leaves a module that works.
            vars(module).update(ours.added, converted=True)
            module.__class__ = ours
    pairs = fusion.fuse(model) if fuse else []
    fused = [
        Module(modules[pool], type(pool).__name__, f"with the ReLU {', '.join(modules[relu])}")
        for _, relu, pool in pairs
    ]
    return Report(tuple(replaced), tuple(left), tuple(calls), tuple(fused))


def revert(model: nn.Module) -> Report:
    """Undo `convert`: replace poolgrad's modules by PyTorch's, in place.

    Parameters
    ----------
    model : nn.Module
        The network, or a copy of it. It is changed; modules that were created as poolgrad's stay.

    Returns
    -------
    Report
        The modules that were replaced.

    Raises
    ------
    TypeError
        If `model` is not a module.
    """
    replaced = []
    for module, names in _modules(model).items():
        fusion.unfuse(module)
        if isinstance(module, Pool) and module.converted:
            replaced.append(Module(names, type(module).__name__))
            module.become_pytorch()
    return Report(tuple(replaced))


def _modules(model: nn.Module) -> dict[nn.Module, tuple[str, ...]]:
    """Return every module of a network once, with all its names."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__qualname__}")
    names: dict[nn.Module, tuple[str, ...]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names[module] = (*names.get(module, ()), name)
    return names


def _obstacle(module: nn.Module) -> str:
    """Return why a pooling module of PyTorch cannot be replaced; empty if it can."""
    if type(module) not in SUBCLASSES:
        return "a subclass may compute something else"
    if "forward" in vars(module):
        return "its forward was replaced"
    own = [name for name in (*SUBCLASSES[type(module)].added, "converted") if hasattr(module, name)]
    interrupted = vars(module).get("converted") is True  # a conversion or its reversal was
    if own and not interrupted:
        return f"it has attributes that poolgrad's class also defines: {', '.join(own)}"
    return difference_from_pytorch(module)


def _called(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the pooling functions that a module's own methods call."""
    if isinstance(module, nn.LocalResponseNorm):
        return ("local_response_norm",)
    found: set[str] = set()
    for kind in type(module).__mro__:
        if kind.__module__.partition(".")[0] in ("torch", "poolgrad"):
            break
        for value in vars(kind).values():
            function = unwrap(getattr(value, "__func__", value))  # also of decorated ones
            if isinstance(function, FunctionType):
                found |= _names(function.__code__)
    return tuple(sorted(name for name in found if not hasattr(module, name)))


def _names(code: CodeType) -> set[str]:
    inner = (_names(c) for c in code.co_consts if isinstance(c, CodeType))
    return {*filter(_is_pooling, code.co_names)}.union(*inner)
