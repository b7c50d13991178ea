// Blending reductions whose weights depend on the input, forward. A window is summed up in a cell
// (m, s, t): its largest term m, and sums of terms relative to m, so that nothing overflows. Cells
// of parts are merged into the cell of the whole, so these reductions are separable, too.
#pragma once

#include "blend.hpp"
#include "transcendental.hpp"

namespace poolgrad {
namespace {

template <class V>
struct Cell {
  V m, s, t;
};

// What an operator's arithmetic depends on beside the input.
template <class A>
struct Settings {
  const A* theta = nullptr;  // one number for each output of a row: p, or r
  int whole = 0;             // p, if it is the same small whole number everywhere
  bool sensitive = false;    // whether the derivative by theta is wanted
};

// lanes(), in fewer different widths: these loops are long.
template <class A, class F>
void long_lanes(i64 n, F&& body) {
  constexpr i64 most = kVectorBytes / static_cast<i64>(sizeof(A)), some = larger(1, most / 4);
  i64 i = 0;
  for (; i + most <= n; i += most) body(Const<most>{}, i);
  for (; some > 1 && i + some <= n; i += some) body(Const<some>{}, i);
  for (; i < n; ++i) body(Const<1>{}, i);
}

// m = max |x|, s = sum (|x| / m)^p, t = sum (|x| / m)^p log(|x| / m)
template <class A>
struct Powers {
  template <class V, i64 W>
  static Cell<V> lift(V x, V, Const<W>) {
    return {x < A(0) ? -x : x, V{} + A(1), V{}};
  }
  template <class V, i64 W>
  static Cell<V> merge(const Cell<V>& a, const Cell<V>& b, V p, const Settings<A>& set, Const<W>) {
    const auto swap = a.m < b.m;
    const V hi = swap ? b.m : a.m, lo = swap ? a.m : b.m;
    const V q = lo == hi ? V{} + A(1) : lo / hi;
    const V u = power<A, W>(q, p, set.whole);
    const V s_lo = swap ? a.s : b.s, t_lo = swap ? a.t : b.t;
    V t = swap ? b.t : a.t;
    if (set.sensitive) {
      const V more = u * (t_lo + s_lo * logarithm<A, W>(q));
      t += u == A(0) ? V{} : more;
    }
    return {hi, (swap ? b.s : a.s) + u * s_lo, t};
  }
};

// z = r x: m = max z, s = sum exp(z - m), t = sum (z - m) exp(z - m)
template <class A>
struct Exponentials {
  template <class V, i64 W>
  static Cell<V> lift(V x, V r, Const<W>) {
    return {x * r, V{} + A(1), V{}};
  }
  template <class V, i64 W>
  static Cell<V> merge(const Cell<V>& a, const Cell<V>& b, V, const Settings<A>&, Const<W>) {
    const auto swap = a.m < b.m;
    const V hi = swap ? b.m : a.m, lo = swap ? a.m : b.m;
    const V d = lo == hi ? V{} : lo - hi;  // two infinities are no distance apart
    const V e = exponential<A, W>(d);
    const V s_lo = swap ? a.s : b.s, t_lo = swap ? a.t : b.t;
    const V more = e * (t_lo + d * s_lo);
    return {hi, (swap ? b.s : a.s) + e * s_lo, (swap ? b.t : a.t) + (e == A(0) ? V{} : more)};
  }
};

// a = max(x, 0): m = max a, s = sum a / m, t = sum (a / m)^2; in a window without a positive input
// m = 0 and s = sum x
template <class A>
struct Positives {
  template <class V, i64 W>
  static Cell<V> lift(V x, V, Const<W>) {
    const V one = V{} + A(1);
    return {x > A(0) ? x : x <= A(0) ? V{} : x, x > A(0) ? one : x, x > A(0) ? one : V{}};
  }
  template <class V, i64 W>
  static Cell<V> merge(const Cell<V>& a, const Cell<V>& b, V, const Settings<A>&, Const<W>) {
    const auto swap = a.m < b.m;
    const V hi = swap ? b.m : a.m, lo = swap ? a.m : b.m;
    const V q = lo == hi ? V{} + A(1) : lo / hi;
    const V s_lo = swap ? a.s : b.s, t_lo = swap ? a.t : b.t;
    const auto alone = (lo == A(0)) & (hi > A(0));  // the other part's s is no sum of this kind
    return {hi, (swap ? b.s : a.s) + (alone ? V{} : q * s_lo), (swap ? b.t : a.t) + q * q * t_lo};
  }
};

template <class A, template <class> class Kind>
struct Curved {
  using In = A;
  struct Row {
    A *v, *s, *t;
    Settings<A> set;
  };

  Settings<A> set;

  Row take(Arena& arena, i64 n) const {
    return {arena.take<A>(n), arena.take<A>(n), arena.take<A>(n), set};
  }
  // Another row, and another place in the same row: there theta is another, too.
  static Row slot(Row row, i64 offset) {
    return {row.v + offset, row.s + offset, row.t + offset, row.set};
  }
  static Row at(Row row, i64 offset) {
    row = slot(row, offset);
    row.set.theta += offset;
    return row;
  }
  POOLGRAD_LOOP static void clear(Row row, i64 n) {
    for (i64 i = 0; i < n; ++i) row.v[i] = row.s[i] = row.t[i] = A(0);
  }

  template <class V>
  static Cell<V> load_cell(const Row& row, i64 i) {
    return {load<V>(row.v + i), load<V>(row.s + i), load<V>(row.t + i)};
  }
  template <class V>
  static void store_cell(const Row& row, i64 i, const Cell<V>& cell) {
    store(row.v + i, cell.m);
    store(row.s + i, cell.s);
    store(row.t + i, cell.t);
  }

  POOLGRAD_LOOP static void fold_inputs(Row to, i64 n, const A* from, i64 step, i64 gap, i64 taps,
                                        i64) {
    if (n == 1 && gap == 1 && taps >= kAcross) return across(to, from, taps);
    long_lanes<A>(n, [&](auto w, i64 i) {
      using V = Vec<A, w()>;
      const V p = load<V>(to.set.theta + i);
      const auto input = [&](i64 t) {
        const A* here = from + i * step + t * gap;
        return Kind<A>::lift(step == 1 ? load<V>(here) : load_apart<V>(here, step), p, w);
      };
      Cell<V> cell = input(0);
      for (i64 t = 1; t < taps; ++t) cell = Kind<A>::merge(cell, input(t), p, to.set, w);
      store_cell(to, i, cell);
    });
  }

  // One output over many neighbours: each lane takes every W-th of them, then lanes are merged.
  POOLGRAD_LOOP static void across(Row to, const A* from, i64 taps) {
    constexpr i64 W = 64 / static_cast<i64>(sizeof(A));  // on every machine the same
    using V = Vec<A, W>;
    using One = Vec<A, 1>;
    const V p = V{} + to.set.theta[0];
    const One own = load<One>(to.set.theta);
    Cell<V> cells = Kind<A>::lift(load<V>(from), p, Const<W>{});
    i64 t = W;
    for (; t + W <= taps; t += W) {
      const auto next = Kind<A>::lift(load<V>(from + t), p, Const<W>{});
      cells = Kind<A>::merge(cells, next, p, to.set, Const<W>{});
    }
    A lane[3][W];
    store(lane[0], cells.m);
    store(lane[1], cells.s);
    store(lane[2], cells.t);
    const auto cell_of = [&](i64 j) {
      return Cell<One>{load<One>(lane[0] + j), load<One>(lane[1] + j), load<One>(lane[2] + j)};
    };
    Cell<One> cell = cell_of(0);
    for (i64 j = 1; j < W; ++j) cell = Kind<A>::merge(cell, cell_of(j), own, to.set, Const<1>{});
    for (; t < taps; ++t) {
      const auto next = Kind<A>::lift(load<One>(from + t), own, Const<1>{});
      cell = Kind<A>::merge(cell, next, own, to.set, Const<1>{});
    }
    store_cell(to, 0, cell);
  }

  template <class Size, class First>
  static void fold_rows(Row to, i64 n, const Row* rows, i64, i64, Size size, First first) {
    fold_cells(to, n, rows, size, first);
  }
  POOLGRAD_LOOP static void fold_cells(Row to, i64 n, const Row* rows, i64 size, bool first) {
    long_lanes<A>(n, [&](auto w, i64 i) {
      using V = Vec<A, w()>;
      const V p = load<V>(to.set.theta + i);
      Cell<V> cell = load_cell<V>(first ? rows[0] : to, i);
      for (i64 t = first; t < size; ++t) {
        cell = Kind<A>::merge(cell, load_cell<V>(rows[t], i), p, to.set, w);
      }
      store_cell(to, i, cell);
    });
  }
};

}  // namespace
}  // namespace poolgrad
