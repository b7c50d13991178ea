// Rows of partial reductions in memory: values and, for maxima, the tap indices of the inputs that
// they come from.
#pragma once

#include <algorithm>

#include "base/scratch.hpp"
#include "operators/groups.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

template <class T, class Route>
struct ValuesAndTaps {
  T* v;
  Route* r = nullptr;

  ValuesAndTaps operator+(i64 n) const { return {v + n, r ? r + n : nullptr}; }
};

// What operators on rows share. Op provides kFill, the result of windows without an input;
// merge(part, later part, taps), where the tap indices of the later part are shifted by `taps`; and
// reduce_across_lanes(). WithRoutes: there are tap indices, in memory of type Route.
template <class Op, class T, bool WithRoutes, class Route = u32>
struct Rows {
  using In = T;
  using Row = ValuesAndTaps<T, Route>;
  static constexpr i64 kElementBytes = sizeof(T) + (WithRoutes ? sizeof(Route) : 0);

  // A vector of a row.
  template <class V>
  struct Part {
    V v;
    Vec<u32, static_cast<int>(sizeof(V) / sizeof(T))> r{};
  };

  static Row take(Arena& arena, i64 n) {
    return {arena.take<T>(n), WithRoutes ? arena.take<Route>(n) : nullptr};
  }
  static Row at(Row row, i64 offset) {
    return {row.v + offset, WithRoutes ? row.r + offset : nullptr};
  }

  // Sets what windows without an input have.
  POOLGRAD_LOOP static void clear(Row row, i64 n) {
    std::fill(row.v, row.v + n, Op::kFill);
    if constexpr (WithRoutes) std::fill(row.r, row.r + n, static_cast<Route>(kNowhere));
  }

  // A vector of inputs with the same tap index.
  template <class P>
  POOLGRAD_INLINE static P part_of(decltype(P::v) inputs, u32 tap) {
    P part{inputs};
    if constexpr (WithRoutes) part.r += tap;
    return part;
  }
  // Loads elements i, i + 1, ...; tap indices are shifted by `taps`.
  template <class P>
  POOLGRAD_INLINE static P get(Row from, i64 i, u32 taps) {
    P part{load<decltype(P::v)>(from.v + i)};
    constexpr int W = static_cast<int>(sizeof(part.v) / sizeof(T));
    if constexpr (WithRoutes) part.r = convert<u32>(load<Vec<Route, W>>(from.r + i)) + taps;
    return part;
  }
  template <class P>
  POOLGRAD_INLINE static void put(Row to, i64 i, const P& part) {
    store(to.v + i, part.v);
    if constexpr (WithRoutes) store(to.r + i, convert<Route>(part.r));
  }

  // Elements by, by + 1, ... of two neighbouring vectors.
  template <class P>
  POOLGRAD_INLINE static P slide(const P& a, const P& b, i64 by) {
    P both{poolgrad::slide(a.v, b.v, by)};
    if constexpr (WithRoutes) both.r = poolgrad::slide(a.r, b.r, by);
    return both;
  }

  // Copies n groups of `inner` elements, `step` apart, side by side.
  POOLGRAD_LOOP static void copy_groups(Row to, Row from, i64 n, i64 inner, i64 step) {
    for (i64 o = 0; o < n; ++o) {
      std::copy_n(from.v + o * step, inner, to.v + o * inner);
      if constexpr (WithRoutes) std::copy_n(from.r + o * step, inner, to.r + o * inner);
    }
  }

  template <class Size, class First, class Loader>
  POOLGRAD_LOOP static void fold_taps(Row to, i64 n, const T* from, Loader loader, u32 tap,
                                      Size size, First first) {
    lanes<T>(n, [&](auto w, i64 i) {
      using P = Part<Vec<T, w()>>;
      const auto input = [&](i64 t) {
        return part_of<P>(loader.template get<Vec<T, w()>>(from, i, t), tap + static_cast<u32>(t));
      };
      P part = first ? input(0) : get<P>(to, i, 0);
      for (i64 t = first; t < size; ++t) Op::merge(part, input(t), 0);
      put(to, i, part);
    });
  }

  // Reduces the inputs from[i * step + t * gap] over t, with tap indices tap, tap + 1, ...
  // may_reduce_across: one window may be reduced across lanes, which rounds a sum differently.
  POOLGRAD_LOOP static void fold_inputs(Row to, i64 n, const T* from, i64 step, i64 gap, i64 taps,
                                        i64 tap, bool may_reduce_across = true) {
    const bool fills_lanes = gap == 1 && taps >= larger(kTapsAcrossLanes, kLanesOf<T>);
    if ((Op::kIdempotent || may_reduce_across) && n == 1 && fills_lanes)
      return Op::reduce_across_lanes(to, from, taps, static_cast<u32>(tap));
    in_groups(taps, [&](i64 count, i64 begin) {
      by_stride(step, gap, taps, begin == 0, [&](auto loader) {
        constexpr bool kSized = kSpecialised<T> && !std::is_same_v<decltype(loader), AnyStride>;
        by_group<kSized>(count, begin == 0, [&](auto size, auto first) {
          fold_taps(to, n, from + begin * gap, loader, static_cast<u32>(tap + begin), size, first);
        });
      });
    });
  }

  // Reduces `count` rows, the first ones of a window or later ones; the tap indices of row t are
  // shifted by tap + t * taps_per_row.
  static void fold_rows(Row to, i64 n, const Row* rows, i64 tap, i64 taps_per_row, i64 count,
                        bool is_first) {
    by_group<kSpecialised<T>>(count, is_first, [&](auto size, auto first) {
      merge_rows(to, n, rows, static_cast<u32>(tap), static_cast<u32>(taps_per_row), size, first);
    });
  }
  template <class Size, class First>
  POOLGRAD_LOOP static void merge_rows(Row to, i64 n, const Row* rows, u32 tap, u32 taps_per_row,
                                       Size size, First first) {
    Row from[kMaxFolded];
    for (i64 t = 0; t < size; ++t) from[t] = rows[t];
    lanes<T>(n, [&](auto w, i64 i) {
      using P = Part<Vec<T, w()>>;
      P part = first ? get<P>(from[0], i, tap) : get<P>(to, i, 0);
      for (i64 t = first; t < size; ++t)
        Op::merge(part, get<P>(from[t], i, 0), tap + static_cast<u32>(t) * taps_per_row);
      put(to, i, part);
    });
  }
};

}  // namespace poolgrad::inline POOLGRAD_ISA
