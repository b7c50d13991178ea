// Separable filtering: windows are boxes, so inputs are reduced along the width, then the height,
// then the depth, the order in which the first winner is the first in row-major order.
#pragma once

#include "forward/row_writer.hpp"
#include "forward/van_herk.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

template <class Op>
class Separable : NonCopyable {
 public:
  using T = typename Op::In;
  using Row = typename Op::Row;

  // Narrow planes are reduced side by side, so that loops over rows are long; not in volumes, whose
  // planes of outputs are stored. Some channels of a pixel are reduced at a time, so that blocks of
  // rows stay in the caches.
  static Batch batch(const Plan& p) {
    constexpr i64 kShort = 256, kLong = 4096 / sizeof(T), kPlanes = 128, kChannels = 16;
    constexpr i64 kPlaneBytes = 1 << 17, kChannelBytes = 1 << 21;
    const Axis &depth = p.axis[0], &height = p.axis[1], &width = p.axis[2];
    if (!doubles_along(width)) return {1, p.inner};
    const i64 n = covered_length(width, width.out);
    const bool narrow = p.inner == 1 && depth.kernel == 1 && n <= kShort;
    // Bytes of two blocks of rows.
    const i64 bytes = (shares_much(height) ? 2 * height.kernel : 1) * n * Op::kElementBytes;
    return {narrow ? larger(1, smaller(kPlanes, smaller(kLong / n, kPlaneBytes / bytes))) : 1,
            smaller(p.inner, larger(1, kChannelBytes / bytes / kChannels) * kChannels)};
  }

  // planes: the most planes that are reduced side by side
  POOLGRAD_LOOP Separable(const Plan& plan, const View& x, const Tile& tile,
                          const ReadOptions<T>& options, Arena& arena, i64 planes = 1)
      : p_(plan),
        tile_(tile),
        is_deep_(plan.axis[0].kernel > 1),
        rows_(tile.hi[1] - tile.lo[1]),
        width_(plan, x, tile, options, planes, arena),
        height_(plan.axis[1], tile.hi[1], length(), width_.pitch(), width_.rows_at_once(),
                plan.axis[2].kernel, arena),
        depth_(plan.axis[0], tile.hi[0], deep_length(), deep_length(), 1,
               plan.axis[1].kernel * plan.axis[2].kernel, arena),
        row_(Op::take(arena, length())),
        buffer_(Op::take(arena, deep_length())) {}

  // Elements of a row, and from the outputs of a plane to those of the next.
  i64 length() const { return width_.length(); }
  i64 spacing() const { return width_.spacing(); }
  // Whether all inputs that were read are finite, if Op needs finite inputs.
  bool finite() const { return finite_; }

  void start(const View& x, const Batch& batch) {
    width_.start(x, batch);
    depth_.start();
    reduced_depth_ = height_depth_ = -1;
    finite_ = true;
  }

  // Computes the reduced row (od, oh), maybe also rows after it, in ascending order.
  ReducedRows<Row> row(i64 od, i64 oh) {
    if (!is_deep_) {
      const Span s = span_of(p_.axis[0], od);
      if (s.taps > 0) return reduce_height(s.begin, oh, row_);
      Op::clear(row_, length());
      return {row_};
    }
    if (od != reduced_depth_) {
      reduced_depth_ = od;
      const auto reduced = depth_.row(od, buffer_, [&](i64 d, i64, Row target) {
        for (i64 row = 0; row < rows_; ++row) {
          const Row to = Op::at(target, row * length());
          const Row from = reduce_height(d, tile_.lo[1] + row, to).first;
          if (from.v != to.v) Op::fold_rows(to, length(), &from, 0, 0, 1, true);
        }
      });
      reduced_ = reduced.first;
    }
    return {Op::at(reduced_, (oh - tile_.lo[1]) * length()), tile_.hi[1] - oh, length()};
  }

 private:
  i64 deep_length() const { return is_deep_ ? rows_ * length() : 0; }
  ReducedRows<Row> reduce_height(i64 d, i64 oh, Row into) {
    if (d != height_depth_) height_.start();
    height_depth_ = d;
    return height_.row(oh, into, [&](i64 h, i64 count, Row target) {
      finite_ &= width_.rows(d, h, count, target);
    });
  }

  const Plan& p_;
  const Tile tile_;
  const bool is_deep_;  // windows hold rows of several depths
  const i64 rows_;
  WidthReduction<Op> width_;
  AxisReduction<Op> height_, depth_;
  const Row row_, buffer_;
  Row reduced_{};                               // all rows of an output depth
  i64 reduced_depth_ = -1, height_depth_ = -1;  // what is stored in reduced_ and in height_
  bool finite_ = true;
};

// Where the elements of reduced rows of a plane lie in the array of outputs: `count` segments of
// `length` elements. A segment is a row or, of a single row, some channels of a pixel.
struct Segments {
  i64 rows, count, length;
  i64 from_spacing;       // from one segment to the next in memory
  i64 first, to_spacing;  // the first segment and the next in the array
};

// Writes rows. prefetches: see put().
template <class T>
POOLGRAD_LOOP void write_segments(const Dense& to, const T* from, Segments s, bool prefetches) {
  if (s.from_spacing == s.length && s.to_spacing == s.length) s.length *= std::exchange(s.count, 1);
  for (i64 k = 0; k < s.count; ++k, from += s.from_spacing)
    put(to, s.first + k * s.to_spacing, from, s.length, false, prefetches);
}

// Reduces a batch of a tile and calls use(od, oh, first row, segments) for some rows of outputs of
// each plane. Returns false if Op needs finite inputs and one is not.
template <class Windows, class Use>
bool over_batch(const Plan& p, const Batch& batch, const View& x, const Tile& tile,
                Windows& windows, Use&& use) {
  windows.start(x, batch);
  const i64 columns = tile.hi[2] - tile.lo[2];
  Segments s{1, columns, batch.channels, batch.channels, 0, p.inner};
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; oh += s.rows) {
      const auto [row, rows, pitch] = windows.row(od, oh);
      if (!windows.finite()) return false;
      if (batch.channels == p.inner)
        s = {rows, rows, columns * p.inner, pitch, 0, p.axis[2].out * p.inner};
      s.first = batch.plane * p.out_plane() + p.output_index(od, oh, tile.lo[2]) + batch.channel;
      for (i64 k = 0; k < batch.planes; ++k, s.first += p.out_plane())
        use(od, oh, row + k * windows.spacing(), s);
    }
  }
  return true;
}

// Calls reduce(state, tile, batch) for each batch of each tile, with state = make_state(plan of a
// batch, tile, planes, arena). The last batch of channels may overlap the one before. A task has at
// least four planes, or as many as leave 16 tasks for each thread: creating a state costs as much
// as reducing a few rows.
template <class Windows, class MakeState, class Reduce>
void over_batches(const Work& work, MakeState&& make_state, Reduce&& reduce) {
  const Plan& p = *work.plan;
  const Batch most = Windows::batch(p);
  Plan part = p;
  part.inner = most.channels;
  over_tiles<Tile>(
      work,
      [&](const Tile& tile, Arena& arena) { return make_state(part, tile, most.planes, arena); },
      [&](auto& state, i64 first, i64 last, const Tile& tile) {
        for (i64 plane = first; plane < last; plane += most.planes) {
          for (i64 channel = 0; channel < p.inner; channel += most.channels) {
            reduce(state, tile,
                   Batch{smaller(most.planes, last - plane), most.channels, plane,
                         smaller(channel, p.inner - most.channels)});
          }
        }
      },
      false, most.planes * larger(1, smaller(4 / most.planes, p.outer / (16 * work.threads))));
}

}  // namespace poolgrad::inline POOLGRAD_ISA
