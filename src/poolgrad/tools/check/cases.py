"""Defines the calls that check every public function; no input lies near a kink."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad.functional import FUNCTIONS
from poolgrad.interface import Request
from poolgrad.operators import OPERATORS

Array = NDArray[Any]

_LEADING = (2, 2)  # batch and channels
_SIZES = {1: (7,), 2: (5, 6), 3: (4, 4, 5)}

# Windows that overlap, include padding, skip inputs, and are partial.
_WINDOWS: list[dict[str, Any]] = [
    {"kernel_size": 3, "stride": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "stride": 1, "padding": "same", "dilation": 2},
    {"kernel_size": 2, "ceil_mode": True},
]
_FRACTIONAL: list[dict[str, Any]] = [
    {"kernel_size": 2, "output_size": 2},
    {"kernel_size": 2, "output_ratio": 0.5},
]
_UNPOOLED: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
]
_BINS: list[dict[str, Any]] = [{"output_size": 2}, {"output_size": 3}]

# For each argument: its value in every call, and other values for one more call each, with the
# first windows. The numbers are exact in float32.
_ALWAYS: dict[str, Any] = {"norm_type": 2.5, "r": 0.75, "alpha": 0.25, "generator": 11}
_ONCE: dict[str, list[dict[str, Any]]] = {
    "ties": [{"ties": "split"}, {"ties": "zero"}],
    "routes": [{"routes": "packed"}],
    "count_include_pad": [{"count_include_pad": False, "padding": 1}],
    "divisor_override": [{"divisor_override": 5}],
    "keepdims": [{"keepdims": True}],
    "mean": [{"mean": True}],
    "training": [{"training": False}, {"training": False, "padding": 1}],
    "norm_type": [{"norm_type": np.array([1.5, 4.0])}, {"norm_type": math.inf}],
    "r": [{"r": np.array([-0.75, 2.0])}],
    "alpha": [{"alpha": np.array([1.5, 0.75])}],
}


@dataclass(frozen=True)
class Case:
    """One call of a public function.

    Attributes
    ----------
    name : str
        The function.
    dims : int
        Number of pooled axes.
    x : array
        Its input.
    kwargs : dict
        All its other arguments.
    """

    name: str
    dims: int
    x: Array
    kwargs: dict[str, Any]

    @property
    def request(self) -> Request:
        """The request that the function passes to a front end."""
        return FUNCTIONS[self.name].describe(self.x, **self.kwargs)  # type: ignore[attr-defined]

    @property
    def operator(self) -> str:
        """The operator that the function calls."""
        return self.request.operator

    @property
    def learned(self) -> str | None:
        """The argument that has a gradient."""
        operator = OPERATORS[self.operator]
        return operator.operand.name if operator.learned else None

    def of(self, x: Array | None = None, **kwargs: Any) -> Case:
        """Return the call with another input, or with some other arguments."""
        return Case(self.name, self.dims, self.x if x is None else x, self.kwargs | kwargs)

    def __str__(self) -> str:
        given = (f"{k}={_shown(v)}" for k, v in self.kwargs.items())
        return f"{self.name}(x of shape {self.x.shape}, {', '.join(given)})"


def _shown(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return str(value.tolist()) if value.ndim < 2 else f"array of shape {value.shape}"
    return repr(value)


def cases(name: str, dtype: str, channels_last: bool) -> Iterator[Case]:
    """Return all calls of a function in one dtype and memory format.

    Parameters
    ----------
    name : str
        Name of a public function.
    dtype : str
        Dtype of its input.
    channels_last : bool
        The layout.
    """
    for dims in (int(name[-2]),) if name.endswith("d") else (1, 2, 3):
        x = distinct((*_LEADING, *_SIZES[dims]), dtype)
        for arguments in _arguments(set(inspect.signature(FUNCTIONS[name]).parameters)):
            kwargs = {**arguments, **_extra_operand(name, dims, x, arguments)}
            yield _laid_out(Case(name, dims, x, kwargs), channels_last)


def _arguments(taken: set[str]) -> list[dict[str, Any]]:
    if "indices" in taken:
        windows = _UNPOOLED
    elif "_random_samples" in taken:
        windows = _FRACTIONAL
    elif "output_size" in taken:
        windows = _BINS
    else:
        windows = _WINDOWS if "kernel_size" in taken else [{}]
    always = {k: v for k, v in _ALWAYS.items() if k in taken and "_random_samples" not in taken}
    once = [variant for argument in _ONCE if argument in taken for variant in _ONCE[argument]]
    return [always | given for given in [*windows, *(windows[0] | variant for variant in once)]]


def distinct(shape: tuple[int, ...], dtype: str) -> Array:
    """Return values from -4 to 4 whose magnitudes differ from each other and from zero.

    The differences are large against a step of a finite difference, so that a step changes neither
    a winner nor a sign.
    """
    n = math.prod(shape)
    order = np.random.default_rng(n).permutation(n)
    return ((order - n // 2 + 1 / 3) * (8 / n)).reshape(shape).astype(dtype)


def _extra_operand(name: str, dims: int, x: Array, arguments: dict[str, Any]) -> dict[str, Array]:
    """Return the extra operand for this input."""
    rng = np.random.default_rng(dims)
    if name.startswith("lip"):
        return {"logits": rng.normal(size=x.shape).astype(x.dtype)}
    if name.startswith("fractional"):
        return {"_random_samples": rng.random((*_LEADING, dims)).astype(x.dtype)}
    if name.startswith("max_unpool"):
        spec = FUNCTIONS[name].describe(x, None, **arguments).spec  # type: ignore[attr-defined]
        positions = math.prod(spec.output_size)
        if "padding" in arguments:  # indices that occur more than once
            return {"indices": rng.integers(positions, size=x.shape)}
        plane = rng.permuted(np.tile(np.arange(positions), (*_LEADING, 1)), axis=-1)
        return {"indices": plane[..., : math.prod(x.shape[2:])].reshape(x.shape)}
    return {}


def _laid_out(case: Case, channels_last: bool) -> Case:
    if not channels_last:
        return case
    indices = {k: _last(v) for k, v in case.kwargs.items() if k in ("indices", "logits")}
    return case.of(_last(case.x), **indices, channels_last=True)


def _last(array: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))
