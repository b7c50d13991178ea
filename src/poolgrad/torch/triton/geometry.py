"""Windows inside kernels: from an output to its taps, and from an input to the windows over it.

Every kernel works on a tile of ``ROWS x LANES`` elements of an array that has five axes in memory,
(planes, depth, height, width, channels). The channels are those that lie innermost in memory; if
none do, there is one. Lanes are neighbours in memory: channels if there are several
(``CHANNELS_LAST``), else positions along the width. A row is everything else.
"""

import triton
import triton.language as tl

# What places the windows of an axis: equal distances, adaptive bins, or a table of first inputs.
REGULAR = tl.constexpr(0)
ADAPTIVE = tl.constexpr(1)
TABLE = tl.constexpr(2)


@triton.jit
def aligned(n, UNIT: tl.constexpr):
    """The multiple `n` of `UNIT`, so that the compiler knows it: wide accesses need that."""
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
def position(row, lane, depth, height, width, CHANNELS_LAST: tl.constexpr):
    """(plane, d, h, w, channel) of the elements of a tile, in an array with these pooled sizes."""
    if CHANNELS_LAST:
        w, line, c = row % width, row // width, lane
    else:
        w, line, c = lane, row, row * 0
    return line // height // depth, line // height % depth, line % height, w, c


@triton.jit
def element(row, w, c, lanes, width, row_w, CHANNELS_LAST: tl.constexpr):
    """Where the elements of a tile lie in a contiguous array of this width.

    `row_w`: the rows for each line of the width, a few more if routes are packed.
    """
    if CHANNELS_LAST:
        return (row // row_w * width + w) * lanes + c
    else:
        return row * width + w


@triton.jit
def window_range(o, size, first_ptr, table, S: tl.constexpr, LO: tl.constexpr, KIND: tl.constexpr):
    """First tap of window `o` as a position in the input, and the end of its valid positions.

    `S`: the stride, or the number of adaptive bins. `first_ptr + table` : the first inputs of the
    windows of this axis, if those come from a table. A position below 0 is padding.
    """
    if KIND == ADAPTIVE:
        return o * size // S, ((o + 1) * size + S - 1) // S
    elif KIND == TABLE:
        return tl.load(first_ptr + table + o), size + 0 * o
    else:
        return o * S - LO, size + 0 * o


@triton.jit
def windows_of(
    plane, od, oh, ow, in_d, in_h, in_w, out_d, out_h, first_ptr, tables,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
):  # fmt: skip
    """`window_range` of these outputs along each axis; `tables`: entries of a plane's table."""
    table = plane * tables
    first_d, end_d = window_range(od, in_d, first_ptr, table, SD, LD, KIND_D)
    first_h, end_h = window_range(oh, in_h, first_ptr, table + out_d, SH, LH, KIND_H)
    first_w, end_w = window_range(ow, in_w, first_ptr, table + out_d + out_h, SW, LW, KIND_W)
    return first_d, end_d, first_h, end_h, first_w, end_w


@triton.jit
def tap_at(
    t, first_d, end_d, first_h, end_h, first_w, end_w, s_d, s_h, s_w,
    KH: tl.constexpr, KW: tl.constexpr, DD: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr,
):  # fmt: skip
    """Offset of tap `t` from the first element of a plane, and whether the tap is an input."""
    d = first_d + t // (KH * KW) * DD
    h = first_h + t // KW % KH * DH
    w = first_w + t % KW * DW
    valid = (d >= 0) & (d < end_d) & (h >= 0) & (h < end_h) & (w >= 0) & (w < end_w)
    return d * s_d + h * s_h + w * s_w, valid


@triton.jit
def last_window(i, size, S: tl.constexpr, LO: tl.constexpr, KIND: tl.constexpr):
    """The last window that can hold input `i`; those before it follow in descending order."""
    if KIND == ADAPTIVE:
        return ((i + 1) * S + size - 1) // size - 1
    else:
        return (i + LO) // S


@triton.jit
def last_windows(
    plane, d, h, w, ok, in_d, in_h, in_w, last_ptr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    LD: tl.constexpr, LH: tl.constexpr, LW: tl.constexpr,
    KIND_D: tl.constexpr, KIND_H: tl.constexpr, KIND_W: tl.constexpr,
):  # fmt: skip
    """`last_window` over these inputs along each axis; from a table if windows come from one."""
    if KIND_W == TABLE:
        table = plane * (in_d + in_h + in_w)
        last_d = tl.load(last_ptr + table + d, mask=ok, other=0)
        last_h = tl.load(last_ptr + table + in_d + h, mask=ok, other=0)
        last_w = tl.load(last_ptr + table + in_d + in_h + w, mask=ok, other=0)
        return last_d, last_h, last_w
    else:
        return (
            last_window(d, in_d, SD, LD, KIND_D),
            last_window(h, in_h, SH, LH, KIND_H),
            last_window(w, in_w, SW, LW, KIND_W),
        )


@triton.jit
def tap_of(
    i, o, size, outputs, first_ptr, table,
    K: tl.constexpr, S: tl.constexpr, LO: tl.constexpr, DIL: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The tap at which window `o` holds input `i`, and whether it does."""
    inside = (o >= 0) & (o < outputs)
    if KIND == REGULAR:
        reach = i + LO - o * S
        inside &= (reach >= 0) & (reach <= (K - 1) * DIL)
        if DIL > 1:
            inside &= reach % DIL == 0
        return reach // DIL, inside
    elif KIND == ADAPTIVE:
        first = o * size // S
        return i - first, inside & (i >= first) & (i < ((o + 1) * size + S - 1) // S)
    else:
        tap = i - tl.load(first_ptr + table + o, mask=inside, other=0)
        return tap, inside & (tap >= 0) & (tap < K)


@triton.jit
def wide(value):
    """The value in the type that is computed in: float32 for the smaller floating types."""
    if value.dtype == tl.float16 or value.dtype == tl.bfloat16:
        return value.to(tl.float32)
    else:
        return value


@triton.jit
def divided(a, b):
    """a / b, rounded to nearest in float32, too, where Triton's own division need not be."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b.to(tl.float32))
    else:
        return a / b
