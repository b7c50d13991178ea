"""The table of rows: the timed calls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar

Dtype = Literal["float32", "float64", "bfloat16", "float16"]


@dataclass(frozen=True)
class Row:
    """One line of the benchmark.

    Attributes
    ----------
    title, function : str
        A short description of the pooling; the name of the public function.
    calls : tuple of mappings
        The arguments of each call; several calls are timed together.
    shape : tuple of int
        Shape of the input, channels first.
    layout : str
        ``"NCHW"`` or ``"NHWC"``: how the input lies in memory.
    direction : str
        ``"forward"`` of an input that requires a gradient, so that routes are kept; ``"values"``
        without; ``"backward"``.
    dtype, arrays : str
        Dtype and arrays of the input; ``"torch"`` or ``"numpy"``.
    beside : Row, optional
        Another row whose time this one is a share of.
    peers : bool
        False if PyTorch takes too long to be timed.
    """

    title: str
    function: str
    calls: tuple[Mapping[str, Any], ...]
    shape: tuple[int, ...]
    layout: str = "NCHW"
    direction: str = "forward"
    dtype: str = "float32"
    arrays: str = "torch"
    beside: Row | None = None
    peers: bool = True

    @property
    def name(self) -> str:
        """Name of the row: title, layout, direction."""
        return f"{self.title} {self.layout} {self.direction}"

    @property
    def tiny(self) -> bool:
        """Whether the call overhead exceeds the time to move the bytes; then there is no floor."""
        return math.prod(self.shape) < 1 << 14

    def of(self, dtype: str) -> Row:
        """Return the row in another dtype."""
        beside = self.beside and self.beside.of(dtype)
        return replace(self, dtype=dtype, beside=beside)


# The pooled arrays, and the kernel sizes of the plot of times.
IMAGES, FEW, VOLUMES = (32, 64, 112, 112), (4, 64, 112, 112), (2, 32, 64, 64, 64)
KERNELS = (3, 5, 9, 13, 31, 63)
_ENDLESS = 31  # from this size on, PyTorch's maximum takes seconds
_TWO = {"kernel_size": 2}
_WAYS = ("NCHW forward", "NHWC forward", "NCHW values", "NCHW backward", "NHWC backward")


def kernel_row(size: int, direction: str = "forward") -> Row:
    """A stride-1 maximum of four images."""
    call = {"kernel_size": size, "stride": 1, "padding": size // 2}
    title, peers = f"max {size}x{size} s1 batch 4", size < _ENDLESS
    return Row(title, "max_pool2d", (call,), FEW, direction=direction, peers=peers)


def _both(
    title: str, function: str, call: Mapping[str, Any], shape: tuple[int, ...], *ways: str
) -> Iterator[Row]:
    """Return the row in several variants, such as ``"NCHW forward"``."""
    for way in ways:
        layout, direction = way.split()
        yield Row(title, function, (call,), shape, layout, direction)


def _maxima() -> Iterator[Row]:
    yield from _both("max 2x2 s2", "max_pool2d", _TWO, IMAGES, *_WAYS)
    call = {"kernel_size": 3, "stride": 2, "padding": 1}
    yield from _both("max 3x3 s2 p1", "max_pool2d", call, IMAGES, *_WAYS)
    yield from _both("max 3x3 s1 p1", "max_pool2d", call | {"stride": 1}, IMAGES, *_WAYS)
    thirteen = kernel_row(13)
    yield from _both(thirteen.title, "max_pool2d", thirteen.calls[0], FEW, *_WAYS)
    yield from (kernel_row(size) for size in KERNELS if size not in (13, 63))
    for direction in ("forward", "values"):
        small, large = (kernel_row(size, direction) for size in (3, 63))
        yield replace(large, beside=small)
    three = tuple(kernel_row(size).calls[0] for size in (5, 9, 13))
    yield Row("SPP max 5, 9, 13 s1", "max_pool2d", three, (8, 512, 20, 20))
    yield from _both(
        "max 2x2x2 s2", "max_pool3d", _TWO, VOLUMES, "NCHW values", "NCHW forward", "NCHW backward"
    )
    yield from _both(
        "max 3x3x3 s2 p1",
        "max_pool3d",
        call,
        VOLUMES,
        "NCHW values",
        "NCHW forward",
        "NCHW backward",
    )
    yield from _both(
        "ReLU, max 2x2 s2",
        "relu_max_pool2d",
        _TWO,
        IMAGES,
        "NCHW forward",
        "NHWC forward",
        "NCHW backward",
        "NHWC backward",
    )
    for kernel, stride in ((2, 2), (3, 1)):
        packed = {"kernel_size": kernel, "stride": stride, "routes": "packed"}
        for direction in ("forward", "backward"):
            bytewise = Row(
                "",
                "max_pool2d",
                ({**packed, "routes": "bytes"},),
                IMAGES,
                direction=direction,
                peers=False,
            )
            title = f"max {kernel}x{kernel} s{stride} packed routes"
            yield replace(bytewise, title=title, calls=(packed,), beside=bytewise)
    one = (1, 64, 224, 224)
    yield from _both("batch 1 max 2x2 s2", "max_pool2d", _TWO, one, "NHWC backward")


def _odd() -> Iterator[Row]:
    """Return rows of other widths with the number of elements of `IMAGES`, and other windows."""
    for width in (7, 13, 55, 111):
        title, shape = f"max 2x2 s2 W={width}", (32 * 112 // width, 64, 112, width)
        yield from _both(title, "max_pool2d", _TWO, shape, "NCHW forward")
    for title, call in (
        ("max 3x3 s3", {"kernel_size": 3, "stride": 3}),
        ("max 3x3 s1 p1 d2", {"kernel_size": 3, "stride": 1, "padding": 1, "dilation": 2}),
        ("max 3x3 s2 'same'", {"kernel_size": 3, "stride": 2, "padding": "same"}),
    ):
        yield from _both(title, "max_pool2d", call, IMAGES, "NCHW forward")


def _others() -> Iterator[Row]:
    yield from _both(
        "average 2x2 s2",
        "avg_pool2d",
        _TWO,
        IMAGES,
        "NCHW forward",
        "NCHW backward",
        "NHWC forward",
    )
    yield from _both(
        "average 3x3 s2",
        "avg_pool2d",
        _TWO | {"kernel_size": 3, "stride": 2},
        IMAGES,
        "NHWC forward",
    )
    yield from _both("average 3x3 s3", "avg_pool2d", {"kernel_size": 3}, IMAGES, "NCHW backward")
    yield from _both(
        "average 3x3 s1 p1",
        "avg_pool2d",
        kernel_row(3).calls[0],
        IMAGES,
        "NCHW forward",
        "NCHW backward",
    )
    yield from _both(
        "average 31x31 s1 batch 4",
        "avg_pool2d",
        kernel_row(31).calls[0],
        FEW,
        "NCHW forward",
        "NCHW backward",
    )
    yield from _both("global max", "global_max_pool", {}, IMAGES, "NCHW forward")
    yield from _both("global average", "global_avg_pool", {}, IMAGES, "NCHW forward")
    yield from _both(
        "global average 7x7",
        "global_avg_pool",
        {},
        (256, 512, 7, 7),
        "NCHW forward",
        "NCHW backward",
    )
    yield from _both(
        "adaptive average 7x7",
        "adaptive_avg_pool2d",
        {"output_size": 7},
        IMAGES,
        "NCHW forward",
        "NCHW backward",
    )
    for title, function, more in (
        ("lp2", "lp_pool2d", {"norm_type": 2.0}),
        ("lp3", "lp_pool2d", {"norm_type": 3.0}),
        ("log_mean_exp", "log_mean_exp_pool2d", {}),
        ("soft", "soft_pool2d", {}),
        ("median", "median_pool2d", {}),
    ):
        yield from _both(f"{title} 2x2 s2", function, _TWO | more, IMAGES, "NCHW values")
    reference = Row("max 2x2 s2", "max_pool2d", (_TWO,), IMAGES, direction="values")
    for dtype in ("bfloat16", "float16", "uint8"):
        yield replace(reference, title=f"max 2x2 s2 {dtype}", dtype=dtype, beside=reference)
    tiny = Row("tiny max 2x2 s2", "max_pool2d", (_TWO,), (1, 8, 8, 8), direction="values")
    yield tiny
    yield replace(tiny, title=f"{tiny.title} NumPy", arrays="numpy")


ROWS: tuple[Row, ...] = (*_maxima(), *_odd(), *_others())


def select(parts: Sequence[str] = (), dtype: str = "float32") -> list[Row]:
    """Return the rows whose names contain any of these parts, or all rows.

    Parameters
    ----------
    parts : sequence of str
        Of names, such as ``"NHWC backward"``.
    dtype : str
        In another one than float32, rows that compare dtypes are left out.

    Returns
    -------
    list of Row

    Raises
    ------
    ValueError
        If there is no row for one of the parts.
    """
    rows = chosen_by(parts, ROWS, "row")
    if dtype == "float32":
        return rows
    rows = [row.of(dtype) for row in rows if row.dtype == "float32" and row.arrays == "torch"]
    if not rows:
        raise ValueError(f"no row in {dtype} has {' or '.join(map(repr, parts))} in its name")
    return rows


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


def chosen_by(parts: Sequence[str], all_of_them: Sequence[N], kind: str) -> list[N]:
    """Return the items whose names contain any of these parts, or all items.

    Raises
    ------
    ValueError
        If there is none for one of the parts.
    """
    for part in parts:
        if not any(part in one.name for one in all_of_them):
            example = all_of_them[0].name
            raise ValueError(f"no {kind} has {part!r} in its name; one is named {example!r}")
    return [one for one in all_of_them if not parts or any(part in one.name for part in parts)]
