// Computes the vjp of selecting reductions along routes (scatter), their jvp (gather), and indices
// from routes.
#pragma once

#include "backward/register_blocked.hpp"
#include "backward/register_blocked_channels_last.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Scatter, for any windows: adds the gradient of every output at the input that its route names.
// Neighbouring outputs often have the same winner, so that consecutive additions depend on each
// other; additions to several planes in turn are independent.
template <class T, class R>
class ScatterRoutes {
 public:
  static constexpr i64 kPlanesTogether = 8;

  // planes: of the task
  ScatterRoutes(const Plan& p, const InputTile& tile, i64 planes, bool in_place, Arena& arena)
      : ScatterRoutes(p, tile, p.inner < kTapsAcrossLanes ? smaller(kPlanesTogether, planes) : 1,
                      in_place, arena, std::make_index_sequence<kPlanesTogether>{}) {}

  void run(const View& gy, const View& routing, Dense gx, i64 first, i64 last) {
    if (!ready_) prepare();
    for (i64 plane = first; plane < last; plane += planes_together_) {
      const i64 count = smaller(planes_together_, last - plane);
      for (i64 j = 0; j < count; ++j) planes_[j].start(gy, routing, gx, plane + j);
      each_row_reaching(p_, tile_, [&](i64 od, i64 oh) {
        for (i64 j = 0; j < count; ++j) read(gy, routing, od, oh, planes_[j]);
        if (fits_index_) return scatter_rows(od, oh, planes_, count, Const<kPlanesTogether>{});
        for (i64 j = 0; j < count; ++j) scatter_row_general(od, oh, planes_[j]);
      });
      for (i64 j = 0; j < count; ++j) planes_[j].sums.finish(gx, (plane + j) * p_.in_plane());
    }
  }

 private:
  using Index = std::int32_t;
  static constexpr i64 kChunk = 64;  // outputs of a row of a plane at a time

  struct Plane {
    Plane(const Plan& p, const InputTile& tile, bool used, bool in_place, Arena& arena)
        : plan(p),
          sums(p, tile, in_place || !used, arena),
          gradient_row(arena.take<T>(used ? p.out_row() : 0)),
          route_row(arena.take<R>(used ? p.out_row() : 0)) {}

    void start(const View& gy, const View& routing, Dense gx, i64 plane) {
      gradients = plane_of(gy, plane), routes = plane_of(routing, plane);
      first_sum = sums.start(gx, plane * plan.in_plane()) + sums.first();
    }

    const Plan& plan;
    TileSums<T> sums;
    T *gradient_row, *first_sum = nullptr;
    R* route_row;
    const char *gradients = nullptr, *routes = nullptr;
    const T* g = nullptr;  // current row of gradients
    const R* r = nullptr;  // current row of routes
  };

  template <std::size_t... J>
  ScatterRoutes(const Plan& p, const InputTile& tile, i64 together, bool in_place, Arena& arena,
                std::index_sequence<J...>)
      : p_(p),
        tile_(tile),
        planes_together_(together),
        planes_{Plane(p, tile, static_cast<i64>(J) < together, in_place, arena)...},
        outs_{covering(p.axis[2], tile.lo[2]).lo, covering(p.axis[2], tile.hi[2] - 1).hi},
        n_((outs_.hi - outs_.lo) * p.inner),
        columns_(arena.take<Index>(n_)),
        values_(arena.take<T>(kPlanesTogether * kChunk)),
        targets_(arena.take<Index>(kPlanesTogether * kChunk)),
        fits_index_(fits_index(p)) {
    const i64 rows = p.axis[2].in * p.inner, slices = p.axis[1].in * rows;
    next_ = p.axis[2].dilation * p.inner;
    line_ = p.axis[1].dilation * rows - p.axis[2].kernel * next_;
    slice_ = p.axis[0].dilation * slices - p.axis[1].kernel * p.axis[1].dilation * rows;
  }

  // Whether the offsets of all inputs that a route may name fit into Index.
  static bool fits_index(const Plan& p) {
    double all = static_cast<double>(p.inner);
    for (const Axis& a : p.axis) {
      all *= static_cast<double>(a.in + (a.kernel - 1) * a.dilation + (a.lo < 0 ? -a.lo : a.lo));
    }
    return all < 0x1p30 && p.taps <= 1 << 16;
  }

  void prepare() {
    ready_ = true;
    for (i64 o = outs_.lo, i = 0; fits_index_ && o < outs_.hi; ++o) {
      const i64 start = start_of(p_.axis[2], o) * p_.inner;
      for (i64 c = 0; c < p_.inner; ++c) columns_[i++] = static_cast<Index>(start + c);
    }
  }

  void read(const View& gy, const View& routing, i64 od, i64 oh, Plane& plane) const {
    plane.sums.zero_rows_of(od, oh);
    plane.g = row_of(gy, plane.gradients, p_.inner, od, oh, outs_.lo, outs_.hi, plane.gradient_row);
    plane.r = row_of(routing, plane.routes, p_.inner, od, oh, outs_.lo, outs_.hi, plane.route_row);
  }

  // Adds a row of gradients of some planes: of `count` planes at once, then of half as many, and so
  // on.
  template <class Count>
  void scatter_rows(i64 od, i64 oh, const Plane* planes, i64 left, Count count) const {
    for (; left >= count; left -= count, planes += count) scatter_row(od, oh, planes, count);
    if constexpr (count() > 1) scatter_rows(od, oh, planes, left, Const<count() / 2>{});
  }

  // Adds a row of gradients of several planes. Values and targets of all planes are stored side by
  // side, so that few pointers are needed.
  template <class Count>
  POOLGRAD_LOOP void scatter_row(i64 od, i64 oh, const Plane* planes, Count count) const {
    constexpr i64 kOutputs = kPlanesTogether / count() * kChunk;
    T* sums[count()];
    for (i64 j = 0; j < count; ++j) sums[j] = planes[j].first_sum;
    const auto from = static_cast<Index>(start_of_row(od, oh));
    const T* const values = values_;
    const Index* const target = targets_;
    for (i64 begin = 0; begin < n_; begin += kOutputs) {
      const i64 n = smaller(kOutputs, n_ - begin);
      for (i64 j = 0; j < count; ++j) {
        find_targets(planes[j], begin, n, from, values_ + j * kOutputs, targets_ + j * kOutputs);
      }
      for (i64 i = 0; i < n; ++i) {
        for (i64 j = 0; j < count(); ++j)
          sums[j][target[j * kOutputs + i]] += values[j * kOutputs + i];
      }
    }
  }

  i64 start_of_row(i64 od, i64 oh) const {
    const i64 row = start_of(p_.axis[0], od) * p_.axis[1].in + start_of(p_.axis[1], oh);
    return row * p_.axis[2].in * p_.inner - planes_[0].sums.first();
  }

  // Computes the targets of gradients `begin`, ... of a row, counted from the first input of the
  // tile. A gradient whose target lies outside the tile becomes 0 with target 0.
  POOLGRAD_INLINE void find_targets(const Plane& plane, i64 begin, i64 n, Index from,
                                    T* __restrict values, Index* __restrict target) const {
    const bool deep = p_.axis[0].kernel > 1;
    const float lines = 1.0f / static_cast<float>(p_.axis[2].kernel);
    const float slices = 1.0f / static_cast<float>(p_.axis[1].kernel);
    const auto next = static_cast<Index>(next_), line = static_cast<Index>(line_);
    const auto slice = static_cast<Index>(slice_);
    const auto inputs = static_cast<u32>(plane.sums.last() - plane.sums.first());
    const auto taps = static_cast<u32>(p_.taps);
    const T* const gradients = plane.g + begin;
    const R* const routes = plane.r + begin;
    const Index* const columns = columns_ + begin;
    overlapping_lanes<Index>(n, [&](auto w, i64 i) {
      using V = Vec<Index, w()>;
      using G = Vec<T, w()>;
      const auto tap = convert<u32>(load<Vec<R, w()>>(routes + i));
      prefetch(gradients + i + kPrefetchElements<T>), prefetch(routes + i + kPrefetchElements<R>);
      // A half is added, so that rounding cannot change the integer part.
      const auto quotient = [](V of, float by) {
        return convert<Index>((convert<float>(of) + 0.5f) * by);
      };
      const V one = reinterpret_cast<V>(tap), down = quotient(one, lines);
      V to = load<V>(columns + i) + from + one * next + down * line;
      if (deep) to += quotient(down, slices) * slice;
      const V inside =
          reinterpret_cast<V>((tap < taps) & (reinterpret_cast<Vec<u32, w()>>(to) < inputs));
      store(target + i, to & inside);
      store(values + i, convert<std::conditional_t<sizeof(T) == 8, i64, Index>>(inside)
                            ? load<G>(gradients + i)
                            : G{});
    });
  }

  // Adds a row of gradients one by one, for planes and windows too large for Index.
  void scatter_row_general(i64 od, i64 oh, const Plane& plane) const {
    const i64 from = start_of_row(od, oh), inputs = plane.sums.last() - plane.sums.first();
    for (i64 i = 0; i < n_; ++i) {
      const i64 tap = static_cast<i64>(plane.r[i]), down = tap / p_.axis[2].kernel;
      const i64 column = start_of(p_.axis[2], outs_.lo + i / p_.inner) * p_.inner + i % p_.inner;
      const i64 to = from + column + tap * next_ + down * line_ + down / p_.axis[1].kernel * slice_;
      if (tap < p_.taps && to >= 0 && to < inputs) plane.first_sum[to] += plane.g[i];
    }
  }

  const Plan& p_;
  const InputTile tile_;
  const i64 planes_together_;  // number of planes in use
  Plane planes_[kPlanesTogether];
  const Range outs_;  // the outputs of a row whose windows reach the tile
  const i64 n_;
  Index* columns_;  // where their windows begin
  T* values_;       // gradients of chunks of rows of several planes
  Index* targets_;  // inputs that these gradients are added to
  const bool fits_index_;
  // Address steps from a tap to the next one, and the additional steps to the next line and depth.
  i64 next_, line_, slice_;
  bool ready_ = false;
};

// Computes the jvp: the tangent at the route of each output, 0 for kNowhere. Each tap is checked
// against the input, because routes may come from a caller.
template <class T, class R>
void jvp_along_routes(const Plan& p, const Tile& tile, const View& x, const char* tangents,
                      const View& routing, const char* routes, R* buffer, T* row, Dense y,
                      i64 plane) {
  const u32 kh = static_cast<u32>(p.axis[1].kernel), kw = static_cast<u32>(p.axis[2].kernel);
  const auto input = [&](int axis, i64 output, i64 tap) {
    const Axis& a = p.axis[axis];
    return start_of(a, output) + tap * a.dilation;
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
            const u32 tap = *r, line = tap / kw;
            const i64 d = input(0, od, line / kh), h = input(1, oh, line % kh);
            const i64 w = input(2, o, tap % kw);
            const bool valid = tap < p.taps && d >= 0 && d < p.axis[0].in && h >= 0 &&
                               h < p.axis[1].in && w >= 0 && w < p.axis[2].in;
            *to = T(0);
            if (valid) {
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

// Converts routes to flat positions in the (unpadded) plane, -1 for kNowhere.
template <class R>
void routes_to_indices(const Plan& p, const Tile& tile, const View& routing, const char* routes,
                       const TapOffsets& taps, R* buffer, i64* indices) {
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      const R* r = row_of(routing, routes, p.inner, od, oh, tile.lo[2], tile.hi[2], buffer);
      i64* to = indices + (od * p.axis[1].out + oh) * p.out_row() + tile.lo[2] * p.inner;
      const i64 row = start_of(p.axis[0], od) * p.axis[1].in + start_of(p.axis[1], oh);
      for (i64 o = tile.lo[2]; o < tile.hi[2]; ++o) {
        const i64 start = row * p.axis[2].in + start_of(p.axis[2], o);
        for (i64 c = 0; c < p.inner; ++c, ++r) {
          const R tap = *r;  // read once: another thread may change it
          *to++ = tap < p.taps ? start + taps[tap] : -1;
        }
      }
    }
  }
}

}  // namespace poolgrad::inline POOLGRAD_ISA
