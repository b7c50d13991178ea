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

// exp(x): 0 below the normal numbers, never infinite, NaN for NaN.
template <class A, int W>
Vec<A, W> exponential(Vec<A, W> x) {
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
  for (int n = F::exp_terms - 2; n >= 0; --n) sum = sum * r + inverse.factorial[n];
  const B power = (bits_as<B>(shifted) + F::bias) << F::mantissa;
  return sum * bits_as<V>(power);
}

// log(x) for x > 0.
template <class A, int W>
Vec<A, W> logarithm(Vec<A, W> x) {
  using F = Format<A>;
  using V = Vec<A, W>;
  using B = Vec<typename F::Bits, W>;
  using Bit = typename F::Bits;
  const A lift = static_cast<A>(typename F::Bits{1} << F::mantissa);
  const auto tiny = x < F::smallest;
  const V scaled = tiny ? x * lift : x;
  constexpr Bit root_half = sizeof(A) == 4 ? Bit{0x3F3504F3} : static_cast<Bit>(0x3FE6A09E667F3BCD);
  const B moved = bits_as<B>(scaled) - root_half;  // so that the mantissa is in [sqrt 1/2, sqrt 2)
  const B exponent = moved >> F::mantissa;
  const V m = bits_as<V>(bits_as<B>(scaled) - (exponent << F::mantissa));
  const V k = bits_as<V>(exponent + bits_as<B>(V{} + F::round)) - F::round -
              (tiny ? V{} + static_cast<A>(F::mantissa) : V{});
  const V f = m - A(1), s = f / (f + A(2)), square = s * s;
  V sum = V{} + static_cast<A>(2.0 / (2 * F::log_terms - 1));
  for (int n = F::log_terms - 2; n >= 1; --n)
    sum = sum * square + static_cast<A>(2.0 / (2 * n + 1));
  // 2 s = f - s f: exact where m is near one
  const V tail = s * (square * sum - f);
  return k * F::ln2_hi + (f + (tail + k * F::ln2_lo));
}

// q^p for q >= 0; whole: p where it is a small whole number for all lanes, else 0.
template <class A, int W>
Vec<A, W> power(Vec<A, W> q, Vec<A, W> p, int whole) {
  using V = Vec<A, W>;
  if (whole) {
    V product = q;
    for (int n = 1; n < whole; ++n) product *= q;
    return product;
  }
  const V raised = exponential<A, W>(p * logarithm<A, W>(q));
  return q == A(1) ? V{} + A(1) : q == A(0) ? V{} : raised;
}

}  // namespace
}  // namespace poolgrad
