"""Every private symbol of PyTorch that poolgrad uses.

Where one is missing, importing poolgrad.torch is an error that names the versions; only the call
cache can be left out.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from poolgrad.private import Private

PRIVATE = Private("torch", "2.13")
_symbol = PRIVATE.symbol

# Tracing and transformations

tracing_state = _symbol("torch._C._get_tracing_state")
set_tracing_state = _symbol("torch._C._set_tracing_state")
is_transformed = _symbol("torch._C._are_functorch_transforms_active")
without_transforms = _symbol("torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack")
innermost_transform = _symbol("torch._C._functorch.peek_interpreter_stack")
transforms = _symbol("torch._C._functorch.get_interpreter_stack")
Transform = _symbol("torch._C._functorch.TransformType")
is_wrapped = _symbol("torch._C._functorch.is_functorch_wrapped_tensor")
_unwrap = _symbol("torch._C._functorch.get_unwrapped")
FunctionalTensorMode = _symbol("torch._subclasses.functional_tensor.FunctionalTensorMode")


def forward_level() -> int:
    """Return the innermost level of forward mode; -1 outside."""
    return forward_ad._current_level


def unwrapped(tensor: Tensor) -> Tensor:
    """Return the tensor inside those that the transformations of `torch.func` make."""
    while is_wrapped(tensor):
        tensor = _unwrap(tensor)
    return tensor


def mode_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which new tensors can be combined with `tensor`: the mode of fake ones.

    A fake tensor can be used outside its mode, where a new tensor would be a real one.
    """
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return nullcontext()
    mode: AbstractContextManager[Any] | None = getattr(tensor, "fake_mode", None)
    return nullcontext() if mode is None else mode


as_quantized = _symbol("torch._make_per_tensor_quantized_tensor")

# Zeros that PyTorch stores as a shape alone: their address is their offset, so 0 or invalid.
is_zero_tensor = _symbol("torch.Tensor._is_zerotensor")

# How many tensors and Python objects refer to a storage, by its `_cdata`
storage_use_count = _symbol("torch._C._storage_Use_Count")


def is_exported_with_triton() -> bool:
    """Whether `torch.export` keeps operators that launch Triton kernels whole."""
    # Looked up on use, because it imports the compiler.
    disabled = _symbol("torch.export._trace.custom_triton_ops_decomposition_disabled")
    return bool(disabled())


_set_strategy = _symbol("torch._C._dynamo.eval_frame.set_code_exec_strategy")
_Strategy = _symbol("torch._C._dynamo.eval_frame._FrameExecStrategy")
_Action = _symbol("torch._C._dynamo.eval_frame._FrameAction")


def skip_by_compiler(function: Any) -> None:
    """Exclude a Python function, and all that it calls, from `torch.compile`.

    After a graph break the compiler runs operators, and would compile their implementations. The
    public decorator, `torch.compiler.disable`, imports the compiler, which takes seconds.
    """
    _set_strategy(function.__code__, _Strategy(_Action.SKIP, _Action.SKIP))


has_global_hooks = _symbol("torch.nn.modules.module._has_any_global_hook")


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place."""
    return tensor._version


# Assertions on devices

assert_later = _symbol("torch._assert_async")

# The call cache: symbols that read tensors and the state of PyTorch

_call_cache_symbols = PRIVATE.symbols_or_none(
    (
        "torch._C._len_torch_dispatch_stack",
        "torch._C._len_torch_function_stack",
        "torch._is_functional_tensor",
        "torch.autograd.forward_ad._current_level",
    ),
    "small calls take longer, and accelerate() changes nothing",
)

# (function of a tensor, its value for a plain tensor)
PLAIN_TENSOR: tuple[tuple[Any, Any], ...] = ()
# (function without arguments or (object, attribute), its value if nothing observes or transforms)
# Without the symbols no call is cached: `bool()` is never True.
UNOBSERVED: tuple[tuple[Any, Any], ...] = ((bool, True),)
if _call_cache_symbols is not None:
    _dispatch_modes, _function_modes, _is_functional, _ = _call_cache_symbols
    PLAIN_TENSOR = ((_is_functional, False),)
    UNOBSERVED = (
        (innermost_transform, None),
        (_dispatch_modes, 0),
        (_function_modes, 0),
        (tracing_state, None),
        ((forward_ad, "_current_level"), -1),
    )


def is_observed() -> bool:
    """Whether a dispatch mode or a torch function mode may observe calls."""
    return _call_cache_symbols is None or _dispatch_modes() > 0 or _function_modes() > 0


has_dlpack_exchange = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
