// Register-blocked gradients of maxima and averages of small windows: computes several rows of
// input gradients at once. A vector of neighbouring columns or, with channels last, of the channels
// of a pixel moves down the rows of outputs; each gradient and its route are read once, and the
// gradient is added, in registers, to the input that the route names. Shares of an average are
// added along the height and then along the width, in ascending order of outputs.
#pragma once

#include "backward/tiles.hpp"
#include "choose.hpp"
#include "forward/register_blocked.hpp"
#include "forward/row_writer.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Windows of K x K or 1 x K inputs, which do not overlap along the depth. With channels last:
// windows of K x K inputs in planes without a depth, and gradients and routes that are read in
// place. HasRoutes: a gradient is added to the input that its route names; else it is divided by
// the divisor and added to all inputs of its window (not with channels last).
template <class T, bool HasRoutes>
class RegisterBlockedBackward {
 public:
  using RoutesOrDivisor = std::conditional_t<HasRoutes, View, Divisor>;

  RegisterBlockedBackward(const Plan& p, const InputTile& tile, Arena& arena, Dense gx)
      : p_(p),
        tile_(tile),
        has_channels_(p.inner > 1),
        n_((tile.hi[2] - tile.lo[2]) * p.inner),
        begin_(tile.lo[2] + p.axis[2].lo),
        max_rows_(has_channels_ ? kMaxChannelsLastStrides * p.axis[1].stride
                                : larger(p.axis[1].stride,
                                         smaller(kMaxRows, kBlockBytes / (n_ * i64{sizeof(T)})))),
        gx_(gx, max_rows_ * n_, arena),
        nontemporal_(n_ == p.axis[2].in * p.inner &&
                     gx_.choose_nontemporal(has_channels_ ? p.inner : n_,
                                            p.outer * p.in_plane() * i64{sizeof(T)})) {
    const Axis &height = p.axis[1], &width = p.axis[2];
    first_ = ceil_div(begin_ - width.kernel + 1, width.stride);
    end_ = floor_div(begin_ + tile.hi[2] - tile.lo[2] - 1, width.stride) + 1;
    valid_.lo = smaller(width.out, larger(0, first_));
    valid_.hi = larger(valid_.lo, smaller(width.out, end_));
    pitch_ = ceil_div(end_ - first_, kMargin) * kMargin;
    copied_ = has_channels_ ? 0 : ((max_rows_ + height.kernel) / height.stride + 2) * pitch_;
    // Copied gradients begin with a cache line. Without a valid output, lo may be less than first_.
    const i64 before = larger(0, valid_.lo - first_);
    gradients_ = arena.take<T>(copied_ + kMargin) + kMargin - before % kMargin;
    routes_ = HasRoutes ? arena.take<std::uint8_t>(copied_) : nullptr;
    wide_routes_ = HasRoutes ? arena.take<u32>(pitch_) : nullptr;
    divisors_ = HasRoutes ? nullptr : arena.take<T>(pitch_);
    discarded_ = arena.take<T>(n_);
    rows_ = arena.take<T*>(max_rows_ + 2 * height.kernel + 2 * height.stride);
  }

  void run(const View& gy, const RoutesOrDivisor& source, i64 plane) {
    Operand operand{gy, source, plane_of(gy, plane), nullptr};
    if constexpr (HasRoutes) operand.routes = plane_of(source, plane);
    if (!ready_) {
      ready_ = true;
      std::fill(gradients_, gradients_ + copied_, T(0));
      if constexpr (HasRoutes) std::memset(routes_, 0, static_cast<std::size_t>(copied_));
      else source.fill_row(p_.axis[2], p_.inner, valid_.lo, valid_.hi, divisors_);
    }
    i64 at = plane * p_.in_plane() + first_input(p_, tile_);
    for (i64 d = tile_.lo[0]; d < tile_.hi[0]; ++d) {
      for (i64 h = tile_.lo[1], count; h < tile_.hi[1]; h += count, at += count * n_) {
        // `begin` is counted from the start of the padding. With channels last, blocks after the
        // first begin at a multiple of the stride.
        const i64 begin = h + p_.axis[1].lo, stride = p_.axis[1].stride;
        count = smaller(max_rows_ - (begin - floor_div(begin, stride) * stride), tile_.hi[1] - h);
        compute_block(operand, d, h, count, gx_.reserve(at, count * n_, false));
      }
    }
  }

 private:
  // kMaxChannelsLastStrides: rows of a block with channels last, in strides. More rows would map to
  // the same sets of the first-level cache.
  static constexpr i64 kMaxRows = 32, kMaxChannelsLastStrides = 2, kMargin = 64;

  // Lines of gradients and of routes from output `first_` on, and their distances.
  struct Lines {
    const T* gradients;
    const std::uint8_t* routes;
    i64 gradient_pitch, route_pitch;
  };
  // A plane of gradients and of routes.
  struct Operand {
    const View& gy;
    const RoutesOrDivisor& source;
    const char *gradients, *routes;
  };
  // The gradients of a vector of outputs, and their routes.
  template <class V>
  struct Routed {
    V gradient;
    Vec<WideRoute<T>, static_cast<int>(sizeof(V) / sizeof(T))> route;
  };
  template <class V>
  static Routed<V> load_routed(const T* gradients, const std::uint8_t* routes) {
    constexpr int W = static_cast<int>(sizeof(V) / sizeof(T));
    return {load<V>(gradients), convert<WideRoute<T>>(load<Vec<std::uint8_t, W>>(routes))};
  }

  // Computes inputs h ... h + count at depth d.
  void compute_block(const Operand& from, i64 d, i64 h, i64 count, T* to) {
    const Axis &depth = p_.axis[0], &height = p_.axis[1], &width = p_.axis[2];
    const Range depths = covering(depth, d);
    const i64 depth_tap = depths.lo < depths.hi ? tap_of(depth, span_of(depth, depths.lo), d) : -1;
    if (depth_tap < 0) return std::fill(to, to + count * n_, T(0));
    const u32 tap = static_cast<u32>(depth_tap * height.kernel * width.kernel);
    const i64 begin = h + height.lo, before = (height.kernel - 1) / height.stride;
    const i64 first = floor_div(begin, height.stride) - before;
    const i64 lines = has_channels_ ? before + kMaxChannelsLastStrides
                                    : floor_div(begin + count - 1, height.stride) + 1 - first;
    for (i64 j = 0; j < lines * height.stride; ++j) {
      const i64 row = first * height.stride + j - begin;
      rows_[j] = row >= 0 && row < count ? to + row * n_ : discarded_;
    }
    const Lines block = has_channels_ ? Lines{} : lines_of(from, depths.lo, first, lines);
    by_shape(width, [&](auto kernel, auto stride) {
      if constexpr (HasRoutes) {
        if (has_channels_) return compute_channels<kernel(), stride()>(from, first);
      }
      by_width<T>(n_ / stride, [&](auto w) {
        if (height.kernel == 1) compute_columns<1, kernel(), stride(), w()>(block, tap, lines);
        else compute_columns<kernel(), kernel(), stride(), w()>(block, tap, lines);
      });
    });
  }

  // Returns lines from output row `first` on. If nothing around them is read, routes and gradients
  // are read in the array, or gradients that follow each other are converted in one run; else lines
  // are copied. Shares are always copied.
  Lines lines_of(const Operand& from, i64 od, i64 first, i64 lines) {
    if constexpr (HasRoutes) {
      const View &g = from.gy, &r = from.source;
      const bool inside =
          valid_.lo == first_ && valid_.hi == end_ && first >= 0 && first + lines <= p_.axis[1].out;
      const i64 n = end_ - first_, joined = g.height == n ? lines : 1;  // lines read as one row
      const bool readable = joined > 1 || g.dtype == DtypeOf<T>::value;
      if (inside && readable && r.dtype == Dtype::uint8 && g.width == 1 && r.width == 1) {
        for (i64 i = first; i < first + lines; ++i) {
          prefetch_after(g, from.gradients, od, i, valid_, 1);
          prefetch_after(r, from.routes, od, i, valid_, 1);
        }
        return {row_of(g, from.gradients, 1, od, first, first_, first_ + joined * n, gradients_),
                reinterpret_cast<const std::uint8_t*>(from.routes) + od * r.depth +
                    first * r.height + first_,
                g.height, r.height};
      }
    }
    for (i64 i = 0; i < lines; ++i) copy_line(from, od, first + i, i * pitch_);
    return {gradients_, routes_, pitch_, pitch_};
  }

  // Copies a row of gradients and of routes or, without routes, computes a row of shares, in memory
  // with zeros around them, where the routes do not matter.
  POOLGRAD_LOOP void copy_line(const Operand& from, i64 od, i64 oh, i64 line) {
    const i64 n = valid_.hi - valid_.lo;
    if (n == 0) return;
    T* const g = gradients_ + line + valid_.lo - first_;
    if (oh < 0 || oh >= p_.axis[1].out) return std::fill(g, g + n, T(0));
    if constexpr (HasRoutes) {
      const auto row = [&](const View& v, const char* plane, auto* buffer) {
        prefetch_after(v, plane, od, oh, valid_, 1);
        return row_of(v, plane, 1, od, oh, valid_.lo, valid_.hi, buffer);
      };
      const T* const gradients = row(from.gy, from.gradients, g);
      std::uint8_t* const r = routes_ + line + valid_.lo - first_;
      if (gradients != g) copy_run(gradients, g, n);
      if (from.source.dtype == Dtype::uint8) {
        const std::uint8_t* const routes = row(from.source, from.routes, r);
        if (routes != r) copy_run(routes, r, n);
      } else {
        const u32* const routes = row(from.source, from.routes, wide_routes_);
        for (i64 i = 0; i < n; ++i) r[i] = static_cast<std::uint8_t>(smaller(routes[i], 0xFF));
      }
    } else {
      const T row = static_cast<T>(from.source.of_rows(p_, od, oh));
      const auto divide = [&](auto s) {  // a row of elements of type S, without a converted copy
        const i64 at = od * from.gy.depth + oh * from.gy.height + valid_.lo;
        divide_row(reinterpret_cast<const decltype(s)*>(from.gradients) + at, divisors_, row, g, n);
      };
      prefetch_after(from.gy, from.gradients, od, oh, valid_, 1);
      if constexpr (sizeof(T) == 4) {
        if (from.gy.width == 1 && from.gy.dtype == Dtype::float16) return divide(Float16{});
        if (from.gy.width == 1 && from.gy.dtype == Dtype::bfloat16) return divide(BFloat16{});
      }
      divide_row(row_of(from.gy, from.gradients, 1, od, oh, valid_.lo, valid_.hi, g), divisors_,
                 row, g, n);
    }
  }

  // Computes all columns of a block. The last vector overlaps the one before.
  template <i64 Height, i64 K, i64 S, i64 W>
  void compute_columns(const Lines& block, u32 tap, i64 lines) const {
    constexpr i64 kColumns = S * W;
    for (i64 i = 0; i < n_; i += kColumns) {
      const i64 column = smaller(i, n_ - kColumns);
      if ((column + begin_) % S == 0)
        compute_vectors<Height, K, S, 0, W>(column, i, block, tap, lines);
      else compute_vectors<Height, K, S, S - 1, W>(column, i, block, tap, lines);
    }
  }

  // Computes the inputs from `column` on of all rows, W of each phase (column modulo S); those
  // before `from` are complete. P: the first phase, 0 or S - 1.
  template <i64 Height, i64 K, i64 S, i64 P, i64 W>
  POOLGRAD_LOOP void compute_vectors(i64 column, i64 from, Lines block, u32 tap, i64 lines) const {
    constexpr i64 kStep = Height == 1 ? 1 : S;  // stride of the height
    using V = Vec<T, static_cast<int>(W)>;
    const i64 base = floor_div(column + begin_, S) - first_;
    const T* const g = block.gradients + base;
    const bool nontemporal = S * W * sizeof(T) % kLineBytes == 0 && nontemporal_;
    accumulate<Height, K, S, P, V>(
        tap, lines,
        [&](i64 q, i64 output) {
          const T* const gradients = g + q * block.gradient_pitch + output;
          if constexpr (HasRoutes)
            return load_routed<V>(gradients, block.routes + base + q * block.route_pitch + output);
          else return load<V>(gradients);
        },
        [&](i64 row, const V* sums) {
          T* const to = rows_[row] + column;
          V columns[S];
          if constexpr (S == 1) columns[0] = sums[0];
          else interleave(sums[0], sums[1], columns);
          POOLGRAD_UNROLL
          for (i64 c = 0; c < S; ++c) {
            if (nontemporal && to != discarded_ + column) {
              if (column + c * W >= from) store_nontemporal(to + c * W, columns[c]);
            } else {
              prefetch(to + lines * kStep * n_ + c * W);
              store(to + c * W, columns[c]);
            }
          }
        });
  }

  // Computes all pixels of a block of rows, a vector of channels of S columns at a time. At the
  // edges of the planes, loads and stores are masked. first: the first line of outputs.
  template <i64 K, i64 S>
  POOLGRAD_LOOP void compute_channels(const Operand& from, i64 first) const {
    using V = Vec<T, static_cast<int>(kLanesOf<T>)>;
    constexpr i64 kBefore = (K - 1) / S, kLines = kBefore + kMaxChannelsLastStrides;
    const i64 channels = p_.inner, in = p_.axis[2].in, out = p_.axis[2].out;
    const i64 gradient_line = from.gy.height, gradient_pixel = from.gy.width;
    const i64 route_line = from.source.height, route_pixel = from.source.width;
    const T* const g = reinterpret_cast<const T*>(from.gradients) + first * gradient_line;
    const std::uint8_t* const r =
        reinterpret_cast<const std::uint8_t*>(from.routes) + first * route_line;
    const i64 lo = -first, hi = p_.axis[1].out - first;  // lines that exist
    T* rows[kLines * S];
    std::copy(rows_, rows_ + kLines * S, rows);
    const bool nontemporal = kVectorBytes % kLineBytes == 0 && nontemporal_;
    const auto pixels = [&](i64 b, auto edge) __attribute__((always_inline)) {
      const i64 column = b * S - begin_;
      for (i64 c = 0; c < channels; c += kLanesOf<T>) {
        const i64 channel = smaller(c, channels - kLanesOf<T>);
        accumulate<K, K, S, 0, V>(
            0, Const<kLines>{},
            [&](i64 q, i64 output) {
              const i64 ow = b + output;
              if (edge && (q < lo || q >= hi || ow < 0 || ow >= out)) return Routed<V>{};
              const T* const gradients = g + q * gradient_line + ow * gradient_pixel + channel;
              const std::uint8_t* const routes = r + q * route_line + ow * route_pixel + channel;
              if (output == 0) {
                prefetch(gradients + kPrefetchElements<T>);
                prefetch(routes + kPrefetchElements<T>);
              }
              return load_routed<V>(gradients, routes);
            },
            [&](i64 row, const V* sums) {
              if (row < kBefore * S || rows[row] == discarded_) return;
              POOLGRAD_UNROLL
              for (i64 k = 0; k < S; ++k) {
                if (edge && (column + k < 0 || column + k >= in)) continue;
                T* const to = rows[row] + (column + k) * channels + channel;
                if (nontemporal) {
                  store_nontemporal(to, sums[k]);
                } else {
                  prefetch(to + kPrefetchElements<T>);
                  store(to, sums[k]);
                }
              }
            });
      }
    };
    const bool full = lo <= 0 && kLines <= hi;
    const i64 full_lo = larger(kBefore, ceil_div(begin_, S));
    const i64 full_hi = smaller(out, floor_div(begin_ + in, S));
    for (i64 b = floor_div(begin_, S); b < end_; ++b) {
      if (full && b >= full_lo && b < full_hi) pixels(b, std::false_type{});
      else pixels(b, std::true_type{});
    }
  }

  // Adds gradients to the inputs of S columns, whose first one has phase P (column modulo S), of
  // all rows, in ascending order of outputs. load(line, output) returns gradients of a line of
  // outputs; output 0 is the one whose window begins at phase 0 of these columns. store(row, sums)
  // stores a row of inputs. lines: may be a compile-time constant. Output o holds columns o * S - P
  // ... o * S - P + K - 1 of these; shares are added along the width when a row is complete.
  template <i64 Height, i64 K, i64 S, i64 P, class V, class LineCount, class Load, class Store>
  POOLGRAD_INLINE static void accumulate(u32 tap, LineCount lines, Load&& load, Store&& store) {
    constexpr i64 kStep = Height == 1 ? 1 : S;  // stride of the height
    using Routes = decltype(Routed<V>::route);
    Routes taps[Height][K];
    POOLGRAD_UNROLL
    for (i64 k = 0; k < Height * K; ++k)
      taps[k / K][k % K] = Routes{} + (tap + static_cast<u32>(k));
    constexpr i64 kFirst = -((K - 1 - P) / S), kLast = (S - 1 + P) / S;  // outputs
    constexpr i64 kSums = HasRoutes ? S : kLast - kFirst + 1;
    constexpr int W = static_cast<int>(sizeof(V) / sizeof(T));
    // Of three neighbouring vectors of sums of shares, the middle one is a shuffle of the others.
    constexpr bool kShuffles = !HasRoutes && kSums == 3 && W > 1;
    V sums[Height][kSums]{};  // of each phase or, without routes, of each output
    const auto add_line = [&](i64 q) __attribute__((always_inline)) {
      POOLGRAD_UNROLL
      for (i64 output = kFirst; output <= kLast; output += kShuffles ? 2 : 1) {
        const auto from = load(q, output);
        POOLGRAD_UNROLL
        for (i64 j = 0; j < Height; ++j) {
          if constexpr (HasRoutes) {
            POOLGRAD_UNROLL
            for (i64 c = 0; c < S; ++c) {
              const i64 k = c + P - output * S;
              if (k >= 0 && k < K) sums[j][c] += from.route == taps[j][k] ? from.gradient : V{};
            }
          } else {
            V& sum = sums[j][output - kFirst];
            sum = j + kStep < Height ? sum + from : from;
          }
        }
      }
      POOLGRAD_UNROLL
      for (i64 j = 0; j < kStep; ++j) {
        V columns[S]{};
        if constexpr (kShuffles) {
          sums[j][1] = [&]<int... J>(std::integer_sequence<int, J...>) {
            return __builtin_shufflevector(sums[j][0], sums[j][2], (J + 1)..., 2 * W - 2);
          }(std::make_integer_sequence<int, W - 1>{});
        }
        POOLGRAD_UNROLL
        for (i64 c = 0; c < S; ++c) {
          if constexpr (HasRoutes) columns[c] = sums[j][c];
          POOLGRAD_UNROLL
          for (i64 output = kFirst; !HasRoutes && output <= kLast; ++output) {
            const i64 k = c + P - output * S;
            if (k >= 0 && k < K) columns[c] += sums[j][output - kFirst];
          }
        }
        store(q * kStep + j, columns);
      }
      POOLGRAD_UNROLL
      for (i64 j = 0; j < Height; ++j) {
        POOLGRAD_UNROLL
        for (i64 c = 0; c < kSums; ++c) sums[j][c] = j + kStep < Height ? sums[j + kStep][c] : V{};
      }
    };
    if constexpr (std::is_same_v<LineCount, i64>) {
      for (i64 q = 0; q < lines; ++q) add_line(q);
    } else {
      [&]<i64... Q>(std::integer_sequence<i64, Q...>) __attribute__((always_inline)) {
        (add_line(Q), ...);
      }(std::make_integer_sequence<i64, LineCount::value>{});
    }
  }

  const Plan& p_;
  const InputTile tile_;
  const bool has_channels_;
  const i64 n_, begin_;  // elements of a row; its first column, from the begin of the padding on
  const i64 max_rows_;   // rows of inputs at once
  RowWriter<T> gx_;
  const bool nontemporal_;
  i64 first_, end_;     // outputs whose windows reach the columns, also those that do not exist
  Range valid_;         // those that exist
  i64 pitch_, copied_;  // distance of copied lines; elements of all
  bool ready_ = false;
  T *gradients_, *discarded_;  // copied lines; a row of inputs that does not belong to the block
  std::uint8_t* routes_;
  u32* wide_routes_;
  T* divisors_;
  T** rows_;  // where rows of input gradients are stored
};

}  // namespace poolgrad::inline POOLGRAD_ISA
