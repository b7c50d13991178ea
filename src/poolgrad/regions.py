"""Pooling of regions of interest, with the arguments of torchvision.ops: `roi_pool`, `roi_align`.

This module checks the arguments for every array library, and pools NumPy arrays.
`poolgrad.torch.regions` pools tensors. The kernels check the values of boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolgrad import arguments
from poolgrad import numpy as front
from poolgrad.core import Regions, get_num_threads
from poolgrad.dtypes import FLOATS, INTEGERS
from poolgrad.frontend import name_of as library
from poolgrad.functional.public import is_proxy, recorded
from poolgrad.interface import Buffer
from poolgrad.windows import brief, flag, positive

Array = NDArray[Any]
Float64 = NDArray[np.float64]

_MAX_SAMPLES = 65536
_MAX_SCALE = 2.0**30
_MAX_POSITIONS = 2**31 - 1
_MAX_ELEMENTS = (2**63 - 1) // 8
_BOXES = (
    "boxes must be an array of shape (K, 5), the index of an image and x1, y1, x2, y2 in each row, "
    "or a list with an array of shape (L, 4) for each image"
)


# Arguments


class Bins(NamedTuple):
    """The arguments of `roi_align` other than arrays; `roi_pool` uses the first two."""

    output_size: tuple[int, int]
    spatial_scale: float
    sampling_ratio: int = 0
    aligned: bool = False


def bins(
    output_size: object, spatial_scale: object, sampling_ratio: object = 0, aligned: object = False
) -> Bins:
    """Check the arguments; a `sampling_ratio` of 0 is adaptive.

    Raises
    ------
    TypeError, ValueError
        If an argument has another type, or is out of range.
    """
    height, width = positive("output_size", output_size, 2)
    number = isinstance(spatial_scale, float | int | np.floating | np.integer)
    if not number or isinstance(spatial_scale, bool):
        raise TypeError(f"spatial_scale must be a number, got {brief(spatial_scale)}")
    scale = float(spatial_scale)  # type: ignore[arg-type]
    if not 0 < scale <= _MAX_SCALE:
        raise ValueError(
            f"spatial_scale must be greater than 0 and at most 2**30, got {brief(spatial_scale)}"
        )
    if isinstance(sampling_ratio, bool) or not isinstance(sampling_ratio, int | np.integer):
        raise TypeError(f"sampling_ratio must be an integer, got {brief(sampling_ratio)}")
    if sampling_ratio > _MAX_SAMPLES:
        raise ValueError(f"sampling_ratio must be at most {_MAX_SAMPLES}, got {sampling_ratio}")
    ratio = max(int(sampling_ratio), 0)
    return Bins((height, width), scale, ratio, flag("aligned", aligned))


def check_input(dtype: str, shape: tuple[int, ...]) -> None:
    """Raise an error unless an input of this dtype and shape is supported; sizes may be symbolic.

    Raises
    ------
    TypeError, ValueError
        If it is not floating, or has another number of axes than four, or no rows or columns.
    """
    if dtype not in FLOATS:
        accepted = f"{', '.join(FLOATS[:-1])} or {FLOATS[-1]}"
        raise TypeError(f"input must be of dtype {accepted}, got {dtype}")
    if len(shape) != 4 or 0 in [size for size in shape[2:] if isinstance(size, int)]:
        raise ValueError(
            "input must have shape (N, C, H, W) with at least one row and one column, "
            f"got shape {shape}"
        )
    height, width = shape[2:]
    if isinstance(height, int) and isinstance(width, int) and height * width > _MAX_POSITIONS:
        raise ValueError(
            f"input must have at most 2**31 - 1 positions in a plane, got shape {shape}"
        )


def check_table(dtype: str, shape: tuple[int, ...], columns: int = 5, name: str = "boxes") -> None:
    """Raise an error unless boxes are an array of real numbers of shape (K, `columns`)."""
    if dtype not in (*FLOATS, *INTEGERS, "uint64") or dtype == "bool":
        raise TypeError(f"{name} must contain real numbers, got {dtype}")
    if len(shape) != 2 or shape[1] != columns:
        hint = "" if columns == 5 else " in a list with one array for each image"
        raise ValueError(f"{_BOXES}, got {name} of shape {shape}{hint}")


def check_images(given: int, images: int) -> None:
    """Raise an error unless there is one array of boxes for each image."""
    if given != images:
        raise ValueError(
            f"boxes must have one array for each of {images} images, got a list of {given}"
        )


def output_shape(
    count: int, shape: tuple[int, ...], output_size: Sequence[int]
) -> tuple[int, int, int, int]:
    """Return the shape of the output of `count` regions, unless it would overflow memory."""
    made = (count, shape[1], output_size[0], output_size[1])
    known = [size for size in made if isinstance(size, int)]  # symbolic sizes are skipped
    if math.prod(known) > _MAX_ELEMENTS:
        raise ValueError(f"output_size {tuple(output_size)} would overflow memory")
    return made


# NumPy arrays


def _table(boxes: object, images: int) -> Float64:
    """Convert boxes of either form to one contiguous float64 array of shape (K, 5)."""
    if not isinstance(boxes, list | tuple):
        given = arguments.plain("boxes", boxes, "an array of shape (K, 5) or a list of arrays")
        check_table(given.dtype.name, given.shape)
        return given.astype(np.float64, order="C")
    check_images(len(boxes), images)
    parts = []
    for index, one in enumerate(boxes):
        name = f"boxes[{index}]"
        own = arguments.plain(name, one, "an array of shape (L, 4)")
        if own.shape == (0,):  # an empty list
            own = own.reshape(0, 4)
        check_table(own.dtype.name, own.shape, 4, name)
        part = np.empty((len(own), 5))
        part[:, 0], part[:, 1:] = index, own
        parts.append(part)
    return np.concatenate(parts) if parts else np.empty((0, 5))


class _Call:
    """A call of the kernels for NumPy feature maps and boxes."""

    def __init__(self, input: Any, boxes: object, wanted: Bins) -> None:
        x = front.FRONT_END.asarray("input", input)
        check_input(x.dtype.name, x.shape)
        self.input_dtype, self.input_shape, self.wanted = x.dtype, x.shape, wanted
        self.dtype = np.dtype("float64" if x.dtype.name == "float64" else "float32")
        table = _table(boxes, x.shape[0])
        self.output_shape = output_shape(len(table), x.shape, wanted.output_size)
        self._where = (x.shape, wanted.output_size, self.dtype.name, table, wanted.spatial_scale)
        self.regions = Regions(*self._where)
        self._x: Array | None = x

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "regions"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, regions=front.restored(Regions, *state["_where"]))

    def taken(self) -> Array:
        """Return the input in the form that the kernels read, without storing it."""
        assert self._x is not None
        x, self._x = self._x, None
        return np.ascontiguousarray(x, self.dtype)

    def allocate(self, shape: tuple[int, ...], dtype: str = "") -> Array:
        """Allocate a contiguous array for the kernels to write."""
        order, name = tuple(range(len(shape))), dtype or self.dtype.name
        cause = "input of shape {}, boxes and output_size"
        return front.allocate(Buffer(shape, order, name, self.input_shape, cause))

    def finished(self, made: Array) -> Array:
        """Convert a result of the kernels to the dtype of the input."""
        return made.astype(self.input_dtype, copy=False)

    def pool(self) -> tuple[Array, Array]:
        y, indices = self.allocate(self.output_shape), self.allocate(self.output_shape, "int32")
        self.regions.pool(self.taken(), y, indices, get_num_threads())
        return self.finished(y), indices

    def align(self) -> Array:
        y, wanted = self.allocate(self.output_shape), self.wanted
        threads = get_num_threads()
        self.regions.align(self.taken(), y, wanted.sampling_ratio, wanted.aligned, threads)
        return self.finished(y)


class RegionPullback:
    """The pullback of `roi_pool` or `roi_align`.

    Returned by `poolgrad.vjp`. It stores a copy of the boxes and, for `roi_pool`, four bytes for
    each output, but not the input. Boxes have no gradient.

    Parameters
    ----------
    call : _Call
        The call of the forward pass.
    indices : array or None
        The positions of the maxima, for `roi_pool`.
    """

    def __init__(self, call: _Call, indices: Array | None) -> None:
        self._call = call
        self._indices = None if indices is None else front.read_only(indices)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return front.restored, (RegionPullback, self._call, self._indices)

    def __repr__(self) -> str:
        call, name = self._call, "roi_align" if self._indices is None else "roi_pool"
        return (
            f"<RegionPullback of {name}: gradients of {call.output_shape} to {call.input_shape}, "
            f"{call.input_dtype}>"
        )

    def __call__(self, gy: Any) -> Array:
        """Compute the gradient of the input.

        Parameters
        ----------
        gy : array, shape (K, C, output height, output width)
            The gradient of the output (the cotangent), of any floating dtype; it is converted to
            the dtype of the output.

        Returns
        -------
        array, shape and dtype of the input
            A new, contiguous array. Regions are added in the order of the boxes, so the result does
            not depend on the number of threads.

        Raises
        ------
        TypeError, ValueError
            If `gy` does not have the shape of the output or a floating dtype.
        """
        call, threads = self._call, get_num_threads()
        given = arguments.cotangent(gy, call.input_dtype, call.output_shape)
        gradient = np.ascontiguousarray(
            front.readable(given).reshape(call.output_shape), call.dtype
        )
        gx = call.allocate(call.input_shape)
        if self._indices is None:
            ratio, aligned = call.wanted.sampling_ratio, call.wanted.aligned
            call.regions.align_backward(gradient, gx, ratio, aligned, threads)
        else:
            call.regions.pool_backward(gradient, self._indices, gx, threads)
        return call.finished(gx)

    @property
    def indices(self) -> Array:
        """Flat position of the maximum of each bin in its plane of the input; int32, read-only.

        It is -1 for a bin without inputs, which has no gradient.

        Raises
        ------
        TypeError
            For `roi_align`, which selects no input.
        """
        if self._indices is None:
            raise TypeError("roi_align has no indices: no single input of a bin wins")
        return self._indices


# Public functions


def _torch() -> ModuleType:
    from poolgrad.torch import regions

    return regions


def _is_tensor(name: str, input: object) -> bool:
    """Whether the input is a PyTorch tensor; raises an error for arrays of other libraries."""
    known = library(input)
    if known not in ("numpy", "torch"):
        raise TypeError(
            f"input must be an array of NumPy or a tensor of PyTorch for {name}, "
            f"got {type(input).__module__}.{type(input).__qualname__}"
        )
    return known == "torch"


def roi_pool(
    input: Any,
    boxes: Any,
    output_size: int | Sequence[int],
    spatial_scale: float = 1.0,
) -> Any:
    """Maximum of each bin of regions of interest (RoIPool).

    A box is scaled, its corners are rounded to whole pixels (halves away from zero), and the pixels
    from the first corner to the last, both included, are divided into ``output_size`` bins, which
    may overlap by a pixel. Every output is the maximum of the inputs in its bin.

    Parameters
    ----------
    input : array or tensor, shape (N, C, H, W)
        A batch of feature maps; float16, bfloat16, float32 or float64, of any strides.
    boxes : array or tensor, shape (K, 5), or a list of N of them, shape (L, 4)
        Each row is ``(x1, y1, x2, y2)``, with ``x1 <= x2`` and ``y1 <= y2``; in the first form the
        index of an image precedes it. Any real dtype. Boxes may extend beyond the feature map.
    output_size : int or (int, int)
        The number of bins along the height and the width.
    spatial_scale : float
        Factor of box coordinates; 1/16 if the feature map has a sixteenth of the rows and columns
        of the image that the boxes belong to. Default: 1.

    Returns
    -------
    array or tensor, shape (K, C, output height, output width)
        Contiguous, with the dtype of `input`. A bin outside the feature map gives 0 and has no
        gradient.

    Raises
    ------
    TypeError, ValueError
        If an argument has another form, or if a box has a NaN, an infinity, a coordinate of more
        than 2**30, corners in the wrong order, or an image that does not exist.

    See Also
    --------
    roi_align : Averages of bilinear samples, without rounding.

    Notes
    -----
    Girshick, Fast R-CNN, 2015. Arguments and geometry are those of ``torchvision.ops.roi_pool``,
    computed in float64 for a float64 input, else in float32. Unlike in torchvision, NaN wins, and a
    bin of ``-inf`` gives ``-inf``. Among equal inputs the first gets the gradient.

    For NumPy arrays, ``poolgrad.vjp(poolgrad.roi_pool, input, boxes, ...)`` computes the gradient;
    PyTorch differentiates tensors, any number of times. Boxes have no gradient.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.arange(36.0).reshape(1, 1, 6, 6)
    >>> poolgrad.roi_pool(x, np.array([[0, 1, 1, 4, 4]]), 2)
    array([[[[14., 16.],
             [26., 28.]]]])
    """
    if is_proxy(input):
        return recorded(roi_pool, input, (input, boxes, output_size, spatial_scale), {})
    wanted = bins(output_size, spatial_scale)
    if _is_tensor("roi_pool", input):
        return _torch().roi_pool(input, boxes, wanted)
    return _Call(input, boxes, wanted).pool()[0]


def roi_align(
    input: Any,
    boxes: Any,
    output_size: int | Sequence[int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Any:
    """Average of bilinear samples in each bin of regions of interest (RoIAlign).

    A box is scaled, not rounded, and divided into ``output_size`` bins of equal size. Every output
    is the average of the feature map at a regular grid of points in its bin, each interpolated
    between the four inputs around it.

    Parameters
    ----------
    input : array or tensor, shape (N, C, H, W)
        A batch of feature maps; float16, bfloat16, float32 or float64, of any strides.
    boxes : array or tensor, shape (K, 5), or a list of N of them, shape (L, 4)
        Each row is ``(x1, y1, x2, y2)``, with ``x1 <= x2`` and ``y1 <= y2``; in the first form the
        index of an image precedes it. Any real dtype. Boxes may extend beyond the feature map.
    output_size : int or (int, int)
        The number of bins along the height and the width.
    spatial_scale : float
        Factor of box coordinates; 1/16 if the feature map has a sixteenth of the rows and columns
        of the image that the boxes belong to. Default: 1.
    sampling_ratio : int
        The number of points in a bin along each axis, at most 65536. If it is not positive
        (default: -1), it is the number of pixels of a bin, rounded up.
    aligned : bool
        If True, half a pixel is subtracted from scaled boxes, because the centre of the first pixel
        has the coordinate 0.5. If False (default), as in the first implementations, regions of less
        than a pixel become one pixel wide (or high).

    Returns
    -------
    array or tensor, shape (K, C, output height, output width)
        Contiguous, with the dtype of `input`. A point more than a pixel outside the feature map
        counts as 0 and has no gradient.

    Raises
    ------
    TypeError, ValueError
        If an argument has another form, or if a box has a NaN, an infinity, a coordinate of more
        than 2**30, corners in the wrong order, or an image that does not exist.

    See Also
    --------
    roi_pool : Maxima of bins, with rounded coordinates.

    Notes
    -----
    He et al., Mask R-CNN, 2017. Arguments and geometry are those of ``torchvision.ops.roi_align``,
    computed in float64 for a float64 input, else in float32. An input that no point touches has no
    influence, even if it is infinite or NaN.

    For NumPy arrays, ``poolgrad.vjp(poolgrad.roi_align, input, boxes, ...)`` computes the gradient;
    PyTorch differentiates tensors, any number of times: the result is linear in `input`. Boxes have
    no gradient.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.arange(36.0).reshape(1, 1, 6, 6)
    >>> box = [np.array([[1.0, 1.0, 5.0, 5.0]])]
    >>> poolgrad.roi_align(x, box, 2, aligned=True)
    array([[[[10.5, 12.5],
             [22.5, 24.5]]]])
    >>> y, pullback = poolgrad.vjp(poolgrad.roi_align, x, box, 1, sampling_ratio=1, aligned=True)
    >>> y, pullback(np.ones((1, 1, 1, 1)))[0, 0, 2:4, 2:4]
    (array([[[[17.5]]]]), array([[0.25, 0.25],
           [0.25, 0.25]]))
    """
    if is_proxy(input):
        given = (input, boxes, output_size, spatial_scale, sampling_ratio, aligned)
        return recorded(roi_align, input, given, {})
    wanted = bins(output_size, spatial_scale, sampling_ratio, aligned)
    if _is_tensor("roi_align", input):
        return _torch().roi_align(input, boxes, wanted)
    return _Call(input, boxes, wanted).align()


def _check_vjp(name: str, input: object) -> None:
    if _is_tensor(name, input):
        raise TypeError(
            "vjp supports NumPy and Dask arrays; PyTorch differentiates its own tensors: use "
            "y.backward() or torch.func.vjp"
        )


def _pool_vjp(
    input: Any, boxes: Any, output_size: int | Sequence[int], spatial_scale: float = 1.0
) -> tuple[Array, RegionPullback]:
    """``vjp(roi_pool, ...)``."""
    _check_vjp("roi_pool", input)
    call = _Call(input, boxes, bins(output_size, spatial_scale))
    y, indices = call.pool()
    return y, RegionPullback(call, indices)


def _align_vjp(
    input: Any,
    boxes: Any,
    output_size: int | Sequence[int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> tuple[Array, RegionPullback]:
    """``vjp(roi_align, ...)``."""
    _check_vjp("roi_align", input)
    call = _Call(input, boxes, bins(output_size, spatial_scale, sampling_ratio, aligned))
    return call.align(), RegionPullback(call, None)


# The functions that `poolgrad.vjp` calls for each of them.
VJPS: dict[Callable[..., Any], Callable[..., tuple[Array, RegionPullback]]] = {
    roi_pool: _pool_vjp,
    roi_align: _align_vjp,
}
for _function in VJPS:
    _function.__module__ = "poolgrad"  # where users, and pickle, find it
