// exp, log and powers for the compiler's vectors: the same operations, so the same bits, on every
// machine. Taylor and atanh series on a reduced argument, as in Muller, Elementary Functions, 2016;
// errors of about one unit in the last place.
#pragma once

#include "dtype.hpp"

namespace poolgrad {
namespace {

template <class A>
struct Format;
template <>
struct Format<float> {
  using Bits = std::int32_t;
  static constexpr int mantissa = 23, bias = 127, exp_terms = 8, log_terms = 5;
  static constexpr float ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f;
  static constexpr float round = 0x1.8p23f, largest = 88.0f, smallest = 0x1p-126f;
};
template <>
struct Format<double> {
  using Bits = std::int64_t;
  static constexpr int mantissa = 52, bias = 1023, exp_terms = 14, log_terms = 12;
  static constexpr double ln2_hi = 0x1.62e42fefap-1, ln2_lo = 0x1.cf79abc9e3b3ap-40;
  static constexpr double round = 0x1.8p52, largest = 709.0, smallest = 0x1p-1022;
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

template <class V>
struct Exp {
  V value, less_one;  // exp(x), and exp(x) - 1 without cancellation
};

// 0 below the normal numbers, never infinite, NaN for NaN.
template <class A, int W>
Exp<Vec<A, W>> exponentials(Vec<A, W> x) {
  using F = Format<A>;
  using V = Vec<A, W>;
  using B = Vec<typename F::Bits, W>;
  constexpr Inverses<A> inverse;
  const A least = -F::bias * static_cast<A>(0.6931471805599453);
  x = x < least ? V{} + least : x;
  x = x > F::largest ? V{} + F::largest : x;
  const V shifted = x * static_cast<A>(1.4426950408889634) + F::round;
  const V k = shifted - F::round;  // the nearest integer; also the last bits of `shifted`
  const V r = (x - k * F::ln2_hi) - k * F::ln2_lo;
  V sum = V{} + inverse.factorial[F::exp_terms - 1];
  for (int n = F::exp_terms - 2; n >= 1; --n) sum = sum * r + inverse.factorial[n];
  const V fraction = sum * r;  // exp(r) - 1
  const V scale = bits_as<V>((bits_as<B>(shifted) + F::bias) << F::mantissa);
  return {scale + scale * fraction, scale * fraction + (scale - A(1))};
}

template <class A, int W>
Vec<A, W> exponential(Vec<A, W> x) {
  return exponentials<A, W>(x).value;
}

// log(x) for x > 0; `less_one`: x - 1, better known than from x.
template <class A, int W>
Vec<A, W> logarithm_near(Vec<A, W> x, Vec<A, W> less_one) {
  using F = Format<A>;
  using V = Vec<A, W>;
  using Bit = typename F::Bits;
  using B = Vec<Bit, W>;
  const A lift = static_cast<A>(Bit{1} << F::mantissa);
  const auto tiny = x < F::smallest;
  const V scaled = tiny ? x * lift : x;
  constexpr Bit root_half = sizeof(A) == 4 ? Bit{0x3F3504F3} : static_cast<Bit>(0x3FE6A09E667F3BCD);
  const B moved = bits_as<B>(scaled) - root_half;  // so that the mantissa is in [sqrt 1/2, sqrt 2)
  const B exponent = moved >> F::mantissa;
  const V m = bits_as<V>(bits_as<B>(scaled) - (exponent << F::mantissa));
  const V k = bits_as<V>(exponent + bits_as<B>(V{} + F::round)) - F::round -
              (tiny ? V{} + static_cast<A>(F::mantissa) : V{});
  const V f = k == A(0) ? less_one : m - A(1);
  const V s = f / (f + A(2)), square = s * s;
  V sum = V{} + static_cast<A>(2.0 / (2 * F::log_terms - 1));
  for (int n = F::log_terms - 2; n >= 1; --n) {
    sum = sum * square + static_cast<A>(2.0 / (2 * n + 1));
  }
  // 2 s = f - s f: exact where x is near one
  const V tail = s * (square * sum - f);
  const V log = k * F::ln2_hi + (f + (tail + k * F::ln2_lo));
  return x < std::numeric_limits<A>::infinity() ? log : x;  // infinity and NaN as they are
}

template <class A, int W>
Vec<A, W> logarithm(Vec<A, W> x) {
  return logarithm_near<A, W>(x, x - A(1));
}

// log(1 + x)
template <class A, int W>
Vec<A, W> logarithm_1p(Vec<A, W> x) {
  return logarithm_near<A, W>(x + A(1), x);
}

// log(lo / hi) for 0 < lo <= hi, as good for numbers that are nearly equal.
template <class A, int W>
Vec<A, W> log_ratio(Vec<A, W> lo, Vec<A, W> hi) {
  return logarithm_near<A, W>(lo / hi, (lo - hi) / hi);
}

// q^n
template <class V>
V whole_power(V q, int n) {
  V product = q;
  for (int k = 1; k < n; ++k) product *= q;
  return product;
}

}  // namespace
}  // namespace poolgrad
