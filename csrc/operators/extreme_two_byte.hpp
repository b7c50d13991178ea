// Computes maxima of float16 and bfloat16, compared as integers: a vector holds twice as many
// elements as with float32, and no element is converted.
#pragma once

#include "operators/extreme.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// The bits of infinity; those of a NaN are greater.
template <class S>
inline constexpr std::uint16_t kInfinity = std::is_same_v<S, Float16> ? 0x7C00 : 0x7F80;

// The maximum of float16 or bfloat16. NaNs: inputs may be NaN.
template <class S, bool WithRoutes, bool NaNs = true>
struct TwoByteMax : RegisterMax<TwoByteMax<S, WithRoutes, NaNs>, std::uint16_t, WithRoutes> {
  using In = std::uint16_t;
  // Both formats differ in the fill only, which blocks of windows get at run time.
  using AssumeNoNaN = TwoByteMax<BFloat16, WithRoutes, false>;
  static constexpr In kFill = 0x8000 | kInfinity<S>;  // the lowest

  template <class V>
  struct Partial {
    V best;
    Vec<std::int16_t, static_cast<int>(sizeof(V) / sizeof(In))> key;
    V best_tap;
  };

  // Converts bits to integers in the order of the numbers: both zeros become 0, and NaNs of either
  // sign are greater than infinity.
  template <class V>
  static auto key_of(V bits) {
    using K = decltype(Partial<V>::key);
    const K number = bits_as<K>(bits), size = number & 0x7FFF;
    const K negative = number <= static_cast<std::int16_t>(kFill);
    // AVX-512 negates the lanes of a mask by one instruction.
    return kVectorBytes == 64 ? (negative ? -size : size) : (size ^ negative) - negative;
  }

  template <class V>
  static Partial<V> first(V bits, u32 tap) {
    return {bits, key_of(bits), V{} + static_cast<In>(tap)};
  }
  template <class V>
  static void take(Partial<V>& partial, V bits, u32 tap) {
    merge(partial, first(bits, tap), 0);
  }
  template <class V>
  static void merge(Partial<V>& partial, const Partial<V>& later, u32 shifted) {
    auto bound = partial.key;
    const auto infinity = decltype(bound){} + static_cast<std::int16_t>(kInfinity<S>);
    if constexpr (NaNs) bound = bound < infinity ? bound : infinity;  // a NaN wins over a NaN
    const auto wins = later.key > bound;
    partial.best = wins ? later.best : partial.best;
    partial.key = wins ? later.key : partial.key;
    if constexpr (WithRoutes)
      partial.best_tap = wins ? later.best_tap + static_cast<In>(shifted) : partial.best_tap;
  }
  template <class V>
  static auto relu_is_zero(V bits, V) {
    return key_of(bits) <= 0;
  }

  // The largest magnitude: only NaNs are greater than the fill, which is an infinity.
  template <class V>
  static V check_nan(V nan_check, V bits) {
    const V a = nan_check & 0x7FFF, b = bits & 0x7FFF;
    return a > b ? a : b;
  }
  template <class V>
  static bool found_nan(V nan_check, In fill) {
    return any(nan_check > (V{} + static_cast<In>(fill & 0x7FFF)));
  }
};

}  // namespace poolgrad::inline POOLGRAD_ISA
