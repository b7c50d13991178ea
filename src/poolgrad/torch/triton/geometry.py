"""Computes, inside kernels, the taps of outputs and the inverse taps (windows) of inputs.

Every kernel works on a tile of ``ROWS x LANES`` elements of an array that has five axes in memory,
(planes, depth, height, width, channels). The channels are those that lie innermost in memory; if
none do, there is one. Lanes are neighbours in memory: channels if there are several
(``CHANNELS_LAST``), else positions along the width. A row is everything else.

Helpers take and return tuples, ordered (depth, height, width) where they have three entries:

===========  =================================================================================
`array`      (rows, lanes, input size, numbers of windows, strides): of the whole array
`tile`       (row, lane, position, ok, origin, line): of each element of a tile, see `prologue`
`position`   (plane, d, h, w, channel) of each element of a tile
`window`     (first, end): first tap of each window, end of its valid positions; triples
`strides`    of the planes p and n, of depth, height, width, and of channels
`W`          constants of the windows: three each from `KERNEL` on, from `STRIDE` on, ...
`A`          constant: an axis, 0 to 2 for depth, height and width
`T`          constants of the tile, from `ROWS`, `LANES`, `TAPS`, `CHANNELS_LAST` and `ALIGN` on
===========  =================================================================================

`W` and `T` are flat: Triton's constants are not nested tuples.
"""

import triton
import triton.language as tl

from poolgrad.torch.triton import views
from poolgrad.windows import WindowKind

# Where `W` has three numbers of windows: taps (0: as many as inputs), stride (or number of adaptive
# bins), low and high padding, dilation, kind of windows, and how many windows may hold one input.
KERNEL, STRIDE, LOW, HIGH, DILATION, KIND, OVER = map(tl.constexpr, range(0, 21, 3))

# Kinds of windows along an axis, and WindowKind.FIXED
ADAPTIVE = tl.constexpr(int(WindowKind.ADAPTIVE))
FEW = tl.constexpr(views.FEW)
PAIRED = tl.constexpr(views.PAIRED)

# Where `T` has the size of a tile (`TAPS`: of whole planes, at a time), whether lanes are channels,
# and powers of two that divide lanes, input width, output width, and strides.
ROWS, LANES, TAPS, CHANNELS_LAST, ALIGN = map(tl.constexpr, range(5))


# Tiles and memory


@triton.jit
def aligned(n, UNIT: tl.constexpr):
    """Return `n`, a multiple of `UNIT`, in a form that lets the compiler use wide accesses."""
    return n // UNIT * UNIT


@triton.jit
def prologue(
    rows, lanes, in_d, in_h, in_w, out_d, out_h, out_w, row_w, planes, s_p, s_n, s_d, s_h, s_w, s_c,
    OF_INPUTS: tl.constexpr, INDEX: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """Return `array`, its sizes and strides in the form of `aligned`, and this program's `tile`.

    The tile is a part of the outputs, or of the inputs (`OF_INPUTS`). `row_w`: the rows for each
    line of the width, a few more than its size if routes are packed. A tile is, of each element:
    row, lane, `position`, whether it exists, the offset of the first element of its plane (and
    channel) in the array that has these strides, and the number of its line along the width.
    """
    lanes = aligned(lanes, T[ALIGN])
    size = (in_d, in_h, aligned(in_w, T[ALIGN + 1]))
    out = (out_d, out_h, aligned(out_w, T[ALIGN + 2]))
    s_p, s_n = aligned(s_p, T[ALIGN + 3]), aligned(s_n, T[ALIGN + 3])
    s_d, s_h = aligned(s_d, T[ALIGN + 3]), aligned(s_h, T[ALIGN + 3])
    program = tl.program_id(0).to(INDEX)
    blocks = tl.cdiv(lanes, T[LANES])
    row = (program // blocks * T[ROWS] + tl.arange(0, T[ROWS]))[:, None]
    lane = (program % blocks * T[LANES] + tl.arange(0, T[LANES]))[None, :]
    if T[CHANNELS_LAST]:
        s_w = aligned(s_w, T[ALIGN + 3])
        w, line, c = row % row_w, row // row_w, lane
    else:
        w, line, c = lane, row, row * 0
    depth, height, width = size if OF_INPUTS else out
    ok = (row < rows) & (lane < lanes) & (w < width)
    plane = line // height // depth
    position = (plane, line // height % depth, line % height, w, c)
    origin = plane // planes * s_n + plane % planes * s_p + c * s_c
    strides = (s_p, s_n, s_d, s_h, s_w, s_c)
    return (rows, lanes, size, out, strides), (row, lane, position, ok, origin, line)


@triton.jit
def element(array, tile, OF_INPUTS: tl.constexpr, T: tl.constexpr):
    """Offsets of the elements of a tile in a contiguous array.

    Computed where they are used: until then they would occupy registers.
    """
    _, lanes, size, out, _ = array
    _, _, position, _, _, line = tile
    _, _, _, w, c = position
    width = size[2] if OF_INPUTS else out[2]
    at = line * width + w
    if T[CHANNELS_LAST]:
        at = at * lanes + c
    return at


@triton.jit
def double_lanes(lanes, INDEX: tl.constexpr, T: tl.constexpr):
    """Positions (1, 2 * LANES) of a tile whose lanes are pairs of neighbours along the width."""
    block = tl.program_id(0).to(INDEX) % tl.cdiv(lanes, T[LANES]) * (2 * T[LANES])
    return (block + tl.arange(0, 2 * T[LANES]))[None, :]


@triton.jit
def contiguous_offset(position, shape, lanes, T: tl.constexpr):
    """Offsets of any positions in a contiguous array with these pooled sizes."""
    plane, d, h, w, c = position
    at = ((plane * shape[0] + d) * shape[1] + h) * shape[2] + w
    if T[CHANNELS_LAST]:
        at = at * lanes + c
    return at


@triton.jit
def strided_offset(position, strides):
    """Offsets of these positions from the first elements of their planes."""
    _, d, h, w, _ = position
    return d * strides[2] + h * strides[3] + w * strides[4]


# From an output to its taps


@triton.jit
def window_range(position, size, A: tl.constexpr, W: tl.constexpr):
    """First tap of these windows as a position in the input, and the end of valid positions.

    A position below 0 is padding.
    """
    o = position[A + 1]
    if W[KIND + A] == ADAPTIVE:
        bins: tl.constexpr = W[STRIDE + A]
        return o * size[A] // bins, ((o + 1) * size[A] + bins - 1) // bins
    else:
        return o * W[STRIDE + A] - W[LOW + A], size[A] + 0 * o


@triton.jit
def windows_of(position, size, W: tl.constexpr):
    """`window_range` of these outputs along each axis."""
    first_d, end_d = window_range(position, size, 0, W)
    first_h, end_h = window_range(position, size, 1, W)
    first_w, end_w = window_range(position, size, 2, W)
    return (first_d, first_h, first_w), (end_d, end_h, end_w)


@triton.jit
def taps_of(size, W: tl.constexpr, INDEX: tl.constexpr):
    """The taps of a window along each axis: those of whole planes are not constants.

    Planes have any size, and a constant would be one more kernel to compile for each.
    """
    K = size if W[KERNEL] == 0 else (W[KERNEL], W[KERNEL + 1], W[KERNEL + 2])
    return tl.cast(K[0], INDEX), tl.cast(K[1], INDEX), tl.cast(K[2], INDEX)


@triton.jit
def tap_position(t, window, K, W: tl.constexpr):
    """The input (d, h, w) of tap `t` of `K`, counted in row-major order; it may be padding."""
    first, _ = window
    d = first[0] + t // (K[1] * K[2]) * W[DILATION]
    h = first[1] + t // K[2] % K[1] * W[DILATION + 1]
    w = first[2] + t % K[2] * W[DILATION + 2]
    return d, h, w


@triton.jit
def tap_at(t, window, strides, K, W: tl.constexpr):
    """Offset of tap `t` from the first element of a plane, and whether the tap is an input."""
    d, h, w = tap_position(t, window, K, W)
    _, end = window
    valid = (d >= 0) & (d < end[0]) & (h >= 0) & (h < end[1]) & (w >= 0) & (w < end[2])
    return d * strides[2] + h * strides[3] + w * strides[4], valid


@triton.jit
def state_of(ok, dtype: tl.constexpr, T: tl.constexpr):
    """Zeros to start a `fold` with."""
    return tl.full((T[ROWS], T[LANES], T[TAPS]) if T[TAPS] > 1 else ok.shape, 0, dtype)


@triton.jit
def fold(
    step: tl.constexpr, state, x_ptr, other, array, tile, given, OPTION: tl.constexpr,
    PAIRS: tl.constexpr, UNROLL: tl.constexpr, W: tl.constexpr, INDEX: tl.constexpr,
    T: tl.constexpr,
):  # fmt: skip
    """Reduce the windows of a tile: ``state = step(state, x, t, valid, given, OPTION)``.

    The taps `t` come in row-major order, with the inputs `x` there, or `other` for padding.
    `UNROLL`: without a loop. `PAIRS`: along a width of stride 2, the ``2 * LANES`` neighbours that
    one contiguous load returns are two taps of all windows of a row. If windows are whole planes,
    the state has a third axis, for each of `TAPS` taps at a time.
    """
    rows, lanes, size, _, strides = array
    row, _, position, ok, origin, _ = tile
    window = windows_of(position, size, W)
    if T[TAPS] > 1:
        depth, height, width = size
        total = tl.full((), depth, INDEX) * height * width
        for begin in range(0, total, T[TAPS]):
            t = (begin + tl.arange(0, T[TAPS]).to(INDEX))[None, None, :]
            d, h, w = t // width // height, t // width % height, t % width
            at = d * strides[2] + h * strides[3] + w * strides[4]
            mask = ok[:, :, None] & (t < total)
            x = tl.load(x_ptr + origin[:, :, None] + at, mask=mask, other=other)
            state = step(state, x, t, t < total, given, OPTION)
    elif PAIRS:
        first, _ = window
        WIDTH: tl.constexpr = W[KERNEL + 2]
        LEFT: tl.constexpr = W[LOW + 2]
        both = double_lanes(lanes, INDEX, T)
        for line in tl.static_range(W[KERNEL] * W[KERNEL + 1]):
            d = first[0] + line // W[KERNEL + 1] * W[DILATION]
            h = first[1] + line % W[KERNEL + 1] * W[DILATION + 1]
            there = (d >= 0) & (d < size[0]) & (h >= 0) & (h < size[1]) & (row < rows)
            for k in tl.static_range(-(LEFT % 2), WIDTH, 2):  # from an even input on
                w = both + (k - LEFT)
                inside = there & (w < size[2])
                if k < LEFT:
                    inside &= w >= 0
                at = origin + d * strides[2] + h * strides[3] + w * strides[4]
                pair = tl.load(x_ptr + at, mask=inside, other=other)
                even, odd = tl.split(tl.reshape(pair, (T[ROWS], T[LANES], 2)))
                left = position[3] * 2 + (k - LEFT)
                t = line * WIDTH + k
                if k >= 0:
                    valid = there & (left >= 0) & (left < size[2])
                    state = step(state, even, t, valid, given, OPTION)
                if k + 1 < WIDTH:
                    valid = there & (left + 1 >= 0) & (left + 1 < size[2])
                    state = step(state, odd, t + 1, valid, given, OPTION)
    else:
        K = taps_of(size, W, INDEX)
        STEP: tl.constexpr = W[KERNEL] * W[KERNEL + 1] * W[KERNEL + 2] if UNROLL else 1
        for begin in range(0, K[0] * K[1] * K[2], STEP):
            for j in tl.static_range(STEP):
                at, valid = tap_at(begin + j, window, strides, K, W)
                x = tl.load(x_ptr + origin + at, mask=ok & valid, other=other)
                state = step(state, x, begin + j, valid, given, OPTION)
    return state


# From an input to the windows over it


@triton.jit
def last_window(position, size, out, A: tl.constexpr, W: tl.constexpr):
    """The last window along an axis that can hold these inputs; others follow in descending order.

    It may be past the last one of the axis: then the tap at which a window of stride 1 holds an
    input is a constant.
    """
    i = position[A + 1]
    if W[KIND + A] == ADAPTIVE:
        return ((i + 1) * W[STRIDE + A] + size[A] - 1) // size[A] - 1
    elif W[KIND + A] == FEW:
        return tl.minimum((i + W[LOW + A]) // W[STRIDE + A], out[A] - 1)
    elif W[KIND + A] == PAIRED:
        return i + (W[LOW + A] + 1) // 2
    else:
        return (i + W[LOW + A]) // W[STRIDE + A]


@triton.jit
def tap_of(position, o, size, out, A: tl.constexpr, W: tl.constexpr):
    """The tap at which windows `o` of an axis hold these inputs, and whether they do.

    If inputs are `PAIRED`, position `q` stands for ``2 q`` and ``2 q + 1``: returns the tap of the
    former, and whether the window exists.
    """
    i = position[A + 1]
    inside = (o >= 0) & (o < out[A])
    if W[KIND + A] == ADAPTIVE:
        bins: tl.constexpr = W[STRIDE + A]
        first = o * size[A] // bins
        return i - first, inside & (i >= first) & (i < ((o + 1) * size[A] + bins - 1) // bins)
    elif W[KIND + A] == PAIRED:
        return (i - o) * 2 + W[LOW + A], inside
    elif W[KERNEL + A] == 0:
        return i, inside
    else:
        reach = i + W[LOW + A] - o * W[STRIDE + A]
        inside &= (reach >= 0) & (reach <= (W[KERNEL + A] - 1) * W[DILATION + A])
        if W[DILATION + A] > 1:
            inside &= reach % W[DILATION + A] == 0
        return reach // W[DILATION + A], inside


@triton.jit
def window_over(k, array, tile, W: tl.constexpr):
    """The `k`-th window over each input of a tile, in ascending order.

    Returns the position of its output, the tap at which it holds the input, and whether it does.
    """
    _, _, size, out, _ = array
    _, _, position, ok, _, _ = tile
    plane, _, _, _, c = position
    back_d = W[OVER] - 1 - k // (W[OVER + 1] * W[OVER + 2])
    back_h = W[OVER + 1] - 1 - k // W[OVER + 2] % W[OVER + 1]
    back_w = W[OVER + 2] - 1 - k % W[OVER + 2]
    od = last_window(position, size, out, 0, W) - back_d
    oh = last_window(position, size, out, 1, W) - back_h
    ow = last_window(position, size, out, 2, W) - back_w
    td, in_depth = tap_of(position, od, size, out, 0, W)
    th, in_height = tap_of(position, oh, size, out, 1, W)
    tw, in_width = tap_of(position, ow, size, out, 2, W)
    tap = (td * W[KERNEL + 1] + th) * W[KERNEL + 2] + tw
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
