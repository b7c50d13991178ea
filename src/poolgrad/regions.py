"""Pooling of regions of interest, with the arguments of torchvision.ops: `roi_pool`, `roi_align`.

These functions pass their arguments to the front end of the input, which returns a linear map: see
`poolgrad.region_maps`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from poolgrad import front_ends
from poolgrad.buffers import read_only, restored
from poolgrad.frontend import name_of
from poolgrad.functional.inputs import is_proxy, recorded
from poolgrad.region_maps import RegionMap, bins


class RegionPullback:
    """The pullback of `roi_pool` or `roi_align`.

    Returned by `poolgrad.vjp`. It stores a copy of the boxes and, for `roi_pool`, four bytes for
    each output, but not the input. Boxes have no gradient.

    Parameters
    ----------
    library : str
        The library of the arrays, as in `poolgrad.front_ends`.
    regions : RegionMap
        The map of the regions.
    indices : array or None
        The positions of the maxima, for `roi_pool`.
    """

    def __init__(self, library: str, regions: RegionMap, indices: Any) -> None:
        self._library, self._regions = library, regions
        self._indices = read_only(indices) if isinstance(indices, np.ndarray) else indices

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return restored, (RegionPullback, self._library, self._regions, self._indices)

    def __repr__(self) -> str:
        regions, name = self._regions, "roi_align" if self._indices is None else "roi_pool"
        return (
            f"<RegionPullback of {name}: gradients of {regions.out_shape} to {regions.shape}, "
            f"{regions.dtype}>"
        )

    def __call__(self, gy: Any) -> Any:
        """Compute the gradient of the input.

        Parameters
        ----------
        gy : array, shape (K, C, output height, output width)
            The gradient of the output (the cotangent), of any floating dtype; it is converted to
            the dtype of the output.

        Returns
        -------
        array, shape and dtype of the input
            A new, contiguous array. Regions are added in a fixed order, so the result does not
            depend on the number of threads.

        Raises
        ------
        TypeError, ValueError
            If `gy` does not have the shape of the output or a floating dtype.
        """
        regions, library = self._regions, getattr(front_ends, self._library)
        gy = library.cotangent(gy, regions.dtype, regions.out_shape, regions.out_shape)
        return regions.apply(gy, self._indices, transpose=True)

    @property
    def indices(self) -> Any:
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


def roi_pool(
    input: Any, boxes: Any, output_size: int | Sequence[int], spatial_scale: float = 1.0
) -> Any:
    """Maximum of each bin of regions of interest (RoIPool).

    A box is scaled, its corners are rounded to whole pixels (halves away from zero), and the pixels
    from the first corner to the last, both included, are divided into ``output_size`` bins, which
    may overlap by a pixel. Every output is the maximum of the inputs in its bin.

    Parameters
    ----------
    input : array or tensor, shape (N, C, H, W)
        A batch of feature maps; float16, bfloat16, float32 or float64, of any strides. Arrays of
        NumPy, JAX, Dask and array-API libraries, and PyTorch tensors are accepted.
    boxes : array or tensor, shape (K, 5), or a list of N of them, shape (L, 4)
        Each row is ``(x1, y1, x2, y2)``, with ``x1 <= x2`` and ``y1 <= y2``; in the first form the
        index of an image precedes it. Any real dtype. Boxes may extend beyond the feature map. A
        tensor takes tensors of boxes, all others take NumPy arrays, too.
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

    For arrays of NumPy, Dask and array-API libraries,
    ``poolgrad.vjp(poolgrad.roi_pool, input, boxes, ...)`` computes the gradient; PyTorch and JAX
    differentiate their own arrays, any number of times. Boxes have no gradient.

    Examples
    --------
    >>> import numpy as np, poolgrad
    >>> x = np.arange(36.0).reshape(1, 1, 6, 6)
    >>> poolgrad.roi_pool(x, np.array([[0, 1, 1, 4, 4]]), 2)
    array([[[[14., 16.],
             [26., 28.]]]])
    """
    return _pooled(roi_pool, input, boxes, output_size, spatial_scale)


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
        A batch of feature maps; float16, bfloat16, float32 or float64, of any strides. Arrays of
        NumPy, JAX, Dask and array-API libraries, and PyTorch tensors are accepted.
    boxes : array or tensor, shape (K, 5), or a list of N of them, shape (L, 4)
        Each row is ``(x1, y1, x2, y2)``, with ``x1 <= x2`` and ``y1 <= y2``; in the first form the
        index of an image precedes it. Any real dtype. Boxes may extend beyond the feature map. A
        tensor takes tensors of boxes, all others take NumPy arrays, too.
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

    For arrays of NumPy, Dask and array-API libraries,
    ``poolgrad.vjp(poolgrad.roi_align, input, boxes, ...)`` computes the gradient; PyTorch and JAX
    differentiate their own arrays, any number of times: the result is linear in `input`. Boxes have
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
    how = spatial_scale, sampling_ratio, aligned
    return _pooled(roi_align, input, boxes, output_size, *how)


def _pooled(function: Callable[..., Any], input: Any, *arguments: Any) -> Any:
    """Return the output of a call of a public function."""
    if is_proxy(input):
        return recorded(function, input, (input, *arguments), {})
    return _computed(function, input, *arguments)[0]


def _vjp(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, RegionPullback]:
    """Return the output and the pullback of a call of a public function."""
    given = signature(function).bind(*args, **kwargs)
    given.apply_defaults()
    known = name_of(given.args[0])
    if known in ("torch", "jax"):
        getattr(front_ends, known).vjp(given)  # raises an error that names the library's functions
    y, *kept = _computed(function, *given.args)
    return y, RegionPullback(*kept)


def _computed(
    function: Callable[..., Any], input: Any, boxes: Any, *arguments: Any
) -> tuple[Any, str, RegionMap, Any]:
    """Return the output, the library, the map and, for `roi_pool`, the indices."""
    wanted, known = bins(*arguments), name_of(input)
    if f"{known} regions" not in front_ends.MODULES:
        raise TypeError(
            "input must be an array of NumPy, PyTorch, JAX, Dask or an array-API library for "
            f"{function.__name__}, got {type(input).__module__}.{type(input).__qualname__}"
        )
    x, regions = getattr(front_ends, f"{known} regions").region_map(input, boxes, wanted)
    y, indices = regions.pool(x) if function is roi_pool else (regions.apply(x), None)
    return y, known, regions, indices


for _function in (roi_pool, roi_align):
    _function.__module__ = "poolgrad"  # where users, and pickle, find it
    _function.vjp = partial(_vjp, _function)  # type: ignore[attr-defined]  # for `poolgrad.vjp`
