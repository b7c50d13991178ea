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
    vjp: Callable[..., tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]]


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
    return torch.from_numpy(compact).expand(x.shape)


def _run_numpy(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    return find(fun)(x, *args, **kwargs)


def _vjp_numpy(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    return poolgrad.vjp(find(fun), x, *args, **kwargs)


def _run_torch(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    made = find(fun)(as_tensor(x), *args, **kwargs)
    return tuple(t.numpy() for t in made) if isinstance(made, tuple) else made.numpy()


def _vjp_torch(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    leaf = as_tensor(x).requires_grad_()
    y = find(fun)(leaf, *args, **kwargs)

    def pullback(gy: np.ndarray) -> np.ndarray:
        (gx,) = torch.autograd.grad(y, leaf, as_tensor(gy), retain_graph=True)
        return gx.numpy()

    return y.detach().numpy(), pullback


NUMPY = Front("numpy", _run_numpy, _vjp_numpy)
TORCH = Front("torch", _run_torch, _vjp_torch)
FRONTS = [NUMPY] if torch is None else [NUMPY, TORCH]
