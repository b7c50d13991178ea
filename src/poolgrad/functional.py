"""The public functions: any array in, its front end found, the same kind of array out.

Each function here only *describes* a pooling. `in_dimensions` makes of it one function for each
number of pooled axes; that hands the description to the front end of its input.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, Concatenate, ParamSpec, TypeVar

from poolgrad.operators import Request
from poolgrad.window import Ints, Padding, adaptive, axis_names, fixed, whole

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


def _numpy() -> ModuleType:
    from poolgrad import numpy

    return numpy


def _torch() -> ModuleType:
    from poolgrad.torch import function

    return function


# The first part of a module's name -> what imports the front end for the arrays it defines.
_FRONT_ENDS = {"numpy": _numpy, "torch": _torch}
_found: dict[type, ModuleType] = {}

_MOST = 2**63

FUNCTIONS: dict[str, Callable[..., Any]] = {}  # every public function, by name


def front_end(x: object) -> ModuleType:
    """The module that pools arrays of this type; imported when the first of them arrives.

    Raises
    ------
    TypeError
        If no front end takes this type.
    """
    kind = type(x)
    if kind not in _found:
        if kind is list or kind is tuple:
            known = "numpy"
        elif hasattr(x, "__torch_function__"):  # what a compiler that traces this can tell, too
            known = "torch"
        else:
            known = kind.__module__.partition(".")[0]
        if known not in _FRONT_ENDS:  # a subclass that somebody else defined?
            origins = [c.__module__.partition(".")[0] for c in kind.__mro__]
            known = next((o for o in origins if o in _FRONT_ENDS), "")
        if not known:
            raise TypeError(
                f"x must be an array of {' or '.join(_FRONT_ENDS)}, "
                f"got {kind.__module__}.{kind.__qualname__}"
            )
        _found[kind] = _FRONT_ENDS[known]()
    return _found[kind]


def public(describe: Callable[P, Request], name: str, dims: int) -> Callable[P, Any]:
    """The function that does what `describe` describes, with its signature and documentation."""

    def pool(*args: P.args, **kwargs: P.kwargs) -> Any:
        request = describe(*args, **kwargs)
        return front_end(request.x).perform(request)

    pool.__name__ = pool.__qualname__ = name
    pool.__signature__ = inspect.signature(describe)  # type: ignore[attr-defined]
    pool.__doc__ = _fill(describe.__doc__ or "", name, dims)
    pool.describe = describe  # type: ignore[attr-defined]
    FUNCTIONS[name] = pool
    return pool


def _renamed(function: Callable[Q, R], name: str) -> Callable[Q, R]:
    """A copy under another name: the one that Python's own errors about arguments give."""
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__doc__, copy.__annotations__ = function.__doc__, function.__annotations__
    copy.__qualname__ = name
    return copy


def _fill(doc: str, name: str, dims: int) -> str:
    """Write a template's name and shapes in."""
    axes = tuple(n[0].upper() for n in axis_names(dims)) if dims else ("...",)
    shape = ", ".join(("N", "C", *axes))
    out = ", ".join(("N", "C", *(a if a == "..." else f"{a}_out" for a in axes)))
    zeros = ", ".join(["2", "3", *["6"] * dims])
    return inspect.cleandoc(doc).format(name=name, dims=dims, shape=shape, out=out, zeros=zeros,
                                        halves=", ".join(["2", "3", *["3"] * dims]))  # fmt: skip


def in_dimensions(
    describe: Callable[Concatenate[int, P], Request],
) -> tuple[Callable[P, Any], Callable[P, Any], Callable[P, Any]]:
    """The functions for one, two and three pooled axes."""

    def of(dims: int) -> Callable[P, Any]:
        name = f"{describe.__name__.strip('_')}{dims}d"
        named = _renamed(describe, name)

        def describe_here(*args: P.args, **kwargs: P.kwargs) -> Request:
            return named(dims, *args, **kwargs)

        signature = inspect.signature(describe)
        parameters = list(signature.parameters.values())[1:]
        describe_here.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=inspect.Signature.empty
        )
        describe_here.__doc__ = describe.__doc__
        return public(describe_here, name, dims)

    return of(1), of(2), of(3)


def _word(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {value!r}")
    return value


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def _divisor(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"divisor_override must be an integer or None, got {value!r}")
    if value == 0 or abs(value) >= _MOST:
        raise ValueError(f"divisor_override must be a number of 64 bits but 0, got {value!r}")
    return value


def _max_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
    *,
    ties: str = "first",
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Maximum of every window of the last {dims} axes.

    Parameters
    ----------
    x : array, shape ({shape}) or any other number of leading axes
        float32 or float64; any strides. Not modified.
    kernel_size, stride, dilation : int or sequence of {dims} int
        Size of the windows, distance between them (default: the kernel size), and distance between
        the inputs of a window.
    padding : int, sequence of int, sequence of (low, high), "valid" or "same"
        How far windows may reach beyond the input; any size. Padding never wins.
    ceil_mode : bool
        Whether a window that the end of the input cuts off counts.
    return_indices : bool
        Whether to return the positions of the winners too.
    ties : "first", "split" or "zero"
        Which of equal winners gets the gradient: the first in row-major order, each an equal share,
        or none.
    channels_last : bool
        Whether the pooled axes are those before the last one.
    out : array, optional
        Where the result goes (NumPy only); shape and dtype of the result.

    Returns
    -------
    array, shape ({out})
        The same kind of array, dtype and memory format as `x`. A window without any input gives
        -inf; a window with a NaN gives NaN.
    indices : int64 array of the same shape
        If `return_indices`: for each output the flat position of its winner among the pooled axes
        of its plane; -1 for a window without any input.

    Raises
    ------
    TypeError, ValueError
        With the argument named, before anything is computed.

    Notes
    -----
    The rules for sizes, ties and NaN are PyTorch's (``torch.nn.functional.{name}``), without its
    limit on padding.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> poolgrad.{name}(np.zeros(({zeros})), 2).shape
    ({halves})
    """
    rule = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    indices = _flag("return_indices", return_indices)
    last = _flag("channels_last", channels_last)
    return Request("max", x, rule, (_word("ties", ties),), last, True, indices, out)


def _avg_pool(
    dims: int,
    x: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Ints = 1,
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Mean of every window of the last {dims} axes.

    Parameters
    ----------
    x : array, shape ({shape}) or any other number of leading axes
        float32 or float64; any strides. Not modified.
    kernel_size, stride, dilation : int or sequence of {dims} int
        Size of the windows, distance between them (default: the kernel size), and distance between
        the inputs of a window.
    padding : int, sequence of int, sequence of (low, high), "valid" or "same"
        How far windows may reach beyond the input; any size.
    ceil_mode : bool
        Whether a window that the end of the input cuts off counts.
    count_include_pad : bool
        Whether padding counts as zeros; else only real inputs are averaged.
    divisor_override : int, optional
        Divide every sum by this number instead.
    channels_last : bool
        Whether the pooled axes are those before the last one.
    out : array, optional
        Where the result goes (NumPy only); shape and dtype of the result.

    Returns
    -------
    array, shape ({out})
        The same kind of array, dtype and memory format as `x`.

    Raises
    ------
    TypeError, ValueError
        With the argument named, before anything is computed; also if ``count_include_pad=False``
        leaves a window with nothing to average.

    Notes
    -----
    The rules are those of ``torch.nn.functional.{name}``, without its limit on padding; dilation as
    in ONNX AveragePool-19.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> poolgrad.{name}(np.zeros(({zeros})), 2).shape
    ({halves})
    """
    rule = fixed(dims, kernel_size, stride, padding, dilation, ceil_mode)
    options = (_flag("count_include_pad", count_include_pad), _divisor(divisor_override))
    last = _flag("channels_last", channels_last)
    return Request("avg", x, rule, options, last, True, False, out)


def _adaptive_max_pool(
    dims: int,
    x: Any,
    output_size: Any,
    return_indices: bool = False,
    *,
    ties: str = "first",
    channels_last: bool = False,
    out: Any = None,
) -> Request:
    """Maximum of as many bins as asked for along each of the last {dims} axes.

    Parameters
    ----------
    x : array, shape ({shape}) or any other number of leading axes
        float32 or float64; any strides. Not modified.
    output_size : int, None, or sequence of {dims} of them
        Bins along each axis; None: as many as there are inputs. Bin o goes from
        ``floor(o * size / output_size)`` to ``ceil((o + 1) * size / output_size)``.
    return_indices : bool
        Whether to return the positions of the winners too.
    ties : "first", "split" or "zero"
        Which of equal winners gets the gradient.
    channels_last : bool
        Whether the pooled axes are those before the last one.
    out : array, optional
        Where the result goes (NumPy only); shape and dtype of the result.

    Returns
    -------
    array, shape ({out})
        The same kind of array, dtype and memory format as `x`.
    indices : int64 array of the same shape
        If `return_indices`: the flat position of each winner in its plane.

    Raises
    ------
    TypeError, ValueError
        With the argument named, before anything is computed.

    Notes
    -----
    The bins are those of ``torch.nn.functional.{name}``.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> poolgrad.{name}(np.zeros(({zeros})), 3).shape
    ({halves})
    """
    rule = adaptive(dims, output_size)
    indices = _flag("return_indices", return_indices)
    last = _flag("channels_last", channels_last)
    return Request("max", x, rule, (_word("ties", ties),), last, True, indices, out)


def _adaptive_avg_pool(
    dims: int, x: Any, output_size: Any, *, channels_last: bool = False, out: Any = None
) -> Request:
    """Mean of as many bins as asked for along each of the last {dims} axes.

    Parameters
    ----------
    x : array, shape ({shape}) or any other number of leading axes
        float32 or float64; any strides. Not modified.
    output_size : int, None, or sequence of {dims} of them
        Bins along each axis; None: as many as there are inputs. Bin o goes from
        ``floor(o * size / output_size)`` to ``ceil((o + 1) * size / output_size)``.
    channels_last : bool
        Whether the pooled axes are those before the last one.
    out : array, optional
        Where the result goes (NumPy only); shape and dtype of the result.

    Returns
    -------
    array, shape ({out})
        The same kind of array, dtype and memory format as `x`.

    Raises
    ------
    TypeError, ValueError
        With the argument named, before anything is computed.

    Notes
    -----
    The bins are those of ``torch.nn.functional.{name}``.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> poolgrad.{name}(np.zeros(({zeros})), 3).shape
    ({halves})
    """
    last = _flag("channels_last", channels_last)
    return Request("avg", x, adaptive(dims, output_size), (True, 0), last, True, False, out)


def _spatial_axes(x: Any, name: str) -> int:
    rank = len(x.shape) if hasattr(x, "shape") else front_end(x).asarray(x).ndim
    if not 3 <= rank <= 5:
        raise ValueError(
            f"{name} pools one to three axes beside batch and channels, "
            f"got an input with {rank} axes"
        )
    return rank - 2


def _global_max_pool(
    x: Any, keepdims: bool = False, *, ties: str = "first", channels_last: bool = False
) -> Request:
    """Maximum over every axis but batch and channels.

    Parameters
    ----------
    x : array, shape ({shape})
        One to three axes after the first two; float32 or float64; any strides. Not modified.
    keepdims : bool
        Whether the pooled axes stay, with length one.
    ties : "first", "split" or "zero"
        Which of equal winners gets the gradient.
    channels_last : bool
        Whether the axes between the first and the last are pooled.

    Returns
    -------
    array, shape (N, C)
        The same kind of array and dtype as `x`.

    Raises
    ------
    TypeError, ValueError
        With the argument named, before anything is computed.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> poolgrad.{name}(np.zeros((2, 3, 6, 6))).shape
    (2, 3)
    """
    rule = whole(_spatial_axes(x, "global_max_pool"))
    last, keep = _flag("channels_last", channels_last), _flag("keepdims", keepdims)
    return Request("max", x, rule, (_word("ties", ties),), last, keep)


def _global_avg_pool(x: Any, keepdims: bool = False, *, channels_last: bool = False) -> Request:
    """Mean over every axis but batch and channels.

    Parameters
    ----------
    x : array, shape ({shape})
        One to three axes after the first two; float32 or float64; any strides. Not modified.
    keepdims : bool
        Whether the pooled axes stay, with length one.
    channels_last : bool
        Whether the axes between the first and the last are pooled.

    Returns
    -------
    array, shape (N, C)
        The same kind of array and dtype as `x`.

    Raises
    ------
    TypeError, ValueError
        With the argument named, before anything is computed.

    Notes
    -----
    Lin, Chen & Yan, Network in Network, 2014.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> poolgrad.{name}(np.zeros((2, 3, 6, 6))).shape
    (2, 3)
    """
    rule = whole(_spatial_axes(x, "global_avg_pool"))
    last, keep = _flag("channels_last", channels_last), _flag("keepdims", keepdims)
    return Request("avg", x, rule, (True, 0), last, keep)


max_pool1d, max_pool2d, max_pool3d = in_dimensions(_max_pool)
avg_pool1d, avg_pool2d, avg_pool3d = in_dimensions(_avg_pool)
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = in_dimensions(_adaptive_max_pool)
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = in_dimensions(_adaptive_avg_pool)
global_max_pool = public(_renamed(_global_max_pool, "global_max_pool"), "global_max_pool", 0)
global_avg_pool = public(_renamed(_global_avg_pool, "global_avg_pool"), "global_avg_pool", 0)
