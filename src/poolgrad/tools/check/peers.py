"""Computes the same poolings with PyTorch's operations and autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poolgrad.tools.check.cases import Case
from poolgrad.tools.check.gradients import Gradients, by_autograd

Array = NDArray[Any]


def peer(case: Case, gy: Array) -> Gradients | None:
    """Return the results of PyTorch, if it supports this call.

    PyTorch computes in float64, so that a difference is the rounding error of poolgrad. Fractional
    windows depend on the dtype and are computed in that of the input.
    """
    if find_spec("torch") is None or not _has(case):
        return None

    def pool(
        t: Any, channels_last: bool = False, ties: str = "", routes: str = "", **kwargs: Any
    ) -> Any:
        """Pool with channels first, as PyTorch requires; there are no ties in the input."""
        if channels_last:
            t = t.movedim(-1, 1)
            kwargs |= {k: v.movedim(-1, 1) for k, v in kwargs.items() if k in ("indices", "logits")}
        y = _POOLS[case.operator](case, t, **kwargs)
        return y.movedim(1, -1) if channels_last and y.dim() > 2 else y

    exact = case.x.dtype if case.operator == "fractional_max" else np.float64
    return by_autograd(pool, case.of(case.x.astype(exact)), gy.astype(exact))


def _has(case: Case) -> bool:
    """Whether PyTorch's operations support these arguments with the same meaning."""
    given, operator = case.kwargs, case.operator
    if isinstance(given.get("padding"), str) or (case.dims == 1 and "divisor_override" in given):
        return False
    if operator == "max_unpool":
        return "padding" not in given  # several values with one index all get a gradient there
    if operator in ("max", "relu_max", "avg", "mixed"):
        return True
    return operator in _POOLS and not given.keys() & {"padding", "ceil_mode", "dilation"}


def _by_name(case: Case, t: Any, **kwargs: Any) -> Any:
    import torch

    if "output_ratio" in kwargs:  # it accepts one ratio per axis only
        kwargs["output_ratio"] = [kwargs["output_ratio"]] * case.dims
    if not case.name.startswith("global"):
        return getattr(torch.nn.functional, case.name)(t, **kwargs)
    pool = torch.amax if case.operator == "max" else torch.mean
    return pool(t, tuple(range(2, t.dim())), kwargs.get("keepdims", False))


def _relu_max(case: Case, t: Any, **windows: Any) -> Any:
    from torch.nn import functional

    return getattr(functional, f"max_pool{case.dims}d")(t.relu(), **windows)


def _of_windows(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Return the pooling whose value is a formula of the last axis and the learned argument."""

    def pool(case: Case, t: Any, **kwargs: Any) -> Any:
        axes = range(2, t.dim())
        kernel = kwargs.pop("kernel_size", None)
        stride, keepdims = kwargs.pop("stride", kernel), kwargs.pop("keepdims", bool(kernel))
        for axis in axes:
            size = kernel or t.shape[axis]
            t = t.unfold(axis, size, stride or size)
        windows = t.flatten(len(axes) + 2)
        if case.learned in kwargs:
            kwargs[case.learned] = kwargs[case.learned].reshape(-1, *[1] * case.dims)
        y = formula(windows, **kwargs)
        return y if keepdims else y.squeeze(tuple(axes))

    return pool


def _mixed(case: Case, t: Any, alpha: Any, count_include_pad: bool = True, **windows: Any) -> Any:
    from torch.nn import functional

    most = getattr(functional, f"max_pool{case.dims}d")(t, **windows)
    pool = getattr(functional, f"avg_pool{case.dims}d")
    alpha = alpha.reshape(-1, *[1] * case.dims)
    return alpha * most + (1 - alpha) * pool(t, count_include_pad=count_include_pad, **windows)


def _lp(case: Case, t: Any, norm_type: Any, mean: bool = False, **windows: Any) -> Any:
    if mean or norm_type.isinf().all() or "kernel_size" not in windows:
        return _of_windows(_norm)(case, t, norm_type=norm_type, mean=mean, **windows)
    from torch.nn import functional

    p = norm_type.reshape(-1, *[1] * case.dims)
    # PyTorch's Lp pooling takes no absolute value.
    return getattr(functional, f"lp_pool{case.dims}d")(t.abs(), p, **windows)


def _norm(w: Any, norm_type: Any, mean: bool) -> Any:
    if norm_type.isinf().all():
        return w.abs().amax(-1)
    powers = w.abs().pow(norm_type[..., None])
    return (powers.mean(-1) if mean else powers.sum(-1)).pow(1 / norm_type)


def _log_mean_exp(w: Any, r: Any) -> Any:
    return ((r[..., None] * w).logsumexp(-1) - math.log(w.shape[-1])) / r


def _lip(case: Case, t: Any, logits: Any, **windows: Any) -> Any:
    total = _of_windows(lambda w: w.sum(-1))
    weights = (logits - logits.detach().amax()).exp()
    return total(case, t * weights, **windows) / total(case, weights, **windows)


def _expected(w: Any, **unused: Any) -> Any:
    positive = w.relu()
    total = positive.sum(-1)
    drawn = (positive * positive).sum(-1) / (total + (total == 0))
    return drawn.where(total > 0, w.mean(-1))


_POOLS: dict[str, Callable[..., Any]] = {
    "max": _by_name,
    "relu_max": _relu_max,
    "avg": _by_name,
    "fractional_max": _by_name,
    "max_unpool": _by_name,
    "mixed": _mixed,
    "lp": _lp,
    "min": _of_windows(lambda w: w.amin(-1)),
    "median": _of_windows(lambda w: w.median(-1).values),
    "soft": _of_windows(lambda w: (w.softmax(-1) * w).sum(-1)),
    "log_mean_exp": _of_windows(_log_mean_exp),
    "expected": _of_windows(_expected),
    "range": _of_windows(lambda w: w.amax(-1) - w.amin(-1)),
    "lip": _lip,
}
