// The blending reductions whose weights depend on the input, and their backward passes, compiled
// once per instruction set.
#include "backward/weights.hpp"
#include "base/instruction_set.hpp"
#include "base/partition.hpp"
#include "operators/nonlinear_outputs.hpp"

namespace poolgrad {
namespace {

// p, if it is the same small whole number for all channels.
template <class A>
int whole_power(Blend blend, Parameter theta) {
  if (blend != Blend::lp && blend != Blend::lp_mean) return 0;
  const A* values = static_cast<const A*>(theta.values);
  for (i64 i = 0; i < theta.count; ++i) {
    if (values[i] != values[0]) return 0;
  }
  for (int whole = 1; whole <= 4; ++whole) {
    if (values[0] == static_cast<A>(whole)) return whole;
  }
  return 0;
}

template <class A, template <class> class Kind, class Windows, class Make>
void curve_by(const Work& work, Blend blend, const View& x, Parameter theta, Dense y,
              void* const* kept, void* sensitivity, Make&& make) {
  const Plan& p = *work.plan;
  using State = NonlinearState<A, Kind, Windows>;
  const int whole = whole_power<A>(blend, theta);
  over_outputs(
      work,
      [&](const Tile& tile, Arena& arena) {
        const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
        A *own = arena.take<A>(n), *counts = arena.take<A>(n);
        const Curved<A, Kind> op{settings_of(blend, own, whole, sensitivity != nullptr)};
        const auto dense = [](void* to) {
          return Dense{static_cast<char*>(to), DtypeOf<A>::value};
        };
        return State{
            make(tile, op, arena),
            op.take(arena, n),
            {op.set, counts, A(0), {}},
            own,
            counts,
            {y, n, arena},
            {{dense(kept[0]), n, arena}, {dense(kept[1]), n, arena}, {dense(kept[2]), n, arena}},
            {dense(sensitivity), n, arena}};
      },
      [&](State& state, i64 plane, const Tile& tile) {
        Divisor{false, 0}.fill_row(p, tile.lo[2], tile.hi[2], state.counts);
        fill_parameter(p, theta, plane, tile.hi[2] - tile.lo[2], state.theta, least_parameter<A>());
        state.windows.start(plane_of(x, plane));
        curved_tile<A, Kind>(p, tile, state, plane * p.out_plane());
      },
      true);
}

template <class A, template <class> class Kind>
void curve(const Work& work, Blend blend, const View& x, Parameter theta, Dense y,
           void* const* kept, void* sensitivity) {
  const Plan& p = *work.plan;
  using Op = Curved<A, Kind>;
  using Small = Unrolled<Near<A, Kind>>;
  using Large = Separable<Op>;
  if (choose({.task = Task::nonlinear, .plan = &p}) == Algorithm::unrolled) {
    curve_by<A, Kind, Small>(work, blend, x, theta, y, kept, sensitivity,
                             [&](const Tile& tile, const Op&, Arena& arena) {
                               return Small(p, x, tile, false, false, arena);
                             });
  } else {
    curve_by<A, Kind, Large>(work, blend, x, theta, y, kept, sensitivity,
                             [&](const Tile& tile, const Op& op, Arena& arena) {
                               return Large(p, x, tile, {}, op, arena);
                             });
  }
}

void forward(const Work& work, Blend blend, const View& x, Parameter theta, Dense y,
             void* const* kept, void* sensitivity) {
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    if (blend == Blend::expected) curve<A, Positives>(work, blend, x, theta, y, kept, sensitivity);
    else if (blend == Blend::lp || blend == Blend::lp_mean)
      curve<A, Powers>(work, blend, x, theta, y, kept, sensitivity);
    else curve<A, Exponentials>(work, blend, x, theta, y, kept, sensitivity);
  });
}

void backward(const Work& work, Blend blend, const View& gy, const View& x, Parameter theta,
              const View* kept, Dense gx) {
  (void)choose({.task = Task::weights_backward, .plan = work.plan});  // there is one algorithm
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    const Weighed from{&gy, &x, nullptr, kept, {false, 0}};
    const int whole = whole_power<A>(blend, theta);
    if (blend == Blend::lse) weigh<A, ExponentialWeight<A>>(work, from, theta, whole, gx);
    else if (blend == Blend::soft) weigh<A, SoftWeight<A>>(work, from, theta, whole, gx);
    else if (blend == Blend::expected) weigh<A, PositiveWeight<A>>(work, from, theta, whole, gx);
    else weigh<A, PowerWeight<A>>(work, from, theta, whole, gx);
  });
}

}  // namespace

extern const CurveKernels POOLGRAD_TABLE(curve_kernels);
const CurveKernels POOLGRAD_TABLE(curve_kernels) = {forward, backward};

}  // namespace poolgrad
