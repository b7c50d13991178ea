// Data structures of the backward passes. Each row of a tile of inputs is written once, as a sum
// over the output rows whose windows hold it, in ascending order: the result does not depend on how
// threads divide the tiles.
#pragma once

#include <algorithm>
#include <cstring>

#include "geometry/partition.hpp"
#include "operators/divisor.hpp"
#include "simd/prefetch.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// A route as wide as a gradient, so that a comparison of routes is a mask of gradients.
template <class T>
using WideRoute = std::conditional_t<sizeof(T) == 4, u32, std::uint64_t>;

inline constexpr i64 kMaxStoredPhases = 64;

// Whether phases are worth their memory, which grows with the reach of a window.
inline bool has_phases(const Axis& a) {
  return a.regular() && a.stride <= kMaxStoredPhases && (a.kernel - 1) * a.dilation <= a.in;
}

// Polyphase sums of a row of input gradients. With stride s, tap t of output o is input
// o * s + t * dilation - lo: inputs that are congruent modulo s are stored contiguously (a phase),
// and phases are interleaved at the end.
template <class T>
class Phases {
 public:
  // used: whether sums are stored, else only outputs() is valid.
  Phases(const Axis& a, i64 lo, i64 hi, bool used, Arena& arena) : a_(a), lo_(lo), hi_(hi) {
    const Range first = covering(a, lo), last = covering(a, hi - 1);
    outputs_.lo = smaller(first.lo, (lo + a.lo) / a.stride);  // shifts of phases are not negative
    outputs_.hi = larger(outputs_.lo, last.hi);
    length_ = outputs_.hi - outputs_.lo + (a.kernel - 1) * a.dilation / a.stride + 1;
    sums_ = used ? arena.take<T>(length_ * a.stride) : nullptr;
    for (i64 phase = 0; used && phase < a.stride; ++phase) phases_[phase] = phase_of(phase);
  }

  Range outputs() const { return outputs_; }  // outputs whose windows reach the columns

  void clear() { std::memset(sums_, 0, static_cast<std::size_t>(length_ * a_.stride) * sizeof(T)); }

  // The sum of input `tap` of output outputs().lo; those of the next outputs follow.
  T* at(i64 tap) {
    const i64 away = tap * a_.dilation;
    return sums_ + away % a_.stride * length_ + away / a_.stride;
  }

  // Interleaves phases: row[start + i * s] = sums[i]; columns beyond `valid` are zero.
  POOLGRAD_LOOP void store(T* row) const {
    const i64 s = a_.stride, pairs = s == 2 ? this->pairs() : 0;
    if (pairs) interleave_rows(phases_[even()].sums, phases_[1 - even()].sums, row, pairs);
    for (i64 phase = 0; phase < s; ++phase) {
      const StoredPhase& stored = phases_[phase];
      for (i64 i = pairs; i < stored.valid; ++i) row[stored.start + i * s] = stored.sums[i];
      for (i64 i = stored.valid; i < stored.count; ++i) row[stored.start + i * s] = T(0);
    }
  }

  // Divides a row into phases; elements without a column are `fill`.
  POOLGRAD_LOOP void load(const T* row, T fill) {
    const i64 s = a_.stride, pairs = s == 2 ? this->pairs() : 0;
    if (pairs) deinterleave_row(row, phases_[even()].sums, phases_[1 - even()].sums, pairs);
    for (i64 phase = 0; phase < s; ++phase) {
      const StoredPhase& stored = phases_[phase];
      T* const begin = sums_ + phase * length_;
      std::fill(begin, stored.sums, fill);
      for (i64 i = pairs; i < stored.valid; ++i) stored.sums[i] = row[stored.start + i * s];
      std::fill(stored.sums + stored.valid, begin + length_, fill);
    }
  }

 private:
  // The columns of a phase, and the first of their sums.
  struct StoredPhase {
    i64 start, count, valid;
    T* sums;
  };
  StoredPhase phase_of(i64 phase) const {
    const i64 s = a_.stride, shift = lo_ + a_.lo - outputs_.lo * s, n = hi_ - lo_;
    const i64 start = (phase - shift % s + s) % s;
    const i64 count = start < n ? (n - start + s - 1) / s : 0;
    const i64 from = smaller(length_, (start + shift) / s);
    return {start, count, smaller(count, length_ - from), sums_ + phase * length_ + from};
  }
  i64 even() const { return phases_[0].start; }  // of two phases, that of the first column
  i64 pairs() const { return smaller(phases_[0].valid, phases_[1].valid); }

  const Axis& a_;
  i64 lo_, hi_, length_ = 0;
  Range outputs_{};
  T* sums_ = nullptr;
  StoredPhase phases_[kMaxStoredPhases];
};

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

}  // namespace poolgrad::inline POOLGRAD_ISA
