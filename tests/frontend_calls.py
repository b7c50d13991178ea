"""Calls of every front end in one form: NumPy arrays in, NumPy arrays out."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import numpy as np

import poolgrad

try:
    import torch
except ImportError:  # the tests of NumPy arrays run without it
    torch = None  # type: ignore[assignment]
try:
    import jax
except ImportError:
    jax = None  # type: ignore[assignment]
try:
    import dask
    import dask.array as da
except ImportError:
    dask = None  # type: ignore[assignment]


class Front(NamedTuple):
    """A front end.

    `run(fun, x, ...)` pools, `vjp(fun, x, ...)` pools and returns the pullback; both convert every
    array. `call(fun, x, ...)` converts the input alone and passes other arguments as they are.
    """

    name: str
    run: Callable[..., Any]
    vjp: Callable[..., tuple[np.ndarray, Any]]
    call: Callable[..., Any]


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


class FrameworkPullback:
    """A pullback of a framework's arrays, called as `poolgrad.Pullback` is.

    `gradients(gy, names)` returns the gradients of ``"x"`` or of learned arguments, by name.
    """

    def __init__(self, gradients: Callable[..., dict[str, np.ndarray]], learned: list[str]) -> None:
        self._gradients, self._learned = gradients, learned

    def __call__(self, gy: np.ndarray) -> np.ndarray:
        return self._gradients(gy, ["x"])["x"]

    def parameters(self, gy: np.ndarray) -> dict[str, np.ndarray]:
        """The gradients of learned arguments, by name."""
        return self._gradients(gy, self._learned) if self._learned else {}


def _arrays(result: Any, convert: Callable[[Any], np.ndarray]) -> Any:
    """One array, or values and indices."""
    return tuple(map(convert, result)) if isinstance(result, tuple) else convert(result)


def _given(kwargs: dict[str, Any]) -> dict[str, Any]:
    """With tensors in place of arrays that PyTorch cannot take: everything else as it is."""
    return {
        k: as_tensor(v)
        if type(v) is np.ndarray and (k in ("indices", "logits") or v.dtype.name == "bfloat16")
        else v
        for k, v in kwargs.items()
    }


def _run_torch(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    return _call_torch(fun, x, *args, **_given(kwargs))


def _call_torch(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    return _arrays(find(fun)(as_tensor(x), *args, **kwargs), as_array)


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
    leaves = {"x": leaf, **learned}

    def gradients(gy: np.ndarray, names: list[str]) -> dict[str, np.ndarray]:
        found = torch.autograd.grad(
            y, [leaves[name] for name in names], as_tensor(gy), retain_graph=True
        )
        return dict(zip(names, map(as_array, found), strict=True))

    return as_array(y), FrameworkPullback(gradients, list(learned))


def native(x: Any) -> Any:
    """The array in the byte order of this machine, which frameworks require."""
    if type(x) is not np.ndarray or x.dtype.isnative:
        return x
    return x.astype(x.dtype.newbyteorder("="))


_jax_calls = count(1)


def _bound_jax_caches() -> None:
    """Forget compiled operations from time to time: each shape of each test would take memory."""
    if next(_jax_calls) % 100 == 0:
        jax.clear_caches()


def _run_jax(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    return _call_jax(fun, x, *args, **{k: native(v) for k, v in kwargs.items()})


def _call_jax(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    _bound_jax_caches()
    with jax.enable_x64(True):
        leaf = jax.numpy.asarray(native(np.asarray(x)))
        return _arrays(find(fun)(leaf, *args, **kwargs), np.asarray)


def _vjp_jax(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    _bound_jax_caches()
    with jax.enable_x64(True):
        leaf = jax.numpy.asarray(native(np.asarray(x)))
        given = {k: native(v) for k, v in kwargs.items()}
        kind = np.float64 if leaf.dtype == np.float64 else np.float32
        learned = {
            k: jax.numpy.asarray(v, v.dtype if k == "logits" else kind)
            for k, v in given.items()
            if k == "logits" or (k in LEARNED and _is_real(v))
        }
        y, pullback = jax.vjp(
            lambda x, learned: find(fun)(x, *args, **given | learned), leaf, learned
        )

    def gradients(gy: np.ndarray, names: list[str]) -> dict[str, np.ndarray]:
        with jax.enable_x64(True):
            gx, others = pullback(jax.numpy.asarray(native(gy)))
            found = {"x": gx, **others}
            return {name: np.asarray(found[name]) for name in names}

    return np.asarray(y), FrameworkPullback(gradients, list(learned))


def _chunked(x: np.ndarray) -> Any:
    """The array in chunks that windows cross."""
    x = native(np.asarray(x))
    return da.from_array(x, chunks=tuple(max(1, -(-size // 2)) for size in x.shape))


def _computed(lazy: Any) -> np.ndarray:
    return np.asarray(lazy.compute(scheduler="synchronous"))


def _run_dask(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    return _arrays(find(fun)(_chunked(x), *args, **kwargs), _computed)


def _vjp_dask(fun: str, x: np.ndarray, *args: Any, **kwargs: Any) -> Any:
    y, pullback = poolgrad.vjp(find(fun), _chunked(x), *args, **kwargs)

    def gradients(gy: np.ndarray, names: list[str]) -> dict[str, np.ndarray]:
        if names == ["x"]:
            return {"x": _computed(pullback(gy))}
        return {k: _computed(v) for k, v in pullback.parameters(gy).items()}

    learned = [k for k, v in kwargs.items() if k == "logits" or (k in LEARNED and _is_real(v))]
    return _computed(y), FrameworkPullback(gradients, learned)


def _is_real(value: Any) -> bool:
    """Whether this is a number or an array of them, and not something to be refused."""
    if type(value) is np.ndarray:
        return value.dtype.kind == "f"
    return isinstance(value, float | np.floating)


LEARNED = ("norm_type", "r", "alpha", "logits")
NUMPY = Front("numpy", _run_numpy, _vjp_numpy, _run_numpy)
TORCH = Front("torch", _run_torch, _vjp_torch, _call_torch)
JAX = Front("jax", _run_jax, _vjp_jax, _call_jax)
DASK = Front("dask", _run_dask, _vjp_dask, _run_dask)
FRONTS = [
    front
    for front, library in ((NUMPY, np), (TORCH, torch), (JAX, jax), (DASK, dask))
    if library is not None
]
