// Backward of a selecting reduction: each output's gradient goes along its route. And the way
// there: what a tangent of the input becomes.
#pragma once

#include "back_bands.hpp"
#include "back_pixels.hpp"

namespace poolgrad {
namespace {

// Any windows: every output adds its gradient where its route says. Costs the same for any kernel.
// Neighbours often have the same winner, and so wait for each other's sums: several planes side by
// side do not.
template <class T, class R>
class Scatter {
 public:
  static constexpr i64 kTogether = 4;  // planes

  Scatter(const Plan& p, const Piece& piece, bool in_place, Arena& arena)
      : p_(p),
        piece_(piece),
        places_(p, p.axis[1].in * p.axis[2].in * p.inner, p.axis[2].in * p.inner, p.inner, arena),
        planes_{{p, piece, in_place, arena},
                {p, piece, in_place, arena},
                {p, piece, in_place, arena},
                {p, piece, in_place, arena}},
        outs_{covering(p.axis[2], piece.lo[2]).lo, covering(p.axis[2], piece.hi[2] - 1).hi},
        n_((outs_.hi - outs_.lo) * p.inner),
        columns_(arena.take<i64>(n_)),
        offsets_(sizeof(R) == 1 ? arena.take<i64>(kBytes) : nullptr) {}

  void run(const View& gy, const View& routing, Dense gx, i64 first, i64 last) {
    if (!ready_) prepare();
    for (i64 plane = first; plane < last; plane += kTogether) {
      const i64 count = smaller(kTogether, last - plane);
      for (i64 j = 0; j < count; ++j) planes_[j].start(gy, routing, gx, plane + j);
      rows_reaching(p_, piece_, [&](i64 od, i64 oh) {
        if (count == kTogether) return row(gy, routing, od, oh, planes_, Const<kTogether>{});
        for (i64 j = 0; j < count; ++j) row(gy, routing, od, oh, planes_ + j, Const<1>{});
      });
      for (i64 j = 0; j < count; ++j) planes_[j].sums.finish(gx, (plane + j) * p_.in_plane());
    }
  }

 private:
  static constexpr i64 kBytes = 256;

  struct Plane {
    Plane(const Plan& p, const Piece& piece, bool in_place, Arena& arena)
        : plan(p),
          sums(p, piece, in_place, arena),
          gradient_row(arena.take<T>(p.out_row())),
          route_row(arena.take<R>(p.out_row())),
          at(arena.take<i64>(p.out_row())) {}

    void start(const View& gy, const View& routing, Dense gx, i64 plane) {
      gradients = plane_of(gy, plane), routes = plane_of(routing, plane);
      first_sum = sums.start(gx, plane * plan.in_plane()) + sums.first();
    }

    const Plan& plan;
    PieceSums<T> sums;
    T *gradient_row, *first_sum = nullptr;
    R* route_row;
    i64* at;
    const char *gradients = nullptr, *routes = nullptr;
  };

  void prepare() {
    ready_ = true;
    places_.fill();
    for (i64 k = 0; offsets_ && k < kBytes; ++k) {
      offsets_[k] = k < p_.places ? places_[k] : std::numeric_limits<i64>::min() / 2;
    }
    for (i64 o = outs_.lo, i = 0; o < outs_.hi; ++o) {
      const i64 start = start_of(p_.axis[2], o) * p_.inner;
      for (i64 c = 0; c < p_.inner; ++c) columns_[i++] = start + c;
    }
  }

  template <class Count>
  POOLGRAD_LOOP void row(const View& gy, const View& routing, i64 od, i64 oh, Plane* planes,
                         Count count) {
    const T* g[kTogether];
    T* sums[kTogether];
    const i64* at[kTogether];
    for (i64 j = 0; j < count; ++j) {
      Plane& own = planes[j];
      own.sums.reach(od, oh);
      g[j] = row_of(gy, own.gradients, p_.inner, od, oh, outs_.lo, outs_.hi, own.gradient_row);
      const R* r = row_of(routing, own.routes, p_.inner, od, oh, outs_.lo, outs_.hi, own.route_row);
      const i64 row = start_of(p_.axis[0], od) * p_.axis[1].in + start_of(p_.axis[1], oh);
      if (!find(r, row * p_.axis[2].in * p_.inner, own.at)) g[j] = only_inside(g[j], own);
      sums[j] = own.first_sum, at[j] = own.at;
    }
    for (i64 i = 0; i < n_; ++i) {
      for (i64 j = 0; j < count; ++j) sums[j][at[j][i]] += g[j][i];
    }
  }

  // Where the gradients of a row go, counted from the first input of the piece; whether all of them
  // go there.
  POOLGRAD_LOOP bool find(const R* routes, i64 row, i64* __restrict at) const {
    const i64 first = planes_[0].sums.first(), last = planes_[0].sums.last() - first - 1;
    const i64 *const columns = columns_, *const offsets = offsets_, n = n_, from = row - first;
    i64 outside = 0;  // negative, if something is
    if (offsets) {
      for (i64 i = 0; i < n; ++i) at[i] = columns[i] + from + offsets[routes[i]];
    } else {
      for (i64 i = 0; i < n; ++i) {
        at[i] = routes[i] < p_.places ? columns[i] + from + places_[routes[i]] : -1;
      }
    }
    for (i64 i = 0; i < n; ++i) outside |= at[i] | (last - at[i]);
    return outside >= 0;
  }

  // Others add 0 somewhere.
  const T* only_inside(const T* gradients, Plane& own) const {
    const i64 inputs = own.sums.last() - own.sums.first();
    for (i64 i = 0; i < n_; ++i) {
      const bool inside = own.at[i] >= 0 && own.at[i] < inputs;
      own.gradient_row[i] = inside ? gradients[i] : T(0);
      own.at[i] = inside ? own.at[i] : 0;
    }
    return own.gradient_row;
  }

  const Plan& p_;
  const Piece piece_;
  Places places_;
  Plane planes_[kTogether];
  const Range outs_;  // the outputs of a row that reach the piece
  const i64 n_;
  i64* columns_;  // where their windows begin
  i64* offsets_;  // of routes of one byte
  bool ready_ = false;
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
