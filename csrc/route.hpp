// Backward of a selecting reduction: each output's gradient goes along its route. And the way
// there: what a tangent of the input becomes.
#pragma once

#include "gather.hpp"

namespace poolgrad {
namespace {

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
    if (!ready_) places_.fill();
    ready_ = true;
    T* sums = sums_.start(gx, plane);
    rows_reaching(p_, piece_, [&](i64 od, i64 oh) {
      sums_.reach(od, oh);
      const T* g = row_of(gy, gradients, p_.inner, od, oh, outs.lo, outs.hi, gradients_);
      const R* r = row_of(routing, routes, p_.inner, od, oh, outs.lo, outs.hi, routes_);
      const i64 row = start_of(p_.axis[0], od) * p_.axis[1].in + start_of(p_.axis[1], oh);
      const auto where = [&](i64 start) {  // -1: nowhere, or not in this piece, or tampered with
        const i64 at = *r < p_.places ? start + places_[*r] : i64{-1};
        return at >= sums_.first() && at < sums_.last() ? at : i64{-1};
      };
      if (p_.inner == 1) {  // neighbours often have the same winner: its sum stays in a register
        i64 last = -1;
        T sum = 0;
        for (i64 o = outs.lo; o < outs.hi; ++o, ++g, ++r) {
          const i64 at = where(row * width.in + start_of(width, o));
          if (at != last) {
            if (last >= 0) sums[last] = sum;
            sum = at >= 0 ? sums[at] : T(0);
            last = at;
          }
          sum += *g;
        }
        if (last >= 0) sums[last] = sum;
        return;
      }
      for (i64 o = outs.lo; o < outs.hi; ++o) {
        const i64 start = (row * width.in + start_of(width, o)) * p_.inner;
        for (i64 c = 0; c < p_.inner; ++c, ++g, ++r) {
          const i64 at = where(start + c);
          if (at >= 0) sums[at] += *g;
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
