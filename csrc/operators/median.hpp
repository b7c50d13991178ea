// Computes the median. Small windows: a sorting network finds the value, then the taps are searched
// for it. Large windows: the ranks of the inputs are counted while the window slides (Huang, Yang
// and Tang 1979).
#pragma once

#include <utility>

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
    Target at(i64 offset) const { return {y + offset, routes ? routes + offset : nullptr}; }
    Target line(i64 row, i64 length) const { return at(row * length); }
  };
  static Target target(T* y, std::uint8_t* routes) { return {y, routes}; }
  using AssumeNoNaN = MedianNetwork;
  static constexpr bool kByLines = false, kRounds = false;
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

  static void clear(Target to, i64 n) {  // only windows of a stored program may be empty
    std::fill(to.y, to.y + n, T(0));
    if (to.routes) std::memset(to.routes, 0xFF, static_cast<std::size_t>(n));
  }

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
    for (i64 t = 0; kFloat<T> && t < count; ++t) {
      const auto nan = partial.value[t] != partial.value[t];
      y = nan ? partial.value[t] : y;
      route = nan ? P{} + partial.tap[t] : route;
    }
    how.store(to.y + i, y);
    if (to.routes) how.store(to.routes + i, convert<std::uint8_t>(route));
  }
};

// Converts numbers to unsigned integers of the same order. NaNs are above all numbers, both zeros
// are equal.
template <class A>
struct Keys {
  using Key = std::conditional_t<sizeof(A) == 4, u32, std::uint64_t>;
  static constexpr Key kNaN = ~Key{0};

  static Key of(A value) {
    constexpr Key sign = Key{1} << (8 * sizeof(Key) - 1);
    if constexpr (!kFloat<A>) {
      return static_cast<Key>(value) ^ sign;
    } else {
      const Key bits = bits_as<Key>(value + A(0));
      return value != value ? kNaN : bits & sign ? ~bits : bits | sign;
    }
  }
};

// Ranks numbers by value, and equal numbers by their position. NaNs have the highest ranks.
template <class A>
class Ranking {
 public:
  using Key = typename Keys<A>::Key;

  Ranking(i64 size, Arena& arena)
      : values(arena.take<A>(size)),
        ranks(arena.take<u32>(size)),
        sorted_(arena.take<Item>(size)),
        spare_(arena.take<Item>(size)) {}

  A* values;
  u32* ranks;

  // Ranks the first n values.
  POOLGRAD_LOOP void rank(i64 n) {
    for (i64 i = 0; i < n; ++i) sorted_[i] = {Keys<A>::of(values[i]), static_cast<u32>(i)};
    sort(n);
    Key previous{}, first = 0;
    first_nan_ = n;
    for (i64 r = 0; r < n; ++r) {
      Item& item = sorted_[r];
      if (kFloat<A> && item.key == Keys<A>::kNaN) first_nan_ = smaller(first_nan_, r);
      if (item.key != previous) first = static_cast<Key>(r);
      previous = item.key;
      item.key = first;
      ranks[item.position] = static_cast<u32>(r);
    }
  }

  i64 first_nan() const { return first_nan_; }
  i64 position(i64 rank) const { return sorted_[rank].position; }
  // The lowest rank of an equal number.
  i64 first_equal(i64 rank) const { return static_cast<i64>(sorted_[rank].key); }

 private:
  struct Item {
    Key key;  // after ranking: the lowest rank of an equal number
    u32 position;
  };

  // Radix sort by bytes, from the lowest to the highest. It is stable: equal keys stay in the order
  // of their positions.
  void sort(i64 n) {
    constexpr int kBytes = sizeof(Key), kValues = 256;
    const auto byte = [](Key key, int b) { return key >> (8 * b) & (kValues - 1); };
    u32 ends[kBytes][kValues] = {};
    for (i64 i = 0; i < n; ++i) {
      for (int b = 0; b < kBytes; ++b) ++ends[b][byte(sorted_[i].key, b)];
    }
    for (int b = 0; b < kBytes; ++b) {
      u32* begins = ends[b];
      if (n > 0 && begins[byte(sorted_[0].key, b)] == n) continue;  // equal in all keys
      u32 begin = 0;
      for (int v = 0; v < kValues; ++v) begin += std::exchange(begins[v], begin);
      for (i64 i = 0; i < n; ++i) spare_[begins[byte(sorted_[i].key, b)]++] = sorted_[i];
      std::swap(sorted_, spare_);
    }
  }

  Item *sorted_, *spare_;
  i64 first_nan_ = 0;
};

// A set of ranks as a bit for each rank. Keeps the word of the member that was selected last, and
// the number of members below this word.
class RankSet {
 public:
  using Word = std::uint64_t;

  RankSet(i64 ranks, Arena& arena) : words_(arena.take<Word>(ceil_div(ranks, 64))) {}

  // Empties the set, of ranks below `ranks`.
  void clear(i64 ranks) {
    std::fill(words_, words_ + ceil_div(ranks, 64), Word{0});
    word_ = below_ = 0;
  }
  void insert(i64 rank) {
    words_[rank / 64] |= Word{1} << (rank % 64);
    below_ += rank / 64 < word_;
  }
  void erase(i64 rank) {
    words_[rank / 64] &= ~(Word{1} << (rank % 64));
    below_ -= rank / 64 < word_;
  }

  // The member with `smaller_members` members below it.
  i64 select(i64 smaller_members) {
    const auto count = [&] { return __builtin_popcountll(words_[word_]); };
    while (below_ > smaller_members) --word_, below_ -= count();
    while (below_ + count() <= smaller_members) below_ += count(), ++word_;
    Word bits = words_[word_];
    for (i64 k = below_; k < smaller_members; ++k) bits &= bits - 1;
    return word_ * 64 + __builtin_ctzll(bits);
  }
  // The lowest member that is not below `rank`; there must be one.
  i64 at_least(i64 rank) const {
    i64 w = rank / 64;
    Word bits = words_[w] >> (rank % 64) << (rank % 64);
    while (!bits) bits = words_[++w];
    return w * 64 + __builtin_ctzll(bits);
  }

 private:
  Word* words_;
  i64 word_ = 0, below_ = 0;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
