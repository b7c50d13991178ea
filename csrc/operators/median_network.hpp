// Computes the median of small windows: a sorting network finds the value, then the taps are
// searched for it.
#pragma once

#include "choose.hpp"
#include "operators/extreme.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Batcher's odd-even merge sort (Knuth, The Art of Computer Programming, volume 3, 5.3.4): the
// pairs of N values that are compared, in order.
template <int N>
struct SortingNetwork {
  int low[N * N], high[N * N], size = 0;

  constexpr SortingNetwork() : low{}, high{} {
    for (int merged = 1; merged < N; merged *= 2) {
      for (int apart = merged; apart > 0; apart /= 2) {
        for (int begin = apart % merged; begin + apart < N; begin += 2 * apart) {
          for (int i = begin; i < begin + apart && i + apart < N; ++i) {
            if (i / (2 * merged) != (i + apart) / (2 * merged)) continue;
            low[size] = i;
            high[size++] = i + apart;
          }
        }
      }
    }
  }
};

template <class V>
void exchange(V& low, V& high) {
  const V a = low, b = high;
  low = a < b ? a : b;
  high = a < b ? b : a;
}

// Returns the lower of the two middle values. The compiler removes comparisons that do not affect
// it.
template <int N, class V>
V middle_of(const V* values) {
  constexpr SortingNetwork<N> network;
  V v[N];
  [&]<int... I>(std::integer_sequence<int, I...>) {
    ((v[I] = values[I]), ...);
  }(std::make_integer_sequence<int, N>{});
  [&]<int... I>(std::integer_sequence<int, I...>) {
    (exchange(v[network.low[I]], v[network.high[I]]), ...);
  }(std::make_integer_sequence<int, network.size>{});
  return v[(N - 1) / 2];
}

// The same for any number of values: pads the array with lowest and highest values, so that the
// median keeps its rank.
template <class T, class V>
POOLGRAD_LOOP V middle_of_any(V* values, int count) {
  const auto filled = [&](auto size) {
    constexpr int N = size();
    const int lower = (N - 1) / 2 - (count - 1) / 2;
    for (int t = count; t < N; ++t) {
      values[t] = V{} + (t - count < lower ? lowest<T>() : highest<T>());
    }
    return middle_of<N>(values);
  };
  if (count <= 4) return filled(Const<4>{});
  if (count <= 9) return filled(Const<9>{});
  if (count <= 16) return filled(Const<16>{});
  return filled(Const<kMaxSorted>{});
}

template <class T>
struct MedianNetwork {
  using In = T;
  using Mask = std::conditional_t<sizeof(T) == 1, std::int8_t,
                                  std::conditional_t<sizeof(T) == 4, std::int32_t, i64>>;
  using TapIndex = std::make_unsigned_t<Mask>;
  struct Target {
    T* y;
    std::uint8_t* routes;  // or null
    bool zero_ties;        // a window whose median occurs more than once is routed nowhere
    Target at(i64 offset) const {
      return {y + offset, routes ? routes + offset : nullptr, zero_ties};
    }
    Target line(i64 row, i64 length) const { return at(row * length); }
  };
  static Target target(T* y, std::uint8_t* routes, bool zero_ties) {
    return {y, routes, zero_ties};
  }
  static constexpr bool kByLines = false;
  static constexpr bool kPads = false;  // padding is not part of a window
  static constexpr bool kHeavy = true;
  static constexpr T kFill = T(0);
  static bool may_be_padding(Target, i64) { return true; }

  template <class V>
  struct Partial {
    V value[kMaxSorted];
    TapIndex tap[kMaxSorted];
    int count;
  };

  static void clear(Target to, i64 n) { std::fill(to.y, to.y + n, T(0)); }  // no window is empty

  template <class V>
  static Partial<V> first(V value, u32 tap) {
    Partial<V> partial;
    partial.count = 0;
    take(partial, value, tap);
    return partial;
  }
  template <class V>
  static void take(Partial<V>& partial, V value, u32 tap) {
    partial.value[partial.count] = value;
    partial.tap[partial.count++] = static_cast<TapIndex>(tap);
  }

  template <class V>
  static void store(Target to, i64 i, Partial<V>& partial, i64 lanes) {
    const FirstLanes how{lanes};
    if (partial.count == 4)
      store_median(to, i, partial, middle_of<4>(partial.value), Const<4>{}, how);
    else
      store_median(to, i, partial, middle_of_any<T>(partial.value, partial.count), partial.count,
                   how);
  }

  // The first of equal inputs wins; NaNs win over everything, and the last of them wins.
  template <class V, class Count>
  static void store_median(Target to, i64 i, const Partial<V>& partial, V found, Count count,
                           FirstLanes how) {
    using P = Vec<TapIndex, static_cast<int>(sizeof(V) / sizeof(T))>;
    V y = found;
    P route{};
    for (i64 t = count; t-- > 0;) {
      const auto equal = partial.value[t] == found;
      y = equal ? partial.value[t] : y;  // zeros have signs
      route = equal ? P{} + partial.tap[t] : route;
    }
    if (to.zero_ties) {
      P equals{};
      for (i64 t = 0; t < count; ++t) equals -= bits_as<P>(partial.value[t] == found);
      route = equals > 1 ? ~P{} : route;
    }
    for (i64 t = 0; kFloat<T> && t < count; ++t) {
      const auto nan = partial.value[t] != partial.value[t];
      y = nan ? partial.value[t] : y;
      route = nan ? P{} + partial.tap[t] : route;
    }
    how.store(to.y + i, y);
    if (to.routes) how.store(to.routes + i, convert<std::uint8_t>(route));
  }
};

}  // namespace poolgrad::inline POOLGRAD_ISA
