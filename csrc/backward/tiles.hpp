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

// The inverse taps of inputs [lo, hi) of an axis: the outputs whose windows hold an input, in
// ascending order, and its tap index there. Computed once for many planes, because divisions are
// slow.
class InverseTaps {
 public:
  struct InverseTap {
    i64 output, tap;
  };
  struct List {
    const InverseTap *first, *last;
    const InverseTap* begin() const { return first; }
    const InverseTap* end() const { return last; }
  };

  // No input lies in more than `max_windows_of_input` windows.
  InverseTaps(const Axis& a, i64 lo, i64 hi, i64 max_windows_of_input, Arena& arena)
      : a_(a),
        lo_(lo),
        hi_(hi),
        all_(arena.take<InverseTap>((hi - lo) * max_windows_of_input)),
        begins_(arena.take<i64>(hi - lo + 1)) {}

  void fill() {
    i64 count = 0;
    for (i64 i = lo_; i < hi_; ++i) {
      begins_[i - lo_] = count;
      const Range outs = covering(a_, i);
      for (i64 o = outs.lo; o < outs.hi; ++o) {
        const i64 tap = tap_of(a_, span_of(a_, o), i);
        if (tap >= 0) all_[count++] = {o, tap};
      }
    }
    begins_[hi_ - lo_] = count;
  }

  List operator[](i64 i) const { return {all_ + begins_[i - lo_], all_ + begins_[i - lo_ + 1]}; }

 private:
  const Axis& a_;
  i64 lo_, hi_;
  InverseTap* all_;
  i64* begins_;
};

// Offsets of the taps of a window in memory, from its first tap.
class TapOffsets {
 public:
  // Larger windows, and windows with more taps than the call has outputs, use no table.
  static constexpr i64 kMaxTable = 1 << 16;

  TapOffsets(const Plan& p, i64 depth, i64 height, i64 width, Arena& arena)
      : kh_(p.axis[1].kernel),
        kw_(p.axis[2].kernel),
        depth_(depth * p.axis[0].dilation),
        height_(height * p.axis[1].dilation),
        width_(width * p.axis[2].dilation),
        table_(p.taps <= smaller(kMaxTable, p.outer * p.out_plane()) ? arena.take<i64>(p.taps)
                                                                     : nullptr),
        taps_(p.taps) {}

  void fill() {
    for (i64 k = 0; table_ && k < taps_; ++k) table_[k] = compute(k);
  }
  i64 operator[](i64 tap) const { return table_ ? table_[tap] : compute(tap); }

 private:
  i64 compute(i64 tap) const {
    const i64 row = tap / kw_;
    return row / kh_ * depth_ + row % kh_ * height_ + tap % kw_ * width_;
  }

  i64 kh_, kw_, depth_, height_, width_;
  i64* table_;
  i64 taps_;
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

// The position of tap 0 of output `o`, which may lie in the padding.
inline i64 start_of(const Axis& a, i64 o) {
  return a.regular() ? o * a.stride - a.lo : span_of(a, o).begin;
}

// Calls each(od, oh) for all output rows whose windows reach a tile, in ascending order.
template <class F>
void each_row_reaching(const Plan& p, const InputTile& tile, F&& each) {
  const Range depths = {covering(p.axis[0], tile.lo[0]).lo, covering(p.axis[0], tile.hi[0] - 1).hi};
  const Range heights = {covering(p.axis[1], tile.lo[1]).lo,
                         covering(p.axis[1], tile.hi[1] - 1).hi};
  for (i64 od = depths.lo; od < depths.hi; ++od) {
    for (i64 oh = heights.lo; oh < heights.hi; ++oh) each(od, oh);
  }
}

// Sums of a tile of a plane: the array itself, or a buffer if it has another type. Zeroes them row
// by row, just before the first addition, while they are in the cache.
template <class T>
class TileSums {
 public:
  TileSums(const Plan& p, const InputTile& tile, bool in_place, Arena& arena) : p_(p) {
    row_ = p.axis[2].in * p.inner;
    first_ = ((tile.lo[0] * p.axis[1].in) + tile.lo[1]) * row_ + tile.lo[2] * p.inner;
    last_ = ((tile.hi[0] - 1) * p.axis[1].in + tile.hi[1] - 1) * row_ + tile.hi[2] * p.inner;
    buffer_ = in_place ? nullptr : arena.take<T>(last_ - first_);
  }

  i64 first() const { return first_; }
  i64 last() const { return last_; }

  // Returns the sums, indexed from the beginning of the plane.
  T* start(Dense gx, i64 plane) {
    done_ = first_;
    return sums_ = buffer_ ? buffer_ - first_ : elements_of<T>(gx, plane);
  }

  // Zeroes the sums of all inputs that windows of output row (od, oh) may hold.
  void zero_rows_of(i64 od, i64 oh) {
    const Span d = span_of(p_.axis[0], od), h = span_of(p_.axis[1], oh);
    if (d.taps == 0 || h.taps == 0) return;
    const i64 depth = d.begin + (d.taps - 1) * p_.axis[0].dilation;
    const i64 height = h.begin + (h.taps - 1) * p_.axis[1].dilation;
    zero_until((depth * p_.axis[1].in + height + 1) * row_);
  }

  void finish(Dense gx, i64 plane) {
    zero_until(last_);
    if (buffer_) write(gx, plane + first_, buffer_, last_ - first_);
  }

 private:
  void zero_until(i64 end) {
    end = smaller(end, last_);
    if (end <= done_) return;
    prefetch(sums_ + end, (end - done_) * static_cast<i64>(sizeof(T)));
    std::memset(sums_ + done_, 0, static_cast<std::size_t>(end - done_) * sizeof(T));
    done_ = end;
  }

  const Plan& p_;
  i64 row_, first_, last_, done_ = 0;
  T *buffer_, *sums_ = nullptr;
};

// Computes tiles of inputs by a class with Backward(plan, tile, gx, arena) and run(gy, routes,
// divisor, plane).
template <class Backward>
void run_backward(const Work& work, const View& gy, const View* routes, Divisor divisor, Dense gx) {
  over_inputs(
      work,
      [&](const InputTile& tile, Arena& arena) { return Backward(*work.plan, tile, gx, arena); },
      [&](Backward& state, i64 plane, const InputTile&) { state.run(gy, routes, divisor, plane); });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
