// Reduces rows along the height or the depth. Where windows share many rows, by the van
// Herk/Gil-Werman method (van Herk 1992; Gil & Werman 1993): rows are divided into blocks of a
// window's height, so each window is a suffix of one block and a prefix of the next. Both are
// computed in registers, down a column of rows, so the cost is three operations for any height.
// Suffix and prefix share no row, so the method is exact for sums, too.
#pragma once

#include "forward/log_step_doubling.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

template <class Op>
class AxisReduction {
 public:
  using Row = typename Op::Row;

  // For outputs before `end`. A row consists of n elements; whole vectors, if windows share many
  // rows. taps_per_row: taps of a window in one row.
  POOLGRAD_LOOP AxisReduction(const Axis& a, i64 end, i64 n, i64 taps_per_row, Arena& arena)
      : a_(a),
        last_input_((end - 1) * a.stride - a.lo + reach(a)),
        n_(n),
        taps_per_row_(taps_per_row),
        by_blocks_(shares_much(a) && a.regular() && reach(a) <= 2 * a.n + 64),
        slots_(by_blocks_  ? 2 * a.kernel * a.dilation
               : a.overlap ? smaller(reach(a) + 1, a.in)
                           : kMaxFolded),
        rows_(Op::take(arena, slots_ * n)),
        keys_(arena.take<i64>(by_blocks_ ? a.dilation : slots_)) {}

  void start() { std::fill(keys_, keys_ + (by_blocks_ ? a_.dilation : slots_), kNone); }

  // Reduces the rows of output `o` and returns where the result is: in `into`, or in a buffer.
  // Outputs are computed in ascending order. compute_row(index, target) computes an input row.
  template <class ComputeRow>
  Row row(i64 o, Row into, ComputeRow&& compute_row) {
    const Span s = span_of(a_, o);
    if (s.taps > 0 && by_blocks_) return reduce_blocks(o, compute_row);
    if (s.taps > 0) reduce_directly(s, into, compute_row);
    else Op::clear(into, n_);
    return into;
  }

 private:
  static constexpr i64 W = kLanesOf<typename Op::In>, kNone = -2;

  Row at(i64 slot) const { return Op::at(rows_, slot * n_); }

  // Reduces all rows of a window. Rows that windows share are kept.
  template <class ComputeRow>
  void reduce_directly(const Span& s, Row into, ComputeRow& compute_row) {
    if (s.taps == 1 && s.first_tap == 0 && !a_.overlap) return compute_row(s.begin, into);
    in_groups(s.taps, [&](i64 size, i64 begin) {
      Row rows[kMaxFolded];
      for (i64 t = 0; t < size; ++t) {
        const i64 index = s.begin + (begin + t) * a_.dilation;
        const i64 slot = a_.overlap ? index % slots_ : t;
        rows[t] = at(slot);
        if (a_.overlap && keys_[slot] == index) continue;
        compute_row(index, rows[t]);
        keys_[slot] = index;
      }
      const i64 tap = (s.first_tap + begin) * taps_per_row_;
      Op::fold_rows(into, n_, rows, tap, taps_per_row_, size, begin == 0);
    });
  }

  // Rows of one phase (index modulo the dilation) are divided into blocks of a window's height.
  // keys_[phase] is the block whose windows are reduced: its row j holds the window that begins
  // there. The rows of the next block that these windows hold are kept.
  template <class ComputeRow>
  Row reduce_blocks(i64 o, ComputeRow& compute_row) {
    const i64 kernel = a_.kernel, dilation = a_.dilation, start = (a_.first + o) * a_.stride;
    const i64 phase = start % dilation, block = start / dilation / kernel;
    const i64 j = start / dilation % kernel;
    const auto row_at = [&](i64 index, i64 row) {
      return at((index % 2 * kernel + row) * dilation + phase);
    };
    i64& key = keys_[phase];
    if (key == block) return row_at(block, j);
    const auto input_of = [&](i64 index, i64 row) {
      return (index * kernel + row) * dilation + phase - a_.first * a_.stride - a_.lo;
    };
    const auto inputs = [&](i64 index) {  // the rows of a block that are inputs
      const i64 first = input_of(index, 0), end = smaller(a_.in, last_input_ + 1);
      const i64 lo = smaller(kernel, larger(0, ceil_div(-first, dilation)));
      return Range{lo, larger(lo, smaller(kernel, ceil_div(end - first, dilation)))};
    };
    const auto compute = [&](i64 index, i64 begin, i64 end) {
      for (i64 row = begin; row < end; ++row) compute_row(input_of(index, row), row_at(index, row));
    };
    Range rows = inputs(block), next = inputs(block + 1);
    rows.lo = larger(rows.lo, j), next.hi = smaller(next.hi, kernel - 1);
    compute(block, key == block - 1 ? larger(rows.lo, kernel - 1) : rows.lo, rows.hi);
    compute(block + 1, next.lo, next.hi);
    const i64 end = ceil_div(last_input_ + 1 - reach(a_) - input_of(block, 0), dilation);
    reduce_windows(row_at(block, 0), row_at(block + 1, 0), rows, next, {j, smaller(kernel, end)});
    key = block;
    return row_at(block, j);
  }

  // Reduces the windows that begin with some rows of a block, in place.
  POOLGRAD_LOOP void reduce_windows(Row block, Row next, Range rows, Range added,
                                    Range windows) const {
    const i64 kernel = a_.kernel, pitch = a_.dilation * n_, taps_per_row = taps_per_row_;
    const auto taps = [&](i64 count) { return static_cast<u32>(count * taps_per_row); };  // of rows
    const auto columns = [&](auto count, i64 i) {  // some vectors, to hide the latency
      using Part = typename Op::template Part<Vec<typename Op::In, static_cast<int>(W)>>;
      constexpr i64 kCount = count();
      Part sums[kCount]{};  // suffixes, then prefixes
      const auto extend = [&](auto first, i64 row) __attribute__((always_inline)) {
        POOLGRAD_UNROLL
        for (i64 k = 0; k < kCount; ++k) {
          const i64 at = row * pitch + i + k * W;
          Part part = Op::template get<Part>(block, at, 0);
          if (!first) Op::merge(part, sums[k], taps(1)), Op::put(block, at, part);
          sums[k] = part;
        }
      };
      if (rows.lo < rows.hi) extend(std::true_type{}, rows.hi - 1);
      for (i64 row = rows.hi - 2; row >= rows.lo; --row) extend(std::false_type{}, row);
      // inner: the window consists of a suffix and of a prefix of several rows
      const auto reduce = [&](auto inner, i64 row) __attribute__((always_inline)) {
        const i64 read = row - 1, suffix = larger(row, rows.lo);
        POOLGRAD_UNROLL
        for (i64 k = 0; k < kCount; ++k) {
          const i64 at = i + k * W;
          if (inner || (read >= added.lo && read < added.hi)) {
            const Part part = Op::template get<Part>(next, read * pitch + at, taps(read));
            if (!inner && read == added.lo) sums[k] = part;
            else Op::merge(sums[k], part, 0);
          }
          Part whole = sums[k];
          if (inner || suffix < rows.hi) {
            whole = Op::template get<Part>(block, suffix * pitch + at, taps(suffix - row));
            if (inner || added.lo < smaller(row, added.hi))
              Op::merge(whole, sums[k], taps(kernel - row));
          } else {
            whole.r += taps(kernel - row);
          }
          if (inner || row >= windows.lo) Op::put(block, row * pitch + at, whole);
        }
      };
      const i64 inner_lo = smaller(windows.hi, larger(windows.lo, added.lo + 2));
      const i64 inner_hi =
          rows.lo < rows.hi ? smaller(windows.hi, smaller(rows.hi, added.hi + 1)) : 0;
      for (i64 row = smaller(windows.lo, added.lo + 1); row < windows.hi; ++row) {
        for (; row >= inner_lo && row < inner_hi; ++row) reduce(std::true_type{}, row);
        if (row < windows.hi) reduce(std::false_type{}, row);
      }
    };
    i64 i = 0;
    for (; kSpecialised<typename Op::In> && i + 4 * W <= n_; i += 4 * W) columns(Const<4>{}, i);
    for (; i < n_; i += W) columns(Const<1>{}, i);
  }

  const Axis& a_;
  const i64 last_input_;  // of all windows
  const i64 n_, taps_per_row_;
  const bool by_blocks_;
  const i64 slots_;  // rows that are stored
  const Row rows_;
  i64* const keys_;  // the indices of the rows that are stored, or of the blocks
};

}  // namespace poolgrad::inline POOLGRAD_ISA
