// Finds the inputs of a window that equal its result. With ties="split" they share the gradient:
// the residual is one bit for each tap of each window. With ties="zero" a window in which there are
// several is routed nowhere.
#pragma once

#include "geometry/partition.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Reads the inputs of the windows of a tile, and has a buffer for a row of outputs.
template <class T>
class TieRows {
 public:
  TieRows(const Plan& p, const Tile& tile, Arena& arena)
      : p_(p),
        tile_(tile),
        inputs_(arena.take<T>(p.axis[2].in * p.inner)),
        outputs_(arena.take<T>(p.out_row())),
        counts_(arena.take<T>(p.out_row())) {}

  // Calls row(od, oh, first output) for each row of outputs of a plane.
  template <class Row>
  void each_row(i64 plane, Row&& row) const {
    for (i64 od = tile_.lo[0]; od < tile_.hi[0]; ++od) {
      for (i64 oh = tile_.lo[1]; oh < tile_.hi[1]; ++oh)
        row(od, oh, plane * p_.out_plane() + p_.output_index(od, oh, tile_.lo[2]));
    }
  }

  // Calls each(output, tap, input) for the valid inputs of a row of windows; the output is counted
  // from the first one of the tile.
  template <class Each>
  void each_tap(const View& x, i64 plane, i64 od, i64 oh, Each&& each) const {
    const i64 inner = p_.inner;
    each_line(p_, od, oh, [&](i64 line, i64 d, i64 h) {
      const Axis& width = p_.axis[2];
      const T* const row = row_of(x, plane_of(x, plane), inner, d, h, 0, width.in, inputs_);
      for (i64 o = tile_.lo[2], outputs; o < tile_.hi[2]; o += outputs) {
        const bool full = inner == 1 && width.regular() && o >= width.full_lo && o < width.full_hi;
        outputs = full ? smaller(tile_.hi[2], width.full_hi) - o : 1;
        const i64 first = (o - tile_.lo[2]) * inner, n = outputs * inner;
        const i64 step = full ? width.stride : 1;
        const Span s = span_of(width, o);
        for (i64 t = 0; t < s.taps; ++t) {
          const T* const from = row + (s.begin + t * width.dilation) * inner;
          for (i64 i = 0; i < n; ++i) each(first + i, line + s.first_tap + t, from[i * step]);
        }
      }
    });
  }

  // Routes each window nowhere in which several inputs equal the result y.
  POOLGRAD_LOOP void route_ties_nowhere(const View& x, Dense y, Dense routes, i64 plane) const {
    const i64 n = length(), bytes = size_of(routes.dtype);
    each_row(plane, [&](i64 od, i64 oh, i64 first) {
      const T* const __restrict results = read(y, first, n, outputs_);
      T* const __restrict counts = counts_;
      std::fill(counts, counts + n, T(0));
      each_tap(x, plane, od, oh,
               [&](i64 output, i64, T value) { counts[output] += value == results[output]; });
      for (i64 i = 0; i < n; ++i) {
        if (counts[i] > T(1))
          std::memset(routes.data + (first + i) * bytes, 0xFF, static_cast<std::size_t>(bytes));
      }
    });
  }

  T* outputs() const { return outputs_; }
  i64 length() const { return (tile_.hi[2] - tile_.lo[2]) * p_.inner; }  // outputs of a row

  // Sets the bits of the inputs that equal the result y. positive: not of zeros (ReLU).
  void mark(const View& x, const View& y, bool positive, std::uint8_t* winners, i64 plane) const {
    const i64 bytes = p_.winner_bytes();
    each_row(plane, [&](i64 od, i64 oh, i64 first) {
      std::uint8_t* const bits = winners + first * bytes;
      const T* const best =
          row_of(y, plane_of(y, plane), p_.inner, od, oh, tile_.lo[2], tile_.hi[2], outputs_);
      std::memset(bits, 0, static_cast<std::size_t>(length() * bytes));
      each_tap(x, plane, od, oh, [&](i64 output, i64 tap, T value) {
        std::uint8_t* const window = bits + output * bytes;
        const bool nan = value != value;
        if (nan) std::memset(window, 0, static_cast<std::size_t>(bytes));  // only the last NaN wins
        if (nan || (value == best[output] && !(positive && value == T(0))))
          window[tap / 8] = static_cast<std::uint8_t>(window[tap / 8] | 1u << (tap % 8));
      });
    });
  }

 private:
  const Plan& p_;
  const Tile tile_;
  T *inputs_, *outputs_, *counts_;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
