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

// Turns the order of numbers round; integers without overflow.
template <class A>
A opposite(A value) {
  if constexpr (kFloat<A>) return -value;
  else return ~value;
}

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

// Reads input rows as numbers of type A, turned round for a minimum; copies only what it has to.
template <class A>
class Reader {
 public:
  Reader(const Plan& p, const View& x, i64 lo, i64 hi, bool negate, Arena& arena)
      : x_(x),
        inner_(p.inner),
        negate_(negate),
        direct_(!negate && x.dtype == DtypeOf<A>::value && (p.inner == 1 || x.inner == 1)) {
    const Axis& a = p.axis[2];
    hi_ = 0, lo_ = a.in;
    for (i64 o : {lo, hi - 1}) {  // the outer windows, or what is real of them, span the others
      const Range r = reach(a, o);
      lo_ = smaller(lo_, r.lo), hi_ = larger(hi_, r.hi);
    }
    buffer_ = direct_ ? nullptr : arena.take<A>(larger(0, hi_ - lo_) * p.inner);
  }

  i64 step() const { return direct_ ? x_.width : inner_; }  // from one column to the next

  // Row (d, h); the pointer is to column 0.
  const A* row(const char* plane, i64 d, i64 h) {
    if (direct_) return reinterpret_cast<const A*>(plane) + d * x_.depth + h * x_.height;
    if (hi_ <= lo_) return buffer_;
    const A* from = row_of(x_, plane, inner_, d, h, lo_, hi_, buffer_);
    if (negate_) turn_round(from);
    else if (from != buffer_) return from - lo_ * inner_;
    return buffer_ - lo_ * inner_;
  }

 private:
  static Range reach(const Axis& a, i64 o) {
    if (!a.regular()) {
      const Span s = span_of(a, o);
      return {s.begin, s.begin + s.taps};
    }
    const i64 start = o * a.stride - a.lo;
    return {larger(0, start), smaller(a.in, start + (a.kernel - 1) * a.dilation + 1)};
  }

  void turn_round(const A* from) {
    const i64 n = (hi_ - lo_) * inner_;
    for (i64 i = 0; i < n; ++i) buffer_[i] = opposite(from[i]);
  }

  const View& x_;
  i64 inner_, lo_, hi_;
  bool negate_, direct_;
  A* buffer_;
};

// Rows of one level, kept by key; when no two windows share a row, just kGroup of them in turn.
template <class Op>
struct RowCache {
  typename Op::Row rows{};
  i64* keys = nullptr;
  i64 slots = 0, length = 0;
  bool shared = false;

  RowCache(const Axis& a, i64 rows_per_slot, i64 n, const Op& op, Arena& arena)
      : slots(a.overlap ? smaller(a.in, (a.kernel - 1) * a.dilation + 1) : kGroup),
        length(n),
        shared(a.overlap) {
    rows = op.take(arena, slots * rows_per_slot * n);
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

  Separable(const Plan& plan, const View& x, const Tile& tile, bool negate, const Op& op,
            Arena& arena)
      : p_(plan),
        tile_(tile),
        reader_(plan, x, tile.lo[2], tile.hi[2], negate, arena),
        step_(reader_.step()),
        n_((tile.hi[2] - tile.lo[2]) * plan.inner),
        heights_(tile.hi[1] - tile.lo[1]),
        width_rows_(plan.axis[1], 1, n_, op, arena),
        height_rows_(plan.axis[0], plan.axis[0].overlap ? heights_ : 1, n_, op, arena) {}

  i64 length() const { return n_; }

  void start(const char* plane) {
    plane_ = plane;
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
      const Row kept = Op::slot(height_rows_.rows, slot * n_);
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
      if (target && !width_rows_.shared) {
        width(reader_.row(plane_, d, h), *target);
        return *target;
      }
      const i64 key = d * p_.axis[1].in + h;
      const i64 slot = width_rows_.shared ? h % width_rows_.slots : turn;
      const Row kept = Op::slot(width_rows_.rows, slot * n_);
      if (!width_rows_.shared || width_rows_.keys[slot] != key) {
        width(reader_.row(plane_, d, h), kept);
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
    const i64 gap = a.dilation * step_;
    const auto one = [&](i64 o) {
      const Span s = span_of(a, o);
      const Row at = Op::at(into, (o - lo) * inner);
      if (s.taps == 0) return Op::clear(at, inner);
      Op::fold_inputs(at, inner, row + s.begin * step_, 1, gap, s.taps, s.place);
    };
    for (i64 o = lo; o < full_lo; ++o) one(o);
    for (i64 o = full_hi; o < hi; ++o) one(o);
    const i64 whole = full_hi - full_lo;
    if (whole == 0) return;
    const T* from = row + span_of(a, full_lo).begin * step_;
    const Row at = Op::at(into, (full_lo - lo) * inner);
    if (inner == 1) {
      Op::fold_inputs(at, whole, from, a.stride * step_, gap, a.kernel, 0);
    } else if (a.stride == 1 && step_ == inner) {
      Op::fold_inputs(at, whole * inner, from, 1, gap, a.kernel, 0);
    } else {
      for (i64 o = 0; o < whole; ++o) {
        Op::fold_inputs(Op::at(at, o * inner), inner, from + o * a.stride * step_, 1, gap, a.kernel,
                        0);
      }
    }
  }

  const Plan& p_;
  const Tile tile_;
  Reader<T> reader_;
  const i64 step_, n_, heights_;
  const char* plane_ = nullptr;
  RowCache<Op> width_rows_, height_rows_;
};

}  // namespace
}  // namespace poolgrad
