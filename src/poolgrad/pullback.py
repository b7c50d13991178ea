"""`Pullback`: gradients, routes, winners and the Jacobian of a call; and `Call` itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from poolgrad.buffers import SPEC, dtype_named, restored
from poolgrad.interface import Request
from poolgrad.operators import Prepared
from poolgrad.windows import Axis, Layout

if TYPE_CHECKING:
    from scipy.sparse import csr_array
    from typing_extensions import TypeVar as TypeVarWithDefault

    from poolgrad.frontend import FrontEnd

    A = TypeVarWithDefault("A", default=Any)
else:
    A = TypeVar("A")
Array = NDArray[Any]


@dataclass(eq=False)
class Call:
    """A validated call of an operator.

    Attributes
    ----------
    front : FrontEnd
        The front end of the input.
    request : Request
        The call of the public function.
    ready : Prepared
        The operator, prepared for the layout of the input.
    x : array or None
        The input; None in a pullback.
    operand : object
        The extra operand, as the engine takes it.
    """

    front: FrontEnd
    request: Request
    ready: Prepared
    x: Any = None
    operand: Any = None

    # The part of a cache key for cotangents that need no conversion; only of NumPy's front end.
    contiguous_key: ClassVar[tuple[Any, ...]] = ()
    # Computes the gradient of the input from such a cotangent and the arrays that it reads.
    bound_gradient: ClassVar[Any] = None

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        layout = self.ready.layout
        if self.request.keepdims:
            return layout.out_shape
        return tuple(s for a, s in enumerate(layout.out_shape) if a not in layout.pooled)

    def shaped(self, y: Any) -> Any:
        """Remove the pooled axes from a result, unless the request keeps them."""
        if self.request.keepdims:
            return y
        dims = self.request.spec.dims
        first = y.ndim - dims - self.request.channels_last
        return self.front.squeezed(y, tuple(range(first, first + dims)))

    def cotangent(self, gy: Any) -> Any:
        """Check a cotangent; return it in the dtype of the output, with the pooled axes."""
        layout = self.ready.layout
        return self.front.cotangent(gy, layout.out_dtype, self.shape, layout.out_shape)

    def gradient(self, gy: Any, x: Any, residual: Any) -> Any:
        """Compute the gradient of the input."""
        return self.front.gradient(self, gy, x, residual)

    def parameter_gradient(self, gy: Any, x: Any, residual: Any) -> Any:
        """Compute the gradient of the learned parameter."""
        return self.front.parameter_gradient(self, gy, x, residual)


class Pullback(Generic[A]):
    """The pullback of a pooling: computes the gradient of the input from that of the output.

    Returned by `vjp`. It stores what the backward pass needs: for a selecting operator the routes,
    a few bytes for each output, and not the input; for an operator whose weights depend on the
    input, a copy of the input, too. It can be pickled and copied, and later changes of the caller's
    arrays do not change it. The gradients of Dask arrays are lazy.

    Parameters
    ----------
    call : Call
        The call, without its input and with private copies of the arrays that it reads.
    x : array or None
        The input, which is copied; None is accepted if the pullback does not read it.
    residual : sequence of array
        The arrays that the forward pass stored.
    """

    def __init__(self, call: Call, x: A | None, residual: Sequence[A]) -> None:
        self.call, self._residual = call, residual
        reads_x = call.ready.operator.nonlinear and x is not None
        self._x = call.front.copied(x) if reads_x else None

    def __reduce__(self) -> tuple[Any, ...]:
        return restored, (_unpickled, self.call, self._x, tuple(self._residual))

    def __repr__(self) -> str:
        call, layout = self.call, self.call.ready.layout
        return (
            f"<Pullback of {call.request.operator} pooling: "
            f"gradients of {call.shape} to {layout.in_shape}, {layout.out_dtype}>"
        )

    def __call__(self, gy: Any) -> A:
        """Compute the gradient of the input.

        Parameters
        ----------
        gy : array, shape of the output
            The gradient of the output (the cotangent), of the library of the input and any floating
            dtype; it is converted to the dtype of the output. If the output has one element, a
            number is accepted.

        Returns
        -------
        array, shape and dtype of the input
            A new array in the memory format (of Dask arrays: the chunks) of the input. The pullback
            may be called repeatedly.

        Raises
        ------
        TypeError, ValueError
            If `gy` does not have the shape of the output or a floating dtype.
        """
        call = self.call
        if SPEC.have_parts((gy,), (call.contiguous_key,)):
            kept = self._residual[: len(call.ready.needed)]
            read = kept if self._x is None else (self._x, *kept)
            return call.bound_gradient(gy, *read)
        return call.gradient(call.cotangent(gy), self._x, self._residual)

    def parameters(self, gy: Any) -> dict[str, A]:
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
        call, operator = self.call, self.call.ready.operator
        cotangent = call.cotangent(gy)
        if not operator.learned:
            return {}
        return {operator.operand.name: call.parameter_gradient(cotangent, self._x, self._residual)}

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
        if self._has_shared_wins("routes"):
            raise TypeError('ties="split" has no routes: a window may have several winners')
        self._require_numpy()
        return self.call.front.routes(self.call, self._residual[0])

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
        shared, layout = self._has_shared_wins("winners"), self._require_numpy()
        if shared:
            _, columns, _ = self._entries()
        else:
            indices = self.call.front.indices_of(self.call, self._residual[0])
            where = list(np.nonzero(indices >= 0))
            sizes = [axis.size for axis in layout.window.axes]
            found = np.unravel_index(indices[tuple(where)], sizes)
            for axis, positions in zip(layout.pooled, found, strict=True):
                where[axis] = positions
            columns = np.ravel_multi_index(where, layout.in_shape)
        wins = np.bincount(columns, minlength=math.prod(layout.in_shape))
        return wins.reshape(layout.in_shape)

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
        layout = self._require_numpy()
        shape = (math.prod(layout.out_shape), math.prod(layout.in_shape))
        rows, columns, values = self._entries()
        if values.dtype.itemsize < 4:  # SciPy does not support smaller floats
            values = values.astype(np.float32)
        return coo_array((values, (rows, columns)), shape=shape).tocsr()

    def _has_shared_wins(self, what: str) -> bool:
        """Whether equal winners share a gradient; raise an error if there are no winners."""
        request = self.call.request
        if not self.call.ready.operator.selecting:
            raise TypeError(
                f"{request.operator} pooling has no {what}: no single input of a window wins"
            )
        return getattr(request.options, "ties", None) == "split"

    def _require_numpy(self) -> Layout:
        """Return the layout; raise an error unless the input is a NumPy array."""
        if self.call.front.name != "numpy":
            noun = self.call.front.noun
            raise TypeError(f"routes, mask and matrix need a NumPy array x, got {noun} x")
        return self.call.ready.layout

    def _entries(self) -> tuple[Array, Array, Array]:
        """Return row, column and value of every nonzero element of the Jacobian."""
        layout = self.call.ready.layout
        dtype = dtype_named(layout.out_dtype)
        local = self.call.ready.operator.windowed and not layout.window.fractional
        colours = [_colours(a) if local else a.out for a in layout.window.axes]
        rows, columns, values = [], [], []
        for colour in np.ndindex(*colours):
            gy = np.zeros(layout.out_shape, dtype)
            chosen = [slice(None)] * gy.ndim
            for axis, c, n in zip(layout.pooled, colour, colours, strict=True):
                chosen[axis] = slice(c, None, n)
            gy[tuple(chosen)] = 1
            gx: Array = self.call.gradient(gy, self._x, self._residual)
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


def _unpickled(call: Call, x: Any, residual: tuple[Any, ...]) -> Pullback:
    return Pullback(call, x, call.front.laid_out(residual, call.ready.residual))


def _colours(axis: Axis) -> int:
    """Return the smallest distance of outputs whose windows do not overlap."""
    if axis.adaptive:
        return -(-axis.kernel * axis.origin.outputs // axis.origin.inputs) + 1
    return min(axis.out, ((axis.kernel - 1) * axis.dilation) // axis.stride + 1)


def _owner(axis: Axis, colour: int, colours: int) -> NDArray[np.int64]:
    """Return, for each input, the output of this colour whose window contains it."""
    owner = np.zeros(axis.size, np.int64)
    for output in range(colour, axis.out, colours):
        owner[[i for _, i in axis.taps(output)]] = output
    return owner
