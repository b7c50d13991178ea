// The forward machine: windows are boxes, so a reduction goes along the width first, then the
// height, then the depth (the order that keeps "first winner" row-major). A reduced row that
// several windows share is computed once and kept while they need it.
#pragma once

#include <type_traits>

#include "memory.hpp"
#include "simd.hpp"
#include "view.hpp"

namespace poolgrad {
namespace {

// A box of outputs of one plane.
struct Tile {
  i64 lo[3], hi[3];
};

inline constexpr i64 kGroup =
    4;  // inputs folded in one sweep, so that the result stays in registers

// Calls fold(group size, is it the first, where it begins) until `taps` inputs are used up; the
// first two are compile-time constants.
template <class F>
void in_groups(i64 taps, F&& fold) {
  const auto sized = [&](auto first, i64 begin, i64 size) {
    switch (size) {
      case 1:
        return fold(Const<1>{}, first, begin);
      case 2:
        return fold(Const<2>{}, first, begin);
      case 3:
        return fold(Const<3>{}, first, begin);
      default:
        return fold(Const<4>{}, first, begin);
    }
  };
  sized(std::true_type{}, 0, smaller(taps, kGroup));
  for (i64 begin = kGroup; begin < taps; begin += kGroup) {
    sized(std::false_type{}, begin, smaller(taps - begin, kGroup));
  }
}

// Rows of one level, kept by key; when no two windows share a row, just kGroup of them in turn.
template <class Op>
struct RowCache {
  typename Op::Row rows{};
  i64* keys = nullptr;
  i64 slots = 0, length = 0;
  bool shared = false;

  RowCache(const Axis& a, i64 rows_per_slot, i64 n, Arena& arena)
      : slots(a.overlap ? smaller(a.in, (a.kernel - 1) * a.dilation + 1) : kGroup),
        length(n),
        shared(a.overlap) {
    rows = Op::take(arena, slots * rows_per_slot * n);
    keys = arena.take<i64>(slots * rows_per_slot);
  }
  void forget(i64 count) {
    for (i64 k = 0; k < count; ++k) keys[k] = -1;
  }
};

template <class Op>
class Separable {
 public:
  using T = typename Op::In;
  using Row = typename Op::Row;

  Separable(const Plan& plan, const View& x, const Tile& tile, Arena& arena)
      : p_(plan),
        x_(x),
        tile_(tile),
        n_((tile.hi[2] - tile.lo[2]) * plan.inner),
        heights_(tile.hi[1] - tile.lo[1]),
        width_rows_(plan.axis[1], 1, n_, arena),
        height_rows_(plan.axis[0], plan.axis[0].overlap ? heights_ : 1, n_, arena) {}

  i64 length() const { return n_; }

  void start(const T* base) {
    base_ = base;
    width_rows_.forget(width_rows_.slots);
    height_rows_.forget(height_rows_.slots * (height_rows_.shared ? heights_ : 1));
  }

  // The reduced row (od, oh) of the tile: in `into`, or where it already lies.
  Row row(i64 od, i64 oh, Row into) {
    const i64 below = p_.axis[1].kernel * p_.axis[2].kernel;
    return along(p_.axis[0], od, below, into, [&](i64 d, i64 turn, const Row* target) {
      if (target && !height_rows_.shared) return height(d, oh, *target);
      const i64 slot =
          height_rows_.shared ? d % height_rows_.slots * heights_ + oh - tile_.lo[1] : turn;
      const Row kept = Op::at(height_rows_.rows, slot * n_);
      if (!height_rows_.shared || height_rows_.keys[slot] != d) {
        const Row made = height(d, oh, kept);
        if (made.v != kept.v) Op::fold_rows(kept, n_, &made, 0, 0, Const<1>{}, std::true_type{});
        height_rows_.keys[slot] = d;
      }
      return kept;
    });
  }

 private:
  Row height(i64 d, i64 oh, Row into) {
    const i64 below = p_.axis[2].kernel;
    return along(p_.axis[1], oh, below, into, [&](i64 h, i64 turn, const Row* target) {
      const T* from = base_ + d * x_.depth + h * x_.height;
      if (target && !width_rows_.shared) {
        width(from, *target);
        return *target;
      }
      const i64 key = d * p_.axis[1].in + h;
      const i64 slot = width_rows_.shared ? h % width_rows_.slots : turn;
      const Row kept = Op::at(width_rows_.rows, slot * n_);
      if (!width_rows_.shared || width_rows_.keys[slot] != key) {
        width(from, kept);
        width_rows_.keys[slot] = key;
      }
      return kept;
    });
  }

  // Folds the rows of output `o` along one axis. get(index, turn, target) makes one of them and
  // says where it lies: in `target` where one is given and the row is not worth keeping.
  template <class Get>
  Row along(const Axis& a, i64 o, i64 places_below, Row into, Get&& get) {
    const Span s = span_of(a, o);
    if (s.taps == 0) {
      Op::clear(into, n_);
      return into;
    }
    if (s.taps == 1 && s.place == 0) return get(s.begin, 0, &into);
    in_groups(s.taps, [&](auto size, auto first, i64 begin) {
      Row rows[kGroup];
      for (i64 t = 0; t < size; ++t) rows[t] = get(s.begin + (begin + t) * a.dilation, t, nullptr);
      Op::fold_rows(into, n_, rows, (s.place + begin) * places_below, places_below, size, first);
    });
    return into;
  }

  // One input row into one row of outputs.
  void width(const T* row, Row into) {
    const Axis& a = p_.axis[2];
    const i64 inner = p_.inner, lo = tile_.lo[2], hi = tile_.hi[2];
    const i64 full_lo = larger(lo, smaller(hi, a.full_lo));
    const i64 full_hi = larger(full_lo, smaller(hi, a.full_hi));
    const i64 gap = a.dilation * x_.width;
    const auto one = [&](i64 o) {
      const Span s = span_of(a, o);
      const Row at = Op::at(into, (o - lo) * inner);
      if (s.taps == 0) return Op::clear(at, inner);
      Op::fold_inputs(at, inner, row + s.begin * x_.width, 1, gap, s.taps, s.place);
    };
    for (i64 o = lo; o < full_lo; ++o) one(o);
    for (i64 o = full_hi; o < hi; ++o) one(o);
    const i64 whole = full_hi - full_lo;
    if (whole == 0) return;
    const T* from = row + span_of(a, full_lo).begin * x_.width;
    const Row at = Op::at(into, (full_lo - lo) * inner);
    if (inner == 1) {
      Op::fold_inputs(at, whole, from, a.stride * x_.width, gap, a.kernel, 0);
    } else if (a.stride == 1 && x_.width == inner) {
      Op::fold_inputs(at, whole * inner, from, 1, gap, a.kernel, 0);
    } else {
      for (i64 o = 0; o < whole; ++o) {
        Op::fold_inputs(Op::at(at, o * inner), inner, from + o * a.stride * x_.width, 1, gap,
                        a.kernel, 0);
      }
    }
  }

  const Plan& p_;
  const View& x_;
  const Tile tile_;
  const i64 n_, heights_;
  const T* base_ = nullptr;
  RowCache<Op> width_rows_, height_rows_;
};

}  // namespace
}  // namespace poolgrad
