// Reduces rows along the height or the depth. Where windows share many rows, by the van
// Herk/Gil-Werman method (van Herk 1992; Gil & Werman 1993): rows are divided into blocks of a
// window's height, so each window is a suffix of one block and a prefix of the next. Both are
// computed in registers, down a column of rows, so the cost is three operations for any height.
// Suffix and prefix share no row, so the method is exact for sums, too.
#pragma once

#include "forward/log_step_doubling.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Rows of consecutive outputs, `pitch` elements apart.
template <class Row>
struct ReducedRows {
  Row first;
  i64 count = 1, pitch = 0;
};

template <class Op>
class AxisReduction {
 public:
  using Row = typename Op::Row;

  // For outputs before `end`. A row consists of n elements; whole vectors, if windows share many
  // rows. pitch: elements from one row to the next; at_once: the most rows that are computed at a
  // time; taps_per_row: taps of a window in one row.
  POOLGRAD_LOOP AxisReduction(const Axis& a, i64 end, i64 n, i64 pitch, i64 at_once,
                              i64 taps_per_row, Arena& arena)
      : a_(a),
        end_(smaller(end, (a.in - 1 + a.lo) / a.stride + 1)),
        last_input_((end - 1) * a.stride - a.lo + reach(a)),
        n_(n),
        pitch_(pitch),
        at_once_(a.dilation == 1 ? at_once : 1),
        taps_per_row_(taps_per_row),
        by_blocks_(shares_much(a) && a.regular() && reach(a) <= 2 * a.n + 64),
        slots_(by_blocks_  ? 2 * a.kernel * a.dilation
               : a.overlap ? smaller(reach(a) + 1, a.in)
                           : kMaxFolded),
        rows_(Op::take(arena, slots_ * pitch)),
        keys_(arena.take<i64>(by_blocks_ ? a.dilation : slots_)) {}

  void start() { std::fill(keys_, keys_ + (by_blocks_ ? a_.dilation : slots_), kNone); }

  // Reduces the rows of output `o`, maybe also those of later outputs, and returns where the
  // results are: in `into`, or in a buffer. Outputs are computed in ascending order.
  // compute_rows(first, count, target) computes input rows.
  template <class ComputeRows>
  ReducedRows<Row> row(i64 o, Row into, ComputeRows&& compute_rows) {
    const Span s = span_of(a_, o);
    if (s.taps > 0 && by_blocks_) return reduce_blocks(o, compute_rows);
    if (s.taps > 0) reduce_directly(s, into, compute_rows);
    else Op::clear(into, n_);
    return {into};
  }

 private:
  static constexpr i64 W = kLanesOf<typename Op::In>, kNone = -2;

  Row at(i64 slot) const { return Op::at(rows_, slot * pitch_); }

  // Reduces all rows of a window. Rows that windows share are kept.
  template <class ComputeRows>
  void reduce_directly(const Span& s, Row into, ComputeRows& compute_rows) {
    if (s.taps == 1 && s.first_tap == 0 && !a_.overlap) return compute_rows(s.begin, 1, into);
    in_groups(s.taps, [&](i64 size, i64 begin) {
      Row rows[kMaxFolded];
      for (i64 t = 0; t < size; ++t) {
        const i64 index = s.begin + (begin + t) * a_.dilation;
        const i64 slot = a_.overlap ? index % slots_ : t;
        rows[t] = at(slot);
        if (a_.overlap && keys_[slot] == index) continue;
        compute_rows(index, 1, rows[t]);
        keys_[slot] = index;
      }
      const i64 tap = (s.first_tap + begin) * taps_per_row_;
      Op::fold_rows(into, n_, rows, tap, taps_per_row_, size, begin == 0);
    });
  }

  // Rows of one phase (index modulo the dilation) are divided into blocks of a window's height.
  // keys_[phase] is the block whose windows are reduced: its row j holds the window that begins
  // there. The rows of the next block that these windows hold are kept.
  template <class ComputeRows>
  ReducedRows<Row> reduce_blocks(i64 o, ComputeRows& compute_rows) {
    const i64 kernel = a_.kernel, dilation = a_.dilation, start = (a_.first + o) * a_.stride;
    const i64 phase = start % dilation, block = start / dilation / kernel;
    const i64 j = start / dilation % kernel;
    const auto row_at = [&](i64 index, i64 row) {
      return at((index % 2 * kernel + row) * dilation + phase);
    };
    i64& key = keys_[phase];
    // With the windows of later outputs that begin in this block, if they follow each other.
    const i64 ready = dilation == 1 ? smaller(end_ - o, ceil_div(kernel - j, a_.stride)) : 1;
    const ReducedRows<Row> reduced{row_at(block, j), ready, a_.stride * pitch_};
    if (key == block) return reduced;
    const auto input_of = [&](i64 index, i64 row) {
      return (index * kernel + row) * dilation + phase - a_.first * a_.stride - a_.lo;
    };
    const auto inputs = [&](i64 index) {  // the rows of a block that are inputs
      const i64 first = input_of(index, 0), end = smaller(a_.in, last_input_ + 1);
      const i64 lo = smaller(kernel, larger(0, ceil_div(-first, dilation)));
      return Range{lo, larger(lo, smaller(kernel, ceil_div(end - first, dilation)))};
    };
    const auto compute = [&](i64 index, i64 begin, i64 end) {
      for (i64 row = begin; row < end; row += at_once_)
        compute_rows(input_of(index, row), smaller(at_once_, end - row), row_at(index, row));
    };
    Range rows = inputs(block), next = inputs(block + 1);
    rows.lo = larger(rows.lo, j), next.hi = smaller(next.hi, kernel - 1);
    compute(block, key == block - 1 ? larger(rows.lo, kernel - 1) : rows.lo, rows.hi);
    compute(block + 1, next.lo, next.hi);
    const i64 end = ceil_div(last_input_ + 1 - reach(a_) - input_of(block, 0), dilation);
    reduce_windows(row_at(block, 0), row_at(block + 1, 0), rows, next, {j, smaller(kernel, end)});
    key = block;
    return reduced;
  }

  // Reduces the windows that begin with some rows of a block, in place.
  POOLGRAD_LOOP void reduce_windows(Row block, Row next, Range rows, Range added,
                                    Range windows) const {
    const i64 kernel = a_.kernel, pitch = a_.dilation * pitch_, taps_per_row = taps_per_row_;
    const auto taps = [&](i64 count) { return static_cast<u32>(count * taps_per_row); };  // of rows
    const bool has_suffix = rows.lo < rows.hi;
    const auto columns = [&](auto count, i64 i) {  // some vectors, to hide the latency
      using Part = typename Op::template Part<Vec<typename Op::In, static_cast<int>(W)>>;
      constexpr i64 kCount = count();
      Part sums[kCount]{};  // suffixes, then prefixes
      for (i64 row = rows.hi - 1; has_suffix && row >= windows.lo; --row) {
        POOLGRAD_UNROLL
        for (i64 k = 0; k < kCount; ++k) {
          const i64 at = row * pitch + i + k * W;
          Part part = sums[k];
          part.r += taps(1);
          if (row >= rows.lo) part = Op::template get<Part>(block, at, 0);
          if (row >= rows.lo && row < rows.hi - 1) Op::merge(part, sums[k], taps(1));
          Op::put(block, at, sums[k] = part);
        }
      }
      for (i64 row = added.lo + 1; row < windows.hi; ++row) {
        const i64 read = row - 1;
        POOLGRAD_UNROLL
        for (i64 k = 0; k < kCount; ++k) {
          const i64 at = i + k * W;
          if (read < added.hi) {
            const Part part = Op::template get<Part>(next, read * pitch + at, taps(read));
            if (read == added.lo) sums[k] = part;
            else Op::merge(sums[k], part, 0);
          }
          if (row < windows.lo) continue;
          Part whole = sums[k];
          whole.r += taps(kernel - row);
          if (has_suffix) {
            whole = Op::template get<Part>(block, row * pitch + at, 0);
            Op::merge(whole, sums[k], taps(kernel - row));
          }
          Op::put(block, row * pitch + at, whole);
        }
      }
    };
    if (added.lo == added.hi) windows.hi = 0;  // the suffixes are the windows
    i64 i = 0;
    // Fewer where elements are large: the vectors of two blocks should fit into the first cache.
    constexpr i64 kAtOnce = smaller(4, 16 / Op::kElementBytes);
    for (; kSpecialised<typename Op::In> && i + kAtOnce * W <= n_; i += kAtOnce * W)
      columns(Const<kAtOnce>{}, i);
    for (; i < n_; i += W) columns(Const<1>{}, i);
  }

  const Axis& a_;
  const i64 end_;         // no output from here on has a window that holds an input
  const i64 last_input_;  // of all windows
  const i64 n_, pitch_, at_once_, taps_per_row_;
  const bool by_blocks_;
  const i64 slots_;  // rows that are stored
  const Row rows_;
  i64* const keys_;  // the indices of the rows that are stored, or of the blocks
};

}  // namespace poolgrad::inline POOLGRAD_ISA
