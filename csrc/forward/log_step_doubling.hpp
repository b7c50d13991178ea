// Reduces rows of inputs along the width: tap by tap, or by log-step doubling, in registers or in
// memory.
#pragma once

#include <type_traits>

#include "choose.hpp"
#include "forward/row_reader.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Whether the size of a group is a compile-time constant of the loops over it. Operators without
// specialised algorithms are compiled for any size.
template <class Op>
inline constexpr bool kHasFixedGroupSizes =
    kSpecialised<typename Op::In> && !requires { requires Op::kAnySize; };
template <class Op, i64 N>
constexpr auto group_size() {
  if constexpr (kHasFixedGroupSizes<Op>) return Const<N>{};
  else return N;
}
template <class Op, bool First>
constexpr auto is_first() {
  if constexpr (kHasFixedGroupSizes<Op>) return std::bool_constant<First>{};
  else return First;
}

// Divides `taps` inputs into groups and calls fold(size, whether it is the first group, its first
// tap) for each.
template <class Op, class F>
void in_groups(i64 taps, F&& fold) {
  if constexpr (!kHasFixedGroupSizes<Op>) {
    for (i64 begin = 0; begin < taps; begin += kMaxFolded)
      fold(smaller(taps - begin, kMaxFolded), begin == 0, begin);
    return;
  }
  const auto sized = [&](auto first, i64 begin, i64 size) {
    switch (size) {
      case 1:
        return fold(Const<1>{}, first, begin);
      case 2:
        return fold(Const<2>{}, first, begin);
      case 3:
        return fold(Const<3>{}, first, begin);
      default:
        return fold(Const<4>{}, first, begin);
    }
  };
  sized(std::true_type{}, 0, smaller(taps, kMaxFolded));
  for (i64 begin = kMaxFolded; begin < taps; begin += kMaxFolded) {
    sized(std::false_type{}, begin, smaller(taps - begin, kMaxFolded));
  }
}

// Computes `outputs` windows of neighbours, `step` elements apart, by log-step doubling: from
// reductions of 2, 4, 8, ... neighbours.
template <class Op>
void double_up(const Axis& a, const typename Op::In* from, i64 outputs, i64 step,
               typename Op::Row doubled, typename Op::Row to) {
  const i64 gap = a.dilation * step, read = outputs + (a.kernel - 1) * gap;
  i64 done = 0;  // inputs of each window that are reduced in `to`
  i64 size = 1;  // inputs that are reduced in each element of `doubled`
  if (a.kernel == 1 || (!Op::kIdempotent && a.kernel % 2)) {
    Op::fold_inputs(to, outputs, from, 1, 0, 1, 0), done = 1;
  }
  while (2 * size <= a.kernel) {
    const i64 half = size, n = read - (2 * size - 1) * gap;
    size *= 2;
    if (size == 2) {
      Op::fold_inputs(doubled, n, from, 1, gap, 2, 0);
    } else {  // in place: elements are read at or after the one that is written
      const typename Op::Row halves[2] = {doubled, Op::at(doubled, half * gap)};
      Op::fold_rows(doubled, n, halves, 0, half, group_size<Op, 2>(), is_first<Op, true>());
    }
    if (Op::kIdempotent && 2 * size > a.kernel) {  // two reductions, which may overlap
      const i64 rest = a.kernel - size;
      const typename Op::Row both[2] = {doubled, Op::at(doubled, rest * gap)};
      Op::fold_rows(to, outputs, both, 0, rest, group_size<Op, 2>(), is_first<Op, true>());
    }
    if (Op::kIdempotent || !(a.kernel & size)) continue;
    const typename Op::Row more = Op::at(doubled, done * gap);
    if (done == 0)
      Op::fold_rows(to, outputs, &more, 0, 0, group_size<Op, 1>(), is_first<Op, true>());
    else Op::fold_rows(to, outputs, &more, done, 0, group_size<Op, 1>(), is_first<Op, false>());
    done += size;
  }
}

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

template <class Op>
class WidthReduction {
 public:
  using T = typename Op::In;
  using Row = typename Op::Row;

  POOLGRAD_LOOP WidthReduction(const Plan& plan, const View& x, const Tile& tile,
                               ReadOptions<T> options, const Op& op, Arena& arena)
      : p_(plan),
        tile_(tile),
        reader_(plan, x, tile.lo[2], tile.hi[2], reading(plan, options), arena),
        step_(reader_.step()),
        doubles_(Op::kDoubles && shares_much(plan.axis[2]) && plan.axis[2].regular() &&
                 step_ == plan.inner && has_little_padding(plan.axis[2])),
        doubled_(doubles_ ? op.take(arena, columns_read() * plan.inner) : Row{}),
        spaced_(doubles_ && plan.axis[2].stride > 1 ? op.take(arena, columns_read() * plan.inner)
                                                    : Row{}) {}

  void start(const char* plane) { reader_.start(plane); }

  // Reduces input row (d, h) into one row of outputs.
  void row(i64 d, i64 h, Row into) { reduce(reader_.row(d, h), into); }

 private:
  static ReadOptions<T> reading(const Plan& p, ReadOptions<T> options) {
    const bool doubles = Op::kDoubles && shares_much(p.axis[2]);
    if constexpr (Op::kDoubles) options.pad = doubles, options.fill = Op::kFill;
    options.pack = !Op::kIdempotent && (p.inner == 1 || doubles);
    return options;
  }

  void reduce(const T* row, Row into) {
    const Axis& a = p_.axis[2];
    const i64 inner = p_.inner, lo = tile_.lo[2], hi = tile_.hi[2];
    const i64 full_lo = larger(lo, smaller(hi, a.full_lo));
    const i64 full_hi = larger(full_lo, smaller(hi, a.full_hi));
    const i64 gap = a.dilation * step_;
    const bool all = doubles_ && reader_.padded();
    const auto edge = [&](i64 o) {
      const Span s = span_of(a, o);
      const Row at = Op::at(into, (o - lo) * inner);
      if (s.taps == 0) return Op::clear(at, inner);
      Op::fold_inputs(at, inner, row + s.begin * step_, 1, gap, s.taps, s.first_tap);
    };
    const i64 first = all ? lo : full_lo, count = all ? hi - lo : full_hi - full_lo;
    if (count > 0) {
      const T* from = row + (first * a.stride - a.lo) * step_;
      if (!a.regular()) from = row + span_of(a, first).begin * step_;
      const Row at = Op::at(into, (first - lo) * inner);
      if (doubles_) {
        if constexpr (Op::kDoubles) double_up(from, count, at);
      } else if (inner == 1 &&
                 (gap > 1 || a.kernel < kTapsAcrossLanes || 2 * a.stride < a.kernel)) {
        Op::fold_inputs(at, count, from, a.stride * step_, gap, a.kernel, 0, a.m == 1);
      } else if (a.stride == 1 && step_ == inner) {
        Op::fold_inputs(at, count * inner, from, 1, gap, a.kernel, 0);
      } else {
        for (i64 o = 0; o < count; ++o) {
          Op::fold_inputs(Op::at(at, o * inner), inner, from + o * a.stride * step_, 1, gap,
                          a.kernel, 0);
        }
      }
    }
    const auto edges = [&](i64 begin, i64 end) {
      if constexpr (Op::kDoubles) {  // computed above, unless an output may be the padding
        const Row reduced = Op::at(into, (begin - lo) * inner);
        if (all && !Op::may_be_padding(reduced, (end - begin) * inner)) return;
      }
      for (i64 o = begin; o < end; ++o) edge(o);
    };
    edges(lo, full_lo);
    edges(full_hi, hi);
  }

  i64 columns_read() const { return covered_length(p_.axis[2], tile_.hi[2] - tile_.lo[2]); }

  // Computes full windows of neighbours along a row.
  void double_up(const T* from, i64 count, Row into) {
    const Axis& a = p_.axis[2];
    const i64 inner = p_.inner;
    const Row to = a.stride > 1 ? spaced_ : into;
    poolgrad::double_up<Op>(a, from, ((count - 1) * a.stride + 1) * inner, inner, doubled_, to);
    for (i64 o = 0; a.stride > 1 && o < count; ++o) {
      const Row window = Op::at(to, o * a.stride * inner);
      Op::fold_rows(Op::at(into, o * inner), inner, &window, 0, 0, group_size<Op, 1>(),
                    is_first<Op, true>());
    }
  }

  const Plan& p_;
  const Tile tile_;
  Reader<T> reader_;
  const i64 step_;
  const bool doubles_;
  Row doubled_, spaced_;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
