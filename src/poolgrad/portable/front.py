"""The front end for arrays of libraries without one of their own: CuPy and any array-API library.

The values of extra operands are checked only where they are Python numbers or NumPy arrays: arrays
on a device stay there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj

from poolgrad import arguments
from poolgrad.composition import Functions
from poolgrad.contract import FLOATS, Operator, Request, Samples, indexed
from poolgrad.core import Layout, lay_out
from poolgrad.operators import OPERATORS
from poolgrad.portable import engine
from poolgrad.portable.arrays import converted, name_of, placed


def asarray(x: Any) -> Any:
    """The array: those of this front end need no conversion."""
    return x


def perform(request: Request) -> Any:
    """Compute what a public function describes."""
    if request.out is not None:
        raise TypeError("out is for NumPy arrays; results of other libraries are new arrays")
    call = _Call(request)
    if not request.return_indices:
        return call.shaped(call.forward(keep=False)[0])
    y, (routes,) = call.forward(keep=True, options=indexed(call.options))
    samples = call.operand if call.layout.window.placed else None
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
    """An array of a composed operator."""
    if not is_array_api_obj(value):
        raise TypeError(f"{name} must be an array, got {type(value).__qualname__}")
    return value


def dtype_name(x: Any) -> str:
    """The name of the dtype of an array."""
    return name_of(x.dtype)


def functions(x: Any) -> Functions:
    """What a composed operator may call."""
    xp = array_namespace(x)
    return Functions(
        xp.exp, xp.where, xp.max, lambda x, dtype: converted(xp, x, dtype), lambda x: x
    )


def namespace(x: Any) -> Any:
    """The array-API functions of the library of an array."""
    return array_namespace(x)


def pullback_of(request: Request) -> tuple[Any, Pullback]:
    """The output and the pullback of a part of a composed operator."""
    return vjp(request)


def cotangent_of(gy: Any, dtype: str, shape: tuple[int, ...], full: Any = None) -> Any:
    """The gradient of an output of a shape, checked and converted to the dtype of the output.

    `full`: the shape that it has with its pooled axes.
    """
    if not is_array_api_obj(gy) or name_of(gy.dtype) not in FLOATS:
        came = name_of(gy.dtype) if is_array_api_obj(gy) else type(gy).__qualname__
        raise TypeError(f"gy must be an array of a floating dtype, got {came}")
    given = tuple(gy.shape)
    if given != shape and not (given == () and math.prod(shape) == 1):
        raise ValueError(f"gy must have the shape of the output, {shape}, got {given}")
    xp = array_namespace(gy)
    return xp.reshape(converted(xp, gy, dtype), shape if full is None else full)


class _Call:
    """One call of an operator, checked.

    Parameters
    ----------
    request : Request
        What a public function describes.
    """

    def __init__(self, request: Request) -> None:
        self.operator: Operator = OPERATORS[request.operator]
        self.request, self.xp = request, array_namespace(request.x)
        dtype = name_of(request.x.dtype)
        if not self.operator.accepts(dtype):
            raise self.operator.refuse_dtype(dtype)
        self.layout: Layout = lay_out(
            request.rule,
            tuple(request.x.shape),
            request.channels_last,
            -1,
            dtype,
            self.operator.result(dtype),
        )
        self.operator.check(self.layout.window, *request.options)
        self.options = request.options
        if dtype not in FLOATS and "split" in self.options:
            self.options = indexed(self.options)  # integers have no gradient that could be split
        self.operand = self._operand()

    def forward(self, keep: bool, options: tuple[Any, ...] = ()) -> tuple[Any, tuple[Any, ...]]:
        """The output and the residual."""
        x, how = self.request.x, options or self.options
        return engine.forward(self.operator, self.layout, x, self.operand, how, keep)

    def shaped(self, y: Any) -> Any:
        """The result without its pooled axes, unless they are to be kept."""
        return y if self.request.keepdims else self.xp.squeeze(y, axis=self.layout.pooled)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the output."""
        layout = self.layout
        if self.request.keepdims:
            return layout.out_shape
        return tuple(s for a, s in enumerate(layout.out_shape) if a not in layout.pooled)

    # The extra operand

    def _operand(self) -> Any:
        argument = self.operator.argument
        if argument is None:
            return None
        (value,) = self.request.arguments
        find = {
            "learned": self._learned,
            "seed": self._seed,
            "samples": self._samples,
            "indices": self._indices,
        }
        return find[argument.kind](argument.name, value)

    def _array(self, value: Any, dtype: str) -> Any:
        """The value on the device of the input."""
        return self.xp.asarray(
            np.asarray(value, dtype).tolist(),
            dtype=getattr(self.xp, dtype),
            **placed(self.request.x),
        )

    def _is_on_device(self, value: Any) -> bool:
        return not isinstance(value, np.ndarray | np.generic) and is_array_api_obj(value)

    def _learned(self, name: str, value: Any) -> Any:
        dtype = self.layout.sum_dtype
        if self._is_on_device(value):
            if not self.xp.isdtype(value.dtype, ("real floating", "integral")):
                raise arguments.refuse_numbers(name, name_of(value.dtype))
            arguments.check_length(name, tuple(value.shape), self.layout.channels)
            return converted(self.xp, value, dtype)
        given = arguments.real_numbers(name, value)
        numbers = given.astype(np.float64).ravel().tolist()
        self.operator.check_argument(numbers)
        arguments.check_length(name, given.shape, self.layout.channels)
        return self._array(np.reshape(arguments.within(numbers, dtype), given.shape), dtype)

    def _seed(self, name: str, value: Any) -> Any:
        seed = arguments.seed(value)
        if seed is None:
            if value is not None and not isinstance(value, np.random.Generator):
                raise arguments.refuse_generator("numpy.random.Generator", value)
            seed = int(np.random.default_rng(value).integers(2**63))
        return self._array(seed, "int64")

    def _samples(self, name: str, value: Samples) -> Any:
        dtype = self.layout.dtype if self.layout.dtype in FLOATS else "float32"
        shape, given = arguments.samples_shape(self.layout), value.given
        if given is None:
            seed = arguments.seed(value.generator)
            generator = value.generator if seed is None else seed
            if seed is None and not isinstance(generator, np.random.Generator | None):
                raise arguments.refuse_generator("numpy.random.Generator", generator)
            given = np.random.default_rng(generator).random(shape)
        if self._is_on_device(given):
            arguments.check_samples_dtype(name_of(given.dtype))
        else:
            given = arguments.floating_samples(given)
            outside = given[~((given >= 0) & (given < 1))]
            if outside.size:
                raise ValueError(f"_random_samples must be in [0, 1), got {outside.flat[0]}")
        arguments.check_samples_shape(tuple(given.shape), self.layout)
        if not self._is_on_device(given):
            given = self._array(given.astype(np.float64), "float64")
        narrow = converted(self.xp, given, dtype)
        return self.xp.minimum(narrow, arguments.below_one(dtype))

    def _indices(self, name: str, value: Any) -> Any:
        if not is_array_api_obj(value):
            raise TypeError(f"indices must be an array, got {type(value).__qualname__}")
        arguments.check_indices(
            name_of(value.dtype), tuple(value.shape), tuple(self.request.x.shape)
        )
        return self._array(value, "int64") if isinstance(value, np.ndarray) else value


class Pullback:
    """The gradient of a pooling of an array of any array-API library.

    Made by `poolgrad.vjp`.

    Parameters
    ----------
    call, residual
        Of the forward pass.
    """

    def __init__(self, call: _Call, residual: tuple[Any, ...]) -> None:
        self._call, self._residual = call, residual

    def __call__(self, gy: Any) -> Any:
        """The gradient of the input.

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
            If `gy` has another shape than the output, or is not made of real numbers.
        """
        return self._gradients(gy)[0]

    def parameters(self, gy: Any) -> dict[str, Any]:
        """The gradient of the learned parameter, by name; see `poolgrad.Pullback.parameters`."""
        argument = self._call.operator.argument
        if not self._call.operator.learned or argument is None:
            return {}
        return {argument.name: self._gradients(gy)[1]}

    def _gradients(self, gy: Any) -> tuple[Any, Any]:
        call, layout = self._call, self._call.layout
        full = cotangent_of(gy, layout.out_dtype, call.shape, layout.out_shape)
        x = call.request.x if call.operator.curved else None
        return engine.pull(
            call.operator, layout, full, x, call.operand, self._residual, call.options
        )
