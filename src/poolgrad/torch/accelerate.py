"""PyTorch's own poolings on our kernels, wherever they are called from.

PyTorch's dispatcher is told of other kernels for its operators, so functional calls, and functions
of PyTorch that pool inside, change as well as modules. What we do not do, or do not do better, goes
to the kernel that was there before.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from poolgrad.functional import FUNCTIONS
from poolgrad.torch._compat import version_of
from poolgrad.torch.arrays import is_plain, pads_little

P = ParamSpec("P")
R = TypeVar("R")

_KEYS = ("CPU", "AutogradCPU")
_ENTERED_AGAIN = (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)


class _Operator(NamedTuple):
    """An operator of PyTorch.

    Attributes
    ----------
    name : str
        What it is called in ``torch.ops.aten``.
    function : str
        Our public function.
    names : tuple of str
        Its arguments after the input, as our function calls them.
    indices : bool
        Whether it gives indices, too.
    """

    name: str
    function: str
    names: tuple[str, ...]
    indices: bool = False


_MAX = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
_AVG = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
_FRACTIONAL = ("kernel_size", "output_size", "_random_samples")

# Those from which all others are composed, by the number of pooled axes.
_OPERATORS = [
    _Operator("max_pool1d", "max_pool1d", _MAX),
    _Operator("avg_pool1d", "avg_pool1d", _AVG[:-1]),
]
for _d in ("2d", "3d"):
    _OPERATORS += [
        _Operator(f"max_pool{_d}", f"max_pool{_d}", _MAX),
        _Operator(f"max_pool{_d}_with_indices", f"max_pool{_d}", _MAX, indices=True),
        _Operator(f"avg_pool{_d}", f"avg_pool{_d}", _AVG),
        _Operator(
            f"adaptive_max_pool{_d}", f"adaptive_max_pool{_d}", ("output_size",), indices=True
        ),
        _Operator(f"_adaptive_avg_pool{_d}", f"adaptive_avg_pool{_d}", ("output_size",)),
        _Operator(
            f"fractional_max_pool{_d}", f"fractional_max_pool{_d}", _FRACTIONAL, indices=True
        ),
    ]


def _kernel(operator: _Operator, before: Any) -> Callable[..., Any]:
    """A kernel that pools as ours do where PyTorch's would do the same, and else is PyTorch's.

    `before`: the kernel that it stands for.
    """
    function, names = FUNCTIONS[operator.function], operator.names
    dims = int(operator.function[-2])
    fixed = {"return_indices": True} if operator.indices else {}
    # Of bins and of fractional windows PyTorch takes no list of one number for all axes.
    sizes = [n for n in names if n.endswith("_size")] if "output_size" in names else []

    def kernel(keys: Any, x: Tensor, *args: Any, **more: Any) -> Any:
        plain = is_plain(x) and x.is_floating_point() and x.numel() > 0
        if plain and x.dim() - dims in (1, 2):
            given = dict(zip(names, args, strict=False)) | more
            pads = given.get("padding")
            if all(len(given[name]) == dims for name in sizes) and (
                not pads or pads_little(pads, given["kernel_size"], given.get("dilation") or [1])
            ):
                try:
                    made = function(x, **_completed(given), **fixed)
                    if operator.indices:
                        _require_unchanged(*made)
                    return made
                except (TypeError, ValueError):
                    pass  # PyTorch says in its own words what is wrong
        return before.call_boxed(keys, x, *args, **more)

    return kernel


def _require_unchanged(y: Tensor, indices: Tensor) -> None:
    """Let the backward pass of `y` raise if `indices` were changed in place, as PyTorch's does.

    Ours does not read them, so a reference that keeps them alive would cost memory for nothing.
    """
    if y.grad_fn is None:
        return
    version, kept = version_of(indices), weakref.ref(indices)

    def check(_: Any) -> None:
        changed = kept()
        if changed is not None and version_of(changed) != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{changed.type()} {list(changed.shape)}] is at version "
                f"{version_of(changed)}; expected version {version} instead."
            )

    y.grad_fn.register_prehook(check)


def _completed(given: dict[str, Any]) -> dict[str, Any]:
    """Without the empty list that stands for the kernel's size as stride."""
    if given.get("stride") == []:
        return {name: value for name, value in given.items() if name != "stride"}
    return given


class _Switch:
    """How many ask for our kernels; while any does, PyTorch's dispatcher has them."""

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._library: torch.library.Library | None = None

    def on(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._library = _told()

    def off(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._library is not None:
                self._library._destroy()
                self._library = None


def _told() -> torch.library.Library:
    """PyTorch's dispatcher, told of our kernels for as long as this library lives."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*verrid", UserWarning)  # that is what this is for
        for operator in _OPERATORS:
            # Both at first: with a kernel for one, the dispatcher takes another for the other.
            before = [torch.library.get_kernel(f"aten::{operator.name}", key) for key in _KEYS]
            for key, kernel in zip(_KEYS, before, strict=True):
                ours = _kernel(operator, kernel)
                library.impl(operator.name, ours, key, with_keyset=True, allow_override=True)
    return library


_switch = _Switch()


class accelerate:
    """Make every pooling of PyTorch on the CPU ours: functions, modules, and what they are in.

    Called, it holds until `stop`; as a context manager until the end of the block; as a decorator
    while the function runs. It may be nested. It holds for all threads of the process: turn it on
    before other threads pool.

    The operators are those that PyTorch's functions and modules end in: ``max_pool``, ``avg_pool``,
    ``adaptive_max_pool``, ``adaptive_avg_pool`` and ``fractional_max_pool`` in one to three
    dimensions, and so ``lp_pool`` and ``local_response_norm``. Results, indices and gradients are
    PyTorch's, and what it refuses is refused in its words. What our kernels do not pool (integers,
    other devices, tensor subclasses, what `torch.func` transforms or `torch.compile` traces) goes
    to the kernel that was there before.

    See Also
    --------
    convert : The same for modules, which may then be saved so.

    Examples
    --------
    >>> import torch
    >>> from torch.nn import functional as F
    >>> from poolgrad.torch import accelerate
    >>> x = torch.rand(1, 8, 32, 32, requires_grad=True)
    >>> with accelerate():
    ...     y = F.max_pool2d(x, 2)
    >>> torch.equal(y, F.max_pool2d(x, 2))
    True

    >>> @accelerate()
    ... def infer(network, images):
    ...     return network(images)

    >>> everywhere = accelerate()
    >>> everywhere.stop()
    """

    def __init__(self) -> None:
        self._holds = False
        self._start()

    def _start(self) -> None:
        if not self._holds:
            self._holds = True
            _switch.on()

    def stop(self) -> None:
        """Give PyTorch its own kernels back, unless others still want ours; twice does no harm."""
        if self._holds:
            self._holds = False
            _switch.off()

    def __enter__(self) -> accelerate:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, with our kernels while it runs; this object holds no longer.

        Raises
        ------
        TypeError
            If it is no function, or one that is left and entered again.
        """
        self.stop()
        if not callable(function) or any(is_such(function) for is_such in _ENTERED_AGAIN):
            raise TypeError(
                "accelerate() decorates functions, and has no end in generators and coroutines: "
                f"use it as a context manager there, got {function!r}"
            )

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with accelerate():
                return function(*args, **kwargs)

        return run
