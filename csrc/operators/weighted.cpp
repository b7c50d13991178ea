// Averages, compiled once per instruction set.
#include "base/common.hpp"
#include "choose.hpp"
#include "forward/column_sums.hpp"
#include "forward/plane_means.hpp"
#include "geometry/partition.hpp"
#include "kernels.hpp"
#include "operators/sum.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// operators/mixed.cpp
void mixed(const Work&, const View& x, Parameter alpha, bool count_padding, Dense y, Dense routes,
           void* sensitivity);
void mixed_backward(const Work&, const View& gy, const View& routes, Parameter alpha,
                    bool count_padding, Dense gx);

namespace {

template <class A, class MakeState>
void average_by(const Work& work, const View& x, Divisor divisor, MakeState&& make_state) {
  const Plan& p = *work.plan;
  over_outputs(
      work,
      [&](const Tile& tile, Arena& arena) {
        A* columns = arena.take<A>((tile.hi[2] - tile.lo[2]) * p.inner);
        return make_state(tile, arena, columns);
      },
      [&](auto& state, i64 plane, const Tile& tile) {
        state.start(plane_of(x, plane));
        average_tile(p, tile, state, divisor, plane * p.out_plane());
      });
}

template <class A, class Windows, class MakeWindows>
void average_by_rows(const Work& work, const View& x, Dense y, Divisor divisor,
                     MakeWindows&& make_windows) {
  const Plan& p = *work.plan;
  average_by<A>(work, x, divisor, [&](const Tile& tile, Arena& arena, A* columns) {
    const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
    return MeanState<A, Windows>{
        make_windows(tile, arena), {y, n, arena}, arena.take<A>(n), {columns}};
  });
}

template <class A>
void average_by_van_herk(const Work& work, const View& x, Dense y, Divisor divisor,
                         const PlanDivisor* input_divisor) {
  const Plan& p = *work.plan;
  using State = WideMeanState<A>;
  over_outputs(
      work,
      [&](const Tile& tile, Arena& arena) { return State(p, x, tile, y, input_divisor, arena); },
      [&](State& state, i64 plane, const Tile&) {
        wide_average_tile(p, state, plane_of(x, plane), divisor, plane * p.out_plane());
      });
}

template <class A, bool Lines>
void average_small_windows(const Work& work, Algorithm algorithm, const View& x, Dense y,
                           Divisor divisor) {
  const Plan& p = *work.plan;
  using Op = Mean<A, Lines>;
  average_by<A>(work, x, divisor, [&](const Tile& tile, Arena& arena, A* columns) {
    RegisterBlocked<Op> blocked(p, x, algorithm == Algorithm::register_blocked, false, Op::kFill,
                                arena);
    RegisterBlockedChannelsLast<Op> channels_last(
        p, x, algorithm == Algorithm::register_blocked_channels_last, Op::kFill);
    const i64 rows = larger(larger(1, blocked.rows()), channels_last.max_rows());
    const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
    return SmallMeanState<A, Lines>{p,
                                    Unrolled<Op>(p, x, tile, false, false, arena),
                                    blocked,
                                    channels_last,
                                    {y, rows * n, arena},
                                    arena.take<A>(rows),
                                    {columns}};
  });
}

void average(const Work& whole, const View& given, Dense y, bool count_padding, double divisor) {
  View x = given;
  const Plan p = flattened(*whole.plan, given, &x);
  const Work work{&p, whole.threads};
  const Divisor divide{count_padding, divisor};
  const Algorithm algorithm = choose(call_of(Task::average, work, x));
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    using SeparableSum = Separable<Sum<A>>;
    switch (algorithm) {
      case Algorithm::plane_means:
        return over_outputs(
            work, [&](const Tile&, Arena& arena) { return PlaneMeans<A>(p, y, divide, arena); },
            [&](auto& state, i64 first, i64 last, const Tile&) { state.run(x, first, last); });
      case Algorithm::register_blocked:
      case Algorithm::register_blocked_channels_last:
      case Algorithm::unrolled:  // the order of additions depends on the shape of windows only
        if (shares_nothing(p))
          return average_small_windows<A, false>(work, algorithm, x, y, divide);
        return average_small_windows<A, true>(work, algorithm, x, y, divide);
      case Algorithm::van_herk_2d:
        return average_by_van_herk<A>(work, x, y, divide, nullptr);
      case Algorithm::column_sums:
        return average_by_rows<A, ColumnSums<A>>(
            work, x, y, divide,
            [&](const Tile& tile, Arena& arena) { return ColumnSums<A>(p, x, tile, arena); });
      default:
        return average_by_rows<A, SeparableSum>(
            work, x, y, divide, [&](const Tile& tile, Arena& arena) {
              return SeparableSum(p, x, tile, {}, Sum<A>{}, arena);
            });
    }
  });
}

}  // namespace

// backward/average.cpp
void average_backward(const Work&, const View& gy, Dense gx, bool count_padding, double divisor);

// Adds the gradients of the transposed windows, each divided by its divisor.
void average_of_transposed(const Work& work, Algorithm algorithm, const View& gy, Divisor divisor,
                           Dense gx) {
  Plan back = *work.plan;
  for (Axis& axis : back.axis) axis = transposed(axis);
  const Work transposed_work{&back, work.threads};
  const PlanDivisor input_divisor{*work.plan, divisor};
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    using SeparableSum = Separable<Sum<A>>;
    if (algorithm == Algorithm::transposed_van_herk_2d)
      return average_by_van_herk<A>(transposed_work, gy, gx, {false, 1}, &input_divisor);
    average_by_rows<A, SeparableSum>(
        transposed_work, gy, gx, {false, 1}, [&](const Tile& tile, Arena& arena) {
          return SeparableSum(back, gy, tile, {false, &input_divisor}, Sum<A>{}, arena);
        });
  });
}

extern const WeightedKernels weighted_kernels;
const WeightedKernels weighted_kernels = {
    average,
    average_backward,
    mixed,
    mixed_backward,
};

}  // namespace poolgrad::inline POOLGRAD_ISA
