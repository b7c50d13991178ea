// Data structures of the backward passes. Each row of a tile of inputs is computed by one thread,
// as a sum over the output rows whose windows hold it, in ascending order: the result does not
// depend on how threads divide the tiles.
#pragma once

#include <type_traits>

#include "geometry/partition.hpp"
#include "operators/divisor.hpp"
#include "simd/prefetch.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// A route as wide as a gradient, so that a comparison of routes is a mask of gradients.
template <class T>
using WideRoute = std::conditional_t<sizeof(T) == 4, u32, std::uint64_t>;

// The outputs along an axis whose windows reach inputs [lo, hi).
inline Range reaching(const Axis& a, i64 lo, i64 hi) {
  const i64 first = covering(a, lo).lo;
  return {first, larger(first, covering(a, hi - 1).hi)};
}

// Polyphase rows: columns that are congruent modulo the stride (a phase) are neighbours in memory,
// so that one vector holds the same tap of neighbouring outputs.
inline constexpr i64 kMaxPhases = 64, kMaxUnrolledPhases = 8;

// Computes to[k][i] = from[i * phases + k] for a row of n elements.
template <class T>
POOLGRAD_LOOP void separate_phases(const T* from, i64 phases, T* const* to, i64 n) {
  const i64 pairs = phases == 2 ? n / 2 : 0;
  if (pairs) deinterleave_row(from, to[0], to[1], pairs);
  for (i64 k = 0; k < phases; ++k) {
    for (i64 i = pairs; i * phases + k < n; ++i) to[k][i] = from[i * phases + k];
  }
}

// Computes to[i * phases + k] = from[k][i] for a row of n elements. Adds 0, so that -0.0 becomes
// 0.0, as in sums that begin with 0. N: the phases, if there are at most kMaxUnrolledPhases.
template <i64 N = 1, class T>
void interleave_phases(const T* const* from, i64 phases, T* to, i64 n) {
  if constexpr (N <= kMaxUnrolledPhases) {
    if (phases > N) return interleave_phases<N + 1>(from, phases, to, n);
    phases = N;
  }
  i64 done = 0;
  if constexpr (N == 2) {
    done = n / 2;
    interleave_rows(from[0], from[1], to, done);
  }
  for (i64 i = done; i < n / phases; ++i) {
    POOLGRAD_UNROLL
    for (i64 k = 0; k < phases; ++k) to[i * phases + k] = from[k][i] + T(0);
  }
  for (i64 i = n / phases * phases; i < n; ++i) to[i] = from[i % phases][i / phases] + T(0);
}

// Calls each(od, oh, tap) in ascending order for the output rows whose windows hold input row (d,
// h); tap: the first of this row.
template <class F>
void each_row_holding(const Plan& p, i64 d, i64 h, F&& each) {
  const Axis &depth = p.axis[0], &height = p.axis[1];
  const Range depths = covering(depth, d), heights = covering(height, h);
  for (i64 od = depths.lo; od < depths.hi; ++od) {
    const i64 kd = tap_of(depth, span_of(depth, od), d);
    if (kd < 0) continue;
    for (i64 oh = heights.lo; oh < heights.hi; ++oh) {
      const i64 kh = tap_of(height, span_of(height, oh), h);
      if (kh >= 0) each(od, oh, (kd * height.kernel + kh) * p.axis[2].kernel);
    }
  }
}

// Calls each(output, window, first, end) for the windows of outputs along the width that hold an
// input of columns [lo, hi): valid inputs first ... end of the window. output: counted from
// outs.lo.
template <class F>
void each_window_part(const Axis& width, Range outs, i64 lo, i64 hi, F&& each) {
  const auto taps_before = [&](i64 distance) {  // divisions are slow, and rarely needed
    return width.dilation == 1 ? distance : ceil_div(distance, width.dilation);
  };
  for (i64 o = outs.lo; o < outs.hi; ++o) {
    const Span s = span_of(width, o);
    const i64 first = larger(0, taps_before(lo - s.begin));
    const i64 end = smaller(s.taps, taps_before(hi - s.begin));
    if (first < end) each(o - outs.lo, s, first, end);
  }
}

// The first element of a tile, in its plane, and the number of elements: a tile is contiguous.
inline i64 first_input(const Plan& p, const InputTile& tile) {
  return ((tile.lo[0] * p.axis[1].in + tile.lo[1]) * p.axis[2].in + tile.lo[2]) * p.inner;
}
inline i64 inputs_of(const Plan& p, const InputTile& tile) {
  i64 n = p.inner;
  for (int a = 0; a < 3; ++a) n *= tile.hi[a] - tile.lo[a];
  return n;
}

// Prefetches what follows `columns` of row (d, h).
POOLGRAD_INLINE void prefetch_after(const View& v, const char* plane, i64 d, i64 h, Range columns,
                                    i64 inner) {
  const i64 size = size_of(v.dtype);
  const i64 at = (d * v.depth + h * v.height + columns.lo * v.width) * size;
  prefetch(plane + at + kPrefetchBytes, (columns.hi - columns.lo) * inner * size);
}

// Computes all tiles with Backward. source: the routes, the winners or the divisor.
template <class Backward, class Source>
void run_backward(const Work& work, const View& gy, const Source& source, Dense gx) {
  over_states<InputTile, Backward>(
      work, false, [&](Backward& state, i64 plane) { state.run(gy, source, plane); }, gx);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
