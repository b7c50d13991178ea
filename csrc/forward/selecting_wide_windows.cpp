// The maximum and minimum of wide windows, compiled once per instruction set.
#include "forward/selecting_units.hpp"
#include "forward/transposed_planes.hpp"

namespace poolgrad {
namespace {

template <bool Keep>
void reduce(const Work& work, Algorithm algorithm, Select which, const View& x, Dense y,
            Dense routes, std::atomic<bool>* left) {
  const Plan& p = *work.plan;
  const bool negate = which == Select::smallest, holes = Keep && has_empty_windows(p);
  using Turned = TurnedKit<float, Keep>;
  if (algorithm == Algorithm::transposed_planes) {
    return over_outputs_of_planes(
        work, Turned::W,
        [&](const Tile&, Arena& arena) { return Turned(p, x, y, routes, negate, arena); },
        [&](Turned& kit, i64 first, i64 last, const Tile&) {
          kit.make(first, last, which, holes, [&](i64 plane) { left[plane] = true; });
        });
  }
  using Kit = WideKit<float, Keep>;
  over_outputs(
      work, [&](const Tile& tile, Arena& arena) { return Kit(p, x, tile, y, negate, arena); },
      [&](Kit& kit, i64 plane, const Tile&) {
        if (!wide_tile(p, kit, plane_of(x, plane), routes, plane * p.out_plane(), which, holes))
          left[plane] = true;
      });
}

}  // namespace

void POOLGRAD_TABLE(select_wide)(const Work& work, Algorithm algorithm, Select which, const View& x,
                                 Dense y, Dense routes, std::atomic<bool>* left) {
  if (routes.data) reduce<true>(work, algorithm, which, x, y, routes, left);
  else reduce<false>(work, algorithm, which, x, y, routes, left);
}

}  // namespace poolgrad
