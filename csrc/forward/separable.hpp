// Separable filtering: windows are boxes, so inputs are reduced along the width, then the height,
// then the depth, the order in which the first winner is the first in row-major order.
#pragma once

#include "forward/row_writer.hpp"
#include "forward/van_herk.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// The part of a plane, or the planes, that are reduced at a time.
inline constexpr i64 kMaxPlanes = 64;
struct Batch {
  i64 planes, channels;
};

template <class Op>
class Separable {
 public:
  using T = typename Op::In;
  using Row = typename Op::Row;

  // Narrow planes are reduced side by side, so that loops over rows are long; not in volumes, whose
  // planes of outputs are stored. Some channels of a pixel are reduced at a time, so that blocks of
  // rows stay in the caches.
  static Batch batch(const Plan& p) {
    constexpr i64 kShort = 256, kLong = 1024, kChannels = 16, kBlockBytes = 1 << 21;
    const Axis &depth = p.axis[0], &height = p.axis[1], &width = p.axis[2];
    if (!doubles_along(width)) return {1, p.inner};
    const i64 n = covered_length(width, width.out);
    const bool narrow = p.inner == 1 && depth.kernel == 1 && n <= kShort;
    // Channels for which two blocks of rows fit.
    const i64 fitting = kBlockBytes / (2 * height.kernel * n * Op::kElementBytes);
    return {narrow ? smaller(kMaxPlanes, kLong / n) : 1,
            shares_much(height) ? smaller(p.inner, larger(1, fitting / kChannels) * kChannels)
                                : p.inner};
  }

  // planes: the most planes that are reduced side by side
  POOLGRAD_LOOP Separable(const Plan& plan, const View& x, const Tile& tile, ReadOptions<T> options,
                          Arena& arena, i64 planes = 1)
      : p_(plan),
        tile_(tile),
        is_deep_(plan.axis[0].kernel > 1),
        rows_(tile.hi[1] - tile.lo[1]),
        width_(plan, x, tile, options, planes, arena),
        height_(plan.axis[1], tile.hi[1], length(), plan.axis[2].kernel, arena),
        depth_(plan.axis[0], tile.hi[0], is_deep_ ? rows_ * length() : 0,
               plan.axis[1].kernel * plan.axis[2].kernel, arena),
        buffer_(Op::take(arena, is_deep_ ? rows_ * length() : 0)) {}
  Separable(const Separable&) = delete;
  Separable& operator=(const Separable&) = delete;

  // Elements of a row, and from the outputs of a plane to those of the next.
  i64 length() const { return width_.length(); }
  i64 spacing() const { return width_.spacing(); }
  // Whether all inputs that were read are finite, if Op needs finite inputs.
  bool finite() const { return finite_; }

  void start(const char* const* data, i64 planes) {
    width_.start(data, planes);
    depth_.start();
    reduced_depth_ = height_depth_ = -1;
    finite_ = true;
  }

  // Computes the reduced row (od, oh) and returns where it is: in `into`, or in a buffer. Rows are
  // computed in ascending order.
  Row row(i64 od, i64 oh, Row into) {
    if (!is_deep_) {
      const Span s = span_of(p_.axis[0], od);
      if (s.taps > 0) return reduce_height(s.begin, oh, into);
      Op::clear(into, length());
      return into;
    }
    if (od != reduced_depth_) {
      reduced_depth_ = od;
      reduced_ = depth_.row(od, buffer_, [&](i64 d, Row target) {
        for (i64 row = 0; row < rows_; ++row) {
          const Row to = Op::at(target, row * length());
          const Row from = reduce_height(d, tile_.lo[1] + row, to);
          if (from.v != to.v) Op::fold_rows(to, length(), &from, 0, 0, 1, true);
        }
      });
    }
    return Op::at(reduced_, (oh - tile_.lo[1]) * length());
  }

 private:
  Row reduce_height(i64 d, i64 oh, Row into) {
    if (d != height_depth_) height_.start();
    height_depth_ = d;
    return height_.row(oh, into, [&](i64 h, Row target) { finite_ &= width_.row(d, h, target); });
  }

  const Plan& p_;
  const Tile tile_;
  const bool is_deep_;  // windows hold rows of several depths
  const i64 rows_;
  WidthReduction<Op> width_;
  AxisReduction<Op> height_, depth_;
  const Row buffer_;
  Row reduced_{};                               // all rows of an output depth
  i64 reduced_depth_ = -1, height_depth_ = -1;  // what is stored in reduced_ and in height_
  bool finite_ = true;
};

// Where the elements of a reduced row lie in the array of outputs: `count` segments of `length`
// elements.
struct Segments {
  i64 count, length;
  i64 from_spacing;       // from one segment to the next in the row
  i64 first, to_spacing;  // the first segment and the next in the array
};

// Writes a row.
template <class T>
POOLGRAD_LOOP void write_segments(const Dense& to, const T* from, const Segments& s) {
  for (i64 k = 0; k < s.count; ++k, from += s.from_spacing)
    put(to, s.first + k * s.to_spacing, from, s.length, false);
}

// Reduces a batch of a tile and calls use(od, oh, row, segments) for each row of outputs. channel:
// the first of the batch. Returns false if Op needs finite inputs and one is not.
template <class Windows, class Use>
bool over_batch(const Plan& p, const Batch& batch, const View& x, const Tile& tile, i64 plane,
                i64 planes, i64 channel, Windows& windows, typename Windows::Row into, Use&& use) {
  const char* data[kMaxPlanes];
  for (i64 k = 0; k < planes; ++k)
    data[k] = plane_of(x, plane + k) + channel * x.inner * size_of(x.dtype);
  windows.start(data, planes);
  const i64 columns = tile.hi[2] - tile.lo[2];
  Segments segments{planes, columns * p.inner, windows.spacing(), 0, p.out_plane()};
  if (batch.channels < p.inner) segments = {columns, batch.channels, batch.channels, 0, p.inner};
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      const auto row = windows.row(od, oh, into);
      if (!windows.finite()) return false;
      segments.first = plane * p.out_plane() + p.output_index(od, oh, tile.lo[2]) + channel;
      use(od, oh, row, segments);
    }
  }
  return true;
}

// Calls reduce(plane, planes, channel) for each batch of planes first ... last. The last batch of
// channels may overlap the one before.
template <class Reduce>
void in_batches(const Plan& p, const Batch& batch, i64 first, i64 last, Reduce&& reduce) {
  for (i64 plane = first; plane < last; plane += batch.planes) {
    for (i64 channel = 0; channel < p.inner; channel += batch.channels) {
      reduce(plane, smaller(batch.planes, last - plane),
             smaller(channel, p.inner - batch.channels));
    }
  }
}

}  // namespace poolgrad::inline POOLGRAD_ISA
