// The random draw: one input of each window, with a probability in proportion to its positive part
// (Zeiler & Fergus 2013). Compiled once per instruction set.
#include <atomic>

#include "base/common.hpp"
#include "choose.hpp"
#include "forward/copied_windows.hpp"
#include "forward/selecting_units.hpp"
#include "geometry/partition.hpp"
#include "operators/extreme.hpp"

namespace poolgrad::inline POOLGRAD_ISA {
namespace {

// Computes a random number in [0, 1) for each output: splitmix64 (Steele, Lea & Flood 2014) of its
// index, so that the result does not depend on threads.
double uniform(std::uint64_t seed, i64 index) {
  std::uint64_t z = seed + (static_cast<std::uint64_t>(index) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

// Returns the index of the input that `u`, a number in [0, 1), draws.
template <class A>
i64 draw(const A* inputs, i64 count, double u) {
  constexpr double kHuge = 0x1p900, kSmaller = 0x1p-100;  // so that no sum overflows
  double largest = 0, sum = 0, below = 0;
  for (i64 t = 0; t < count; ++t) largest = inputs[t] > largest ? inputs[t] : largest;
  const double scale = largest > kHuge ? kSmaller : 1.0;
  const auto weight = [&](A value) { return value > A(0) ? scale * value : 0.0; };
  for (i64 t = 0; t < count; ++t) sum += weight(inputs[t]);
  i64 winner = static_cast<i64>(u * static_cast<double>(count));
  if (sum == 0) return winner;
  for (i64 t = 0; t < count; ++t) {
    const double w = weight(inputs[t]);
    below += w;
    if (w > 0) winner = t;
    if (below > u * sum) break;
  }
  return winner;
}

// The tap index of valid input t, in row-major order, of the window of output (od, oh, ow).
u32 tap_of_input(const Plan& p, i64 od, i64 oh, i64 ow, i64 t) {
  const Span sd = span_of(p.axis[0], od), sh = span_of(p.axis[1], oh), sw = span_of(p.axis[2], ow);
  const i64 line = t / sw.taps, d = sd.first_tap + line / sh.taps,
            h = sh.first_tap + line % sh.taps;
  return static_cast<u32>((d * p.axis[1].kernel + h) * p.axis[2].kernel + sw.first_tap +
                          t % sw.taps);
}

template <class A>
struct DrawState {
  CopiedWindows<A> windows;
  A* y;
  u32* routes;
};

// Computes a tile of one plane. order: strides of the outputs in logical order; index: that of the
// plane's first output.
template <class A>
void draw_tile(const Plan& p, const Tile& tile, DrawState<A>& state, const View& order, i64 index,
               std::uint64_t seed, Dense y, Dense routes, i64 plane) {
  auto& windows = state.windows;
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      windows.each_vector(od, oh, [&](i64 first, i64 n) {
        for (i64 i = first; i < first + n; ++i) {
          const i64 ow = tile.lo[2] + i / p.inner, count = windows.count(i - first);
          state.y[i] = A(0);
          state.routes[i] = kNowhere;
          if (count == 0) continue;  // the windows of a stored program have not been validated
          const i64 output = index + od * order.depth + oh * order.height + ow * order.width +
                             i % p.inner * order.inner;
          const A* inputs = windows.inputs(i - first);
          const i64 winner = draw(inputs, count, uniform(seed, output));
          state.y[i] = inputs[winner];
          state.routes[i] = tap_of_input(p, od, oh, ow, winner);
        }
      });
      const i64 first = plane + p.output_index(od, oh, tile.lo[2]);
      write(y, first, state.y, windows.length());
      if (routes.data) write(routes, first, state.routes, windows.length());
    }
  }
}

template <class A>
bool all_finite(const Work& work, const View& x) {
  const Plan& p = *work.plan;
  std::atomic<bool> finite{true};
  over_tiles<InputTile>(
      work, [&](const InputTile&, Arena& arena) { return arena.take<A>(p.axis[2].in * p.inner); },
      [&](A* buffer, i64 plane, const InputTile& tile) {
        const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
        for (i64 d = tile.lo[0]; d < tile.hi[0]; ++d) {
          for (i64 h = tile.lo[1]; h < tile.hi[1]; ++h) {
            const A* row =
                row_of(x, plane_of(x, plane), p.inner, d, h, tile.lo[2], tile.hi[2], buffer);
            bool all = true;
            for (i64 i = 0; i < n; ++i) all &= row[i] - row[i] == A(0);
            if (!all) finite = false;
          }
        }
      });
  return finite;
}

}  // namespace

bool select_draw(const Work& work, const View& x, Dense y, Dense routes, const View& order,
                 std::uint64_t seed) {
  const Plan& p = *work.plan;
  bool finite = true;
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    finite = all_finite<A>(work, x);
    if (!finite) return;
    (void)choose({.task = Task::draw, .plan = &p});  // there is one algorithm
    over_tiles<Tile>(
        work,
        [&](const Tile& tile, Arena& arena) {
          const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
          return DrawState<A>{CopiedWindows<A>(p, x, tile, arena), arena.take<A>(n),
                              arena.take<u32>(n)};
        },
        [&](DrawState<A>& state, i64 plane, const Tile& tile) {
          state.windows.start(plane_of(x, plane));
          draw_tile(p, tile, state, order, outer_offset(order, plane), seed, y, routes,
                    plane * p.out_plane());
        },
        true);
  });
  return finite;
}

}  // namespace poolgrad::inline POOLGRAD_ISA
