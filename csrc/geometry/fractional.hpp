// Computes where the windows of fractional pooling begin (Graham, Fractional Max-Pooling, 2014), in
// the arithmetic of the samples' type as PyTorch does, so that the same samples give the same
// windows.
#pragma once

#include <stdexcept>

#include "base/out_of_memory.hpp"
#include "geometry/window.hpp"
#include "simd/dtype.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Rounds a result to the samples' type.
template <class S, class A>
A rounded(A value) {
  S small;
  narrow_run(&value, &small, 1);
  widen_run(&small, &value, 1);
  return value;
}

// Writes the first input of each window along one axis.
template <class S, class A>
void window_table(const Axis& a, A sample, i64* begins) {
  const auto in_type = [](A value) { return rounded<S>(value); };
  const i64 last = a.in - a.kernel;
  if (a.out > 1) {
    const A alpha = in_type(in_type(static_cast<A>(last)) / in_type(static_cast<A>(a.out - 1)));
    const i64 shift = static_cast<i64>(in_type(sample * alpha));
    for (i64 o = 0; o < a.out - 1; ++o) {
      const A at = in_type(in_type(in_type(static_cast<A>(o)) + sample) * alpha);
      begins[o] = smaller(last, larger(0, static_cast<i64>(at) - shift));  // `at` is rounded
    }
  }
  begins[a.out - 1] = last;
}

inline constexpr char kOfWindows[] =
    " for tables of the windows of each plane, which follow from the shapes of x and of the output";
using WindowTables = Table<i64, kOfWindows>;

// Returns the tables of all planes, axis after axis. samples: for each plane one number for each
// axis; with two axes that of the last axis is the first, as in PyTorch.
inline WindowTables window_tables(const Plan& p, Dtype dtype, const char* samples, int dims) {
  i64 length = 0;
  for (const Axis& a : p.axis) length += a.fractional ? a.out : 0;
  WindowTables tables(static_cast<std::size_t>(length * p.outer));
  i64* next = tables.data();
  const auto fill = [&](auto s, auto zero) {
    using S = decltype(s);
    using A = decltype(zero);
    for (i64 plane = 0; plane < p.outer; ++plane) {
      int taken = 0;
      for (const Axis& a : p.axis) {
        if (!a.fractional) continue;
        const int which = dims == 2 ? 1 - taken : taken;
        ++taken;
        A sample;
        widen_run(reinterpret_cast<const S*>(samples) + plane * dims + which, &sample, 1);
        if (!(sample >= A(0) && sample < A(1))) {
          throw std::invalid_argument("_random_samples must be in [0, 1), got " +
                                      std::to_string(static_cast<double>(sample)));
        }
        window_table<S>(a, sample, next);
        next += a.out;
      }
    }
  };
  if (dtype == Dtype::float64) fill(double{}, double{});
  else by_element<float>(dtype, [&](auto s) { fill(s, float{}); });
  return tables;
}

}  // namespace poolgrad::inline POOLGRAD_ISA
