// Joined rows, for narrow planes: the outputs of several rows are computed as one long row. If both
// strides are s, and rows of inputs and of outputs lie `pitch` apart, the window of output (oh, ow)
// begins at input s * (oh * pitch + ow): it is output oh * pitch + ow of the long row. The values
// between two rows are meaningless.
#pragma once

#include "forward/unrolled.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

inline constexpr i64 kJoinedOutputs = 2048;  // outputs of joined rows, gaps included
inline constexpr int kCopyLanes = 16;        // elements that are copied at a time

// Copies rows that lie `pitch` apart to contiguous rows. A vector may overrun a row into the next
// one; the source has kCopyLanes spare elements after its last row.
template <int W, class T>
POOLGRAD_LOOP void copy_rows_by(const T* from, i64 pitch, T* to, i64 rows, i64 n) {
  const T* end = to + rows * n;
  for (i64 row = 0; row < rows; ++row, from += pitch, to += n) {
    for (i64 i = 0; i < n; i += W) {
      if constexpr (sizeof(T) * W >= 64) prefetch(to + i + kPrefetchElements<T>);
      if (to + i + W <= end) store(to + i, load<Vec<T, W>>(from + i));
      else std::copy(from + i, from + n, to + i);
    }
  }
}
template <class T>
void copy_rows(const T* from, i64 pitch, T* to, i64 rows, i64 n) {
  if (n <= kCopyLanes / 4) copy_rows_by<kCopyLanes / 4>(from, pitch, to, rows, n);
  else copy_rows_by<kCopyLanes>(from, pitch, to, rows, n);
}

// Whether rows can be joined: outputs that equal the padding are found afterwards.
template <class Op>
concept Joins = requires { Op::kWithRoutes; };

template <class Op>
class JoinedRows {
 public:
  using T = typename Op::In;
  using Target = typename Op::Target;

  JoinedRows(const Plan& plan, const View& x, const Tile& tile, bool used, i64 flips, Arena& arena)
      : p_(plan),
        x_(x),
        flips_(flips),
        in_place_(!flips && is_unpadded(plan.axis[1]) && is_unpadded(plan.axis[2]) &&
                  x.dtype == DtypeOf<T>::value && x.width == 1 && !x.row_columns &&
                  x.height == plan.axis[2].in),
        used_(used),
        pitch_(in_place_ ? plan.axis[2].in : covered_length(plan.axis[2], plan.axis[2].out)),
        max_rows_(smaller(tile.hi[1] - tile.lo[1], larger(1, kJoinedOutputs / pitch_))),
        padded_copy_(arena.take<T>(
            used && !in_place_ ? covered_length(plan.axis[1], max_rows_) * pitch_ : 0)) {
    const i64 n = used ? joined_length(max_rows_) + kCopyLanes : 0;
    joined_.y = arena.take<T>(n);
    if constexpr (Op::kWithRoutes) joined_.routes = arena.take<std::uint8_t>(n);
  }

  i64 rows() const { return used_ ? max_rows_ : 0; }  // at a time; 0: none

  // Computes rows oh, oh + 1, ... Returns false if an output equals the padding: these rows must
  // be computed one by one.
  bool compute(const char* plane, i64 oh, i64 rows, Target to) {
    using Windows = Unrolled<Op>;
    const Axis &height = p_.axis[1], &width = p_.axis[2];
    const i64 first = (oh * height.stride - height.lo) * pitch_ - width.lo;
    const T* from =
        in_place_ ? reinterpret_cast<const T*>(plane) + first : copy_padded(plane, oh, rows);
    const bool paired = Windows::is_paired(width);
    i64 taps = 0;
    typename Windows::Tap list[kMaxTaps];
    for (i64 kh = 0; kh < height.kernel; ++kh) {
      for (i64 kw = 0; kw < (paired ? 1 : width.kernel); ++kw) {
        list[taps++] = {from + kh * height.dilation * pitch_ + kw * width.dilation,
                        static_cast<u32>(kh * width.kernel + kw)};
      }
    }
    Windows::reduce_row(joined_, joined_length(rows), 0, {list, taps, paired ? 1 : width.kernel},
                        width.stride, paired ? width.kernel : 0);
    for (i64 row = 0; !in_place_ && row < rows; ++row) {
      for (i64 i = 0; i < width.out; ++i) {
        if (Op::may_be_padding(joined_.at(row * pitch_), i)) return false;
      }
    }
    copy_rows(joined_.y, pitch_, to.y, rows, width.out);
    if constexpr (Op::kWithRoutes) copy_rows(joined_.routes, pitch_, to.routes, rows, width.out);
    return true;
  }

 private:
  i64 joined_length(i64 rows) const { return (rows - 1) * pitch_ + p_.axis[2].out; }

  // Copies the rows of inputs that the windows cover, `pitch` apart, with padding around them.
  POOLGRAD_LOOP const T* copy_padded(const char* plane, i64 oh, i64 rows) {
    const Axis &height = p_.axis[1], &width = p_.axis[2];
    const i64 lo = larger(0, -width.lo), hi = smaller(width.in, pitch_ - width.lo);
    const bool moves = max_rows_ < height.out;  // the position of the padding differs between calls
    if (!std::exchange(padding_filled_, true))
      std::fill(padded_copy_, padded_copy_ + covered_length(height, max_rows_) * pitch_, Op::kFill);
    for (i64 r = 0, h = oh * height.stride - height.lo; r < covered_length(height, rows);
         ++r, ++h) {
      T* row = padded_copy_ + r * pitch_;
      const bool is_input = h >= 0 && h < height.in;
      if (is_input && lo < hi) copy_row(x_, plane, 0, h, lo, hi, flips_, row + lo + width.lo);
      if (!is_input && moves) std::fill(row, row + pitch_, Op::kFill);
    }
    return padded_copy_;
  }

  const Plan& p_;
  const View& x_;
  const i64 flips_;
  const bool in_place_, used_;
  const i64 pitch_, max_rows_;
  T* padded_copy_;
  bool padding_filled_ = false;  // padded_copy_ has its padding
  Target joined_{};
};

// Takes the place of JoinedRows where rows cannot be joined.
template <class Op>
struct NoJoinedRows {
  NoJoinedRows(const Plan&, const View&, const Tile&, bool, i64, Arena&) {}
  static constexpr i64 rows() { return 0; }
  static bool compute(const char*, i64, i64, typename Op::Target) { return false; }
};

}  // namespace poolgrad::inline POOLGRAD_ISA
