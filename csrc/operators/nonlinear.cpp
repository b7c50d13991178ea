// Nonlinear reductions and their backward passes, compiled once per instruction set.
#include "backward/weights.hpp"
#include "base/common.hpp"
#include "geometry/partition.hpp"
#include "operators/nonlinear_outputs.hpp"

namespace poolgrad::inline POOLGRAD_ISA {
namespace {

// Returns p if it is the same whole number of 1 to 4 for all channels, else 0.
template <class A>
int common_integer_power(NonlinearOp kind, Parameter theta) {
  if (kind != NonlinearOp::lp && kind != NonlinearOp::lp_mean) return 0;
  const A* values = static_cast<const A*>(theta.values);
  for (i64 i = 0; i < theta.count; ++i) {
    if (values[i] != values[0]) return 0;
  }
  for (int whole = 1; whole <= 4; ++whole) {
    if (values[0] == static_cast<A>(whole)) return whole;
  }
  return 0;
}

template <class A, class Windows, class MakeWindows>
void compute_tiles(const Work& work, NonlinearOp kind, const View& x, Parameter theta, Dense y,
                   void* const* residuals, void* sensitivity, MakeWindows&& make_windows) {
  const Plan& p = *work.plan;
  using State = NonlinearState<A, Windows>;
  const int whole = common_integer_power<A>(kind, theta);
  over_outputs(
      work,
      [&](const Tile& tile, Arena& arena) {
        const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
        A *theta_row = arena.take<A>(n), *counts = arena.take<A>(n);
        const Nonlinear<A> op{
            make_settings(loops_of<A>(kind), kind, theta_row, whole, sensitivity != nullptr)};
        const auto dense = [](void* to) {
          return Dense{static_cast<char*>(to), DtypeOf<A>::value};
        };
        return State{make_windows(tile, op, arena),
                     op.take(arena, n),
                     {op.set, counts, A(0), {}},
                     theta_row,
                     counts,
                     {y, n, arena},
                     {{dense(residuals[0]), n, arena},
                      {dense(residuals[1]), n, arena},
                      {dense(residuals[2]), n, arena}},
                     {dense(sensitivity), n, arena}};
      },
      [&](State& state, i64 plane, const Tile& tile) {
        Divisor{false, 0}.fill_row(p, tile.lo[2], tile.hi[2], state.counts);
        fill_parameter(p, theta, plane, tile.hi[2] - tile.lo[2], state.theta, least_parameter<A>());
        state.windows.start(plane_of(x, plane));
        nonlinear_tile(p, tile, state, plane * p.out_plane());
      },
      true);
}

void forward(const Work& work, NonlinearOp kind, const View& x, Parameter theta, Dense y,
             void* const* residuals, void* sensitivity) {
  const Plan& p = *work.plan;
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    using Small = Unrolled<SmallNonlinear<A>>;
    using Large = Separable<Nonlinear<A>>;
    if (choose({.task = Task::nonlinear, .plan = &p}) == Algorithm::unrolled) {
      compute_tiles<A, Small>(work, kind, x, theta, y, residuals, sensitivity,
                              [&](const Tile& tile, const auto&, Arena& arena) {
                                return Small(p, x, tile, false, arena);
                              });
    } else {
      compute_tiles<A, Large>(work, kind, x, theta, y, residuals, sensitivity,
                              [&](const Tile& tile, const auto& op, Arena& arena) {
                                return Large(p, x, tile, {}, op, arena);
                              });
    }
  });
}

void backward(const Work& work, NonlinearOp kind, const View& gy, const View& x, Parameter theta,
              const View* residuals, Dense gx) {
  (void)choose({.task = Task::weights_backward, .plan = work.plan});  // there is one algorithm
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    const WeightedOperands from{&gy, &x, nullptr, residuals, {false, 0}};
    const int whole = common_integer_power<A>(kind, theta);
    using Backward = WeightedBackward<A, false>;
    const auto loops = kind == NonlinearOp::lse ? Backward::template loops<ExponentialWeight<A>>()
                       : kind == NonlinearOp::soft ? Backward::template loops<SoftWeight<A>>()
                       : kind == NonlinearOp::expected
                           ? Backward::template loops<PositiveWeight<A>>()
                           : Backward::template loops<PowerWeight<A>>();
    weighted_backward<A, false>(work, from, theta, whole, loops, gx);
  });
}

}  // namespace

extern const NonlinearKernels nonlinear_kernels;
const NonlinearKernels nonlinear_kernels = {forward, backward};

}  // namespace poolgrad::inline POOLGRAD_ISA
