// Computes maxima of float16 and bfloat16, compared as integers: a vector holds twice as many
// elements as with float32, and no element is converted.
#pragma once

#include "operators/extreme.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// The bits of infinity; those of a NaN are greater.
template <class S>
inline constexpr std::uint16_t kInfinity = std::is_same_v<S, Float16> ? 0x7C00 : 0x7F80;

// Converts bits to integers in the order of the numbers; both zeros become 0.
template <class V>
auto key_of_bits(V bits) {
  using K = Vec<std::int16_t, static_cast<int>(sizeof(V) / 2)>;
  const K number = bits_as<K>(bits), sign = number >> 15;
  return ((number & 0x7FFF) ^ sign) - sign;
}

// The maximum of float16 or bfloat16 if no input is NaN. Only the fill value differs between both.
template <bool WithRoutes>
struct TwoByteMaxNoNaN : RegisterMax<TwoByteMaxNoNaN<WithRoutes>, std::uint16_t, WithRoutes> {
  using In = std::uint16_t;
  using AssumeNoNaN = TwoByteMaxNoNaN;

  template <class V>
  struct Partial {
    V best;
    Vec<std::int16_t, static_cast<int>(sizeof(V) / sizeof(In))> key;
    V best_tap;
  };

  template <class V>
  static Partial<V> first(V bits, u32 tap) {
    return {bits, key_of_bits(bits), V{} + static_cast<In>(tap)};
  }
  template <class V>
  static void take(Partial<V>& partial, V bits, u32 tap) {
    merge(partial, first(bits, tap), 0);
  }
  template <class V>
  static void merge(Partial<V>& partial, const Partial<V>& later, u32 shifted) {
    const auto wins = later.key > partial.key;
    partial.best = wins ? later.best : partial.best;
    partial.key = wins ? later.key : partial.key;
    if constexpr (WithRoutes)
      partial.best_tap = wins ? later.best_tap + static_cast<In>(shifted) : partial.best_tap;
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

template <class S, bool WithRoutes>
struct TwoByteMax : RegisterMax<TwoByteMax<S, WithRoutes>, std::uint16_t, WithRoutes> {
  using In = std::uint16_t;
  using AssumeNoNaN = TwoByteMaxNoNaN<WithRoutes>;
  static constexpr In kFill = 0x8000 | kInfinity<S>;  // the lowest

  template <class V>
  struct Partial {
    static constexpr int W = static_cast<int>(sizeof(V) / sizeof(In));
    V best;
    Vec<std::int16_t, W> threshold;  // a later input wins if its key is greater
    V best_tap;
  };

  // Converts bits to integers in the order of the numbers: both zeros become 0, every NaN kNaN.
  static constexpr std::int16_t kNaN = 0x7FFF;
  template <class V>
  static auto key_of(V bits) {
    using K = decltype(Partial<V>::threshold);
    const K number = bits_as<K>(bits), sign = number >> 15;
    const K size = number & 0x7FFF;
    return size > static_cast<std::int16_t>(kInfinity<S>) ? K{} + kNaN : (size ^ sign) - sign;
  }
  // The key that a later input must exceed to win: a NaN wins over every earlier input, also over a
  // NaN.
  template <class K>
  static K threshold_of(K key) {
    return key == kNaN ? K{} + static_cast<std::int16_t>(kNaN - 1) : key;
  }

  template <class V>
  static Partial<V> first(V bits, u32 tap) {
    return {bits, threshold_of(key_of(bits)), V{} + static_cast<In>(tap)};
  }
  template <class V>
  static void take(Partial<V>& partial, V bits, u32 tap) {
    keep_greater(partial, bits, V{} + static_cast<In>(tap));
  }
  template <class V>
  static void merge(Partial<V>& partial, const Partial<V>& later, u32 shifted) {
    keep_greater(partial, later.best, later.best_tap + static_cast<In>(shifted));
  }
  template <class V>
  static auto relu_is_zero(V bits) {
    return key_of(bits) <= 0;
  }

 private:
  template <class V>
  static void keep_greater(Partial<V>& partial, V bits, V tap) {
    const auto key = key_of(bits);
    const auto wins = key > partial.threshold;
    partial.best = wins ? bits : partial.best;
    partial.threshold = wins ? threshold_of(key) : partial.threshold;
    if constexpr (WithRoutes) partial.best_tap = wins ? tap : partial.best_tap;
  }
};

}  // namespace poolgrad::inline POOLGRAD_ISA
