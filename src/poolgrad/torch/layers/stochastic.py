"""Pooling with stochastic spatial sampling (S3Pool): a random choice of rows and columns."""

from __future__ import annotations

from functools import lru_cache
from math import comb
from operator import index

import torch
from torch import Tensor, fx
from torch.nn.functional import max_pool2d, pad

from poolgrad import functional
from poolgrad.torch._compat import mode_of
from poolgrad.torch.arrays import is_in_graph, pools, shape_of
from poolgrad.torch.function import FRONT_END, known_generator, seeded
from poolgrad.torch.layers.arguments import Layer, check_maps, sum_dtype, without_autocast
from poolgrad.torch.transposes import linear
from poolgrad.windows import Ints, brief


def _strips(size: int, stride: int, grid: int) -> list[tuple[int, int, int, int]]:
    """Return the strips of an axis as ``(first row, strips, rows of each, rows kept of each)``.

    First those of `grid` rows, then, if rows are left, one of the rest.
    """
    whole, rest = size // grid, size % grid  # compilers have no divmod of symbolic sizes
    strips = [(0, whole, grid, grid // stride), (size - rest, 1, rest, -(-rest // stride))]
    return [(first, count, n, m) for first, count, n, m in strips if count and n]


@lru_cache(maxsize=8)  # tables of size * size / stride numbers
def _chances(size: int, stride: int, grid: int) -> tuple[tuple[float, ...], ...]:
    """Return the probability with which each output (row) is each input (column) of an axis.

    Of m rows drawn from n without replacement and put in order, number k is row j in
    ``comb(j, k) * comb(n - 1 - j, m - 1 - k)`` of the ``comb(n, m)`` equally likely choices.
    """
    chances: list[tuple[float, ...]] = []
    for first, strips, n, m in _strips(size, stride, grid):
        drawn = [
            [comb(j, k) * comb(n - 1 - j, m - 1 - k) / comb(n, m) for j in range(n)]
            for k in range(m)
        ]
        for start in range(first, first + strips * n, n):
            after = size - start - n
            chances += [(0.0,) * start + tuple(row) + (0.0,) * after for row in drawn]
    return tuple(chances)


def _selected(y: Tensor, kept: Tensor, axis: int, size: int) -> Tensor:
    """Select rows or columns, each at most once: the derivative copies, and adds nothing."""
    if is_in_graph():
        return y.index_select(axis, kept)

    def back(gy: Tensor, kept: Tensor) -> Tensor:
        shape = [*gy.shape]
        shape[axis] = size
        return gy.new_zeros(shape).index_copy(axis, kept, gy)

    return linear(lambda y, kept: y.index_select(axis, kept), back, y, kept)


@fx.wrap
def _dense_maximum(x: Tensor, kernel_size: tuple[int, int]) -> Tensor:
    """Compute the maximum of every window at stride one; the output has the size of `x`."""
    if pools(check_maps(x)):
        return functional.max_pool2d(x, kernel_size, stride=1, padding="same")
    high, wide = (k - 1 for k in kernel_size)
    around = (wide // 2, wide - wide // 2, high // 2, high - high // 2)
    return max_pool2d(pad(x, around, value=-torch.inf), kernel_size, stride=1)


def _drawn(
    size: int, stride: int, grid: int, generator: torch.Generator | None, device: torch.device
) -> Tensor:
    """Draw the rows or columns that are kept, in ascending order."""
    like = torch.empty(0, dtype=torch.float64, device=device)
    kept = []
    for first, strips, n, m in _strips(size, stride, grid):
        keys = FRONT_END.drawn(generator, (strips, n), like)
        starts = first + n * torch.arange(strips, dtype=torch.int64, device=device)[:, None]
        kept.append((starts + keys.topk(m).indices.sort().values).flatten())
    return torch.cat(kept)


@fx.wrap
def _sampled(
    y: Tensor,
    stride: tuple[int, int],
    grid_size: tuple[int, int],
    generator: torch.Generator | int | None,
) -> Tensor:
    """Keep random rows and columns of a map of maxima."""
    seed = generator
    if isinstance(generator, int):
        generator = torch.Generator(device="cpu").manual_seed(generator)
    for axis in (0, 1):
        size = shape_of(y)[axis - 2]
        with seeded(seed):
            kept = _drawn(size, stride[axis], grid_size[axis], generator, y.device)
        y = _selected(y, kept, axis - 2, size)
    return y


@fx.wrap
def _mean(y: Tensor, stride: tuple[int, int], grid_size: tuple[int, int]) -> Tensor:
    """Compute the mean of all draws from a map of maxima."""
    if grid_size == stride and pools(y):
        return functional.avg_pool2d(y, stride, ceil_mode=True)
    dtype = sum_dtype(y)
    # The table is a constant of compiled code, which holds for this size.
    sizes = [index(n) for n in shape_of(y)[-2:]]
    # A compiler would warn that it ignores the cache.
    chances = _chances.__wrapped__ if torch.compiler.is_compiling() else _chances
    with mode_of(y):
        by_row, by_column = (
            torch.tensor(chances(*given), dtype=dtype, device=y.device)
            for given in zip(sizes, stride, grid_size, strict=True)
        )
    with without_autocast(y):
        return (by_row @ y.to(dtype) @ by_column.T).to(y.dtype)


class S3Pool2d(Layer):
    """Compute the maximum with stride one and keep random rows and columns of it.

    First, the maximum of every window of `kernel_size` is computed at stride one with
    ``padding="same"`` (padding never wins), so that the map keeps its size. Second, the rows are
    divided into strips of `grid_size`, and ``grid_size / stride`` rows of each strip are drawn
    without replacement and kept in order; the columns likewise. All maps of a batch and all
    channels share the draw. The output has ``ceil(size / stride)`` rows and columns.

    In evaluation mode the output is the mean over all draws. With ``grid_size == stride`` that is
    the average over blocks of `stride`, which the authors' code computes for any grid.

    Parameters
    ----------
    kernel_size : int or sequence of 2 int
        The size of the windows. Default: 2.
    stride : int or sequence of 2 int, optional
        The downsampling factor. Default: `kernel_size`.
    grid_size : int or sequence of 2 int, optional
        The size of the strips, a multiple of `stride`: the larger, the more a map is distorted.
        Default: `stride`, one row of each strip.
    generator : None, int or torch.Generator
        Source of randomness. A seed gives the same rows and columns in every call; a generator
        advances. None (default): PyTorch's default generator of the device of the input
        (`torch.manual_seed`).

    Raises
    ------
    TypeError, ValueError
        In the constructor, for an invalid argument; in a call, for an input that is not a
        floating tensor of shape (N, C, H, W) or (C, H, W).

    Notes
    -----
    Zhai et al., S3Pool: pooling with stochastic spatial sampling, 2017. Where the size is not a
    multiple of `grid_size`, the last strip is shorter: ``ceil(n / stride)`` of n rows are kept.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import S3Pool2d
    >>> pool = S3Pool2d(2, grid_size=4, generator=0)
    >>> pool(torch.rand(2, 8, 16, 16)).shape
    torch.Size([2, 8, 8, 8])
    >>> pool.eval()(torch.ones(1, 1, 4, 4))
    tensor([[[[1., 1.],
              [1., 1.]]]])
    """

    shown = ("kernel_size", "stride", "grid_size")

    kernel_size: Ints = 2
    stride: Ints | None = None
    grid_size: Ints | None = None
    generator: torch.Generator | int | None = None

    def __post_init__(self) -> None:
        given = self.grid_size
        super().__post_init__()
        self.stride = self.stride or self.kernel_size
        self.grid_size = self.grid_size or self.stride
        self.generator = known_generator(self.generator)
        _, stride, grid_size, _ = self.arguments
        if any(g % s for g, s in zip(grid_size, stride, strict=True)):
            raise ValueError(
                f"grid_size must be a multiple of the stride {stride}, got {brief(given)}"
            )

    def forward(self, x: Tensor) -> Tensor:
        """Pool a tensor of shape (N, C, H, W) to (N, C, ceil(H / stride), ceil(W / stride))."""
        kernel_size, stride, grid_size, generator = self.arguments
        y = _dense_maximum(x, kernel_size)
        if self.training:
            return _sampled(y, stride, grid_size, generator)
        return _mean(y, stride, grid_size)

    def extra_repr(self) -> str:
        """Return the arguments for `repr`."""
        drawn = "" if self.generator is None else f", generator={self.generator}"
        return super().extra_repr() + drawn
