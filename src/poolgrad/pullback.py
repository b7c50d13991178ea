"""`vjp` for NumPy arrays, and what one can see of a gradient's way: `Pullback`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poolgrad import numpy as front
from poolgrad.core import get_num_threads
from poolgrad.operators import Buffer, Prepared, Request, prepare
from poolgrad.window import Axis

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = NDArray[Any]


class Pullback:
    """The way back through one pooling: from the gradient of its output to that of its input.

    Made by `vjp`. It keeps what the backward pass needs (for a maximum the routes, at most a few
    bytes for each output), never the input.

    Parameters
    ----------
    ready, request, residual, dtype
        Of the forward pass.
    """

    def __init__(
        self, ready: Prepared, request: Request, residual: tuple[Array, ...], dtype: np.dtype[Any]
    ) -> None:
        self._ready = ready
        self._name = request.operator
        self._options = request.options
        self._keepdims = request.keepdims
        self._rule = request.rule
        self._channels_last = request.channels_last
        self._residual = residual
        self._dtype = dtype
        for array in residual:
            array.flags.writeable = False

    def __call__(self, gy: Any) -> Array:
        """The gradient of the input.

        Parameters
        ----------
        gy : array, shape and dtype of the output
            The gradient of the output (the cotangent).

        Returns
        -------
        array, shape and dtype of the input
            A new array in the memory format of the input; call again as often as you like.

        Raises
        ------
        TypeError, ValueError
            If `gy` has another dtype or shape than the output.
        """
        plan = self._ready.plan
        if isinstance(gy, list | tuple):
            try:
                gy = np.asarray(gy, self._dtype)
            except (TypeError, ValueError) as error:
                raise ValueError(f"gy must be an array of {self._dtype}: {error}") from error
        if not isinstance(gy, np.ndarray):
            raise TypeError(f"gy must be an array, got {gy!r}")
        if gy.shape != self._shape:
            raise ValueError(f"gy must have the shape of the output, {self._shape}, got {gy.shape}")
        if gy.dtype.newbyteorder("=") != self._dtype:
            raise TypeError(f"gy must have the dtype of the output, {self._dtype}, got {gy.dtype}")
        return self._pull(self._ready, front.asarray(gy, "gy").reshape(plan.out_shape))

    @property
    def _shape(self) -> tuple[int, ...]:
        plan = self._ready.plan
        if self._keepdims:
            return plan.out_shape
        return tuple(s for a, s in enumerate(plan.out_shape) if a not in plan.pooled)

    def _pull(self, ready: Prepared, gy: Array) -> Array:
        plan = ready.plan
        gx = front.allocate(Buffer(plan.in_shape, plan.order, gy.dtype.name))
        ready.operator.pull(plan, gy, self._residual, gx, get_num_threads(), *self._options)
        return gx

    @property
    def routes(self) -> Array:
        """The recorded winners, one unsigned integer for each output; read-only.

        The place of the winner in its window, counted row by row; the largest value of the dtype
        (255 for one byte) where the gradient goes nowhere.

        Raises
        ------
        TypeError
            If the operator selects no winner, or several (``ties="split"``).
        """
        if not self._ready.operator.selecting:
            raise TypeError(
                f"{self._name} pooling has no routes: every input of a window has a weight"
            )
        if self._options == ("split",):
            raise TypeError('ties="split" has no routes: a window may have several winners')
        return self._residual[0]

    def mask(self) -> Array:
        """How many windows each input won: 0 or 1 where windows do not overlap.

        Returns
        -------
        int64 array, shape of the input

        Raises
        ------
        TypeError
            If the operator selects no winner.
        """
        if not self._ready.operator.selecting:
            raise TypeError(
                f"{self._name} pooling has no winners: every input of a window has a weight"
            )
        plan = self._ready.plan
        if self._options == ("split",):
            _, columns, _ = self._entries()
            wins = np.bincount(columns, minlength=math.prod(plan.in_shape))
            return wins.reshape(plan.in_shape)
        exact = prepare(  # counted in float64, which holds every count
            self._name,
            self._rule,
            self._options,
            plan.in_shape,
            self._channels_last,
            plan.order[-1] if plan.order[-1] not in plan.pooled else -1,
            8,
        )
        return self._pull(exact, np.ones(plan.out_shape)).astype(np.int64)

    def matrix(self) -> csr_array:
        """The Jacobian: ``d y.ravel()[i] / d x.ravel()[j]`` in row i, column j.

        Found from pullbacks alone: outputs whose windows do not touch are asked together (Curtis,
        Powell & Reid 1974), so that a few passes give all rows, for any operator.

        Returns
        -------
        scipy.sparse.csr_array, shape (outputs, inputs)

        Raises
        ------
        ImportError
            If SciPy is not installed.
        """
        try:
            from scipy.sparse import coo_array
        except ImportError as error:
            raise ImportError("Pullback.matrix needs SciPy: pip install scipy") from error
        plan = self._ready.plan
        shape = (math.prod(plan.out_shape), math.prod(plan.in_shape))
        rows, columns, values = self._entries()
        return coo_array((values, (rows, columns)), shape=shape).tocsr()

    def _entries(self) -> tuple[Array, Array, Array]:
        """Row, column and value of every number of the Jacobian that is not zero."""
        plan = self._ready.plan
        colours = [_colours(a) for a in plan.window.axes]
        rows, columns, values = [], [], []
        for colour in np.ndindex(*colours):
            gy = np.zeros(plan.out_shape, self._dtype)
            chosen = [slice(None)] * gy.ndim
            for axis, c, n in zip(plan.pooled, colour, colours, strict=True):
                chosen[axis] = slice(c, None, n)
            gy[tuple(chosen)] = 1
            gx = self._pull(self._ready, gy)
            where = list(np.nonzero(gx))
            values.append(gx[tuple(where)])
            columns.append(np.ravel_multi_index(where, plan.in_shape))
            for axis, window, c, n in zip(
                plan.pooled, plan.window.axes, colour, colours, strict=True
            ):
                where[axis] = _owner(window, c, n)[where[axis]]
            rows.append(np.ravel_multi_index(where, plan.out_shape))
        return np.concatenate(rows), np.concatenate(columns), np.concatenate(values)


def _hull(axis: Axis, output: int) -> tuple[int, int]:
    inputs = [i for _, i in axis.places(output)]
    return (inputs[0], inputs[-1]) if inputs else (0, -1)


def _colours(axis: Axis) -> int:
    """Every how manyth output has a window that does not touch the one before."""
    if axis.adaptive:
        return 1 if axis.size % axis.out == 0 else -(-axis.kernel * axis.out // axis.size) + 1
    return min(axis.out, ((axis.kernel - 1) * axis.dilation) // axis.stride + 1)


def _owner(axis: Axis, colour: int, colours: int) -> NDArray[np.int64]:
    """For each input, the output of this colour whose window it lies in."""
    owner = np.zeros(axis.size, np.int64)
    for output in range(colour, axis.out, colours):
        first, last = _hull(axis, output)
        owner[first : last + 1] = output
    return owner


def vjp(fun: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> tuple[Any, Pullback]:
    """Pool, and get the way back.

    Parameters
    ----------
    fun : function
        A pooling function of poolgrad, such as `poolgrad.max_pool2d`.
    x : NumPy array
        The input.
    *args, **kwargs
        Further arguments of `fun`.

    Returns
    -------
    y : array
        ``fun(x, *args, **kwargs)``.
    pullback : Pullback
        ``pullback(gy)`` is the gradient of `x` where `gy` is that of `y`.

    Raises
    ------
    TypeError
        If `fun` is not one of poolgrad's functions, or `x` is not for NumPy (tensors are
        differentiable as they are), or `return_indices` or `out` is given.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.array([[1.0, 3.0], [2.0, 0.5]])
    >>> y, pullback = poolgrad.vjp(poolgrad.max_pool2d, x, 2)
    >>> pullback(np.array([[2.5]]))
    array([[0. , 2.5],
           [0. , 0. ]])
    """
    describe = getattr(fun, "describe", None)
    if describe is None:
        raise TypeError(f"fun must be a pooling function of poolgrad, got {fun!r}")
    request: Request = describe(x, *args, **kwargs)
    if request.return_indices or request.out is not None:
        raise TypeError("vjp takes no return_indices and no out: the pullback has the routes")
    if type(x).__module__.partition(".")[0] == "torch":
        raise TypeError(
            "vjp is for NumPy arrays; tensors are differentiable as they are: "
            "use y.backward() or torch.func.vjp"
        )
    array = front.asarray(x)
    ready = front.prepared(request, array)
    y, residual = front.forward(ready, request, array, keep=True)
    return front.shaped(y, ready, request), Pullback(ready, request, residual, array.dtype)
