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
inline constexpr i64 kLargestInRegisters = 63;  // the largest kernel

// Reduces windows of `kernel` neighbours, at most kLargestInRegisters, at n positions. Reads a row
// once, from its last vector to its first.
template <class Op>
POOLGRAD_LOOP void double_in_registers(i64 kernel, const float* from, i64 n, typename Op::Row to,
                                       const GradualPrefetch& first) {
  constexpr i64 W = kLanesOf<float>;
  using V = Vec<float, static_cast<int>(W)>;
  using Part = typename Op::template Part<V>;
  V inputs{};                // the vector that follows, and
  Part pairs{}, later[4]{};  // its partial reductions: of 2; of 4, 8, 16 and 32 inputs
  Part beyond{};             // those of 32 inputs of the vector after it
  GradualPrefetch outputs = first;
  for (i64 i = (n + kernel - 2) / W * W; i >= 0; i -= W) {
    const V here = load<V>(from + i);
    outputs.next(Op::kElementBytes > sizeof(float) ? 2 : 1);  // with routes, or without
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
    for (u32 k = 0, size = kMaxFolded; k < 4; ++k, size *= 2) {
      if (Op::kIdempotent ? 2 * size > kernel : (kernel & size) != 0) {
        const i64 by = Op::kIdempotent ? kernel - size : done;  // idempotent: the two may overlap
        if (Op::kIdempotent || done == 0) sum = part;
        const Part far = size > W && by >= W ? Op::slide(later[k], beyond, by - W)
                                             : Op::slide(part, later[k], by);
        if (by > 0) Op::merge(sum, far, static_cast<u32>(by));
        done += size;
      }
      if (size > W) beyond = later[k];
      const Part after = std::exchange(later[k], part);
      if (2 * size > kernel) break;
      Op::merge(part, Op::slide(part, after, size), size);
    }
    if (i < n) Op::put(to, i, sum);
  }
}

// Reduces windows of `kernel` inputs, `gap` elements apart, at `n` neighbouring positions.
// `partial`: memory for n + (kernel - 4) * gap partial reductions. The kernel is greater than 4.
template <class Op>
void double_up(i64 kernel, i64 gap, const typename Op::In* from, i64 n, typename Op::Row partial,
               typename Op::Row to, const GradualPrefetch& outputs) {
  using Row = typename Op::Row;
  i64 size = kMaxFolded;  // inputs that each element of `partial` holds
  if constexpr (kDoublesInRegisters<Op>)
    if (gap == 1 && kernel <= kLargestInRegisters)
      return double_in_registers<Op>(kernel, from, n, to, outputs);
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

// The planes, or the channels of a plane, that are reduced at a time, and the first of them.
struct Batch {
  i64 planes, channels, plane = 0, channel = 0;
};

// Reduces rows of inputs along the width. Where windows are doubled, the rows of several narrow
// planes may lie side by side in one row, and some rows are reduced at a time, one after the other,
// so that loops are long.
template <class Op>
class WidthReduction {
 public:
  using T = typename Op::In;
  using Row = typename Op::Row;

  // planes: the most planes that lie side by side
  POOLGRAD_LOOP WidthReduction(const Plan& plan, const View& x, const Tile& tile,
                               const ReadOptions<T>& options, i64 planes, Arena& arena)
      : p_(plan),
        tile_(tile),
        doubles_(doubles_along(plan.axis[2])),
        reader_(plan, x, tile.lo[2], tile.hi[2], options, arena),
        output_prefetch_{{options.outputs[0].data, options.outputs[1].data},
                         {size_of(options.outputs[0].dtype), size_of(options.outputs[1].dtype)},
                         plan.out_plane()},
        step_(reader_.step()),
        data_(arena.take<const char*>(planes)),
        converts_(planes > 1 && plan.in_plane() <= kMaxConverted && plan.axis[0].in == 1 &&
                  x.height == plan.axis[2].in && reader_.is_convertible()),
        converted_(arena.take<T>(converts_ ? planes * plan.in_plane() : 0)) {
    const Axis& a = plan.axis[2];
    const i64 outputs = tile.hi[2] - tile.lo[2], covered = covered_length(a, outputs);
    origin_ = tile.lo[2] * a.stride - a.lo;
    valid_ = inputs_of(a, tile.lo[2], tile.hi[2]);
    const i64 before = larger(0, -origin_), after = larger(0, origin_ + covered - a.in);
    // The padding after a plane is the padding before the next; outputs do not overlap.
    spacing_ = larger(outputs, ceil_div(covered - smaller(before, after), a.stride));
    length_ = in_vectors(((planes - 1) * spacing_ + outputs) * plan.inner);
    pitch_ = larger(length_, in_vectors(doubles_ ? planes * spacing_ * plan.inner : 0));
    // An odd number of cache lines: one column of many rows does not map to one set of a cache.
    constexpr i64 kLine = 64 / static_cast<i64>(sizeof(T));
    if (pitch_ > kRowElements) pitch_ = (ceil_div(pitch_, kLine) | 1) * kLine;
    if (!doubles_) return;
    if (plan.inner == 1) rows_ = larger(1, kPieceElements / pitch_);
    dense_ = ((rows_ - 1) * pitch_ + length_) * a.stride;
    const i64 reached = reach(a) * plan.inner;
    padded_length_ = in_vectors(dense_ + reached);
    piece_ = in_vectors(larger(kPieceElements, 2 * reached));
    padded_ = arena.take<T>(padded_length_);
    partial_ = Op::take(arena, smaller(piece_, dense_) + reached);
    if (a.stride > 1) spaced_ = Op::take(arena, dense_);
  }

  // Elements of a reduced row, from one row to the next, and from the outputs of a plane to those
  // of the next.
  i64 length() const { return length_; }
  i64 pitch() const { return pitch_; }
  i64 spacing() const { return spacing_; }
  // The most rows that are reduced at a time.
  i64 rows_at_once() const { return rows_; }

  void start(const View& x, const Batch& batch) {
    planes_ = batch.planes, plane_ = batch.plane, prefetch_distance_ = kPieceElements / planes_;
    for (i64 k = 0; k < planes_; ++k) {
      data_[k] = plane_of(x, batch.plane + k) + batch.channel * x.inner * size_of(x.dtype);
      if (converts_)
        reader_.convert(data_[k], 0, 0, 0, p_.in_plane(), converted_ + k * p_.in_plane());
    }
    reader_.start(data_[0]);
    if (doubles_) std::fill(padded_, padded_ + padded_length_, Op::kFill);
  }

  // Reduces input rows (d, h), (d, h + 1), ... of each plane into rows of outputs. Returns false if
  // Op needs finite inputs, rows are doubled, and the sum of their inputs is not finite.
  bool rows(i64 d, i64 h, i64 count, Row into) {
    if (kNeedsFinite || doubles_) return double_rows(d, h, count, into);
    reduce(reader_.row(d, h), into);
    return true;
  }

 private:
  static constexpr int W = static_cast<int>(kLanesOf<T>);
  static constexpr bool kNeedsFinite = requires { requires Op::kNeedsFinite; };
  // Elements that are doubled at a time, so that they stay in the first cache; of the longest row
  // whose vectors may follow each other without a gap; of planes that are converted as a whole.
  static constexpr i64 kPieceElements = (1 << 12) / sizeof(T), kRowElements = 1 << 7,
                       kMaxConverted = 1 << 12;

  // The loops over rows compute whole vectors.
  static i64 in_vectors(i64 n) { return ceil_div(n, W) * W; }

  // Adds n neighbours to `sum`, if Op needs finite inputs, and copies them.
  POOLGRAD_INLINE void copy(const T* from, T* to, i64 n, Vec<T, W>& sum) const {
    using V = Vec<T, W>;
    const auto step = [&](i64 i) {
      const V inputs = load<V>(from + i);
      prefetch(from + i + prefetch_distance_);
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
  // Copies the valid columns of rows (d, h), (d, h + 1), ... of each plane. Returns whether they
  // are finite, if Op needs finite inputs: then their sum is neither infinite nor a NaN.
  POOLGRAD_LOOP bool copy_rows(i64 d, i64 h, i64 count) {
    const i64 columns = valid_.hi - valid_.lo, inner = p_.inner;
    Vec<T, W> sum{};
    for (i64 r = 0; r < count; ++r) {
      T* to = padded_ + r * row_step() + (valid_.lo - origin_) * inner;
      for (i64 k = 0; k < planes_; ++k, to += plane_step()) {
        const T* from = input_row(k, d, h + r) + valid_.lo * step_;
        if (step_ == inner) copy(from, to, columns * inner, sum);
        else
          for (i64 c = 0; c < columns; ++c) copy(from + c * step_, to + c * inner, inner, sum);
      }
    }
    return !kNeedsFinite || !any(sum - sum != T(0));
  }
  const T* input_row(i64 k, i64 d, i64 h) {
    if (converts_) return converted_ + k * p_.in_plane() + h * p_.axis[2].in;
    if (planes_ > 1) reader_.start(data_[k]);
    return reader_.direct() ? reader_.at(d, h) : reader_.row(d, h);
  }
  // Elements of copied inputs from one plane, and from one row, to the next.
  i64 plane_step() const { return spacing_ * p_.axis[2].stride * p_.inner; }
  i64 row_step() const { return pitch_ * p_.axis[2].stride; }

  bool double_rows(i64 d, i64 h, i64 count, Row into) {
    const bool finite = copy_rows(d, h, count);
    if constexpr (kDoublesInRegisters<Op>) prefetch_outputs(d, h, count);
    double_up((count - 1) * pitch_ + length_, into);
    for (i64 i = 0; !kNeedsFinite && i < count * planes_; ++i) {
      const i64 r = i / planes_, k = i % planes_;
      reduce_edges(padded_ + r * row_step() + k * plane_step(),
                   Op::at(into, r * pitch_ + k * spacing_ * p_.inner));
    }
    return finite;
  }

  // Sets the outputs to prefetch: the same part of a plane as these rows are of a plane of inputs.
  void prefetch_outputs(i64 d, i64 h, i64 count) {
    const i64 row = d * p_.axis[1].in + h, rows = p_.axis[0].out * p_.axis[1].out;
    const i64 first = row * rows / p_.in_rows(), last = (row + count) * rows / p_.in_rows();
    GradualPrefetch& to = output_prefetch_;
    to.at = plane_ * p_.out_plane() + first * p_.axis[2].out;
    to.run = (last - first) * p_.axis[2].out, to.end = to.at + to.run, to.runs = planes_;
  }

  void double_up(i64 outputs, Row into) {
    const Axis& a = p_.axis[2];
    const i64 inner = p_.inner, dense = outputs * a.stride;
    const Row doubled = a.stride > 1 ? spaced_ : into;
    for (i64 begin = 0; begin < dense; begin += piece_) {
      poolgrad::double_up<Op>(a.kernel, a.dilation * inner, padded_ + begin,
                              smaller(piece_, dense - begin), partial_, Op::at(doubled, begin),
                              output_prefetch_);
      output_prefetch_.at += piece_;
    }
    if (a.stride > 1) Op::copy_groups(into, doubled, outputs / inner, inner, a.stride * inner);
  }

  // Computes the outputs whose windows are not full again where the result may be the padding.
  void reduce_edges(const T* padded, Row into) const {
    const Axis& a = p_.axis[2];
    for (i64 o = tile_.lo[2]; o < tile_.hi[2]; ++o) {
      const bool is_full = o >= a.full_lo && o < a.full_hi;
      if (!is_full && Op::may_be_padding(Op::at(into, (o - tile_.lo[2]) * p_.inner), p_.inner))
        reduce_edge(padded, origin_, p_.inner, o, into);
    }
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
  GradualPrefetch output_prefetch_;
  i64 prefetch_distance_ = 0;  // in elements: the rows that are reduced next
  const i64 step_;
  const char** data_;    // of the planes
  const bool converts_;  // planes are converted as a whole: their rows are short
  T* const converted_;
  i64 planes_ = 1, plane_ = 0, rows_ = 1, spacing_ = 0, length_ = 0, pitch_ = 0;
  // For log-step doubling:
  i64 origin_ = 0;  // input column of tap 0 of the first window
  Range valid_{};   // input columns that are read
  i64 padded_length_ = 0, dense_ = 0, piece_ = 0;
  T* padded_ = nullptr;  // rows of inputs, between padding
  Row partial_{}, spaced_{};
};

}  // namespace poolgrad::inline POOLGRAD_ISA
