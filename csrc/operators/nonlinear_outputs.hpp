// Computes outputs, residuals for the backward pass and derivatives by the parameter from the sums
// of operators/nonlinear.hpp.
#pragma once

#include <algorithm>

#include "choose.hpp"
#include "operators/nonlinear.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

inline float square_root(float x) { return __builtin_sqrtf(x); }
inline double square_root(double x) { return __builtin_sqrt(x); }

// One row of outputs; each pointer but `y` may be null.
template <class A>
struct RowOutputs {
  A *y, *residuals[kMaxResiduals], *sensitivity;
};

// Pointers to a row of outputs and to the operands other than the input.
template <class A>
struct RowOperands {
  Settings<A> set;
  const A* counts;  // counts[i] * rows: the valid inputs of window i
  A rows;
  RowOutputs<A> out;
};

// t / s - log(s / n), the common part of the derivatives by theta. Where all z are near 0 it is
// computed as h / s - g(v) with g(v) = log(1 + v) - v / (1 + v), which is about v^2 / 2. level:
// log(s / n), accurate for small v.
template <class A, int W, class V>
POOLGRAD_INLINE V slope_of(const ScaledSums<V>& c, V count, V level) {
  const V v = c.w / count, near = A(1) + v;
  constexpr int terms = Format<A>::slope_terms;
  V sum{};
  POOLGRAD_UNROLL
  for (int k = terms; k >= 2; --k) {
    const A coefficient = static_cast<A>(k - 1) / static_cast<A>(k);
    sum = sum * v + (k % 2 ? -coefficient : coefficient);
  }
  const V direct = level - v / near;
  const V g = v > A(-0.1) ? sum * v * v : direct;
  return v > A(-0.5) ? c.h / (count * near) - g : c.t / c.s - level;
}

// Computes outputs i, i + 1, ... of a row from the sums of their windows.
template <class A, class Reduction, int W, class Set, class Access>
POOLGRAD_INLINE void finish_lanes(const RowOperands<A>& line, const Set& set, i64 i,
                                  const ScaledSums<Vec<A, W>>& c, Access access) {
  using V = Vec<A, W>;
  const RowOutputs<A>& out = line.out;
  const int whole = set.whole;
  const bool sensitive = set.sensitive;
  const auto store_residual = [&](int k, V value) {
    if (out.residuals[k]) access.store(out.residuals[k] + i, value);
  };
  const V one = V{} + A(1);
  V count = V{} + static_cast<A>(Set::taps);
  if (!Set::taps) count = access.template load<V>(line.counts + i) * line.rows;
  const V theta = access.template load<V>(line.set.theta + i);
  V y, sensitivity{};
  if constexpr (std::is_same_v<Reduction, Powers<A>>) {
    const bool mean = set.mean;
    const V share = mean ? one / count : one, sum = mean ? c.s / count : c.s;
    V root = sum, level{};
    if (whole == 0 || sensitive) {
      const bool near = mean && !whole;
      level = logarithm_near<A, W>(sum, near ? c.w / count : sum - A(1));
    }
    if (whole == 3) root = cube_root<A, W>(sum);
    if (whole == 0) {
      const V exponent = level / theta;
      root = exponential<A, W>(exponent);
      root = exponent > Format<A>::largest ? V{} + std::numeric_limits<A>::infinity() : root;
    }
    for (int k = 1; k < whole && whole != 3; k *= 2) {
      for (int j = 0; j < W; ++j) root[j] = square_root(root[j]);
    }
    y = c.m == A(0) ? V{} : c.m * root;
    store_residual(0, c.m);
    if (out.residuals[1]) {  // root^(1 - p) / n
      store_residual(1, whole == 0  ? share * exponential<A, W>(level / theta - level)
                        : whole > 1 ? share / integer_power(root, whole - 1)
                                    : share);
    }
    if (sensitive) {
      const V near = mean ? logarithm_near<A, W>(sum, c.w / count) : level;
      const V slope = mean ? slope_of<A, W>(c, count, near) : c.t / c.s - level;
      sensitivity = y == A(0) ? V{} : y * (slope / theta / theta);
    }
  } else if constexpr (std::is_same_v<Reduction, Exponentials<A>>) {
    const bool soft = set.kind == NonlinearOp::soft;
    V inverse{};
    if (soft || out.residuals[1]) inverse = one / c.s;
    store_residual(0, c.m);
    store_residual(1, inverse);
    if (soft) {
      const V shift = c.t * inverse;
      y = c.m + shift;
      store_residual(2, shift);
    } else {
      const auto negated = theta < A(0);
      const V rate = negated ? -theta : theta;
      const V share = one / count;
      const V level = logarithm_near<A, W, Set::finite>(c.s * share, c.w * share);
      const V size = c.m + level / rate;
      y = negated ? -size : size;
      if (sensitive) sensitivity = slope_of<A, W>(c, count, level) / rate / rate;
    }
  } else {
    const V inverse = one / c.s, ratio = c.t * inverse;
    const auto none = c.m == A(0);
    y = none ? c.s / count : c.m * ratio;
    store_residual(0, c.m);
    store_residual(1, none ? one / count : inverse);
    store_residual(2, ratio);
  }
  access.store(out.y + i, y);
  if (sensitive) access.store(out.sensitivity + i, sensitivity);
}

// All inputs of as many windows as a vector has lanes.
template <class A>
struct WindowInputs {
  Vec<A, kLanesOf<A>> input[kMaxNonlinearTaps];
  i64 count;
};

// The inner loops of a reduction. Tiles, rows and edges are compiled once for all reductions and
// call these. theta: the parameter of the first output, or of the only one.
template <class A>
struct Loops {
  using V = Vec<A, kLanesOf<A>>;
  // Return the sums of a vector of windows, one a lane, or of one window in every lane.
  ScaledSums<V> (*reduce_small)(WindowInputs<A>& inputs, const A* theta, i64 lanes,
                                const Settings<A>& set);
  ScaledSums<V> (*reduce_any)(V* inputs, i64 count, const A* theta, const Settings<A>& set);
  // Computes outputs i, i + 1, ... of a row from the sums of their windows.
  void (*store)(const RowOperands<A>& line, i64 i, const ScaledSums<V>& sums, i64 lanes);
};

template <class A, class Reduction, class V = Vec<A, kLanesOf<A>>>
POOLGRAD_LOOP ScaledSums<V> reduce_small(WindowInputs<A>& inputs, const A* theta, i64 lanes,
                                         const Settings<A>& set) {
  const V parameter = FirstLanes{lanes}.load<V>(theta);
  if constexpr (Reduction::kInRegisters) {
    if (inputs.count == 4) {
      V x[4] = {inputs.input[0], inputs.input[1], inputs.input[2], inputs.input[3]};
      return Reduction::reduce(WindowPerLane<V, Const<4>>{x, {}}, parameter, set);
    }
  }
  return Reduction::reduce(WindowPerLane<V, i64>{inputs.input, inputs.count}, parameter, set);
}
template <class A, class Reduction, class V = Vec<A, kLanesOf<A>>>
POOLGRAD_LOOP ScaledSums<V> reduce_any(V* inputs, i64 count, const A* theta,
                                       const Settings<A>& set) {
  return Reduction::reduce(WindowAcrossLanes<V, A>{inputs, count}, V{} + *theta, set);
}
template <class A, class Reduction, class V = Vec<A, kLanesOf<A>>>
POOLGRAD_LOOP void store_outputs(const RowOperands<A>& line, i64 i, const ScaledSums<V>& sums,
                                 i64 lanes) {
  finish_lanes<A, Reduction, kLanesOf<A>>(line, line.set, i, sums, FirstLanes{lanes});
}

template <class A, class Reduction>
inline constexpr Loops<A> kLoops{reduce_small<A, Reduction>, reduce_any<A, Reduction>,
                                 store_outputs<A, Reduction>};

template <class A>
const Loops<A>* loops_of(NonlinearOp kind) {
  if (kind == NonlinearOp::expected) return &kLoops<A, Positives<A>>;
  if (kind == NonlinearOp::lp || kind == NonlinearOp::lp_mean) return &kLoops<A, Powers<A>>;
  return &kLoops<A, Exponentials<A>>;
}

// The operator that Unrolled runs: small windows, all inputs of a window at once.
template <class A>
struct SmallNonlinear {
  using In = A;
  struct Target {
    const RowOperands<A>* line;
    i64 first;
    Target at(i64 offset) const { return {line, first + offset}; }
  };
  using AssumeNoNaN = SmallNonlinear;
  static constexpr bool kByLines = false, kRounds = false;
  static constexpr bool kPads = false;  // no value leaves a result unchanged
  static constexpr bool kHeavy = true;
  static constexpr A kFill = A(0);
  static bool may_be_padding(Target, i64) { return true; }

  template <class V>
  using Partial = WindowInputs<A>;

  static void clear(Target to, i64 n) {
    const auto& out = to.line->out;
    for (A* row : {out.y, out.residuals[0], out.residuals[1], out.residuals[2], out.sensitivity}) {
      if (row) std::fill(row + to.first, row + to.first + n, A(0));
    }
  }
  template <class V>
  static WindowInputs<A> first(V value, u32) {
    WindowInputs<A> partial;
    partial.input[0] = value;
    partial.count = 1;
    return partial;
  }
  template <class V>
  static void take(WindowInputs<A>& partial, V value, u32) {
    partial.input[partial.count++] = value;
  }
  template <class V>
  static void store(Target to, i64 i, WindowInputs<A>& inputs, i64 lanes) {
    const Settings<A>& set = to.line->set;
    const i64 output = to.first + i;
    set.loops->store(*to.line, output,
                     set.loops->reduce_small(inputs, set.theta + output, lanes, set), lanes);
  }

  // Square windows of N finite inputs: calls f with the settings as compile-time constants and
  // returns its result, or false if there is no specialised code for these settings.
  static constexpr bool kHasFixedSquares = kSpecialised<A>;
  template <int N, class F>
  static bool if_fixed(Target to, F&& f) {
    const Settings<A>& set = to.line->set;
    if (set.sensitive || set.mean) return false;
    if (set.kind == NonlinearOp::log_mean_exp) return f(Fixed<NonlinearOp::log_mean_exp, N>{});
    if (set.kind == NonlinearOp::soft) return f(Fixed<NonlinearOp::soft, N>{});
    if (set.kind == NonlinearOp::lp && set.whole == 2) return f(Fixed<NonlinearOp::lp, N, 2>{});
    if (set.kind == NonlinearOp::lp && set.whole == 3) return f(Fixed<NonlinearOp::lp, N, 3>{});
    return false;
  }
  template <class Set>
  using ReductionOf = std::conditional_t<Set::kind == NonlinearOp::lp, Powers<A>, Exponentials<A>>;
  template <class V>
  using Summed = poolgrad::ScaledSums<V>;
  // Adds NaN to `finite_check` if an input, the sum of the inputs or theta is not finite.
  template <class Set, class V, std::size_t N>
  POOLGRAD_INLINE static Summed<V> sum(Target to, i64 i, V (&inputs)[N], const Set& set,
                                       V& finite_check) {
    const V theta = load<V>(to.line->set.theta + to.first + i);
    V total = theta;
    POOLGRAD_UNROLL
    for (std::size_t t = 0; t < N; ++t) total += inputs[t];
    finite_check += total - total;
    return ReductionOf<Set>::reduce(WindowPerLane<V, Const<N>>{inputs, {}}, theta, set);
  }
  template <class V, class Set>
  POOLGRAD_INLINE static void finish(Target to, i64 i, const Summed<V>& partial, const Set& set) {
    constexpr int W = static_cast<int>(sizeof(V) / sizeof(A));
    finish_lanes<A, ReductionOf<Set>, W>(*to.line, set, to.first + i, partial, AllLanes{});
  }
};

}  // namespace poolgrad::inline POOLGRAD_ISA
