// Computes averages of whole planes, several planes at a time, so that additions do not wait for
// each other.
#pragma once

#include "backward/tiles.hpp"
#include "operators/sum.hpp"

namespace poolgrad {
namespace {

inline constexpr i64 kPlanes = 8;  // at a time

template <class A>
A divisor_of_plane(const Plan& p, Divisor divisor) {
  A columns;
  divisor.fill_row(p, 0, 1, &columns);
  return static_cast<A>(divisor.of_rows(p, 0, 0)) * columns;
}

template <class A>
class PlaneMeans {
 public:
  PlaneMeans(const Plan& flat, Dense y, Divisor divisor, Arena& arena)
      : n_(flat.axis[2].in),
        divisor_(divisor_of_plane<A>(flat, divisor)),
        y_(y, kPlanes, arena),
        copies_(arena.take<A>(kPlanes * smaller(n_, kMaxCopiedPlane))) {}

  void run(const View& x, i64 first, i64 last) {
    i64 plane = first;
    for (; plane + kPlanes <= last; plane += kPlanes) reduce_planes<kPlanes>(x, plane);
    for (; plane < last; ++plane) reduce_planes<1>(x, plane);
  }

 private:
  template <i64 N>
  void reduce_planes(const View& x, i64 first) {
    const A* planes[N];
    for (i64 k = 0; k < N; ++k) {
      A* copy = copies_ + k * smaller(n_, kMaxCopiedPlane);
      planes[k] = row_of(x, plane_of(x, first + k), 1, 0, 0, 0, n_, copy);
    }
    A sums[N];
    if (n_ <= kMaxTaps) in_order<N>(planes, sums);
    else across<N>(planes, sums);
    A* y = y_.reserve(first, N);
    for (i64 k = 0; k < N; ++k) y[k] = (A(0) + sums[k]) / divisor_;
  }

  // Adds in row-major order, as PyTorch does.
  template <i64 N>
  POOLGRAD_LOOP void in_order(const A* const* planes, A* sums) const {
    const A* plane[N];
    A sum[N];
    for (i64 k = 0; k < N; ++k) plane[k] = planes[k], sum[k] = planes[k][0];
    for (i64 t = 1; t < n_; ++t) {
      POOLGRAD_UNROLL
      for (i64 k = 0; k < N; ++k) sum[k] += plane[k][t];
    }
    for (i64 k = 0; k < N; ++k) sums[k] = sum[k];
  }

  // Adds in the order of Sum::across.
  template <i64 N>
  POOLGRAD_LOOP void across(const A* const* planes, A* sums) const {
    constexpr i64 W = kTapsAcrossLanes, kTogether = smaller(N, 4);
    for (i64 begin = 0; begin < N; begin += kTogether) {
      const A* const* plane = planes + begin;
      Vec<A, W> lane[kTogether]{};
      i64 t = 0;
      for (; t + W <= n_; t += W) {
        POOLGRAD_UNROLL
        for (i64 k = 0; k < kTogether; ++k) lane[k] += load<Vec<A, W>>(plane[k] + t);
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
  RowWriter<A> y_;
  A* copies_;
};

// Computes the backward pass: all inputs of a plane get the same gradient.
template <class A>
class PlaneGradients {
 public:
  PlaneGradients(const Plan& p, const InputTile& tile, Dense gx, Arena& arena)
      : p_(p), first_(tile_begin(p, tile)), n_(tile_size(tile)), gx_(gx, kMaxCopiedPlane, arena) {}

  void run(const View& gy, const View*, Divisor divisor, i64 plane) {
    A own;
    const A gradient = *row_of(gy, plane_of(gy, plane), 1, 0, 0, 0, 1, &own);
    const A share = gradient / divisor_of_plane<A>(p_, divisor) +
                    A(0);  // -0.0 becomes 0.0, as in sums that begin with 0
    for (i64 done = 0; done < n_; done += kMaxCopiedPlane) {
      const i64 n = smaller(kMaxCopiedPlane, n_ - done);
      A* to = gx_.reserve(plane * p_.in_plane() + first_ + done, n, false);
      overlapping_lanes<A>(n, [&](auto w, i64 i) {
        prefetch(to + i + kPrefetchElements<A>);
        store(to + i, Vec<A, w()>{} + share);
      });
    }
  }

 private:
  static i64 tile_begin(const Plan& p, const InputTile& tile) {
    return (tile.lo[0] * p.axis[1].in + tile.lo[1]) * p.axis[2].in + tile.lo[2];
  }
  static i64 tile_size(const InputTile& tile) {
    i64 n = 1;
    for (int a = 0; a < 3; ++a) n *= tile.hi[a] - tile.lo[a];
    return n;
  }

  const Plan& p_;
  const i64 first_, n_;
  RowWriter<A> gx_;
};

}  // namespace
}  // namespace poolgrad
