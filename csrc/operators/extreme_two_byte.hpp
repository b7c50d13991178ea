// The maximum of float16 and bfloat16, compared as integers: twice as many fit into a vector, and
// none is converted.
#pragma once

#include "operators/extreme.hpp"

namespace poolgrad {
namespace {

// The bits of infinity; those of a NaN are greater.
template <class S>
inline constexpr std::uint16_t kInfinity = std::is_same_v<S, Float16> ? 0x7C00 : 0x7F80;

// Integers in the order of the numbers; both zeros are 0.
template <class V>
auto key_of_bits(V bits) {
  using K = Vec<std::int16_t, static_cast<int>(sizeof(V) / 2)>;
  const K own = bits_as<K>(bits), sign = own >> 15;
  return ((own & 0x7FFF) ^ sign) - sign;
}

// The maximum of either type if no input is NaN. Only the fill depends on the type.
template <bool WithRoutes>
struct TwoByteMaxOfNumbers {
  using In = std::uint16_t;
  using AssumeNoNaN = TwoByteMaxOfNumbers;
  using Target = Winners<In, WithRoutes>;

  template <class V>
  struct Cell {
    V best;
    Vec<std::int16_t, static_cast<int>(sizeof(V) / sizeof(In))> key;
    V where;
  };

  template <class V>
  static Cell<V> first(V bits, u32 place) {
    return {bits, key_of_bits(bits), V{} + static_cast<In>(place)};
  }
  template <class V>
  static void take(Cell<V>& cell, V bits, u32 place) {
    merge(cell, first(bits, place), 0);
  }
  template <class V>
  static void merge(Cell<V>& cell, const Cell<V>& later, u32 moved) {
    const auto wins = later.key > cell.key;
    cell.best = wins ? later.best : cell.best;
    cell.key = wins ? later.key : cell.key;
    if constexpr (WithRoutes) cell.where = wins ? later.where + static_cast<In>(moved) : cell.where;
  }
  template <class V>
  static void store(Target to, i64 i, const Cell<V>& cell) {
    poolgrad::store(to.y + i, cell.best);
    if constexpr (WithRoutes) poolgrad::store(to.routes + i, convert<std::uint8_t>(cell.where));
  }

  // The largest magnitude: only NaNs are greater than the fill, which is an infinity.
  template <class V>
  static V trace(V seen, V bits) {
    const V a = seen & 0x7FFF, b = bits & 0x7FFF;
    return a > b ? a : b;
  }
  template <class V>
  static bool has_nan(V seen, In fill) {
    return any(seen > (V{} + static_cast<In>(fill & 0x7FFF)));
  }
};

template <class S, bool WithRoutes>
struct TwoByteMax {
  using In = std::uint16_t;
  using AssumeNoNaN = TwoByteMaxOfNumbers<WithRoutes>;
  using Target = Winners<In, WithRoutes>;
  static Target target(In* y, std::uint8_t* routes, bool) { return {y, routes}; }
  static constexpr bool kByLines = false, kPads = true;
  static constexpr In kFill = 0x8000 | kInfinity<S>;  // the lowest

  template <class V>
  struct Cell {
    static constexpr int W = static_cast<int>(sizeof(V) / sizeof(In));
    V best;
    Vec<std::int16_t, W> beaten_by;  // every key above this
    V where;
  };

  static bool is_suspect(Target to, i64 i) { return to.y[i] == kFill; }
  static void clear(Target to, i64 n) {
    std::fill(to.y, to.y + n, kFill);
    if (WithRoutes) std::memset(to.routes, 0xFF, static_cast<std::size_t>(n));
  }

  // Integers in the order of the numbers: both zeros are 0, and every NaN is kNaN.
  static constexpr std::int16_t kNaN = 0x7FFF;
  template <class V>
  static auto key_of(V bits) {
    using K = decltype(Cell<V>::beaten_by);
    const K own = bits_as<K>(bits), sign = own >> 15;
    const K size = own & 0x7FFF;
    return size > static_cast<std::int16_t>(kInfinity<S>) ? K{} + kNaN : (size ^ sign) - sign;
  }
  // The key that a later input must exceed: a NaN wins over everything before it, another NaN
  // included.
  template <class K>
  static K bar(K key) {
    return key == kNaN ? K{} + static_cast<std::int16_t>(kNaN - 1) : key;
  }

  template <class V>
  static Cell<V> first(V bits, u32 place) {
    return {bits, bar(key_of(bits)), V{} + static_cast<In>(place)};
  }
  template <class V>
  static void take(Cell<V>& cell, V bits, u32 place) {
    challenge(cell, bits, V{} + static_cast<In>(place));
  }
  template <class V>
  static void merge(Cell<V>& cell, const Cell<V>& later, u32 moved) {
    challenge(cell, later.best, later.where + static_cast<In>(moved));
  }
  template <class V>
  static auto is_cut(V bits) {
    return key_of(bits) <= 0;
  }
  template <class V>
  static void store(Target to, i64 i, const Cell<V>& cell) {
    poolgrad::store(to.y + i, cell.best);
    if constexpr (WithRoutes) poolgrad::store(to.routes + i, convert<std::uint8_t>(cell.where));
  }

 private:
  template <class V>
  static void challenge(Cell<V>& cell, V bits, V place) {
    const auto key = key_of(bits);
    const auto wins = key > cell.beaten_by;
    cell.best = wins ? bits : cell.best;
    cell.beaten_by = wins ? bar(key) : cell.beaten_by;
    if constexpr (WithRoutes) cell.where = wins ? place : cell.where;
  }
};

}  // namespace
}  // namespace poolgrad
