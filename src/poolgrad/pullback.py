"""`vjp` for NumPy arrays, and `Pullback`: gradients, routes, winners and the Jacobian."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poolgrad import arguments, call_cache, composition
from poolgrad import numpy as front
from poolgrad.call_cache import LOOKUPS, CallCache
from poolgrad.core import get_num_threads
from poolgrad.dtypes import FLOATS
from poolgrad.functional.public import front_end
from poolgrad.interface import Request
from poolgrad.numpy import Call
from poolgrad.operators import OPERATORS, Prepared
from poolgrad.regions import VJPS
from poolgrad.windows import Axis, brief

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class _Shared:
    """Stores what the pullbacks of equal calls share: all but the input and the residual.

    Attributes
    ----------
    request : Request
        The call, without its input and with private operands: the value of a learned operand,
        otherwise what the kernels take.
    ready : Prepared
        The checked call.
    operand : object
        The extra operand, as the kernels take it.
    """

    request: Request
    ready: Prepared
    operand: Any

    @cached_property
    def nonlinear(self) -> bool:
        """Whether the pullback reads the input."""
        return self.ready.operator.nonlinear

    @cached_property
    def needed(self) -> int:
        """The number of residual arrays that the pullback reads."""
        return len(call_cache.needed(self.ready))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the output."""
        return front.dtype_named(self.ready.layout.out_dtype)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        layout = self.ready.layout
        if self.request.keepdims:
            return layout.out_shape
        return tuple(s for a, s in enumerate(layout.out_shape) if a not in layout.pooled)

    @cached_property
    def usual(self) -> tuple[Any, ...]:
        """The part of a cache key for a contiguous cotangent, which needs no conversion; or ()."""
        return _usual(self.ready.layout.out_shape, self.dtype)

    @cached_property
    def gradient(self) -> Callable[..., Array]:
        """The function that computes the gradient of the input from that of the output."""
        return call_cache.vjp(self.ready, front.maker, get_num_threads, self.operand)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        # without the kernels
        return front.restored, (_Shared, self.request, self.ready, self.operand)


@lru_cache
def _usual(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, ...]:
    gy = front.placeholder(shape, dtype)
    return (front.KIND.parts(gy) if front.as_buffer(gy) is gy else None) or ()


class Pullback:
    """The pullback of a pooling: computes the gradient of the input from that of the output.

    Returned by `vjp`. It stores what the backward pass needs: for a selecting operator the routes,
    a few bytes for each output, and not the input; for an operator whose weights depend on the
    input, a copy of the input, too. It can be pickled and copied, and later changes of the caller's
    arrays do not change it.

    Parameters
    ----------
    shared : _Shared
        What does not depend on the values of the input.
    x : array or None
        The input, as the kernels read it; None is accepted if the pullback does not read it.
    residual : sequence of array
        The arrays that the forward pass stored.
    """

    def __init__(self, shared: _Shared, x: Array | None, residual: Sequence[Array]) -> None:
        self._shared, self._residual = shared, residual
        self._x = x.copy("K") if shared.nonlinear and x is not None else None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return front.restored, (_unpickled, self._shared, self._x, self._residual)

    def __repr__(self) -> str:
        shared = self._shared
        return (
            f"<Pullback of {shared.request.operator} pooling: "
            f"gradients of {shared.shape} to {shared.ready.layout.in_shape}, {shared.dtype}>"
        )

    def __call__(self, gy: Any) -> Array:
        """Compute the gradient of the input.

        Parameters
        ----------
        gy : array, shape of the output
            The gradient of the output (the cotangent), of any floating dtype; it is converted to
            the dtype of the output. If the output has one element, a number is accepted.

        Returns
        -------
        array, shape and dtype of the input
            A new array in the memory format of the input. The pullback may be called repeatedly.

        Raises
        ------
        TypeError, ValueError
            If `gy` does not have the shape of the output or a floating dtype.
        """
        shared = self._shared
        if front.KIND.have_parts((gy,), (shared.usual,)):
            return shared.gradient(gy, *self._kept())
        return self._gradient(self._cotangent(gy))

    def parameters(self, gy: Any) -> dict[str, Array]:
        """Compute the gradients of learned parameters.

        Parameters
        ----------
        gy : array, shape of the output
            The gradient of the output, as for the gradient of the input.

        Returns
        -------
        dict of str to array
            For each learned parameter (`norm_type`, `r`, `alpha`) the gradient, in its shape and
            summed over all outputs that use it; float64 if the input is float64, else float32.
            Empty if the operator has none.
        """
        ready = self._shared.ready
        operator, layout = ready.operator, ready.layout
        gradient = self._cotangent(gy)
        if not operator.learned:
            return {}
        shape = np.shape(self._shared.request.operands[0])
        others = operator.operand.summed_axes(shape, layout)
        with np.errstate(over="ignore", invalid="ignore"):
            # Contiguous, because the order of the sum depends on strides.
            order = tuple(range(gradient.ndim))
            slopes = front.allocate(ready.per_output(layout.sum_dtype)._replace(order=order))
            np.multiply(gradient, self._residual[-1], slopes, dtype=slopes.dtype)
            total = slopes.sum(others, dtype=np.float64).astype(layout.sum_dtype)
        return {operator.operand.name: np.asarray(total).reshape(shape)}

    def _cotangent(self, gy: Any) -> Array:
        shared = self._shared
        given = arguments.cotangent(gy, shared.dtype, shared.shape)
        return front.asarray(given, name="gy").reshape(shared.ready.layout.out_shape)

    def _kept(self) -> tuple[Array, ...]:
        """Return the arrays that the pullback reads besides the cotangent."""
        shared = self._shared
        needed = self._residual[: shared.needed]
        return (*needed,) if self._x is None else (self._x, *needed)

    def _gradient(self, gy: Array) -> Array:
        gx: Array = self._shared.gradient(*map(front.as_buffer, (gy, *self._kept())))
        return gx.view(self._shared.dtype) if gy.dtype.name == "bfloat16" else gx

    @property
    def routes(self) -> Array:
        """The route of each output, as a read-only array of unsigned integers.

        A route is the tap index of the winner in its window, in row-major order. It is the largest
        value of the dtype (255 for one byte) for a window without a winner.

        Raises
        ------
        TypeError
            If the operator selects no winner, or several (``ties="split"``).
        """
        request, ready = self._shared.request, self._shared.ready
        if not ready.operator.selecting:
            raise TypeError(
                f"{request.operator} pooling has no routes: no single input of a window wins"
            )
        if getattr(request.options, "ties", None) == "split":
            raise TypeError('ties="split" has no routes: a window may have several winners')
        return front.routes_of(ready, self._residual[0])

    def mask(self) -> Array:
        """Count how many windows each input won: 0 or 1 if windows do not overlap.

        Returns
        -------
        int64 array, shape of the input

        Raises
        ------
        TypeError
            If the operator selects no winner.
        """
        request, ready = self._shared.request, self._shared.ready
        if not ready.operator.selecting:
            raise TypeError(
                f"{request.operator} pooling has no winners: no single input of a window wins"
            )
        layout = ready.layout
        if getattr(request.options, "ties", None) == "split":
            _, columns, _ = self._entries()
            wins = np.bincount(columns, minlength=math.prod(layout.in_shape))
            return wins.reshape(layout.in_shape)
        indices = front.indices_of(ready, self._shared.operand, self._residual[0])
        inner = math.prod(layout.window.out)  # for each plane, pooled axes last
        last = range(indices.ndim - len(layout.pooled), indices.ndim)
        flat = np.moveaxis(indices, layout.pooled, last).reshape(-1, inner)
        size = math.prod(a.size for a in layout.window.axes)
        wins = np.zeros((len(flat), size), np.int64)
        np.add.at(wins, (np.nonzero(flat >= 0)[0], flat[flat >= 0]), 1)
        lead = [s for a, s in enumerate(layout.in_shape) if a not in layout.pooled]
        moved = wins.reshape(*lead, *(a.size for a in layout.window.axes))
        return np.ascontiguousarray(np.moveaxis(moved, last, layout.pooled))

    def matrix(self) -> csr_array:
        """Compute the Jacobian: ``d y.ravel()[i] / d x.ravel()[j]`` in row i, column j.

        One pullback computes the rows of all outputs whose windows do not overlap (Curtis, Powell &
        Reid 1974), so that a few passes give all rows, for any operator.

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
        layout = self._shared.ready.layout
        shape = (math.prod(layout.out_shape), math.prod(layout.in_shape))
        rows, columns, values = self._entries()
        if self._shared.dtype.itemsize < 4:  # SciPy does not support smaller floats
            values = values.astype(np.float32)
        return coo_array((values, (rows, columns)), shape=shape).tocsr()

    def _entries(self) -> tuple[Array, Array, Array]:
        """Return row, column and value of every nonzero element of the Jacobian."""
        layout = self._shared.ready.layout
        local = self._shared.ready.operator.windowed and not layout.window.fractional
        colours = [_colours(a) if local else a.out for a in layout.window.axes]
        rows, columns, values = [], [], []
        for colour in np.ndindex(*colours):
            gy = np.zeros(layout.out_shape, self._shared.dtype)
            chosen = [slice(None)] * gy.ndim
            for axis, c, n in zip(layout.pooled, colour, colours, strict=True):
                chosen[axis] = slice(c, None, n)
            gy[tuple(chosen)] = 1
            gx = self._gradient(gy)
            where = list(np.nonzero(gx))
            values.append(gx[tuple(where)])
            columns.append(np.ravel_multi_index(where, layout.in_shape))
            for axis, window, c, n in zip(
                layout.pooled, layout.window.axes, colour, colours, strict=True
            ):
                # otherwise one output of each plane was chosen
                where[axis] = _owner(window, c, n)[where[axis]] if local else 0 * where[axis] + c
            rows.append(np.ravel_multi_index(where, layout.out_shape))
        return np.concatenate(rows), np.concatenate(columns), np.concatenate(values)


def _unpickled(shared: _Shared, x: Any, residual: tuple[Any, ...]) -> Pullback:
    return Pullback(shared, x, front.laid_out(residual, shared.ready.residual))


def _hull(axis: Axis, output: int) -> tuple[int, int]:
    inputs = [i for _, i in axis.taps(output)]
    return (inputs[0], inputs[-1]) if inputs else (0, -1)


def _colours(axis: Axis) -> int:
    """Return the smallest distance of outputs whose windows do not overlap."""
    if axis.adaptive:
        return -(-axis.kernel * axis.origin.outputs // axis.origin.inputs) + 1
    return min(axis.out, ((axis.kernel - 1) * axis.dilation) // axis.stride + 1)


def _owner(axis: Axis, colour: int, colours: int) -> NDArray[np.int64]:
    """Return, for each input, the output of this colour whose window contains it."""
    owner = np.zeros(axis.size, np.int64)
    for output in range(colour, axis.out, colours):
        first, last = _hull(axis, output)
        owner[first : last + 1] = output
    return owner


def vjp(fun: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> tuple[Any, Pullback]:
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
            return made  # type: ignore[no-any-return]
    describe = getattr(fun, "describe", None)
    of_regions: Any = VJPS.get(fun) if callable(fun) else None
    if of_regions is not None:
        return of_regions(x, *args, **kwargs)  # type: ignore[no-any-return]
    if describe is None:
        raise TypeError(
            "fun must be a pooling function of poolgrad, such as poolgrad.max_pool2d, "
            f"got {brief(fun)}"
        )
    request: Request = describe(x, *args, **kwargs)
    if request.return_indices or request.out is not None:
        raise TypeError("vjp takes no return_indices and no out: the pullback has the routes")
    found = front_end(x)
    if OPERATORS[request.operator].composed:
        return composition.vjp(request, found)  # type: ignore[return-value]
    if found is not front:
        return found.vjp(request)  # type: ignore[no-any-return]
    key = lookup.key((x, *args), kwargs) if lookup is not None else None
    if key is not None and kept is not None and (bound := _bound_vjp(request)) is not None:
        kept.keep(key, bound)
        return bound(x)
    return of_numpy(request)


def _shared(call: Call) -> _Shared:
    if call.x.dtype.name not in FLOATS:
        raise TypeError(f"x must be of a floating dtype to have a gradient, got {call.x.dtype}")
    operand = call.operand  # indices may be the caller's array
    operand = operand.copy() if isinstance(operand, np.ndarray) else operand
    operands = call.request.operands
    if operands:
        operands = tuple(map(np.array, operands)) if call.ready.operator.learned else (operand,)
    return _Shared(replace(call.request, x=None, operands=operands), call.ready, operand)


def _bound_vjp(request: Request) -> Callable[[Array], tuple[Array, Pullback]] | None:
    """Bind a call of `vjp`, or return None if it cannot be cached; see `call_cache`."""
    if not (call_cache.is_cacheable(request) and front.is_readable(request.x)):
        return None
    call = front.call(request)
    shared, ready = _shared(call), call.ready
    if not front.is_direct(call):
        return None
    run = call_cache.forward(ready, front.maker, get_num_threads, call.operand, ready.residual)

    def pool(x: Array) -> tuple[Array, Pullback]:
        y, *residual = run(x)
        return y, Pullback(shared, x, residual)

    def average(x: Array) -> tuple[Array, Pullback]:
        return run(x), Pullback(shared, x, ())

    made = pool if ready.residual else average
    if request.keepdims:
        return made

    def squeezed(x: Array) -> tuple[Array, Pullback]:
        y, pullback = made(x)
        return y.squeeze(ready.layout.pooled), pullback

    return squeezed


def of_numpy(request: Request) -> tuple[Array, Pullback]:
    """Compute the output and the pullback for a NumPy array."""
    call = front.call(request)
    shared = _shared(call)
    y, residual = call.output(), tuple(map(front.allocate, call.ready.residual))
    call.run(y, residual)
    return call.shaped(y), Pullback(shared, call.x, residual)
