"""`vjp`: a pooling and its pullback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from poolgrad.call_cache import LOOKUPS, CallCache
from poolgrad.frontend import front_end
from poolgrad.interface import Request
from poolgrad.pullback import Pullback
from poolgrad.windows import brief

A = TypeVar("A")


def vjp(fun: Callable[..., Any], x: A, *args: Any, **kwargs: Any) -> tuple[A, Pullback[A]]:
    """Compute a pooling and its pullback (the vector-Jacobian product).

    Parameters
    ----------
    fun : function
        A pooling function of poolgrad, such as `poolgrad.max_pool2d`.
    x : array of NumPy, Dask, xarray or an array-API library
        The input. The pullback does not keep it: where the gradient depends on its values, a copy.
    *args, **kwargs
        Further arguments of `fun`.

    Returns
    -------
    y : array
        ``fun(x, *args, **kwargs)``.
    pullback : Pullback
        ``pullback(gy)`` computes the gradient of `x` from the gradient `gy` of `y`. For
        `poolgrad.roi_pool` and `poolgrad.roi_align` it is a `RegionPullback`.

    Raises
    ------
    TypeError
        If `fun` is not a pooling function of poolgrad, if `x` is an array of PyTorch or JAX (which
        differentiate themselves) or of integers, or if `return_indices` or `out` is passed.
    ValueError
        As for `fun`.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array([[1.0, 3.0], [2.0, 0.5]])
    >>> y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 2)
    >>> pullback(2.5)
    array([[0. , 2.5],
           [0. , 0. ]])
    """
    kept: CallCache | None = getattr(fun, "pullbacks", None)
    lookup = LOOKUPS.get(type(x))
    if kept is not None and lookup is not None:
        made = lookup.call(kept, (x, *args), kwargs)
        if made is not None:
            return made
    describe = getattr(fun, "describe", None)
    if (of_regions := getattr(fun, "vjp", None)) is not None:
        return of_regions(x, *args, **kwargs)
    if describe is None:
        raise TypeError(
            "fun must be a pooling function of poolgrad, such as poolgrad.max_pool2d, "
            f"got {brief(fun)}"
        )
    request: Request = describe(x, *args, **kwargs)
    if request.return_indices or request.out is not None:
        raise TypeError("vjp takes no return_indices and no out: the pullback has the routes")
    front = front_end(request.x)
    key = lookup.key((x, *args), kwargs) if lookup is not None else None
    if key is not None and kept is not None and (bound := front.bound_vjp(request)) is not None:
        kept.keep(key, bound)
        return bound(x)
    return front.vjp(request)
