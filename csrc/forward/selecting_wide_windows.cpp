// Maximum and minimum of wide windows, compiled once per instruction set.
#include "forward/selecting_units.hpp"
#include "forward/transposed_planes.hpp"

namespace poolgrad::inline POOLGRAD_ISA {
namespace {

template <bool WithRoutes>
void reduce(const Work& work, Algorithm algorithm, Select which, const View& x, Dense y,
            Dense routes, std::atomic<bool>* uncomputed) {
  const Plan& p = *work.plan;
  const bool negate = which == Select::smallest, has_empty = WithRoutes && has_empty_windows(p);
  using Transposed = TransposedPlanes<float, WithRoutes>;
  if (algorithm == Algorithm::transposed_planes) {
    return over_outputs(
        work, [&](const Tile&, Arena& arena) { return Transposed(p, x, y, routes, negate, arena); },
        [&](Transposed& state, i64 first, i64 last, const Tile&) {
          state.compute_planes(first, last, which, has_empty,
                               [&](i64 plane) { uncomputed[plane] = true; });
        },
        false, Transposed::W);
  }
  using State = WideWindowsState<float, WithRoutes>;
  over_outputs(
      work, [&](const Tile& tile, Arena& arena) { return State(p, x, tile, y, negate, arena); },
      [&](State& state, i64 plane, const Tile&) {
        if (!wide_tile(p, state, plane_of(x, plane), routes, plane * p.out_plane(), which,
                       has_empty))
          uncomputed[plane] = true;
      });
}

}  // namespace

void select_wide(const Work& work, Algorithm algorithm, Select which, const View& x, Dense y,
                 Dense routes, std::atomic<bool>* uncomputed) {
  if (routes.data) reduce<true>(work, algorithm, which, x, y, routes, uncomputed);
  else reduce<false>(work, algorithm, which, x, y, routes, uncomputed);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
