// Backward of a selecting reduction: each output's gradient goes along its route. And the way
// there: what a tangent of the input becomes.
#pragma once

#include "backward.hpp"
#include "separable.hpp"

namespace poolgrad {
namespace {

// Small windows: every input row asks the output rows that cover it, "did the winner lie here?".
// No write is ever repeated, and nothing is decoded.
template <class T, class R>
class Gather {
 public:
  Gather(const Plan& p, const Piece& piece, bool in_place, Arena& arena)
      : p_(p), piece_(piece), phases_(p.axis[2], piece.lo[2], piece.hi[2], p.inner == 1, arena) {
    const i64 n = (phases_.outputs().hi - phases_.outputs().lo) * p.inner;
    gradients_ = arena.take<T>(n);
    routes_ = arena.take<R>(n);
    row_ = in_place ? nullptr : arena.take<T>(columns());
  }

  void run(const View& gy, const char* gradients, const View& routing, const char* routes, Dense gx,
           i64 plane) {
    const Axis &depth = p_.axis[0], &height = p_.axis[1], &width = p_.axis[2];
    const Range outs = phases_.outputs();
    for (i64 d = piece_.lo[0]; d < piece_.hi[0]; ++d) {
      for (i64 h = piece_.lo[1]; h < piece_.hi[1]; ++h) {
        const i64 first = plane + ((d * height.in + h) * width.in + piece_.lo[2]) * p_.inner;
        T* row = row_ ? row_ : as<T>(gx, first);
        if (p_.inner == 1) phases_.clear();
        else std::memset(row, 0, static_cast<std::size_t>(columns()) * sizeof(T));
        const Range depths = covering(depth, d), heights = covering(height, h);
        for (i64 od = depths.lo; od < depths.hi; ++od) {
          const i64 kd = place_of(depth, span_of(depth, od), d);
          if (kd < 0) continue;
          for (i64 oh = heights.lo; oh < heights.hi; ++oh) {
            const i64 kh = place_of(height, span_of(height, oh), h);
            if (kh < 0) continue;
            const T* g = row_of(gy, gradients, p_.inner, od, oh, outs.lo, outs.hi, gradients_);
            const R* r = row_of(routing, routes, p_.inner, od, oh, outs.lo, outs.hi, routes_);
            const i64 place = (kd * height.kernel + kh) * width.kernel;
            if (p_.inner == 1) into_phases(g, r, place);
            else into_row(g, r, place, row);
          }
        }
        if (p_.inner == 1) phases_.store(row);
        if (row_) write(gx, first, row_, columns());
      }
    }
  }

 private:
  i64 columns() const { return (piece_.hi[2] - piece_.lo[2]) * p_.inner; }

  POOLGRAD_LOOP static void add_routed(T* to, const T* g, const R* r, R place, i64 n) {
    lanes<T>(n, [&](auto w, i64 i) {
      using V = Vec<T, w()>;
      using Lane = std::conditional_t<sizeof(T) == 4, u32, std::uint64_t>;  // as wide as a value
      const auto here = convert<Lane>(load<Vec<R, w()>>(r + i)) == Lane{place};
      store(to + i, load<V>(to + i) + (here ? load<V>(g + i) : V{}));
    });
  }

  // Later places first: so what reaches one input comes in ascending order of outputs.
  void into_phases(const T* g, const R* r, i64 place) {
    const i64 n = phases_.outputs().hi - phases_.outputs().lo;
    for (i64 kw = p_.axis[2].kernel - 1; kw >= 0; --kw) {
      add_routed(phases_.at(kw), g, r, static_cast<R>(place + kw), n);
    }
  }

  void into_row(const T* g, const R* r, i64 place, T* row) {
    const Axis& width = p_.axis[2];
    const Range outs = phases_.outputs();
    for (i64 o = outs.lo; o < outs.hi; ++o, g += p_.inner, r += p_.inner) {
      const Span s = span_of(width, o);
      for (i64 t = 0; t < s.taps; ++t) {
        const i64 w = s.begin + t * width.dilation;
        if (w < piece_.lo[2] || w >= piece_.hi[2]) continue;
        add_routed(row + (w - piece_.lo[2]) * p_.inner, g, r, static_cast<R>(place + s.place + t),
                   p_.inner);
      }
    }
  }

  const Plan& p_;
  const Piece piece_;
  Phases<T> phases_;
  T *gradients_, *row_;
  R* routes_;
};

// Any windows: every output adds its gradient where its route says. Costs the same for any kernel.
template <class T, class R>
class Scatter {
 public:
  Scatter(const Plan& p, const Piece& piece, bool in_place, Arena& arena)
      : p_(p),
        piece_(piece),
        places_(p, p.axis[1].in * p.axis[2].in * p.inner, p.axis[2].in * p.inner, p.inner, arena),
        gradients_(arena.take<T>(p.out_row())),
        routes_(arena.take<R>(p.out_row())),
        sums_(p, piece, in_place, arena) {}

  void run(const View& gy, const char* gradients, const View& routing, const char* routes, Dense gx,
           i64 plane) {
    const Axis& width = p_.axis[2];
    const Range outs = {covering(width, piece_.lo[2]).lo, covering(width, piece_.hi[2] - 1).hi};
    places_.fill();
    T* sums = sums_.start(gx, plane);
    rows_reaching(p_, piece_, [&](i64 od, i64 oh) {
      sums_.reach(od, oh);
      const T* g = row_of(gy, gradients, p_.inner, od, oh, outs.lo, outs.hi, gradients_);
      const R* r = row_of(routing, routes, p_.inner, od, oh, outs.lo, outs.hi, routes_);
      const i64 row = start_of(p_.axis[0], od) * p_.axis[1].in + start_of(p_.axis[1], oh);
      for (i64 o = outs.lo; o < outs.hi; ++o) {
        const i64 start = (row * width.in + start_of(width, o)) * p_.inner;
        for (i64 c = 0; c < p_.inner; ++c, ++g, ++r) {
          if (*r >= p_.places) continue;  // nowhere (or a route that was tampered with)
          const i64 at = start + c + places_[*r];
          if (at >= sums_.first() && at < sums_.last()) sums[at] += *g;
        }
      }
    });
    sums_.finish(gx, plane);
  }

 private:
  const Plan& p_;
  const Piece piece_;
  Places places_;
  T* gradients_;
  R* routes_;
  PieceSums<T> sums_;
};

// to[o] = tangent at the route of o, 0 where it is routed nowhere. Each place is checked against
// the input: routes may come from a caller.
template <class T, class R>
void follow_routes(const Plan& p, const Tile& tile, const View& x, const char* tangents,
                   const View& routing, const char* routes, R* buffer, T* row, Dense y, i64 plane) {
  const u32 kh = static_cast<u32>(p.axis[1].kernel), kw = static_cast<u32>(p.axis[2].kernel);
  const auto input = [&](int axis, i64 output, i64 place) {
    const Axis& a = p.axis[axis];
    return start_of(a, output) + place * a.dilation;
  };
  by_element<T>(x.dtype, [&](auto s) {
    using S = decltype(s);
    const S* from = reinterpret_cast<const S*>(tangents);
    for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
      for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
        const R* r = row_of(routing, routes, p.inner, od, oh, tile.lo[2], tile.hi[2], buffer);
        T* to = row;
        for (i64 o = tile.lo[2]; o < tile.hi[2]; ++o) {
          for (i64 c = 0; c < p.inner; ++c, ++r, ++to) {
            const u32 place = *r, line = place / kw;
            const i64 d = input(0, od, line / kh), h = input(1, oh, line % kh);
            const i64 w = input(2, o, place % kw);
            const bool real = place < p.places && d >= 0 && d < p.axis[0].in && h >= 0 &&
                              h < p.axis[1].in && w >= 0 && w < p.axis[2].in;
            *to = T(0);
            if (real) {
              widen_run(from + d * x.depth + h * x.height + w * x.width + c * x.inner, to, 1);
            }
          }
        }
        write(y, plane + (od * p.axis[1].out + oh) * p.out_row() + tile.lo[2] * p.inner, row,
              to - row);
      }
    }
  });
}

// The routes as flat positions in the (unpadded) plane, -1 for nowhere.
template <class R>
void routes_to_indices(const Plan& p, const Tile& tile, const View& routing, const char* routes,
                       const Places& places, R* buffer, i64* indices) {
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      const R* r = row_of(routing, routes, p.inner, od, oh, tile.lo[2], tile.hi[2], buffer);
      i64* to = indices + (od * p.axis[1].out + oh) * p.out_row() + tile.lo[2] * p.inner;
      const i64 row = start_of(p.axis[0], od) * p.axis[1].in + start_of(p.axis[1], oh);
      for (i64 o = tile.lo[2]; o < tile.hi[2]; ++o) {
        const i64 start = row * p.axis[2].in + start_of(p.axis[2], o);
        for (i64 c = 0; c < p.inner; ++c, ++r) {
          *to++ = *r < p.places ? start + places[*r] : -1;
        }
      }
    }
  }
}

}  // namespace
}  // namespace poolgrad
