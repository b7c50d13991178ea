"""One way to ask every front end: NumPy arrays in, NumPy arrays out, a tensor in between or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import poolgrad

try:
    import torch
except ImportError:  # the NumPy half of the suite runs without it
    torch = None  # type: ignore[assignment]


class Front(NamedTuple):
    """A front end: how to pool, and how to pool and get the way back."""

    name: str
    run: Callable[..., Any]
    vjp: Callable[..., tuple[np.ndarray, Any]]


def find(fun: str) -> Callable[..., Any]:
    """A public function by its name."""
    return getattr(poolgrad, fun)


def as_tensor(x: np.ndarray) -> Any:
    """The array as a tensor, of the same strides where PyTorch can have them."""
    x = np.asarray(x)
    compact = x[(..., *(slice(0, 1) if s == 0 else slice(None) for s in x.strides))]
    possible = x.dtype.isnative and all(s >= 0 and s % x.itemsize == 0 for s in x.strides)
    if not possible or not compact.flags.writeable:
        compact = compact.astype(x.dtype.newbyteorder("="))  # keeps the order of the axes
    if x.dtype.name == "bfloat16":  # which PyTorch does not take from NumPy, nor gives to it
        return torch.from_numpy(compact.view(np.int16)).view(torch.bfloat16).expand(x.shape)
    return torch.from_numpy(compact).expand(x.shape)


def as_array(t: Any) -> np.ndarray:
    """The tensor as an array."""
    if t.dtype == torch.bfloat16:
        import ml_dtypes

        return t.detach().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return t.detach().numpy()


def _run_numpy(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    return find(fun)(x, *args, **kwargs)


def _vjp_numpy(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    return poolgrad.vjp(find(fun), x, *args, **kwargs)


class TorchPullback:
    """Autograd, asked as `poolgrad.Pullback` is."""

    def __init__(self, y: Any, x: Any, learned: dict[str, Any]) -> None:
        self.y, self.x, self.learned = y, x, learned

    def __call__(self, gy: np.ndarray) -> np.ndarray:
        return as_array(self._pull(gy, self.x)[0])

    def parameters(self, gy: np.ndarray) -> dict[str, np.ndarray]:
        """The gradients of learned arguments, by name."""
        given = self._pull(gy, *self.learned.values()) if self.learned else ()
        return {name: as_array(g) for name, g in zip(self.learned, given, strict=True)}

    def _pull(self, gy: np.ndarray, *leaves: Any) -> Any:
        return torch.autograd.grad(self.y, leaves, as_tensor(gy), retain_graph=True)


def _given(kwargs: dict[str, Any]) -> dict[str, Any]:
    """With tensors in place of arrays that PyTorch cannot take: everything else as it is."""
    return {
        k: as_tensor(v)
        if type(v) is np.ndarray and (k in ("indices", "logits") or v.dtype.name == "bfloat16")
        else v
        for k, v in kwargs.items()
    }


def _run_torch(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    made = find(fun)(as_tensor(x), *args, **_given(kwargs))
    return tuple(map(as_array, made)) if isinstance(made, tuple) else as_array(made)


def _vjp_torch(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    leaf, kwargs = as_tensor(x).requires_grad_(), _given(kwargs)
    # float32 or float64, whichever the sums are in: a gradient has the dtype of what it is of
    kind = torch.float64 if leaf.dtype == torch.float64 else torch.float32
    learned = {
        name: torch.as_tensor(value, dtype=kind).clone().requires_grad_()
        for name, value in kwargs.items()
        if name == "logits" or (name in LEARNED and _is_real(value))
    }
    y = find(fun)(leaf, *args, **kwargs | learned)
    return as_array(y), TorchPullback(y, leaf, learned)


def _is_real(value: Any) -> bool:
    """Whether this is a number or an array of them, and not something to be refused."""
    if type(value) is np.ndarray:
        return value.dtype.kind == "f"
    return isinstance(value, float | np.floating)


LEARNED = ("norm_type", "r", "alpha", "logits")
NUMPY = Front("numpy", _run_numpy, _vjp_numpy)
TORCH = Front("torch", _run_torch, _vjp_torch)
FRONTS = [NUMPY] if torch is None else [NUMPY, TORCH]
