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

// Separable filtering. Where rows are doubled, inputs are reduced as if they were finite, and again
// if one is not.
template <class A, bool WithRoutes, class Route = u32>
void reduce(const Work& work, View x, Dense y, Dense routes, Select which) {
  const Plan& p = *work.plan;
  using Op = Max<A, WithRoutes, kFloat<A>, Route>;
  using Fast = Max<A, WithRoutes, kFloat<A> && !kSpecialised<A>, Route>;
  struct State {
    Separable<Fast> fast;  // for finite inputs
    Separable<Op> exact;
  };
  const i64 flips = flips_of<A>(which, x.dtype);
  if (sizeof(A) == 1) x.dtype = y.dtype = Dtype::uint8;
  const bool has_empty = WithRoutes && has_empty_windows(p);
  // Outputs are prefetched while rows are doubled in registers, else when they are written. (If an
  // input is not finite, they are written again without.)
  const Axis& width = p.axis[2];
  const bool prefetches = !kDoublesInRegisters<Fast> || !doubles_along(width) ||
                          width.kernel > kLargestInRegisters || p.inner * width.dilation > 1;
  const bool changes = flips || which == Select::rectified || has_empty;
  over_batches<Separable<Op>>(
      work,
      [&](const Plan& part, const Tile& tile, i64 planes, Arena& arena) {
        const ReadOptions<A> reading{.flips = flips, .outputs = {y, routes}};
        return State{{part, x, tile, reading, arena, planes},
                     {part, x, tile, reading, arena, planes}};
      },
      [&](auto& state, const Tile& tile, const Batch& batch) {
        const auto complete = [&](i64 od, i64 oh, typename Op::Row row, const Segments& s) {
          for (i64 k = 0; changes && k < s.rows; ++k) {
            const auto here = row + k * s.from_spacing;
            finish<Op>(which, flips, here.v, here.r, s.count / s.rows * s.length);
            if (has_empty) route_empty(p, batch.channels, tile, od, oh + k, here.r);
          }
          write_segments(y, row.v, s, prefetches);
          if constexpr (WithRoutes) write_segments(routes, row.r, s, prefetches);
        };
        if (!doubles_along(width) || !over_batch(p, batch, x, tile, state.fast, complete))
          over_batch(p, batch, x, tile, state.exact, complete);
      });
}

void select(const Work& work, Select which, const View& x, Dense y, Dense routes) {
  if (which == Select::median) return select_median(work, x, y, routes);
  Call call = call_of(Task::extreme, work, x);
  call.flips = which == Select::smallest || x.dtype == Dtype::int8;
  const Algorithm algorithm = choose(call);
  if constexpr (!kGeneralOnly) {
    if (algorithm != Algorithm::separable)
      return select_small(work, algorithm, which, x, y, routes);
    if (!routes.data && size_of(x.dtype) == 1 && x.dtype != Dtype::boolean)
      return reduce<std::uint8_t, false>(work, x, y, routes, which);
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
