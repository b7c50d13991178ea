// Selecting reductions, forward: whole tiles of outputs, and where they and their routes go.
#pragma once

#include "base/partition.hpp"
#include "forward/van_herk_2d.hpp"
#include "operators/extreme.hpp"

namespace poolgrad {
namespace {

inline constexpr int kPacked = 16;  // elements that are moved at a time

// Rows that lie `pitch` apart, one behind the other; routes become bytes. Vectors reach beyond a
// row where the next one follows; there is as much behind the last of them.
template <int W, class T, class R>
POOLGRAD_LOOP void pack_by(const T* from, i64 pitch, R* to, i64 rows, i64 n) {
  using V = Vec<T, W>;
  const R* end = to + rows * n;
  for (i64 row = 0; row < rows; ++row, from += pitch, to += n) {
    for (i64 i = 0; i < n; i += W) {
      if constexpr (sizeof(R) * W >= 64) ask(to + i + kAhead<R>);
      if (to + i + W <= end) store(to + i, convert<R>(load<V>(from + i)));
      else std::transform(from + i, from + n, to + i, [](T v) { return static_cast<R>(v); });
    }
  }
}

template <class T, class R>
void pack(const T* from, i64 pitch, R* to, i64 rows, i64 n) {
  if (n <= kPacked / 4) pack_by<kPacked / 4>(from, pitch, to, rows, n);
  else pack_by<kPacked>(from, pitch, to, rows, n);
}

// What ReLU may follow: the maxima.
template <class Op>
concept Rectifies = requires(Vec<typename Op::In, 1> v) { Op::is_cut(v); };

// From the largest numbers to what is asked for: the opposites, where inputs were, or their ReLU,
// which is routed nowhere where it is zero.
template <class Op, class T, class R>
POOLGRAD_LOOP void finish(Select which, T* y, R* routes, i64 n) {
  if (which == Select::smallest) {
    for (i64 i = 0; i < n; ++i) y[i] = opposite(y[i]);
  }
  if constexpr (Rectifies<Op>) {
    if (which != Select::rectified) return;
    sweep_lanes<T>(n, [&](auto w, i64 i) {
      using V = Vec<T, w()>;
      using P = Vec<R, w()>;
      const V value = load<V>(y + i);
      const auto cut = Op::is_cut(value);
      store(y + i, cut ? V{} : value);
      if (!routes) return;
      const auto nowhere = bits_as<P>(convert<std::make_signed_t<R>>(cut));
      store(routes + i, load<P>(routes + i) | nowhere);
    });
  }
}

template <class T, bool Keep, bool Lone>
struct SelectKit {
  Separable<Max<T, Keep, Lone>> machine;
  Sink<T> y;
  Found<T> row;
};

// One plane's tile: values and, if kept, routes. `holes`: there are windows without an input.
template <class T, bool Keep, bool Lone>
void select_tile(const Plan& p, const Tile& tile, SelectKit<T, Keep, Lone>& kit, Dense routes,
                 i64 plane, Select which, bool holes) {
  const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      const i64 first = plane + (od * p.axis[1].out + oh) * p.out_row() + tile.lo[2] * p.inner;
      const auto row = kit.machine.row(od, oh, kit.row);
      T* y = kit.y.room(first, n, false);
      pack(row.v, n, y, 1, n);
      finish<Max<T, Keep, Lone>>(which, y, row.r, n);
      if (!Keep) continue;
      if (holes) route_empty(p, tile, od, oh, row.r);
      store_routes(row.r, routes, first, n);
    }
  }
}

// The same of wide windows over finite inputs.
template <class T, bool Keep>
struct WideKit {
  using Op = Max<T, Keep, false, false>;

  WideKit(const Plan& p, const View& x, const Tile& tile, Dense to, bool negate, Arena& arena)
      : sheet(p, x, tile, {negate}, {}, arena), y(to, sheet.most(), arena) {}

  Sheet<Op> sheet;
  Landing<T> y;
};

// Writes the routes of a patch, if they are wanted.
template <bool Keep>
struct RouteWriter {
  Dense routes;
  Grid array;
  i64 ahead, bytes;

  template <class P>
  POOLGRAD_INLINE void operator()(i64 q, i64 s, P where, i64 lanes) const {
    if constexpr (Keep) {
      const i64 at = array.at(q, s);
      ask(as<std::uint8_t>(routes, (at + ahead) * bytes));
      put_routes(where, routes, at, lanes);
    }
  }
};

// False: an input is not finite, and the outputs mean nothing.
template <class T, bool Keep>
bool wide_tile(const Plan& p, WideKit<T, Keep>& kit, const char* inputs, Dense routes, i64 plane,
               Select which, bool holes) {
  using Op = typename WideKit<T, Keep>::Op;
  const bool negate = which == Select::smallest, rectify = which == Select::rectified;
  using Patch = typename Sheet<Op>::Patch;
  const auto open = [&](const Patch& patch, i64 oh, i64) {
    kit.y.open(p, patch, plane + oh * p.out_row());
    return [=, values = kit.y.values(), here = kit.y.here, ahead = kit.y.ahead,
            write_routes = RouteWriter<Keep>{routes, kit.y.array, kit.y.ahead, p.route_bytes}](
               i64 q, i64 s, const auto& cell, u32 back, i64 lanes) __attribute__((always_inline)) {
      T* y = values + here.at(q, s);
      ask(y + ahead);
      auto best = negate ? opposites<T>(cell.best) : cell.best;
      auto where = Op::moved(cell.where, -back);
      if (rectify) Op::rectify(best, where);
      store_first(y, best, lanes);
      write_routes(q, s, where, lanes);
    };
  };
  const auto close = [&](const Patch& patch, i64 oh, i64 rows) {
    for (i64 q = 0; Keep && holes && q < rows; ++q) {  // windows without an input lead nowhere
      const bool none = span_of(p.axis[1], oh + q).taps == 0;
      for (i64 s = 0; s < patch.strips; ++s) {
        const i64 lanes = patch.lanes(s), at = kit.y.array.at(q, s);
        for (i64 i = 0; i < lanes; ++i) {
          const i64 column = (at + i) % p.out_row() / p.inner;
          if (none || span_of(p.axis[2], column).taps == 0)
            store_routes(&kNowhere, routes, at + i, 1);
        }
      }
    }
    kit.y.close(patch, rows);
  };
  for (i64 k = 0; k < kit.sheet.patches(); ++k) {
    if (!kit.sheet.make(inputs, k, open, close)) return false;
  }
  return true;
}

// The same, all places of a window at once.
template <class Op>
struct DirectKit {
  using T = typename Op::In;

  POOLGRAD_LOOP DirectKit(Algorithm algorithm, const Plan& p, const View& x, const Tile& tile,
                          Dense to, Dense kept, bool negate, Arena& arena)
      : windows(p, x, tile, negate, algorithm == Algorithm::unrolled_joined_rows, arena),
        bands(p, x, algorithm == Algorithm::register_blocked, negate, Op::kFill, arena),
        pixels(p, x, algorithm == Algorithm::register_blocked_channels_last, Op::kFill),
        keep(kept.data),
        narrow(algorithm == Algorithm::unrolled_joined_rows),
        y(to, most(p, tile), arena),
        routes(kept, most(p, tile), arena),
        staged{} {
    const i64 n = narrow ? windows.swept(windows.rows_swept()) + kPacked
                         : pixels.most() * pixels.columns() * p.inner;
    staged.y = arena.take<T>(n);
    if (keep) staged.routes = arena.take<std::uint8_t>(n);
  }

  // Outputs that are made at a time.
  i64 most(const Plan& p, const Tile& tile) const {
    return (narrow ? windows.rows_swept() : larger(1, bands.rows())) * length(p, tile);
  }

  static i64 length(const Plan& p, const Tile& tile) { return (tile.hi[2] - tile.lo[2]) * p.inner; }

  void start(const char* plane) {
    windows.start(plane);
    bands.start(plane);
    pixels.start(plane);
  }

  Direct<Op> windows;
  Bands<typename Optimistic<Op>::type> bands;
  Pixels<typename Optimistic<Op>::type> pixels;
  const bool keep, narrow;
  Sink<T> y;
  Sink<std::uint8_t> routes;
  typename Op::Target staged;  // rows of a narrow plane, or outputs of some pixels
};

// Rows from (od, oh) on, so many columns at once as stay in the first cache.
template <class Op>
void pixel_rows(const Plan& p, const Tile& tile, DirectKit<Op>& kit, i64 plane, i64 od, i64 oh,
                i64 rows, Select which) {
  const Axis& width = p.axis[2];
  const bool here = kit.y.in_place() && (!kit.keep || kit.routes.in_place());
  for (i64 lo = tile.lo[2], hi; lo < tile.hi[2]; lo = hi) {
    hi = smaller(tile.hi[2], lo + kit.pixels.columns());
    const i64 n = (hi - lo) * p.inner, pitch = here ? p.out_row() : n;
    const i64 full_lo = larger(lo, smaller(hi, width.full_lo));
    const i64 full_hi = larger(full_lo, smaller(hi, width.full_hi));
    const i64 first = plane + (od * p.axis[1].out + oh) * p.out_row() + lo * p.inner;
    auto to = kit.staged;
    if (here) {
      to = Op::target(kit.y.room(first, n, false),
                      kit.keep ? kit.routes.room(first, n, false) : nullptr, false);
    }
    const i64 offset = (full_lo - lo) * p.inner;
    const bool made =
        full_lo == full_hi || kit.pixels.make(oh, rows, full_lo, full_hi, to.at(offset), pitch);
    for (i64 q = 0; q < rows; ++q) {
      const auto row = to.at(q * pitch);
      if (!made) kit.windows.part(od, oh + q, full_lo, full_hi, row.at(offset));
      if (lo < full_lo) kit.windows.part(od, oh + q, lo, full_lo, row);
      if (full_hi < hi) {
        kit.windows.part(od, oh + q, full_hi, hi, row.at((full_hi - lo) * p.inner));
      }
      finish<Op>(which, row.y, row.routes, n);
      if (here) continue;
      kit.y.put(first + q * p.out_row(), row.y, n);
      if (row.routes) kit.routes.put(first + q * p.out_row(), row.routes, n);
    }
  }
}

// `lone`: ties are routed nowhere, by the median; the maximum has a machine of its own for it.
template <class Op>
void direct_tile(const Plan& p, const Tile& tile, DirectKit<Op>& kit, const char* inputs, i64 plane,
                 Select which, bool lone) {
  const i64 length = kit.length(p, tile), most = larger(1, kit.bands.rows());
  const auto place = [&](i64 first, i64 n, auto&& make) {
    auto* y = kit.y.room(first, n, !kit.bands.rows());
    std::uint8_t* routes = kit.keep ? kit.routes.room(first, n) : nullptr;
    make(Op::target(y, routes, lone));
    finish<Op>(which, y, routes, n);
  };
  if (kit.narrow) {
    const i64 pitch = kit.windows.pitch(), end = tile.hi[1];
    for (i64 oh = tile.lo[1], rows; oh < end; oh += rows) {
      rows = smaller(kit.windows.rows_swept(), end - oh);
      const i64 first = plane + oh * length;
      if (kit.windows.sweep_rows(inputs, oh, rows, kit.staged)) {
        place(first, rows * length, [&](typename Op::Target to) {
          pack(kit.staged.y, pitch, to.y, rows, length);
          if (kit.keep) pack(kit.staged.routes, pitch, to.routes, rows, length);
        });
        continue;
      }
      for (i64 q = 0; q < rows; ++q) {
        kit.windows.row(0, oh + q, [&](i64 at, i64 n, auto&& make) {
          place(first + q * length + at, n, make);
        });
      }
    }
    return;
  }
  const auto some = [&](i64 od, i64 oh) {  // rows from (od, oh) on: how many
    i64 rows = kit.pixels.rows(oh, tile.hi[1]);
    if (rows > 0) {
      pixel_rows(p, tile, kit, plane, od, oh, rows, which);
      return rows;
    }
    rows = smaller(most, tile.hi[1] - oh);
    const i64 first = plane + (od * p.axis[1].out + oh) * p.out_row() + tile.lo[2] * p.inner;
    if (!kit.bands.rows()) {
      kit.windows.row(od, oh, [&](i64 at, i64 n, auto&& make) { place(first + at, n, make); });
      return rows;
    }
    place(first, rows * length, [&](typename Op::Target to) {
      const bool made = kit.bands.make(od, oh, rows, to);
      for (i64 q = 0; q < rows; ++q) {
        const auto row = to.at(q * length);
        if (made && !(kit.keep && kit.bands.is_suspect(oh + q, row))) continue;
        kit.windows.row(od, oh + q, [&](i64 at, i64, auto&& make) { make(row.at(at)); });
      }
    });
    return rows;
  };
  over_rows(tile, kit.bands.deep(), some);
}

// All outputs.
template <class Op>
void small_windows(const Work& work, Algorithm algorithm, const View& x, Dense y, Dense routes,
                   Select which, bool lone) {
  const Plan& p = *work.plan;
  const bool negate = which == Select::smallest;
  using Kit = DirectKit<Op>;
  over_outputs(
      work,
      [&](const Tile& tile, Arena& a) { return Kit(algorithm, p, x, tile, y, routes, negate, a); },
      [&](Kit& kit, i64 plane, const Tile& tile) {
        kit.start(plane_of(x, plane));
        direct_tile(p, tile, kit, plane_of(x, plane), plane * p.out_plane(), which, lone);
      },
      true);
}

}  // namespace
}  // namespace poolgrad
