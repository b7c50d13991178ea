"""Converts tensors to the form of the kernels, and tests how a tensor can be pooled."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from poolgrad.core import LARGE, TensorSpec, share_threads
from poolgrad.dtypes import FLOATS, INTEGERS
from poolgrad.interface import Buffer
from poolgrad.operators import Prepared, prepare, prepare_uncached
from poolgrad.torch import _compat, triton
from poolgrad.torch.storages import STORAGES
from poolgrad.windows import WindowSpec, has_memory, inner_axis, unflatten

T = TypeVar("T")

DTYPES = {name: getattr(torch, name) for name in (*FLOATS, *INTEGERS)}


# PyTorch's threads spin between its calls and would compete with a second thread pool.
share_threads(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


def dense(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor `name` if it is dense.

    Raises
    ------
    TypeError
        If it is not.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        came = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else ""
        raise TypeError(
            f"{name} must be a dense tensor (of layout torch.strided), "
            f"got a {came or tensor.layout} one"
        )
    return tensor


def checked(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor `name` of a caller, checked before any operation of PyTorch reads it.

    PyTorch lets anyone free or shrink a storage (`UntypedStorage.resize_`) under its tensors, and
    many of its operations read beyond it.

    Raises
    ------
    TypeError
        If it is not dense.
    RuntimeError
        If its storage does not hold all elements.
    """
    if torch.compiler.is_compiling():
        return dense(name, tensor)
    if not KIND.have_parts((tensor,), (None,)):
        untraced(partial(has_memory, name), _compat.unwrapped(dense(name, tensor)))
    return tensor


def readable(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor `name` in memory that the kernels can read; copies only where needed.

    Every tensor that a kernel reads passes this function (or `KIND`, which accepts none that would
    be copied). Zero tensors, which have no memory, and negative or misaligned views are copied.

    Raises
    ------
    RuntimeError
        If the storage does not hold all elements, or a tensor on the CPU has no memory. While a
        dispatch mode traces (compilation for GPUs), no tensor has memory.
    """
    if KIND.have_parts((tensor,), (None,)):
        return tensor
    if _compat.is_zero_tensor(tensor):
        return tensor.clone()
    if not has_memory(name, tensor):
        if tensor.is_cpu and not _compat.is_observed():
            raise RuntimeError(f"{name} must have memory, got a {type(tensor).__name__} without")
        return tensor.resolve_neg()
    tensor = tensor.resolve_neg()
    is_aligned = not tensor.is_cpu or tensor.data_ptr() % tensor.itemsize == 0
    return tensor if is_aligned else tensor.clone()


def compact(name: str, tensor: Tensor) -> Tensor:
    """Return the tensor `name` as a contiguous one that the kernels can read."""
    return readable(name, tensor).contiguous()


def kind(exchange: bool) -> TensorSpec:
    """Return the attributes of tensors that form a cache key.

    If `exchange`, the memory of tensors is read by DLPack's exchange functions, and else by their
    attributes. Both read only tensors whose storage holds all elements.
    """
    # Without exchange functions, tensors of other kinds may have an address. The functions fail for
    # them; for quantised ones this takes milliseconds.
    kinds = (("is_quantized", False), ("layout", torch.strided), ("is_nested", False))
    return TensorSpec(
        Tensor,
        parts=("requires_grad", *(() if exchange else ("dtype",))),
        required=kinds[:1] if exchange else (*kinds, *_compat.PLAIN_TENSOR),
        global_state=(torch.is_grad_enabled,),
        required_state=_compat.UNOBSERVED,
        protocol="by exchange" if exchange else "by attributes",
    )


# Plain tensors while nothing is transformed, traced or observed: the dispatcher can be skipped.
KIND = kind(_compat.has_dlpack_exchange)


def is_direct_for_kernels(x: Any) -> bool:
    """Whether a tensor can be passed directly to the kernels of the CPU or of its GPU."""
    return KIND.is_supported(x) or are_direct_for_triton((x,))


def _is_dense(x: Any) -> bool:
    """Whether `x` is a dense tensor, not of a subclass."""
    is_own = type(x) in (Tensor, torch.nn.Parameter)
    return is_own and x.layout is torch.strided and not x.is_quantized and not x.is_nested


def are_direct_for_triton(given: tuple[Any, ...]) -> bool:
    """Whether tensors can be passed directly to the kernels of the GPU that holds them all."""
    first = given[0]
    return (
        _is_dense(first)
        and first.is_cuda
        and triton.is_available(first.device)
        and not torch.compiler.is_compiling()
        and not _compat.is_transformed()
        and not _compat.is_observed()
        and _compat.forward_level() < 0
        and _compat.tracing_state() is None
        and all(
            _is_dense(t)
            and t.device == first.device
            and not t.is_neg()
            and not _compat.is_wrapped(t)
            and all(read(t) == value for read, value in _compat.PLAIN_TENSOR)
            for t in given
        )
    )


def pools(x: Any) -> bool:
    """Whether to use poolgrad's operators where PyTorch's compute the same.

    They are not used for other devices, for tensor subclasses, for tensors without memory, or in
    exported programs, which must run without poolgrad.
    """
    if torch.compiler.is_compiling():
        return not (torch.compiler.is_exporting() or is_transformed_graph())
    return KIND.is_supported(x) or (
        _is_dense(x)
        and (x.is_cpu or x.is_meta or (x.is_cuda and triton.is_available(x.device)))
        and _compat.tracing_state() is None
        and _compat.Transform.Functionalize not in _levels()
        and not is_nested_forward()
    )


def _levels() -> list[Any]:
    """Return the kinds of the active transformations of `torch.func`, the outermost first."""
    return [level.key() for level in _compat.transforms() or ()]


def is_transformed_graph() -> bool:
    """Whether a transformation is being compiled for which poolgrad's operators have no rule."""
    transformed = _compat.is_transformed() or _compat.forward_level() >= 0
    return torch.compiler.is_compiling() and transformed


def is_differentiated() -> bool:
    """Whether a transformation of `torch.func` differentiates."""
    return not {_compat.Transform.Grad, _compat.Transform.Jvp}.isdisjoint(_levels())


def is_nested_forward() -> bool:
    """Whether forward mode is nested; poolgrad's operators support one level only."""
    return _levels().count(_compat.Transform.Jvp) > 1


def pads_at_most_half(padding: Any, kernel_size: Any) -> bool:
    """Whether PyTorch accepts this padding: at most half the taps of a window along each axis."""
    n = max(len(padding), len(kernel_size))
    pads, kernels = (v if len(v) == n else [v[0]] * n for v in (padding, kernel_size))
    return all(0 <= 2 * p <= k for p, k in zip(pads, kernels, strict=True))


def applied(function: type[torch.autograd.Function]) -> Any:
    """Return `apply` without its check for transformations, for plain tensors."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def _looked_up(function: Any, *args: Any) -> Any:
    """Call a function with a cache, without it if sizes are symbolic, which are not hashable."""
    try:
        return function(*args)
    except TypeError:
        return function.__wrapped__(*args)


_unflatten = lru_cache(maxsize=4096)(unflatten)


def spec_of(window: list[int]) -> WindowSpec:
    """Rebuild the windows that a custom operator receives as integers; see `windows.unflatten`."""
    return _looked_up(_unflatten, tuple(window))


def untraced(read: Callable[[Tensor], T], tensor: Tensor) -> T:
    """Return ``read(tensor)``, with sizes as integers also while TorchScript traces."""
    tracing = None if torch.compiler.is_compiling() else _compat.tracing_state()
    if tracing is None:
        return read(tensor)
    _compat.set_tracing_state(None)
    try:
        return read(tensor)
    finally:
        _compat.set_tracing_state(tracing)


def shape_of(x: Tensor) -> tuple[int, ...]:
    """Return the shape as plain integers, also while TorchScript traces, which records tensors."""
    return untraced(lambda x: tuple(x.shape), x)


def inner_of(x: Tensor, spec: WindowSpec, channels_last: bool) -> int:
    """Return `windows.inner_axis` of a tensor."""
    return _looked_up(inner_axis, tuple(x.shape), x.stride(), spec, channels_last)


def prepare_call(*call: Any) -> Prepared:
    """Prepare a call (see `operators.prepare`), without a cache while a compiler traces."""
    return (prepare_uncached if torch.compiler.is_compiling() else prepare)(*call)


def is_in_graph() -> bool:
    """Whether a compiler, TorchScript or `torch.func.functionalize` records calls.

    A TorchScript graph stores operators; it would store an `autograd.Function` as a Python object,
    which cannot be saved. `functionalize` supports operators, and no `autograd.Function`; together
    with `grad` or `jvp`, which need the function, it raises PyTorch's error.
    """
    if torch.compiler.is_compiling() or _compat.tracing_state() is not None:
        return True
    return (
        _compat.is_transformed()
        and _compat.Transform.Functionalize in (levels := {*_levels()})
        and levels <= {_compat.Transform.Functionalize, _compat.Transform.Vmap}
        and _compat.forward_level() < 0
    )


def empty(buffer: Buffer, like: Tensor) -> Tensor:
    """Allocate the tensor that a buffer describes, without initialising it."""
    dtype = DTYPES[buffer.dtype]
    if buffer.order == tuple(range(len(buffer.shape))):
        return torch.empty(buffer.shape, dtype=dtype, device=like.device)
    return torch.empty_permuted(buffer.shape, buffer.order, dtype=dtype, device=like.device)


def stored(buffer: Buffer, tensor: Tensor) -> Tensor:
    """Return the tensor in the memory format of a buffer."""
    back = [buffer.order.index(a) for a in range(len(buffer.order))]
    return tensor.permute(buffer.order).contiguous().permute(back)


def small(buffer: Buffer) -> bool:
    """Whether a buffer is too small for cached memory."""
    return bool(buffer.elements * DTYPES[buffer.dtype].itemsize < LARGE)


def allocate(buffer: Buffer, like: Tensor) -> Tensor:
    """Allocate a tensor that the kernels write, in a cached storage if it is large."""
    if small(buffer) or not like.is_cpu:  # PyTorch caches memory on other devices
        return empty(buffer, like)
    return STORAGES.tensor(buffer, strides_of(buffer), DTYPES[buffer.dtype])


@lru_cache(maxsize=4096)
def strides_of(buffer: Buffer) -> tuple[int, ...]:
    """Return the strides of a compact tensor whose axes lie in the order of the buffer."""
    strides = [0] * len(buffer.shape)
    step = 1
    for axis in reversed(buffer.order):
        strides[axis] = step
        step *= max(buffer.shape[axis], 1)
    return tuple(strides)


def require(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: Any) -> None:
    """Raise ValueError unless the tensor `name` has this shape and dtype, which may be a name."""
    if tensor.dtype != DTYPES.get(dtype, dtype) or tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} must be {dtype} of shape {shape}, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )


def laid_out(tensors: tuple[Tensor, ...], expected: tuple[Buffer, ...]) -> tuple[Tensor, ...]:
    """Restore the layout of a residual, which may have changed while it was saved."""
    result = []
    for tensor, buffer in zip(tensors, expected, strict=True):
        require("residual", tensor, buffer.shape, buffer.dtype)
        made = readable("residual", tensor)
        result.append(made if made.stride() == strides_of(buffer) else stored(buffer, made))
    return tuple(result)


def check_operand(ready: Prepared, tensor: Tensor) -> bool:
    """Check the extra operand, and return whether an operator's methods take it flattened.

    Raises
    ------
    ValueError
        If its dtype or shape is wrong: a direct call of ``torch.ops.poolgrad`` may pass any tensor.
    """
    operand = ready.operator.operand
    name, shapes, is_flat = operand.accepted(ready.layout)
    dtype = DTYPES[name]
    shape = (tensor.numel(),) if is_flat else tuple(tensor.shape)
    if tensor.dtype != dtype or shape not in shapes:
        raise ValueError(
            f"{operand.name} must be {dtype} of {' or '.join(map(str, shapes))} elements, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    return is_flat


def as_operand(ready: Prepared, operands: tuple[Tensor, ...]) -> Any:
    """Return the extra operand, checked, in the form that an operator's methods take."""
    if not operands:
        return None
    operator, (tensor,) = ready.operator, operands
    operand, is_flat = operator.operand, check_operand(ready, tensor)
    tensor = compact(operand.name, tensor)
    # On another device, reading the numbers would wait for the device.
    if operand.has_gradient and tensor.is_cpu:
        operator.check_operand(tensor.reshape(-1).tolist())
    number: Callable[[Tensor], Any] = int if tensor.is_cpu else lambda tensor: tensor
    return operand.kernel_form(tensor.reshape(-1) if is_flat else tensor, tensor.numel(), number)
