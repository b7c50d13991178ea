// Completes the outputs of selecting reductions: restores flipped bits, and applies the ReLU.
#pragma once

#include "forward/row_reader.hpp"
#include "geometry/partition.hpp"
#include "operators/extreme.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Whether a ReLU may follow the reduction: maxima only.
template <class Op>
concept Rectifies = requires(Vec<typename Op::In, 1> v) { Op::relu_is_zero(v, v); };

// The bits of numbers of a dtype that are flipped to be compared as type A.
template <class A>
i64 flips_of(Select which, Dtype dtype) {
  const i64 reversing = sizeof(A) == 2 ? 0x8000 : -1;
  return (which == Select::smallest ? reversing : 0) ^
         (sizeof(A) == 1 && dtype == Dtype::int8 ? 0x80 : 0);
}

// Converts maxima to the outputs of the call: applies the ReLU, whose zeros are routed nowhere (it
// changes no unsigned byte), and restores flipped bits.
template <class Op, class T, class R>
POOLGRAD_LOOP void finish(Select which, i64 flips, T* y, R* routes, i64 n) {
  if constexpr (Rectifies<Op>) {
    if (which == Select::rectified && (sizeof(T) > 1 || flips || routes)) {
      overlapping_lanes<T>(n, [&](auto w, i64 i) {
        using V = Vec<T, w()>;
        using P = Vec<R, w()>;
        const V value = load<V>(y + i), zero = V{} + static_cast<T>(flips);
        const auto is_zero = Op::relu_is_zero(value, zero);
        store(y + i, is_zero ? zero : value);
        if (!routes) return;
        const auto nowhere = bits_as<P>(convert<std::make_signed_t<R>>(is_zero));
        store(routes + i, load<P>(routes + i) | nowhere);
      });
    }
  }
  if (flips) flip<T>(y, y, n, flips);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
