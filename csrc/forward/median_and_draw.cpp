// The median and the random draw, compiled once per instruction set.
#include "operators/median_and_draw.hpp"

#include <atomic>

#include "forward/selecting_tiles.hpp"
#include "forward/selecting_units.hpp"
#include "geometry/partition.hpp"
#include "operators/median_network.hpp"

namespace poolgrad::inline POOLGRAD_ISA {
namespace {

template <class A, class Selector, class Prepare>
void select_inputs(const Work& work, const View& x, Dense y, Dense routes, const View& order,
                   bool zero_ties, Prepare&& prepare) {
  const Plan& p = *work.plan;
  using State = WindowSelectionState<A, Selector>;
  over_outputs(
      work,
      [&](const Tile& tile, Arena& a) {
        GatheredWindows<A> windows(p, x, tile, a);
        Selector selector(p, windows, a);
        prepare(selector);
        const i64 n = windows.stride();
        return State{windows, selector, a.take<A>(n), a.take<u32>(n), a.take<u32>(n)};
      },
      [&](State& state, i64 plane, const Tile& tile) {
        select_tile_of_windows(p, tile, state, plane_of(x, plane), order,
                               outer_offset(order, plane), zero_ties, y, routes,
                               plane * p.out_plane());
      },
      true);
}

template <class A>
void median(const Work& work, const View& x, Dense y, Dense routes, bool zero_ties) {
  const Plan& p = *work.plan;
  const Algorithm algorithm = choose({.task = Task::median, .plan = &p});
  if (algorithm == Algorithm::sorting_network) {
    small_windows<MedianNetwork<A>>(work, algorithm, x, y, routes, Select::median, zero_ties);
  } else {
    select_inputs<A, RadixMedian<A>>(work, x, y, routes, View{}, zero_ties, [](auto&) {});
  }
}

bool all_finite(const Work& work, const View& x) {
  const Plan& p = *work.plan;
  std::atomic<bool> finite{true};
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    over_inputs(
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
  });
  return finite;
}

}  // namespace

void select_median(const Work& work, const View& x, Dense y, Dense routes, bool zero_ties) {
  by_order(x.dtype, [&](auto a) { median<decltype(a)>(work, x, y, routes, zero_ties); });
}

bool select_draw(const Work& work, const View& x, Dense y, Dense routes, const View& order,
                 std::uint64_t seed) {
  if (!all_finite(work, x)) return false;
  (void)choose({.task = Task::draw, .plan = work.plan});  // there is one algorithm
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    select_inputs<A, RandomDraw<A>>(work, x, y, routes, order, false, [&](RandomDraw<A>& selector) {
      selector.seed = seed;
      selector.order = order;
    });
  });
  return true;
}

}  // namespace poolgrad::inline POOLGRAD_ISA
