// Forward passes of maximum, minimum and median, compiled once per instruction set: chooses the
// algorithm, and computes separable filtering, which handles every call.
#include <memory>

#include "backward/split_ties.hpp"
#include "base/common.hpp"
#include "forward/selecting_tiles.hpp"
#include "forward/selecting_units.hpp"
#include "forward/zero_ties.hpp"
#include "geometry/partition.hpp"

namespace poolgrad::inline POOLGRAD_ISA {
namespace {

// Separable filtering of the planes for which is_selected(plane) is true.
template <class A, bool WithRoutes, class IsSelected>
void reduce(const Work& work, const View& x, Dense y, Dense routes, Select which,
            IsSelected&& is_selected) {
  const Plan& p = *work.plan;
  const bool negate = which == Select::smallest, has_empty = WithRoutes && has_empty_windows(p);
  using State = SeparableState<A, WithRoutes>;
  over_outputs(
      work,
      [&](const Tile& tile, Arena& a) {
        const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
        return State{{p, x, tile, {negate}, {}, a}, {y, n, a}, Max<A, WithRoutes>::take(a, n)};
      },
      [&](State& state, i64 plane, const Tile& tile) {
        if (!is_selected(plane)) return;
        state.separable.start(plane_of(x, plane));
        select_tile(p, tile, state, routes, plane * p.out_plane(), which, has_empty);
      });
}

void select(const Work& work, Select which, const View& x, Dense y, Dense routes) {
  const Plan& plan = *work.plan;
  if (which == Select::median) return select_median(work, x, y, routes);
  Call call = call_of(Task::extreme, work, x);
  call.negated = which == Select::smallest;
  const Algorithm algorithm = choose(call);
  // Planes that the specialised algorithm did not compute.
  std::unique_ptr<std::atomic<bool>[]> uncomputed;
  if constexpr (!kGeneralOnly) {
    switch (algorithm) {
      case Algorithm::unrolled:
      case Algorithm::unrolled_joined_rows:
      case Algorithm::register_blocked:
        return select_small(work, algorithm, which, x, y, routes);
      case Algorithm::van_herk_2d:
      case Algorithm::transposed_planes:
        uncomputed = std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(plan.outer));
        select_wide(work, algorithm, which, x, y, routes, uncomputed.get());
        if (std::none_of(uncomputed.get(), uncomputed.get() + plan.outer,
                         [](const auto& l) { return l.load(); }))
          return;
        break;
      default:
        break;
    }
  }
  const auto is_selected = [&](i64 plane) { return !uncomputed || uncomputed.get()[plane]; };
  by_order(x.dtype, [&](auto a) {
    using A = decltype(a);
    if (routes.data) reduce<A, true>(work, x, y, routes, which, is_selected);
    else reduce<A, false>(work, x, y, routes, which, is_selected);
  });
}

void forward(const Work& whole, Select which, const View& x, Dense y, Dense routes,
             bool zero_ties) {
  const Plan plan = flattened(*whole.plan, x);
  const Work work{&plan, whole.threads};
  select(work, which, x, y, routes);
  // Extremes of integers have no gradient.
  const bool has_gradient = is_floating(x.dtype) || which == Select::median;
  if (zero_ties && routes.data && has_gradient) route_ties_nowhere(work, x, y, routes);
}

void split_winners(const Work& work, Select which, const View& x, const View& y,
                   std::uint8_t* winners) {
  const Plan& p = *work.plan;
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    over_outputs(
        work, [&](const Tile&, Arena& arena) { return TieRows<A>(p, arena); },
        [&](TieRows<A>& rows, i64 plane, const Tile& tile) {
          mark_ties<A>(p, tile, x, plane_of(x, plane), y, plane_of(y, plane),
                       which == Select::rectified, rows,
                       winners + plane * p.out_plane() * p.winner_bytes());
        },
        true);
  });
}

}  // namespace

extern const SelectKernels select_kernels;
const SelectKernels select_kernels = {forward, select_draw, split_winners};

}  // namespace poolgrad::inline POOLGRAD_ISA
