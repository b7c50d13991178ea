"""Adaptive polyphase sampling: a stride that commutes with circular shifts.

The pixels that a stride could keep form one grid for each offset: the polyphase components. A
circular shift of the map permutes the components and shifts each of them. So a choice among them
that depends on nothing but their content, up to circular shifts, keeps the same pixels of every
shift of the map (Chaman & Dokmanic 2021). Two things would break that in floating point: sums whose
rounding depends on the order of the terms, and ties that are broken by the offset. Here sums are
exact, and ties are broken by an order of the contents.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, fx

from poolgrad.torch._compat import tracing_state
from poolgrad.torch.arrays import KIND, shape_of
from poolgrad.torch.layers import arguments
from poolgrad.torch.layers.arguments import Layer, batched, unbatched
from poolgrad.torch.layers.blur import extend
from poolgrad.windows import Ints, brief

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of a float


def component_norms(x: Tensor, stride: tuple[int, int], norm: float) -> Tensor:
    """Compute the norm of every polyphase component, free of the order of its elements.

    Each term ``(|x| / max |x|)^norm`` is rounded to so few bits after the point that every partial
    sum is exact in float64: then the sum does not depend on the order. The operations on single
    elements (division, multiplication, rounding) are correctly rounded by IEEE 754, so they do not
    depend on the position of an element, either.

    Parameters
    ----------
    x : Tensor, shape (N, C, H, W)
        Finite numbers; `H` and `W` are multiples of the stride.
    stride : (int, int)
    norm : float
        An integer or math.inf.

    Returns
    -------
    Tensor, shape (N, stride[0] * stride[1]), float64
        A monotone function of the norm: its power, relative to that of the largest element, times
        a power of two.
    """
    x = x.detach()
    largest = torch.maximum(x.amax((1, 2, 3), True), -x.amin((1, 2, 3), True)).double()
    shares = x.double() / torch.where(largest > 0, largest, torch.ones_like(largest))
    shares.abs_()  # in place from here on, in an array of its own
    height, width = shape_of(x)[-2:]
    rows, columns = stride
    by_offset = (x.shape[0], x.shape[1] * height // rows, rows, width // columns, columns)
    if norm == math.inf:
        return shares.reshape(by_offset).amax((1, 3)).flatten(1)
    terms = shares.clone() if norm > 2 else shares
    for _ in range(int(norm) - 1):
        terms.mul_(shares)
    count = int(x.shape[1] * height * width) // (rows * columns)
    terms = terms.mul_(2.0 ** (53 - count.bit_length())).round_()
    return terms.reshape(by_offset).sum(1).sum(2).flatten(1)


def _components(x: Tensor, stride: tuple[int, int]) -> Tensor:
    """Return the polyphase components, a view: (N, rows, columns, C, H / rows, W / columns)."""
    height, width = shape_of(x)[-2:]
    rows, columns = stride
    parts = x.reshape(*x.shape[:2], height // rows, rows, width // columns, columns)
    return parts.permute(0, 3, 5, 1, 2, 4)


def choose_component(x: Tensor, stride: tuple[int, int], norm: float) -> Tensor:
    """Choose the polyphase component of largest norm, independent of circular shifts.

    Components of equal norm are compared by `greatest`. NaN and infinity count as the largest
    float64.

    Returns
    -------
    Tensor, shape (N,), int64
        ``row offset * stride[1] + column offset``.
    """
    norms = component_norms(x.detach(), stride, norm)
    if x.is_meta:
        return norms.argmax(1)
    # Other tensors than plain ones may have no values (transformations, fake tensors).
    is_readable = KIND.is_supported(x)
    if not (is_readable and norms.isfinite().all()):
        most = torch.finfo(torch.float64).max
        finite = x.detach().to(torch.float64, copy=True)
        finite.nan_to_num_(nan=most, posinf=most, neginf=-most)
        norms = component_norms(finite, stride, norm)
        # PyTorch's NaN have different bits in different positions of an array.
        x = x.detach().masked_fill(x.isnan(), math.nan)
    tied = norms == norms.amax(1, keepdim=True)
    bits = x.detach().resolve_neg().contiguous().view(_INTEGERS[x.element_size()])
    parts = _components(bits, stride)
    if not is_readable:
        return _order(parts.flatten(1, 2)).masked_fill(~tied, -1).argmax(1)
    chosen = norms.argmax(1)
    for n in (tied.sum(1) > 1).nonzero().flatten().tolist():
        candidates = tied[n].nonzero().flatten()
        chosen[n] = candidates[greatest(parts[n].flatten(0, 1)[candidates])]
    return chosen


def greatest(parts: Tensor) -> int:
    """Find the greatest of some maps in an order that circular shifts do not change.

    Parameters
    ----------
    parts : Tensor of integers, shape (T, C, H, W)

    Returns
    -------
    int
        From 0 to T - 1.
    """
    if (parts == parts[0]).all():  # as for a map of one value: nothing to compare
        return 0
    return int(_order(parts[None]).argmax())


def _order(parts: Tensor) -> Tensor:
    """Return the position of each map in the order that circular shifts do not change.

    A map is compared by the greatest of its circular shifts, read row by row. The rank of every
    pixel as the start of such a reading is found by prefix doubling (as for suffix arrays): ranks
    of runs of 2, 4, 8, ... channels, then of 2, 4, 8, ... pixels along the rows, then of 2, 4, 8,
    ... rows. Maps with the same rank are circular shifts of each other, so that it does not matter
    which of them is taken.

    Parameters
    ----------
    parts : Tensor of integers, shape (N, T, C, H, W)
        Only maps of the same example are compared.

    Returns
    -------
    Tensor, shape (N, T), int64
        Numbers that increase in this order, from 0.
    """
    count = max(math.prod(parts.shape[1:]), 1)  # ranks are less, so that a pair of them is a number
    rank = _ranks(parts)
    while rank.shape[2] > 1:
        if rank.shape[2] % 2:
            rank = torch.cat((rank, torch.zeros_like(rank[:, :, :1])), 2)
        rank = _ranks(rank[:, :, ::2] * count + rank[:, :, 1::2])
    for axis in (-1, -2):
        run = 1
        while run < rank.shape[axis]:
            rank = _ranks(rank * count + rank.roll(-run, axis))
            run *= 2
    return rank.amax((2, 3, 4))


def _ranks(numbers: Tensor) -> Tensor:
    """Return how many different numbers of the same example are less than each number."""
    flat = numbers.flatten(1)
    values, order = flat.sort(1)
    steps = (values[:, 1:] != values[:, :-1]).cumsum(1)
    ranks = torch.cat((torch.zeros_like(steps[:, :1]), steps), 1) if flat.shape[1] > 1 else order
    return torch.zeros_like(order).scatter(1, order, ranks).reshape(numbers.shape)


@torch.library.custom_op("poolgrad::polyphase_component", mutates_args=())
def _opaque(x: Tensor, rows: int, columns: int, norm: float) -> Tensor:
    """Call `choose_component` without tracing, because its ties depend on the values."""
    return choose_component(x, (rows, columns), norm)


@_opaque.register_fake
def _(x: Tensor, rows: int, columns: int, norm: float) -> Tensor:
    return x.new_empty(x.shape[0], dtype=torch.int64)


def _choose(x: Tensor, stride: tuple[int, int], norm: float) -> Tensor:
    """Call `choose_component`; exported programs, of standard operators, take the first of ties."""
    if torch.compiler.is_exporting() or tracing_state() is not None:
        return component_norms(x, stride, norm).argmax(1)
    if torch.compiler.is_compiling():
        return _opaque(x.detach(), *stride, norm)
    return choose_component(x, stride, norm)


def _select(parts: Tensor, chosen: Tensor) -> Tensor:
    """Return the chosen component of each example."""
    if arguments.on_cpu(parts):
        which = torch.arange(parts.shape[0], dtype=torch.int64, device=parts.device)
        columns = parts.shape[2]
        return parts[which, chosen // columns, chosen % columns]
    # On a GPU the derivative of indexing adds to elements in any order.
    kept, *others = (part for row in parts.unbind(1) for part in row.unbind(1))
    for k, other in enumerate(others, 1):
        kept = torch.where(chosen[:, None, None, None] == k, other, kept)
    return kept


def _blurred(x: Tensor, filter_size: int | None, padding_mode: str) -> Tensor:
    """Apply the binomial filter as sums of neighbours, which round alike at every position.

    A convolution may round differently at different positions.
    """
    if filter_size in (None, 1):
        return x
    steps = filter_size - 1
    around = (steps // 2, steps - steps // 2)
    x = extend(x, around, around, padding_mode)
    for _ in range(steps):
        x = x[..., 1:, :] + x[..., :-1, :]
    for _ in range(steps):
        x = x[..., 1:] + x[..., :-1]
    return x * 4.0**-steps


@fx.wrap
def _pooled(
    x: Tensor, stride: tuple[int, int], norm: float, filter_size: int | None, padding_mode: str
) -> Tensor:
    """Keep one component of every example."""
    maps = _blurred(batched(arguments.check_maps(x)), filter_size, padding_mode)
    rows, columns = (-size % step for size, step in zip(shape_of(maps)[-2:], stride, strict=True))
    maps = extend(maps, (0, rows), (0, columns), padding_mode)  # to multiples of the stride
    chosen = _choose(maps, stride, float(norm))
    return unbatched(_select(_components(maps, stride), chosen), x)


class AdaptivePolyphasePool2d(Layer):
    """Keep the polyphase component of the largest norm: subsampling that commutes with shifts.

    A stride of 2 could keep any of four grids of pixels. For each example, the grid of the largest
    norm over all channels is kept, so that every circular shift of the map keeps the same pixels.
    Pixels are not averaged; with `filter_size`, the maps are blurred first.

    Parameters
    ----------
    stride : int or (int, int)
        The step between kept pixels. Default: 2.
    norm : int or math.inf
        Order of the norm, over all channels, by which components are compared. Default: 2.
    filter_size : int, optional
        Taps of a binomial blur before the choice, as in `BlurPool2d`; default: no blur.
    padding_mode : str
        Padding around the map, for the blur and for maps whose height or width is not a multiple
        of the stride: these are extended at the end. The modes are those of `BlurPool2d`; default:
        ``"circular"``.

    Raises
    ------
    TypeError, ValueError
        In the constructor, if an argument has another type or value; in a call, if the input is not
        a floating tensor of shape (N, C, H, W) or (C, H, W).

    Notes
    -----
    Called with ``(N, C, H, W)`` or ``(C, H, W)``, it returns ``ceil(H / stride)`` rows and
    ``ceil(W / stride)`` columns.

    For ``padding_mode="circular"`` and sizes that are multiples of the stride, the output of a
    circularly shifted input is a circular shift of the output, to the last bit and for any values:
    the norms are sums without rounding, and components of equal norm are compared by their
    contents. Exported programs (ONNX, `torch.export`, traces) take the first component of equal
    norm instead. Where sizes are not multiples of the stride, no subsampling commutes with shifts.

    The gradient goes to the pixels that were kept. The choice is piecewise constant; its gradient
    is zero.

    References
    ----------
    A. Chaman, I. Dokmanic, "Truly shift-invariant convolutional neural networks", CVPR 2021.

    Examples
    --------
    >>> import torch
    >>> from poolgrad.torch import AdaptivePolyphasePool2d
    >>> pool = AdaptivePolyphasePool2d()
    >>> x = torch.arange(16.0).reshape(1, 1, 4, 4)
    >>> pool(x)
    tensor([[[[ 5.,  7.],
              [13., 15.]]]])
    >>> pool(x.roll(1, -1))  # one column to the right: the same pixels
    tensor([[[[ 7.,  5.],
              [15., 13.]]]])
    """

    stride: Ints = 2
    norm: float = 2
    filter_size: int | None = None
    padding_mode: str = "circular"

    def __post_init__(self) -> None:
        super().__post_init__()
        norm = self.norm
        whole = isinstance(norm, int) and not isinstance(norm, bool) and 1 <= norm <= 64
        if not (whole or (isinstance(norm, float) and norm == math.inf)):
            raise ValueError(f"norm must be an integer from 1 to 64 or math.inf, got {brief(norm)}")

    def forward(self, x: Tensor) -> Tensor:
        """Keep one component of every example."""
        return _pooled(x, *self.arguments)
