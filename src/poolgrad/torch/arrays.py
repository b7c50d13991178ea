"""Tensors as the kernels take them."""

from __future__ import annotations

import math
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poolgrad.contract import Buffer
from poolgrad.core import LARGE, Kind, Memory, inner_axis, share_threads
from poolgrad.operators import Prepared, prepare, prepare_uncached
from poolgrad.torch import _compat, triton
from poolgrad.torch._compat import (
    Transform,
    forward_level,
    innermost_transform,
    is_transformed,
    set_tracing_state,
    tracing_state,
    transforms,
)
from poolgrad.windows import WindowSpec, unflatten

_KNOWN = (
    "float16", "bfloat16", "float32", "float64",
    "int8", "uint8", "int16", "int32", "int64", "bool", "uint16", "uint32",
)  # fmt: skip
DTYPES = {name: getattr(torch, name) for name in _KNOWN}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


# PyTorch's threads wait for its next call awake: ours would have to share the processors with them.
share_threads(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype, as everything but PyTorch calls it."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def _misplacement(tensor: Tensor) -> int:
    """The bytes from the last address that is aligned to the tensor's items to its first item."""
    return tensor.data_ptr() % tensor.itemsize


def check_memory(name: str, tensor: Tensor) -> None:
    """Raise unless the storage of a tensor, called `name`, holds all of its elements.

    PyTorch lets anyone free or shrink a storage (`UntypedStorage.resize_`) under its tensors, and
    raises RuntimeError where they are read, too.
    """
    if type(tensor) not in (Tensor, torch.nn.Parameter):  # a compiler's, which has no memory
        return
    least = tensor.numel() if tensor.is_contiguous() else span(tensor)
    held = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
    if least and held < least:
        raise RuntimeError(
            f"{name} must have memory for {least} elements, got a tensor of shape "
            f"{tuple(tensor.shape)} whose storage holds {max(held, 0)}: it was freed or shrunk"
        )


def span(tensor: Tensor) -> int:
    """The elements from the first to the last of a tensor in memory."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


_STORAGE = (Tensor.untyped_storage, Tensor.storage_offset, torch.UntypedStorage.nbytes)


def kind(told: bool) -> Kind:
    """The attributes of tensors that are read; `told`: DLPack's functions give their memory."""
    asked = (
        ("is_cpu", True),
        ("layout", torch.strided),
        ("is_quantized", False),
        ("is_nested", False),
        (_misplacement, 0),  # RuntimeError for fake tensors: they have no memory
        *_compat.plain,
        (partial(check_memory, "x"), None),
    )
    return Kind(
        Tensor,
        parts=("requires_grad", *(() if told else ("shape", Tensor.stride, "dtype"))),
        plain=((Tensor.is_neg, False), *(() if told else asked)),
        modes=(torch.is_grad_enabled,),
        # Without these symbols nothing is quiet, and no call has a key.
        quiet=_compat.quiet if _compat.has_call_cache else ((bool, True),),
        told="by exchange" if told else None,
        storage=_STORAGE if told else (),
    )


# Tensors that hold their own numbers while nothing is transformed, traced or watched: what the
# dispatcher would do to them is known.
KIND = kind(_compat.exports_layouts)


def has_kernels(x: Tensor) -> bool:
    """Whether there are kernels for the device of a tensor; else `poolgrad.portable` serves it."""
    return x.is_cpu or (x.is_cuda and triton.is_available())


def with_kernels_for(ready: Prepared, x: Tensor) -> Prepared:
    """The call with kernels for the device of a tensor."""
    return ready if x.is_cpu else triton.on_device(ready)


def is_plain(x: Any) -> bool:
    """Whether it is a tensor of the kind that goes straight to the kernels."""
    return bool(KIND.plain(x))


def pools(x: Any) -> bool:
    """Whether our operators are for this, where PyTorch's would do the same.

    They are not for other devices, for subclasses that know PyTorch's operators only, or for what
    has no memory of its own; nor for programs that are exported, which run where we are not.
    """
    if torch.compiler.is_compiling():
        return not (torch.compiler.is_exporting() or is_transformed() or forward_level() >= 0)
    return is_plain(x) or (
        type(x) in (Tensor, torch.nn.Parameter)
        and (x.is_cpu or x.is_meta or (x.is_cuda and triton.is_available()))
        and x.layout is torch.strided
        and not x.is_quantized
        and not x.is_nested
        and tracing_state() is None
        and not _is_functionalized()
        and not is_nested_forward()
    )


def _is_functionalized() -> bool:
    top = innermost_transform()
    return bool(top is not None and top.key() == Transform.Functionalize)


def is_transformed_graph() -> bool:
    """Whether a transformation is being compiled for which our operators have no rule."""
    return torch.compiler.is_compiling() and (is_transformed() or forward_level() >= 0)


def is_nested_forward() -> bool:
    """Whether there is a forward mode inside a forward mode, of which ours knows only the inner."""
    levels = transforms() or ()
    count: int = sum(level.key() == Transform.Jvp for level in levels)
    return count > 1


def pads_little(padding: Any, kernel_size: Any, dilation: Any) -> bool:
    """Whether PyTorch takes such padding: at most half a window along each axis."""
    n = max(map(len, (padding, kernel_size, dilation)))
    pads, kernels, gaps = (
        values if len(values) == n else [values[0]] * n
        for values in (padding, kernel_size, dilation)
    )
    return all(0 <= 2 * p <= (k - 1) * d + 1 for p, k, d in zip(pads, kernels, gaps, strict=True))


def applied(function: type[torch.autograd.Function]) -> Any:
    """Its `apply`, where all tensors are of a kind: so nothing is transformed, which that asks."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


_unflatten = lru_cache(maxsize=4096)(unflatten)


def spec_of(window: list[int]) -> WindowSpec:
    """The windows that a custom operator receives as integers; see `windows.unflatten`."""
    try:
        return _unflatten(tuple(window))
    except TypeError:  # symbolic sizes are not hashable
        return unflatten(window)


def shape_of(x: Tensor) -> tuple[int, ...]:
    """The shape in plain integers, also where TorchScript traces, which makes tensors of sizes."""
    tracing = None if torch.compiler.is_compiling() else tracing_state()
    if tracing is None:
        return tuple(x.shape)
    set_tracing_state(None)
    try:
        return tuple(x.shape)
    finally:
        set_tracing_state(tracing)


def inner_of(x: Tensor, spec: WindowSpec, channels_last: bool) -> int:
    """What `core.inner_axis` says of a tensor."""
    where = (tuple(x.shape), x.stride(), spec, channels_last)
    try:
        return inner_axis(*where)
    except TypeError:  # symbolic sizes cannot be remembered
        return inner_axis.__wrapped__(*where)


def prepared(
    name: str,
    spec: WindowSpec,
    options: Any,
    shape: tuple[int, ...],
    channels_last: bool,
    inner: int,
    dtype: str,
) -> Prepared:
    """See `operators.prepare`; a compiler cannot trace a cache."""
    function = prepare_uncached if torch.compiler.is_compiling() else prepare
    return function(name, spec, options, shape, channels_last, inner, dtype)


def is_in_graph() -> bool:
    """Whether a compiler or TorchScript records what is called.

    A TorchScript graph stores operators; it would store an `autograd.Function` as a Python object,
    which cannot be saved.
    """
    return torch.compiler.is_compiling() or tracing_state() is not None


def empty(buffer: Buffer, like: Tensor) -> Tensor:
    """The tensor that a buffer describes, not initialised."""
    dtype = DTYPES[buffer.dtype]
    if buffer.order == tuple(range(len(buffer.shape))):
        return torch.empty(buffer.shape, dtype=dtype, device=like.device)
    return torch.empty_permuted(buffer.shape, buffer.order, dtype=dtype, device=like.device)


def stored(buffer: Buffer, tensor: Tensor) -> Tensor:
    """The tensor in the memory format of a buffer."""
    back = [buffer.order.index(a) for a in range(len(buffer.order))]
    return tensor.permute(buffer.order).contiguous().permute(back)


def small(buffer: Buffer) -> bool:
    """Whether this is too small for memory that is used again."""
    size: int = math.prod(buffer.shape) * DTYPES[buffer.dtype].itemsize
    return size < LARGE


def room(buffer: Buffer, like: Tensor) -> Tensor:
    """The same in memory that is used again, for what the kernels write."""
    if small(buffer) or not like.is_cpu:  # PyTorch's allocators of other devices do that
        return empty(buffer, like)
    dtype = DTYPES[buffer.dtype]
    memory = torch.frombuffer(Memory(math.prod(buffer.shape) * dtype.itemsize), dtype=dtype)
    tensor = memory.view([buffer.shape[a] for a in buffer.order])
    return tensor.permute([buffer.order.index(a) for a in range(len(buffer.order))])


def laid_out(given: tuple[Tensor, ...], expected: tuple[Buffer, ...]) -> tuple[Tensor, ...]:
    """A residual as forward made it: it may have been saved and come back lying otherwise."""
    result = []
    for tensor, buffer in zip(given, expected, strict=True):
        if tensor.shape != buffer.shape or tensor.dtype != DTYPES[buffer.dtype]:
            raise ValueError(
                f"residual must be {buffer.dtype} of shape {buffer.shape}, "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
        back = [buffer.order.index(a) for a in range(len(buffer.order))]
        result.append(readable(tensor.permute(buffer.order).contiguous()).permute(back))
    return tuple(result)


def readable(tensor: Tensor) -> Tensor:
    """The tensor as the kernels can read it: negative views are negated, misaligned ones copied."""
    tensor = tensor.resolve_neg()
    return tensor.clone() if tensor.is_cpu and _misplacement(tensor) else tensor


def compact(given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Tensors that lie in one piece, aligned to their items."""
    return tuple(readable(t.contiguous()) for t in given)


def as_operand(ready: Prepared, given: tuple[Tensor, ...]) -> Any:
    """The extra operand as an operator's methods take it; it must be contiguous.

    Raises
    ------
    ValueError
        If its dtype or shape is wrong: a direct call of ``torch.ops.poolgrad`` may pass any tensor.
    """
    if not given:
        return None
    operator, (tensor,) = ready.operator, given
    operand = operator.operand
    name, shapes, is_flat = operand.accepted(ready.layout)
    dtype = DTYPES[name]
    shape = (tensor.numel(),) if is_flat else tuple(tensor.shape)
    if tensor.dtype != dtype or shape not in shapes:
        raise ValueError(
            f"{operand.name} must be {dtype} of {' or '.join(map(str, shapes))} elements, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    if operand.has_gradient and tensor.is_cpu:  # the host would wait for another device
        operator.check_operand(tensor.reshape(-1).tolist())
    number = int if tensor.is_cpu else _unread
    return operand.kernel_form(tensor.reshape(-1) if is_flat else tensor, tensor.numel(), number)


def _unread(tensor: Tensor) -> Tensor:
    """A number that stays on its device."""
    return tensor
