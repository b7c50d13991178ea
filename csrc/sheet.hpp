// Rows reduced along the height together: as many as fit into the cache are made one below the
// other, and every doubling goes over all of them in one sweep.
#pragma once

#include "along_width.hpp"

namespace poolgrad {
namespace {

inline constexpr i64 kSheetBytes = 1 << 19;

template <class Op>
class Sheet {
 public:
  using Row = typename Op::Row;

  Sheet(const Plan& plan, const Tile& tile, Width<Op>& width, const Op& op, Arena& arena)
      : p_(plan),
        tile_(tile),
        width_(width),
        n_((tile.hi[2] - tile.lo[2]) * plan.inner),
        band_(rows_of_outputs(op)),
        sheet_(band_ ? op.take(arena, rows_read(band_) * n_) : Row{}),
        reduced_(band_ ? op.take(arena, rows_apart(band_) * n_) : Row{}) {}

  // Whether it is of use: one row at a time may be no worse, or all that there is room for.
  bool used() const { return band_ > 0; }

  void start() { lo_ = hi_ = 0; }

  // Row `oh` of outputs; one after the other.
  Row row(i64 oh) {
    const Axis& a = p_.axis[1];
    if (oh < lo_ || oh >= hi_) {
      lo_ = oh, hi_ = smaller(tile_.hi[1], oh + band_);
      fill();
    }
    const Row made = Op::at(reduced_, (oh - lo_) * a.stride * n_);
    const Span s = span_of(a, oh);
    if (s.taps < a.kernel && Op::is_suspect(made, n_)) mend(made, s);
    return made;
  }

 private:
  i64 rows_of_outputs(const Op& op) const {
    const Axis &depth = p_.axis[0], &height = p_.axis[1];
    const bool flat = depth.in == 1 && depth.out == 1 && depth.kernel == 1;
    if (!Op::kDoubles || !flat || !is_wide(height) || !height.regular() ||
        4 * height.stride > height.kernel) {
      return 0;
    }
    Arena measure;
    (void)op.take(measure, 1024);
    const i64 room = kSheetBytes * 1024 / static_cast<i64>(measure.used()) / n_;
    const i64 all = tile_.hi[1] - tile_.lo[1], reach = (height.kernel - 1) * height.dilation;
    const i64 band = smaller(all, (room - reach) / (2 * height.stride));
    return band == all || 2 * band * height.stride >= reach ? larger(0, band) : 0;
  }

  // Rows from the first to the last window's first, and to the last window's last.
  i64 rows_apart(i64 outputs) const { return (outputs - 1) * p_.axis[1].stride + 1; }
  i64 rows_read(i64 outputs) const {
    return rows_apart(outputs) + (p_.axis[1].kernel - 1) * p_.axis[1].dilation;
  }

  void fill() {
    const Axis& a = p_.axis[1];
    const i64 rows = rows_read(hi_ - lo_), first = lo_ * a.stride - a.lo;
    for (i64 r = 0; r < rows; ++r) {
      const Row at = Op::at(sheet_, r * n_);
      if (first + r >= 0 && first + r < a.in) width_.row(0, first + r, at);
      else Op::clear(at, n_);
    }
    const i64 below = p_.axis[2].kernel;
    double_up<Op>(
        a, rows_apart(hi_ - lo_) * n_, n_, below, sheet_, reduced_,
        [&](i64 n) { Op::fold_rows(reduced_, n, &sheet_, 0, 0, Const<1>{}, std::true_type{}); },
        [&](i64 n) {
          const Row halves[2] = {sheet_, Op::at(sheet_, a.dilation * n_)};
          Op::fold_rows(sheet_, n, halves, 0, below, Const<2>{}, std::true_type{});
        });
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
  Width<Op>& width_;
  const i64 n_, band_;  // elements of a row; rows of outputs that are made together
  Row sheet_, reduced_;
  i64 lo_ = 0, hi_ = 0;  // those that are made
};

}  // namespace
}  // namespace poolgrad
