// Reads rows of inputs as numbers of one type; copies only where dtype, strides or padding require
// it.
#pragma once

#include <algorithm>
#include <array>

#include "base/scratch.hpp"
#include "geometry/view.hpp"
#include "operators/divisor.hpp"
#include "simd/prefetch.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Flips bits of n numbers, so that their maximum is the right input: for a minimum the signs of
// floats and of two-byte floats, or all bits of integers; the sign of int8, which is then compared
// as uint8. The same flips restore the numbers. Not for flips = 0.
template <class A>
POOLGRAD_LOOP void flip(const A* from, A* to, i64 n, i64 flips) {
  lanes<A>(n, [&](auto w, i64 i) {
    using V = Vec<A, w()>;
    const V value = load<V>(from + i);
    if constexpr (kFloat<A>) store(to + i, -value);
    else store(to + i, value ^ (V{} + static_cast<A>(flips)));
  });
}

// Copies columns [lo, hi) of row (d, h) of a plane without channels.
template <class A>
POOLGRAD_INLINE void copy_row(const View& x, const char* plane, i64 d, i64 h, i64 lo, i64 hi,
                              i64 flips, A* to) {
  const i64 n = hi - lo;
  if (!flips && x.dtype == DtypeOf<A>::value && x.width == 1 &&
      !x.row_columns) {  // the common case
    return copy_run(reinterpret_cast<const A*>(plane) + d * x.depth + h * x.height + lo, to, n);
  }
  const A* from = row_of(x, plane, 1, d, h, lo, hi, to);
  if (flips) flip(from, to, n, flips);
  else if (from != to) std::copy(from, from + n, to);
}

// Whether padding is narrow enough to be copied together with the row.
inline bool has_little_padding(const Axis& a) {
  return !a.regular() || (a.m - 1) * a.stride + reach(a) < 2 * a.n + 64;
}

// Options of a Reader.
template <class A>
struct ReadOptions {
  i64 flips = 0;                // bits to flip
  bool pad = false;             // add narrow padding to copied rows
  A fill{};                     // value of the padding
  i64 depths = 1, heights = 1;  // neighbouring rows that are kept in the buffer
  bool pack = false;  // copy rows with gaps between columns: the order of sums then depends on the
                      // shape only
  const Plan* windows = nullptr;  // divide each input by the divisor of its window
  Divisor divisor{};
  std::array<Dense, 2> outputs{};  // prefetched while rows are reduced along the width
};

// Reads input rows as numbers of type A; copies a row only if it must be converted or padded.
template <class A>
class Reader {
 public:
  POOLGRAD_LOOP Reader(const Plan& p, const View& x, i64 lo, i64 hi, const ReadOptions<A>& options,
                       Arena& arena)
      : x_(x),
        options_(options),
        inner_(p.inner),
        rows_(p.axis[1].in),
        direct_(!options.flips && !options.windows && x.dtype == DtypeOf<A>::value &&
                (p.inner == 1 || x.inner == 1) && !x.row_columns &&
                !(options.pack && x.width != p.inner)) {
    const Axis& a = p.axis[2];
    const Range inputs = inputs_of(a, lo, hi);
    from_ = lo_ = inputs.lo, to_ = hi_ = inputs.hi;
    const i64 begin = start_of(a, lo), end = begin + covered_length(a, hi - lo);
    padded_ = options.pad && a.regular() && (begin < lo_ || end > hi_) && has_little_padding(a);
    if (padded_) from_ = smaller(lo_, begin), to_ = larger(hi_, end);  // windows of padding alone
    direct_ &= !padded_;
    length_ = (to_ - from_) * p.inner;
    // Short rows that follow each other are converted together, in a ring buffer so large that rows
    // that are read ahead do not replace those of the window.
    constexpr i64 kShort = 256, kTogether = 4;
    const bool joins = is_convertible() && p.inner == 1 && x.height == length_ && length_ <= kShort;
    run_ = joins && options.heights > 1 ? kTogether : 1;
    depth_mask_ = power_of_two(options.depths) - 1;
    height_mask_ = power_of_two(options.heights + run_ - 1) - 1;
    slots_ = (depth_mask_ + 1) * (height_mask_ + 1);
    bytes_ = (hi_ - lo_) * (p.inner > 1 ? p.inner : x.width) * size_of(x.dtype);
    if (direct_) return;
    if (options.windows) divisors_ = arena.take<A>((hi_ - lo_) * p.inner);
    buffers_ = arena.take<A>(slots_ * length_);
    cached_ = arena.take<CachedRow>(slots_);
  }

  i64 step() const { return direct_ ? x_.width : inner_; }  // from one column to the next
  bool padded() const { return padded_; }
  bool direct() const { return direct_; }  // rows are not copied

  // Whether only dtype or bits change and columns follow each other. Rows that do, too, are then
  // read as one row.
  bool is_convertible() const {
    return !direct_ && !padded_ && !options_.windows && !x_.row_columns && x_.width == 1;
  }
  // Returns `columns` columns from (d, h, lo) on: a pointer into the array, or a copy in `to`.
  const A* convert(const char* plane, i64 d, i64 h, i64 lo, i64 columns, A* to) const {
    const A* from = row_of(x_, plane, inner_, d, h, lo, lo + columns, to);
    if (!options_.flips) return from;
    flip(from, to, columns * inner_, options_.flips);
    return to;
  }

  void start(const char* plane) {
    plane_ = plane;
    for (i64& prefetched : prefetched_) prefetched = -1;
    for (i64 k = 0; !direct_ && k < slots_; ++k) cached_[k].key = -1;
    if (options_.windows && !std::exchange(has_divisors_, true))
      options_.divisor.fill_row(options_.windows->axis[2], inner_, lo_, hi_, divisors_);
  }

  const A* at(i64 d, i64 h) const {  // requires direct()
    return reinterpret_cast<const A*>(plane_) + d * x_.depth + h * x_.height;
  }
  // Row (d, h); the pointer is to column 0.
  const A* row(i64 d, i64 h) {
    const i64 key = d * rows_ + h;
    i64& prefetched = prefetched_[d & 3];
    if (key > prefetched) {
      prefetched = key;
      const i64 at = (d * x_.depth + h * x_.height + lo_ * x_.width) * size_of(x_.dtype);
      prefetch(plane_ + at + kPrefetchBytes, bytes_);
    }
    if (direct_) return at(d, h);
    const i64 slot = (d & depth_mask_) * (height_mask_ + 1) + (h & height_mask_);
    if (cached_[slot].key != key) {
      const i64 count = smaller(run_ - h % run_, rows_ - h);
      const A* row = read(d, h, count, buffers_ + slot * length_);
      for (i64 k = 0; k < count; ++k) cached_[slot + k] = {key + k, row + k * length_};
    }
    return cached_[slot].row;
  }

 private:
  struct CachedRow {
    i64 key;
    const A* row;
  };

  // Reads `count` rows from (d, h) on.
  POOLGRAD_INLINE const A* read(i64 d, i64 h, i64 count, A* buffer) const {
    const i64 columns = (hi_ - lo_) * count, n = columns * inner_;
    A* valid = buffer + (lo_ - from_) * inner_;
    const A* from = n > 0 ? convert(plane_, d, h, lo_, columns, valid) : valid;
    if constexpr (kFloat<A>) {
      if (options_.windows) {
        const A rows = static_cast<A>(options_.divisor.of_rows(*options_.windows, d, h));
        divide_row(from, divisors_, rows, valid, n);
        from = valid;
      }
    }
    if (padded_) {
      if (from != valid) std::memcpy(valid, from, static_cast<std::size_t>(n) * sizeof(A));
      std::fill(buffer, valid, options_.fill);
      std::fill(valid + n, buffer + length_, options_.fill);
      from = valid;
    }
    return from - lo_ * inner_;
  }

  const View& x_;
  const ReadOptions<A> options_;
  i64 inner_, lo_, hi_, from_, to_, rows_, length_, run_, depth_mask_, height_mask_, slots_;
  bool direct_, padded_ = false, has_divisors_ = false;
  const char* plane_ = nullptr;
  i64 bytes_, prefetched_[4];  // of a row; the last prefetched row of each of four depths
  A *buffers_ = nullptr, *divisors_ = nullptr;
  CachedRow* cached_ = nullptr;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
