"""The front end for CuPy and all other array-API libraries without a front end of their own.

The values of extra operands are checked only where they are Python numbers or NumPy arrays: arrays
on a device stay there.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj

from poolgrad import arguments
from poolgrad.composition import Functions
from poolgrad.dtypes import FLOATS, name_of
from poolgrad.interface import Request, indexed
from poolgrad.operands import Parameter, Samples, WindowSamples
from poolgrad.operators import Prepared, prepare
from poolgrad.portable import engine
from poolgrad.portable.arrays import converted, placed
from poolgrad.windows import in_memory


def asarray(x: Any) -> Any:
    """Return the array, which needs no conversion."""
    return x


def perform(request: Request) -> Any:
    """Compute the call of a public function."""
    if request.out is not None:
        raise TypeError(
            f"out is accepted only if x is a NumPy array, got {type(request.x).__qualname__} x"
        )
    call = _Call(request)
    if not request.return_indices:
        return call.shaped(call.forward(keep=False)[0])
    y, (routes,) = call.forward(keep=True, options=indexed(call.options))
    samples = call.operand if call.layout.window.fractional else None
    return call.shaped(y), call.shaped(engine.indices(call.layout, routes, samples))


def vjp(request: Request) -> tuple[Any, Pullback]:
    """Compute the output and its pullback."""
    call = _Call(request)
    if name_of(request.x.dtype) not in FLOATS:
        raise TypeError(
            f"x must be of a floating dtype to have a gradient, got {name_of(request.x.dtype)}"
        )
    y, residual = call.forward(keep=True)
    return call.shaped(y), Pullback(call, residual)


def operand(name: str, value: Any) -> Any:
    """Return an array of a composed operator, checked."""
    if not is_array_api_obj(value):
        raise TypeError(f"{name} must be an array, got {type(value).__qualname__}")
    return value


def dtype_name(x: Any) -> str:
    """Return the name of the dtype of an array."""
    return name_of(x.dtype)


def functions(x: Any) -> Functions:
    """Return the functions that a composed operator may call."""
    xp = array_namespace(x)
    return Functions(
        xp.exp, xp.where, xp.max, lambda x, dtype: converted(xp, x, dtype), lambda x: x
    )


def namespace(x: Any) -> Any:
    """Return the array-API namespace of the library of an array."""
    return array_namespace(x)


def pullback_of(request: Request) -> tuple[Any, Pullback]:
    """Compute the output and the pullback of a part of a composed operator."""
    return vjp(request)


def cotangent_of(gy: Any, dtype: str, shape: tuple[int, ...], full: Any = None) -> Any:
    """Check a cotangent and convert it to the dtype of the output.

    `full` is the shape of the output with the pooled axes.
    """
    if not is_array_api_obj(gy) or name_of(gy.dtype) not in FLOATS:
        came = name_of(gy.dtype) if is_array_api_obj(gy) else type(gy).__qualname__
        raise TypeError(f"gy must be an array of a floating dtype, got {came}")
    given = tuple(gy.shape)
    if given != shape and not (given == () and math.prod(shape) == 1):
        raise ValueError(f"gy must have the shape of the output, {shape}, got {given}")
    gy = in_memory("gy", gy)
    xp = array_namespace(gy)
    return xp.reshape(converted(xp, gy, dtype), shape if full is None else full)


class _Call:
    """A validated call of an operator.

    Parameters
    ----------
    request : Request
        The call of a public function.
    """

    def __init__(self, request: Request) -> None:
        self.request, self.xp = request, array_namespace(request.x)
        shape, dtype, options = tuple(request.x.shape), name_of(request.x.dtype), request.options
        self.ready = prepare(
            request.operator, request.spec, options, shape, request.channels_last, -1, dtype
        )
        if dtype not in FLOATS and getattr(options, "ties", None) == "split":
            options = indexed(options)  # integers have no gradient to split
        self.options, self.operator, self.layout = options, self.ready.operator, self.ready.layout
        converter, operand = _Converter(self.xp, request.x), self.operator.operand
        values = [operand.convert(converter, v, request.x, self.ready) for v in request.operands]
        self.operand = values[0] if values else None

    def forward(self, keep: bool, options: Any = None) -> tuple[Any, tuple[Any, ...]]:
        """Compute the output and the residual."""
        x, how = self.request.x, self.options if options is None else options
        return engine.forward(self.operator, self.layout, x, self.operand, how, keep)

    def shaped(self, y: Any) -> Any:
        """Remove the pooled axes from the result, unless the request keeps them."""
        return y if self.request.keepdims else self.xp.squeeze(y, axis=self.layout.pooled)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the output."""
        layout = self.layout
        if self.request.keepdims:
            return layout.out_shape
        return tuple(s for a, s in enumerate(layout.out_shape) if a not in layout.pooled)


def _is_on_device(value: Any) -> bool:
    return not isinstance(value, np.ndarray | np.generic) and is_array_api_obj(value)


class _Converter:
    """Converts extra operands to arrays on the device of the input; see `operands.Converter`.

    Parameters
    ----------
    xp : module
        The array library of the input.
    x : array
        The input.
    """

    def __init__(self, xp: Any, x: Any) -> None:
        self._xp, self._where = xp, placed(x)

    def _array(self, value: Any, dtype: str) -> Any:
        """Return the value on the device of the input."""
        numbers = np.asarray(value, dtype).tolist()
        return self._xp.asarray(numbers, dtype=getattr(self._xp, dtype), **self._where)

    def parameter(self, operand: Parameter, value: Any, x: Any, ready: Prepared) -> Any:
        layout = ready.layout
        if not _is_on_device(value):
            return self._array(operand.checked(value, ready), layout.sum_dtype)
        if not self._xp.isdtype(value.dtype, ("real floating", "integral")):
            raise arguments.refuse_numbers(operand.name, name_of(value.dtype))
        arguments.check_length(operand.name, tuple(value.shape), layout.channels)
        return converted(self._xp, value, layout.sum_dtype)

    def seed(self, value: Any, x: Any) -> Any:
        seed = arguments.seed(value)
        return self._array(
            arguments.numpy_generator(value).integers(2**63) if seed is None else seed, "int64"
        )

    def samples(self, operand: WindowSamples, value: Samples, x: Any, ready: Prepared) -> Any:
        layout, given = ready.layout, value.values
        dtype = layout.dtype if layout.dtype in FLOATS else "float32"
        if given is None:
            given = arguments.numpy_generator(value.generator).random(
                arguments.samples_shape(layout)
            )
        if _is_on_device(given):
            arguments.check_samples_dtype(name_of(given.dtype))
            arguments.check_samples_shape(tuple(given.shape), layout)
        else:
            given = self._array(operand.checked(given, layout), "float64")
        narrow = converted(self._xp, given, dtype)
        return self._xp.minimum(narrow, arguments.below_one(dtype))

    def indices(self, value: Any, x: Any) -> Any:
        if not is_array_api_obj(value):
            raise TypeError(f"indices must be an array, got {type(value).__qualname__}")
        arguments.check_indices(name_of(value.dtype), tuple(value.shape), tuple(x.shape))
        return self._array(value, "int64") if isinstance(value, np.ndarray) else value


class Pullback:
    """The pullback of a pooling of an array of any array-API library.

    Returned by `poolgrad.vjp`.

    Parameters
    ----------
    call : _Call
        The call of the forward pass.
    residual : tuple of array
        The arrays that the forward pass stored.
    """

    def __init__(self, call: _Call, residual: tuple[Any, ...]) -> None:
        self._call, self._residual = call, residual
        # Copies, because the caller may change the arrays.
        x, given = call.request.x, call.operand
        self._x = call.xp.asarray(x, copy=True) if call.operator.nonlinear else None
        self._operand = None if given is None else call.xp.asarray(given, copy=True)
        # The caller's arrays are not kept alive.
        call.request, call.operand = replace(call.request, x=None, operands=()), None

    def __call__(self, gy: Any) -> Any:
        """Compute the gradient of the input.

        Parameters
        ----------
        gy : array, shape of the output
            The gradient of the output (the cotangent), of the same library and any floating dtype:
            it is converted to that of the output.

        Returns
        -------
        array, shape and dtype of the input

        Raises
        ------
        TypeError, ValueError
            If `gy` does not have the shape of the output or a floating dtype.
        """
        return self._gradients(gy)[0]

    def parameters(self, gy: Any) -> dict[str, Any]:
        """Compute the gradients of learned parameters; see `poolgrad.Pullback.parameters`."""
        operator = self._call.operator
        return {operator.operand.name: self._gradients(gy)[1]} if operator.learned else {}

    def _gradients(self, gy: Any) -> tuple[Any, Any]:
        call, layout = self._call, self._call.layout
        full = cotangent_of(gy, layout.out_dtype, call.shape, layout.out_shape)
        return engine.vjp(
            call.operator, layout, full, self._x, self._operand, self._residual, call.options
        )
