// Computes averages: sums of the inputs of windows, divided by their divisors.
#pragma once

#include "operators/divisor.hpp"
#include "operators/rows.hpp"
#include "simd/prefetch.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// The sum of the inputs of a window.
template <class A>
struct Sum : Rows<Sum<A>, A, false> {
  using Row = ValuesAndTaps<A, u32>;

  static constexpr bool kIdempotent = false, kChecksNaN = false;
  static constexpr A kFill = A(0);
  static bool may_be_padding(Row, i64) { return false; }

  template <class P>
  POOLGRAD_INLINE static void merge(P& sum, const P& later, u32) {
    sum.v += later.v;
  }

  // Reduces a vector to W lanes: halves are added, then their halves, and so on.
  template <int W, class V>
  POOLGRAD_INLINE static Vec<A, W> folded(const V& lanes) {
    constexpr int lanes_now = static_cast<int>(sizeof(V) / sizeof(A));
    if constexpr (lanes_now == W) {
      return lanes;
    } else {
      Vec<A, lanes_now / 2> halves[2];
      std::memcpy(halves, &lanes, sizeof(V));
      return folded<W>(halves[0] + halves[1]);
    }
  }

  // Sums one window of many neighbours: each lane adds every W-th input, then a horizontal
  // reduction adds the lanes.
  POOLGRAD_LOOP static void reduce_across_lanes(Row to, const A* from, i64 taps, u32) {
    constexpr i64 W = kTapsAcrossLanes;  // the same on every machine, for the same rounding
    Vec<A, W> sums{};
    i64 t = 0;
    for (; t + W <= taps; t += W) {
      prefetch(from + t + kPrefetchElements<A>);
      sums += load<Vec<A, W>>(from + t);
    }
    A sum = folded<1>(sums)[0];
    for (; t < taps; ++t) sum += from[t];
    to.v[0] = sum;
  }
};

// The average in registers. Lines: sums of lines of taps, which windows may share, are added; else
// inputs are added in row-major order, as PyTorch does.
template <class A, bool Lines>
struct Mean {
  using In = A;
  using AssumeNoNaN = Mean;  // a sum with a NaN is NaN
  static constexpr bool kPads = true;
  static constexpr bool kByLines = Lines, kRounds = true;
  static constexpr A kFill = A(0);
  struct Target {
    A* y;
    const A *columns, *rows;  // the divisors of a row's outputs, and of rows
    Target at(i64 offset) const { return {y + offset, columns + offset, rows}; }
    Target line(i64 row, i64 length) const { return {y + row * length, columns, rows + row}; }
  };
  template <class V>
  struct Partial {
    V sum;
  };

  static bool may_be_padding(Target, i64) { return false; }
  static void clear(Target to, i64 n) {  // -0.0 if the divisor is negative
    for (i64 i = 0; i < n; ++i) store(to, i, Partial<Vec<A, 1>>{});
  }
  template <class V>
  static Partial<V> first(V value, u32) {
    return {value};
  }
  template <class V>
  static void take(Partial<V>& partial, V value, u32) {
    partial.sum += value;
  }
  template <class C>
  static void merge(C& partial, const C& later, u32) {
    partial.sum += later.sum;
  }
  template <class V>
  static V check_nan(V nan_check, V) {
    return nan_check;
  }
  template <class V>
  static bool found_nan(V, A) {
    return false;
  }
  // Adds 0, so that a sum of negative zeros is 0.0.
  template <class V>
  static void store(Target to, i64 i, const Partial<V>& partial) {
    poolgrad::store(to.y + i, (V{} + partial.sum) / (*to.rows * load<V>(to.columns + i)));
  }
};

}  // namespace poolgrad::inline POOLGRAD_ISA
