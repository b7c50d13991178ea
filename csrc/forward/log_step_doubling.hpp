// Reduces rows of inputs along the width: tap by tap or, where windows share many inputs, by
// log-step doubling, from reductions of 4, 8, 16, ... neighbours.
#pragma once

#include "choose.hpp"
#include "forward/row_reader.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Whether neighbours are doubled in registers: where one instruction slides the lanes of two
// vectors, and loads across the end of a cache line are slow.
template <class Op>
inline constexpr bool kDoublesInRegisters =
    kVectorBytes == 64 && std::is_same_v<typename Op::In, float> && !Op::kChecksNaN;

// Reduces windows of `kernel` neighbours, less than 64, at n positions. Reads a row once, from its
// last vector to its first.
template <class Op>
POOLGRAD_LOOP void double_in_registers(i64 kernel, const float* from, i64 n, typename Op::Row to) {
  constexpr i64 W = kLanesOf<float>;
  using V = Vec<float, static_cast<int>(W)>;
  using Part = typename Op::template Part<V>;
  V inputs{};                // the vector that follows, and
  Part pairs{}, later[4]{};  // its partial reductions: of 2; of 4, 8, 16 and 32 inputs
  Part beyond{};             // those of 32 inputs of the vector after it
  for (i64 i = (n + kernel - 2) / W * W; i >= 0; i -= W) {
    const V here = load<V>(from + i);
    Part part = Op::template part_of<Part>(here, 0), sum = part;
    i64 done = Op::kIdempotent ? 0 : kernel % kMaxFolded;  // inputs that `sum` holds
    POOLGRAD_UNROLL
    for (u32 t = 1; t < (Op::kIdempotent ? 2 : kMaxFolded); ++t) {
      if (done == t) sum = part;
      Op::merge(part, Op::template part_of<Part>(slide(here, inputs, t), t), 0);
    }
    inputs = here;
    if constexpr (Op::kIdempotent)
      Op::merge(part, Op::slide(part, std::exchange(pairs, part), 2), 2);
    POOLGRAD_UNROLL
    for (u32 k = 0, size = kMaxFolded; size <= kernel; ++k, size *= 2) {
      if (Op::kIdempotent ? 2 * size > kernel : (kernel & size) != 0) {
        const i64 by = Op::kIdempotent ? kernel - size : done;  // idempotent: the two may overlap
        if (Op::kIdempotent || done == 0) sum = part;
        const Part far = size > W && by >= W ? Op::slide(later[k], beyond, by - W)
                                             : Op::slide(part, later[k], by);
        if (by > 0) Op::merge(sum, far, static_cast<u32>(by));
        done += size;
      }
      if (size > W) beyond = later[k];
      Op::merge(part, Op::slide(part, std::exchange(later[k], part), size), size);
    }
    if (i < n) Op::put(to, i, sum);
  }
}

// Reduces windows of `kernel` inputs, `gap` elements apart, at `n` neighbouring positions.
// `partial`: memory for n + (kernel - 4) * gap partial reductions. The kernel is greater than 4.
template <class Op>
void double_up(i64 kernel, i64 gap, const typename Op::In* from, i64 n, typename Op::Row partial,
               typename Op::Row to) {
  using Row = typename Op::Row;
  i64 size = kMaxFolded;  // inputs that each element of `partial` holds
  if constexpr (kDoublesInRegisters<Op>) {
    if (gap == 1 && kernel < 64) return double_in_registers<Op>(kernel, from, n, to);
  }
  i64 done = Op::kIdempotent ? 0 : kernel % size;  // inputs that each element of `to` holds
  if (done > 0) Op::fold_inputs(to, n, from, 1, gap, done, 0);
  Op::fold_taps(partial, n + (kernel - size) * gap, from, StrideOne{gap}, 0, Const<kMaxFolded>{},
                std::true_type{});
  for (;; size *= 2) {
    if (!Op::kIdempotent && (kernel & size)) {
      const Row more = Op::at(partial, done * gap);
      Op::fold_rows(to, n, &more, done, 0, 1, done == 0);
      done += size;
    }
    if (2 * size > kernel) break;
    // in place: elements are read at or after the one that is written
    const Row halves[2] = {partial, Op::at(partial, size * gap)};
    Op::fold_rows(partial, n + (kernel - 2 * size) * gap, halves, 0, size, 2, true);
  }
  if constexpr (Op::kIdempotent) {  // two reductions, which may overlap
    const i64 rest = kernel - size;
    const Row both[2] = {partial, Op::at(partial, rest * gap)};
    Op::fold_rows(to, n, both, 0, rest, 2, true);
  }
}

// Whether rows are reduced by log-step doubling. They are then copied between padding. Not where
// windows are larger than the input: the order of a sum must not depend on the padding.
inline bool doubles_along(const Axis& width) {
  return shares_much(width) && width.regular() && has_little_padding(width) &&
         reach(width) < width.n;
}

// Reduces rows of inputs along the width. The rows of several narrow planes may lie side by side in
// one row, so that loops over it are long; windows are then doubled.
template <class Op>
class WidthReduction {
 public:
  using T = typename Op::In;
  using Row = typename Op::Row;

  // planes: the most planes that lie side by side
  POOLGRAD_LOOP WidthReduction(const Plan& plan, const View& x, const Tile& tile,
                               ReadOptions<T> options, i64 planes, Arena& arena)
      : p_(plan),
        tile_(tile),
        doubles_(doubles_along(plan.axis[2])),
        reader_(plan, x, tile.lo[2], tile.hi[2], reading(plan, options), arena),
        step_(reader_.step()),
        data_(arena.take<const char*>(planes)),
        converts_(planes > 1 && plan.in_plane() <= kMaxConverted && plan.axis[0].in == 1 &&
                  x.width == 1 && x.height == plan.axis[2].in && reader_.is_convertible()),
        converted_(arena.take<T>(converts_ ? planes * plan.in_plane() : 0)) {
    const Axis& a = plan.axis[2];
    const i64 outputs = tile.hi[2] - tile.lo[2], covered = covered_length(a, outputs);
    origin_ = tile.lo[2] * a.stride - a.lo;
    valid_ = inputs_of(a, tile.lo[2], tile.hi[2]);
    const i64 before = larger(0, -origin_), after = larger(0, origin_ + covered - a.in);
    // The padding after a plane is the padding before the next.
    spacing_ = ceil_div(covered - smaller(before, after), a.stride);
    // An odd number of cache lines: one column of many rows does not map to one set of a cache.
    constexpr i64 kLine = 64 / static_cast<i64>(sizeof(T));
    length_ = (ceil_div(((planes - 1) * spacing_ + outputs) * plan.inner, kLine) | 1) * kLine;
    if (!doubles_) return;
    dense_ = in_vectors(((planes - 1) * spacing_ * a.stride + (outputs - 1) * a.stride + 1) *
                        plan.inner);
    const i64 reached = reach(a) * plan.inner;
    padded_length_ = in_vectors(dense_ + reached);
    piece_ = in_vectors(larger(kPieceElements, 2 * reached));
    padded_ = arena.take<T>(padded_length_);
    partial_ = Op::take(arena, smaller(piece_, dense_) + reached);
    if (a.stride > 1) spaced_ = Op::take(arena, dense_);
  }

  // Elements of a reduced row, and from the outputs of a plane to those of the next.
  i64 length() const { return length_; }
  i64 spacing() const { return spacing_; }

  // Begins with planes whose elements start at data[0], data[1], ...
  void start(const char* const* data, i64 planes) {
    for (i64 k = 0; k < planes; ++k) data_[k] = data[k];
    planes_ = planes;
    reader_.start(data[0]);
    for (i64 k = 0; converts_ && k < planes; ++k)
      reader_.convert(data[k], p_.in_plane(), converted_ + k * p_.in_plane());
    if (doubles_) std::fill(padded_, padded_ + padded_length_, Op::kFill);
  }

  // Reduces input row (d, h) of each plane into one row of outputs. Returns false if Op needs
  // finite inputs, the row is doubled, and the sum of its inputs is not finite.
  bool row(i64 d, i64 h, Row into) {
    if (kNeedsFinite || doubles_) return double_row(d, h, into);
    reduce(reader_.row(d, h), into);
    return true;
  }

 private:
  static constexpr int W = static_cast<int>(kLanesOf<T>);
  static constexpr bool kNeedsFinite = requires { requires Op::kNeedsFinite; };
  // Elements of a row that are doubled at a time, so that they stay in the first cache; of planes
  // that are converted as a whole.
  static constexpr i64 kPieceElements = 1 << 10, kMaxConverted = 1 << 12;

  // The loops over rows compute whole vectors.
  static i64 in_vectors(i64 n) { return ceil_div(n, W) * W; }

  static ReadOptions<T> reading(const Plan& p, ReadOptions<T> options) {
    options.pack = !doubles_along(p.axis[2]) && !Op::kIdempotent && p.inner == 1;
    return options;
  }

  // Adds n neighbours to `sum`, if Op needs finite inputs, and copies them.
  POOLGRAD_INLINE static void copy(const T* from, T* to, i64 n, Vec<T, W>& sum) {
    using V = Vec<T, W>;
    const auto step = [&](i64 i) {
      const V inputs = load<V>(from + i);
      prefetch(from + i + kPrefetchElements<T>);
      store(to + i, inputs);
      if constexpr (kNeedsFinite) sum += inputs;
    };
    if (n < W) {
      if constexpr (kNeedsFinite) sum += load_first<V>(from, n);
      return copy_run(from, to, n);
    }
    for (i64 i = 0; i + W <= n; i += W) step(i);
    if (n % W) step(n - W);
  }
  // Copies the valid columns of row (d, h) of each plane. Returns whether they are finite, if Op
  // needs finite inputs: then their sum is neither infinite nor a NaN.
  POOLGRAD_LOOP bool copy_rows(i64 d, i64 h) {
    const i64 columns = valid_.hi - valid_.lo, inner = p_.inner;
    T* to = padded_ + (valid_.lo - origin_) * inner;
    Vec<T, W> sum{};
    for (i64 k = 0; k < planes_; ++k, to += plane_step()) {
      const T* from = input_row(k, d, h) + valid_.lo * step_;
      if (step_ == inner) copy(from, to, columns * inner, sum);
      else
        for (i64 c = 0; c < columns; ++c) copy(from + c * step_, to + c * inner, inner, sum);
    }
    return !kNeedsFinite || !any(sum - sum != T(0));
  }
  const T* input_row(i64 k, i64 d, i64 h) {
    if (converts_) return converted_ + k * p_.in_plane() + h * p_.axis[2].in;
    if (planes_ > 1) reader_.start(data_[k]);
    return planes_ > 1 && reader_.direct() ? reader_.at(d, h) : reader_.row(d, h);
  }
  // Elements from one plane to the next in a row of inputs.
  i64 plane_step() const { return spacing_ * p_.axis[2].stride * p_.inner; }

  bool double_row(i64 d, i64 h, Row into) {
    const bool finite = copy_rows(d, h);
    double_up(into);
    for (i64 k = 0; !kNeedsFinite && k < planes_; ++k)
      reduce_edges(padded_ + k * plane_step(), Op::at(into, k * spacing_ * p_.inner));
    return finite;
  }

  void double_up(Row into) const {
    const Axis& a = p_.axis[2];
    const i64 inner = p_.inner;
    const Row dense = a.stride > 1 ? spaced_ : into;
    for (i64 begin = 0; begin < dense_; begin += piece_) {
      poolgrad::double_up<Op>(a.kernel, a.dilation * inner, padded_ + begin,
                              smaller(piece_, dense_ - begin), partial_, Op::at(dense, begin));
    }
    if (a.stride > 1) Op::copy_strided(into, dense, length_ / inner, inner, a.stride * inner);
  }

  // Computes the outputs whose windows are not full again where the result may be the padding.
  void reduce_edges(const T* padded, Row into) const {
    const Axis& a = p_.axis[2];
    const i64 inner = p_.inner, lo = tile_.lo[2], hi = tile_.hi[2];
    const auto edges = [&](i64 begin, i64 end) {
      if (begin >= end) return;
      const Row reduced = Op::at(into, (begin - lo) * inner);
      if (!Op::may_be_padding(reduced, (end - begin) * inner)) return;
      for (i64 o = begin; o < end; ++o) reduce_edge(padded, origin_, inner, o, into);
    };
    const i64 full_lo = larger(lo, smaller(hi, a.full_lo));
    edges(lo, full_lo);
    edges(larger(full_lo, smaller(hi, a.full_hi)), hi);
  }

  // Computes the outputs of one column from its valid inputs. `from` is input column `origin`.
  void reduce_edge(const T* from, i64 origin, i64 step, i64 o, Row into) const {
    const Axis& a = p_.axis[2];
    const Span s = span_of(a, o);
    const Row at = Op::at(into, (o - tile_.lo[2]) * p_.inner);
    if (s.taps == 0) return Op::clear(at, p_.inner);
    Op::fold_inputs(at, p_.inner, from + (s.begin - origin) * step, 1, a.dilation * step, s.taps,
                    s.first_tap);
  }

  // Reduces a row tap by tap.
  void reduce(const T* row, Row into) const {
    const Axis& a = p_.axis[2];
    const i64 inner = p_.inner, lo = tile_.lo[2], hi = tile_.hi[2];
    const i64 full_lo = larger(lo, smaller(hi, a.full_lo));
    const i64 full_hi = larger(full_lo, smaller(hi, a.full_hi));
    const i64 gap = a.dilation * step_, count = full_hi - full_lo;
    for (i64 o = lo; o < full_lo; ++o) reduce_edge(row, 0, step_, o, into);
    if (count > 0) {
      const i64 begin = a.regular() ? full_lo * a.stride - a.lo : span_of(a, full_lo).begin;
      const T* from = row + begin * step_;
      const Row at = Op::at(into, (full_lo - lo) * inner);
      if (inner == 1 && (gap > 1 || a.kernel < kTapsAcrossLanes || 2 * a.stride < a.kernel)) {
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
    for (i64 o = full_hi; o < hi; ++o) reduce_edge(row, 0, step_, o, into);
  }

  const Plan& p_;
  const Tile tile_;
  const bool doubles_;
  Reader<T> reader_;
  const i64 step_;
  const char** data_;    // of the planes
  const bool converts_;  // planes are converted as a whole: their rows are short
  T* const converted_;
  i64 planes_ = 1, spacing_ = 0, length_ = 0;
  // For log-step doubling:
  i64 origin_ = 0;  // input column of tap 0 of the first window
  Range valid_{};   // input columns that are read
  i64 padded_length_ = 0, dense_ = 0, piece_ = 0;
  T* padded_ = nullptr;  // rows of inputs, between padding
  Row partial_{}, spaced_{};
};

}  // namespace poolgrad::inline POOLGRAD_ISA
