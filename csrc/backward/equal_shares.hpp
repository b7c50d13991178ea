// Scatter of equal shares, the backward pass of averages for any windows: adds the gradient of each
// output, divided by its divisor, to every input of its window.
#pragma once

#include "backward/tiles.hpp"
#include "operators/sum.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

template <class A>
class ScatterEqualShares {
 public:
  ScatterEqualShares(const Plan& p, const InputTile& tile, Dense gx, Arena& arena)
      : p_(p),
        tile_(tile),
        by_window_(p.inner > 1 || p.axis[2].kernel > 8 || !has_phases(p.axis[2])),
        phases_(p.axis[2], tile.lo[2], tile.hi[2], !by_window_, arena),
        n_((phases_.outputs().hi - phases_.outputs().lo) * p.inner),
        gx_(gx, (tile.hi[2] - tile.lo[2]) * p.inner, arena) {
    gradients_ = arena.take<A>(n_);
    sums_ = arena.take<A>(n_);
    width_divisors_ = arena.take<A>(n_);
  }

  void run(const View& gy, const View*, Divisor divisor, i64 plane) {
    const char* const gradients = plane_of(gy, plane);
    const Axis &height = p_.axis[1], &width = p_.axis[2];
    const Range outs = phases_.outputs();
    const i64 columns = (tile_.hi[2] - tile_.lo[2]) * p_.inner;
    divisor.fill_row(p_, outs.lo, outs.hi, width_divisors_);
    for (i64 d = tile_.lo[0]; d < tile_.hi[0]; ++d) {
      for (i64 h = tile_.lo[1]; h < tile_.hi[1]; ++h) {
        const bool any_window = sum_rows(gy, gradients, divisor, d, h);
        const i64 first =
            plane * p_.in_plane() + ((d * height.in + h) * width.in + tile_.lo[2]) * p_.inner;
        A* row = gx_.reserve(first, columns);
        if (!any_window || by_window_)
          std::memset(row, 0, static_cast<std::size_t>(columns) * sizeof(A));
        if (any_window && by_window_) {
          add_windows(row);
        } else if (any_window) {
          phases_.clear();
          for (i64 kw = width.kernel - 1; kw >= 0; --kw) add(phases_.at(kw), sums_, n_);
          phases_.store(row);
        }
      }
    }
  }

 private:
  POOLGRAD_LOOP static void add(A* __restrict to, const A* __restrict from, i64 n) {
    for (i64 i = 0; i < n; ++i) to[i] += from[i];
  }

  // Computes in sums_ the shares of the output rows whose windows hold input row (d, h). Returns
  // false if no window holds this row.
  bool sum_rows(const View& gy, const char* gradients, Divisor divisor, i64 d, i64 h) {
    const Range outs = phases_.outputs();
    bool any_window = false;
    each_row_holding(p_, d, h, [&](i64 od, i64 oh, i64) {
      const A* __restrict g = row_of(gy, gradients, p_.inner, od, oh, outs.lo, outs.hi, gradients_);
      const A rows = static_cast<A>(divisor.of_rows(p_, od, oh));
      A* __restrict sums = sums_;
      const A* __restrict columns = width_divisors_;
      if (any_window) {
        for (i64 i = 0; i < n_; ++i) sums[i] += g[i] / (rows * columns[i]);
      } else {
        for (i64 i = 0; i < n_; ++i) sums[i] = g[i] / (rows * columns[i]);
      }
      any_window = true;
    });
    return any_window;
  }

  void add_windows(A* row) {
    const i64 lo = tile_.lo[2], inner = p_.inner, dilation = p_.axis[2].dilation;
    each_window_part(p_.axis[2], phases_.outputs(), lo, tile_.hi[2],
                     [&](i64 output, const Span& s, i64 first, i64 end) {
                       const A* sums = sums_ + output * inner;
                       A* to = row + (s.begin - lo) * inner;
                       if (inner == 1 && dilation == 1) {
                         lanes<A>(end - first, [&](auto w, i64 i) {
                           using V = Vec<A, w()>;
                           store(to + first + i, load<V>(to + first + i) + *sums);
                         });
                       } else if (inner == 1) {
                         for (i64 t = first; t < end; ++t) to[t * dilation] += *sums;
                       } else {
                         for (i64 t = first; t < end; ++t)
                           add(to + t * dilation * inner, sums, inner);
                       }
                     });
  }

  const Plan& p_;
  const InputTile tile_;
  // Whether sums are added window by window (few outputs, irregular windows), not tap by tap.
  const bool by_window_;
  Phases<A> phases_;
  i64 n_;
  RowWriter<A> gx_;
  A *gradients_, *sums_, *width_divisors_;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
