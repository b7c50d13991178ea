"""The front end for xarray: pools the array inside a DataArray, and keeps names and coordinates.

The result has the dimensions, the name and the attributes of the input. Coordinates without a
pooled dimension are kept. A coordinate of numbers or times along pooled dimensions becomes its mean
over each window if windows tile the dimension, as in ``DataArray.coarsen``: the stride is the
kernel size, without padding, dilation and `ceil_mode`. All other coordinates are dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from poolgrad import composition
from poolgrad.core import first_pooled
from poolgrad.functional.public import front_end
from poolgrad.interface import Request
from poolgrad.operands import Samples
from poolgrad.operators import OPERATORS
from poolgrad.windows import WindowKind, WindowSpec

_AVERAGED = "iufmM"  # kinds of dtypes: integers, floats, differences of times, times


def perform(request: Request) -> Any:
    """Compute the call of a public function."""
    inside = _inside(request)
    front = front_end(inside.x)
    composed = OPERATORS[inside.operator].composed
    result = composition.perform(inside, front) if composed else front.perform(inside)
    if not request.return_indices:
        return _outside(request, result)
    y, indices = result
    return _outside(request, y), _outside(request, indices)


def vjp(request: Request) -> tuple[Any, Any]:
    """Compute the output, and the pullback of the array inside the input."""
    inside = _inside(request)
    front = front_end(inside.x)
    if OPERATORS[inside.operator].composed:
        y, pullback = composition.vjp(inside, front)
    elif hasattr(front, "pullback_of"):
        y, pullback = front.pullback_of(inside)
    else:
        y, pullback = front.vjp(inside)  # raises the error
    return _outside(request, y), pullback


def asarray(x: Any) -> Any:
    """Return the array inside a DataArray."""
    return x.data


def _inside(request: Request) -> Request:
    """Return the request for the arrays inside; extra operands get the dimensions of `x`."""
    x = request.x

    def plain(value: Any) -> Any:
        if isinstance(value, Samples):  # their last dimension is none of `x`
            inside = value.values
            dims = (d for d in x.dims if d in getattr(inside, "dims", ()))
            ordered = inside.transpose(*dims, ...).data if isinstance(inside, type(x)) else inside
            return value._replace(values=ordered)
        if not isinstance(value, type(x)):
            return value
        return value.transpose(..., *(d for d in x.dims if d in value.dims)).data

    operands = tuple(map(plain, request.operands))
    return replace(request, x=x.data, operands=operands, out=plain(request.out))


def _outside(request: Request, y: Any) -> Any:
    """Return the result as a DataArray with the names and coordinates of the input."""
    x, dims = request.x, request.spec.dims
    first = first_pooled(x.shape, dims, request.channels_last)
    pooled = x.dims[first : first + dims]
    kept = x.dims if request.keepdims else tuple(d for d in x.dims if d not in pooled)
    if not hasattr(x, "coords"):  # a Variable
        return type(x)(kept, y, x.attrs)
    windows = _tiles(request.spec, x.shape[first : first + dims], y.shape[first : first + dims])
    tiled = {dim: size for dim, size in zip(pooled, windows, strict=False) if size}
    along = {n: c.variable for n, c in x.coords.items() if not {*pooled}.isdisjoint(c.dims)}
    means = {
        name: values.coarsen({d: tiled[d] for d in values.dims if d in pooled}, "mean", "trim")
        for name, values in along.items()
        if {*pooled} & {*values.dims} <= tiled.keys() and values.dtype.kind in _AVERAGED
    }
    rest = x.drop_vars(along).coords
    result = type(x)(y, dims=kept, coords=rest, name=x.name, attrs=x.attrs)
    return result.assign_coords(means)


def _tiles(spec: WindowSpec, sizes: tuple[int, ...], outputs: tuple[int, ...]) -> list[int]:
    """Return the size of the windows along each pooled axis that they tile, else 0."""
    if spec.kind is not WindowKind.FIXED or spec.padding == "same" or spec.ceil_mode:
        return []
    axes = zip(spec.kernel_size, spec.stride, spec.padding, spec.dilation, strict=True)
    plain = [k if (s, p, d) == (k, (0, 0), 1) else 0 for k, s, p, d in axes]
    # The windows of unpooling have the same kind but other numbers of outputs.
    return [k if k and n // k == m else 0 for k, n, m in zip(plain, sizes, outputs, strict=True)]
