// Selecting reductions, forward: one input of a window wins; its place is the route.
#pragma once

#include "pixels.hpp"

namespace poolgrad {
namespace {

// Below everything that an input can be; for floating types equal to the lowest.
template <class T>
constexpr T lowest() {
  return kFloat<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
}
template <class T>
constexpr T highest() {
  return kFloat<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
}

// Values, and the places where they were found.
template <class T>
struct Found {
  T* v;
  u32* r;
};

// The maximum. A later input wins only if it is greater, so the first of equals stays; a NaN wins
// over everything before it, so the last NaN stays. Keep: remember the place. Lone: a window whose
// maximum occurs more than once is routed nowhere (ties="zero").
// NaNs: there may be some.
template <class T, bool Keep, bool Lone, bool NaNs = kFloat<T>>
struct Max {
  using In = T;
  using Row = Found<T>;
  using Hasty = Max<T, Keep, Lone, false>;

  static constexpr bool kIdempotent = !Lone;
  static constexpr bool kDoubles = true;
  static constexpr T kFill = lowest<T>();  // wins only where all inputs are equal to it
  static bool is_suspect(Row row, i64 n) {
    bool found = false;
    for (i64 i = 0; Keep && i < n; ++i) found |= row.v[i] == lowest<T>();
    return found;
  }

  // Output i, if it is the lowest number: so are all inputs of its window, and the first one wins.
  static void settle(Row row, i64 i, i64 first, i64 inputs) {
    if (Keep && row.v[i] == lowest<T>())
      row.r[i] = Lone && inputs > 1 ? kNowhere : static_cast<u32>(first);
  }

  static Row take(Arena& arena, i64 n) {
    return {arena.take<T>(n), Keep ? arena.take<u32>(n) : nullptr};
  }
  static Row slot(Row row, i64 offset) { return at(row, offset); }
  static Row at(Row row, i64 offset) { return {row.v + offset, Keep ? row.r + offset : nullptr}; }

  POOLGRAD_LOOP static void clear(Row row, i64 n) {
    for (i64 i = 0; i < n; ++i) row.v[i] = lowest<T>();
    if constexpr (Keep) {
      for (i64 i = 0; i < n; ++i) row.r[i] = kNowhere;
    }
  }

  template <class V, class P>
  static void challenge(V& best, P& where, V value, P place) {
    using Mask = std::make_signed_t<std::remove_cvref_t<decltype(where[0])>>;
    const auto mask = [](auto m) { return convert<Mask>(m); };
    auto wins = value > best;
    if constexpr (NaNs) wins |= value != value;
    if constexpr (Lone) where = mask(value == best) ? P{} + kNowhere : where;
    if constexpr (Keep) where = mask(wins) ? place : where;
    best = wins ? value : best;
  }

  template <class P>
  static P moved(P where, u32 by) {
    return Lone ? (where == kNowhere ? where : where + by) : where + by;
  }

  // What is known of parts of windows, side by side; places are moved when it is read or written.
  template <class V>
  struct Cell {
    V best;
    Vec<u32, static_cast<int>(sizeof(V) / sizeof(T))> where;
  };
  template <class C>
  static C load_cell(Row from, u32 by) {
    C cell{load<decltype(C::best)>(from.v), {}};
    if constexpr (Keep) cell.where = moved(load<decltype(C::where)>(from.r), by);
    return cell;
  }
  template <class C>
  static void merge(C& cell, const C& later) {
    challenge(cell.best, cell.where, later.best, later.where);
  }
  template <class C>
  static void store_cell(Row to, const C& cell, u32 back) {
    store(to.v, cell.best);
    if constexpr (Keep) store(to.r, moved(cell.where, -back));
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
    constexpr i64 kAhead = 2048 / static_cast<i64>(sizeof(T));
    using V = Vec<T, W>;
    using P = Vec<u32, W>;
    V best = load<V>(from);
    P here;
    for (i64 j = 0; j < W; ++j) here[j] = place + static_cast<u32>(j);
    P where = here;
    i64 t = W;
    for (; t + W <= taps; t += W) {
      __builtin_prefetch(from + t + kAhead);
      challenge(best, where, load<V>(from + t), here += W);
    }
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
        else return moved(load<P>(from[t].r + i), static_cast<u32>(place + t * places_apart));
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

// Where outputs and their routes go.
template <class T, bool Keep>
struct Winners {
  T* y;
  std::uint8_t* routes;
  Winners at(i64 offset) const { return {y + offset, Keep ? routes + offset : nullptr}; }
  Winners line(i64 row, i64 length) const { return at(row * length); }
};

// The same in registers, for windows of at most 255 places. NaNs: there may be some.
template <class T, bool Keep, bool NaNs = kFloat<T>>
struct Best {
  using In = T;
  using Hasty = Best<T, Keep, false>;
  using Place = std::conditional_t<sizeof(T) == 1, std::uint8_t, u32>;
  using Target = Winners<T, Keep>;
  static Target target(T* y, std::uint8_t* routes, bool) { return {y, routes}; }
  static constexpr bool kByLines = false, kNarrow = true, kPads = true;
  static constexpr T kFill = lowest<T>();  // wins only where all inputs are equal to it
  static bool is_suspect(Target to, i64 i) { return to.y[i] == lowest<T>(); }
  template <class V>
  struct Cell {
    static constexpr int W = static_cast<int>(sizeof(V) / sizeof(T));
    V best;
    Vec<Place, W> where;
  };

  static void clear(Target to, i64 n) {
    for (i64 i = 0; i < n; ++i) to.y[i] = lowest<T>();
    if (Keep) std::memset(to.routes, 0xFF, static_cast<std::size_t>(n));
  }
  template <class V>
  static Cell<V> first(V value, u32 place) {
    return {value, Vec<Place, Cell<V>::W>{} + static_cast<Place>(place)};
  }
  template <class V>
  static void take(Cell<V>& cell, V value, u32 place) {
    challenge(cell, value, first<V>(value, place).where);
  }
  template <class C>
  static void merge(C& cell, const C& later, u32 moved) {
    challenge(cell, later.best, later.where + static_cast<Place>(moved));
  }
  template <class V>
  static void store(Target to, i64 i, const Cell<V>& cell) {
    poolgrad::store(to.y + i, cell.best);
    if constexpr (Keep) poolgrad::store(to.routes + i, convert<std::uint8_t>(cell.where));
  }

 private:
  template <class C, class V, class P>
  static void challenge(C& cell, V value, P place) {
    Max<T, Keep, false, NaNs>::challenge(cell.best, cell.where, value, place);
  }
};

template <class R>
void narrow(const u32* from, R* to, i64 n) {
  lanes<u32>(n, [&](auto w, i64 i) {  // kNowhere becomes R's largest
    store(to + i, convert<R>(load<Vec<u32, w()>>(from + i)));
  });
}

[[maybe_unused]] inline void store_routes(const u32* from, Dense to, i64 first, i64 n) {
  if (to.dtype == Dtype::uint8) narrow(from, as<std::uint8_t>(to, first), n);
  else if (to.dtype == Dtype::uint16) narrow(from, as<std::uint16_t>(to, first), n);
  else narrow(from, as<u32>(to, first), n);
}

[[maybe_unused]] inline bool has_empty_windows(const Plan& p) {
  for (const Axis& a : p.axis) {
    for (i64 o = 0; o < a.out; ++o) {
      if (o == a.full_lo && a.full_hi > o) o = a.full_hi;
      if (o < a.out && span_of(a, o).taps == 0) return true;
    }
  }
  return false;
}

// Outputs of row (od, oh) whose window holds no input are routed nowhere.
[[maybe_unused]] inline void route_empty(const Plan& p, const Tile& tile, i64 od, i64 oh, u32* r) {
  const Axis& a = p.axis[2];
  const i64 lo = tile.lo[2], hi = tile.hi[2], inner = p.inner;
  if (span_of(p.axis[0], od).taps == 0 || span_of(p.axis[1], oh).taps == 0) {
    for (i64 i = 0; i < (hi - lo) * inner; ++i) r[i] = kNowhere;
  }
  for (i64 o = lo; o < hi; ++o) {
    if (o == larger(lo, a.full_lo) && a.full_hi > o) o = smaller(hi, a.full_hi);
    if (o >= hi || span_of(a, o).taps) continue;
    for (i64 c = 0; c < inner; ++c) r[(o - lo) * inner + c] = kNowhere;
  }
}

inline constexpr int kPacked = 16;  // elements that are moved at a time

// Rows that lie `pitch` apart, one behind the other; routes become bytes. Vectors reach beyond a row
// where the next one follows; there is as much behind the last of them.
template <class T, class R>
POOLGRAD_LOOP void pack(const T* from, i64 pitch, R* to, i64 rows, i64 n) {
  using V = Vec<T, kPacked>;
  const R* end = to + rows * n;
  for (i64 row = 0; row < rows; ++row, from += pitch, to += n) {
    for (i64 i = 0; i < n; i += kPacked) {
      if (to + i + kPacked <= end) store(to + i, convert<R>(load<V>(from + i)));
      else std::transform(from + i, from + n, to + i, [](T v) { return static_cast<R>(v); });
    }
  }
}

template <class T, bool Keep, bool Lone>
struct SelectKit {
  Separable<Max<T, Keep, Lone>> machine;
  Sink<T> y;
  Found<T> row;
  Sink<std::uint8_t> bytes;
};

// One plane's tile: values and, if kept, routes. `holes`: there are windows without an input.
template <class T, bool Keep, bool Lone>
void select_tile(const Plan& p, const Tile& tile, SelectKit<T, Keep, Lone>& kit, Dense routes,
                 i64 plane, bool negate, bool holes) {
  const auto rows = [&](const Tile& part, i64 od, i64 oh) {
    const i64 n = (part.hi[2] - part.lo[2]) * p.inner;
    const i64 first = plane + (od * p.axis[1].out + oh) * p.out_row() + part.lo[2] * p.inner;
    const auto made = kit.machine.rows(od, oh, part.hi[1], kit.row);
    T* y = kit.y.room(first, made.count * n);
    pack(made.row.v, made.pitch, y, made.count, n);
    for (i64 i = 0; negate && i < made.count * n; ++i) y[i] = opposite(y[i]);
    if constexpr (Keep) {
      for (i64 q = 0; holes && q < made.count; ++q) {
        route_empty(p, part, od, oh + q, made.row.r + q * made.pitch);
      }
      if (routes.dtype == Dtype::uint8) {
        pack(made.row.r, made.pitch, kit.bytes.room(first, made.count * n), made.count, n);
      } else {
        for (i64 q = 0; q < made.count; ++q) {
          store_routes(made.row.r + q * made.pitch, routes, first + q * n, n);
        }
      }
    }
    return made.count;
  };
  each_piece(kit.machine, tile, [&](const Tile& part) {
    for (i64 od = part.lo[0]; od < part.hi[0]; ++od) {
      for (i64 oh = part.lo[1]; oh < part.hi[1];) oh += rows(part, od, oh);
    }
  });
}

// The same, all places of a window at once.
template <class Op>
struct DirectKit {
  using T = typename Op::In;

  DirectKit(const Plan& p, const View& x, const Tile& tile, Dense to, Dense kept, bool negate,
            Arena& arena)
      : windows(p, x, tile, negate, arena),
        bands(p, x, tile, negate, arena),
        pixels(p, x, negate),
        keep(kept.data),
        narrow(!bands.rows() && windows.narrow()),
        y(to, p.outer * p.out_plane(), most(p, tile), arena),
        routes(kept, p.outer * p.out_plane(), most(p, tile), arena),
        staged{} {
    const i64 n = narrow ? windows.swept() + kPacked : pixels.most() * pixels.columns() * p.inner;
    staged.y = arena.take<T>(n);
    if (keep) staged.routes = arena.take<std::uint8_t>(n);
  }

  // Outputs that are made at a time.
  i64 most(const Plan& p, const Tile& tile) const {
    return (narrow ? p.axis[1].out : larger(1, bands.rows())) * length(p, tile);
  }

  static i64 length(const Plan& p, const Tile& tile) { return (tile.hi[2] - tile.lo[2]) * p.inner; }

  void start(const char* plane) {
    windows.start(plane);
    bands.start(plane);
    pixels.start(plane);
  }

  Direct<Op> windows;
  Bands<Op> bands;
  Pixels<Op> pixels;
  const bool keep, narrow;
  Sink<T> y;
  Sink<std::uint8_t> routes;
  typename Op::Target staged;  // a narrow plane's outputs, or those of some pixels
};

// Rows from (od, oh) on, so many columns at once as stay in the first cache.
template <class Op>
void pixel_rows(const Plan& p, const Tile& tile, DirectKit<Op>& kit, i64 plane, i64 od, i64 oh,
                i64 rows) {
  const Axis& width = p.axis[2];
  for (i64 lo = tile.lo[2], hi; lo < tile.hi[2]; lo = hi) {
    hi = smaller(tile.hi[2], lo + kit.pixels.columns());
    const i64 n = (hi - lo) * p.inner;
    const i64 full_lo = larger(lo, smaller(hi, width.full_lo));
    const i64 full_hi = larger(full_lo, smaller(hi, width.full_hi));
    if (full_lo < full_hi) {
      const auto first = kit.staged.at((full_lo - lo) * p.inner);
      kit.pixels.make(oh, rows, full_lo, full_hi, first, n);
    }
    for (i64 q = 0; q < rows; ++q) {
      const auto row = kit.staged.at(q * n);
      if (lo < full_lo) kit.windows.part(od, oh + q, lo, full_lo, row);
      if (full_hi < hi) {
        kit.windows.part(od, oh + q, full_hi, hi, row.at((full_hi - lo) * p.inner));
      }
      const i64 first = plane + (od * p.axis[1].out + oh + q) * p.out_row() + lo * p.inner;
      kit.y.put(first, row.y, n);
      if (row.routes) kit.routes.put(first, row.routes, n);
    }
  }
}

// `lone`: ties are routed nowhere, by the median; the maximum has a machine of its own for it.
template <class Op>
void direct_tile(const Plan& p, const Tile& tile, DirectKit<Op>& kit, const char* inputs, i64 plane,
                 bool negate, bool lone) {
  const i64 length = kit.length(p, tile), most = larger(1, kit.bands.rows());
  const auto place = [&](i64 first, i64 n, auto&& make) {
    auto* y = kit.y.room(first, n);
    std::uint8_t* routes = kit.keep ? kit.routes.room(first, n) : nullptr;
    make(Op::target(y, routes, lone));
    for (i64 i = 0; negate && i < n; ++i) y[i] = opposite(y[i]);
  };
  if (kit.narrow && kit.windows.sweep_plane(inputs, kit.staged)) {
    const i64 rows = p.axis[1].out, pitch = kit.windows.pitch();
    return place(plane, rows * length, [&](typename Op::Target to) {
      pack(kit.staged.y, pitch, to.y, rows, length);
      if (kit.keep) pack(kit.staged.routes, pitch, to.routes, rows, length);
    });
  }
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1], rows; oh < tile.hi[1]; oh += rows) {
      rows = kit.pixels.rows(oh, tile.hi[1]);
      if (rows > 0) {
        pixel_rows(p, tile, kit, plane, od, oh, rows);
        continue;
      }
      rows = smaller(most, tile.hi[1] - oh);
      const i64 first = plane + (od * p.axis[1].out + oh) * p.out_row() + tile.lo[2] * p.inner;
      if (!kit.bands.rows()) {
        kit.windows.row(od, oh, [&](i64 at, i64 n, auto&& make) { place(first + at, n, make); });
        continue;
      }
      place(first, rows * length, [&](typename Op::Target to) {
        kit.bands.make(od, oh, rows, to);
        for (i64 q = 0; kit.keep && q < rows; ++q) {
          const auto row = to.at(q * length);
          if (!kit.bands.is_suspect(oh + q, row)) continue;
          kit.windows.row(od, oh + q, [&](i64 at, i64, auto&& make) { make(row.at(at)); });
        }
      });
    }
  }
}

}  // namespace
}  // namespace poolgrad
