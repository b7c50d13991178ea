// Gradients and tangents with ties="split": all inputs that equal the maximum share the gradient.
#pragma once

#include "backward/tiles.hpp"
#include "forward/row_writer.hpp"
#include "forward/split_ties.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

inline bool bit(const std::uint8_t* bits, i64 k) { return bits[k / 8] >> (k % 8) & 1; }

template <class T>
T count_winners(const std::uint8_t* bits, i64 bytes) {
  i64 n = 0;
  for (i64 b = 0; b < bytes; ++b) n += __builtin_popcount(bits[b]);
  return static_cast<T>(n);
}

template <class T>
class SplitTiesBackward {
 public:
  SplitTiesBackward(const Plan& p, const InputTile& tile, Arena& arena, Dense gx)
      : p_(p),
        tile_(tile),
        outs_(reaching(p.axis[2], tile.lo[2], tile.hi[2])),
        n_((tile.hi[2] - tile.lo[2]) * p.inner),
        gx_(gx, n_, arena),
        gradients_(arena.take<T>((outs_.hi - outs_.lo) * p.inner)) {}

  void run(const View& gy, const std::uint8_t* winners, i64 plane) {
    i64 at = plane * p_.in_plane() + first_input(p_, tile_);
    winners += plane * p_.out_plane() * p_.winner_bytes();
    for (i64 d = tile_.lo[0]; d < tile_.hi[0]; ++d) {
      for (i64 h = tile_.lo[1]; h < tile_.hi[1]; ++h, at += n_) {
        T* const row = gx_.reserve(at, n_);
        std::fill(row, row + n_, T(0));
        each_row_holding(p_, d, h, [&](i64 od, i64 oh, i64 tap) {
          const T* g =
              row_of(gy, plane_of(gy, plane), p_.inner, od, oh, outs_.lo, outs_.hi, gradients_);
          add_row(g, winners + p_.output_index(od, oh, outs_.lo) * p_.winner_bytes(), tap, row);
        });
      }
    }
  }

 private:
  void add_row(const T* g, const std::uint8_t* winners, i64 tap, T* row) const {
    const Axis& width = p_.axis[2];
    const i64 bytes = p_.winner_bytes(), lo = tile_.lo[2];
    each_window_part(width, outs_, lo, tile_.hi[2],
                     [&](i64 output, const Span& s, i64 first, i64 end) {
                       for (i64 t = first; t < end; ++t) {
                         T* const to = row + (s.begin + t * width.dilation - lo) * p_.inner;
                         for (i64 c = 0; c < p_.inner; ++c) {
                           const i64 i = output * p_.inner + c;
                           const std::uint8_t* bits = winners + i * bytes;
                           if (bit(bits, tap + s.first_tap + t))
                             to[c] += g[i] / count_winners<T>(bits, bytes);
                         }
                       }
                     });
  }

  const Plan& p_;
  const InputTile tile_;
  const Range outs_;  // the outputs of a row whose windows reach the tile
  const i64 n_;
  RowWriter<T> gx_;
  T* gradients_;
};

// Computes the mean of the tangents of the winners of each window.
template <class T>
void split_ties_jvp(const TieRows<T>& rows, const View& tangent, const std::uint8_t* winners,
                    i64 bytes, Dense y, i64 plane) {
  T* const sums = rows.outputs();
  const i64 n = rows.length();
  rows.each_row(plane, [&](i64 od, i64 oh, i64 first) {
    const std::uint8_t* const bits = winners + first * bytes;
    std::fill(sums, sums + n, T(0));
    rows.each_tap(tangent, plane, od, oh, [&](i64 output, i64 tap, T value) {
      if (bit(bits + output * bytes, tap)) sums[output] += value;
    });
    for (i64 i = 0; i < n; ++i) {
      const T count = count_winners<T>(bits + i * bytes, bytes);
      if (count > T(0)) sums[i] /= count;
    }
    write(y, first, sums, n);
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
