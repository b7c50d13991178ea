// Computes the median of windows of any form from the ranks of their inputs: a window slides along
// a row of outputs, and only the ranks that leave and enter it are erased and inserted.
#pragma once

#include "geometry/view.hpp"
#include "operators/median.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Computes tiles of outputs. The rows of a tile are divided into bands, and the inputs of a band
// are ranked at once, for each channel.
template <class A>
class SlidingRanks {
 public:
  SlidingRanks(const Plan& p, const Tile& tile, Arena& arena, const View& x, Dense y, Dense routes)
      : p_(p),
        x_(x),
        tile_(tile),
        y_(y),
        routes_(routes),
        columns_(inputs_of(p.axis[2], tile.lo[2], tile.hi[2])),
        band_rows_(larger(1, kWindowsInBand * (reach(p.axis[1]) + 1) * p.axis[1].m / p.axis[1].n)),
        most_inputs_(count_inputs()),
        ranking_(most_inputs_, arena),
        window_(most_inputs_, arena),
        lines_(arena.take<i64>(smaller(p.axis[0].kernel, p.axis[0].in) *
                               smaller(p.axis[1].kernel, p.axis[1].in))),
        values_(arena.take<A>(tile.hi[2] - tile.lo[2])),
        taps_(arena.take<u32>(tile.hi[2] - tile.lo[2])) {}

  void run(i64 plane) {
    each_band([&](i64 od, i64 lo, i64 hi) {
      for (i64 c = 0; c < p_.inner; ++c) {
        const i64 n = rank_inputs(plane, c);
        for (i64 oh = lo; oh < hi; ++oh) {
          slide(od, oh, n);
          write_row(plane * p_.out_plane() + p_.output_index(od, oh, tile_.lo[2]) + c);
        }
      }
    });
  }

 private:
  // Inputs are ranked again for each band, together with those above and below it.
  static constexpr i64 kWindowsInBand = 3;

  // Calls each(od, lo, hi) for bands of output rows lo ... hi; depths_ and heights_ are then the
  // inputs of the band.
  template <class Each>
  void each_band(Each&& each) {
    for (i64 od = tile_.lo[0]; od < tile_.hi[0]; ++od) {
      for (i64 lo = tile_.lo[1], hi; lo < tile_.hi[1]; lo = hi) {
        hi = smaller(tile_.hi[1], lo + band_rows_);
        depths_ = inputs_of(p_.axis[0], od, od + 1);
        heights_ = inputs_of(p_.axis[1], lo, hi);
        each(od, lo, hi);
      }
    }
  }
  i64 band_inputs() const {
    return (depths_.hi - depths_.lo) * (heights_.hi - heights_.lo) * (columns_.hi - columns_.lo);
  }
  i64 count_inputs() {
    i64 most = 1;
    each_band([&](i64, i64, i64) { most = larger(most, band_inputs()); });
    return most;
  }

  // Ranks the inputs of a band in one channel and returns their number.
  POOLGRAD_LOOP i64 rank_inputs(i64 plane, i64 channel) {
    const char* inputs = plane_of(x_, plane) + channel * x_.inner * size_of(x_.dtype);
    A* to = ranking_.values;
    const i64 n = columns_.hi - columns_.lo;
    for (i64 d = depths_.lo; d < depths_.hi; ++d) {
      for (i64 h = heights_.lo; h < heights_.hi; ++h, to += n) {
        const A* row = row_of(x_, inputs, 1, d, h, columns_.lo, columns_.hi, to);
        if (row != to) std::copy(row, row + n, to);
      }
    }
    ranking_.rank(band_inputs());
    return band_inputs();
  }

  // Computes the values and the taps of a row of outputs. n: inputs of the band
  POOLGRAD_LOOP void slide(i64 od, i64 oh, i64 n) {
    const Axis& width = p_.axis[2];
    i64 lines = 0, nans = 0;
    each_line(p_, od, oh, [&](i64, i64 d, i64 h) {
      lines_[lines++] = ((d - depths_.lo) * (heights_.hi - heights_.lo) + h - heights_.lo) *
                            (columns_.hi - columns_.lo) -
                        columns_.lo;
    });
    window_.clear(n);
    const auto each_rank = [&](const Span& s, i64 first, i64 end, auto&& each) {
      for (i64 t = first; t < end; ++t) {
        for (i64 line = 0; line < lines; ++line)
          each(static_cast<i64>(ranking_.ranks[lines_[line] + s.begin + t * width.dilation]));
      }
    };
    Span before{};
    for (i64 o = tile_.lo[2]; o < tile_.hi[2]; ++o) {
      const Span s = span_of(width, o);
      const i64 step = s.begin - before.begin;
      const bool shares = before.taps > 0 && s.taps > 0 && step % width.dilation == 0;
      const i64 leaving = shares ? smaller(before.taps, step / width.dilation) : before.taps;
      each_rank(before, 0, leaving, [&](i64 rank) {
        window_.erase(rank);
        nans -= rank >= ranking_.first_nan();
      });
      each_rank(s, before.taps - leaving, s.taps, [&](i64 rank) {
        window_.insert(rank);
        nans += rank >= ranking_.first_nan();
      });
      before = s;
      select(od, oh, o, lines * s.taps, nans);
    }
  }

  // Selects the lower of the two middle values, of the first of equal inputs; a NaN before any
  // number, of the last NaN.
  void select(i64 od, i64 oh, i64 o, i64 inputs, i64 nans) {
    const i64 output = o - tile_.lo[2];
    if (inputs == 0) {  // the windows of a stored program have not been validated
      values_[output] = A(0);
      taps_[output] = kNowhere;
      return;
    }
    i64 rank = window_.select(nans ? inputs - 1 : (inputs - 1) / 2);
    if (!nans) rank = window_.at_least(ranking_.first_equal(rank));
    const i64 position = ranking_.position(rank);
    values_[output] = ranking_.values[position];
    if (!routes_.data) return;
    const i64 columns = columns_.hi - columns_.lo, rows = heights_.hi - heights_.lo;
    const i64 line = position / columns;
    const auto tap = [&](int axis, i64 at, i64 input) {
      return tap_of(p_.axis[axis], span_of(p_.axis[axis], at), input);
    };
    const i64 d = tap(0, od, depths_.lo + line / rows), h = tap(1, oh, heights_.lo + line % rows);
    taps_[output] = static_cast<u32>((d * p_.axis[1].kernel + h) * p_.axis[2].kernel +
                                     tap(2, o, columns_.lo + position % columns));
  }

  // Writes the row of one channel; first: the index of its first output.
  void write_row(i64 first) {
    const i64 outputs = tile_.hi[2] - tile_.lo[2], n = p_.inner == 1 ? outputs : 1;
    for (i64 o = 0; o < outputs; o += n) {
      write(y_, first + o * p_.inner, values_ + o, n);
      if (routes_.data) write(routes_, first + o * p_.inner, taps_ + o, n);
    }
  }

  const Plan& p_;
  const View& x_;
  const Tile tile_;
  const Dense y_, routes_;
  const Range columns_;  // inputs of the tile
  const i64 band_rows_;  // rows of outputs in a band
  Range depths_{}, heights_{};
  i64 most_inputs_;  // of a band
  Ranking<A> ranking_;
  RankSet window_;
  i64* lines_;  // where the lines of a window begin among the inputs of the band, less columns_.lo
  A* values_;
  u32* taps_;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
