// Selecting reductions, forward: one input of a window wins; its place is the route.
#pragma once

#include "separable.hpp"

namespace poolgrad {
namespace {

template <class T>
struct Limits;
template <>
struct Limits<float> {
  static constexpr float lowest() { return -__builtin_huge_valf(); }
};
template <>
struct Limits<double> {
  static constexpr double lowest() { return -__builtin_huge_val(); }
};

// The maximum. A later input wins only if it is greater, so the first of equals stays; a NaN wins
// over everything before it, so the last NaN stays. Keep: remember the place. Lone: a window whose
// maximum occurs more than once is routed nowhere (ties="zero").
template <class T, bool Keep, bool Lone>
struct Max {
  using In = T;
  struct Row {
    T* v;
    u32* r;
  };

  static Row take(Arena& arena, i64 n) {
    return {arena.take<T>(n), Keep ? arena.take<u32>(n) : nullptr};
  }
  static Row at(Row row, i64 offset) { return {row.v + offset, Keep ? row.r + offset : nullptr}; }

  POOLGRAD_LOOP static void clear(Row row, i64 n) {
    for (i64 i = 0; i < n; ++i) row.v[i] = Limits<T>::lowest();
    if constexpr (Keep) {
      for (i64 i = 0; i < n; ++i) row.r[i] = kNowhere;
    }
  }

  template <class V, class P>
  static void challenge(V& best, P& where, V value, P place) {
    const auto mask = [](auto m) { return convert<std::int32_t>(m); };
    const auto wins = (value > best) | (value != value);
    if constexpr (Lone) where = mask(value == best) ? P{} + kNowhere : where;
    if constexpr (Keep) where = mask(wins) ? place : where;
    best = wins ? value : best;
  }

  template <class Size, class First, class Distance>
  POOLGRAD_LOOP static void sweep(Row to, i64 n, const T* from, Distance distance, u32 place, Size,
                                  First) {
    lanes<T>(n, [&](auto w, i64 i) {
      using V = Vec<T, w()>;
      using P = Vec<u32, w()>;
      V best = First::value ? distance.template get<V>(from, i, 0) : load<V>(to.v + i);
      P where = First::value || !Keep ? P{} + place : load<P>(to.r + i);
      for (i64 t = First::value; t < Size::value; ++t) {
        challenge(best, where, distance.template get<V>(from, i, t),
                  P{} + (place + static_cast<u32>(t)));
      }
      store(to.v + i, best);
      if constexpr (Keep) store(to.r + i, where);
    });
  }

  // One output over many neighbours: each lane looks at every W-th of them, then lanes are
  // compared.
  POOLGRAD_LOOP static void across(Row to, const T* from, i64 taps, u32 place) {
    constexpr i64 W = kVectorBytes / static_cast<i64>(sizeof(T));
    using V = Vec<T, W>;
    using P = Vec<u32, W>;
    V best = load<V>(from);
    P here;
    for (i64 j = 0; j < W; ++j) here[j] = place + static_cast<u32>(j);
    P where = here;
    i64 t = W;
    for (; t + W <= taps; t += W) challenge(best, where, load<V>(from + t), here += W);
    T winner = best[0];
    u32 route = where[0];
    const auto compare = [&](T value, u32 other) {
      const bool beaten = value > winner || (value != value && winner == winner);
      // among equals the first place stays, among NaNs the last
      const bool before = value == winner && other < route;
      const bool after = value != value && winner != winner && other > route;
      const bool shared = Lone && value == winner;
      if (beaten || before || after) route = other;
      if (shared) route = kNowhere;
      if (beaten) winner = value;
    };
    for (i64 j = 1; j < W; ++j) compare(best[j], where[j]);
    for (; t < taps; ++t) compare(from[t], place + static_cast<u32>(t));
    to.v[0] = winner;
    if constexpr (Keep) to.r[0] = route;
  }

  // to[i] = max over t of from[i * step + t * gap], whose places are place, place + 1, ...
  POOLGRAD_LOOP static void fold_inputs(Row to, i64 n, const T* from, i64 step, i64 gap, i64 taps,
                                        i64 place) {
    if (n == 1 && gap == 1 && taps >= kAcross)
      return across(to, from, taps, static_cast<u32>(place));
    in_groups(taps, [&](auto size, auto first, i64 begin) {
      const T* here = from + begin * gap;
      const u32 where = static_cast<u32>(place + begin);
      by_distance(step, gap, taps, first,
                  [&](auto distance) { sweep(to, n, here, distance, where, size, first); });
    });
  }

  // The same over `size` rows; row t's places are moved by place + t * places_apart.
  template <class Size, class First>
  POOLGRAD_LOOP static void fold_rows(Row to, i64 n, const Row* rows, i64 place, i64 places_apart,
                                      Size, First) {
    Row from[Size::value];
    for (i64 t = 0; t < Size::value; ++t) from[t] = rows[t];
    lanes<T>(n, [&](auto w, i64 i) {
      using V = Vec<T, w()>;
      using P = Vec<u32, w()>;
      const auto place_at = [&](i64 t) {
        if constexpr (!Keep) return P{};
        const P was = load<P>(from[t].r + i);
        const P moved = was + static_cast<u32>(place + t * places_apart);
        return Lone ? (was == kNowhere ? was : moved) : moved;
      };
      V best = load<V>(First::value ? from[0].v + i : to.v + i);
      P where = First::value ? place_at(0) : Keep ? load<P>(to.r + i) : P{};
      for (i64 t = First::value; t < Size::value; ++t) {
        challenge(best, where, load<V>(from[t].v + i), place_at(t));
      }
      store(to.v + i, best);
      if constexpr (Keep) store(to.r + i, where);
    });
  }
};

template <class R>
void narrow(const u32* from, R* to, i64 n) {
  lanes<u32>(n, [&](auto w, i64 i) {  // kNowhere becomes R's largest
    store(to + i, convert<R>(load<Vec<u32, w()>>(from + i)));
  });
}

[[maybe_unused]] inline void store_routes(const u32* from, void* to, i64 first, i64 n, int bytes) {
  if (bytes == 1) narrow(from, static_cast<std::uint8_t*>(to) + first, n);
  else if (bytes == 2) narrow(from, static_cast<std::uint16_t*>(to) + first, n);
  else narrow(from, static_cast<u32*>(to) + first, n);
}

// One plane's tile: values into y, routes (if kept) into `routes`; both point to the plane.
template <class T, bool Keep, bool Lone>
void select_tile(const Plan& p, const Tile& tile, Separable<Max<T, Keep, Lone>>& machine, T* y,
                 void* routes, u32* route_row) {
  using Row = typename Max<T, Keep, Lone>::Row;
  const i64 n = machine.length(), inner = p.inner;
  const Axis& a = p.axis[2];
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      const i64 first = (od * p.axis[1].out + oh) * p.out_row() + tile.lo[2] * inner;
      const Row into{y + first, route_row};
      const Row made = machine.row(od, oh, into);
      if (made.v != into.v) std::memcpy(into.v, made.v, static_cast<std::size_t>(n) * sizeof(T));
      if constexpr (Keep) {
        if (span_of(p.axis[0], od).taps == 0 || span_of(p.axis[1], oh).taps == 0) {
          for (i64 i = 0; i < n; ++i) made.r[i] = kNowhere;
        }
        for (i64 o = tile.lo[2]; o < tile.hi[2]; ++o) {
          if (o == larger(tile.lo[2], a.full_lo) && a.full_hi > o)
            o = smaller(tile.hi[2], a.full_hi);
          if (o >= tile.hi[2] || span_of(a, o).taps) continue;
          for (i64 c = 0; c < inner; ++c) made.r[(o - tile.lo[2]) * inner + c] = kNowhere;
        }
        store_routes(made.r, routes, first, n, p.route_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace poolgrad
