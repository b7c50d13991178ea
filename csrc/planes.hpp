// Averages of whole planes, one output each: several planes at a time, so that the sum of one need
// not wait for its own last addition.
#pragma once

#include "backward.hpp"
#include "blend.hpp"

namespace poolgrad {
namespace {

inline constexpr i64 kPlanes = 8;  // at a time

[[maybe_unused]] inline bool is_plane(const Plan& p) {
  return p.inner == 1 && is_whole(p.axis[0]) && is_whole(p.axis[1]) && is_whole(p.axis[2]);
}

template <class A>
A divisor_of_plane(const Plan& p, Divisor divisor) {
  A columns;
  divisor.fill_row(p, 0, 1, &columns);
  return static_cast<A>(divisor.of_rows(p, 0, 0)) * columns;
}

template <class A>
class PlaneMeans {
 public:
  // flat: planes lie in one piece
  PlaneMeans(const Plan& flat, Dense y, Divisor divisor, Arena& arena)
      : n_(flat.axis[2].in),
        divisor_(divisor_of_plane<A>(flat, divisor)),
        y_(y, kPlanes, arena),
        copies_(arena.take<A>(kPlanes * n_)) {}

  void run(const View& x, i64 first, i64 last) {
    for (i64 plane = first; plane < last; plane += kPlanes) {
      const i64 count = smaller(kPlanes, last - plane);
      const A* from[kPlanes];
      for (i64 k = 0; k < kPlanes; ++k) {  // of too few, the last one again
        const i64 own = plane + smaller(k, count - 1);
        from[k] = row_of(x, plane_of(x, own), 1, 0, 0, 0, n_, copies_ + k * n_);
      }
      A sums[kPlanes];
      if (n_ <= kMostPlaces) in_order(from, sums);
      else across(from, sums);
      A* y = y_.room(plane, count);
      for (i64 k = 0; k < count; ++k) y[k] = sums[k] / divisor_;
    }
  }

 private:
  // As PyTorch adds them.
  POOLGRAD_LOOP void in_order(const A* const* from, A* sums) const {
    const A* plane[kPlanes];
    A sum[kPlanes];
    for (i64 k = 0; k < kPlanes; ++k) plane[k] = from[k], sum[k] = from[k][0];
    for (i64 t = 1; t < n_; ++t) {
      POOLGRAD_UNROLL
      for (i64 k = 0; k < kPlanes; ++k) sum[k] += plane[k][t];
    }
    for (i64 k = 0; k < kPlanes; ++k) sums[k] = sum[k];
  }

  // As Sum::across adds the numbers of one.
  POOLGRAD_LOOP void across(const A* const* from, A* sums) const {
    constexpr i64 W = kAcross, kTogether = 4;
    for (i64 begin = 0; begin < kPlanes; begin += kTogether) {
      const A* const* plane = from + begin;
      Vec<A, W> lane[kTogether]{};
      i64 t = 0;
      for (; t + W <= n_; t += W) {
        POOLGRAD_UNROLL
        for (i64 k = 0; k < kTogether; ++k) {
          lane[k] += load<Vec<A, W>>(plane[k] + t);
        }
      }
      for (i64 k = 0; k < kTogether; ++k) {
        A sum = Sum<A>::total(lane[k]);
        for (i64 i = t; i < n_; ++i) sum += plane[k][i];
        sums[begin + k] = sum;
      }
    }
  }

  const i64 n_;
  const A divisor_;
  Sink<A> y_;
  A* copies_;
};

// Backward: all inputs of a plane get the same.
template <class A>
class PlaneGradients {
 public:
  PlaneGradients(const Plan& p, const Piece& piece, Dense gx, Arena& arena)
      : p_(p), first_(piece_begin(p, piece)), n_(piece_size(piece)), gx_(gx, n_, arena) {}

  void run(const View& gy, const View*, Divisor divisor, i64 plane) {
    A own;
    const A gradient = *row_of(gy, plane_of(gy, plane), 1, 0, 0, 0, 1, &own);
    const A each = gradient / divisor_of_plane<A>(p_, divisor) + A(0);  // as if added to nothing
    A* to = gx_.room(plane * p_.in_plane() + first_, n_);
    sweep_lanes<A>(n_, [&](auto w, i64 i) {
      ask_to_write(to + i + kWriteAhead<A>);
      store(to + i, Vec<A, w()>{} + each);
    });
  }

 private:
  static i64 piece_begin(const Plan& p, const Piece& piece) {
    return (piece.lo[0] * p.axis[1].in + piece.lo[1]) * p.axis[2].in + piece.lo[2];
  }
  static i64 piece_size(const Piece& piece) {
    i64 n = 1;
    for (int a = 0; a < 3; ++a) n *= piece.hi[a] - piece.lo[a];
    return n;
  }

  const Plan& p_;
  const i64 first_, n_;
  Sink<A> gx_;
};

}  // namespace
}  // namespace poolgrad
