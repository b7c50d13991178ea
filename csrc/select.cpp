// Forward passes of the selecting reductions, compiled once per instruction set.
#include <atomic>

#include "half.hpp"
#include "isa.hpp"
#include "median.hpp"
#include "pick.hpp"
#include "schedule.hpp"
#include "ties.hpp"
#include "turned.hpp"

namespace poolgrad {
namespace {

template <class Op>
void all_at_once(const Work& work, const View& x, Dense y, Dense routes, Select which, bool lone) {
  const Plan& p = *work.plan;
  const bool negate = which == Select::smallest;
  using Kit = DirectKit<Op>;
  over_outputs(
      work, [&](const Tile& tile, Arena& a) { return Kit(p, x, tile, y, routes, negate, a); },
      [&](Kit& kit, i64 plane, const Tile& tile) {
        kit.start(plane_of(x, plane));
        direct_tile(p, tile, kit, plane_of(x, plane), plane * p.out_plane(), which, lone);
      });
}

template <class A, bool Keep, bool Lone>
void extreme(const Work& work, const View& x, Dense y, Dense routes, Select which) {
  const Plan& p = *work.plan;
  const bool negate = which == Select::smallest;
  if constexpr (!Lone && kFloat<A>) {
    if (is_direct(p)) return all_at_once<Best<A, Keep>>(work, x, y, routes, which, false);
  }
  const bool holes = Keep && has_empty_windows(p);
  if (is_sheet(p)) {
    using Turned = TurnedKit<A, Keep, Lone>;
    if (Turned::is_of_use(p, x, work.threads)) {
      return over_outputs_of_planes(
          work, Turned::W,
          [&](const Tile&, Arena& arena) { return Turned(p, x, y, routes, negate, arena); },
          [&](Turned& kit, i64 first, i64 last, const Tile&) {
            kit.make(first, last, which, holes);
          });
    }
    using Kit = WideKit<A, Keep, Lone>;
    return over_outputs(
        work, [&](const Tile& tile, Arena& arena) { return Kit(p, x, tile, y, negate, arena); },
        [&](Kit& kit, i64 plane, const Tile&) {
          wide_tile(p, kit, plane_of(x, plane), routes, plane * p.out_plane(), which, holes);
        });
  }
  using Kit = SelectKit<A, Keep, Lone>;
  over_outputs(
      work,
      [&](const Tile& tile, Arena& a) {
        const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
        return Kit{{p, x, tile, {negate}, {}, a}, {y, n, a}, Max<A, Keep, Lone>::take(a, n)};
      },
      [&](Kit& kit, i64 plane, const Tile& tile) {
        kit.machine.start(plane_of(x, plane));
        select_tile(p, tile, kit, routes, plane * p.out_plane(), which, holes);
      });
}

template <class A, class Picker, class Prepare>
void pick(const Work& work, const View& x, Dense y, Dense routes, const View& order, bool lone,
          Prepare&& prepare) {
  const Plan& p = *work.plan;
  using Kit = PickKit<A, Picker>;
  over_outputs(
      work,
      [&](const Tile& tile, Arena& a) {
        Windows<A> windows(p, x, tile, a);
        Picker picker(p, windows, a);
        prepare(picker);
        const i64 n = windows.stride();
        return Kit{windows, picker, a.take<A>(n), a.take<u32>(n), a.take<u32>(n)};
      },
      [&](Kit& kit, i64 plane, const Tile& tile) {
        pick_tile(p, tile, kit, plane_of(x, plane), order, outer_offset(order, plane), lone, y,
                  routes, plane * p.out_plane());
      });
}

template <class A>
void median(const Work& work, const View& x, Dense y, Dense routes, bool lone) {
  const Plan& p = *work.plan;
  if (!has_few_places(p) || p.places > kMostSorted) {
    pick<A, Median<A>>(work, x, y, routes, View{}, lone, [](auto&) {});
  } else {
    all_at_once<Middle<A>>(work, x, y, routes, Select::median, lone);
  }
}

void forward(const Work& whole, Select which, const View& x, Dense y, Dense routes, bool lone) {
  const Plan plan = flattened(*whole.plan, x);
  const Work work{&plan, whole.threads};
  if (which != Select::median && is_direct(plan)) {  // small types as they are
    const auto as_they_are = [&](auto keeping, auto forgetting) {
      const Dtype dtype = DtypeOf<typename decltype(keeping)::In>::value;
      View from = x;
      from.dtype = y.dtype = dtype;
      if (routes.data) all_at_once<decltype(keeping)>(work, from, y, routes, which, false);
      else all_at_once<decltype(forgetting)>(work, from, y, routes, which, false);
    };
    if (x.dtype == Dtype::uint8)
      return as_they_are(Best<std::uint8_t, true>{}, Best<std::uint8_t, false>{});
    if (x.dtype == Dtype::float16 && !lone)
      return as_they_are(BestBits<Half, true>{}, BestBits<Half, false>{});
    if (x.dtype == Dtype::bfloat16 && !lone)
      return as_they_are(BestBits<Brain, true>{}, BestBits<Brain, false>{});
  }
  by_order(x.dtype, [&](auto a) {
    using A = decltype(a);
    if (which == Select::median) median<A>(work, x, y, routes, lone);
    else if (!routes.data) extreme<A, false, false>(work, x, y, routes, which);
    else if (lone && kFloat<A>) extreme<A, true, kFloat<A>>(work, x, y, routes, which);
    else extreme<A, true, false>(work, x, y, routes, which);
  });
}

bool all_finite(const Work& work, const View& x) {
  const Plan& p = *work.plan;
  std::atomic<bool> finite{true};
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    over_inputs(
        work, [&](const Piece&, Arena& arena) { return arena.take<A>(p.axis[2].in * p.inner); },
        [&](A* buffer, i64 plane, const Piece& piece) {
          const i64 n = (piece.hi[2] - piece.lo[2]) * p.inner;
          for (i64 d = piece.lo[0]; d < piece.hi[0]; ++d) {
            for (i64 h = piece.lo[1]; h < piece.hi[1]; ++h) {
              const A* row =
                  row_of(x, plane_of(x, plane), p.inner, d, h, piece.lo[2], piece.hi[2], buffer);
              bool all = true;
              for (i64 i = 0; i < n; ++i) all &= row[i] - row[i] == A(0);
              if (!all) finite = false;
            }
          }
        });
  });
  return finite;
}

bool draw(const Work& work, const View& x, Dense y, Dense routes, const View& order,
          std::uint64_t seed) {
  if (!all_finite(work, x)) return false;
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    pick<A, Draw<A>>(work, x, y, routes, order, false, [&](Draw<A>& picker) {
      picker.seed = seed;
      picker.order = order;
    });
  });
  return true;
}

void split_winners(const Work& work, Select which, const View& x, const View& y,
                   std::uint8_t* winners) {
  const Plan& p = *work.plan;
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    over_outputs(
        work, [&](const Tile&, Arena& arena) { return Rows<A>(p, arena); },
        [&](Rows<A>& rows, i64 plane, const Tile& tile) {
          mark_winners<A>(p, tile, x, plane_of(x, plane), y, plane_of(y, plane),
                          which == Select::rectified, rows,
                          winners + plane * p.out_plane() * p.winner_bytes());
        });
  });
}

}  // namespace

extern const SelectKernels POOLGRAD_TABLE(select_kernels);
const SelectKernels POOLGRAD_TABLE(select_kernels) = {forward, draw, split_winners};

}  // namespace poolgrad
