// Reduces rows along the width in registers: log-step doubling over neighbouring columns, and van
// Herk/Gil-Werman over pixels with channels last.
#pragma once

#include "base/dtype.hpp"
#include "simd/vector.hpp"

namespace poolgrad {
namespace {

// Log-step doubling in registers: partial reductions of 1, 2, 4, ... neighbours. A row is read
// once, from its last vector to its first; lanes slide in from the vector after.
template <class Op>
class LogStepDoubling {
 public:
  using T = typename Op::In;
  static constexpr int W = kVectorBytes / static_cast<int>(sizeof(T));
  using V = Vec<T, W>;

  explicit LogStepDoubling(i64 kernel) : kernel_(kernel) {
    while (2 * size_ <= kernel) size_ *= 2;
  }

  // Whether the reductions that a window needs are few enough for the registers.
  bool fits() const { return size_ >= 1 << kFirstLevel && size_ <= 2 * W; }

  // Calls visit(line, i, partial, lanes) for outputs i, i + 1, ... of some rows, `pitch` apart,
  // from the last vector of each row to its first, and visit.next(line) after each row. `line`
  // describes the first row.
  template <class Visitor>
  void reduce_rows(const T* from, i64 pitch, i64 rows, i64 outputs, const Visitor& visit,
                   typename Visitor::Line line) const {
    by_level<kFirstLevel>(from, pitch, rows, outputs, visit, line);
  }

 private:
  static constexpr int kFirstLevel = 2;  // windows narrower than 4 are rarely tall enough for this
  using Partial = typename Op::template Partial<V>;

  template <int Level, class Visitor>
  void by_level(const T* from, i64 pitch, i64 rows, i64 outputs, const Visitor& visit,
                typename Visitor::Line line) const {
    if (size_ == i64{1} << Level)
      return reduce_with_levels<Level>(from, pitch, rows, outputs, visit, line);
    if constexpr (1 << Level < 2 * W) by_level<Level + 1>(from, pitch, rows, outputs, visit, line);
  }

  template <int Levels, class Visitor>
  POOLGRAD_LOOP void reduce_with_levels(const T* from, i64 pitch, i64 rows, i64 outputs,
                                        const Visitor& original,
                                        typename Visitor::Line line) const {
    const i64 kernel = kernel_, read = outputs + kernel - 1;
    const Visitor visit = original;  // in registers
    Partial next[Levels + 1]{}, after{};
    const auto vector = [&](i64 i, V input, i64 lanes) __attribute__((always_inline)) {
      Partial doubled = Op::begin(input), sum = doubled;
      [&]<int... L>(std::integer_sequence<int, L...>) __attribute__((always_inline)) {
        (step<L, L == Levels>(kernel, doubled, next[L], after, sum), ...);
      }(std::make_integer_sequence<int, Levels + 1>{});
      if (lanes > 0) visit(line, i, sum, lanes);
    };
    for (i64 row = 0; row < rows; ++row, from += pitch) {
      i64 i = (read - 1) / W * W;
      for (; i >= 0 && i + W > outputs; i -= W) {
        vector(i, load_first<V>(from + i, read - i), outputs - i);
      }
      for (; i >= 0; i -= W) vector(i, load<V>(from + i), W);
      visit.next(line);
    }
  }

  // Doubles the partial reductions of 2^L neighbours and adds what the windows need of them to
  // `sum`. next, after: partial reductions of the two following vectors.
  template <int L, bool kLast>
  POOLGRAD_INLINE static void step(i64 kernel, Partial& doubled, Partial& next, Partial& after,
                                   Partial& sum) {
    constexpr int size = 1 << L;
    const Partial here = doubled;
    const auto apart = [&](i64 by) __attribute__((always_inline)) {
      const auto slid = [](i64 lanes) {
        return [lanes](auto a, auto b) { return slide(a, b, lanes); };
      };
      if (size > W && by > W) return Op::each(next, after, slid(by - W));
      return Op::each(here, next, slid(by));
    };
    if constexpr (Op::kIdempotent) {
      if constexpr (kLast) {  // merges two reductions, which may overlap
        const i64 rest = smaller(size, kernel - size);
        sum = here;
        Op::merge(sum, apart(rest), static_cast<u32>(rest));
      }
    } else if (kernel & size) {
      const i64 before = kernel & (size - 1);
      if (before == 0) sum = here;
      else Op::merge(sum, apart(before), static_cast<u32>(before));
    }
    if constexpr (!kLast) {
      const auto more = Op::each(here, next, [](auto a, auto b) { return slide<size>(a, b); });
      Op::merge(doubled, more, static_cast<u32>(size));
    }
    if constexpr (size > W) after = next;
    next = here;
  }

  const i64 kernel_;
  i64 size_ = 1;
};

// Van Herk/Gil-Werman along rows of pixels, a vector of channels each, in blocks of a window's
// width: calls visit(line, i, partial, lanes) for each pixel. ends: memory for the suffixes of a
// block.
template <class Op, class Visitor>
POOLGRAD_LOOP void van_herk_along_pixels(const Axis& a, const typename Op::In* from, i64 pitch,
                                         i64 rows, i64 columns, i64 lanes, typename Op::Row ends,
                                         const Visitor& original, typename Visitor::Line line) {
  using T = typename Op::In;
  constexpr i64 W = kVectorBytes / static_cast<i64>(sizeof(T));
  using Partial = typename Op::template Partial<Vec<T, W>>;
  const i64 kernel = a.kernel, dilation = a.dilation, gap = dilation * W;
  const Visitor visit = original;  // in registers
  const auto part = [&](i64 begin) __attribute__((always_inline)) {
    const T* block = from + begin * W;
    const auto input = [&](i64 j) __attribute__((always_inline)) {
      return Op::begin(load<Vec<T, W>>(block + j * gap), static_cast<u32>(j));
    };
    Partial sum = input(kernel - 1);
    Op::store_partial(Op::at(ends, (kernel - 1) * W), sum, 0, W);
    for (i64 j = kernel - 1; j-- > 0;) {  // the suffix of the block from j on
      Partial partial = input(j);
      Op::merge(partial, sum);
      Op::store_partial(Op::at(ends, j * W), sum = partial, 0, W);
    }
    visit(line, begin * W, sum, lanes);
    const i64 windows = smaller(kernel, ceil_div(columns - begin, dilation));
    for (i64 j = 1; j < windows; ++j) {  // completes the window that begins with j
      const Partial next = input(kernel + j - 1);
      if (j == 1) sum = next;
      else Op::merge(sum, next);
      Partial partial = Op::template load_partial<Partial>(Op::at(ends, j * W), 0);
      Op::merge(partial, sum);
      visit(line, begin * W + j * gap, Op::shifted_back(partial, static_cast<u32>(j)), lanes);
    }
  };
  for (i64 r = 0; r < rows; ++r, from += pitch, visit.next(line)) {
    for (i64 first = 0; first < smaller(dilation, columns); ++first) {
      for (i64 begin = first; begin < columns; begin += kernel * dilation) part(begin);
    }
  }
}

}  // namespace
}  // namespace poolgrad
