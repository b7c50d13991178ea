// One axis of windows, and how the windows of a whole array lie: no arithmetic on values here.
#pragma once

#include <cstdint>

// Inner loops, and constructors of per-task state, are compiled once, not into each of their
// callers: a kernel file stays small.
#define POOLGRAD_LOOP __attribute__((noinline))
// What they are made of is compiled into each: a call would cost as much as its work.
#define POOLGRAD_INLINE inline __attribute__((always_inline))
#define POOLGRAD_UNROLL _Pragma("GCC unroll 32")

namespace poolgrad {

using i64 = std::int64_t;
using u32 = std::uint32_t;

// A place that no input holds: "routed nowhere".
inline constexpr u32 kNowhere = 0xFFFFFFFFu;

// The real inputs of one window along one axis: begin, begin + dilation, ... (`taps` of them).
struct Span {
  i64 begin;   // first real input
  i64 place;   // which place of the window that input takes
  i64 taps;    // how many real inputs the window holds
  i64 extent;  // how many of its places lie inside the padded input
};

// Windows along one axis: of one size at equal distances, adaptive bins (which may overlap), or of
// one size where a table says (fractional pooling: another table for each plane). The first two are
// computed when asked for, so that an axis costs no memory however long it is.
struct Axis {
  i64 in = 1, out = 1;
  i64 kernel = 1, stride = 1, lo = 0, hi = 0, dilation = 1;
  i64 full_lo = 0, full_hi = 1;  // outputs whose window holds `kernel` real inputs, evenly spaced
  bool overlap = false;          // some input lies in more than one window
  bool adaptive = false;         // bins: see below
  bool placed = false;           // windows begin where a table says,
  const i64* table = nullptr;    // in ascending order
  // Bin b holds the inputs from floor(b * n / bins) to ceil((b + 1) * n / bins).
  i64 bins = 1;
  // Some of m windows over n inputs, which are treated as all are: output 0 is number `first`,
  // input 0 number `before`.
  i64 first = 0, before = 0, n = 1, m = 1;

  // Inlined everywhere: units of different instruction sets share no function.
  POOLGRAD_INLINE bool regular() const { return !adaptive && !placed; }
};

// Everything a kernel needs to know about an array besides its strides. The three pooled axes are
// depth, height, width (missing ones have one window of one input); `inner` is the size of an axis
// that is contiguous in memory and not pooled (channels last), 1 when there is none.
struct Plan {
  Axis axis[3];
  i64 inner = 1;
  i64 outer = 1;                      // product of the leading axes
  int pooled_axes[3] = {-1, -1, -1};  // positions of depth, height, width, -1 for missing
  int inner_axis = -1;
  bool inner_is_channel = false;  // else a plane's channel is its number modulo the channels
  i64 places = 1;                 // places in a window
  int route_bytes = 1;            // bytes of one route

  i64 in_rows() const { return axis[0].in * axis[1].in; }
  i64 in_plane() const { return in_rows() * axis[2].in * inner; }
  i64 out_row() const { return axis[2].out * inner; }
  i64 out_plane() const { return axis[0].out * axis[1].out * out_row(); }
  i64 winner_bytes() const { return (places + 7) / 8; }  // ties="split": one bit a place
};

// Everything below has internal linkage: kernels.cpp is compiled once per instruction set, and the
// linker must never merge a function compiled for one with the same function compiled for another.
namespace {

[[maybe_unused]] constexpr i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
[[maybe_unused]] constexpr i64 larger(i64 a, i64 b) { return a > b ? a : b; }
[[maybe_unused]] inline i64 ceil_div(i64 a, i64 b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
[[maybe_unused]] inline i64 floor_div(i64 a, i64 b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// An axis of windows of one size at equal distances; `a`: in, out and kernel. A negative `lo`
// leaves the first inputs out.
[[maybe_unused]] inline Axis regular_axis(Axis a, i64 stride, i64 lo, i64 hi, i64 dilation) {
  a.stride = stride, a.lo = lo, a.hi = hi, a.dilation = dilation;
  const i64 reach = (a.kernel - 1) * a.dilation;
  a.full_lo = larger(0, smaller(a.out, ceil_div(a.lo, a.stride)));
  a.full_hi = larger(a.full_lo, smaller(a.out, floor_div(a.in - 1 - reach + a.lo, a.stride) + 1));
  a.overlap = a.m > 1 && a.stride <= reach;
  return a;
}

// The axis whose windows over the outputs are the outputs that hold each input: windows of stride 1
// share so much that the gradient of an average is such an average of gradients.
[[maybe_unused]] inline Axis transposed(const Axis& a) {
  Axis t = a;
  t.in = a.out;
  t.out = a.in;
  t.n = a.m;
  t.m = a.n;
  t.first = a.before;
  t.before = a.first;
  const i64 lo = (a.kernel - 1) * a.dilation - a.lo;
  return regular_axis(t, 1, lo, 0, a.dilation);
}

// Whether an axis is one input, the window of the one output: nothing, no padding either, is there
// beside it.
[[maybe_unused]] inline bool is_point(const Axis& a) {
  return a.regular() && a.n == 1 && a.m == 1 && a.kernel == 1 && a.lo == 0;
}

// The window of output `o`.
[[maybe_unused]] inline Span span_of(const Axis& a, i64 o) {
  if (a.adaptive) {
    const i64 b = a.first + o, begin = b * a.n / a.bins;
    const i64 taps = ceil_div((b + 1) * a.n, a.bins) - begin;
    return {begin - a.before, 0, taps, taps};
  }
  if (a.placed) return {a.table[o], 0, a.kernel, a.kernel};
  const i64 start = o * a.stride - a.lo;
  const auto places_before = [&](i64 distance) {  // divisions are slow, and rarely needed
    return a.dilation == 1 ? distance : ceil_div(distance, a.dilation);
  };
  const i64 place = start < 0 ? places_before(-start) : 0;
  const i64 end = smaller(a.kernel, places_before(a.in - start));
  const i64 extent = smaller(a.kernel, places_before(a.in + a.hi - start));
  const i64 taps = larger(0, end - place);
  return {taps ? start + place * a.dilation : 0, place, taps, extent};
}

// The first output whose window begins beyond input `i`, by the table.
[[maybe_unused]] inline i64 first_beyond(const Axis& a, i64 i) {
  i64 lo = 0, hi = a.out;
  while (lo < hi) {
    const i64 middle = (lo + hi) / 2;
    if (a.table[middle] > i) hi = middle;
    else lo = middle + 1;
  }
  return lo;
}

// Outputs [first, second) among which are all whose window reaches input `i`.
struct Range {
  i64 lo, hi;
};

[[maybe_unused]] inline Range covering(const Axis& a, i64 i) {
  if (a.adaptive) {
    const i64 at = a.before + i;
    return {larger(0, at * a.bins / a.n - a.first),
            smaller(a.out, ceil_div((at + 1) * a.bins, a.n) - a.first)};
  }
  if (a.out == 1) return {0, 1};
  if (a.placed) return {first_beyond(a, i - a.kernel), first_beyond(a, i)};
  const i64 reach = (a.kernel - 1) * a.dilation;
  if (a.stride == 1) return {larger(0, i + a.lo - reach), smaller(a.out, i + a.lo + 1)};
  const i64 lo = larger(0, ceil_div(i + a.lo - reach, a.stride));
  const i64 hi = smaller(a.out, floor_div(i + a.lo, a.stride) + 1);
  return {lo, larger(lo, hi)};
}

// How many real inputs one of all windows may hold: padding is no part of it, however many places
// it takes.
[[maybe_unused]] inline i64 most_real(const Plan& p) {
  i64 most = 1;
  for (const Axis& a : p.axis) most *= smaller(a.kernel, ceil_div(a.n, a.dilation));
  return most;
}

// The place that input `i` takes in the window `s`, or -1.
[[maybe_unused]] inline i64 place_of(const Axis& a, const Span& s, i64 i) {
  const i64 away = i - s.begin;
  if (away < 0 || (a.dilation > 1 && away % a.dilation)) return -1;
  const i64 tap = a.dilation > 1 ? away / a.dilation : away;
  return tap < s.taps ? s.place + tap : -1;
}

// Calls each(first place, its input row (d, h)) for the real input rows of output row (od, oh).
template <class F>
void each_line(const Plan& p, i64 od, i64 oh, F&& each) {
  const Span sd = span_of(p.axis[0], od), sh = span_of(p.axis[1], oh);
  for (i64 i = 0; i < sd.taps; ++i) {
    for (i64 j = 0; j < sh.taps; ++j) {
      each(((sd.place + i) * p.axis[1].kernel + sh.place + j) * p.axis[2].kernel,
           sd.begin + i * p.axis[0].dilation, sh.begin + j * p.axis[1].dilation);
    }
  }
}

}  // namespace
}  // namespace poolgrad
