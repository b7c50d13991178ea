// Reduces a block of windows in registers: a vector moves down the rows, and each row of inputs is
// reduced along the width once, for all windows that hold it.
#pragma once

#include "forward/unrolled.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

inline constexpr i64 kMaxBlockedRows = 8;                   // rows of outputs of a block
inline constexpr i64 kBlockedPixelElements = i64{1} << 10;  // of a row, at a time
inline constexpr i64 kBlockBytes = i64{1} << 14;            // bytes of the inputs of a block

// Calls f with kernel and stride as compile-time constants, if they are compiled (up to a stride).
// Returns whether they are.
template <i64 MaxStride = 2, class F>
bool by_shape(const Axis& a, F&& f) {
  if constexpr (MaxStride > 2) {
    if (a.kernel == 3 && a.stride == 3) {
      f(Const<3>{}, Const<3>{});
      return true;
    }
  }
  if (a.kernel == 2 && a.stride == 2) f(Const<2>{}, Const<2>{});
  else if (a.kernel == 3 && a.stride == 2) f(Const<3>{}, Const<2>{});
  else if (a.kernel == 3 && a.stride == 1) f(Const<3>{}, Const<1>{});
  else if (a.kernel == 2 && a.stride == 1) f(Const<2>{}, Const<1>{});
  else return false;
  return true;
}

// Calls f with the number of lanes of the widest vector that n elements fill, down to half of the
// machine's vector.
template <class T, class F>
bool by_width(i64 n, F&& f) {
  constexpr i64 kLanes = kVectorBytes / static_cast<i64>(sizeof(T));
  if (n >= kLanes) f(Const<kLanes>{});
  else if (n >= kLanes / 2) f(Const<kLanes / 2>{});
  else return false;
  return true;
}

// One depth of the windows of a block: its first tap and, if other windows hold this depth too,
// memory for its partial reductions, one for each row of outputs. cached: they are already
// computed.
template <class Partial>
struct DepthSlice {
  u32 first_tap;
  Partial* partials;
  bool cached;
};

// Reduces a column of windows, W columns side by side: each line of inputs is reduced once for all
// windows that hold it. start(depth) returns a DepthSlice, line(value) loads the taps of the next
// line, prefetch_next() may prefetch, store(row, partial) stores a result. Op::check_nan
// accumulates the inputs in `nan_check`, from which Op::found_nan detects a NaN afterwards.
template <class Op, i64 K, i64 S, class V, class Start, class Line, class PrefetchNext, class Store>
POOLGRAD_INLINE void reduce_columns(i64 rows, i64 depths, V& nan_check, Start&& start, Line&& line,
                                    PrefetchNext&& prefetch_next, Store&& store) {
  typename Op::template Partial<V> row_partials[kMaxBlockedRows], lines[K];
  for (i64 k = 0; k < depths; ++k) {
    const auto slice = start(k);
    const bool merges_later = slice.cached || (slice.partials && k > 0),
               continues = k > 0 && !merges_later;
    const u32 first_tap = merges_later ? 0 : slice.first_tap;
    const auto reduce = [&]() __attribute__((always_inline)) {
      V value[K];
      line(value);
      auto partial = Op::first(value[0], first_tap);
      POOLGRAD_UNROLL
      for (i64 t = 1; t < K; ++t) Op::take(partial, value[t], first_tap + static_cast<u32>(t));
      V sum = value[0];
      POOLGRAD_UNROLL
      for (i64 t = 1; t < K; ++t) sum = Op::check_nan(sum, value[t]);
      nan_check = Op::check_nan(nan_check, sum);
      return partial;
    };
    const auto finish = [&](i64 q, auto partial) __attribute__((always_inline)) {
      if (merges_later && k > 0) {
        auto all = row_partials[q];
        Op::merge(all, partial, slice.first_tap);
        partial = all;
      }
      if (k + 1 < depths) row_partials[q] = partial;
      else store(q, partial);
    };
    if (slice.cached) {
      for (i64 q = 0; q < rows; ++q) finish(q, slice.partials[q]);
      continue;
    }
    if constexpr (S >= K && Op::kRounds && !Op::kByLines) {  // inputs are added one by one
      for (i64 q = 0; q < rows; ++q) {
        prefetch_next();
        auto partial = row_partials[q];
        POOLGRAD_UNROLL
        for (i64 r = 0; r < K; ++r) {
          V value[K];
          line(value);
          if (k + r == 0) partial = Op::first(value[0], 0);
          else Op::take(partial, value[0], 0);
          POOLGRAD_UNROLL
          for (i64 t = 1; t < K; ++t) Op::take(partial, value[t], 0);
        }
        finish(q, partial);
      }
      continue;
    }
    POOLGRAD_UNROLL
    for (i64 t = 0; t < K - S; ++t) lines[t] = reduce();
    for (i64 q = 0; q < rows; ++q) {
      prefetch_next();
      POOLGRAD_UNROLL
      for (i64 t = K - S; t < K; ++t) lines[t] = reduce();
      auto partial = continues ? row_partials[q] : lines[0];
      if (continues) Op::merge(partial, lines[0], 0);
      POOLGRAD_UNROLL
      for (i64 t = 1; t < K; ++t) Op::merge(partial, lines[t], static_cast<u32>(t * K));
      if (merges_later) slice.partials[q] = partial;
      finish(q, partial);
      POOLGRAD_UNROLL
      for (i64 t = 0; t < K - S; ++t) lines[t] = lines[t + S];
    }
  }
}

}  // namespace poolgrad::inline POOLGRAD_ISA
