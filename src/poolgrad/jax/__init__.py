"""The front end for JAX, and functions with the names and signatures of Flax.

The functions of `poolgrad` take JAX arrays. ``from poolgrad.jax import max_pool`` replaces
``flax.linen.max_pool`` and ``flax.nnx.max_pool``: channels last, stride one by default.
`poolgrad.jax.nn` has modules for Flax NNX and Equinox.

    >>> import jax, jax.numpy as jnp
    >>> from poolgrad.jax import max_pool
    >>> x = jnp.arange(16.0).reshape(1, 4, 4, 1)
    >>> max_pool(x, (2, 2), strides=(2, 2))[0, :, :, 0]
    Array([[ 5.,  7.],
           [13., 15.]], dtype=float32)
    >>> jax.grad(lambda x: max_pool(x, (2, 2), strides=(2, 2)).sum())(x)[0, :, :, 0]
    Array([[0., 0., 0., 0.],
           [0., 1., 0., 1.],
           [0., 0., 0., 0.],
           [0., 1., 0., 1.]], dtype=float32)
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence, Sized
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

try:
    from jax import Array
except ImportError as error:
    raise ModuleNotFoundError(
        'poolgrad.jax needs jax: pip install "poolgrad[jax]"', name="jax"
    ) from error

from poolgrad import core
from poolgrad.functional import FUNCTIONS
from poolgrad.functional.declare import named
from poolgrad.windows import brief, positive

if core.xla_handler() is not None:  # otherwise pooling raises the error
    # Registers the kernels with XLA, because a stored program may call them first.
    from poolgrad.jax import kernels as kernels

__all__ = ["avg_pool", "max_pool", "min_pool", "reuse_memory"]

if TYPE_CHECKING:
    from poolgrad.jax import nn as nn
else:

    def __getattr__(name: str) -> ModuleType:
        """Import the modules when they are first used: it takes longer than one pooling."""
        if name == "nn":
            return import_module("poolgrad.jax.nn")
        own = sys.modules[__name__]
        raise AttributeError(f"module 'poolgrad.jax' has no attribute {name!r}", name=name, obj=own)


Padding = str | Sequence[tuple[int, int]]


def _pool(
    name: str, inputs: Any, window_shape: Any, strides: Any, padding: Any, **options: Any
) -> Array:
    dims = len(window_shape) if isinstance(window_shape, Sized) else 0
    if not 1 <= dims <= 3:
        raise ValueError(
            f"window_shape must be a sequence of 1 to 3 integers, got {brief(window_shape)}"
        )
    window = positive("window_shape", window_shape, dims)
    stride = (1,) * dims if strides is None else positive("strides", strides, dims)
    pool = FUNCTIONS[f"{name}_pool{dims}d"]
    return pool(inputs, window, stride, padding, channels_last=True, **options)


@named
def max_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Array:
    """Maximum of every window.

    Parameters
    ----------
    inputs : array, shape (..., *spatial, features)
        float16, bfloat16, float32, float64, int8, uint8, int16, uint16, int32, uint32, int64 or
        bool.
    window_shape : sequence of int
        Number of taps of a window along each of one to three spatial axes.
    strides : sequence of int, optional
        Distances between windows; default: 1.
    padding : "SAME", "VALID" or sequence of (low, high)
        Padding, which never wins; default: "VALID", without padding.

    Returns
    -------
    array, shape (..., *outputs, features)
        Same dtype as the input. Among equal winners, the first gets the gradient.

    Raises
    ------
    TypeError, ValueError
        If an argument has another type or value, or the windows do not fit the input.

    Notes
    -----
    Signature and defaults are those of ``flax.linen.max_pool``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from poolgrad.jax import max_pool
    >>> max_pool(jnp.array([[1.0], [3.0], [2.0]]), (2,))
    Array([[3.],
           [3.]], dtype=float32)
    """
    return _pool("max", inputs, window_shape, strides, padding)


@named
def min_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Array:
    """Minimum of every window.

    Parameters
    ----------
    inputs, window_shape, strides, padding
        See `max_pool`.

    Returns
    -------
    array, shape (..., *outputs, features)
        Same dtype as the input.

    Raises
    ------
    TypeError, ValueError
        If an argument has another type or value, or the windows do not fit the input.

    Notes
    -----
    Signature and defaults are those of ``flax.linen.min_pool``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from poolgrad.jax import min_pool
    >>> min_pool(jnp.array([[1.0], [3.0], [2.0]]), (2,))
    Array([[1.],
           [2.]], dtype=float32)
    """
    return _pool("min", inputs, window_shape, strides, padding)


@named
def avg_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    count_include_pad: bool = True,
) -> Array:
    """Mean of every window.

    Parameters
    ----------
    inputs, window_shape, strides, padding
        See `max_pool`.
    count_include_pad : bool
        If True (default), padding counts as zeros; if False, it does not count.

    Returns
    -------
    array, shape (..., *outputs, features)
        Same dtype as the input; means of integers are floats.

    Raises
    ------
    TypeError, ValueError
        If an argument has another type or value, or the windows do not fit the input.

    Notes
    -----
    Signature and defaults are those of ``flax.linen.avg_pool``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from poolgrad.jax import avg_pool
    >>> avg_pool(jnp.array([[1.0], [3.0], [2.0]]), (2,))
    Array([[2. ],
           [2.5]], dtype=float32)
    """
    return _pool("avg", inputs, window_shape, strides, padding, count_include_pad=count_include_pad)


def reuse_memory(limit: int = 1 << 30) -> bool:
    """Make the C library keep memory that XLA frees on CPUs, instead of returning it to the system.

    XLA allocates new memory for every result, and the operating system clears it first, which takes
    as long as pooling a large array, forward and backward. This function makes the allocator of the
    process (glibc's ``mallopt``) keep blocks of up to `limit` bytes, and at most `limit` free
    bytes, in one arena for all threads. It speeds up all of XLA on CPUs, not only poolgrad's
    kernels. Call it before anything else, because threads that already have an arena keep it.

    Parameters
    ----------
    limit : int
        Bytes, at most 2**31 - 1; default: 1 GiB.

    Returns
    -------
    bool
        Whether the C library supports this.

    Raises
    ------
    ValueError
        If `limit` is out of range.

    Examples
    --------
    >>> import poolgrad.jax
    >>> kept = poolgrad.jax.reuse_memory()
    """
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit < 2**31:
        raise ValueError(f"limit must be an integer from 0 to 2**31 - 1, got {brief(limit)}")
    if sys.platform != "linux":
        return False
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8  # of malloc.h
    settings = ((arena_max, 1), (trim_threshold, limit), (mmap_threshold, limit))
    return change is not None and all([change(*setting) for setting in settings])
