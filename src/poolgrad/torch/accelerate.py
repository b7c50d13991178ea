"""Computes PyTorch's own poolings with poolgrad's kernels, wherever they are called from.

Kernels are registered in PyTorch's dispatcher, so that modules, functional calls and functions of
PyTorch that pool inside all use them. Calls that poolgrad does not support, or does not compute
faster, go to PyTorch's kernels.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable
from functools import partial, wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from itertools import product
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch
from torch import Tensor

from poolgrad.functional import FUNCTIONS
from poolgrad.torch import triton
from poolgrad.torch._compat import version_of
from poolgrad.torch.arrays import is_direct_for_kernels, pads_at_most_half
from poolgrad.torch.base import called, is_usual
from poolgrad.windows import brief

P = ParamSpec("P")
R = TypeVar("R")

# For each device, the keys under which PyTorch's dispatcher finds kernels.
_CPU, _GPU = ("CPU", "AutogradCPU"), ("CUDA", "AutogradCUDA")
_ENTERED_AGAIN = (isgeneratorfunction, iscoroutinefunction, isasyncgenfunction)


# The operators of PyTorch from which all others are composed, by their names in `torch.ops.aten`.
_OPERATORS = ["max_pool1d", "avg_pool1d"]
for _d in ("2d", "3d"):
    _OPERATORS += [f"max_pool{_d}", f"max_pool{_d}_with_indices", f"avg_pool{_d}"]
    _OPERATORS += [f"adaptive_max_pool{_d}", f"_adaptive_avg_pool{_d}", f"fractional_max_pool{_d}"]


def _kernel(name: str, before: Any) -> Callable[..., Any]:
    """Return a kernel that uses poolgrad's where both compute the same, and PyTorch's otherwise.

    `before` is the kernel of PyTorch that it replaces.
    """
    schema = getattr(torch.ops.aten, name).default._schema
    # The arguments after the input have the names of those of poolgrad's function.
    names = [a.name.replace("random", "_random") for a in schema.arguments[1:]]
    function: Any = FUNCTIONS[name.removeprefix("_").removesuffix("_with_indices")]
    dims, with_indices = int(function.__name__[-2]), len(schema.returns) == 2
    fixed = {"return_indices": True} if with_indices else {}
    # For bins and fractional windows PyTorch accepts no list of one number for all axes.
    sizes = [n for n in names if n.endswith("_size")] if "output_size" in names else []
    drawn, fitting = "_random_samples" in names, name == "avg_pool3d"

    def fits(x: Tensor, given: dict[str, Any]) -> bool:
        """Whether both compute the same with these arguments, and poolgrad no slower."""
        pads = given.get("padding")
        return (
            all(len(given[name]) == dims for name in sizes)
            and (not pads or pads_at_most_half(pads, given["kernel_size"]))
            and not (drawn and _refuses_samples(given["_random_samples"], x))
            and not (fitting and _is_smaller(x, given["kernel_size"]))
        )

    def kernel(keys: Any, x: Tensor, *args: Any, **more: Any) -> Any:
        theirs = partial(before.call_boxed, keys, x, *args, **more)
        if not (is_direct_for_kernels(x) and is_usual(x, dims)):
            return theirs()
        given = dict(zip(names, args, strict=False)) | more
        if not fits(x, given):
            return theirs()
        if given.get("stride") == []:  # stands for the kernel size
            del given["stride"]
        made = called(function, x, given | fixed, theirs)
        if with_indices:
            _require_unchanged(*made)
        return made

    return kernel


def _refuses_samples(samples: Tensor, x: Tensor) -> bool:
    """Whether PyTorch refuses these samples, for which it has no derivative."""
    plain = is_direct_for_kernels(samples) and samples.device == x.device
    return not plain or samples.dtype != x.dtype or samples.requires_grad


def _is_smaller(x: Tensor, kernel_size: list[int]) -> bool:
    """Whether the volume without padding is smaller than a window."""
    sizes = kernel_size if len(kernel_size) == 3 else kernel_size * 3
    return any(n < k for n, k in zip(x.shape[-3:], sizes, strict=True))


def _require_unchanged(y: Tensor, indices: Tensor) -> None:
    """Make the backward pass of `y` raise if `indices` were changed in place, as in PyTorch.

    The backward pass of poolgrad does not read the indices, so only a weak reference is kept.
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


def _devices() -> list[tuple[str, str]]:
    """Return the dispatch keys of the devices that have kernels."""
    gpu = torch.cuda.is_available() and triton.is_installed()
    return [_CPU, _GPU] if gpu else [_CPU]


def _registered() -> torch.library.Library:
    """Register the kernels in PyTorch's dispatcher for as long as the returned library lives."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*verrid", UserWarning)  # overriding is the purpose
            for name, keys in product(_OPERATORS, _devices()):
                if keys == _GPU and "fractional" in name:  # poolgrad has no kernels
                    continue
                # Both before registering: a kernel for one key changes the lookup of the other.
                before = [torch.library.get_kernel(f"aten::{name}", key) for key in keys]
                for key, kernel in zip(keys, before, strict=True):
                    ours = _kernel(name, kernel)
                    library.impl(name, ours, key, with_keyset=True, allow_override=True)
    except BaseException:  # such as Ctrl-C; a traceback may keep the library alive
        library._destroy()
        raise
    return library


class accelerate:
    """Compute the poolings of PyTorch with poolgrad, in functions, modules and their callers.

    This applies to tensors on the CPU and, where poolgrad has Triton kernels, on GPUs.

    It is active until `stop`; as a context manager, until the end of the block; as a decorator,
    while the function runs. It may be nested. It applies to all threads of the process: start it
    before other threads pool.

    It replaces the kernels of the operators that PyTorch's functions and modules call:
    ``max_pool``, ``avg_pool``, ``adaptive_max_pool``, ``adaptive_avg_pool`` and
    ``fractional_max_pool`` in one to three dimensions, and therefore also ``lp_pool`` and
    ``local_response_norm``. Results, indices, gradients and errors are those of PyTorch. PyTorch's
    kernels compute what poolgrad's do not support: integers, other devices, tensor subclasses,
    transformations of `torch.func`, and programs that `torch.compile` traces.

    See Also
    --------
    convert : Replaces the modules of a network, which can then be saved.

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

    # The kernels are registered while there is at least one user.
    _users: ClassVar[set[accelerate]] = set()
    _library: ClassVar[torch.library.Library | None] = None
    _is_registering: ClassVar[bool] = False
    # Reentrant, because a signal handler that accelerates may run while the lock is held.
    _lock: ClassVar = threading.RLock()

    def __init__(self) -> None:
        self.__enter__()

    def __enter__(self) -> accelerate:
        shared = accelerate
        try:
            with self._lock:
                self._users.add(self)
                if shared._library is None and not shared._is_registering:
                    shared._is_registering = True
                    try:
                        shared._library = _registered()
                    finally:
                        shared._is_registering = False
        except BaseException:  # such as Ctrl-C
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Restore PyTorch's kernels, unless another `accelerate` is active; may be called twice."""
        with self._lock:
            self._users.discard(self)
            library = accelerate._library
            if not self._users and library is not None:
                accelerate._library = None  # first, because a signal handler may set another
                library._destroy()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Return a function that runs with poolgrad's kernels; this object itself is stopped.

        Raises
        ------
        TypeError
            If it is not a function, or a generator or coroutine function.
        """
        self.stop()
        if not callable(function) or any(is_such(function) for is_such in _ENTERED_AGAIN):
            raise TypeError(
                "accelerate() cannot decorate generators and coroutines: use it as a context "
                f"manager inside them, got {brief(function)}"
            )

        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            with accelerate.__new__(accelerate):  # started by `with`, which always stops it
                return function(*args, **kwargs)

        return run
