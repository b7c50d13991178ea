// Register blocking with channels last: as forward/register_blocked.hpp, but a vector holds
// channels of one pixel. Computes windows that lie inside the input; unrolled windows compute the
// others.
#pragma once

#include "forward/register_blocked.hpp"
#include "forward/unrolled.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Rows of outputs that are computed at once and share lines of inputs, at stride 1. More rows would
// map to the same sets of the first-level cache; at larger strides rows share too few inputs.
inline constexpr i64 kMaxChannelsLastRows = 4;
// Elements of a row that are computed at a time.
inline constexpr i64 kBlockedPixelElements = i64{1} << 10;

template <class Op>
class RegisterBlockedChannelsLast {
 public:
  using T = typename Op::In;
  using Target = typename Op::Target;

  RegisterBlockedChannelsLast(const Plan& plan, const View& x, bool used, T fill)
      : p_(plan), x_(x), fill_(fill), used_(kCompiled && used) {}

  // Rows of outputs from `oh` on that are computed at once; 0: none.
  i64 rows(i64 oh, i64 end) const {
    const Axis& height = p_.axis[1];
    if (!used_ || oh < height.full_lo) return 0;
    return larger(0, smaller(max_rows(), smaller(end, height.full_hi) - oh));
  }
  i64 max_rows() const { return !used_ ? 0 : p_.axis[1].stride == 1 ? kMaxChannelsLastRows : 1; }

  i64 columns() const { return larger(1, kBlockedPixelElements / p_.inner); }  // at once

  // Computes columns lo ... hi of the rows, which lie `length` elements apart. Returns false if an
  // input is NaN; the outputs are then meaningless.
  bool compute_pixels(i64 oh, i64 rows, i64 lo, i64 hi, Target to, i64 length) const {
    const Axis &height = p_.axis[1], &width = p_.axis[2];
    const T* from = reinterpret_cast<const T*>(plane_) +
                    (oh * height.stride - height.lo) * x_.height +
                    (lo * width.stride - width.lo) * x_.width;
    bool computed = false;
    if constexpr (kCompiled) {
      by_shape(height, [&](auto kernel, auto stride) {
        computed = compute<kernel(), stride()>(from, to, length, hi - lo, rows);
      });
    }
    return computed;
  }

  void start(const char* plane) { plane_ = plane; }

  // Computes all columns lo ... hi: `windows` computes those that reach into the padding, and all
  // of them if an input is NaN.
  template <class WindowsOp>
  void compute_all(Unrolled<WindowsOp>& windows, i64 od, i64 oh, i64 rows, i64 lo, i64 hi,
                   typename WindowsOp::Target to, i64 length) const {
    const Axis& width = p_.axis[2];
    const i64 full_lo = larger(lo, smaller(hi, width.full_lo));
    const i64 full_hi = larger(full_lo, smaller(hi, width.full_hi));
    const auto at = [&](typename WindowsOp::Target line, i64 column) {
      return line.at((column - lo) * p_.inner);
    };
    const bool computed =
        full_lo == full_hi || compute_pixels(oh, rows, full_lo, full_hi, at(to, full_lo), length);
    for (i64 q = 0; q < rows; ++q) {
      const auto line = to.line(q, length);
      if (!computed) windows.compute_columns(od, oh + q, full_lo, full_hi, at(line, full_lo));
      if (lo < full_lo) windows.compute_columns(od, oh + q, lo, full_lo, line);
      if (full_hi < hi) windows.compute_columns(od, oh + q, full_hi, hi, at(line, full_hi));
    }
  }

 private:
  static constexpr bool kCompiled = Merges<Op> && kSpecialised<T>;

  // Returns false if an input is NaN.
  template <i64 K, i64 S>
  POOLGRAD_LOOP bool compute(const T* first, Target to, i64 length, i64 pixels, i64 rows) const {
    constexpr i64 W = kVectorBytes / static_cast<i64>(sizeof(T));
    using V = Vec<T, static_cast<int>(W)>;
    const i64 step = x_.width, pitch = x_.height;
    V nan_check{};
    for (i64 o = 0; o < pixels; ++o) {
      for (i64 c = 0; c < p_.inner; c += W) {
        const i64 channel = smaller(c, p_.inner - W), at = o * p_.inner + channel;
        const T* from = nullptr;
        reduce_columns<Op, K, S, V>(
            rows, 1, nan_check,
            [&](i64) {
              from = first + o * S * step + channel;
              return DepthSlice<typename Op::template Partial<V>>{0, nullptr, false};
            },
            [&](V* value) {
              POOLGRAD_UNROLL
              for (i64 t = 0; t < K; ++t) value[t] = load<V>(from + t * step);
              POOLGRAD_UNROLL
              for (i64 t = K - S; t < K; ++t) prefetch(from + t * step + kPrefetchElements<T>);
              from += pitch;
            },
            [] {},
            [&](i64 q, const auto& partial) {
              const auto line = to.line(q, length);
              prefetch(line.y + at + kPrefetchElements<T>);
              Op::store(line, at, partial);
            });
      }
    }
    return !Op::found_nan(nan_check, fill_);
  }

  const Plan& p_;
  const View& x_;
  const T fill_;
  const bool used_;
  const char* plane_ = nullptr;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
