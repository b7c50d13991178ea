"""The front end for xarray: pools the array inside a DataArray, and keeps names and coordinates.

The result has the dimensions, the name and the attributes of the input. Coordinates without a
pooled dimension are kept. A coordinate of numbers or times along pooled dimensions becomes its mean
over each window if windows tile the dimension, as in ``DataArray.coarsen``: the stride is the
kernel size, without padding, dilation and `ceil_mode`. All other coordinates are dropped.
"""

# ruff: noqa: D102 - the base class documents the methods

from __future__ import annotations

from dataclasses import replace
from typing import Any

from poolgrad.frontend import FrontEnd, front_end
from poolgrad.interface import Request
from poolgrad.operands import Samples
from poolgrad.pullback import Pullback
from poolgrad.windows import WindowKind, WindowSpec, first_pooled

_AVERAGED = "iufmM"  # kinds of dtypes: integers, floats, differences of times, times


class XarrayFrontEnd(FrontEnd):
    """Passes calls on to the front end of the array inside a DataArray or Variable."""

    name = "xarray"
    noun = "an xarray object"

    def asarray(self, name: str, value: Any) -> Any:
        return value.data

    def perform(self, request: Request) -> Any:
        inside = _inside(request)
        result = front_end(inside.x).perform(inside)
        if request.return_indices:
            return tuple(_outside(request, part) for part in result)
        return _outside(request, result)

    def vjp(self, request: Request) -> tuple[Any, Pullback]:
        if request.dimensions not in ((), request.x.dims):  # the pullback knows no names
            raise ValueError(
                "vjp needs the dimensions in dim last and in this order, as in "
                f"x.transpose{request.x.dims}, got {request.dimensions}"
            )
        inside = _inside(request)
        y, pullback = front_end(inside.x).vjp(inside)
        return _outside(request, y), pullback


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
    order = tuple(d for d in request.dimensions or x.dims if d in kept)
    if not hasattr(x, "coords"):  # a Variable
        return type(x)(kept, y, x.attrs).transpose(*order)
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
    return result.assign_coords(means).transpose(*order)


def _tiles(spec: WindowSpec, sizes: tuple[int, ...], outputs: tuple[int, ...]) -> list[int]:
    """Return the size of the windows along each pooled axis that they tile, else 0."""
    if spec.kind is not WindowKind.FIXED or spec.padding == "same" or spec.ceil_mode:
        return []
    axes = zip(spec.kernel_size, spec.stride, spec.padding, spec.dilation, strict=True)
    plain = [k if (s, p, d) == (k, (0, 0), 1) else 0 for k, s, p, d in axes]
    # The windows of unpooling have the same kind but other numbers of outputs.
    return [k if k and n // k == m else 0 for k, n, m in zip(plain, sizes, outputs, strict=True)]


FRONT_END = XarrayFrontEnd()
