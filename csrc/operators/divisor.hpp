// Computes the divisors of averages.
#pragma once

#include "geometry/window.hpp"
#include "simd/dtype.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// The divisor of an average: the taps inside the padded input, the valid inputs, or one number for
// all windows. It is a product over the axes, so it is stored as a row for the width and a factor
// for each (depth, height).
struct Divisor {
  bool count_padding;
  double fixed;  // 0: count

  double along(const Axis& a, i64 o) const {
    if (a.regular() && o >= a.full_lo && o < a.full_hi) return static_cast<double>(a.kernel);
    const Span s = span_of(a, o);
    return static_cast<double>(count_padding ? s.extent : s.taps);
  }
  double of_rows(const Plan& p, i64 od, i64 oh) const {
    return fixed != 0 ? fixed : along(p.axis[0], od) * along(p.axis[1], oh);
  }
  double of_plane(const Plan& p) const {  // a global window
    return of_rows(p, 0, 0) * (fixed != 0 ? 1 : along(p.axis[2], 0));
  }
  template <class A>
  void fill_row(const Axis& width, i64 inner, i64 lo, i64 hi, A* row) const {
    for (i64 o = lo; o < hi; ++o) {
      const A value = fixed != 0 ? A(1) : static_cast<A>(along(width, o));
      for (i64 c = 0; c < inner; ++c) *row++ = value;
    }
  }
};

// Divides sums by their divisors or, if they are quantised, multiplies them with rounded
// reciprocals, as PyTorch does, and rounds them to integers: the sum with kInteger has no bits for
// a fraction.
template <class V>
POOLGRAD_INLINE V quotient(V sum, V divisor, const Quantization& to) {
  if (to.scale == 0) return sum / divisor;
  constexpr float kInteger = 0x1.8p23f;
  const auto mean = convert<float>(sum) * convert<float>(to.scale / divisor) + to.added_before;
  return convert<std::remove_cvref_t<decltype(sum[0])>>(mean + kInteger - kInteger +
                                                        to.added_after);
}

// Divides n sums or gradients by their divisors, a factor for all times one for each; `from` may be
// `to`. -0.0 becomes 0.0, as in sums that begin with 0.
template <class S, class T>
POOLGRAD_LOOP void divide_row(const S* from, const T* divisors, T rows, T* to, i64 n,
                              Quantization quantization = {}) {
  lanes<T>(n, [&](auto w, i64 i) {  // no element twice
    using V = Vec<T, w()>;
    const V sum = V{} + load_as<w(), T>(from + i);
    store(to + i, quotient(sum, rows * load<V>(divisors + i), quantization));
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
