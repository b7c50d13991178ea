// Computes exp, log and powers of vectors, with the same bits on every machine: polynomials after
// argument reduction (Muller, Elementary Functions, 2016), minimax for exp, a series for log.
// Errors are about one unit in the last place.
#pragma once

#include <cmath>
#include <iterator>

#include "simd/dtype.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// The constants of a floating-point format.
template <class A>
struct Format;
template <>
struct Format<float> {
  using Bits = std::int32_t;
  static constexpr int mantissa = 23, bias = 127, log_terms = 5;
  static constexpr int second_terms = 10, slope_terms = 8;  // of series in operators/nonlinear*.hpp
  static constexpr float exp_series[] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558f2p-5f,
                                         0x1.123a2p-7f, 0x1.6a23dp-10f};
  static constexpr float ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f;
  static constexpr float round = 0x1.8p23f, largest = 88.0f, smallest = 0x1p-126f;
  static constexpr Bits cube = 0x54A2FA8C;
};
template <>
struct Format<double> {
  using Bits = std::int64_t;
  static constexpr int mantissa = 52, bias = 1023, log_terms = 12;
  static constexpr int second_terms = 14, slope_terms = 20;
  static constexpr double exp_series[] = {
      0x1.000000000000ap-1,  0x1.55555555554f9p-3,  0x1.555555555083ep-5,  0x1.1111111127d0ep-7,
      0x1.6c16c18438b08p-10, 0x1.a01a012a0f351p-13, 0x1.a01999e2633fdp-16, 0x1.71df25b3100a2p-19,
      0x1.28ad9b8551757p-22, 0x1.ad7f3ee016e7dp-26};
  static constexpr double ln2_hi = 0x1.62e42fefap-1, ln2_lo = 0x1.cf79abc9e3b3ap-40;
  static constexpr double round = 0x1.8p52, largest = 709.0, smallest = 0x1p-1022;
  static constexpr Bits cube = 0x553EF0FF289DD796;
};

template <class A>
struct Inverses {  // 1 / n!
  A factorial[16];
  constexpr Inverses() : factorial{} {
    double f = 1;
    for (int n = 0; n < 16; ++n) {
      factorial[n] = static_cast<A>(1 / f);
      f *= n + 1;
    }
  }
};

// exp(x) = scale + part, where scale is a power of two; x: the argument, not below the logarithm of
// the least normal number.
template <class V>
struct Exp {
  V x, scale, part;
  V value() const { return scale + part; }
  V minus_one() const { return part + (scale - 1); }  // without cancellation
};

// exp(x) for x <= 0: 0 where it is below the normal numbers, NaN for NaN. NotNaN: x is not NaN.
template <class A, int W, bool NotNaN = false>
POOLGRAD_INLINE Exp<Vec<A, W>> exponentials(Vec<A, W> x) {
  using F = Format<A>;
  using V = Vec<A, W>;
  using B = Vec<typename F::Bits, W>;
  const V least = V{} - F::bias * static_cast<A>(0.6931471805599453);
  if (NotNaN) x = x > least ? x : least;  // one instruction
  else x = least > x ? least : x;
  constexpr A round = F::round + F::bias;
  const V shifted = x * static_cast<A>(1.4426950408889634) + round;
  const V k =
      shifted - round;  // the nearest integer; with the bias also the last bits of `shifted`
  const V r = (x - k * F::ln2_hi) - k * F::ln2_lo;
  constexpr int terms = std::size(F::exp_series);
  V sum = V{} + F::exp_series[terms - 1];
  POOLGRAD_UNROLL
  for (int n = terms - 2; n >= 0; --n) sum = sum * r + F::exp_series[n];
  const V fraction = (sum * r + A(1)) * r;  // exp(r) - 1
  const V scale = bits_as<V>(bits_as<B>(shifted) << F::mantissa);
  return {x, scale, scale * fraction};
}

// exp(x) for any x, at most the largest finite result.
template <class A, int W>
POOLGRAD_INLINE Vec<A, W> exponential(Vec<A, W> x) {
  constexpr A largest = Format<A>::largest;
  return exponentials<A, W>(x > largest ? Vec<A, W>{} + largest : x).value();
}

// |x|
template <class A, int W>
POOLGRAD_INLINE Vec<A, W> magnitude(Vec<A, W> x) {
  for (int j = 0; j < W; ++j) x[j] = std::abs(x[j]);
  return x;
}

// log(x) for x > 0. minus_one: x - 1, computed more accurately than from x. Normal: x is normal and
// finite.
template <class A, int W, bool Normal = false>
POOLGRAD_INLINE Vec<A, W> logarithm_near(Vec<A, W> x, Vec<A, W> minus_one) {
  using F = Format<A>;
  using V = Vec<A, W>;
  using Bit = typename F::Bits;
  using B = Vec<Bit, W>;
  const A subnormal_scale = static_cast<A>(Bit{1} << F::mantissa);
  const auto tiny = x < F::smallest;
  V scaled = x;
  if (!Normal) scaled = tiny ? x * subnormal_scale : x;
  constexpr Bit root_half = sizeof(A) == 4 ? Bit{0x3F3504F3} : static_cast<Bit>(0x3FE6A09E667F3BCD);
  const B moved = bits_as<B>(scaled) - root_half;  // so that the mantissa is in [sqrt 1/2, sqrt 2)
  const B exponent = moved >> F::mantissa;
  const V m = bits_as<V>(bits_as<B>(scaled) - (exponent << F::mantissa));
  V k = bits_as<V>(exponent + bits_as<B>(V{} + F::round)) - F::round;
  if (!Normal) k -= tiny ? V{} + static_cast<A>(F::mantissa) : V{};
  const V f = k == A(0) ? minus_one : m - A(1);
  const V s = f / (f + A(2)), square = s * s;
  V sum = V{} + static_cast<A>(2.0 / (2 * F::log_terms - 1));
  POOLGRAD_UNROLL
  for (int n = F::log_terms - 2; n >= 1; --n) {
    sum = sum * square + static_cast<A>(2.0 / (2 * n + 1));
  }
  // 2 s = f - s f: exact where x is near one
  const V tail = s * (square * sum - f);
  const V log = k * F::ln2_hi + (f + (tail + k * F::ln2_lo));
  if (Normal) return log;
  return x < std::numeric_limits<A>::infinity() ? log : x;  // infinity and NaN as they are
}

template <class A, int W>
POOLGRAD_INLINE Vec<A, W> logarithm(Vec<A, W> x) {
  return logarithm_near<A, W>(x, x - A(1));
}

// log(lo / hi) for 0 < lo <= hi, also accurate where they are nearly equal.
template <class A, int W>
POOLGRAD_INLINE Vec<A, W> log_ratio(Vec<A, W> lo, Vec<A, W> hi) {
  return logarithm_near<A, W>(lo / hi, (lo - hi) / hi);
}

// The cube root of x >= 0. 1 / root is estimated by subtracting a third of the bits of x from a
// constant (Moroz, Samotyy, Walczyk and Cieslinski, 2021); two third-order steps triple its digits
// each, and a Newton step of the root itself doubles them. The error is below one unit in the last
// place.
template <class A, int W>
POOLGRAD_INLINE Vec<A, W> cube_root(Vec<A, W> x) {
  using F = Format<A>;
  using V = Vec<A, W>;
  using Bit = typename F::Bits;
  const auto third = convert<Bit>(convert<A>(bits_as<Vec<Bit, W>>(x)) * static_cast<A>(1.0 / 3));
  V r = bits_as<V>(F::cube - third);
  POOLGRAD_UNROLL
  for (int k = 0; k < 2; ++k) {
    const V e = A(1) - x * r * (r * r);
    r += r * e * (static_cast<A>(1.0 / 3) + e * static_cast<A>(2.0 / 9));
  }
  const V square = r * r, root = x * square;
  return root + (x - root * (root * root)) * (square * static_cast<A>(1.0 / 3));
}

// 2^k and 2^-k for the k with x 2^-k in [1, 2), or the nearest k for which both are normal numbers.
template <class V>
struct PowerOfTwo {
  V up, down;
};
template <class A, int W>
POOLGRAD_INLINE PowerOfTwo<Vec<A, W>> scale_of(Vec<A, W> x) {
  using F = Format<A>;
  using V = Vec<A, W>;
  using Bit = typename F::Bits;
  constexpr Bit one = Bit{F::bias} << F::mantissa, least = Bit{1} << F::mantissa;
  constexpr Bit most = 2 * one - least;
  auto bits = bits_as<Vec<Bit, W>>(x) & (2 * one + least);
  bits = bits < least ? Vec<Bit, W>{} + least : bits > most ? Vec<Bit, W>{} + most : bits;
  return {bits_as<V>(bits), bits_as<V>(2 * one - bits)};
}

// q^n for n >= 1
template <class V>
POOLGRAD_INLINE V integer_power(V q, int n) {
  V product = q;
  for (int k = 1; k < n; ++k) product *= q;
  return product;
}

}  // namespace poolgrad::inline POOLGRAD_ISA
