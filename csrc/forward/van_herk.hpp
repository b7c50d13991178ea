// Reduces rows along the height or the depth. Where windows share many rows, by the van
// Herk/Gil-Werman method (van Herk 1992; Gil & Werman 1993): rows are divided into blocks of a
// window's height, so each window is a suffix of one block and a prefix of the next. Both are
// computed row by row, so the cost is three operations for any height. Suffix and prefix share no
// row, so the method is exact for sums, too.
#pragma once

#include "forward/log_step_doubling.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

template <class Op>
class AxisReduction {
 public:
  using Row = typename Op::Row;

  // A row consists of `lines` lines of n elements. taps_per_row: taps of a window in one row.
  POOLGRAD_LOOP AxisReduction(const Axis& a, i64 lines, i64 n, i64 taps_per_row, Arena& arena)
      : a_(a),
        lines_(lines),
        n_(n),
        taps_per_row_(taps_per_row),
        by_blocks_(shares_much(a) && a.regular() && reach(a) <= 2 * a.n + 64),
        slots_(by_blocks_  ? a.kernel * a.dilation
               : a.overlap ? smaller(reach(a) + 1, a.in)
                           : kMaxFolded),
        rows_(Op::take(arena, slots_ * lines * n)),
        prefixes_(Op::take(arena, by_blocks_ ? a.dilation * lines * n : 0)),
        blocks_(arena.take<Block>(by_blocks_ ? a.dilation : 0)),
        keys_(arena.take<i64>(by_blocks_ ? 0 : slots_)) {}

  void start() {
    for (i64 k = 0; by_blocks_ && k < a_.dilation; ++k) blocks_[k] = {-1, 0, {}, {}};
    for (i64 k = 0; !by_blocks_ && k < slots_; ++k) keys_[k] = -1;
  }

  // Reduces the rows of output `o` into a row. Outputs are computed in ascending order.
  // compute_row(index, target) computes an input row.
  template <class ComputeRow>
  void row(i64 o, Row into, ComputeRow&& compute_row) {
    if (by_blocks_) reduce_blocks(o, into, compute_row);
    else reduce_directly(o, into, compute_row);
  }

 private:
  // Rows of one phase (index modulo the dilation), in blocks of a window's height. Row j of the
  // block that is stored holds the suffix of the block from j on; rows of the next block replace
  // those whose windows are complete.
  struct Block {
    i64 index;          // of the block that is stored
    i64 read;           // rows of the next block that are stored
    Range valid, next;  // rows of the block and of the next that are inputs, not padding
  };

  Row at(Row rows, i64 row) const { return Op::at(rows, row * lines_ * n_); }

  void fold(Row to, const Row* rows, i64 tap, i64 taps_apart, i64 size, bool first) const {
    for (i64 line = 0; line < lines_; ++line) {
      Row from[kMaxFolded];
      for (i64 t = 0; t < size; ++t) from[t] = Op::at(rows[t], line * n_);
      Op::fold_rows(Op::at(to, line * n_), n_, from, tap, taps_apart, size, first);
    }
  }

  void clear(Row row) const {
    for (i64 line = 0; line < lines_; ++line) Op::clear(Op::at(row, line * n_), n_);
  }

  // Reduces all rows of a window. Rows that windows share are kept.
  template <class ComputeRow>
  void reduce_directly(i64 o, Row into, ComputeRow& compute_row) {
    const Span s = span_of(a_, o);
    if (s.taps == 0) return clear(into);
    if (s.taps == 1 && s.first_tap == 0 && !a_.overlap) return compute_row(s.begin, into);
    in_groups(s.taps, [&](i64 size, i64 begin) {
      Row rows[kMaxFolded];
      for (i64 t = 0; t < size; ++t) {
        const i64 index = s.begin + (begin + t) * a_.dilation;
        const i64 slot = a_.overlap ? index % slots_ : t;
        rows[t] = at(rows_, slot);
        if (a_.overlap && keys_[slot] == index) continue;
        compute_row(index, rows[t]);
        keys_[slot] = index;
      }
      fold(into, rows, (s.first_tap + begin) * taps_per_row_, taps_per_row_, size, begin == 0);
    });
  }

  template <class ComputeRow>
  void reduce_blocks(i64 o, Row into, ComputeRow& compute_row) {
    const i64 kernel = a_.kernel, dilation = a_.dilation, start = (a_.first + o) * a_.stride;
    const i64 phase = start % dilation, index = start / dilation / kernel;
    const i64 j = start / dilation % kernel;  // the first row of the window in its block
    const auto row_at = [&](i64 row) { return at(rows_, row * dilation + phase); };
    const auto input_of = [&](i64 block, i64 row) {  // its index along the axis
      return (block * kernel + row) * dilation + phase - a_.first * a_.stride - a_.lo;
    };
    const auto valid_rows = [&](i64 block) {
      const i64 first = input_of(block, 0);
      const i64 lo = smaller(kernel, larger(0, ceil_div(-first, dilation)));
      return Range{lo, larger(lo, smaller(kernel, ceil_div(a_.in - first, dilation)))};
    };
    Block& block = blocks_[phase];
    if (block.index != index) {
      const Range valid = valid_rows(index);
      i64 row = larger(valid.lo, block.index == index - 1 ? larger(j, block.read) : j);
      for (; row < valid.hi; ++row) compute_row(input_of(index, row), row_at(row));
      for (row = valid.hi - 1; row-- > larger(valid.lo, j);) {
        const Row both[2] = {row_at(row), row_at(row + 1)};
        fold(both[0], both, 0, taps_per_row_, 2, true);
      }
      block = {index, 0, valid, valid_rows(index + 1)};
    }
    const Range valid = block.valid, next = block.next;
    const Row prefix = at(prefixes_, phase);
    for (; block.read < j; ++block.read) {
      const i64 row = block.read;
      if (row < next.lo || row >= next.hi) continue;
      const Row added = row_at(row);
      compute_row(input_of(index + 1, row), added);
      const i64 tap = row * taps_per_row_;
      fold(prefix, &added, tap, 0, 1, row == next.lo);
    }
    const i64 suffix = larger(valid.lo, j);
    const i64 tap = (suffix - j) * taps_per_row_, prefix_tap = (kernel - j) * taps_per_row_;
    const bool has_prefix = next.lo < smaller(j, next.hi);
    const Row both[2] = {row_at(suffix), prefix};
    if (suffix < valid.hi && has_prefix) {
      fold(into, both, tap, prefix_tap - tap, 2, true);
    } else if (suffix < valid.hi) {
      fold(into, both, tap, 0, 1, true);
    } else if (has_prefix) {
      fold(into, both + 1, prefix_tap, 0, 1, true);
    } else {
      clear(into);
    }
  }

  const Axis& a_;
  const i64 lines_, n_, taps_per_row_;
  const bool by_blocks_;
  const i64 slots_;  // rows that are stored
  const Row rows_, prefixes_;
  Block* const blocks_;
  i64* const keys_;  // the indices of the rows that are stored
};

}  // namespace poolgrad::inline POOLGRAD_ISA
