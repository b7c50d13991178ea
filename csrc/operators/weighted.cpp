// Averages and the mixture with the maximum, and their backward passes, compiled once per
// instruction set.
#include "backward/equal_shares.hpp"
#include "backward/register_blocked.hpp"
#include "backward/weights.hpp"
#include "base/instruction_set.hpp"
#include "base/partition.hpp"
#include "forward/column_sums.hpp"
#include "forward/plane_means.hpp"
#include "operators/mixed.hpp"

namespace poolgrad {
namespace {

template <class A, class Make>
void average_by(const Work& work, const View& x, Divisor divisor, Make&& make) {
  const Plan& p = *work.plan;
  over_outputs(
      work,
      [&](const Tile& tile, Arena& arena) {
        A* columns = arena.take<A>((tile.hi[2] - tile.lo[2]) * p.inner);
        return make(tile, arena, columns);
      },
      [&](auto& kit, i64 plane, const Tile& tile) {
        kit.start(plane_of(x, plane));
        average_tile(p, tile, kit, divisor, plane * p.out_plane());
      });
}

template <class A, class Windows, class Make>
void average_far(const Work& work, const View& x, Dense y, Divisor divisor, Make&& make) {
  const Plan& p = *work.plan;
  average_by<A>(work, x, divisor, [&](const Tile& tile, Arena& arena, A* columns) {
    const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
    return MeanKit<A, Windows>{make(tile, arena), {y, n, arena}, arena.take<A>(n), {columns}};
  });
}

template <class A>
void average_wide(const Work& work, const View& x, Dense y, Divisor divisor,
                  const Quotient* quotient) {
  const Plan& p = *work.plan;
  using Kit = WideMeanKit<A>;
  over_outputs(
      work, [&](const Tile& tile, Arena& arena) { return Kit(p, x, tile, y, quotient, arena); },
      [&](Kit& kit, i64 plane, const Tile&) {
        wide_average_tile(p, kit, plane_of(x, plane), divisor, plane * p.out_plane());
      });
}

template <class A, bool Lines>
void average_near(const Work& work, const View& x, Dense y, Divisor divisor) {
  const Plan& p = *work.plan;
  using Op = Mean<A, Lines>;
  average_by<A>(work, x, divisor, [&](const Tile& tile, Arena& arena, A* columns) {
    Bands<Op> bands(p, x, tile, false, Op::kFill, arena);
    const i64 rows = larger(1, bands.rows()), n = (tile.hi[2] - tile.lo[2]) * p.inner;
    return SmallMeanKit<A, Lines>{Direct<Op>(p, x, tile, false, arena),
                                  bands,
                                  {y, rows * n, arena},
                                  arena.take<A>(rows),
                                  {columns}};
  });
}

// Whether no input lies in two windows.
bool share_nothing(const Plan& p) {
  return !p.axis[0].overlap && !p.axis[1].overlap && !p.axis[2].overlap;
}

void average(const Work& whole, const View& x, Dense y, bool count_padding, double divisor) {
  const Plan p = flattened(*whole.plan, x);
  const Work work{&p, whole.threads};
  const Divisor divide{count_padding, divisor};
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    using Far = Separable<Sum<A>>;
    if (are_together<A>(p, x)) {
      over_outputs_of_planes(
          work, 1, [&](const Tile&, Arena& arena) { return PlaneMeans<A>(p, y, divide, arena); },
          [&](auto& kit, i64 first, i64 last, const Tile&) { kit.run(x, first, last); });
    } else if (share_nothing(p) && has_few_places(p)) {
      average_near<A, false>(work, x, y, divide);
    } else if (is_direct(p)) {
      average_near<A, true>(work, x, y, divide);
    } else if (is_sheet(p)) {
      average_wide<A>(work, x, y, divide, nullptr);
    } else if (is_by_columns(p, x)) {
      average_far<A, Columns<A>>(work, x, y, divide, [&](const Tile& tile, Arena& arena) {
        return Columns<A>(p, x, tile, arena);
      });
    } else {
      average_far<A, Far>(work, x, y, divide, [&](const Tile& tile, Arena& arena) {
        return Far(p, x, tile, {}, Sum<A>{}, arena);
      });
    }
  });
}

// Windows at every place share much, both ways round: the inputs that an output lies in ...
bool is_at_every_place(const Plan& p) {
  for (const Axis& a : p.axis) {
    if (!a.regular() || a.stride > 1 || (a.m == 1 && a.kernel > 1)) return false;
  }
  return true;
}

// ... are windows over the outputs.
Plan transposed(Plan p) {
  for (Axis& a : p.axis) {
    const i64 reach = (a.kernel - 1) * a.dilation, lo = reach - a.lo, dilation = a.dilation;
    std::swap(a.in, a.out);
    std::swap(a.n, a.m);
    std::swap(a.first, a.before);
    a = regular_axis(a, 1, lo, 0, dilation);
  }
  return p;
}

void average_backward(const Work& work, const View& gy, Dense gx, bool count_padding,
                      double divisor) {
  const Plan& p = *work.plan;
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    const auto by_inputs = [&](auto kind) {
      using How = typename decltype(kind)::type;
      over_inputs(
          work, [&](const InputTile& piece, Arena& arena) { return How(p, piece, gx, arena); },
          [&](How& kit, i64 plane, const InputTile&) {
            kit.run(gy, nullptr, {count_padding, divisor}, plane);
          });
    };
    if (is_plane(p)) return by_inputs(std::type_identity<PlaneGradients<A>>{});
    const bool gathered = is_gathered(p, false);
    if constexpr (!kGeneralOnly) {  // bands add in the same order
      if (gathered && is_banded_back<A>(p))
        return by_inputs(std::type_identity<BackBands<A, false>>{});
    }
    if (gathered) return by_inputs(std::type_identity<Gather<A, false>>{});
    if (is_at_every_place(p)) {
      const Plan back = transposed(p);
      const Quotient quotient{p, {count_padding, divisor}};
      if (is_sheet(back))
        return average_wide<A>({&back, work.threads}, gy, gx, {false, 1}, &quotient);
      using Far = Separable<Sum<A>>;
      return average_far<A, Far>({&back, work.threads}, gy, gx, {false, 1},
                                 [&](const Tile& tile, Arena& arena) {
                                   return Far(back, gy, tile, {false, &quotient}, Sum<A>{}, arena);
                                 });
    }
    using Kit = Spread<A>;
    over_inputs(
        work, [&](const InputTile& piece, Arena& arena) { return Kit(p, piece, gx, arena); },
        [&](Kit& kit, i64 plane, const InputTile&) {
          kit.run(gy, plane_of(gy, plane), {count_padding, divisor}, plane * p.in_plane());
        });
  });
}

void mixed(const Work& work, const View& x, Parameter alpha, bool count_padding, Dense y,
           Dense routes, void* sensitivity) {
  const Plan& p = *work.plan;
  const Divisor divide{count_padding, 0};
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    using Op = MaxAndSum<A>;
    using Kit = MixedKit<A>;
    const bool holes = routes.data && has_empty_windows(p);
    over_outputs(
        work,
        [&](const Tile& tile, Arena& arena) {
          const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
          return Kit{Separable<Op>(p, x, tile, {}, Op{}, arena),
                     Op::take(arena, n),
                     arena.take<A>(n),
                     arena.take<A>(n),
                     arena.take<A>(n),
                     holes};
        },
        [&](Kit& kit, i64 plane, const Tile& tile) {
          divide.fill_row(p, tile.lo[2], tile.hi[2], kit.counts);
          fill_parameter(p, alpha, plane, tile.hi[2] - tile.lo[2], kit.theta);
          kit.machine.start(plane_of(x, plane));
          mixed_tile<A>(p, tile, divide, kit, y, routes, static_cast<A*>(sensitivity),
                        plane * p.out_plane());
        });
  });
}

void mixed_backward(const Work& work, const View& gy, const View& routes, Parameter alpha,
                    bool count_padding, Dense gx) {
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    const Weighed from{&gy, nullptr, &routes, nullptr, {count_padding, 0}};
    constexpr auto loops = WeightedBackward<A, true>::template loops<MixedWeight<A>>();
    weighted_backward<A, true>(work, from, alpha, 0, loops, gx);
  });
}

}  // namespace

extern const BlendKernels POOLGRAD_TABLE(blend_kernels);
const BlendKernels POOLGRAD_TABLE(blend_kernels) = {
    average,
    average_backward,
    mixed,
    mixed_backward,
};

}  // namespace poolgrad
