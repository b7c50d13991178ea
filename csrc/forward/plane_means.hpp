// Computes averages of whole planes, one plane in each lane of a vector.
#pragma once

#include "forward/row_writer.hpp"
#include "operators/divisor.hpp"
#include "operators/sum.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

template <class A>
class PlaneMeans {
 public:
  PlaneMeans(const Plan& flat, Dense y, Divisor divisor, Arena& arena)
      : n_(flat.axis[2].in),
        divisor_(static_cast<A>(divisor.of_plane(flat))),
        y_(y, W, arena),
        copies_(arena.take<A>(W * smaller(n_, kMaxCopiedPlane))) {}

  void run(const View& x, i64 first, i64 last) {
    for (i64 plane = first; plane < last; plane += W) {
      const i64 planes = smaller(W, last - plane);
      const A* from[W];
      find_planes(x, plane, planes, from);
      store_first(y_.reserve(plane, planes),
                  quotient(V{} + sums_of(from), V{} + divisor_, y_.quantization()), planes);
    }
  }

 private:
  static constexpr int W = kVectorBytes / static_cast<int>(sizeof(A));
  using V = Vec<A, W>;

  // Finds W planes from plane `first` on; lanes without a plane repeat the last. Planes that follow
  // each other are converted as one row.
  void find_planes(const View& x, i64 first, i64 planes, const A** from) const {
    const bool joined =
        x.outer_axes == 1 && x.outer_stride[0] == n_ && x.width == 1 && !x.row_columns;
    from[0] = row_of(x, plane_of(x, first), 1, 0, 0, 0, joined ? planes * n_ : n_, copies_);
    const bool follow = joined || (from[0] != copies_ && x.outer_axes == 1);
    for (i64 k = 1; k < W; ++k) {
      const i64 index = smaller(k, planes - 1);
      if (follow) {
        from[k] = from[0] + index * x.outer_stride[0];
      } else {
        A* copy = copies_ + k * smaller(n_, kMaxCopiedPlane);
        from[k] = row_of(x, plane_of(x, first + index), 1, 0, 0, 0, n_, copy);
      }
    }
  }

  // Adds in row-major order, as PyTorch does; large planes as Sum::reduce_across_lanes.
  POOLGRAD_LOOP V sums_of(const A* const* from) const {
    V sums{};
    i64 t = 0;
    if (n_ > kMaxTaps) {
      sums = sums_across(from);
      t = n_ / kTapsAcrossLanes * kTapsAcrossLanes;
    }
    for (; t + W <= n_; t += W) {
      V square[W];
      transposed(from, t, square);
      POOLGRAD_UNROLL
      for (int k = 0; k < W; ++k) sums += square[k];
    }
    for (; t < n_ && (n_ < W || n_ - t <= W / 4); ++t) {
      V input;
      POOLGRAD_UNROLL
      for (int k = 0; k < W; ++k) input[k] = from[k][t];
      sums += input;
    }
    if (t < n_) {  // the last vector of a plane overlaps the one before
      V square[W];
      transposed(from, n_ - W, square);
      POOLGRAD_UNROLL
      for (int k = 0; k < W; ++k) {
        if (n_ - W + k >= t) sums += square[k];
      }
    }
    return sums;
  }

  // Adds vectors of each plane, several planes at a time so that additions do not wait for each
  // other, then the lanes.
  POOLGRAD_INLINE V sums_across(const A* const* from) const {
    constexpr int kTogether = smaller(W, 4);
    V square[W];
    for (int begin = 0; begin < W; begin += kTogether) {
      Vec<A, kTapsAcrossLanes> sums[kTogether]{};
      for (i64 t = 0; t + kTapsAcrossLanes <= n_; t += kTapsAcrossLanes) {
        POOLGRAD_UNROLL
        for (int k = 0; k < kTogether; ++k) {
          const A* here = from[begin + k] + t;
          prefetch_line(here + kPrefetchElements<A>);
          sums[k] += load<Vec<A, kTapsAcrossLanes>>(here);
        }
      }
      for (int k = 0; k < kTogether; ++k) square[begin + k] = Sum<A>::template folded<W>(sums[k]);
    }
    transpose(square);
    for (int lanes = W / 2; lanes > 0; lanes /= 2) {
      for (int k = 0; k < lanes; ++k) square[k] += square[k + lanes];
    }
    return square[0];
  }

  // Loads W inputs of each plane from input t on; square[k] holds input t + k of all planes.
  POOLGRAD_INLINE void transposed(const A* const* from, i64 t, V (&square)[W]) const {
    POOLGRAD_UNROLL
    for (int k = 0; k < W; ++k) {
      square[k] = load<V>(from[k] + t);
      prefetch_line(from[k] + t + W * n_);  // the next planes, if they follow these
    }
    transpose(square);
  }

  const i64 n_;
  const A divisor_;
  RowWriter<A> y_;
  A* copies_;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
