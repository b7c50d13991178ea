// Computes reductions whose weights depend on the input: power mean, log-mean-exp, soft pooling and
// the expected value of a draw. A partial reduction is the largest term m and sums of terms
// relative to m, so that nothing overflows. Two of them can be merged, so the reductions are
// separable. The partial reduction of a small window is computed from all of its inputs at once.
#pragma once

#include "kernels.hpp"
#include "operators/sum.hpp"
#include "simd/math.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

template <class A>
struct Loops;

template <class A>
struct Settings {
  const Loops<A>* loops = nullptr;  // of the reduction
  const A* theta = nullptr;         // one number for each output of a row: p, or r
  NonlinearOp kind = NonlinearOp::lp;
  int whole = 0;                         // p, if it is the same small whole number everywhere
  bool mean = false;                     // whether y is a mean of powers, not their sum
  bool sensitive = false;                // whether the derivative by theta is computed
  bool t = false, w = false, h = false;  // sums that are computed in addition to s
  static constexpr bool finite = false;  // all inputs and theta are finite
  static constexpr int taps = 0;         // inputs of every window, if a compile-time constant
};

// The settings as compile-time constants, for windows of N finite inputs. P: p, if it is 2 or 3.
template <NonlinearOp B, int N, int P = 0>
struct Fixed {
  static constexpr bool finite = true;
  static constexpr int taps = N;
  static constexpr NonlinearOp kind = B;
  static constexpr int whole = P;
  static constexpr bool mean = false, sensitive = false;
  static constexpr bool t = B == NonlinearOp::soft, w = B == NonlinearOp::lse, h = false;
};

// theta: of a row; whole: p, if it is a small whole number; sensitive: whether the derivative by
// theta is computed.
template <class A>
Settings<A> make_settings(const Loops<A>* loops, NonlinearOp kind, const A* theta, int whole,
                          bool sensitive) {
  const bool mean = kind == NonlinearOp::lp_mean,
             near = kind == NonlinearOp::lse || (mean && !whole);
  const bool slope = sensitive && kind != NonlinearOp::lp;
  const bool t = sensitive || kind == NonlinearOp::soft, w = near || slope;
  return {loops, theta, kind, whole, mean, sensitive, t, w, slope};
}

template <class V>
struct ScaledSums {
  V m, s, t, w, h;
};

// ScaledSums of powers and exponentials, with z <= 0 for each input and z = 0 for the largest:
//   s = sum e^z, t = sum z e^z, w = sum (e^z - 1), h = sum (z e^z - e^z + 1).
// w and h stay accurate when all z are near 0, where s - n and t - w cancel.

// z e^z - e^z + 1, about z^2 / 2
template <class A, int W>
POOLGRAD_INLINE Vec<A, W> second_order(const Exp<Vec<A, W>>& e) {
  using V = Vec<A, W>;
  constexpr Inverses<A> inverse;
  constexpr int terms = Format<A>::second_terms;
  const V z = e.x;
  V sum = V{} + inverse.factorial[terms] * static_cast<A>(terms - 1);
  POOLGRAD_UNROLL
  for (int k = terms - 1; k >= 2; --k) sum = sum * z + inverse.factorial[k] * static_cast<A>(k - 1);
  return z < A(-0.5) ? z * e.value() - e.minus_one() : sum * z * z;
}

// Merges two partial reductions; hi has the larger m. e: the exponential of the difference of their
// m; value: the same, or a more accurate one.
template <class A, int W>
ScaledSums<Vec<A, W>> merge_sums(ScaledSums<Vec<A, W>> hi, const ScaledSums<Vec<A, W>>& lo,
                                 const Exp<Vec<A, W>>& e, Vec<A, W> value, const Settings<A>& set) {
  using V = Vec<A, W>;
  const V shifted = e.x * value, count = lo.s - lo.w;
  hi.m = lo.m == lo.m ? hi.m : lo.m;  // propagates a NaN
  hi.s += value * lo.s;
  hi.t += value * lo.t + shifted * lo.s;
  hi.w += value * lo.w + e.minus_one() * count;
  if (set.h) hi.h += value * lo.h + shifted * lo.w + count * second_order<A, W>(e);
  return hi;
}

// Accumulates terms relative to a given m, alternately in two independent accumulators, which
// rounds less than one accumulator. Until end(), s sums the scales of the exponentials and w their
// remainders, so that each sum takes one addition.
template <class V>
struct Terms {
  ScaledSums<V> partial{}, other{};

  ScaledSums<V>& at(Const<0>) { return partial; }
  ScaledSums<V>& at(Const<1>) { return other; }

  template <class A, int W, class Accumulator, class Set>
  POOLGRAD_INLINE void add(Accumulator accumulator, const Exp<Vec<A, W>>& e, const Set& set) {
    at(accumulator).s += e.scale;
    at(accumulator).w += e.part;
    if (set.t) at(accumulator).t += e.x * e.value();
    if (set.h) at(accumulator).h += second_order<A, W>(e);
  }
  template <class Accumulator>
  POOLGRAD_INLINE void add(Accumulator accumulator, V s, V t) {
    at(accumulator).s += s;
    at(accumulator).t += t;
  }

  template <class Set>
  ScaledSums<V> end(V m, const Set&) const {
    const V s = partial.s + other.s;
    return {or_nan<Set>(m, s), s, partial.t + other.t, partial.w + other.w, partial.h + other.h};
  }
  template <class A, class Set>
  ScaledSums<V> end_sums(V m, A n, const Set& set) const {
    ScaledSums<V> all = end(m, set);
    const V parts = all.w;
    all.w += all.s - n;
    all.s += parts;
    all.m = or_nan<Set>(m, all.s);
    return all;
  }

 private:
  // Returns s if it is NaN, so that a NaN among the terms propagates to the result.
  template <class Set>
  static V or_nan(V m, V s) {
    return Set::finite ? m : s == s ? m : s;
  }
};

// Calls each(term, accumulator index) for terms First ... n. If n is a compile-time constant, the
// terms may stay in registers.
template <i64 First, class F>
POOLGRAD_INLINE void alternate(Const<First>, i64 n, F&& each) {
  i64 t = First;
  for (; t + 2 <= n; t += 2) each(t, Const<0>{}), each(t + 1, Const<1>{});
  if (t < n) each(t, Const<0>{});
}
template <i64 First, i64 N, class F>
POOLGRAD_INLINE void alternate(Const<First>, Const<N>, F&& each) {
  [&]<i64... K>(std::integer_sequence<i64, K...>) __attribute__((always_inline)) {
    (each(First + K, Const<K % 2>{}), ...);
  }(std::make_integer_sequence<i64, N - First>{});
}

template <class V>
void sort_by_maximum(ScaledSums<V>& hi, ScaledSums<V>& lo) {
  const auto wrong = hi.m < lo.m;
  const ScaledSums<V> a = hi, b = lo;
  const auto exchange = [&](V ScaledSums<V>::* part) {
    hi.*part = wrong ? b.*part : a.*part;
    lo.*part = wrong ? a.*part : b.*part;
  };
  exchange(&ScaledSums<V>::m), exchange(&ScaledSums<V>::s), exchange(&ScaledSums<V>::t);
  exchange(&ScaledSums<V>::w), exchange(&ScaledSums<V>::h);
}

// m = max |x|, z = p log(|x| / m)
template <class A>
struct Powers {
  static constexpr bool kInRegisters = false;
  template <class V, i64 W>
  static ScaledSums<V> partial_of(V x, V, Const<W>) {
    return {x < A(0) ? -x : x, V{} + A(1), V{}, V{}, V{}};
  }
  template <class V, i64 W>
  static ScaledSums<V> merge(ScaledSums<V> hi, ScaledSums<V> lo, V p, const Settings<A>& set,
                             Const<W>) {
    sort_by_maximum(hi, lo);
    const auto equal = lo.m == hi.m;
    if (set.whole && !set.t) {
      hi.s += integer_power(equal ? V{} + A(1) : lo.m / hi.m, set.whole) * lo.s;
      hi.m = lo.m == lo.m ? hi.m : lo.m;
      return hi;
    }
    V z = p * log_ratio<A, W>(lo.m, hi.m);
    z = equal ? V{} : lo.m == A(0) ? V{} - std::numeric_limits<A>::infinity() : z;
    const Exp<V> e = exponentials<A, W>(z);
    const V q = equal ? V{} + A(1) : lo.m / hi.m;
    return merge_sums<A, W>(hi, lo, e, set.whole ? integer_power(q, set.whole) : e.value(), set);
  }
  template <class V, class N, class Set, i64 W>
  POOLGRAD_INLINE static ScaledSums<V> all_at_once(V* x, N n, V p, const Set& set, Const<W>) {
    V m{};
    alternate(Const<0>{}, n, [&](i64 t, auto) __attribute__((always_inline)) {
      x[t] = magnitude<A, W>(x[t]);
      m = x[t] > m ? x[t] : m;
    });
    if (set.whole && !set.mean) return scaled_powers(x, n, m, p, set, Const<W>{});
    Terms<V> terms, powers;
    const bool by_log = !set.whole || set.w;
    alternate(Const<0>{}, n, [&](i64 t, auto accumulator) __attribute__((always_inline)) {
      const auto equal = x[t] == m;
      if (set.whole) {
        const V q = equal ? V{} + A(1) : x[t] / m, power = integer_power(q, set.whole);
        powers.add(accumulator, power, V{});
      }
      if (by_log) {
        V z = p * log_ratio<A, W>(x[t], m);
        z = equal ? V{} : x[t] == A(0) ? V{} - std::numeric_limits<A>::infinity() : z;
        terms.template add<A, W>(accumulator, exponentials<A, W>(z), set);
      }
    });
    if (!by_log) return powers.end(m, set);
    ScaledSums<V> partial = terms.end_sums(m, static_cast<A>(n), set);
    if (set.whole) partial.s = powers.end(m, set).s;
    return partial;
  }

 private:
  // Terms relative to a power of two near m: no division, and only the powers are rounded.
  template <class V, class N, class Set, i64 W>
  POOLGRAD_INLINE static ScaledSums<V> scaled_powers(const V* x, N n, V m, V p, const Set& set,
                                                     Const<W>) {
    const auto infinite = m > std::numeric_limits<A>::max();
    const PowerOfTwo<V> scale = scale_of<A, W>(m);
    V down = scale.down;
    if (!Set::finite) down = infinite ? V{} : down;
    Terms<V> terms;
    alternate(Const<0>{}, n, [&](i64 t, auto accumulator) __attribute__((always_inline)) {
      V q = x[t] * down;
      if (!Set::finite) q = (infinite & (x[t] == m)) ? V{} + A(1) : q;
      const V power = integer_power(q, set.whole);
      terms.add(accumulator, power, set.t ? p * logarithm<A, W>(q) * power : V{});
    });
    return terms.end((infinite | (m == A(0))) ? m : scale.up, set);
  }
};

// m = max x (of -x, if r < 0), z = |r| (x - m)
template <class A>
struct Exponentials {
  static constexpr bool kInRegisters = true;  // the four inputs of a 2x2 window
  template <class V, i64 W>
  static ScaledSums<V> partial_of(V x, V r, Const<W>) {
    return {r < A(0) ? -x : x, V{} + A(1), V{}, V{}, V{}};
  }
  template <class V, i64 W>
  static ScaledSums<V> merge(ScaledSums<V> hi, ScaledSums<V> lo, V r, const Settings<A>& set,
                             Const<W>) {
    sort_by_maximum(hi, lo);
    const V rate = r < A(0) ? -r : r;
    const V z = lo.m == hi.m ? V{} : rate * (lo.m - hi.m);  // equal infinities
    const Exp<V> e = exponentials<A, W>(z);
    return merge_sums<A, W>(hi, lo, e, e.value(), set);
  }
  template <class V, class N, class Set, i64 W>
  POOLGRAD_INLINE static ScaledSums<V> all_at_once(V* x, N n, V r, const Set& set, Const<W>) {
    const auto negated = r < A(0);
    const V rate = negated ? -r : r, sign = negated ? V{} - A(1) : V{} + A(1);
    V m = x[0] * sign;
    alternate(Const<1>{}, n, [&](i64 t, auto) __attribute__((always_inline)) {
      const V value = x[t] * sign;  // without m, whose exponential is 1
      const auto larger = value > m;
      x[t] = larger ? m : value;
      m = larger ? value : m;
    });
    Terms<V> terms;
    terms.partial.s += A(1);
    alternate(Const<1>{}, n, [&](i64 t, auto accumulator) __attribute__((always_inline)) {
      V z = rate * (x[t] - m);
      if (!Set::finite) z = x[t] == m ? V{} : z;  // equal infinities
      terms.template add<A, W>(accumulator, exponentials<A, W, Set::finite>(z), set);
    });
    return terms.end_sums(m, static_cast<A>(n), set);
  }
};

// a = max(x, 0): m = max a, s = sum a / m, t = sum (a / m)^2; in a window without a positive input
// m = 0 and s = sum x
template <class A>
struct Positives {
  static constexpr bool kInRegisters = false;
  template <class V, i64 W>
  static ScaledSums<V> partial_of(V x, V, Const<W>) {
    const V one = V{} + A(1);
    const auto positive = x > A(0);
    return {positive ? x : x <= A(0) ? V{} : x, positive ? one : x, positive ? one : V{}, V{}, V{}};
  }
  template <class V, i64 W>
  static ScaledSums<V> merge(ScaledSums<V> hi, ScaledSums<V> lo, V, const Settings<A>&, Const<W>) {
    sort_by_maximum(hi, lo);
    const V q = lo.m == hi.m ? V{} + A(1) : lo.m / hi.m;
    const auto alone =
        (lo.m == A(0)) & (hi.m > A(0));  // s of a window without positive inputs is another sum
    hi.s += alone ? V{} : q * lo.s;
    hi.t += q * q * lo.t;
    hi.m = lo.m == lo.m ? hi.m : lo.m;
    return hi;
  }
  template <class V, i64 W>
  POOLGRAD_INLINE static ScaledSums<V> all_at_once(V* x, i64 n, V, const Settings<A>& set,
                                                   Const<W>) {
    V m{}, total{};
    for (i64 t = 0; t < n; ++t) m = x[t] > m ? x[t] : m;
    Terms<V> terms;
    alternate(Const<0>{}, n, [&](i64 t, auto accumulator) __attribute__((always_inline)) {
      const V q = x[t] == m ? V{} + A(1) : x[t] / m, share = x[t] <= A(0) ? V{} : q;
      terms.add(accumulator, share, share * share);
      total += x[t];
    });
    ScaledSums<V> partial = terms.end(m, set);
    partial.s = m == A(0) ? total : partial.s;
    partial.m = partial.s == partial.s ? partial.m : partial.s;
    return partial;
  }
};

// A row of partial reductions as a struct of arrays. `set.theta` points to the parameter of the
// first output.
template <class A>
struct ScaledSumsRow {
  static constexpr int kParts = 4;
  A *v, *part[kParts];
  Settings<A> set;
};

template <class V, class A, class Access = AllLanes>
ScaledSums<V> load_partial(const ScaledSumsRow<A>& row, i64 i, Access access = {}) {
  return {access.template load<V>(row.v + i), access.template load<V>(row.part[0] + i),
          access.template load<V>(row.part[1] + i), access.template load<V>(row.part[2] + i),
          access.template load<V>(row.part[3] + i)};
}
template <class V, class A, class Access = AllLanes>
void store_partial(const ScaledSumsRow<A>& row, i64 i, const ScaledSums<V>& partial,
                   Access access = {}) {
  access.store(row.v + i, partial.m);
  access.store(row.part[0] + i, partial.s);
  access.store(row.part[1] + i, partial.t);
  access.store(row.part[2] + i, partial.w);
  access.store(row.part[3] + i, partial.h);
}

// Reduces one window of many neighbours: each lane reduces every W-th input, then a horizontal
// reduction merges the lanes.
template <class A, class Reduction>
POOLGRAD_LOOP void fold_across(ScaledSumsRow<A> to, const A* from, i64 taps) {
  constexpr i64 W =
      64 / static_cast<i64>(sizeof(A));  // the same on every machine, for the same rounding
  constexpr int kParts = ScaledSumsRow<A>::kParts;
  using V = Vec<A, W>;
  using One = Vec<A, 1>;
  const V p = V{} + to.set.theta[0];
  const One theta = load<One>(to.set.theta);
  ScaledSums<V> partials = Reduction::partial_of(load<V>(from), p, Const<W>{});
  i64 t = W;
  for (; t + W <= taps; t += W) {
    const auto next = Reduction::partial_of(load<V>(from + t), p, Const<W>{});
    partials = Reduction::merge(partials, next, p, to.set, Const<W>{});
  }
  A lane[1 + kParts][W];
  const ScaledSumsRow<A> lanes_row{lane[0], {lane[1], lane[2], lane[3], lane[4]}, to.set};
  store_partial(lanes_row, 0, partials);
  ScaledSums<One> partial = load_partial<One>(lanes_row, 0);
  for (i64 j = 1; j < W; ++j) {
    partial = Reduction::merge(partial, load_partial<One>(lanes_row, j), theta, to.set, Const<1>{});
  }
  for (; t < taps; ++t) {
    const auto next = Reduction::partial_of(load<One>(from + t), theta, Const<1>{});
    partial = Reduction::merge(partial, next, theta, to.set, Const<1>{});
  }
  store_partial(to, 0, partial);
}

template <class A, class Reduction>
POOLGRAD_LOOP void fold_inputs(ScaledSumsRow<A> to, i64 n, const A* from, i64 step, i64 gap,
                               i64 taps, bool may_reduce_across) {
  if (may_reduce_across && n == 1 && gap == 1 && taps >= kTapsAcrossLanes)
    return fold_across<A, Reduction>(to, from, taps);
  masked_lanes<A>(n, [&](auto w, i64 i, auto access) {
    using V = Vec<A, w()>;
    const V p = access.template load<V>(to.set.theta + i);
    const auto input = [&](i64 t) {
      const A* here = from + i * step + t * gap;
      return Reduction::partial_of(access.template load<V>(here, step), p, w);
    };
    ScaledSums<V> partial = input(0);
    for (i64 t = 1; t < taps; ++t) partial = Reduction::merge(partial, input(t), p, to.set, w);
    store_partial(to, i, partial, access);
  });
}

template <class A, class Reduction>
POOLGRAD_LOOP void fold_partials(ScaledSumsRow<A> to, i64 n, const ScaledSumsRow<A>* rows, i64 size,
                                 bool first) {
  masked_lanes<A>(n, [&](auto w, i64 i, auto access) {
    using V = Vec<A, w()>;
    const V p = access.template load<V>(to.set.theta + i);
    ScaledSums<V> partial = load_partial<V>(first ? rows[0] : to, i, access);
    for (i64 t = first; t < size; ++t) {
      partial = Reduction::merge(partial, load_partial<V>(rows[t], i, access), p, to.set, w);
    }
    store_partial(to, i, partial, access);
  });
}

template <class A>
struct RowOperands;
template <class A>
struct WindowInputs;

// The inner loops of a reduction. Tiles, rows and edges are compiled once for all reductions and
// call these.
template <class A>
struct Loops {
  // Computes n partial reductions, `step` apart, of `taps` inputs each, which lie `gap` apart.
  void (*fold_inputs)(ScaledSumsRow<A> to, i64 n, const A* from, i64 step, i64 gap, i64 taps,
                      bool may_reduce_across);
  // Merges n partial reductions of `size` rows, and of `to` unless these are the first.
  void (*fold_partials)(ScaledSumsRow<A> to, i64 n, const ScaledSumsRow<A>* rows, i64 size,
                        bool first);
  // Converts partial reductions to outputs.
  void (*finish)(const RowOperands<A>& line, ScaledSumsRow<A> partials, i64 n);
  // Convert all inputs of windows to outputs: a vector of windows, and two vectors.
  void (*store)(const RowOperands<A>& line, i64 i, WindowInputs<A>& inputs, i64 lanes);
  void (*store_pair)(const RowOperands<A>& line, i64 i, WindowInputs<A>& one,
                     WindowInputs<A>& other);
};

// The operator that Separable runs.
template <class A>
struct Nonlinear {
  using In = A;
  using Row = ScaledSumsRow<A>;

  Settings<A> set;

  static constexpr bool kIdempotent = false;
  static constexpr bool kDoubles = false;  // no log-step doubling along the width
  static constexpr bool kAnySize = true;

  Row take(Arena& arena, i64 n) const {
    Row row{arena.take<A>(n), {}, set};
    for (A*& part : row.part) part = arena.take<A>(n);
    return row;
  }
  // Another row with the same theta; `at`: another output of the same row, which has its own theta.
  static Row slot(Row row, i64 offset) {
    row.v += offset;
    for (A*& part : row.part) part += offset;
    return row;
  }
  static Row at(Row row, i64 offset) {
    row = slot(row, offset);
    row.set.theta += offset;
    return row;
  }
  static void clear(Row row, i64 n) {
    std::fill(row.v, row.v + n, A(0));
    for (A* part : row.part) std::fill(part, part + n, A(0));
  }
  static void fold_inputs(Row to, i64 n, const A* from, i64 step, i64 gap, i64 taps, i64,
                          bool may_reduce_across = true) {
    to.set.loops->fold_inputs(to, n, from, step, gap, taps, may_reduce_across);
  }
  static void fold_rows(Row to, i64 n, const Row* rows, i64, i64, i64 size, bool first) {
    to.set.loops->fold_partials(to, n, rows, size, first);
  }
};

}  // namespace poolgrad::inline POOLGRAD_ISA
