// Computes mixed pooling, a * max + (1 - a) * average, with both reductions in one pass over rows,
// and its gradient. Compiled once for each instruction set.
#include "backward/weights.hpp"
#include "base/common.hpp"
#include "choose.hpp"
#include "geometry/partition.hpp"
#include "kernels.hpp"
#include "operators/extreme.hpp"
#include "operators/sum.hpp"

namespace poolgrad::inline POOLGRAD_ISA {
namespace {

template <class A>
struct MaxAndSum {
  using In = A;
  using Maximum = Max<A, true, false>;
  using Total = Sum<A>;
  struct Row {
    A* v;
    u32* r;
    A* sum;
    typename Maximum::Row maximum() const { return {v, r}; }
    typename Total::Row total() const { return {sum}; }
  };

  static constexpr bool kIdempotent = false;
  static constexpr bool kDoubles = false;  // no log-step doubling along the width
  static constexpr bool kAnySize = true;

  static Row take(Arena& arena, i64 n) {
    return {arena.take<A>(n), arena.take<u32>(n), arena.take<A>(n)};
  }
  static Row slot(Row row, i64 offset) { return at(row, offset); }
  static Row at(Row row, i64 offset) { return {row.v + offset, row.r + offset, row.sum + offset}; }
  static void clear(Row row, i64 n) {
    Maximum::clear(row.maximum(), n);
    Total::clear(row.total(), n);
  }
  static void fold_inputs(Row to, i64 n, const A* from, i64 step, i64 gap, i64 taps, i64 tap,
                          bool may_reduce_across = true) {
    Maximum::fold_inputs(to.maximum(), n, from, step, gap, taps, tap);
    Total::fold_inputs(to.total(), n, from, step, gap, taps, tap, may_reduce_across);
  }
  template <class Size, class First>
  static void fold_rows(Row to, i64 n, const Row* rows, i64 tap, i64 taps_per_row, Size size,
                        First first) {
    typename Maximum::Row maximum[kMaxFolded];
    typename Total::Row total[kMaxFolded];
    for (i64 t = 0; t < size; ++t) maximum[t] = rows[t].maximum(), total[t] = rows[t].total();
    Maximum::fold_rows(to.maximum(), n, maximum, tap, taps_per_row, size, first);
    Total::fold_rows(to.total(), n, total, tap, taps_per_row, size, first);
  }
};

template <class A>
struct MixedState {
  Separable<MaxAndSum<A>> separable;
  typename MaxAndSum<A>::Row row;
  A *theta, *counts, *y;
  bool has_empty;  // some windows hold no input
};

// Computes a tile of one plane. sensitivity: max - average, the derivative by a.
template <class A>
void mixed_tile(const Plan& p, const Tile& tile, Divisor divisor, MixedState<A>& state, Dense y,
                Dense routes, A* sensitivity, i64 plane) {
  const i64 n = state.separable.length();
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      const i64 first = plane + p.output_index(od, oh, tile.lo[2]);
      const auto reduced = state.separable.row(od, oh, state.row);
      const A rows = static_cast<A>(divisor.of_rows(p, od, oh));
      A* to = has_type<A>(y) ? elements_of<A>(y, first) : state.y;
      for (i64 i = 0; i < n; ++i) {
        const A mean = (A(0) + reduced.sum[i]) / (rows * state.counts[i]), a = state.theta[i];
        const A mixture = a * reduced.v[i] + (A(1) - a) * mean;
        // For a = 0 and a = 1 the result is one of the two, also where the other is infinite.
        to[i] = a == A(1) ? reduced.v[i] : a == A(0) ? mean : mixture;
        if (sensitivity) sensitivity[first + i] = reduced.v[i] - mean;
      }
      if (to == state.y) write(y, first, to, n);
      if (routes.data) {
        if (state.has_empty) route_empty(p, tile, od, oh, reduced.r);
        store_routes(reduced.r, routes, first, n);
      }
    }
  }
}

}  // namespace

void mixed(const Work& work, const View& x, Parameter alpha, bool count_padding, Dense y,
           Dense routes, void* sensitivity) {
  const Plan& p = *work.plan;
  const Divisor divide{count_padding, 0};
  (void)choose({.task = Task::mixed, .plan = &p});  // there is one algorithm
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    using Op = MaxAndSum<A>;
    using State = MixedState<A>;
    const bool has_empty = routes.data && has_empty_windows(p);
    over_outputs(
        work,
        [&](const Tile& tile, Arena& arena) {
          const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
          return State{Separable<Op>(p, x, tile, {}, Op{}, arena),
                       Op::take(arena, n),
                       arena.take<A>(n),
                       arena.take<A>(n),
                       arena.take<A>(n),
                       has_empty};
        },
        [&](State& state, i64 plane, const Tile& tile) {
          divide.fill_row(p, tile.lo[2], tile.hi[2], state.counts);
          fill_parameter(p, alpha, plane, tile.hi[2] - tile.lo[2], state.theta);
          state.separable.start(plane_of(x, plane));
          mixed_tile<A>(p, tile, divide, state, y, routes, static_cast<A*>(sensitivity),
                        plane * p.out_plane());
        });
  });
}

void mixed_backward(const Work& work, const View& gy, const View& routes, Parameter alpha,
                    bool count_padding, Dense gx) {
  (void)choose({.task = Task::weights_backward, .plan = work.plan});  // there is one algorithm
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    const WeightedOperands from{&gy, nullptr, &routes, nullptr, {count_padding, 0}};
    constexpr auto loops = WeightedBackward<A, true>::template loops<MixedWeight<A>>();
    weighted_backward<A, true>(work, from, alpha, 0, loops, gx);
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
