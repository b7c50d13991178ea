"""Gradient checks of every public function in every front end that is installed.

Each gradient is held against three things: central finite differences in float64, the textbook
definition in `poolgrad.reference`, and PyTorch's own operator where it has one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad import reference
from poolgrad.functional import FUNCTIONS
from poolgrad.pullback import vjp

Array = NDArray[Any]

# How far results may be apart, as a part of the largest of them.
TOLERANCE = {"float64": 1e-11, "float32": 2e-6}
DIFFERENCES_TOLERANCE = 1e-7  # of central differences with a step of 1e-6, in float64
_STEP = 1e-6


@dataclass
class Row:
    """One function in one front end.

    Attributes
    ----------
    function, front_end, dtype, layout : str
        What was checked.
    errors : dict
        For each check that applies, the largest error and the largest that is accepted.
    """

    function: str
    front_end: str
    dtype: str
    layout: str
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(error <= accepted for error, accepted in self.errors.values())


def _numpy_gradient(
    function: Callable[..., Any], x: Array, gy: Array | None, kwargs: dict[str, Any]
) -> tuple[Array, Array]:
    y, pullback = vjp(function, x, **kwargs)
    return y, pullback(np.ones_like(y) if gy is None else gy)


def _torch_gradient(
    function: Callable[..., Any], x: Array, gy: Array | None, kwargs: dict[str, Any]
) -> tuple[Array, Array]:
    import torch

    leaf = torch.from_numpy(x).requires_grad_()
    y = function(leaf, **kwargs)
    y.backward(torch.ones_like(y) if gy is None else torch.from_numpy(gy))
    assert leaf.grad is not None
    return y.detach().numpy(), leaf.grad.numpy()


FRONT_ENDS = {"numpy": _numpy_gradient, "torch": _torch_gradient}


def installed() -> list[str]:
    """The front ends whose frameworks are installed."""
    return [name for name in FRONT_ENDS if find_spec(name) is not None]


def _arguments(name: str) -> list[dict[str, Any]]:
    """Arguments that make windows overlap, reach into padding, and be cut off."""
    if name.startswith("global"):
        cases: list[dict[str, Any]] = [{}, {"keepdims": True}]
    elif name.startswith("adaptive"):
        cases = [{"output_size": 2}, {"output_size": 3}]
    else:
        cases = [
            {"kernel_size": 2},
            {"kernel_size": 3, "stride": 2, "padding": 1},
            {"kernel_size": 2, "stride": 1, "padding": "same", "dilation": 2},
            {"kernel_size": 3, "stride": 2, "ceil_mode": True},
        ]
    if "max" in name:
        cases += [{**cases[-1], "ties": ties} for ties in ("split", "zero")]
    return cases


def _dims(name: str) -> tuple[int, ...]:
    return (int(name[-2]),) if name.endswith("d") else (1, 2, 3)


def _input(name: str, dims: int, channels_last: bool) -> Array:
    """Values all different by much more than a finite difference."""
    sizes = (5, 4, 3)[-dims:] if dims == 3 else (7, 6)[:dims]
    shape = (2, *sizes, 3) if channels_last else (2, 3, *sizes)
    rng = np.random.default_rng(len(name) + dims)
    return rng.permutation(int(np.prod(shape))).reshape(shape) / 8.0 - 3.0


def _apart(a: Array, b: Array) -> float:
    if a.shape != b.shape:
        return np.inf
    scale = max(1.0, float(np.abs(b).max(initial=0)))
    return float(np.abs(a.astype(np.float64) - b).max(initial=0)) / scale


def _differences(
    function: Callable[..., Any], x: Array, gy: Array, kwargs: dict[str, Any]
) -> Array:
    """The gradient of ``(y * gy).sum()`` by central differences."""
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        above, below = x.copy(), x.copy()
        above[i] += _STEP
        below[i] -= _STEP
        rise = function(above, **kwargs) - function(below, **kwargs)
        gradient[i] = (rise * gy).sum() / (2 * _STEP)
    return gradient


def _peer(
    name: str, x: Array, gy: Array, dims: int, kwargs: dict[str, Any]
) -> tuple[Array, Array] | None:
    """What PyTorch's own function gives, if it has one that takes these arguments."""
    if find_spec("torch") is None or not _torch_takes(name, kwargs):
        return None
    import torch

    keep = dict(kwargs)
    last = keep.pop("channels_last", False)
    keep.pop("ties", None)
    if name.startswith("global"):
        keepdim = keep.pop("keepdims", False)
        axes = tuple(range(1, dims + 1) if last else range(2, dims + 2))
        pool = torch.amax if "max" in name else torch.mean
        return _torch_gradient(lambda t: pool(t, axes, keepdim), x, gy, {})
    pool = getattr(torch.nn.functional, name)
    if not last:
        return _torch_gradient(pool, x, gy, keep)
    return _torch_gradient(lambda t: pool(t.movedim(-1, 1), **keep).movedim(1, -1), x, gy, {})


def _torch_takes(name: str, kwargs: dict[str, Any]) -> bool:
    if kwargs.get("ties", "first") != "first":
        return False
    return not (isinstance(kwargs.get("padding"), str) or ("avg" in name and "dilation" in kwargs))


def check_function(name: str, front_end: str, dtype: str, channels_last: bool) -> Row:
    """Check one public function.

    Parameters
    ----------
    name : str
        Its name, such as ``"max_pool2d"``.
    front_end : str
        A key of `FRONT_ENDS`.
    dtype : str
        ``"float64"`` or ``"float32"``; finite differences are taken in float64 only.
    channels_last : bool
        The layout.

    Returns
    -------
    Row
    """
    row = Row(name, front_end, dtype, "channels last" if channels_last else "channels first")
    function, slow = FUNCTIONS[name], getattr(reference, name)

    def note(check: str, accepted: float, *pairs: tuple[Array, Array]) -> None:
        worst = max(_apart(a, b) for a, b in pairs)
        row.errors[check] = (max(worst, row.errors.get(check, (0.0, 0.0))[0]), accepted)

    for dims, arguments in itertools.product(_dims(name), _arguments(name)):
        kwargs = {**arguments, "channels_last": True} if channels_last else arguments
        x = _input(name, dims, channels_last).astype(dtype)
        y_slow, pullback = reference.vjp(slow, x, **kwargs)
        gy = np.random.default_rng(dims).standard_normal(y_slow.shape).astype(dtype)
        y, gx = FRONT_ENDS[front_end](function, x, gy, kwargs)
        note("textbook", TOLERANCE[dtype], (y, y_slow), (gx, pullback(gy)))
        if dtype == "float64" and np.prod(x.shape) <= 512:
            expected = _differences(function, x, gy, kwargs)
            note("differences", DIFFERENCES_TOLERANCE, (gx, expected))
        peer = _peer(name, x, gy, dims, kwargs)
        if peer is not None:
            note("PyTorch", TOLERANCE[dtype], (y, peer[0]), (gx, peer[1]))
    return row


def _rows() -> list[tuple[str, str, str, bool]]:
    return list(itertools.product(FUNCTIONS, installed(), TOLERANCE, (False, True)))


def count() -> int:
    """How many rows `run` yields."""
    return len(_rows())


def run() -> Iterator[Row]:
    """Check everything that is installed, function by function.

    Yields
    ------
    Row
        One for each function, front end, dtype and layout.
    """
    for name, front_end, dtype, channels_last in _rows():
        yield check_function(name, front_end, dtype, channels_last)
