// Completes the outputs of selecting reductions: negates them for a minimum, or applies the ReLU.
#pragma once

#include "forward/row_reader.hpp"
#include "geometry/partition.hpp"
#include "operators/extreme.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Whether a ReLU may follow the reduction: maxima only.
template <class Op>
concept Rectifies = requires(Vec<typename Op::In, 1> v) { Op::relu_is_zero(v); };

// Converts maxima to the outputs of the call: negates them for a minimum, or applies the ReLU,
// whose zeros are routed nowhere.
template <class Op, class T, class R>
POOLGRAD_LOOP void finish(Select which, T* y, R* routes, i64 n) {
  if (which == Select::smallest) {
    for (i64 i = 0; i < n; ++i) y[i] = opposite(y[i]);
  }
  if constexpr (Rectifies<Op>) {
    if (which != Select::rectified) return;
    overlapping_lanes<T>(n, [&](auto w, i64 i) {
      using V = Vec<T, w()>;
      using P = Vec<R, w()>;
      const V value = load<V>(y + i);
      const auto zero = Op::relu_is_zero(value);
      store(y + i, zero ? V{} : value);
      if (!routes) return;
      const auto nowhere = bits_as<P>(convert<std::make_signed_t<R>>(zero));
      store(routes + i, load<P>(routes + i) | nowhere);
    });
  }
}

}  // namespace poolgrad::inline POOLGRAD_ISA
