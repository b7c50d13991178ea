"""Pools one window after the other, and computes the gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from poolgrad.buffers import dtype_named
from poolgrad.dtypes import FLOATS
from poolgrad.frontend import FrontEnd
from poolgrad.interface import STORAGE_OPTIONS, Request
from poolgrad.numpy import FRONT_END as NUMPY
from poolgrad.operands import Indices, Operand, Parameter, SecondInput, Seed, WindowSamples
from poolgrad.reference.geometry import Line, Position, line, sampled_line, window
from poolgrad.reference.operators import OPERATORS, Array, Inside, Pooled


class Entry(NamedTuple):
    """One output: its position, the inputs of its window, and its value and derivatives."""

    plane: int
    output: Position
    inputs: list[Position]
    taps: list[int]  # the numbers of the inputs in the window
    pooled: Pooled


class Pullback:
    """Computes outputs and gradients; `poolgrad.Pullback` is tested against it.

    Attributes
    ----------
    y : array
        The output.
    routes : array
        The tap of the only winner of each window, -1 where there is none; pooled axes kept.
    indices : array
        The flat position of each window's first winner in its plane, -1 where there is none; of
        the shape of `y`.
    """

    def __init__(self, request: Request) -> None:
        # NumPy's front end converts the caller's arrays and raises the errors; the positions of
        # windows and the values are computed below.
        call = FrontEnd.call(NUMPY, request)
        x, layout = call.x, call.ready.layout
        self._operator, self._dtype, self._pooled = call.ready.operator, x.dtype, layout.pooled
        self._squeezed = () if request.keepdims else self._pooled
        self._sizes = tuple(x.shape[axis] for axis in self._pooled)
        self._leading = tuple(n for axis, n in enumerate(x.shape) if axis not in self._pooled)
        self._channelled = self._leading or (1,)  # an input without channels has one
        self._operand: Array | None = None
        if self._takes(SecondInput):
            self._operand_dtype = call.operand.dtype
            self._operand = self._flat(call.operand).astype(float)
        if self._takes(Parameter):
            self._theta = np.asarray(request.operands[0], np.float64)  # not rounded

        planes = self._flat(x)
        if x.dtype.name in FLOATS:
            planes = planes.astype(np.float64)
        with np.errstate(all="ignore"):
            if self._takes(Indices):
                out = tuple(n for n in request.spec.output_size if n is not None)
                self._entries = list(self._unpool(call.operand, planes, out))
            else:
                lines = self._lines(request, call.operand, len(planes))
                out = tuple(len(along.taps) for along in lines[0])
                self._entries = list(self._pool(request, call.operand, planes, lines, out))
            y = np.zeros((len(planes), *out), dtype_named(layout.out_dtype))
            routes, indices = np.full(y.shape, -1), np.full(y.shape, -1)
            for plane, output, inputs, taps, pooled in self._entries:
                y[(plane, *output)] = pooled.y
                if pooled.winner >= 0:
                    where = inputs[pooled.winner]
                    indices[(plane, *output)] = np.ravel_multi_index(where, self._sizes)
                    if 1 in pooled.dx:
                        routes[(plane, *output)] = taps[pooled.winner]
        self.y = self._back(y).squeeze(self._squeezed)
        self.routes, self.indices = self._back(routes), self._back(indices).squeeze(self._squeezed)

    def __call__(self, gy: Array) -> Array:
        """Compute the gradient of the input: the weighted sum of the gradients of outputs."""
        return self._transposed([entry.pooled.dx for entry in self._entries], gy, self._dtype)

    def _transposed(self, derivatives: list[Any], gy: Array, dtype: np.dtype[Any]) -> Array:
        """Return the gradient of an array of the shape of the input.

        `derivatives` are those of each output with respect to the elements in its window.
        """
        gy = self._flat(np.expand_dims(gy, self._squeezed)).astype(np.float64)
        gx = np.zeros((len(gy), *self._sizes))
        with np.errstate(all="ignore"):
            for (plane, output, inputs, *_), weights in zip(
                self._entries, derivatives, strict=True
            ):
                for i, weight in zip(inputs, weights, strict=True):
                    if weight:  # 0 * inf counts as 0
                        gx[(plane, *i)] += weight * gy[(plane, *output)]
            return self._back(gx.astype(dtype))

    def parameters(self, gy: Array) -> dict[str, Array]:
        """The gradients of the learned arguments, by name, in the shape of each."""
        if self._operand is not None:
            slopes = [entry.pooled.doperand for entry in self._entries]
            gradient = self._transposed(slopes, gy, self._operand_dtype)
            return {self._operator.operand.name: gradient}
        if not self._operator.learned:
            return {}
        gy = self._flat(np.expand_dims(gy, self._squeezed)).astype(np.float64)
        totals = np.zeros(len(gy))
        with np.errstate(all="ignore"):
            for plane, output, _, _, pooled in self._entries:
                if pooled.dtheta:
                    totals[plane] += pooled.dtheta * gy[(plane, *output)]
            shared = tuple(range(len(self._channelled) - self._theta.ndim))
            total = totals.reshape(self._channelled).sum(shared)
            dtype = np.float64 if self._dtype == np.float64 else np.float32
            return {self._operator.operand.name: np.asarray(total, dtype)}

    def _takes(self, kind: type[Operand]) -> bool:
        """Whether the operator's operand is of this kind."""
        return isinstance(self._operator.operand, kind)

    def _flat(self, array: Array) -> Array:
        """Reshape to (planes, pooled axes)."""
        dims = len(self._pooled)
        moved = np.moveaxis(array, self._pooled, range(-dims, 0))
        return moved.reshape(int(np.prod(self._leading)), *moved.shape[-dims:])

    def _back(self, planes: Array) -> Array:
        moved = planes.reshape(*self._leading, *planes.shape[1:])
        return np.moveaxis(moved, range(-len(self._pooled), 0), self._pooled)

    def _lines(self, request: Request, samples: Any, planes: int) -> list[list[Line]]:
        """Return the windows along each axis, for each plane or, without planes, for one."""
        spec, dims = request.spec, request.spec.dims
        if not self._takes(WindowSamples):
            fixed = [line(spec, a, size) for a, size in enumerate(self._sizes)]
            return [fixed] * max(planes, 1)
        samples = samples.reshape(-1, dims)
        if dims == 2:
            samples = samples[:, ::-1]  # PyTorch's order: width, height; but depth, height, width
        return [
            [sampled_line(spec, a, size, own[a]) for a, size in enumerate(self._sizes)]
            for own in (samples if planes else np.zeros((1, dims), samples.dtype))
        ]

    def _pool(
        self, request: Request, seed: Any, planes: Array, lines: list[list[Line]], out: Position
    ) -> Iterator[Entry]:
        given = request.options._asdict().items()
        formula = [value for name, value in given if name not in STORAGE_OPTIONS]
        theta, u = np.zeros(len(planes)), np.zeros((len(planes), *out))
        if self._takes(Parameter):
            theta = np.broadcast_to(self._theta, self._channelled).reshape(-1)
        if self._takes(Seed):
            if not np.isfinite(planes).all():
                raise ValueError("x must be finite")
            order = self._back(np.empty(u.shape)).shape  # of the outputs, as the caller sees them
            index = np.arange(u.size, dtype=np.uint64).reshape(order)
            u = self._flat(uniform(seed, index))
        for plane, values in enumerate(planes):
            for output in np.ndindex(*out):
                inputs, taps, extent = window(lines[plane], output)
                valid = np.array([values[i] for i in inputs], values.dtype)
                operand = None
                if self._operand is not None:
                    operand = np.array([self._operand[(plane, *i)] for i in inputs])
                inside = Inside(valid, extent, theta[plane], u[(plane, *output)], operand)
                pooled = OPERATORS[request.operator](inside, *formula)
                yield Entry(plane, output, inputs, taps, pooled)

    def _unpool(self, indices: Array, planes: Array, out: Position) -> Iterator[Entry]:
        plane = int(np.prod(out))
        if ((indices < 0) | (indices >= plane)).any():
            raise ValueError(f"indices must be from 0 to {plane - 1}")
        for n, where in enumerate(self._flat(indices)):
            last = {int(where[i]): i for i in np.ndindex(*self._sizes)}
            for index, i in last.items():
                output = tuple(int(n) for n in np.unravel_index(index, out))
                yield Entry(n, output, [i], [], Pooled(planes[(n, *i)], np.ones(1)))


def uniform(seed: int, index: Array) -> Array:
    """Numbers in [0, 1): the upper 53 bits of splitmix64 (Steele, Lea & Flood, 2014)."""
    z = np.uint64(seed % 2**64) + (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)) * 2.0**-53
