// Computes reductions that need all inputs of a window at once: the median of windows too large for
// operators/median_network.hpp, and the random draw. Gathers the windows of several outputs side by
// side, one output a lane.
#pragma once

#include "operators/extreme.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

inline constexpr i64 kGathered = 1 << 15;  // inputs gathered at once: they stay in the cache

// The inputs of the windows of neighbouring outputs of one row: values[t * stride + i] is valid
// input t (in row-major order) of output i. Elements beyond the last valid input of a window are
// `fill`.
template <class A>
class GatheredWindows {
 public:
  GatheredWindows(const Plan& p, const View& x, const Tile& tile, Arena& arena)
      : p_(p),
        x_(x),
        max_inputs_(max_valid_inputs(p)),
        max_outputs_(
            larger(1, smaller(tile.hi[2] - tile.lo[2], kGathered / (max_inputs_ * p.inner)))) {
    lanes_ = max_outputs_ * p.inner;
    values = arena.take<A>(max_inputs_ * lanes_);
    counts = arena.take<u32>(lanes_);
    row_ = arena.take<A>(p.axis[2].in * p.inner);
  }

  i64 max_outputs() const { return max_outputs_; }  // outputs along the width that fit
  i64 stride() const { return lanes_; }             // from one input of a window to its next
  i64 max_inputs() const { return max_inputs_; }    // the most inputs that a window may hold

  void gather(const char* plane, i64 od, i64 oh, i64 lo, i64 hi, A fill) {
    const Axis &depth = p_.axis[0], &height = p_.axis[1], &width = p_.axis[2];
    const Span sd = span_of(depth, od), sh = span_of(height, oh);
    for (i64 i = 0; i < max_inputs_ * lanes_; ++i) values[i] = fill;
    for (i64 i = 0; i < sd.taps; ++i) {
      for (i64 j = 0; j < sh.taps; ++j) {
        const A* row = row_of(x_, plane, p_.inner, sd.begin + i * depth.dilation,
                              sh.begin + j * height.dilation, 0, width.in, row_);
        for (i64 o = lo; o < hi; ++o) {
          const Span s = span_of(width, o);
          const A* from = row + s.begin * p_.inner;
          A* to = values + (i * sh.taps + j) * s.taps * lanes_ + (o - lo) * p_.inner;
          for (i64 t = 0; t < s.taps; ++t) {
            for (i64 c = 0; c < p_.inner; ++c) {
              to[t * lanes_ + c] = from[t * width.dilation * p_.inner + c];
            }
          }
        }
      }
    }
    for (i64 o = lo; o < hi; ++o) {
      const i64 taps = sd.taps * sh.taps * span_of(width, o).taps;
      for (i64 c = 0; c < p_.inner; ++c) counts[(o - lo) * p_.inner + c] = static_cast<u32>(taps);
    }
  }

  // The tap index of valid input t in the window of output (od, oh, o).
  u32 tap_of(i64 od, i64 oh, i64 o, u32 t) const {
    if (t == kNowhere) return kNowhere;
    const Span sd = span_of(p_.axis[0], od), sh = span_of(p_.axis[1], oh);
    const Span sw = span_of(p_.axis[2], o);
    const i64 line = t / sw.taps, d = sd.first_tap + line / sh.taps,
              h = sh.first_tap + line % sh.taps;
    return static_cast<u32>((d * p_.axis[1].kernel + h) * p_.axis[2].kernel + sw.first_tap +
                            t % sw.taps);
  }

  A* values;
  u32* counts;

 private:
  const Plan& p_;
  const View& x_;
  i64 max_inputs_, max_outputs_, lanes_;
  A* row_;
};

// Converts numbers to integers of the same order. NaNs are above all numbers, both zeros are equal.
template <class A>
struct Keys {
  using Key = std::conditional_t<sizeof(A) == 4, std::int32_t, i64>;
  static constexpr Key kMost = std::numeric_limits<Key>::max();

  static Key of(A value) {
    if constexpr (!kFloat<A>) {
      return value;
    } else {
      const Key bits = bits_as<Key>(value + A(0));
      return value != value ? kMost : bits < 0 ? bits ^ kMost : bits;
    }
  }
};

// Radix median: finds the lower of the two middle values of each window bit by bit from the
// highest, in as many passes over the windows as a key has bits, without branches.
template <class A>
class RadixMedian {
 public:
  using Key = typename Keys<A>::Key;
  using Bits = std::make_unsigned_t<Key>;

  RadixMedian(const Plan&, const GatheredWindows<A>& windows, Arena& arena)
      : keys_(arena.take<Key>(windows.max_inputs() * windows.stride())),
        found_(arena.take<Key>(windows.stride())),
        rank_(arena.take<Key>(windows.stride())),
        below_(arena.take<Key>(windows.stride())) {}

  static constexpr A kFill = A(0);

  // winners[i]: the first valid input of window i that equals its median, or kNowhere if there are
  // several and `zero_ties` is set; y[i]: the median.
  void select_inputs(const GatheredWindows<A>& windows, i64, i64 n, bool zero_ties, A* y,
                     u32* winners) {
    const i64 step = windows.stride(), max_outputs = windows.max_inputs();
    constexpr int kBits = static_cast<int>(sizeof(Key)) * 8;
    for (i64 i = 0; i < n; ++i) {
      rank_[i] = (static_cast<Key>(windows.counts[i]) - 1) / 2;
      found_[i] = std::numeric_limits<Key>::min();
    }
    for (i64 t = 0; t < max_outputs; ++t) {
      for (i64 i = 0; i < n; ++i) {
        const bool max_inputs = static_cast<u32>(t) < windows.counts[i];
        keys_[t * step + i] =
            max_inputs ? Keys<A>::of(windows.values[t * step + i]) : Keys<A>::kMost;
      }
    }
    for (int b = kBits - 1; b >= 0; --b) {
      const Key bit = static_cast<Key>(Bits{1} << b);
      for (i64 i = 0; i < n; ++i) below_[i] = 0;
      for (i64 t = 0; t < max_outputs; ++t) count_below(keys_ + t * step, bit, n);
      for (i64 i = 0; i < n; ++i) {  // the largest key with no more than `rank` keys below it
        found_[i] = below_[i] <= rank_[i] ? (found_[i] ^ bit) : found_[i];
      }
    }
    for (i64 i = 0; i < n; ++i) winners[i] = kNowhere, below_[i] = 0;
    for (i64 t = max_outputs - 1; t >= 0; --t) {
      for (i64 i = 0; i < n; ++i) {
        const bool equal =
            keys_[t * step + i] == found_[i] && static_cast<u32>(t) < windows.counts[i];
        winners[i] = equal ? static_cast<u32>(t) : winners[i];
        below_[i] += equal;
      }
    }
    for (i64 i = 0; i < n; ++i) {
      // The windows of a stored program have not been validated: one may lie in the padding.
      y[i] = winners[i] == kNowhere ? A(0) : windows.values[winners[i] * step + i];
      if (zero_ties && below_[i] > 1) winners[i] = kNowhere;
    }
    if constexpr (kFloat<A>) last_nan(windows, n, y, winners);
  }

 private:
  // Bit by bit, found_ is built from the lowest key up: flipping the sign bit makes it larger, too.
  POOLGRAD_LOOP void count_below(const Key* keys, Key bit, i64 n) {
    lanes<Key>(n, [&](auto w, i64 i) {
      using K = Vec<Key, w()>;
      const K limit = load<K>(found_ + i) ^ bit;
      store(below_ + i, load<K>(below_ + i) - (load<K>(keys + i) < limit));
    });
  }

  static void last_nan(const GatheredWindows<A>& windows, i64 n, A* y, u32* winners) {
    for (i64 t = 0; t < windows.max_inputs(); ++t) {
      for (i64 i = 0; i < n; ++i) {
        const A value = windows.values[t * windows.stride() + i];
        if (value == value || static_cast<u32>(t) >= windows.counts[i]) continue;
        y[i] = value;
        winners[i] = static_cast<u32>(t);
      }
    }
  }

  Key *keys_, *found_, *rank_, *below_;
};

// Computes a random number in [0, 1) for each output: splitmix64 (Steele, Lea & Flood 2014) of its
// index, so that the result does not depend on threads.
inline double uniform(std::uint64_t seed, i64 index) {
  std::uint64_t z = seed + (static_cast<std::uint64_t>(index) + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

// Draws one input of each window with a probability proportional to its positive part.
template <class A>
class RandomDraw {
 public:
  RandomDraw(const Plan& p, const GatheredWindows<A>& windows, Arena& arena)
      : p_(p),
        sums_(arena.take<double>(windows.stride())),
        largest_(arena.take<double>(windows.stride())) {}

  static constexpr A kFill = A(0);
  std::uint64_t seed = 0;
  View order;  // strides of the outputs in logical order

  // `first`: the index of the first output; outputs and channels follow at order's strides.
  void select_inputs(const GatheredWindows<A>& windows, i64 first, i64 n, bool, A* y,
                     u32* winners) {
    const i64 step = windows.stride();
    for (i64 i = 0; i < n; ++i) sums_[i] = largest_[i] = 0;
    for (i64 t = 0; t < windows.max_inputs(); ++t) {
      for (i64 i = 0; i < n; ++i) {
        const double w = weight(windows.values[t * step + i]);
        largest_[i] = w > largest_[i] ? w : largest_[i];
      }
    }
    for (i64 i = 0; i < n; ++i) largest_[i] = largest_[i] > kHuge ? kSmaller : 1.0;
    for (i64 t = 0; t < windows.max_inputs(); ++t) {
      for (i64 i = 0; i < n; ++i) {
        sums_[i] += largest_[i] * weight(windows.values[t * step + i]);
      }
    }
    for (i64 i = 0; i < n; ++i) {
      const i64 index = first + i / p_.inner * order.width + i % p_.inner * order.inner;
      const double u = uniform(seed, index), limit = u * sums_[i];
      const u32 count = windows.counts[i];
      u32 winner = count ? static_cast<u32>(u * count) : kNowhere;  // of a window in the padding
      if (sums_[i] > 0) {
        double below = 0;
        for (u32 t = 0; t < count; ++t) {
          const double w = largest_[i] * weight(windows.values[t * step + i]);
          below += w;
          if (w > 0) winner = t;
          if (below > limit) break;
        }
      }
      winners[i] = winner;
      y[i] = count ? windows.values[winner * step + i] : A(0);
    }
  }

 private:
  static constexpr double kHuge = 0x1p900, kSmaller = 0x1p-100;  // so that no sum overflows

  static double weight(A value) { return value > A(0) ? static_cast<double>(value) : 0.0; }

  const Plan& p_;
  double *sums_, *largest_;  // the largest weight, then the factor of all weights
};

template <class A, class Selector>
struct WindowSelectionState {
  GatheredWindows<A> windows;
  Selector selector;
  A* y;
  u32 *winners, *routes;
};

// Computes a tile of one plane; index: of the plane's first output in logical order.
template <class A, class Selector>
void select_tile_of_windows(const Plan& p, const Tile& tile,
                            WindowSelectionState<A, Selector>& state, const char* inputs,
                            const View& order, i64 index, bool zero_ties, Dense y, Dense routes,
                            i64 plane) {
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      for (i64 lo = tile.lo[2]; lo < tile.hi[2]; lo += state.windows.max_outputs()) {
        const i64 hi = smaller(tile.hi[2], lo + state.windows.max_outputs()),
                  n = (hi - lo) * p.inner;
        state.windows.gather(inputs, od, oh, lo, hi, Selector::kFill);
        state.selector.select_inputs(
            state.windows, index + od * order.depth + oh * order.height + lo * order.width, n,
            zero_ties, state.y, state.winners);
        const i64 first = plane + (od * p.axis[1].out + oh) * p.out_row() + lo * p.inner;
        write(y, first, state.y, n);
        if (!routes.data) continue;
        for (i64 i = 0; i < n; ++i) {
          state.routes[i] = state.windows.tap_of(od, oh, lo + i / p.inner, state.winners[i]);
        }
        store_routes(state.routes, routes, first, n);
      }
    }
  }
}

}  // namespace poolgrad::inline POOLGRAD_ISA
