// Computes tiles of outputs of selecting reductions and writes values and routes.
#pragma once

#include "forward/selecting_output.hpp"
#include "forward/van_herk_2d.hpp"
#include "geometry/partition.hpp"
#include "operators/extreme.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

template <class T, bool WithRoutes>
struct SeparableState {
  Separable<Max<T, WithRoutes>> separable;
  RowWriter<T> y;
  ValuesAndTaps<T> row;
};

// Computes a tile of one plane by separable filtering. has_empty: some windows hold no input.
template <class T, bool WithRoutes>
void select_tile(const Plan& p, const Tile& tile, SeparableState<T, WithRoutes>& state,
                 Dense routes, i64 plane, Select which, bool has_empty) {
  const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      const i64 first = plane + p.output_index(od, oh, tile.lo[2]);
      const auto row = state.separable.row(od, oh, state.row);
      T* y = state.y.reserve(first, n, false);
      std::copy(row.v, row.v + n, y);
      finish<Max<T, WithRoutes>>(which, y, row.r, n);
      if (!WithRoutes) continue;
      if (has_empty) route_empty(p, tile, od, oh, row.r);
      store_routes(row.r, routes, first, n);
    }
  }
}

// Per-task state of the two-dimensional van Herk/Gil-Werman method, for finite inputs.
template <class T, bool WithRoutes>
struct WideWindowsState {
  using Op = Max<T, WithRoutes, false>;

  WideWindowsState(const Plan& p, const View& x, const Tile& tile, Dense to, bool negate,
                   Arena& arena)
      : van_herk(p, x, tile, {negate}, {}, arena), y(to, van_herk.max_elements(), arena) {}

  VanHerk2d<Op> van_herk;
  TileWriter<T> y;
};

// Writes the routes of a patch, if they are kept.
template <bool WithRoutes>
struct RouteWriter {
  Dense routes;
  StripLayout array_strips;
  i64 prefetch_distance, bytes;

  template <class P>
  POOLGRAD_INLINE void operator()(i64 q, i64 s, P best_tap, i64 lanes) const {
    if constexpr (WithRoutes) {
      const i64 at = array_strips.at(q, s);
      prefetch(elements_of<std::uint8_t>(routes, (at + prefetch_distance) * bytes));
      put_routes(best_tap, routes, at, lanes);
    }
  }
};

// Computes a tile of one plane. Returns false if an input is not finite; the outputs are then
// meaningless.
template <class T, bool WithRoutes>
bool wide_tile(const Plan& p, WideWindowsState<T, WithRoutes>& state, const char* inputs,
               Dense routes, i64 plane, Select which, bool has_empty) {
  using Op = typename WideWindowsState<T, WithRoutes>::Op;
  const bool negate = which == Select::smallest, rectify = which == Select::rectified;
  using Patch = typename VanHerk2d<Op>::Patch;
  const auto open = [&](const Patch& patch, i64 oh, i64) {
    state.y.open(p, patch, plane + oh * p.out_row());
    return [=, values = state.y.values(), strips = state.y.buffer_strips,
            prefetch_distance = state.y.prefetch_distance,
            write_routes = RouteWriter<WithRoutes>{routes, state.y.array_strips,
                                                   state.y.prefetch_distance, p.route_bytes}](
               i64 q, i64 s, const auto& partial, u32 back, i64 lanes)
               __attribute__((always_inline)) {
                 T* y = values + strips.at(q, s);
                 prefetch(y + prefetch_distance);
                 auto best = negate ? opposites<T>(partial.best) : partial.best;
                 auto best_tap = partial.best_tap - back;
                 if (rectify) Op::rectify(best, best_tap);
                 store_first(y, best, lanes);
                 write_routes(q, s, best_tap, lanes);
               };
  };
  const auto close = [&](const Patch& patch, i64 oh, i64 rows) {
    for (i64 q = 0; WithRoutes && has_empty && q < rows;
         ++q) {  // windows without an input are routed to kNowhere
      const bool none = span_of(p.axis[1], oh + q).taps == 0;
      for (i64 s = 0; s < patch.strips; ++s) {
        const i64 lanes = patch.lanes(s), at = state.y.array_strips.at(q, s);
        for (i64 i = 0; i < lanes; ++i) {
          const i64 column = (at + i) % p.out_row() / p.inner;
          if (none || span_of(p.axis[2], column).taps == 0)
            store_routes(&kNowhere, routes, at + i, 1);
        }
      }
    }
    state.y.close(patch, rows);
  };
  for (i64 k = 0; k < state.van_herk.patches(); ++k) {
    if (!state.van_herk.compute_patch(inputs, k, open, close)) return false;
  }
  return true;
}

}  // namespace poolgrad::inline POOLGRAD_ISA
