// The median, compiled once per instruction set.
#include "operators/median.hpp"

#include "forward/selecting_small_windows.hpp"
#include "forward/selecting_units.hpp"
#include "forward/sliding_ranks.hpp"
#include "geometry/partition.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

void select_median(const Work& work, const View& x, Dense y, Dense routes) {
  const Algorithm algorithm = choose({.task = Task::median, .plan = work.plan});
  by_order(x.dtype, [&](auto a) {
    using A = decltype(a);
    if (algorithm == Algorithm::sorting_network)
      return small_windows<MedianNetwork<A>>(work, algorithm, x, y, routes, Select::median);
    over_states<Tile, SlidingRanks<A>>(
        work, false, [](SlidingRanks<A>& state, i64 plane) { state.run(plane); }, x, y, routes);
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
