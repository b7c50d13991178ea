// Computes reductions whose weights depend on the input: power mean, log-mean-exp, soft pooling and
// the expected value of a draw. Reads the inputs of a window twice: for the largest term m, then
// for sums of terms relative to m, so that nothing overflows. The weight of an input is the
// derivative of the output by it, computed from the residuals of its window.
#pragma once

#include "kernels.hpp"
#include "simd/math.hpp"
#include "simd/vector.hpp"

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
  static constexpr bool t = B == NonlinearOp::soft, w = B == NonlinearOp::log_mean_exp, h = false;
};

// theta: of a row; whole: p, if it is a small whole number; sensitive: whether the derivative by
// theta is computed.
template <class A>
Settings<A> make_settings(const Loops<A>* loops, NonlinearOp kind, const A* theta, int whole,
                          bool sensitive) {
  const bool mean = kind == NonlinearOp::lp_mean,
             near = kind == NonlinearOp::log_mean_exp || (mean && !whole);
  const bool slope = sensitive && kind != NonlinearOp::lp;
  const bool t = sensitive || kind == NonlinearOp::soft, w = near || slope;
  return {loops, theta, kind, whole, mean, sensitive, t, w, slope};
}

// Returns p if it is the same whole number of 1 to 4 for all channels, else 0.
template <class A>
int common_integer_power(NonlinearOp kind, Parameter theta) {
  if (kind != NonlinearOp::lp && kind != NonlinearOp::lp_mean) return 0;
  const A* values = static_cast<const A*>(theta.values);
  for (i64 i = 0; i < theta.count; ++i) {
    if (values[i] != values[0]) return 0;
  }
  for (int whole = 1; whole <= 4; ++whole) {
    if (values[0] == static_cast<A>(whole)) return whole;
  }
  return 0;
}

// The largest term of a window, and sums of terms relative to it.
template <class V>
struct ScaledSums {
  V m, s, t, w, h;

  // Copies lane j of the sums of another window.
  void set_lane(i64 j, const ScaledSums& from) {
    m[j] = from.m[j], s[j] = from.s[j], t[j] = from.t[j], w[j] = from.w[j], h[j] = from.h[j];
  }
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

// The inputs of a vector of windows, one window a lane.
template <class V, class N>
struct WindowPerLane {
  static constexpr bool kAcross = false;
  static constexpr int kSums = 2;  // independent accumulators, which round less than one
  V* x;
  N n;  // may be a compile-time constant, so that the inputs may stay in registers

  N count() const { return n; }
  static V largest(V m) { return m; }
  static V valid(i64, V value) { return value; }
  static V total(const V (&sums)[kSums]) { return sums[0] + sums[1]; }
};

// The inputs of one window, across the lanes of vectors; the last lanes repeat an input. Inputs are
// added in 64 bytes of accumulators on every machine, for the same rounding.
template <class V, class A>
struct WindowAcrossLanes {
  static constexpr bool kAcross = true;
  static constexpr int kSums = 64 / sizeof(V), W = sizeof(V) / sizeof(A);
  V* x;
  i64 inputs;
  i64 n = ceil_div(inputs, kSums* W) * kSums;  // vectors
  i64 count() const { return inputs; }
  static V largest(V m) {
    A most = m[0];
    for (int j = 1; j < W; ++j) most = m[j] > most ? m[j] : most;
    return V{} + most;
  }
  // Zeroes lanes of vector t that repeat an input.
  V valid(i64 t, V value) const {
    V lane;  // a constant
    POOLGRAD_UNROLL
    for (int j = 0; j < W; ++j) lane[j] = static_cast<A>(j);
    return lane < static_cast<A>(inputs - t * W) ? value : V{};
  }
  static V total(const V (&sums)[kSums]) {
    A lanes[kSums * W];
    std::memcpy(lanes, sums, sizeof lanes);
    for (int half = kSums * W / 2; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    }
    return V{} + lanes[0];
  }
};

// Calls each(t, accumulator index) for vectors First ... n of the inputs.
template <i64 First = 0, class V, class F>
POOLGRAD_INLINE void each_input(const WindowPerLane<V, i64>& in, F&& each) {
  i64 t = First;
  for (; t + 2 <= in.n; t += 2) each(t, Const<0>{}), each(t + 1, Const<1>{});
  if (t < in.n) each(t, Const<0>{});
}
template <i64 First = 0, class V, i64 N, class F>
POOLGRAD_INLINE void each_input(const WindowPerLane<V, Const<N>>&, F&& each) {
  [&]<i64... K>(std::integer_sequence<i64, K...>) __attribute__((always_inline)) {
    (each(First + K, Const<K % 2>{}), ...);
  }(std::make_integer_sequence<i64, N - First>{});
}
template <i64 First = 0, class V, class A, class F>
POOLGRAD_INLINE void each_input(const WindowAcrossLanes<V, A>& in, F&& each) {
  for (i64 t = 0; t < in.n; t += in.kSums) {
    [&]<i64... K>(std::integer_sequence<i64, K...>) __attribute__((always_inline)) {
      (each(t + K, Const<K>{}), ...);
    }(std::make_integer_sequence<i64, WindowAcrossLanes<V, A>::kSums>{});
  }
}

// Accumulates terms relative to a given m. Until end(), s sums the scales of the exponentials and w
// their remainders, so that each sum takes one addition.
template <class A, class V, class Inputs>
struct Terms {
  static constexpr int W = sizeof(V) / sizeof(A);
  const Inputs& in;
  V s[Inputs::kSums]{}, t[Inputs::kSums]{}, w[Inputs::kSums]{}, h[Inputs::kSums]{};

  // Adds the exponentials of vector `at` of the inputs.
  template <class Accumulator, class Set>
  POOLGRAD_INLINE void add(i64 at, Accumulator k, Exp<V> e, const Set& set) {
    if (set.h) h[k] += in.valid(at, second_order<A, W>(e));
    e.scale = in.valid(at, e.scale);
    e.part = in.valid(at, e.part);
    s[k] += e.scale;
    w[k] += e.part;
    if (set.t) t[k] += e.x * e.value();
  }
  template <class Accumulator>
  POOLGRAD_INLINE void add(i64 at, Accumulator k, V to_s, V to_t) {
    s[k] += in.valid(at, to_s);
    t[k] += in.valid(at, to_t);
  }

  template <class Set>
  ScaledSums<V> end(V m, const Set& set) const {
    const V all = in.total(s), none{};
    return {or_nan<Set>(m, all), all, in.total(t), in.total(w), set.h ? in.total(h) : none};
  }
  template <class Set>
  ScaledSums<V> end_exponentials(V m, const Set& set) const {
    ScaledSums<V> all = end(m, set);
    const V parts = all.w;
    all.w += all.s - static_cast<A>(in.count());
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

// Operands of the derivative of an output by one of its inputs, a vector of outputs.
template <class V>
struct OutputOperands {
  V residuals[kMaxResiduals], theta;
};

// m = max |x|, z = p log(|x| / m)
template <class A>
struct Powers {
  static constexpr bool kInRegisters = false;
  template <class V, class Inputs, class Set>
  POOLGRAD_INLINE static ScaledSums<V> reduce(const Inputs& in, V p, const Set& set) {
    constexpr int W = sizeof(V) / sizeof(A);
    V* x = in.x;
    V m{};
    each_input(in, [&](i64 t, auto) __attribute__((always_inline)) {
      x[t] = magnitude<A, W>(x[t]);
      m = x[t] > m ? x[t] : m;
    });
    m = in.largest(m);
    if (set.whole && !set.mean) return scaled_powers(in, m, p, set);
    Terms<A, V, Inputs> terms{in}, powers{in};
    const bool by_log = !set.whole || set.w;
    each_input(in, [&](i64 t, auto k) __attribute__((always_inline)) {
      const auto equal = x[t] == m;
      if (set.whole) {
        const V q = equal ? V{} + A(1) : x[t] / m;
        powers.add(t, k, integer_power(q, set.whole), V{});
      }
      if (by_log) {
        V z = p * log_ratio<A, W>(x[t], m);
        z = equal ? V{} : x[t] == A(0) ? V{} - std::numeric_limits<A>::infinity() : z;
        terms.add(t, k, exponentials<A, W>(z), set);
      }
    });
    if (!by_log) return powers.end(m, set);
    ScaledSums<V> sums = terms.end_exponentials(m, set);
    if (set.whole) sums.s = powers.end(m, set).s;
    return sums;
  }

 private:
  // Terms relative to a power of two near m: no division, and only the powers are rounded.
  template <class V, class Inputs, class Set>
  POOLGRAD_INLINE static ScaledSums<V> scaled_powers(const Inputs& in, V m, V p, const Set& set) {
    constexpr int W = sizeof(V) / sizeof(A);
    const V* x = in.x;
    const auto infinite = m > std::numeric_limits<A>::max();
    const PowerOfTwo<V> scale = scale_of<A, W>(m);
    V down = scale.down;
    if (!Set::finite) down = infinite ? V{} : down;
    Terms<A, V, Inputs> terms{in};
    each_input(in, [&](i64 t, auto k) __attribute__((always_inline)) {
      V q = x[t] * down;
      if (!Set::finite) q = (infinite & (x[t] == m)) ? V{} + A(1) : q;
      const V power = integer_power(q, set.whole);
      terms.add(t, k, power, set.t ? p * logarithm<A, W>(q) * power : V{});
    });
    return terms.end((infinite | (m == A(0))) ? m : scale.up, set);
  }
};

// dy/dx = sign(x) (|x| / m)^(p - 1) factor; residuals: m, factor
template <class A>
struct PowerWeight {
  static constexpr int kResiduals = 2;
  template <int W, class K>
  static Vec<A, W> weight(Vec<A, W> x, const K& of, int whole) {
    using V = Vec<A, W>;
    const V size = x < A(0) ? -x : x, one = V{} + A(1), m = of.residuals[0];
    V power = one;
    if (whole > 1) {
      power = integer_power(size == m ? one : size / m, whole - 1);
    } else if (whole == 0) {
      const V z = (of.theta - A(1)) * log_ratio<A, W>(size, m);
      power = size == m ? one : exponential<A, W>(z);
    }
    const V signed_power = (x < A(0) ? -power : power) * of.residuals[1];
    return x == A(0) ? V{} : signed_power;
  }
};

// m = max x (of -x, if r < 0), z = |r| (x - m)
template <class A>
struct Exponentials {
  static constexpr bool kInRegisters = true;  // the four inputs of a 2x2 window
  template <class V, class Inputs, class Set>
  POOLGRAD_INLINE static ScaledSums<V> reduce(const Inputs& in, V r, const Set& set) {
    constexpr int W = sizeof(V) / sizeof(A);
    // With a window a lane, m is taken out of the inputs, because its exponential is 1.
    constexpr i64 first = Inputs::kAcross ? 0 : 1;
    V* x = in.x;
    const auto negated = r < A(0);
    const V rate = negated ? -r : r, sign = negated ? V{} - A(1) : V{} + A(1);
    V m = x[0] * sign;
    each_input<first>(in, [&](i64 t, auto) __attribute__((always_inline)) {
      const V value = x[t] * sign;
      const auto larger = value > m;
      x[t] = first ? (larger ? m : value) : value;
      m = larger ? value : m;
    });
    m = in.largest(m);
    Terms<A, V, Inputs> terms{in};
    if (first) terms.s[0] += A(1);
    each_input<first>(in, [&](i64 t, auto k) __attribute__((always_inline)) {
      V z = rate * (x[t] - m);
      if (!Set::finite) z = x[t] == m ? V{} : z;  // equal infinities
      terms.add(t, k, exponentials<A, W, Set::finite>(z), set);
    });
    return terms.end_exponentials(m, set);
  }
};

// exp(z) / s, z = |r| (x - m), or of -x; residuals: m, 1 / s
template <class A>
struct ExponentialWeight {
  static constexpr int kResiduals = 2;
  template <int W, class K>
  static Vec<A, W> weight(Vec<A, W> x, const K& of, int) {
    using V = Vec<A, W>;
    const auto negated = of.theta < A(0);
    const V value = negated ? -x : x, rate = negated ? -of.theta : of.theta;
    const V z = value == of.residuals[0] ? V{} : rate * (value - of.residuals[0]);
    return exponentials<A, W>(z).value() * of.residuals[1];
  }
};

// w (1 + x - y), w = exp(x - m) / s, y = m + shift; residuals: m, 1 / s, shift
template <class A>
struct SoftWeight {
  static constexpr int kResiduals = 3;
  template <int W, class K>
  static Vec<A, W> weight(Vec<A, W> x, const K& of, int) {
    using V = Vec<A, W>;
    const V d = x == of.residuals[0] ? V{} : x - of.residuals[0];
    const V w = exponentials<A, W>(d).value() * of.residuals[1];
    const V slope = w * (A(1) + (d - of.residuals[2]));
    return w == A(0) ? V{} : slope;
  }
};

// a = max(x, 0): m = max a, s = sum a / m, t = sum (a / m)^2; in a window without a positive input
// m = 0 and s = sum x
template <class A>
struct Positives {
  static constexpr bool kInRegisters = false;
  template <class V, class Inputs, class Set>
  POOLGRAD_INLINE static ScaledSums<V> reduce(const Inputs& in, V, const Set& set) {
    const V* x = in.x;
    V m{};
    each_input(in, [&](i64 t, auto) { m = x[t] > m ? x[t] : m; });
    m = in.largest(m);
    Terms<A, V, Inputs> terms{in};
    each_input(in, [&](i64 t, auto k) __attribute__((always_inline)) {
      const V q = x[t] == m ? V{} + A(1) : x[t] / m, share = x[t] <= A(0) ? V{} : q;
      terms.add(t, k, share, share * share);
      terms.w[k] += in.valid(t, x[t]);
    });
    ScaledSums<V> sums = terms.end(m, set);
    sums.s = m == A(0) ? sums.w : sums.s;
    sums.m = sums.s == sums.s ? sums.m : sums.s;
    return sums;
  }
};

// (2 x - y) / sum = (2 x / m - t / s) / s for positive inputs; residuals: m, 1 / s, t / s. In a
// window without positive inputs 1 / n for each input; residuals: 0, 1 / n
template <class A>
struct PositiveWeight {
  static constexpr int kResiduals = 3;
  template <int W, class K>
  static Vec<A, W> weight(Vec<A, W> x, const K& of, int) {
    using V = Vec<A, W>;
    const V m = of.residuals[0], q = x == m ? V{} + A(1) : x / m;
    const V slope = (q + (q - of.residuals[2])) * of.residuals[1];
    const V weight = x > A(0) ? slope : x <= A(0) ? V{} : x;
    return m == A(0) ? of.residuals[1] : weight;
  }
};

}  // namespace poolgrad::inline POOLGRAD_ISA
