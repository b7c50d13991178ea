// Forward passes of maximum, minimum and median, compiled once per instruction set: chooses the
// algorithm, and computes separable filtering, which handles every call.
#include "base/common.hpp"
#include "forward/selecting_output.hpp"
#include "forward/selecting_units.hpp"
#include "forward/separable.hpp"
#include "forward/split_ties.hpp"
#include "geometry/partition.hpp"

namespace poolgrad::inline POOLGRAD_ISA {
namespace {

// Per-task state. Op: the reduction; Fast: the reduction of finite inputs.
template <class Op, class Fast>
struct SeparableState {
  SeparableState(const Plan& p, const View& x, const Tile& tile, i64 flips, i64 planes,
                 Arena& arena)
      : SeparableState(p, x, tile, flips, planes, arena, Arena(arena)) {}

  Separable<Fast> fast;
  Separable<Op> exact;
  typename Op::Row row;

 private:
  // Both reductions use the same memory, as only one is in use at a time.
  SeparableState(const Plan& p, const View& x, const Tile& tile, i64 flips, i64 planes,
                 Arena& arena, Arena shared)
      : fast(p, x, tile, {flips}, shared, planes),
        exact(p, x, tile, {flips}, arena, planes),
        row(Op::take(arena, exact.length())) {}
};

// Separable filtering. Where rows are doubled, inputs are reduced as if they were finite, and again
// if one is not.
template <class A, bool WithRoutes, class Route = u32>
void reduce(const Work& work, const View& x, Dense y, Dense routes, Select which) {
  const Plan& p = *work.plan;
  using Op = Max<A, WithRoutes, kFloat<A>, Route>;
  using Fast = Max<A, WithRoutes, kFloat<A> && !kSpecialised<A>, Route>;
  const i64 flips = flips_of<A>(which, x.dtype);
  const bool has_empty = WithRoutes && has_empty_windows(p);
  const Batch batch = Separable<Op>::batch(p);
  Plan part = p;
  part.inner = batch.channels;
  const bool assume_finite = doubles_along(p.axis[2]);
  over_tiles<Tile>(
      work,
      [&](const Tile& tile, Arena& arena) {
        return SeparableState<Op, Fast>(part, x, tile, flips, batch.planes, arena);
      },
      [&](auto& state, i64 first, i64 last, const Tile& tile) {
        in_batches(p, batch, first, last, [&](i64 plane, i64 planes, i64 channel) {
          const auto run = [&](auto& windows) {
            return over_batch(p, batch, x, tile, plane, planes, channel, windows, state.row,
                              [&](i64 od, i64 oh, typename Op::Row row, const Segments& segments) {
                                finish<Op>(which, flips, row.v, row.r, windows.length());
                                for (i64 k = 0; has_empty && k < planes; ++k)
                                  route_empty(part, tile, od, oh, row.r + k * windows.spacing());
                                write_segments(y, row.v, segments);
                                if constexpr (WithRoutes) write_segments(routes, row.r, segments);
                              });
          };
          if (!assume_finite || !run(state.fast)) run(state.exact);
        });
      },
      false, batch.planes);
}

void select(const Work& work, Select which, const View& x, Dense y, Dense routes) {
  if (which == Select::median) return select_median(work, x, y, routes);
  Call call = call_of(Task::extreme, work, x);
  call.flips = which == Select::smallest || x.dtype == Dtype::int8;
  const Algorithm algorithm = choose(call);
  if constexpr (!kGeneralOnly) {
    if (algorithm != Algorithm::separable)
      return select_small(work, algorithm, which, x, y, routes);
  }
  by_order(x.dtype, [&](auto a) {
    using A = decltype(a);
    // With AVX-512 one instruction widens or narrows tap indices.
    using Route = std::conditional_t<kSpecialised<A> && kVectorBytes == 64, std::uint8_t, u32>;
    if (!routes.data) reduce<A, false>(work, x, y, routes, which);
    else if (routes.dtype == Dtype::uint8) reduce<A, true, Route>(work, x, y, routes, which);
    else reduce<A, true>(work, x, y, routes, which);
  });
}

void forward(const Work& whole, Select which, const View& x, Dense y, Dense routes,
             bool zero_ties) {
  const Plan plan = flattened(*whole.plan, x);
  const Work work{&plan, whole.threads};
  select(work, which, x, y, routes);
  // Extremes of integers have no gradient.
  const bool has_gradient = is_floating(x.dtype) || which == Select::median;
  if (!zero_ties || !routes.data || !has_gradient) return;
  by_order(x.dtype, [&](auto a) {
    using Rows = TieRows<decltype(a)>;
    over_states<Tile, Rows>(
        work, true, [&](Rows& rows, i64 plane) { rows.route_ties_nowhere(x, y, routes, plane); });
  });
}

void split_winners(const Work& work, Select which, const View& x, const View& y,
                   std::uint8_t* winners) {
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    over_states<Tile, TieRows<A>>(work, true, [&](TieRows<A>& rows, i64 plane) {
      rows.mark(x, y, which == Select::rectified, winners, plane);
    });
  });
}

}  // namespace

extern const SelectKernels select_kernels;
const SelectKernels select_kernels = {forward, select_draw, split_winners};

}  // namespace poolgrad::inline POOLGRAD_ISA
