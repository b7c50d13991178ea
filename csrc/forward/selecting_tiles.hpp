// Computes tiles of outputs of selecting reductions and writes values and routes.
#pragma once

#include "geometry/partition.hpp"
#include "operators/extreme.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

inline constexpr int kCopyLanes = 16;  // elements that are copied at a time

// Copies rows that lie `pitch` apart to contiguous rows and converts routes to bytes. A vector may
// overrun a row into the next one; the source has kCopyLanes spare elements after its last row.
template <int W, class T, class R>
POOLGRAD_LOOP void copy_rows_by(const T* from, i64 pitch, R* to, i64 rows, i64 n) {
  using V = Vec<T, W>;
  const R* end = to + rows * n;
  for (i64 row = 0; row < rows; ++row, from += pitch, to += n) {
    for (i64 i = 0; i < n; i += W) {
      if constexpr (sizeof(R) * W >= 64) prefetch(to + i + kPrefetchElements<R>);
      if (to + i + W <= end) store(to + i, convert<R>(load<V>(from + i)));
      else std::transform(from + i, from + n, to + i, [](T v) { return static_cast<R>(v); });
    }
  }
}

template <class T, class R>
void copy_rows(const T* from, i64 pitch, R* to, i64 rows, i64 n) {
  if (n <= kCopyLanes / 4) copy_rows_by<kCopyLanes / 4>(from, pitch, to, rows, n);
  else copy_rows_by<kCopyLanes>(from, pitch, to, rows, n);
}

// Whether a ReLU may follow the reduction: maxima only.
template <class Op>
concept Rectifies = requires(Vec<typename Op::In, 1> v) { Op::relu_is_zero(v); };

// Converts maxima to the outputs of the call: negates them for a minimum, or applies the ReLU,
// whose zeros are routed nowhere.
template <class Op, class T, class R>
POOLGRAD_LOOP void finish(Select which, T* y, R* routes, i64 n) {
  if (which == Select::smallest) {
    for (i64 i = 0; i < n; ++i) y[i] = opposite(y[i]);
  }
  if constexpr (Rectifies<Op>) {
    if (which != Select::rectified) return;
    overlapping_lanes<T>(n, [&](auto w, i64 i) {
      using V = Vec<T, w()>;
      using P = Vec<R, w()>;
      const V value = load<V>(y + i);
      const auto zero = Op::relu_is_zero(value);
      store(y + i, zero ? V{} : value);
      if (!routes) return;
      const auto nowhere = bits_as<P>(convert<std::make_signed_t<R>>(zero));
      store(routes + i, load<P>(routes + i) | nowhere);
    });
  }
}

// Per-task state of unrolled windows and of register blocking.
template <class Op>
struct SmallWindowsState {
  using T = typename Op::In;

  POOLGRAD_LOOP SmallWindowsState(Algorithm algorithm, const Plan& p, const View& x,
                                  const Tile& tile, Dense to, Dense to_routes, bool negate,
                                  Arena& arena)
      : windows(p, x, tile, negate, algorithm == Algorithm::unrolled_joined_rows, arena),
        blocked(p, x, algorithm == Algorithm::register_blocked, negate, Op::kFill, arena),
        pixels(p, x, algorithm == Algorithm::register_blocked_channels_last, Op::kFill),
        with_routes(to_routes.data),
        narrow(algorithm == Algorithm::unrolled_joined_rows),
        y(to, max_elements(p, tile), arena),
        routes(to_routes, max_elements(p, tile), arena),
        buffer{} {
    const i64 n = narrow ? windows.joined_length(windows.max_joined_rows()) + kCopyLanes
                         : pixels.max_rows() * pixels.columns() * p.inner;
    buffer.y = arena.take<T>(n);
    if (with_routes) buffer.routes = arena.take<std::uint8_t>(n);
  }

  // Outputs that are computed at a time.
  i64 max_elements(const Plan& p, const Tile& tile) const {
    return (narrow ? windows.max_joined_rows() : larger(1, blocked.rows())) * length(p, tile);
  }

  static i64 length(const Plan& p, const Tile& tile) { return (tile.hi[2] - tile.lo[2]) * p.inner; }

  void start(const char* plane) {
    windows.start(plane);
    blocked.start(plane);
    pixels.start(plane);
  }

  Unrolled<Op> windows;
  RegisterBlocked<typename WithoutNaN<Op>::type> blocked;
  RegisterBlockedChannelsLast<typename WithoutNaN<Op>::type> pixels;
  const bool with_routes, narrow;
  RowWriter<T> y;
  RowWriter<std::uint8_t> routes;
  typename Op::Target buffer;  // rows of a narrow plane, or outputs of some pixels
};

// Computes rows from (od, oh) on with channels last, as many columns at once as the first cache
// holds.
template <class Op>
void channels_last_rows(const Plan& p, const Tile& tile, SmallWindowsState<Op>& state, i64 plane,
                        i64 od, i64 oh, i64 rows, Select which) {
  const bool in_place = state.y.in_place() && (!state.with_routes || state.routes.in_place());
  for (i64 lo = tile.lo[2], hi; lo < tile.hi[2]; lo = hi) {
    hi = smaller(tile.hi[2], lo + state.pixels.columns());
    const i64 n = (hi - lo) * p.inner, pitch = in_place ? p.out_row() : n;
    const i64 first = plane + p.output_index(od, oh, lo);
    auto to = state.buffer;
    if (in_place) {
      to = Op::target(state.y.reserve(first, n, false),
                      state.with_routes ? state.routes.reserve(first, n, false) : nullptr, false);
    }
    state.pixels.compute_all(state.windows, od, oh, rows, lo, hi, to, pitch);
    for (i64 q = 0; q < rows; ++q) {
      const auto row = to.at(q * pitch);
      finish<Op>(which, row.y, row.routes, n);
      if (in_place) continue;
      state.y.put(first + q * p.out_row(), row.y, n);
      if (row.routes) state.routes.put(first + q * p.out_row(), row.routes, n);
    }
  }
}

// Computes a tile of one plane. zero_ties: tied inputs are routed nowhere (median only).
template <class Op>
void small_windows_tile(const Plan& p, const Tile& tile, SmallWindowsState<Op>& state,
                        const char* inputs, i64 plane, Select which, bool zero_ties) {
  const i64 length = state.length(p, tile), block_rows = larger(1, state.blocked.rows());
  const auto write_rows = [&](i64 first, i64 n, auto&& compute) {
    auto* y = state.y.reserve(first, n, !state.blocked.rows());
    std::uint8_t* routes = state.with_routes ? state.routes.reserve(first, n) : nullptr;
    compute(Op::target(y, routes, zero_ties));
    finish<Op>(which, y, routes, n);
  };
  if (state.narrow) {
    const i64 pitch = state.windows.pitch(), end = tile.hi[1];
    for (i64 oh = tile.lo[1], rows; oh < end; oh += rows) {
      rows = smaller(state.windows.max_joined_rows(), end - oh);
      const i64 first = plane + oh * length;
      if (state.windows.compute_joined_rows(inputs, oh, rows, state.buffer)) {
        write_rows(first, rows * length, [&](typename Op::Target to) {
          copy_rows(state.buffer.y, pitch, to.y, rows, length);
          if (state.with_routes) copy_rows(state.buffer.routes, pitch, to.routes, rows, length);
        });
        continue;
      }
      for (i64 q = 0; q < rows; ++q) {
        state.windows.row(0, oh + q, [&](i64 at, i64 n, auto&& compute) {
          write_rows(first + q * length + at, n, compute);
        });
      }
    }
    return;
  }
  const auto compute_rows = [&](i64 od, i64 oh) {  // from (od, oh) on; returns their number
    i64 rows = state.pixels.rows(oh, tile.hi[1]);
    if (rows > 0) {
      channels_last_rows(p, tile, state, plane, od, oh, rows, which);
      return rows;
    }
    rows = smaller(block_rows, tile.hi[1] - oh);
    const i64 first = plane + p.output_index(od, oh, tile.lo[2]);
    if (!state.blocked.rows()) {
      state.windows.row(od, oh,
                        [&](i64 at, i64 n, auto&& compute) { write_rows(first + at, n, compute); });
      return rows;
    }
    write_rows(first, rows * length, [&](typename Op::Target to) {
      const bool computed = state.blocked.compute_block(od, oh, rows, to);
      for (i64 q = 0; q < rows; ++q) {
        const auto row = to.at(q * length);
        if (computed && !(state.with_routes && state.blocked.may_be_padding(oh + q, row))) continue;
        state.windows.row(od, oh + q, [&](i64 at, i64, auto&& compute) { compute(row.at(at)); });
      }
    });
    return rows;
  };
  over_rows(tile, state.blocked.depth_first(), compute_rows);
}

// Computes all outputs.
template <class Op>
void small_windows(const Work& work, Algorithm algorithm, const View& x, Dense y, Dense routes,
                   Select which, bool zero_ties) {
  const Plan& p = *work.plan;
  const bool negate = which == Select::smallest;
  using State = SmallWindowsState<Op>;
  over_outputs(
      work,
      [&](const Tile& tile, Arena& a) {
        return State(algorithm, p, x, tile, y, routes, negate, a);
      },
      [&](State& state, i64 plane, const Tile& tile) {
        state.start(plane_of(x, plane));
        small_windows_tile(p, tile, state, plane_of(x, plane), plane * p.out_plane(), which,
                           zero_ties);
      },
      true);
}

// Computes small windows. Routed, Unrouted: the operator with and without routes.
// Two-byte floats and bytes are compared without conversion.
template <class Routed, class Unrouted>
void small_windows_by_routes(const Work& work, Algorithm algorithm, const View& x, Dense y,
                             Dense routes, Select which) {
  using T = typename Routed::In;
  View from = x;
  if (sizeof(T) < 4) from.dtype = y.dtype = DtypeOf<T>::value;
  if (routes.data) small_windows<Routed>(work, algorithm, from, y, routes, which, false);
  else small_windows<Unrouted>(work, algorithm, from, y, routes, which, false);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
