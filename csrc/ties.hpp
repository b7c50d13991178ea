// ties="split": all inputs equal to the maximum share the gradient. What is kept is one bit a
// place, "this one won": still no input. These loops visit every place of every window; the usual
// rules of ties do not come here.
#pragma once

#include "backward.hpp"
#include "separable.hpp"

namespace poolgrad {
namespace {

// Calls each(output element, its window's bits) over a tile; windows(od, oh, o) come before.
template <class F>
void each_output(const Plan& p, const Tile& tile, F&& each) {
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      for (i64 o = tile.lo[2]; o < tile.hi[2]; ++o) {
        const i64 first = (od * p.axis[1].out + oh) * p.out_row() + o * p.inner;
        for (i64 c = 0; c < p.inner; ++c) each(od, oh, o, c, first + c);
      }
    }
  }
}

// Calls each(place, d, h, w) for the real inputs of one window, in row-major order.
template <class F>
void each_place(const Plan& p, i64 od, i64 oh, i64 o, F&& each) {
  const Axis &depth = p.axis[0], &height = p.axis[1], &width = p.axis[2];
  const Span sd = span_of(depth, od), sh = span_of(height, oh), sw = span_of(width, o);
  for (i64 i = 0; i < sd.taps; ++i) {
    for (i64 j = 0; j < sh.taps; ++j) {
      const i64 row = ((sd.place + i) * height.kernel + sh.place + j) * width.kernel + sw.place;
      for (i64 k = 0; k < sw.taps; ++k) {
        each(row + k, sd.begin + i * depth.dilation, sh.begin + j * height.dilation,
             sw.begin + k * width.dilation);
      }
    }
  }
}

[[maybe_unused]] inline bool bit(const std::uint8_t* bits, i64 k) {
  return bits[k / 8] >> (k % 8) & 1;
}

template <class T>
void mark_winners(const Plan& p, const Tile& tile, const View& x, const T* inputs, const T* y,
                  std::uint8_t* winners) {
  const i64 bytes = p.winner_bytes();
  each_output(p, tile, [&](i64 od, i64 oh, i64 o, i64 c, i64 element) {
    std::uint8_t* bits = winners + element * bytes;
    std::memset(bits, 0, static_cast<std::size_t>(bytes));
    const T best = y[element];
    i64 last_nan = -1;
    each_place(p, od, oh, o, [&](i64 place, i64 d, i64 h, i64 w) {
      const T value = inputs[d * x.depth + h * x.height + w * x.width + c * x.inner];
      if (value == best) bits[place / 8] |= static_cast<std::uint8_t>(1u << (place % 8));
      if (value != value) last_nan = place;
    });
    if (last_nan >= 0) bits[last_nan / 8] = static_cast<std::uint8_t>(1u << (last_nan % 8));
  });
}

template <class T>
T count_winners(const std::uint8_t* bits, i64 bytes) {
  i64 n = 0;
  for (i64 b = 0; b < bytes; ++b) n += __builtin_popcount(bits[b]);
  return static_cast<T>(n);
}

template <class T>
void share_gradients(const Plan& p, const Piece& piece, const View& gy, const T* gradients,
                     const std::uint8_t* winners, T* plane) {
  const i64 bytes = p.winner_bytes();
  const Range outs = {covering(p.axis[2], piece.lo[2]).lo, covering(p.axis[2], piece.hi[2] - 1).hi};
  ZeroAhead<T> zeroed(p, piece, plane);
  rows_reaching(p, piece, [&](i64 od, i64 oh) {
    zeroed.reach(od, oh);
    const Tile row = {{od, oh, outs.lo}, {od + 1, oh + 1, outs.hi}};
    each_output(p, row, [&](i64, i64, i64 o, i64 c, i64 element) {
      const std::uint8_t* bits = winners + element * bytes;
      const T share = gradients[od * gy.depth + oh * gy.height + o * gy.width + c * gy.inner] /
                      count_winners<T>(bits, bytes);
      each_place(p, od, oh, o, [&](i64 place, i64 d, i64 h, i64 w) {
        const i64 at = ((d * p.axis[1].in + h) * p.axis[2].in + w) * p.inner + c;
        if (bit(bits, place) && at >= zeroed.first() && at < zeroed.last()) plane[at] += share;
      });
    });
  });
  zeroed.finish();
}

template <class T>
void follow_winners(const Plan& p, const Tile& tile, const View& x, const T* tangents,
                    const std::uint8_t* winners, T* y) {
  const i64 bytes = p.winner_bytes();
  each_output(p, tile, [&](i64 od, i64 oh, i64 o, i64 c, i64 element) {
    const std::uint8_t* bits = winners + element * bytes;
    T sum = T(0);
    each_place(p, od, oh, o, [&](i64 place, i64 d, i64 h, i64 w) {
      if (!bit(bits, place)) return;
      sum += tangents[d * x.depth + h * x.height + w * x.width + c * x.inner];
    });
    const T n = count_winners<T>(bits, bytes);
    y[element] = n > T(0) ? sum / n : T(0);
  });
}

}  // namespace
}  // namespace poolgrad
