"""Computes, inside kernels, the taps of outputs and the inverse taps (windows) of inputs.

Every kernel works on a tile of ``ROWS x LANES`` elements of an array that has five axes in memory,
(planes, depth, height, width, channels). The channels are those that lie innermost in memory; if
none do, there is one. Lanes are neighbours in memory: channels if there are several
(``CHANNELS_LAST``), else positions along the width. A row is everything else.

Helpers take and return tuples, ordered (depth, height, width) where they have three entries:

===========  =================================================================================
`size`       sizes of the input along the pooled axes
`out`        numbers of windows along these axes
`position`   (plane, d, h, w, channel) of each element of a tile
`window`     (first, end): first tap of each window, end of its valid positions; triples
`strides`    of the planes p and n, of depth, height, width, and of channels
`K, S, LO`   constants: taps of a window, stride (or number of adaptive bins), low padding;
             helpers also take taps that are not constant
`DIL, KIND`  constants: dilation, and the kind of windows (see `views.kind`)
`OVER`       constants: how many windows may hold one input
`ALIGN`      constants: powers of two that divide lanes, input width, output width, and strides
===========  =================================================================================
"""

import triton
import triton.language as tl

from poolgrad.torch.triton import views
from poolgrad.windows import WindowKind

# Kinds of windows along an axis
FEW = tl.constexpr(views.FEW)
ADAPTIVE = tl.constexpr(int(WindowKind.ADAPTIVE))


# Tiles and memory


@triton.jit
def aligned(n, UNIT: tl.constexpr):
    """Return `n`, a multiple of `UNIT`, in a form that lets the compiler use wide accesses."""
    return n // UNIT * UNIT


@triton.jit
def tile(lanes, ROWS: tl.constexpr, LANES: tl.constexpr, INDEX: tl.constexpr):
    """Rows (ROWS, 1) and lanes (1, LANES) of this program's tile."""
    program = tl.program_id(0).to(INDEX)
    blocks = tl.cdiv(lanes, LANES)
    row = program // blocks * ROWS + tl.arange(0, ROWS)
    lane = program % blocks * LANES + tl.arange(0, LANES)
    return row[:, None], lane[None, :]


@triton.jit
def prologue(
    rows, lanes, size, out, row_w, planes, strides,
    OF_INPUTS: tl.constexpr, CHANNELS_LAST: tl.constexpr, INDEX: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Lanes, sizes and strides in the form of `aligned`, and the elements of this program's tile.

    The tile is a part of the outputs, or of the inputs (`OF_INPUTS`). `row_w`: the rows for each
    line of the width, a few more than its size if routes are packed. Of each element returns row,
    lane and `position`, whether it exists, and the offset of the first element of its plane (and
    channel) in the array that has these strides.
    """
    lanes = aligned(lanes, ALIGN[0])
    size = (size[0], size[1], aligned(size[2], ALIGN[1]))
    out = (out[0], out[1], aligned(out[2], ALIGN[2]))
    s_p, s_n = aligned(strides[0], ALIGN[3]), aligned(strides[1], ALIGN[3])
    s_d, s_h = aligned(strides[2], ALIGN[3]), aligned(strides[3], ALIGN[3])
    s_w, s_c = strides[4], strides[5]
    row, lane = tile(lanes, ROWS, LANES, INDEX)
    if CHANNELS_LAST:
        s_w = aligned(s_w, ALIGN[3])
        w, line, c = row % row_w, row // row_w, lane
    else:
        w, line, c = lane, row, row * 0
    depth, height, width = size if OF_INPUTS else out
    ok = (row < rows) & (lane < lanes) & (w < width)
    plane = line // height // depth
    position = (plane, line // height % depth, line % height, w, c)
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    return lanes, size, out, (s_p, s_n, s_d, s_h, s_w, s_c), row, lane, position, ok, origin


@triton.jit
def element(row, position, lanes, width, row_w, CHANNELS_LAST: tl.constexpr):
    """Offsets of the elements of a tile of outputs in a contiguous array of this width."""
    _, _, _, w, c = position
    if CHANNELS_LAST:
        return (row // row_w * width + w) * lanes + c
    else:
        return row * width + w


@triton.jit
def double_lanes(lanes, LANES: tl.constexpr, INDEX: tl.constexpr):
    """Positions (1, 2 * LANES) of a tile whose lanes are pairs of neighbours along the width."""
    block = tl.program_id(0).to(INDEX) % tl.cdiv(lanes, LANES) * (2 * LANES)
    return (block + tl.arange(0, 2 * LANES))[None, :]


@triton.jit
def contiguous_offset(position, shape, lanes, CHANNELS_LAST: tl.constexpr):
    """Offsets of any positions in a contiguous array with these pooled sizes."""
    plane, d, h, w, c = position
    at = ((plane * shape[0] + d) * shape[1] + h) * shape[2] + w
    if CHANNELS_LAST:
        at = at * lanes + c
    return at


@triton.jit
def strided_offset(position, strides):
    """Offsets of these positions from the first elements of their planes."""
    _, d, h, w, _ = position
    return d * strides[2] + h * strides[3] + w * strides[4]


# From an output to its taps


@triton.jit
def window_range(o, size, S: tl.constexpr, LO: tl.constexpr, KIND: tl.constexpr):
    """First tap of window `o` as a position in the input, and the end of its valid positions.

    A position below 0 is padding.
    """
    if KIND == ADAPTIVE:
        return o * size // S, ((o + 1) * size + S - 1) // S
    else:
        return o * S - LO, size + 0 * o


@triton.jit
def windows_of(position, size, S: tl.constexpr, LO: tl.constexpr, KIND: tl.constexpr):
    """`window_range` of these outputs along each axis."""
    _, od, oh, ow, _ = position
    first_d, end_d = window_range(od, size[0], S[0], LO[0], KIND[0])
    first_h, end_h = window_range(oh, size[1], S[1], LO[1], KIND[1])
    first_w, end_w = window_range(ow, size[2], S[2], LO[2], KIND[2])
    return (first_d, first_h, first_w), (end_d, end_h, end_w)


@triton.jit
def tap_position(t, window, K, DIL: tl.constexpr):
    """The input (d, h, w) of tap `t`, counted in row-major order; it may be padding."""
    first, _ = window
    d = first[0] + t // (K[1] * K[2]) * DIL[0]
    h = first[1] + t // K[2] % K[1] * DIL[1]
    w = first[2] + t % K[2] * DIL[2]
    return d, h, w


@triton.jit
def tap_at(t, window, strides, K, DIL: tl.constexpr):
    """Offset of tap `t` from the first element of a plane, and whether the tap is an input."""
    d, h, w = tap_position(t, window, K, DIL)
    _, end = window
    valid = (d >= 0) & (d < end[0]) & (h >= 0) & (h < end[1]) & (w >= 0) & (w < end[2])
    return d * strides[2] + h * strides[3] + w * strides[4], valid


@triton.jit
def first_valid(first, LO: tl.constexpr, DIL: tl.constexpr):
    """The first tap of each window along an axis that is not low padding."""
    if LO == 0:
        return 0 * first
    return tl.maximum(DIL - 1 - first, 0) // DIL


@triton.jit
def first_valid_tap(window, K, LO: tl.constexpr, DIL: tl.constexpr):
    """The first tap of each window that is an input, counted in row-major order; -1 if none is."""
    first, end = window
    d = first_valid(first[0], LO[0], DIL[0])
    h = first_valid(first[1], LO[1], DIL[1])
    w = first_valid(first[2], LO[2], DIL[2])
    found = (d < K[0]) & (first[0] + d * DIL[0] < end[0])
    found &= (h < K[1]) & (first[1] + h * DIL[1] < end[1])
    found &= (w < K[2]) & (first[2] + w * DIL[2] < end[2])
    return tl.where(found, (d * K[1] + h) * K[2] + w, -1)


@triton.jit
def load_tap(x_ptr, t, window, origin, strides, ok, other, K, DIL: tl.constexpr):
    """The input at tap `t` of each window, `other` for padding, and whether it is an input."""
    at, valid = tap_at(t, window, strides, K, DIL)
    return tl.load(x_ptr + origin + at, mask=ok & valid, other=other), valid


@triton.jit
def load_pair(
    x_ptr, line, k, window, ow, both, row_ok, size, origin, strides, other,
    K: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Taps `k` and `k + 1` of a line of windows of stride 2 along the width, from one load.

    The ``2 * LANES`` neighbours from tap `k` of the first window on (`both`, shifted) hold both
    taps of all windows of a row. Returns the two inputs, `other` for padding, and whether each is
    an input.
    """
    first, _ = window
    d, h = first[0] + line // K[1] * DIL[0], first[1] + line % K[1] * DIL[1]
    w = both + (k - LO[2])
    valid = (d >= 0) & (d < size[0]) & (h >= 0) & (h < size[1]) & row_ok
    inside = valid & (w < size[2])
    if k < LO[2]:
        inside &= w >= 0
    at = origin + d * strides[2] + h * strides[3] + w * strides[4]
    pair = tl.load(x_ptr + at, mask=inside, other=other)
    even, odd = tl.split(tl.reshape(pair, (ROWS, LANES, 2)))
    left = ow * 2 + (k - LO[2])
    in_even = valid & (left >= 0) & (left < size[2])
    in_odd = valid & (left + 1 >= 0) & (left + 1 < size[2])
    return even, in_even, odd, in_odd


# From an input to the windows over it


@triton.jit
def last_window(i, size, outputs, S: tl.constexpr, LO: tl.constexpr, KIND: tl.constexpr):
    """The last window that can hold input `i`; those before it follow in descending order.

    It may be past the last one of the axis: then the tap at which a window of stride 1 holds an
    input is a constant.
    """
    if KIND == ADAPTIVE:
        return ((i + 1) * S + size - 1) // size - 1
    elif KIND == FEW:
        return tl.minimum((i + LO) // S, outputs - 1)
    else:
        return (i + LO) // S


@triton.jit
def last_windows(
    position, size, out, S: tl.constexpr, LO: tl.constexpr, KIND: tl.constexpr
):  # fmt: skip
    """`last_window` over these inputs along each axis."""
    _, d, h, w, _ = position
    return (
        last_window(d, size[0], out[0], S[0], LO[0], KIND[0]),
        last_window(h, size[1], out[1], S[1], LO[1], KIND[1]),
        last_window(w, size[2], out[2], S[2], LO[2], KIND[2]),
    )


@triton.jit
def tap_of(
    i, o, size, outputs,
    K, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The tap at which window `o` of an axis holds input `i`, and whether it does."""
    inside = (o >= 0) & (o < outputs)
    if KIND == ADAPTIVE:
        first = o * size // S
        return i - first, inside & (i >= first) & (i < ((o + 1) * size + S - 1) // S)
    else:
        reach = i + LO - o * S
        inside &= (reach >= 0) & (reach <= (K - 1) * DIL)
        if DIL > 1:
            inside &= reach % DIL == 0
        return reach // DIL, inside


@triton.jit
def window_over(
    k, last, position, ok, size, out,
    K, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
    OVER: tl.constexpr,
):  # fmt: skip
    """The `k`-th window over each input, in ascending order.

    Returns the position of its output, the tap at which it holds the input, and whether it does.
    """
    plane, d, h, w, c = position
    od = last[0] - (OVER[0] - 1 - k // (OVER[1] * OVER[2]))
    oh = last[1] - (OVER[1] - 1 - k // OVER[2] % OVER[1])
    ow = last[2] - (OVER[2] - 1 - k % OVER[2])
    td, in_depth = tap_of(d, od, size[0], out[0], K[0], S[0], LO[0], DIL[0], KIND[0])
    th, in_height = tap_of(h, oh, size[1], out[1], K[1], S[1], LO[1], DIL[1], KIND[1])
    tw, in_width = tap_of(w, ow, size[2], out[2], K[2], S[2], LO[2], DIL[2], KIND[2])
    tap = (td * K[1] + th) * K[2] + tw
    return (plane, od, oh, ow, c), tap, ok & in_depth & in_height & in_width


# Arithmetic


@triton.jit
def wide(value):
    """Convert a value to the type of the computation: float32 for smaller floating types."""
    if value.dtype == tl.float16 or value.dtype == tl.bfloat16:
        return value.to(tl.float32)
    else:
        return value


@triton.jit
def divided(a, b):
    """a / b, rounded to nearest; Triton's own division in float32 need not be."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b.to(tl.float32))
    else:
        return a / b
