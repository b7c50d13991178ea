// Reductions of maxima, and of minima as maxima of the negated inputs: the value, and the tap index
// of the winner, which is the route.
#pragma once

#include "operators/rows.hpp"
#include "simd/dtype.hpp"
#include "simd/prefetch.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// The lowest value of a type; -infinity for floats.
template <class T>
constexpr T lowest() {
  return kFloat<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}
template <class T>
constexpr T highest() {
  return kFloat<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
}

// The maximum. A later input wins only if it is greater, so the first of equal inputs wins; a NaN
// wins over everything before it, so the last NaN wins. WithRoutes: tap indices are computed, too.
// NaNs: inputs may be NaN. Route: the type of tap indices in memory.
template <class T, bool WithRoutes, bool NaNs = kFloat<T>, class Route = u32>
struct Max : Rows<Max<T, WithRoutes, NaNs, Route>, T, WithRoutes, Route> {
  using Row = ValuesAndTaps<T, Route>;

  static constexpr bool kIdempotent = true, kChecksNaN = NaNs;
  static constexpr bool kNeedsFinite = kFloat<T> && !NaNs;  // an infinity may equal the fill
  static constexpr T kFill = lowest<T>();  // the result only if all inputs equal it
  static bool may_be_padding(Row row, i64 n) {
    bool found = false;
    for (i64 i = 0; WithRoutes && i < n; ++i) found |= row.v[i] == lowest<T>();
    return found;
  }

  template <class V, class P>
  static void keep_greater(V& best, P& best_tap, V value, P tap) {
    using Mask = std::make_signed_t<std::remove_cvref_t<decltype(best_tap[0])>>;
    auto wins = value > best;
    if constexpr (NaNs) wins |= value != value;
    if constexpr (WithRoutes) best_tap = convert<Mask>(wins) ? tap : best_tap;
    // Without NaNs this is one maximum instruction. GCC generates it only if the comparison and the
    // choice are one expression, so it does not use `wins`.
    best = NaNs ? (wins ? value : best) : (value > best ? value : best);
  }

  template <class P>
  POOLGRAD_INLINE static void merge(P& best, const P& later, u32 taps) {
    keep_greater(best.v, best.r, later.v, later.r + taps);
  }

  // Whether the ReLU of a value is zero.
  template <class V>
  static auto relu_is_zero(V value, V zero) {
    return value <= zero;
  }

  // Reduces one window of many neighbours: finds the largest value of each piece, then searches the
  // first piece with the maximum for its index, so that memory is read at full speed.
  POOLGRAD_LOOP static void reduce_across_lanes(Row to, const T* from, i64 taps, u32 tap) {
    constexpr i64 W = kLanesOf<T>, kAccumulators = 4, kPiece = 64 * W;
    using V = Vec<T, W>;
    V all = V{} + lowest<T>(), nan_check{};
    i64 piece = 0;
    const i64 n = smaller(taps, kPiece);
    for (i64 begin = 0; begin < taps; begin += n) {
      const i64 first = smaller(begin, taps - n);  // the last piece overlaps its predecessor
      V accumulators[kAccumulators];
      for (V& accumulator : accumulators) accumulator = all;
      const auto take = [&](auto count, i64 i) {
        constexpr i64 kCount = count();
        V sum{};
        POOLGRAD_UNROLL
        for (i64 k = 0; k < kCount; ++k) {
          const T* here = from + first + i + k * W;
          const V value = load<V>(here);
          prefetch(here + kPrefetchElements<T>);
          accumulators[k] = value > accumulators[k] ? value : accumulators[k];
          if constexpr (NaNs) sum += value;
        }
        if constexpr (NaNs) nan_check += sum;
      };
      i64 i = 0;
      for (; i + kAccumulators * W <= n; i += kAccumulators * W) take(Const<kAccumulators>{}, i);
      for (; i < n; i += W) take(Const<1>{}, smaller(i, n - W));
      V best = accumulators[0];
      for (const V& accumulator : accumulators) best = accumulator > best ? accumulator : best;
      if (!any(best > all)) continue;
      T largest = best[0];
      for (i64 j = 1; j < W; ++j) largest = best[j] > largest ? best[j] : largest;
      all = V{} + largest;
      piece = first;
    }
    // The search is bounded, because another thread may overwrite the maximum in the meantime.
    i64 t = piece;
    const i64 last = piece + n - 1;
    while (t + W <= last && !any(load<V>(from + t) == all)) t += W;
    while (t < last && from[t] != all[0]) ++t;
    if (NaNs && any(nan_check != nan_check)) {  // or infinities of both signs
      for (i64 i = 0; i < taps; ++i) t = from[i] != from[i] ? i : t;
    }
    to.v[0] = from[t];
    if constexpr (WithRoutes) to.r[0] = static_cast<Route>(tap + static_cast<u32>(t));
  }
};

// Pointers to outputs and their routes.
template <class T, bool WithRoutes>
struct MaxTarget {
  T* y;
  std::uint8_t* routes;
  MaxTarget at(i64 offset) const { return {y + offset, WithRoutes ? routes + offset : nullptr}; }
  MaxTarget line(i64 row, i64 length) const { return at(row * length); }
};

// What the maxima in registers share, for windows of at most 255 taps, so that a route is one byte.
// Op: the derived operator; kFill is the result only if all inputs equal it.
template <class Op, class T, bool WithRoutes>
struct RegisterMax {
  using In = T;
  using Target = MaxTarget<T, WithRoutes>;
  static constexpr bool kByLines = false, kRounds = false, kPads = true, kWithRoutes = WithRoutes;
  static Target target(T* y, std::uint8_t* routes) { return {y, routes}; }
  static bool may_be_padding(Target to, i64 i) { return to.y[i] == Op::kFill; }
  static void clear(Target to, i64 n) {
    std::fill(to.y, to.y + n, Op::kFill);
    if (WithRoutes) std::memset(to.routes, 0xFF, static_cast<std::size_t>(n));
  }
  template <class V = void, class P>
  static void store(Target to, i64 i, const P& partial) {
    poolgrad::store(to.y + i, partial.best);
    if constexpr (WithRoutes)
      poolgrad::store(to.routes + i, convert<std::uint8_t>(partial.best_tap));
  }
};

// The maximum of float32, uint8 and int8.
template <class T, bool WithRoutes, bool NaNs = kFloat<T>>
struct SmallMax : RegisterMax<SmallMax<T, WithRoutes, NaNs>, T, WithRoutes> {
  using AssumeNoNaN = SmallMax<T, WithRoutes, false>;
  using TapIndex = std::conditional_t<sizeof(T) == 1, std::uint8_t, u32>;
  static constexpr T kFill = lowest<T>();
  template <class V>
  struct Partial {
    static constexpr int W = static_cast<int>(sizeof(V) / sizeof(T));
    V best;
    Vec<TapIndex, W> best_tap;
  };

  template <class V>
  static Partial<V> first(V value, u32 tap) {
    return {value, Vec<TapIndex, Partial<V>::W>{} + static_cast<TapIndex>(tap)};
  }
  template <class V>
  static void take(Partial<V>& partial, V value, u32 tap) {
    keep_greater(partial, value, first<V>(value, tap).best_tap);
  }
  template <class C>
  static void merge(C& partial, const C& later, u32 shifted) {
    keep_greater(partial, later.best, later.best_tap + static_cast<TapIndex>(shifted));
  }
  template <class V>
  static auto relu_is_zero(V value, V zero) {
    return Max<T, WithRoutes>::relu_is_zero(value, zero);
  }

  // A sum of inputs is NaN if one of them is (or if infinities of both signs are among them).
  template <class V>
  static V check_nan(V nan_check, V value) {
    return kFloat<T> ? nan_check + value : nan_check;
  }
  template <class V>
  static bool found_nan(V nan_check, T) {
    return kFloat<T> && any(nan_check != nan_check);
  }

 private:
  template <class C, class V, class P>
  static void keep_greater(C& partial, V value, P tap) {
    Max<T, WithRoutes, NaNs>::keep_greater(partial.best, partial.best_tap, value, tap);
  }
};

inline bool has_empty_windows(const Plan& p) {
  for (const Axis& a : p.axis) {
    for (i64 o = 0; o < a.out; ++o) {
      if (o == a.full_lo && a.full_hi > o) o = a.full_hi;
      if (o < a.out && span_of(a, o).taps == 0) return true;
    }
  }
  return false;
}

// Sets the routes of windows of row (od, oh) that hold no input to kNowhere.
template <class Route>
void route_empty(const Plan& p, i64 channels, const Tile& tile, i64 od, i64 oh, Route* r) {
  const bool none = span_of(p.axis[0], od).taps == 0 || span_of(p.axis[1], oh).taps == 0;
  for (i64 o = tile.lo[2]; o < tile.hi[2]; ++o, r += channels) {
    if (none || span_of(p.axis[2], o).taps == 0)
      std::fill(r, r + channels, static_cast<Route>(kNowhere));
  }
}

}  // namespace poolgrad::inline POOLGRAD_ISA
