// Wide windows of neighbouring outputs in a plane. Rows of inputs are reduced along the width, then
// along the height by the method of van Herk (1992) and of Gil and Werman (1993): rows fall into
// blocks of a window's height, so each window is the end of one block and the beginning of the
// next; with both made row by row it takes three operations, however high it is. The halves share
// no row, so the method serves sums as well.
#pragma once

#include <optional>

#include "along_width.hpp"

namespace poolgrad {
namespace {

inline constexpr i64 kMostShared = 1 << 13;   // places of windows: blocks are as large
inline constexpr i64 kSheetBytes = 1 << 19;   // of two blocks,
inline constexpr i64 kBandLength = 1 << 12;   // elements of rows that are made together,
inline constexpr i64 kGroupLength = 1 << 10;  // that are reduced along the width together

// From the first place of a window to the last.
[[maybe_unused]] inline i64 reach(const Axis& a) { return (a.kernel - 1) * a.dilation; }

// Whether that is of use. By the shape of windows alone: nothing else may decide how sums are
// rounded.
[[maybe_unused]] inline bool is_sheet(const Plan& p) {
  const Axis &depth = p.axis[0], &height = p.axis[1], &width = p.axis[2];
  const bool flat = depth.in == 1 && depth.out == 1 && depth.kernel == 1;
  return flat && height.regular() && width.regular() && is_wide(height) && height.dilation == 1 &&
         4 * height.stride <= height.kernel && width.stride == 1 &&
         height.kernel <= 2 * height.in + 64 && reach(width) <= 2 * width.out + 64 &&
         p.places <= kMostShared;
}

// Rows of outputs, `pitch` apart: not more than kMostTogether.
inline constexpr i64 kMostTogether = 8;
template <class Op>
struct Made {
  typename Op::Row row;
  i64 count, pitch;
};

// Op: load, merge and store what is known of parts of a window, lane by lane; Hasty is an Op that
// knows no NaN.
template <class Op>
class Sheet {
 public:
  using T = typename Op::In;
  using Row = typename Op::Row;

  Sheet(const Plan& plan, const View& x, const Tile& tile, const Reading<T>& how, const Op& op,
        Arena& arena)
      : p_(plan), x_(x), tile_(tile), how_(how), used_(is_sheet(plan)) {
    if (!used_) return;
    const Axis& a = plan.axis[1];
    columns_ = columns_at_a_time(op);
    pieces_ = ceil_div(tile.hi[2] - tile.lo[2], columns_);
    const i64 most = pitch_of(columns_);
    const i64 needed = ((tile.hi[1] - tile.lo[1] - 1) * a.stride + a.kernel) / a.kernel + 1;
    blocks_ = larger(1, smaller(needed, kBandLength / (a.kernel * most)) - 1);
    group_ = larger(1, kGroupLength / most);
    band_ = op.take(arena, (blocks_ + 1) * a.kernel * most);
    doubled_ = op.take(arena, group_ * most);
    raw_ = arena.take<T>(group_ * most);
    std::size_t bytes = 0;
    for (i64 k = 0; k < pieces(); ++k) {
      const Tile part = part_of(k);
      Arena measure;
      Reader<T>(plan, x, part.lo[2], part.hi[2], how, measure);
      bytes = measure.used() > bytes ? measure.used() : bytes;
    }
    scratch_ = arena.take<char>(static_cast<i64>(bytes));
  }
  Sheet(const Sheet&) = delete;
  Sheet& operator=(const Sheet&) = delete;

  bool used() const { return used_; }

  void start(const char* plane) { plane_ = plane; }

  // Rows are made piece by piece, so that blocks stay in the second cache.
  i64 pieces() const { return pieces_; }

  Tile piece(i64 k) {
    if (k != piece_) {
      piece_ = k, part_ = part_of(k);
      n_ = (part_.hi[2] - part_.lo[2]) * p_.inner, pitch_ = pitch_of(part_.hi[2] - part_.lo[2]);
      Arena arena(scratch_);
      reader_.emplace(p_, x_, part_.lo[2], part_.hi[2], how_, arena);
      const Axis& a = p_.axis[2];
      const i64 origin = part_.lo[2] - a.lo, columns = part_.hi[2] - part_.lo[2] + reach(a);
      real_.lo = smaller(columns, larger(0, -origin));
      real_.hi = larger(real_.lo, smaller(columns, a.in - origin));
      std::fill(raw_, raw_ + group_ * pitch_, Op::kFill);
    }
    reader_->start(plane_);
    first_ = -1, exact_ = !kFloat<T>;
    return part_;
  }

  // Rows of outputs of a piece from `oh` on, but not `end`; one after the other.
  Made<Op> rows(i64 oh, i64 end) {
    const Axis& a = p_.axis[1];
    const i64 start = oh * a.stride;
    if (first_ < 0 || start >= (first_ + blocks_) * a.kernel) next_band(start);
    const i64 offset = start - first_ * a.kernel, pitch = a.stride * pitch_;
    const i64 left = blocks_ * a.kernel - offset;  // rows of this band
    const i64 count = pieces_ > 1 ? 1 : smaller(smaller(end - oh, strides(left)), kMostTogether);
    const Made<Op> made{Op::at(band_, offset * pitch_), count, pitch};
    for (i64 q = 0; exact_ && q < count; ++q) {
      const Row row = Op::at(made.row, q * pitch);
      if (Op::is_suspect(row, n_)) mend(row, span_of(a, oh + q));
    }
    return made;
  }

 private:
  using Hasty = typename Op::Hasty;
  static constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

  i64 columns_at_a_time(const Op& op) const {
    const Axis& width = p_.axis[2];
    const i64 all = tile_.hi[2] - tile_.lo[2];
    Arena measure;
    (void)op.take(measure, 2 * p_.axis[1].kernel * 64);
    const i64 room = kSheetBytes / static_cast<i64>(measure.used()) * 64 / p_.inner;
    const i64 most = larger(larger(1, room - reach(width)), reach(width));
    const i64 even = ceil_div(all, ceil_div(all, most));
    return p_.inner > 1 ? even : ceil_div(even, kLine) * kLine;
  }

  // So many are needed to pass so many rows; divisions are slow, and rarely needed.
  i64 strides(i64 rows) const {
    const i64 stride = p_.axis[1].stride;
    return stride == 1 ? rows : ceil_div(rows, stride);
  }

  // From one row of a piece to the next: whole vectors.
  i64 pitch_of(i64 columns) const {
    const i64 read = smaller(columns, tile_.hi[2] - tile_.lo[2]) + reach(p_.axis[2]);
    return ceil_div(read * p_.inner, kLanes) * kLanes;
  }

  Tile part_of(i64 k) const {
    Tile part = tile_;
    part.lo[2] = tile_.lo[2] + k * columns_;
    part.hi[2] = smaller(tile_.hi[2], part.lo[2] + columns_);
    return part;
  }

  // Makes the outputs whose windows begin in the next blocks, from row `start` on.
  void next_band(i64 start) {
    const i64 rows = p_.axis[1].kernel;
    const bool anew = first_ < 0;
    if (anew) {
      first_ = start > 0 ? start / rows : 0;
    } else {  // what is known of the block after the last
      first_ += blocks_;
      const Row last = Op::at(band_, blocks_ * rows * pitch_);
      Op::fold_rows(band_, rows * pitch_, &last, 0, 0, Const<1>{}, std::true_type{});
    }
    read(anew ? 0 : rows);
    if (exact_) scan<Op>(anew ? 0 : 1);
    else scan<Hasty>(anew ? 0 : 1);
  }

  // Reads rows of inputs, reduced along the width, to all of the band from row `from` on.
  void read(i64 from) {
    const Axis& a = p_.axis[1];
    const i64 origin = first_ * a.kernel - a.lo;  // the input row that is the band's row 0
    const i64 rows = (blocks_ + 1) * a.kernel, last = (tile_.hi[1] - 1) * a.stride - a.lo;
    real_rows_.lo = smaller(rows, larger(0, -origin));
    real_rows_.hi = larger(real_rows_.lo, smaller(rows, smaller(a.in, last + a.kernel) - origin));
    for (i64 begin = larger(from, real_rows_.lo); begin < real_rows_.hi; begin += group_) {
      const i64 count = smaller(group_, real_rows_.hi - begin);
      copy(origin + begin, count);
      const Row to = Op::at(band_, begin * pitch_);
      if (exact_) along_width<Op>(to, count);
      else along_width<Hasty>(to, count);
    }
    // Blocks without an input, and what lies below the last one.
    const auto clear = [&](i64 begin, i64 end) {
      if (begin < end) Op::clear(Op::at(band_, begin * pitch_), (end - begin) * pitch_);
    };
    clear(from, real_rows_.lo < a.kernel ? 0 : real_rows_.lo / a.kernel * a.kernel);
    clear(larger(from, real_rows_.hi), smaller(rows, last - origin + 1));
  }

  // `count` rows of inputs to `raw_`, amid what never wins.
  POOLGRAD_LOOP void copy(i64 first, i64 count) {
    using V = Vec<T, kLanes>;
    const i64 inner = p_.inner, step = reader_->step(), n = (real_.hi - real_.lo) * inner;
    V seen{};
    T more{};
    for (i64 r = 0; r < count; ++r) {
      const T* from = reader_->row(0, first + r) + (part_.lo[2] - p_.axis[2].lo + real_.lo) * step;
      T* to = raw_ + r * pitch_ + real_.lo * inner;
      for (i64 k = 0; step != inner && k < n; k += inner, from += step) {
        for (i64 c = 0; c < inner; ++c) to[k + c] = from[c];
      }
      if (step != inner) from = to;
      i64 i = 0;
      for (; i + kLanes <= n; i += kLanes) {
        const V v = load<V>(from + i);
        store(to + i, v);
        if constexpr (kFloat<T>) seen += v;
      }
      for (; n >= kLanes && i < n; i = n) {  // some of them once more
        const V v = load<V>(from + n - kLanes);
        store(to + n - kLanes, v);
        if constexpr (kFloat<T>) seen += v;
      }
      for (; i < n; ++i) {
        to[i] = from[i];
        if constexpr (kFloat<T>) more += from[i];
      }
    }
    if constexpr (kFloat<T>) {
      for (int j = 0; j < kLanes; ++j) more += seen[j];
      exact_ |= more - more != T(0);
    }
  }

  template <class O>
  void along_width(Row to, i64 count) const {
    const Axis& a = p_.axis[2];
    const auto sweep = [&](Row into, i64 n, i64 gap, auto size) {
      O::sweep(into, n, raw_, Next{gap}, 0, size, std::true_type{});
    };
    double_up<O>(
        a, count * pitch_ - reach(a) * p_.inner, p_.inner, 1, doubled_, to,
        [&](i64 n) { sweep(to, n, 0, Const<1>{}); },
        [&](i64 n) { sweep(doubled_, n, a.dilation * p_.inner, Const<2>{}); });
  }

  // Row j of a block becomes what is known of the block from that row on; with what is known of
  // rows 0 ... j - 1 of the next block it becomes the output that begins there. Places are counted
  // from the first row of a block, those of outputs from the first of the window.
  template <class O>
  void scan(i64 from) const {
    i64 i = 0;
    for (; i + kLanes < n_; i += 2 * kLanes) scan_strips<O, 2>(from, i);
    if (i < n_) scan_strips<O, 1>(from, i);
  }

  // So many vectors side by side do not wait for each other.
  template <class O, int Strips>
  POOLGRAD_LOOP void scan_strips(i64 from, i64 begin) const {
    using Cell = typename O::template Cell<Vec<T, kLanes>>;
    const i64 rows = p_.axis[1].kernel, stride = p_.axis[1].stride, pitch = pitch_;
    const u32 line = static_cast<u32>(p_.axis[2].kernel);
    const auto place = [&](i64 j) { return line * static_cast<u32>(j); };
    for (i64 block = from; block <= blocks_; ++block) {
      const Row own = O::at(band_, block * rows * pitch + begin);
      const auto at = [&](i64 j, int k) { return O::at(own, j * pitch + k * kLanes); };
      const i64 lo = smaller(rows, larger(0, real_rows_.lo - block * rows));
      const i64 hi = larger(lo, smaller(rows, real_rows_.hi - block * rows));
      Cell sums[Strips]{};
      i64 known = lo;  // the next row that is not in `sums`
      const i64 passed = (first_ + block - 1) * rows;
      for (i64 j = strides(passed) * stride - passed; block > 0 && j < rows; j += stride) {
        for (; known < smaller(j, hi); ++known) {
          POOLGRAD_UNROLL
          for (int k = 0; k < Strips; ++k) {
            const Cell next = O::template load_cell<Cell>(at(known, k), place(rows + known));
            if (known == lo) sums[k] = next;
            else O::merge(sums[k], next);
          }
        }
        POOLGRAD_UNROLL
        for (int k = 0; k < Strips; ++k) {
          const Row to = at(j - rows, k);
          Cell cell = O::template load_cell<Cell>(to, 0);
          if (known > lo) O::merge(cell, sums[k]);
          O::store_cell(to, cell, place(j));
        }
      }
      for (i64 j = hi; j-- > lo;) {
        POOLGRAD_UNROLL
        for (int k = 0; k < Strips; ++k) {
          Cell cell = O::template load_cell<Cell>(at(j, k), place(j));
          if (j < hi - 1) O::merge(cell, sums[k]);
          sums[k] = cell;
          O::store_cell(at(j, k), cell, 0);
        }
      }
      for (i64 j = 0; lo < hi && j < lo; ++j) {
        for (int k = 0; k < Strips; ++k) O::store_cell(at(j, k), sums[k], 0);
      }
    }
  }

  // Where what is no input may have won: all inputs of such a window are the same.
  void mend(Row row, const Span& height) const {
    if constexpr (requires { Op::settle(row, i64{}, i64{}, i64{}); }) {
      for (i64 i = 0; i < n_; ++i) {
        const Span s = span_of(p_.axis[2], part_.lo[2] + i / p_.inner);
        Op::settle(row, i, height.place * p_.axis[2].kernel + s.place, height.taps * s.taps);
      }
    }
  }

  static constexpr i64 kLine = 64;

  const Plan& p_;
  const View& x_;
  const Tile tile_;
  const Reading<T> how_;
  const bool used_;
  // Of a piece; of a band, beside the one after; rows that are reduced along the width together.
  i64 columns_ = 1, pieces_ = 1, blocks_ = 1, group_ = 1;
  Row band_{}, doubled_{};
  T* raw_ = nullptr;
  Range real_{};             // the columns of `raw_` that are inputs
  char* scratch_ = nullptr;  // the reader's
  std::optional<Reader<T>> reader_;
  const char* plane_ = nullptr;
  Tile part_{};
  i64 piece_ = -1, n_ = 0, pitch_ = 0;  // elements of a row, and to the next
  i64 first_ = -1;                      // the band's first block
  Range real_rows_{};                   // the rows of the band that hold inputs
  bool exact_ = false;                  // there may be NaNs, or what never wins, among the inputs
};

}  // namespace
}  // namespace poolgrad
