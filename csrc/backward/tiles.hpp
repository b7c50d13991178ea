// What both backward passes share: a tile of inputs is written once, row by row, each row as the
// sum of what the output rows that cover it send, in ascending order of outputs: so the result does
// not depend on who computes which tile.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/scratch.hpp"
#include "geometry/view.hpp"
#include "simd/prefetch.hpp"

namespace poolgrad {
namespace {

inline constexpr i64 kMaxStoredPhases = 64;

// Whether phases are worth their memory: not for windows thinly spread over a wide padded input.
[[maybe_unused]] inline bool has_phases(const Axis& a) {
  return a.regular() && a.stride <= kMaxStoredPhases && (a.kernel - 1) * a.dilation <= a.in;
}

// A row of gradient under construction. Along a regular width with stride s, output o sends to
// o * s + place * dilation - lo: kept as s rows (phases) of contiguous sums, interleaved at the
// end.
template <class T>
class Phases {
 public:
  // `used`: whether sums are wanted, or only outputs().
  Phases(const Axis& a, i64 lo, i64 hi, bool used, Arena& arena) : a_(a), lo_(lo), hi_(hi) {
    const Range first = covering(a, lo), last = covering(a, hi - 1);
    outputs_.lo = smaller(first.lo, (lo + a.lo) / a.stride);  // so that no column lies before them
    outputs_.hi = larger(outputs_.lo, last.hi);
    length_ = outputs_.hi - outputs_.lo + (a.kernel - 1) * a.dilation / a.stride + 1;
    sums_ = used ? arena.take<T>(length_ * a.stride) : nullptr;
    for (i64 phase = 0; used && phase < a.stride; ++phase) phases_[phase] = phase_of(phase);
  }

  Range outputs() const { return outputs_; }  // those that reach the columns

  void clear() { std::memset(sums_, 0, static_cast<std::size_t>(length_ * a_.stride) * sizeof(T)); }

  // Where output outputs().lo sends what belongs to a place; the next outputs follow.
  T* at(i64 tap) {
    const i64 away = tap * a_.dilation;
    return sums_ + away % a_.stride * length_ + away / a_.stride;
  }

  // row[start + i * s] = sums[i]; there are no sums beyond `valid`, but there may be columns.
  POOLGRAD_LOOP void store(T* row) const {
    const i64 s = a_.stride, pairs = s == 2 ? this->pairs() : 0;
    if (pairs) interleave_rows(phases_[even()].sums, phases_[1 - even()].sums, row, pairs);
    for (i64 phase = 0; phase < s; ++phase) {
      const Phase& own = phases_[phase];
      for (i64 i = pairs; i < own.valid; ++i) row[own.start + i * s] = own.sums[i];
      for (i64 i = own.valid; i < own.count; ++i) row[own.start + i * s] = T(0);
    }
  }

  // The other way: a row into phases, `fill` where there is no column.
  POOLGRAD_LOOP void load(const T* row, T fill) {
    const i64 s = a_.stride, pairs = s == 2 ? this->pairs() : 0;
    if (pairs) deinterleave_row(row, phases_[even()].sums, phases_[1 - even()].sums, pairs);
    for (i64 phase = 0; phase < s; ++phase) {
      const Phase& own = phases_[phase];
      T* const begin = sums_ + phase * length_;
      std::fill(begin, own.sums, fill);
      for (i64 i = pairs; i < own.valid; ++i) own.sums[i] = row[own.start + i * s];
      std::fill(own.sums + own.valid, begin + length_, fill);
    }
  }

 private:
  // The columns of a phase, and the first of their sums.
  struct Phase {
    i64 start, count, valid;
    T* sums;
  };
  Phase phase_of(i64 phase) const {
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
  Phase phases_[kMaxStoredPhases];
};

// For inputs [lo, hi) of an axis: the outputs whose windows they lie in, ascending, and at which
// place. Worked out once for many planes: divisions are slow.
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

  // No input lies in more than `most` windows.
  InverseTaps(const Axis& a, i64 lo, i64 hi, i64 most, Arena& arena)
      : a_(a),
        lo_(lo),
        hi_(hi),
        all_(arena.take<InverseTap>((hi - lo) * most)),
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

// Where the places of a window lie in memory, counted from where the window begins.
class TapOffsets {
 public:
  static constexpr i64 kMaxTable = 1 << 16;  // more places than this, or than are asked for, are
                                             // computed, not looked up

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

// Where the window of output `o` would begin if all its places held inputs.
[[maybe_unused]] inline i64 start_of(const Axis& a, i64 o) {
  return a.regular() ? o * a.stride - a.lo : span_of(a, o).begin;
}

// Calls each(od, oh) for all output rows that reach a piece, in ascending order.
template <class F>
void each_row_reaching(const Plan& p, const InputTile& tile, F&& each) {
  const Range depths = {covering(p.axis[0], tile.lo[0]).lo, covering(p.axis[0], tile.hi[0] - 1).hi};
  const Range heights = {covering(p.axis[1], tile.lo[1]).lo,
                         covering(p.axis[1], tile.hi[1] - 1).hi};
  for (i64 od = depths.lo; od < depths.hi; ++od) {
    for (i64 oh = heights.lo; oh < heights.hi; ++oh) each(od, oh);
  }
}

// The sums of a piece of a plane, zeroed piecewise just before they are first added to: the array
// itself, or a buffer where its elements are too small for sums.
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

  // The sums, counted from the beginning of the plane.
  T* start(Dense gx, i64 plane) {
    done_ = first_;
    return sums_ = buffer_ ? buffer_ - first_ : as<T>(gx, plane);
  }

  // Zeroes everything that the output row (od, oh) can reach.
  void reach(i64 od, i64 oh) {
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

}  // namespace
}  // namespace poolgrad
