// Computes ties="split": all inputs equal to the maximum share the gradient. The residual is one
// bit for each tap of each window.
#pragma once

#include "backward/tiles.hpp"
#include "forward/row_writer.hpp"
#include "forward/separable.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Calls each(output, tap, column) along a row, for outputs [lo, hi) and each channel; the output
// is counted from output `lo`.
template <class F>
void each_tap(const Plan& p, i64 lo, i64 hi, i64 first_tap, F&& each) {
  for (i64 o = lo; o < hi; ++o) {
    const Span s = span_of(p.axis[2], o);
    for (i64 t = 0; t < s.taps; ++t) {
      const i64 tap = first_tap + s.first_tap + t, w = s.begin + t * p.axis[2].dilation;
      for (i64 c = 0; c < p.inner; ++c) each((o - lo) * p.inner + c, tap, w * p.inner + c);
    }
  }
}

// Buffers for rows of inputs, outputs and sums.
template <class T>
struct TieRows {
  T *inputs, *outputs, *sums;
  TieRows(const Plan& p, Arena& arena)
      : inputs(arena.take<T>(p.axis[2].in * p.inner)),
        outputs(arena.take<T>(p.out_row())),
        sums(arena.take<T>(p.out_row())) {}
};

inline bool bit(const std::uint8_t* bits, i64 k) { return bits[k / 8] >> (k % 8) & 1; }

// Sets the bits of the inputs that equal the maximum. positive: no bit is set for zeros (ReLU).
template <class T>
void mark_ties(const Plan& p, const Tile& tile, const View& x, const char* inputs, const View& y,
               const char* outputs, bool positive, TieRows<T>& rows, std::uint8_t* winners) {
  const i64 bytes = p.winner_bytes(), lo = tile.lo[2], hi = tile.hi[2];
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      const T* best = row_of(y, outputs, p.inner, od, oh, lo, hi, rows.outputs);
      std::uint8_t* bits =
          winners + ((od * p.axis[1].out + oh) * p.out_row() + lo * p.inner) * bytes;
      std::memset(bits, 0, static_cast<std::size_t>((hi - lo) * p.inner * bytes));
      each_line(p, od, oh, [&](i64 line, i64 d, i64 h) {
        const T* row = row_of(x, inputs, p.inner, d, h, 0, p.axis[2].in, rows.inputs);
        each_tap(p, lo, hi, line, [&](i64 output, i64 tap, i64 at) {
          std::uint8_t* window_bits = bits + output * bytes;
          const bool nan = row[at] != row[at];
          if (nan)
            std::memset(window_bits, 0, static_cast<std::size_t>(bytes));  // only the last NaN wins
          const bool wins = row[at] == best[output] && !(positive && row[at] == T(0));
          if (nan || wins) {
            window_bits[tap / 8] =
                static_cast<std::uint8_t>(window_bits[tap / 8] | 1u << (tap % 8));
          }
        });
      });
    }
  }
}

template <class T>
T count_winners(const std::uint8_t* bits, i64 bytes) {
  i64 n = 0;
  for (i64 b = 0; b < bytes; ++b) n += __builtin_popcount(bits[b]);
  return static_cast<T>(n);
}

template <class T>
class SplitTiesBackward {
 public:
  SplitTiesBackward(const Plan& p, const InputTile& tile, Dense gx, Arena& arena)
      : p_(p),
        tile_(tile),
        outs_(reaching(p.axis[2], tile.lo[2], tile.hi[2])),
        n_((tile.hi[2] - tile.lo[2]) * p.inner),
        gx_(gx, n_, arena),
        gradients_(arena.take<T>((outs_.hi - outs_.lo) * p.inner)) {}

  void run(const View& gy, const std::uint8_t* winners, i64 plane) {
    i64 at = plane * p_.in_plane() + first_input(p_, tile_);
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

template <class T>
void split_ties_jvp(const Plan& p, const Tile& tile, const View& x, const char* tangents,
                    const std::uint8_t* winners, TieRows<T>& rows, Dense y, i64 plane) {
  const i64 bytes = p.winner_bytes(), lo = tile.lo[2], hi = tile.hi[2], n = (hi - lo) * p.inner;
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      const i64 first = (od * p.axis[1].out + oh) * p.out_row() + lo * p.inner;
      const std::uint8_t* bits = winners + first * bytes;
      std::memset(rows.sums, 0, static_cast<std::size_t>(n) * sizeof(T));
      each_line(p, od, oh, [&](i64 line, i64 d, i64 h) {
        const T* row = row_of(x, tangents, p.inner, d, h, 0, p.axis[2].in, rows.inputs);
        each_tap(p, lo, hi, line, [&](i64 output, i64 tap, i64 at) {
          if (bit(bits + output * bytes, tap)) rows.sums[output] += row[at];
        });
      });
      for (i64 i = 0; i < n; ++i) {
        const T winners_here = count_winners<T>(bits + i * bytes, bytes);
        if (winners_here > T(0)) rows.sums[i] /= winners_here;
      }
      write(y, plane + first, rows.sums, n);
    }
  }
}

}  // namespace poolgrad::inline POOLGRAD_ISA
