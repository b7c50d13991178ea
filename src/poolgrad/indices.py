"""Converts indices of winners between the conventions of libraries.

An index is a position among some axes of the input, in row-major order of these axes. A convention
determines which axes, and their order.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

from array_api_compat import is_cupy_array

from poolgrad.frontend import name_of
from poolgrad.windows import brief, flag, has_memory, in_memory, unmasked

__all__ = ["convert_indices"]

LIBRARIES = ("numpy", "torch", "jax", "dask")


# The axes that an index counts, the slowest first, among batch, channel and pooled axes.
CONVENTIONS: dict[str, Callable[..., Sequence[int]]] = {
    "torch": lambda batch, channel, *pooled: pooled,
    "onnx": lambda batch, channel, *pooled: (batch, channel, *pooled),
    "onnx_column_major": lambda batch, channel, *pooled: (batch, channel, *pooled[::-1]),
    "tensorflow": lambda batch, channel, *pooled: (*pooled, channel),
    "tensorflow_batch": lambda batch, channel, *pooled: (batch, *pooled, channel),
}


def convert_indices(
    indices: Any, shape: Sequence[int], source: str, target: str, *, channels_last: bool = False
) -> Any:
    """Convert indices of winners from one library's convention to another's.

    Parameters
    ----------
    indices : integer array, shape (N, C, ...) or (N, ..., C)
        The dots stand for one to three pooled axes; -1 where no input won. Not modified.
    shape : sequence of int
        Shape of the input that was pooled, its axes in the same order.
    source, target : str
        The conventions. With ``b`` the batch, ``c`` the channel and ``(y, x)`` the position in a
        plane of ``H`` times ``W`` (with other numbers of axes likewise):

        =========================  =====================================
        ``"torch"``                ``y * W + x``, also poolgrad's own
        ``"onnx"``                 ``((b * C + c) * H + y) * W + x``
        ``"onnx_column_major"``    ``(b * C + c) * H * W + x * H + y``
        ``"tensorflow"``           ``(y * W + x) * C + c``
        ``"tensorflow_batch"``     ``((b * H + y) * W + x) * C + c``
        =========================  =====================================
    channels_last : bool
        Whether the channels are the last axis of `shape` and `indices`, not the second. No
        convention depends on it.

    Returns
    -------
    int64 array of the shape of `indices`
        The same kind of array; -1 stays -1.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsuitable type or value; also for indices that are not in
        their own plane. (Values of tensors that are being traced or transformed are not checked.)

    Notes
    -----
    ONNX MaxPool gives ``"onnx"``, with ``storage_order=1`` ``"onnx_column_major"``; TensorFlow's
    ``max_pool_with_argmax`` gives ``"tensorflow"``, with ``include_batch_in_index``
    ``"tensorflow_batch"``.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> from poolgrad.indices import convert_indices
    >>> x = np.arange(32.0).reshape(1, 2, 4, 4)
    >>> _, indices = poolgrad.max_pool2d(x, 2, return_indices=True)
    >>> indices[0, 1]
    array([[ 5,  7],
           [13, 15]])
    >>> convert_indices(indices, x.shape, "torch", "onnx")[0, 1]
    array([[21, 23],
           [29, 31]])
    >>> convert_indices(indices, x.shape, "torch", "tensorflow")[0, 1]
    array([[11, 15],
           [27, 31]])
    """
    _check_array(indices)
    has_values = _has_values(indices)
    for name, word in (("source", source), ("target", target)):
        if word not in list(CONVENTIONS):
            accepted = ", ".join(f'"{c}"' for c in CONVENTIONS)
            raise ValueError(f"{name} must be one of {accepted}, got {brief(word)}")
    last = flag("channels_last", channels_last)
    channel = _check_shape(shape, tuple(indices.shape), last)
    pooled = [axis for axis in range(len(shape)) if axis not in (0, channel)]
    counted, wanted = (CONVENTIONS[name](0, channel, *pooled) for name in (source, target))
    own = {axis: _along(indices, axis) for axis in (0, channel)}
    given, sizes = _int64(indices), [shape[axis] for axis in pooled]
    _check_range(given, shape, sizes if {source, target} == {"torch"} else shape)
    won = _int64(given != -1)
    found = _positions(given, counted, shape)
    if has_values:
        first = counted[0]
        wrong = (found[first] < 0) | (found[first] >= shape[first])
        for axis in own.keys() & found.keys():
            wrong = wrong | (found[axis] != own[axis])
        _refuse(won * wrong + (given < 0) * (indices > 0), source, shape)  # or uint64 beyond int64
    found |= own
    index = found[wanted[0]]
    for axis in wanted[1:]:
        index = index * shape[axis] + found[axis]
    return won * (index + 1) - 1


def _positions(index: Any, axes: Sequence[int], shape: Sequence[int]) -> dict[int, Any]:
    """Return the position along each axis; that along the first exceeds it if the index does."""
    found = {}
    for axis in reversed(axes[1:]):
        found[axis] = index % shape[axis]
        index = index // shape[axis]
    found[axes[0]] = index
    return found


def _int64(array: Any) -> Any:
    if hasattr(array, "long"):
        return array.long()
    # JAX warns of a dtype that is disabled.
    return array.astype(int if name_of(array) == "jax" else "int64")


def _check_range(given: Any, shape: Sequence[int], counted: Sequence[int]) -> None:
    """Raise an error if positions among axes of these sizes may be too large for the integers."""
    bits = 32 if "int32" in str(given.dtype) else 64
    if math.prod(counted) > 2 ** (bits - 1):
        hint = ": enable 64-bit types of JAX (jax_enable_x64)" if bits == 32 else ""
        raise ValueError(f"shape must have indices that fit int{bits}, got {tuple(shape)}{hint}")


def _along(indices: Any, axis: int) -> Any:
    """Return 0, 1, 2, ... along one axis, shaped to broadcast with the indices."""
    line = indices[tuple(slice(None if a == axis else 1) for a in range(len(indices.shape)))]
    return (_int64(line) * 0 + 1).cumsum(axis) - 1


def _check_array(indices: Any) -> None:
    dtype = getattr(unmasked("indices", indices), "dtype", None)
    known = name_of(indices) in LIBRARIES or is_cupy_array(indices)
    if dtype is None or not known:
        raise TypeError(
            "indices must be an array of integers of NumPy, PyTorch, JAX, Dask or CuPy, "
            f"got {type(indices).__qualname__}"
        )
    if "int" not in getattr(dtype, "name", str(dtype)):
        raise TypeError(f"indices must be an array of integers, got one of {dtype}")


def _has_values(indices: Any) -> bool:
    """Whether the indices can be read: not those of tensors without memory."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(indices, torch.Tensor):
        return True
    if torch.compiler.is_compiling():
        return False
    from poolgrad.torch.arrays import checked, untraced

    return untraced(lambda tensor: has_memory("indices", tensor), checked("indices", indices))


def _check_shape(shape: Sequence[int], of_indices: tuple[int, ...], channels_last: bool) -> int:
    """Return the axis of channels, after checking that the shapes fit each other."""
    in_memory("shape", shape)
    form = "(N, ..., C)" if channels_last else "(N, C, ...)"
    if not isinstance(shape, Sequence) or not all(isinstance(n, SupportsIndex) for n in shape):
        raise TypeError(f"shape must be a sequence of integers {form}, got {brief(shape)}")
    axis = len(shape) - 1 if channels_last else 1
    sizes = [n for a, n in enumerate(shape) if a not in (0, axis)]
    if not 1 <= len(sizes) <= 3 or min(shape) < 0 or min(sizes) < 1:
        raise ValueError(
            f"shape must be {form} with one to three pooled axes, not empty, got {tuple(shape)}"
        )
    same = len(of_indices) == len(shape) and all(of_indices[a] == shape[a] for a in (0, axis))
    if not same:
        raise ValueError(
            f"indices must have shape {form} with N = {shape[0]} and C = {shape[axis]} as in shape "
            f"{tuple(shape)}, got {of_indices}"
        )
    return axis


def _refuse(wrong: Any, source: str, shape: Sequence[int]) -> None:
    if wrong.any():
        raise ValueError(
            f"indices must be -1 or positions in their own planes of {tuple(shape)}, counted as in "
            f'"{source}"; {int(wrong.sum())} of them are not'
        )
