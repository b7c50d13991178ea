// Wide windows of neighbouring outputs, over as many rows as fit into the cache: these lie one
// behind the other, with what never wins between them, as one long row. Every doubling goes over
// all of it, along the width first, then along the height, which is the same a row's length apart.
#pragma once

#include "along_width.hpp"

namespace poolgrad {
namespace {

inline constexpr i64 kSheetBytes = 1 << 19;
inline constexpr i64 kBlock = 1 << 11;  // elements that are reduced along the width together

template <class Op>
class Sheet {
 public:
  using T = typename Op::In;
  using Row = typename Op::Row;

  Sheet(const Plan& plan, const View& x, const Tile& tile, const Reading<T>& how, const Op& op,
        Arena& arena)
      : p_(plan),
        tile_(tile),
        n_((tile.hi[2] - tile.lo[2]) * plan.inner),
        pitch_(n_ + reach(plan.axis[2]) * plan.inner),
        band_(rows_of_outputs(op)),
        reader_(plan, x, tile.lo[2], tile.hi[2], how, arena),
        sheet_(band_ ? op.take(arena, rows_read(band_) * pitch_) : Row{}),
        reduced_(band_ ? op.take(arena, rows_read(band_) * pitch_) : Row{}) {}

  // Whether it is of use: one row at a time may be no worse, or all that there is room for.
  bool used() const { return band_ > 0; }

  void start(const char* plane) {
    lo_ = hi_ = 0;
    reader_.start(plane);
  }

  // Row `oh` of outputs; one after the other.
  Row row(i64 oh) {
    const Axis& a = p_.axis[1];
    if (oh < lo_ || oh >= hi_) {
      lo_ = oh, hi_ = smaller(tile_.hi[1], oh + band_);
      const i64 first = lo_ * a.stride - a.lo, rows = rows_read(hi_ - lo_);
      const i64 real_lo = smaller(rows, larger(0, -first));
      const i64 real_hi = larger(real_lo, smaller(rows, a.in - first));
      along_width(first, real_lo, real_hi);
      Op::clear(reduced_, real_lo * pitch_);
      Op::clear(Op::at(reduced_, real_hi * pitch_), (rows - real_hi) * pitch_);
      along_height();
    }
    const Row made = Op::at(sheet_, (oh - lo_) * a.stride * pitch_);
    if (Op::is_suspect(made, n_)) mend(made, span_of(a, oh));
    return made;
  }

 private:
  static i64 reach(const Axis& a) { return (a.kernel - 1) * a.dilation; }

  i64 rows_of_outputs(const Op& op) const {
    const Axis &depth = p_.axis[0], &height = p_.axis[1], &width = p_.axis[2];
    const bool flat = depth.in == 1 && depth.out == 1 && depth.kernel == 1;
    if (!Op::kDoubles || !flat || !is_wide(height) || !height.regular() || !width.regular() ||
        width.stride > 1 || 4 * height.stride > height.kernel || pitch_ > 2 * n_ + kBlock) {
      return 0;
    }
    Arena measure;
    (void)op.take(measure, 1024);
    const i64 room = kSheetBytes * 512 / static_cast<i64>(measure.used()) / pitch_;
    const i64 all = tile_.hi[1] - tile_.lo[1];
    const i64 band = smaller(all, (room - reach(height)) / height.stride);
    return band == all || 2 * band * height.stride >= reach(height) ? larger(0, band) : 0;
  }

  // Rows from the first to the last window's first, and to the last window's last.
  i64 rows_apart(i64 outputs) const { return (outputs - 1) * p_.axis[1].stride + 1; }
  i64 rows_read(i64 outputs) const { return rows_apart(outputs) + reach(p_.axis[1]); }

  // Rows lo ... hi of the sheet, which are those from `first` + lo on of the input.
  void along_width(i64 first, i64 lo, i64 hi) {
    const Axis& a = p_.axis[2];
    const i64 start = tile_.lo[2] - a.lo, columns = pitch_ / p_.inner, inner = p_.inner;
    const i64 before = smaller(columns, larger(0, -start));
    const i64 after = larger(before, smaller(columns, a.in - start));
    const i64 step = reader_.step(), block = larger(1, kBlock / pitch_);
    for (i64 begin = lo, end; begin < hi; begin = end) {
      end = smaller(hi, begin + block);
      for (i64 r = begin; r < end; ++r) {
        const T* from = reader_.row(0, first + r) + (start + before) * step;
        T* to = sheet_.v + r * pitch_;
        std::fill(to, to + before * inner, Op::kFill);
        if (step == inner) {
          std::memcpy(to + before * inner, from,
                      static_cast<std::size_t>((after - before) * inner) * sizeof(T));
        } else {
          for (i64 w = before; w < after; ++w) to[w] = from[(w - before) * step];
        }
        std::fill(to + after * inner, to + pitch_, Op::kFill);
      }
      const Row in = Op::at(sheet_, begin * pitch_), to = Op::at(reduced_, begin * pitch_);
      double_up<Op>(
          a, (end - begin) * pitch_ - reach(a) * inner, inner, 1, in, to,
          [&](i64 n) { Op::fold_inputs(to, n, in.v, 1, 0, 1, 0); },
          [&](i64 n) { Op::fold_inputs(in, n, in.v, 1, a.dilation * inner, 2, 0); });
    }
  }

  void along_height() {
    const Axis& a = p_.axis[1];
    const Row halves[2] = {reduced_, Op::at(reduced_, a.dilation * pitch_)};
    const i64 below = p_.axis[2].kernel, last = reach(p_.axis[2]) * p_.inner;
    double_up<Op>(
        a, rows_apart(hi_ - lo_) * pitch_ - last, pitch_, below, reduced_, sheet_,
        [&](i64 n) { Op::fold_rows(sheet_, n, halves, 0, 0, Const<1>{}, std::true_type{}); },
        [&](i64 n) { Op::fold_rows(reduced_, n, halves, 0, below, Const<2>{}, std::true_type{}); });
  }

  // Where what is no input may have won: all inputs of such a window are the same.
  void mend(Row row, const Span& height) {
    if constexpr (requires { Op::settle(row, i64{}, i64{}, i64{}); }) {
      for (i64 i = 0; i < n_; ++i) {
        const Span s = span_of(p_.axis[2], tile_.lo[2] + i / p_.inner);
        Op::settle(row, i, height.place * p_.axis[2].kernel + s.place, height.taps * s.taps);
      }
    }
  }

  const Plan& p_;
  const Tile tile_;
  const i64 n_, pitch_, band_;  // elements; rows of outputs that are made together
  Reader<T> reader_;
  Row sheet_, reduced_;
  i64 lo_ = 0, hi_ = 0;  // the rows of outputs that are made
};

}  // namespace
}  // namespace poolgrad
