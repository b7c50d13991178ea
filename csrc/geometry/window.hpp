// Computes which inputs each window holds: along one axis, and in a whole array.
#pragma once

#include <utility>

#include "base/common.hpp"

namespace poolgrad {

// The route of a window without an input.
inline constexpr u32 kNowhere = 0xFFFFFFFFu;

// The valid inputs of one window along one axis: begin, begin + dilation, ... (`taps` of them).
struct Span {
  i64 begin;      // first valid input
  i64 first_tap;  // its tap index
  i64 taps;       // valid inputs of the window
  i64 extent;     // taps inside the padded input
};

// Windows along one axis: fixed (of one size, at equal distances), adaptive (bins, which may
// overlap) or fractional (of one size, at the positions of a table, which differs from plane to
// plane). Fixed and adaptive windows are computed one by one (span_of): they need no memory,
// however long the axis is.
struct Axis {
  i64 in = 1, out = 1;
  i64 kernel = 1, stride = 1, lo = 0, hi = 0, dilation = 1;  // lo, hi: padding
  i64 full_lo = 0, full_hi = 1;  // outputs whose window holds `kernel` valid inputs, evenly spaced
  bool overlap = false;          // some input lies in more than one window
  bool adaptive = false, fractional = false;
  const i64* table = nullptr;  // fractional: the first input of each window, in ascending order
  // Adaptive: bin b holds the inputs from floor(b * n / bins) to ceil((b + 1) * n / bins).
  i64 bins = 1;
  // An axis may be a slice of a larger one, of m windows over n inputs: output 0 is output `first`
  // of the larger axis, input 0 is input `before`.
  i64 first = 0, before = 0, n = 1, m = 1;

  // Whether windows are fixed. (Inlined: units of different instruction sets share no function.)
  POOLGRAD_INLINE bool regular() const { return !adaptive && !fractional; }
};

// The shape and the windows of a call. The pooled axes are depth, height and width; missing ones
// have one window of one input. `inner` is the size of an axis that is contiguous in memory and not
// pooled (channels last), else 1.
struct Plan {
  Axis axis[3];
  i64 inner = 1;
  i64 outer = 1;                      // product of the leading axes
  int pooled_axes[3] = {-1, -1, -1};  // positions of depth, height, width, -1 for missing
  int inner_axis = -1;
  bool inner_is_channel = false;  // else a plane's channel is its index modulo the channels
  i64 taps = 1;                   // taps of a window

  i64 in_rows() const { return axis[0].in * axis[1].in; }
  i64 in_plane() const { return in_rows() * axis[2].in * inner; }
  i64 out_row() const { return axis[2].out * inner; }
  POOLGRAD_INLINE i64 output_index(i64 od, i64 oh, i64 ow) const {
    return (od * axis[1].out + oh) * out_row() + ow * inner;
  }
  i64 out_plane() const { return axis[0].out * axis[1].out * out_row(); }
  i64 winner_bytes() const { return (taps + 7) / 8; }  // ties="split": one bit for each tap
};

inline namespace POOLGRAD_ISA {

// A box of the outputs of a plane: [lo, hi) along depth, height and width. planes: of its task.
struct Tile {
  i64 lo[3], hi[3], planes;
};

// A box of the inputs of a plane: [lo, hi) along the outermost pooled axis that has more than one
// input, all inputs along the other axes. So it is contiguous in a dense plane.
struct InputTile {
  i64 lo[3], hi[3], planes;
};

// Outputs [lo, hi).
struct Range {
  i64 lo, hi;
};

// Distance from the first tap of a window to its last.
inline i64 reach(const Axis& a) { return (a.kernel - 1) * a.dilation; }

// Length from the first tap of a window to the last tap of the last of `outputs` windows.
inline i64 covered_length(const Axis& a, i64 outputs) {
  return (outputs - 1) * a.stride + reach(a) + 1;
}

// Completes an axis of fixed windows; `a`: in, out and kernel. A negative `lo` skips the first
// inputs.
inline Axis regular_axis(Axis a, i64 stride, i64 lo, i64 hi, i64 dilation) {
  a.stride = stride, a.lo = lo, a.hi = hi, a.dilation = dilation;
  a.full_lo = larger(0, smaller(a.out, ceil_div(a.lo, a.stride)));
  a.full_hi =
      larger(a.full_lo, smaller(a.out, floor_div(a.in - 1 - reach(a) + a.lo, a.stride) + 1));
  a.overlap = a.m > 1 && a.stride <= reach(a);
  return a;
}

// The transposed axis of fixed windows of stride 1: its window of an input holds the outputs whose
// windows hold this input. The gradient of an average is an average of gradients over it.
inline Axis transposed(const Axis& a) {
  Axis t = a;
  std::swap(t.in, t.out), std::swap(t.n, t.m), std::swap(t.first, t.before);
  return regular_axis(t, 1, reach(a) - a.lo, 0, a.dilation);
}

// Whether an axis has one input and one window, without padding.
inline bool is_point(const Axis& a) {
  return a.regular() && a.n == 1 && a.m == 1 && a.kernel == 1 && a.lo == 0;
}

// Whether all windows of an axis are full.
inline bool is_unpadded(const Axis& a) { return a.full_lo == 0 && a.full_hi == a.out; }

// The window of output `o`.
POOLGRAD_INLINE Span span_of(const Axis& a, i64 o) {
  if (a.adaptive) {
    const i64 b = a.first + o, begin = b * a.n / a.bins;
    const i64 taps = ceil_div((b + 1) * a.n, a.bins) - begin;
    return {begin - a.before, 0, taps, taps};
  }
  if (a.fractional) return {a.table[o], 0, a.kernel, a.kernel};
  const i64 start = o * a.stride - a.lo;
  const auto taps_within = [&](i64 distance) {  // divisions are slow, and rarely needed
    return a.dilation == 1 ? distance : ceil_div(distance, a.dilation);
  };
  const i64 first_tap = start < 0 ? taps_within(-start) : 0;
  const i64 end = smaller(a.kernel, taps_within(a.in - start));
  const i64 extent = smaller(a.kernel, taps_within(a.in + a.hi - start));
  const i64 taps = larger(0, end - first_tap);
  return {taps ? start + first_tap * a.dilation : 0, first_tap, taps, extent};
}

// The position of tap 0 of output `o`, which may lie in the padding.
inline i64 start_of(const Axis& a, i64 o) {
  return a.regular() ? o * a.stride - a.lo : span_of(a, o).begin;
}

// The inputs from the first to the last of the windows of outputs [lo, hi).
inline Range inputs_of(const Axis& a, i64 lo, i64 hi) {
  const i64 begin = smaller(a.in, larger(0, start_of(a, lo))), last = start_of(a, hi - 1);
  const i64 end = last + (a.regular() ? reach(a) + 1 : span_of(a, hi - 1).taps);
  return {begin, larger(begin, smaller(a.in, end))};
}

// Binary search: the first output of a fractional axis whose window begins beyond input `i`.
inline i64 first_beyond(const Axis& a, i64 i) {
  i64 lo = 0, hi = a.out;
  while (lo < hi) {
    const i64 middle = (lo + hi) / 2;
    if (a.table[middle] > i) hi = middle;
    else lo = middle + 1;
  }
  return lo;
}

// A range of outputs that contains all whose window holds input `i`.
inline Range covering(const Axis& a, i64 i) {
  if (a.adaptive) {
    const i64 at = a.before + i;
    return {larger(0, at * a.bins / a.n - a.first),
            smaller(a.out, ceil_div((at + 1) * a.bins, a.n) - a.first)};
  }
  if (a.out == 1) return {0, 1};
  if (a.fractional) return {first_beyond(a, i - a.kernel), first_beyond(a, i)};
  if (a.stride == 1) return {larger(0, i + a.lo - reach(a)), smaller(a.out, i + a.lo + 1)};
  const i64 lo = larger(0, ceil_div(i + a.lo - reach(a), a.stride));
  const i64 hi = smaller(a.out, floor_div(i + a.lo, a.stride) + 1);
  return {lo, larger(lo, hi)};
}

// Returns an upper bound of the number of valid inputs of a window, padding excluded.
inline i64 max_valid_inputs(const Plan& p) {
  i64 most = 1;
  for (const Axis& a : p.axis) most *= smaller(a.kernel, ceil_div(a.n, a.dilation));
  return most;
}

// The tap of window `s` at input `i`, or -1.
inline i64 tap_of(const Axis& a, const Span& s, i64 i) {
  const i64 away = i - s.begin;
  if (away < 0 || (a.dilation > 1 && away % a.dilation)) return -1;
  const i64 tap = a.dilation > 1 ? away / a.dilation : away;
  return tap < s.taps ? s.first_tap + tap : -1;
}

// Calls each(first tap, d, h) for the valid input rows (d, h) of output row (od, oh).
template <class F>
void each_line(const Plan& p, i64 od, i64 oh, F&& each) {
  const Span sd = span_of(p.axis[0], od), sh = span_of(p.axis[1], oh);
  for (i64 i = 0; i < sd.taps; ++i) {
    for (i64 j = 0; j < sh.taps; ++j) {
      each(((sd.first_tap + i) * p.axis[1].kernel + sh.first_tap + j) * p.axis[2].kernel,
           sd.begin + i * p.axis[0].dilation, sh.begin + j * p.axis[1].dilation);
    }
  }
}

}  // namespace POOLGRAD_ISA
}  // namespace poolgrad
