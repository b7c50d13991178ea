// Averages, compiled once per instruction set.
#include "base/common.hpp"
#include "choose.hpp"
#include "forward/column_sums.hpp"
#include "forward/plane_means.hpp"
#include "geometry/partition.hpp"
#include "kernels.hpp"
#include "operators/sum.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// forward/mixed.cpp
void mixed(const Work&, const View& x, Parameter alpha, bool count_padding, Dense y, Dense routes,
           void* sensitivity);
void mixed_backward(const Work&, const View& gy, const View& routes, Parameter alpha,
                    bool count_padding, Dense gx);

namespace {

// Averages by Separable or ColumnSums.
template <class A, class Windows>
void average_by_rows(const Work& work, const View& x, Dense y, Divisor divisor,
                     const PlanDivisor* input_divisor = nullptr) {
  const Plan& p = *work.plan;
  using State = MeanState<A, Windows>;
  Batch batch = Windows::batch(p);
  if (input_divisor) batch = {1, p.inner};
  Plan part = p;
  part.inner = batch.channels;
  over_outputs(
      work,
      [&](const Tile& tile, Arena& arena) {
        return State(part, x, tile, {false, input_divisor}, arena, batch.planes);
      },
      [&](State& state, i64 first, i64 last, const Tile& tile) {
        for (i64 k = 0; k < batch.planes; ++k)
          divisor.fill_row(part, tile.lo[2], tile.hi[2],
                           state.divisors + k * state.windows.spacing());
        in_batches(p, batch, first, last, [&](i64 plane, i64 planes, i64 channel) {
          over_batch(p, batch, x, tile, plane, planes, channel, state.windows, state.row,
                     [&](i64 od, i64 oh, typename Sum<A>::Row row, const Segments& segments) {
                       divide(row.v, static_cast<A>(divisor.of_rows(p, od, oh)), state.divisors,
                              state.windows.length());
                       write_segments(y, row.v, segments);
                     });
        });
      },
      false, batch.planes);
}

template <class A, bool Lines>
void average_small_windows(const Work& work, Algorithm algorithm, const View& x, Dense y,
                           Divisor divisor) {
  const Plan& p = *work.plan;
  using Output = MeanOutput<A, Lines>;
  using State = SmallWindows<Mean<A, Lines>, Output>;
  over_outputs(
      work,
      [&](const Tile& tile, Arena& arena) {
        return State(algorithm, p, x, tile, false, arena,
                     [&](i64 longest) { return Output(p, tile, divisor, y, longest, arena); });
      },
      [&](State& state, i64 plane, const Tile&) {
        state.output.start(plane);
        state.compute_tile(plane_of(x, plane));
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
    switch (algorithm) {
      case Algorithm::plane_means:
        return over_outputs(
            work, [&](const Tile&, Arena& arena) { return PlaneMeans<A>(p, y, divide, arena); },
            [&](auto& state, i64 first, i64 last, const Tile&) { state.run(x, first, last); });
      case Algorithm::register_blocked:
      case Algorithm::unrolled:  // the order of additions depends on the shape of windows only
        if (shares_nothing(p))
          return average_small_windows<A, false>(work, algorithm, x, y, divide);
        return average_small_windows<A, true>(work, algorithm, x, y, divide);
      case Algorithm::column_sums:
        return average_by_rows<A, ColumnSums<A>>(work, x, y, divide);
      default:
        return average_by_rows<A, Separable<Sum<A>>>(work, x, y, divide);
    }
  });
}

}  // namespace

// backward/average.cpp
void average_backward(const Work&, const View& gy, Dense gx, bool count_padding, double divisor);

// Adds the gradients of the transposed windows, each divided by its divisor.
void average_of_transposed(const Work& work, const View& gy, Divisor divisor, Dense gx) {
  Plan back = *work.plan;
  for (Axis& axis : back.axis) axis = transposed(axis);
  const Work transposed_work{&back, work.threads};
  const PlanDivisor input_divisor{*work.plan, divisor};
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    average_by_rows<A, Separable<Sum<A>>>(transposed_work, gy, gx, {false, 1}, &input_divisor);
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
