// Register-blocked backward pass of small square windows with channels last: computes a vector of
// channels of a block of inputs, one stride wide and kSquares strides high, which lie in the same
// few windows.
#pragma once

#include "backward/tiles.hpp"
#include "forward/register_blocked.hpp"
#include "forward/row_writer.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Computes the gradients of inputs: each input adds the gradients whose route names its tap.
template <class T>
class RegisterBlockedChannelsLastBackward {
 public:
  RegisterBlockedChannelsLastBackward(const Plan& p, const InputTile& tile, Dense gx, Arena& arena)
      : p_(p),
        tile_(tile),
        columns_(larger(1, kBlockedPixelElements / (p.inner * p.axis[2].stride))),
        length_(columns_ * p.axis[2].stride * p.inner),
        gx_(gx, length_, arena),
        nontemporal_(
            gx_.choose_nontemporal(p.inner, p.outer * p.in_plane() * static_cast<i64>(sizeof(T)))),
        staged_(arena.take<T>(kSquares * p.axis[1].stride * length_)),
        zero_gradients_(arena.take<T>(p.inner)),
        rows_(arena.take<T*>(kSquares * p.axis[1].stride)) {}

  void run(const View& gy, const View& routes, i64 plane) {
    const Axis &height = p_.axis[1], &width = p_.axis[2];
    gy_ = &gy, routing_ = &routes;
    gradients_ = reinterpret_cast<const T*>(plane_of(gy, plane));
    routes_ = reinterpret_cast<const std::uint8_t*>(plane_of(routes, plane));
    std::fill(zero_gradients_, zero_gradients_ + p_.inner, T(0));
    const i64 last = floor_div(tile_.hi[1] - 1 + height.lo, height.stride);
    const i64 end = floor_div(width.in - 1 + width.lo, width.stride) + 1;
    const i64 full_lo = ceil_div(width.lo, width.stride);  // the other blocks reach beyond the row
    const i64 full_hi = floor_div(width.in + width.lo, width.stride);
    for (i64 a = floor_div(tile_.lo[1] + height.lo, height.stride); a <= last; a += kSquares) {
      for (i64 b = floor_div(width.lo, width.stride), next; b < end; b = next) {
        next = smaller(end, b + columns_);
        if (b < full_lo) next = smaller(next, full_lo);
        else if (b < full_hi) next = smaller(next, full_hi);
        const bool in_place = gx_.in_place() && b >= full_lo && next <= full_hi;
        for (i64 r = 0; r < kSquares * height.stride; ++r) {
          const i64 h = a * height.stride - height.lo + r;
          const bool in_tile = h >= tile_.lo[1] && h < tile_.hi[1];
          const i64 at = first_of(plane, h, b * width.stride - width.lo);
          rows_[r] = in_place && in_tile
                         ? gx_.reserve(at, (next - b) * width.stride * p_.inner, false)
                         : staged_ + r * length_;
        }
        by_shape(width, [&](auto kernel, auto stride) {
          compute_blocks<kernel(), stride()>(a, b, next, in_place);
        });
        if (!in_place) copy_valid(plane, a, b, next);
      }
    }
  }

 private:
  // Pointers to the channels of an output's gradient and route; to zeros and any routes outside the
  // plane of outputs.
  struct OutputChannels {
    const T* gradient;
    const std::uint8_t* route;
  };
  OutputChannels source_of(i64 oh, i64 ow) const {
    if (oh < 0 || oh >= p_.axis[1].out || ow < 0 || ow >= p_.axis[2].out)
      return {zero_gradients_, reinterpret_cast<const std::uint8_t*>(zero_gradients_)};
    return {gradients_ + oh * gy_->height + ow * gy_->width,
            routes_ + oh * routing_->height + ow * routing_->width};
  }

  i64 first_of(i64 plane, i64 h, i64 w) const {
    return plane * p_.in_plane() + (h * p_.axis[2].in + w) * p_.inner;
  }

  // Computes blocks b ... end of a row of blocks in `rows_`, in ascending order of outputs.
  // in_place: `rows_` are rows of the array.
  template <i64 K, i64 S>
  POOLGRAD_LOOP void compute_blocks(i64 a, i64 b, i64 end, bool in_place) const {
    constexpr i64 W = kVectorBytes / static_cast<i64>(sizeof(T));
    constexpr i64 kReach = (K + S - 1) / S, kRows = kSquares + kReach - 1, kHigh = kSquares * S;
    using V = Vec<T, static_cast<int>(W)>;
    using Bytes = Vec<std::uint8_t, static_cast<int>(W)>;
    const bool nontemporal = kVectorBytes % kLineBytes == 0 && in_place && nontemporal_;
    OutputChannels from[kRows][kReach];  // of outputs (a - kReach + 1, b - kReach + 1) and on
    const auto read_sources = [&](i64 column, i64 i) {
      for (i64 j = 0; j < kRows; ++j) from[j][i] = source_of(a - kReach + 1 + j, column);
    };
    for (i64 i = 1; i < kReach; ++i) read_sources(b - kReach + i, i);
    T* to[kHigh];
    std::copy(rows_, rows_ + kHigh, to);
    for (i64 at = 0; b < end; ++b, at += S * p_.inner) {
      for (i64 j = 0; j < kRows; ++j) {
        POOLGRAD_UNROLL
        for (i64 i = 0; i + 1 < kReach; ++i) from[j][i] = from[j][i + 1];
      }
      read_sources(b, kReach - 1);
      for (i64 c = 0; c < p_.inner; c += W) {
        const i64 channel = smaller(c, p_.inner - W);
        V sums[kHigh][S]{};
        POOLGRAD_UNROLL
        for (i64 j = 0; j < kRows; ++j) {
          POOLGRAD_UNROLL
          for (i64 i = 0; i < kReach; ++i) {
            const OutputChannels& output = from[j][i];
            const V gradient = load<V>(output.gradient + channel);
            const auto route = convert<WideRoute<T>>(load<Bytes>(output.route + channel));
            if (i == kReach - 1) {
              prefetch(output.gradient + channel + kPrefetchElements<T>);
              prefetch(output.route + channel + kPrefetchElements<T>);
            }
            POOLGRAD_UNROLL
            for (i64 k = 0; k < kHigh * S; ++k) {
              const i64 kh = k / S - (j - kReach + 1) * S, kw = k % S + (kReach - 1 - i) * S;
              if (kh < 0 || kh >= K || kw >= K) continue;
              sums[k / S][k % S] +=
                  route == static_cast<WideRoute<T>>(kh * K + kw) ? gradient : V{};
            }
          }
        }
        POOLGRAD_UNROLL
        for (i64 k = 0; k < kHigh * S; ++k) {
          T* result = to[k / S] + at + k % S * p_.inner + channel;
          if (nontemporal) {
            store_nontemporal(result, sums[k / S][k % S]);
          } else {
            prefetch(result + kPrefetchElements<T>);
            store(result, sums[k / S][k % S]);
          }
        }
      }
    }
  }

  // Copies the computed inputs that belong to the tile to the array.
  void copy_valid(i64 plane, i64 a, i64 b, i64 end) {
    const Axis &height = p_.axis[1], &width = p_.axis[2];
    const i64 begin = b * width.stride - width.lo;
    const i64 lo = larger(0, begin), hi = smaller(width.in, end * width.stride - width.lo);
    for (i64 r = 0; r < kSquares * height.stride; ++r) {
      const i64 h = a * height.stride - height.lo + r;
      if (h < tile_.lo[1] || h >= tile_.hi[1] || lo >= hi) continue;
      gx_.put(first_of(plane, h, lo), staged_ + r * length_ + (lo - begin) * p_.inner,
              (hi - lo) * p_.inner);
    }
  }

  static constexpr i64 kSquares = 2;

  const Plan& p_;
  const InputTile tile_;
  const i64 columns_, length_;  // blocks at a time; elements of a row of them
  RowWriter<T> gx_;
  const bool nontemporal_;
  T *staged_, *zero_gradients_;
  T** rows_;  // where rows of blocks are stored
  const View *gy_ = nullptr, *routing_ = nullptr;
  const T* gradients_ = nullptr;
  const std::uint8_t* routes_ = nullptr;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
