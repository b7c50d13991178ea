// Mixed pooling and its gradient, compiled once per instruction set.
#include "operators/mixed.hpp"

#include "backward/weights.hpp"
#include "base/partition.hpp"
#include "choose.hpp"

namespace poolgrad {

void POOLGRAD_TABLE(mixed)(const Work& work, const View& x, Parameter alpha, bool count_padding,
                           Dense y, Dense routes, void* sensitivity) {
  const Plan& p = *work.plan;
  const Divisor divide{count_padding, 0};
  (void)choose({.task = Task::mixed, .plan = &p});  // there is one algorithm
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    using Op = MaxAndSum<A>;
    using State = MixedState<A>;
    const bool has_empty = routes.data && has_empty_windows(p);
    over_outputs(
        work,
        [&](const Tile& tile, Arena& arena) {
          const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
          return State{Separable<Op>(p, x, tile, {}, Op{}, arena),
                       Op::take(arena, n),
                       arena.take<A>(n),
                       arena.take<A>(n),
                       arena.take<A>(n),
                       has_empty};
        },
        [&](State& state, i64 plane, const Tile& tile) {
          divide.fill_row(p, tile.lo[2], tile.hi[2], state.counts);
          fill_parameter(p, alpha, plane, tile.hi[2] - tile.lo[2], state.theta);
          state.separable.start(plane_of(x, plane));
          mixed_tile<A>(p, tile, divide, state, y, routes, static_cast<A*>(sensitivity),
                        plane * p.out_plane());
        });
  });
}

void POOLGRAD_TABLE(mixed_backward)(const Work& work, const View& gy, const View& routes,
                                    Parameter alpha, bool count_padding, Dense gx) {
  (void)choose({.task = Task::weights_backward, .plan = work.plan});  // there is one algorithm
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    const WeightedOperands from{&gy, nullptr, &routes, nullptr, {count_padding, 0}};
    constexpr auto loops = WeightedBackward<A, true>::template loops<MixedWeight<A>>();
    weighted_backward<A, true>(work, from, alpha, 0, loops, gx);
  });
}

}  // namespace poolgrad
