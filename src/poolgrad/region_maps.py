"""The linear maps of regions of interest, and their arguments.

Boxes and arguments define a map from feature maps to the bins of regions, and its transpose.
`KernelMap` computes them with the kernels, `poolgrad.portable.regions` in array-API operations. The
modules `regions` of the packages `torch`, `jax` and `dask` make these maps differentiable or lazy.
"""

# ruff: noqa: D102 - the base class documents the methods

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from poolgrad import arguments
from poolgrad.buffers import allocate, dtype_named, readable, restored
from poolgrad.core import Regions, get_num_threads
from poolgrad.dtypes import FLOATS, name_of
from poolgrad.interface import Buffer
from poolgrad.windows import brief, flag, positive

Array = NDArray[Any]

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


def check_input(dtype: object, shape: tuple[int, ...]) -> None:
    """Raise an error unless an input of this dtype and shape is supported; sizes may be symbolic.

    Raises
    ------
    TypeError, ValueError
        If it is not floating, or has another number of axes than four, or no rows or columns.
    """
    if name_of(dtype) not in FLOATS:
        accepted = f"{', '.join(FLOATS[:-1])} or {FLOATS[-1]}"
        raise TypeError(f"input must be of dtype {accepted}, got {name_of(dtype)}")
    known = [size for size in shape[2:] if isinstance(size, int)]  # symbolic sizes are skipped
    if len(shape) != 4 or 0 in known:
        raise ValueError(
            "input must have shape (N, C, H, W) with at least one row and one column, "
            f"got shape {shape}"
        )
    if math.prod(known) > _MAX_POSITIONS:
        raise ValueError(
            f"input must have at most 2**31 - 1 positions in a plane, got shape {shape}"
        )


def check_table(
    dtype: object, shape: tuple[int, ...], columns: int = 5, name: str = "boxes"
) -> None:
    """Raise an error unless boxes are an array of real numbers of shape (K, `columns`)."""
    kind = name_of(dtype)
    if kind not in arguments.REALS:
        raise TypeError(f"{name} must contain real numbers, got {kind}")
    if len(shape) != 2 or shape[1] != columns:
        hint = "" if columns == 5 else " in a list with one array for each image"
        raise ValueError(f"{_BOXES}, got {name} of shape {shape}{hint}")


def output_shape(
    count: int, shape: tuple[int, ...], output_size: Sequence[int]
) -> tuple[int, int, int, int]:
    """Return the shape of the output of `count` regions, unless it would overflow memory."""
    made = (count, shape[1], output_size[0], output_size[1])
    known = [size for size in made if isinstance(size, int)]  # symbolic sizes are skipped
    if math.prod(known) > _MAX_ELEMENTS:
        raise ValueError(f"output_size {tuple(output_size)} would overflow memory")
    return made


def table_of(
    boxes: object, images: int, convert: Callable[..., Any], join: Callable[[list[Any]], Any]
) -> Any:
    """Convert boxes of either form to one array of shape (K, 5), and check all but the values.

    Parameters
    ----------
    boxes : object
        An array of shape (K, 5), or a list with an array of shape (L, 4) for each image.
    images : int
        The number of images.
    convert : callable
        ``convert(name, value)`` returns an array of the front end.
    join : callable
        Joins the arrays of a list, each after a column with its index.
    """

    def part(name: str, value: Any, columns: int) -> Any:
        array = convert(name, value)
        check_table(array.dtype, tuple(array.shape), columns, name)
        return array

    if not isinstance(boxes, list | tuple):
        return part("boxes", boxes, 5)
    if len(boxes) != images:
        raise ValueError(
            f"boxes must have one array for each of {images} images, got a list of {len(boxes)}"
        )
    return join([part(f"boxes[{index}]", own, 4) for index, own in enumerate(boxes)])


# Maps


class RegionMap(ABC):
    """A linear map from feature maps to the bins of regions, which are computed from boxes.

    For RoIAlign it averages samples. For RoIPool it takes the input at an index from each bin.
    Front ends define subclasses.

    Parameters
    ----------
    shape : sequence of int
        Shape of the feature maps.
    boxes : array, shape (K, 5)
        The boxes, in the form that the front end takes.
    dtype : str
        Dtype of the feature maps.
    bins : Bins
        The arguments of the pooling.
    """

    def __init__(self, shape: Sequence[int], boxes: Any, dtype: str, bins: Bins) -> None:
        self.shape, self.boxes, self.dtype, self.bins = tuple(shape), boxes, dtype, bins
        self.out_shape = output_shape(boxes.shape[0], self.shape, bins.output_size)

    def pool(self, x: Any) -> tuple[Any, Any]:
        """Return the maximum of each bin, and its index in its plane (int32; -1 if there is none).

        An array of the indices defines the map of RoIPool.
        """
        indices = self.winners(x)
        return self.apply(x, indices), indices

    def winners(self, x: Any) -> Any:
        """Return the indices of `pool`; not defined where `pool` computes both at once."""
        raise NotImplementedError

    @abstractmethod
    def apply(self, array: Any, indices: Any = None, transpose: bool = False) -> Any:
        """Apply the map of RoIPool or, without indices, that of RoIAlign; or its transpose.

        The transpose computes the gradient of the input from that of the output.
        """


class KernelMap(RegionMap):
    """The map of regions as computed by the kernels, for NumPy arrays.

    Parameters
    ----------
    shape, dtype, bins
        See `RegionMap`.
    boxes : array, shape (K, 5)
        A contiguous float64 array. The kernels check its values.
    """

    def __init__(self, shape: Sequence[int], boxes: Any, dtype: str, bins: Bins) -> None:
        super().__init__(shape, boxes, dtype, bins)
        self._sum_dtype = "float64" if dtype == "float64" else "float32"
        size, scale = bins.output_size, bins.spatial_scale
        self._kernels = Regions(self.shape, size, self._sum_dtype, boxes, scale)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return restored, (KernelMap, self.shape, self.boxes, self.dtype, self.bins)

    def pool(self, x: Any) -> tuple[Any, Any]:
        y, indices = self._empty(self.out_shape), self._empty(self.out_shape, "int32")
        x = self._contiguous("input", x, self._sum_dtype)
        self._kernels.pool(x, y, indices, self._threads())
        return self._converted(y), indices

    def apply(self, array: Any, indices: Any = None, transpose: bool = False) -> Any:
        kernels, threads = self._kernels, self._threads()
        name, shape = ("gy", self.shape) if transpose else ("input", self.out_shape)
        result, array = self._empty(shape), self._contiguous(name, array, self._sum_dtype)
        if indices is None:
            align = kernels.align_backward if transpose else kernels.align
            align(array, result, self.bins.sampling_ratio, self.bins.aligned, threads)
        else:
            gather = kernels.pool_backward if transpose else kernels.pool_gather
            gather(array, self._contiguous("indices", indices, "int32"), result, threads)
        return self._converted(result)

    def _empty(self, shape: tuple[int, ...], dtype: str = "") -> Any:
        order, cause = tuple(range(len(shape))), "input of shape {}, boxes and output_size"
        return self._allocate(Buffer(shape, order, dtype or self._sum_dtype, self.shape, cause))

    def _contiguous(self, name: str, array: Any, dtype: str) -> Any:
        return np.ascontiguousarray(readable(array), dtype)

    def _allocate(self, buffer: Buffer) -> Any:
        return allocate(buffer)

    def _converted(self, array: Any) -> Any:
        return array.astype(dtype_named(self.dtype), copy=False)

    def _threads(self) -> int:
        return get_num_threads()


def host_table(boxes: object, images: int) -> Array:
    """Convert boxes of either form to a contiguous float64 array."""

    def join(parts: list[Array]) -> Array:
        rows = [np.insert(own.astype(np.float64), 0, n, axis=1) for n, own in enumerate(parts)]
        return np.concatenate([np.empty((0, 5)), *rows])

    return np.array(table_of(boxes, images, arguments.boxes, join), np.float64, order="C")


def region_map(input: Any, boxes: object, bins: Bins) -> tuple[Array, RegionMap]:
    """Return the input as a NumPy array, and the map of its regions."""
    x = readable(arguments.plain("input", input, "an array or lists of equal lengths"))
    check_input(x.dtype, x.shape)
    return x, KernelMap(x.shape, host_table(boxes, x.shape[0]), name_of(x.dtype), bins)
