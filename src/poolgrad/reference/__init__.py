"""Reference implementation of every operator and its gradient: plain NumPy, slow and short.

The kernels are tested against this implementation. An operator is a function of one window
(`poolgrad.reference.operators`): it returns the value, and the derivatives of the value with
respect to each input of the window and to the learned parameter. Every pooling function of poolgrad
has a function of the same name here.

    >>> import numpy as np
    >>> from poolgrad import reference
    >>> y, pullback = reference.vjp(reference.max_pool2d, np.array([[1.0, 3.0], [2.0, 0.5]]), 2)
    >>> y, pullback(np.array([[2.5]]))
    (array([[3.]]), array([[0. , 2.5],
           [0. , 0. ]]))

`operators` has the formulas, `geometry` the positions of windows by plain loops, `windows` the loop
over windows with the gradients, `regions` region-of-interest pooling. Formulas, positions and loops
are shared with nothing; NumPy's front end checks and converts the arguments.
``tests/exactness/test_reference.py`` tests it against definitions, PyTorch and finite differences.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from poolgrad import functional
from poolgrad.numpy import FRONT_END as NUMPY
from poolgrad.reference import regions
from poolgrad.reference.operators import OPERATORS, Array, Inside, Pooled
from poolgrad.reference.regions import RegionPullback, roi_align, roi_pool
from poolgrad.reference.windows import Pullback

__all__ = ["OPERATORS", "Inside", "Pooled", "Pullback", "RegionPullback", "roi_align", "roi_pool"]
__all__ += ["vjp"]
__all__.extend(functional.FUNCTIONS)


def vjp(fun: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> tuple[Array, Any]:
    """Compute a pooling and its pullback, as `poolgrad.vjp`, for functions of this module."""
    if fun in regions.ENTRIES:
        return regions.vjp(fun, x, *args, **kwargs)
    request = fun.describe(x, *args, **kwargs)  # type: ignore[attr-defined]
    pullback = Pullback(request)
    NUMPY.require_gradient(np.asarray(x))
    return pullback.y, pullback


def _slow(name: str, fast: Any) -> Callable[..., Any]:
    def pool(*args: Any, **kwargs: Any) -> Any:
        request = fast.describe(*args, **kwargs)
        pullback = Pullback(request)
        y = pullback.y
        if request.out is not None:
            y = request.out
            np.copyto(y, pullback.y)
        return (y, pullback.indices) if request.return_indices else y

    pool.__name__ = pool.__qualname__ = name
    pool.__doc__ = f"Reference implementation of `poolgrad.{name}`."
    pool.__signature__ = inspect.signature(fast)  # type: ignore[attr-defined]
    pool.describe = fast.describe  # type: ignore[attr-defined]
    return pool


globals().update({name: _slow(name, fast) for name, fast in functional.FUNCTIONS.items()})
