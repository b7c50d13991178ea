// The median, compiled once per instruction set.
#include "operators/median.hpp"

#include "forward/selecting_small_windows.hpp"
#include "forward/selecting_units.hpp"
#include "forward/sliding_ranks.hpp"
#include "geometry/partition.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

void select_median(const Work& work, const View& x, Dense y, Dense routes) {
  const Plan& p = *work.plan;
  const Algorithm algorithm = choose({.task = Task::median, .plan = &p});
  by_order(x.dtype, [&](auto a) {
    using A = decltype(a);
    if (algorithm == Algorithm::sorting_network)
      return small_windows<MedianNetwork<A>>(work, algorithm, x, y, routes, Select::median);
    over_outputs(
        work,
        [&](const Tile& tile, Arena& arena) {
          return SlidingRanks<A>(p, x, tile, y, routes, arena);
        },
        [&](SlidingRanks<A>& state, i64 plane, const Tile&) { state.run(plane); });
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
