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
        planes_{{p, piece, in_place, arena},
                {p, piece, in_place, arena},
                {p, piece, in_place, arena},
                {p, piece, in_place, arena}},
        outs_{covering(p.axis[2], piece.lo[2]).lo, covering(p.axis[2], piece.hi[2] - 1).hi},
        n_((outs_.hi - outs_.lo) * p.inner),
        columns_(arena.take<Index>(n_)),
        near_(is_near(p)) {
    const i64 rows = p.axis[2].in * p.inner, slices = p.axis[1].in * rows;
    next_ = p.axis[2].dilation * p.inner;
    line_ = p.axis[1].dilation * rows - p.axis[2].kernel * next_;
    slice_ = p.axis[0].dilation * slices - p.axis[1].kernel * p.axis[1].dilation * rows;
  }

  void run(const View& gy, const View& routing, Dense gx, i64 first, i64 last) {
    if (!ready_) prepare();
    const i64 most = p_.inner < kAcross ? kTogether : 1;
    for (i64 plane = first; plane < last; plane += most) {
      const i64 count = smaller(most, last - plane);
      for (i64 j = 0; j < count; ++j) planes_[j].start(gy, routing, gx, plane + j);
      rows_reaching(p_, piece_, [&](i64 od, i64 oh) {
        if (count == kTogether) return row(gy, routing, od, oh, planes_, Const<kTogether>{});
        for (i64 j = 0; j < count; ++j) row(gy, routing, od, oh, planes_ + j, Const<1>{});
      });
      for (i64 j = 0; j < count; ++j) planes_[j].sums.finish(gx, (plane + j) * p_.in_plane());
    }
  }

 private:
  using Index = std::int32_t;

  struct Plane {
    Plane(const Plan& p, const Piece& piece, bool in_place, Arena& arena)
        : plan(p),
          sums(p, piece, in_place, arena),
          gradient_row(arena.take<T>(p.out_row())),
          route_row(arena.take<R>(p.out_row())),
          at(arena.take<Index>(p.out_row())) {}

    void start(const View& gy, const View& routing, Dense gx, i64 plane) {
      gradients = plane_of(gy, plane), routes = plane_of(routing, plane);
      first_sum = sums.start(gx, plane * plan.in_plane()) + sums.first();
    }

    const Plan& plan;
    PieceSums<T> sums;
    T *gradient_row, *first_sum = nullptr;
    R* route_row;
    Index* at;
    const char *gradients = nullptr, *routes = nullptr;
  };

  // Whether all that a route may lead to is counted in few bits.
  static bool is_near(const Plan& p) {
    double all = static_cast<double>(p.inner);
    for (const Axis& a : p.axis) {
      all *= static_cast<double>(a.in + (a.kernel - 1) * a.dilation + (a.lo < 0 ? -a.lo : a.lo));
    }
    return all < 0x1p30 && p.places <= 1 << 16;
  }

  void prepare() {
    ready_ = true;
    for (i64 o = outs_.lo, i = 0; near_ && o < outs_.hi; ++o) {
      const i64 start = start_of(p_.axis[2], o) * p_.inner;
      for (i64 c = 0; c < p_.inner; ++c) columns_[i++] = static_cast<Index>(start + c);
    }
  }

  template <class Count>
  POOLGRAD_LOOP void row(const View& gy, const View& routing, i64 od, i64 oh, Plane* planes,
                         Count count) {
    const T* g[kTogether];
    T* sums[kTogether];
    const Index* at[kTogether];
    for (i64 j = 0; j < count; ++j) {
      Plane& own = planes[j];
      own.sums.reach(od, oh);
      ask_ahead_of(gy, own.gradients, od, oh, outs_, p_.inner);
      ask_ahead_of(routing, own.routes, od, oh, outs_, p_.inner);
      g[j] = row_of(gy, own.gradients, p_.inner, od, oh, outs_.lo, outs_.hi, own.gradient_row);
      const R* r = row_of(routing, own.routes, p_.inner, od, oh, outs_.lo, outs_.hi, own.route_row);
      if (!near_) {
        far(g[j], r, od, oh, own);
      } else if (!find(r, od, oh, own.at)) {
        g[j] = only_inside(g[j], own);
      }
      sums[j] = own.first_sum, at[j] = own.at;
    }
    for (i64 i = 0; near_ && i < n_; ++i) {
      for (i64 j = 0; j < count; ++j) sums[j][at[j][i]] += g[j][i];
    }
  }

  i64 start_of_row(i64 od, i64 oh) const {
    const i64 row = start_of(p_.axis[0], od) * p_.axis[1].in + start_of(p_.axis[1], oh);
    return row * p_.axis[2].in * p_.inner - planes_[0].sums.first();
  }

  // Where the gradients of a row go, counted from the first input of the piece; whether all of them
  // go there.
  POOLGRAD_LOOP bool find(const R* routes, i64 od, i64 oh, Index* __restrict at) const {
    constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Index));
    const bool deep = p_.axis[0].kernel > 1;
    const float lines = 1.0f / static_cast<float>(p_.axis[2].kernel);
    const float slices = 1.0f / static_cast<float>(p_.axis[1].kernel);
    const auto next = static_cast<Index>(next_), line = static_cast<Index>(line_);
    const auto slice = static_cast<Index>(slice_);
    const auto inputs = static_cast<Index>(planes_[0].sums.last() - planes_[0].sums.first());
    const auto from = static_cast<Index>(start_of_row(od, oh));
    const auto places = static_cast<u32>(p_.places);
    const Index* const columns = columns_;
    Vec<Index, kLanes> wide{};
    Index few = 0;
    sweep_lanes<Index>(n_, [&](auto w, i64 i) {
      using V = Vec<Index, w()>;
      const auto place = convert<u32>(load<Vec<R, w()>>(routes + i));
      // A half more than a whole number: so far from the next that no rounding gets there.
      const auto quotient = [](V of, float by) {
        return convert<Index>((convert<float>(of) + 0.5f) * by);
      };
      const V one = reinterpret_cast<V>(place), down = quotient(one, lines);
      V to = load<V>(columns + i) + from + one * next + down * line;
      if (deep) to += quotient(down, slices) * slice;
      const V outside = reinterpret_cast<V>(place >= places) | (to < 0) | (to >= inputs);
      store(at + i, to);
      if constexpr (w() == kLanes) wide |= outside;
      else
        for (int j = 0; j < w(); ++j) few |= outside[j];
    });
    for (int j = 0; j < kLanes; ++j) few |= wide[j];
    return few == 0;
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

  // The same of huge planes and windows, one by one.
  void far(const T* g, const R* routes, i64 od, i64 oh, Plane& own) const {
    const i64 from = start_of_row(od, oh), inputs = own.sums.last() - own.sums.first();
    for (i64 i = 0; i < n_; ++i) {
      const i64 place = static_cast<i64>(routes[i]), down = place / p_.axis[2].kernel;
      const i64 column = start_of(p_.axis[2], outs_.lo + i / p_.inner) * p_.inner + i % p_.inner;
      const i64 to =
          from + column + place * next_ + down * line_ + down / p_.axis[1].kernel * slice_;
      if (place < p_.places && to >= 0 && to < inputs) own.first_sum[to] += g[i];
    }
  }

  const Plan& p_;
  const Piece piece_;
  Plane planes_[kTogether];
  const Range outs_;  // the outputs of a row that reach the piece
  const i64 n_;
  Index* columns_;  // where their windows begin
  const bool near_;
  i64 next_, line_, slice_;  // to the next place, what is more to the next line, and depth
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
