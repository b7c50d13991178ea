"""Describes a pooling by the state of the page: plain lists, numbers and strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad import arguments, reference
from poolgrad.interface import STORAGE_OPTIONS, Request
from poolgrad.operators import OPERATORS
from poolgrad.windows import brief, in_memory, resolve

Array = NDArray[Any]

# The page's limits; pooling.js has the same.
MOST_SIDE, MOST_EXAMPLES, MOST_WINDOW, MOST_PADDING = 16, 2, 16, 8

_PLAIN = ("max", "min", "median", "avg", "lp", "log_mean_exp", "soft", "mixed")
_NAMES = {name: name for name in _PLAIN} | {"max_unpool": "unpool"}  # the page's names


def values(name: str, given: Any) -> Array:
    """Return real numbers of any array library in float64.

    Raises
    ------
    TypeError, ValueError
        If they are not real numbers, or lists of unequal lengths.
    """
    given = in_memory(name, given)
    if hasattr(given, "detach"):  # a tensor, perhaps of another device or without NumPy's dtype
        given = given.detach().cpu().double()
    return np.asarray(arguments.real_numbers(name, given), np.float64)


def state_of(request: Request, cotangent: Any) -> dict[str, Any]:
    """Return the state in which the page shows this pooling.

    Parameters
    ----------
    request : Request
        The pooling.
    cotangent : array or None
        The gradient of its output; None for ones.

    Raises
    ------
    TypeError, ValueError
        If the pooling is not defined, or the page does not show it.
    """
    if request.operator not in _NAMES:
        raise ValueError(
            f"fun must be one of the operators {', '.join(_NAMES)} to be explained, "
            f"got {request.operator}"
        )
    dims = request.spec.dims
    if dims > 2:
        raise ValueError(f"fun must pool one or two axes to be explained, got {dims}")
    x = values("x", request.x)
    planes = _planes(x, dims, request.channels_last)
    _check_size(planes, x.shape, dims)
    y = reference.Pullback(replace(request, x=x)).y
    state: dict[str, Any] = {
        "operator": _NAMES[request.operator],
        "dims": dims,
        "x": planes.tolist(),
    }
    if cotangent is not None:
        g = values("cotangent", cotangent)
        if g.size == y.size == 1:
            g = g.reshape(y.shape)
        if g.shape != y.shape:
            raise ValueError(
                f"cotangent must have the shape of the output, {y.shape}, got {g.shape}"
            )
        if not request.keepdims:
            g = g.reshape(g.shape + (1,) * dims)
        state["cotangent"] = _planes(g, dims, request.channels_last).tolist()
    return state | _windows(request, planes) | _options(request)


def _planes(x: Array, dims: int, channels_last: bool) -> Array:
    """Return the planes of (rows, columns) that are pooled; one row if one axis is pooled."""
    moved = np.moveaxis(x, -1, -1 - dims) if channels_last else x
    rows = moved.shape[-2] if dims == 2 else 1
    return moved.reshape(-1, rows, moved.shape[-1])


def _check_size(planes: Array, shape: tuple[int, ...], dims: int) -> None:
    examples, rows, columns = planes.shape
    if examples > MOST_EXAMPLES or examples < 1:
        raise ValueError(
            f"x must have 1 to {MOST_EXAMPLES} planes to be shown, got {examples} (shape {shape})"
        )
    if max(rows, columns) > MOST_SIDE:
        most, came = (MOST_SIDE, columns) if dims == 1 else (f"{MOST_SIDE} x {MOST_SIDE}", "")
        raise ValueError(
            f"x must be at most {most} to be shown, got {came or f'{rows} x {columns}'}"
        )


def _windows(request: Request, planes: Array) -> dict[str, Any]:
    """Return the fields of the state that are about windows; of one axis it is the second."""
    spec = request.spec
    sizes = planes.shape[-spec.dims :]
    if request.operator == "max_unpool":
        return _unpooling(request, sizes)
    if spec.output_size:
        bins = [n or size for n, size in zip(spec.output_size, sizes, strict=True)]
        if set(bins) == {1}:
            return {"windows": "global"}
        _check_most("output_size", bins, MOST_SIDE)
        return {"windows": "adaptive", "output_size": [1, *bins][-2:]}
    axes = resolve(spec, sizes).axes
    for name in ("kernel_size", "stride", "dilation"):
        _check_most(name, getattr(spec, name), MOST_WINDOW)
    ends = [[axis.lo, axis.hi] for axis in axes]
    _check_most("padding", [max(pair) for pair in ends], MOST_PADDING)
    return {
        "kernel": [1, *spec.kernel_size][-2:],
        "stride": [1, *spec.stride][-2:],
        "dilation": [1, *spec.dilation][-2:],
        "padding": [[0, 0], *ends][-2:],
        "ceil_mode": spec.ceil_mode,
    }


def _check_most(name: str, numbers: Sequence[int], most: int) -> None:
    if max(numbers) > most:
        raise ValueError(f"{name} must be at most {most} to be shown, got {max(numbers)}")


def _unpooling(request: Request, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Return windows for an output of this size; the request has only the size."""
    out = [n or size for n, size in zip(request.spec.output_size, sizes, strict=True)]
    _check_most("the output", out, MOST_SIDE)
    stride = [max(1, m // n) for m, n in zip(out, sizes, strict=True)]
    kernel = [m - (n - 1) * s for m, n, s in zip(out, sizes, stride, strict=True)]
    indices = np.asarray(request.operands[0], np.int64)
    return {
        "kernel": [1, *kernel][-2:],
        "stride": [1, *stride][-2:],
        "indices": _planes(indices, len(sizes), request.channels_last).tolist(),
    }


def _options(request: Request) -> dict[str, Any]:
    operator = OPERATORS[request.operator]
    options = {
        name: value
        for name, value in request.options._asdict().items()
        if name not in STORAGE_OPTIONS and name != "rounding"  # of integers
    }
    if "divisor" in options:
        options["divisor_override"] = options.pop("divisor") or None
    if operator.learned:
        name = operator.operand.name
        numbers = np.unique(values(name, request.operands[0]))
        if len(numbers) != 1:
            raise ValueError(
                f"{name} must be one number to be shown, got {brief(request.operands[0])}"
            )
        options[name] = float(numbers[0])
    return options
