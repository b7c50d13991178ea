// Gradients along routes, tie masks and indices, compiled once per instruction set.
#include <array>
#include <limits>

#include "backward/packed_routes.hpp"
#include "backward/register_blocked.hpp"
#include "backward/split_ties.hpp"
#include "backward/unpool.hpp"
#include "base/common.hpp"
#include "geometry/partition.hpp"

namespace poolgrad::inline POOLGRAD_ISA {
namespace {

constexpr i64 kChunk = 64;  // outputs of a row that are computed at a time
constexpr i64 kNoInput = std::numeric_limits<i64>::min();

// Computes where a row of routes leads: the offset of the input that each route names, in an array
// with these strides (depth, height, width, channel); `nowhere` for kNowhere. Each tap is checked
// against the input, because routes may come from a caller.
template <class R>
POOLGRAD_LOOP void find_inputs(const Plan& p, std::array<i64, 4> stride, i64 od, i64 oh, Range outs,
                               const R* routes, i64 nowhere, i64* offsets) {
  const Axis &depth = p.axis[0], &height = p.axis[1], &width = p.axis[2];
  const u32 kh = static_cast<u32>(height.kernel), kw = static_cast<u32>(width.kernel);
  const i64 first_d = start_of(depth, od), first_h = start_of(height, oh);
  const auto inside = [](const Axis& a, i64 i) { return i >= 0 && i < a.in; };
  for (i64 o = outs.lo; o < outs.hi; ++o) {
    const i64 first_w = start_of(width, o);
    for (i64 c = 0; c < p.inner; ++c, ++routes, ++offsets) {
      const u32 tap = *routes, line = tap / kw;  // read once: another thread may change it
      const u32 slice = depth.kernel > 1 ? line / kh : 0;  // divisions are slow
      const i64 d = first_d + slice * depth.dilation;
      const i64 h = first_h + (line - slice * kh) * height.dilation;
      const i64 w = first_w + (tap - line * kw) * width.dilation;
      const bool valid = tap < p.taps && inside(depth, d) && inside(height, h) && inside(width, w);
      *offsets = valid ? d * stride[0] + h * stride[1] + w * stride[2] + c * stride[3] : nowhere;
    }
  }
}

// Scatter, for any windows: adds the gradient of every output at the input that its route names.
// Neighbouring outputs often have the same winner, so that consecutive additions depend on each
// other; additions to several planes in turn are independent.
template <class T, class R>
class ScatterRoutes {
 public:
  // Fewer in volumes, as slices often lie a power of two apart: the rows of several slices of eight
  // planes would map to the same sets of the caches.
  static constexpr i64 kPlanesAtOnce = 8, kVolumesAtOnce = 4;

  ScatterRoutes(const Plan& p, const InputTile& tile, Arena& arena, Dense gx)
      : p_(p),
        tile_(tile),
        gx_(gx),
        first_(first_input(p, tile)),
        inputs_(inputs_of(p, tile)),
        planes_at_once_(smaller(p.inner >= kTapsAcrossLanes ? 1
                                : p.axis[0].kernel > 1      ? kVolumesAtOnce
                                                            : kPlanesAtOnce,
                                tile.planes)),
        outs_(reaching(p.axis[2], tile.lo[2], tile.hi[2])),
        n_((outs_.hi - outs_.lo) * p.inner),
        columns_(arena.take<Index>(n_)),
        values_(arena.take<T>(kPlanesAtOnce * kChunk)),
        targets_(arena.take<Index>(kPlanesAtOnce * kChunk)),
        fits_index_(fits_index(p)),
        offsets_(fits_index_ ? nullptr : arena.take<i64>(n_)) {
    for (i64 j = 0; j < planes_at_once_; ++j) {
      planes_[j].buffer = has_type<T>(gx) ? nullptr : arena.take<T>(inputs_);
      planes_[j].gradient_row = arena.take<T>(n_);
      planes_[j].route_row = arena.take<R>(n_);
    }
    const i64 rows = p.axis[2].in * p.inner, slices = p.axis[1].in * rows;
    next_ = p.axis[2].dilation * p.inner;
    line_ = p.axis[1].dilation * rows - p.axis[2].kernel * next_;
    slice_ = p.axis[0].dilation * slices - p.axis[1].kernel * p.axis[1].dilation * rows;
  }

  void run(const View& gy, const View& routing, i64 first, i64 last) {
    if (!ready_) prepare();
    for (i64 plane = first; plane < last; plane += planes_at_once_) {
      const i64 count = smaller(planes_at_once_, last - plane);
      for (i64 j = 0; j < count; ++j) start(planes_[j], gy, routing, plane + j);
      add_rows(gy, routing, count);
      for (i64 j = 0; j < count; ++j) finish(planes_[j], plane + j);
    }
  }

 private:
  using Index = std::int32_t;

  struct Plane {
    T *buffer, *gradient_row;  // buffer: null if sums are stored in the array
    R* route_row;
    T* sums;   // of the inputs of the tile
    i64 done;  // sums that are not zeroed yet begin here
    const char *gradients, *routes;
    const T* g;  // current row of gradients
    const R* r;  // current row of routes
  };

  // Whether the offsets of all inputs that a route may name fit into Index.
  static bool fits_index(const Plan& p) {
    double all = static_cast<double>(p.inner);
    for (const Axis& a : p.axis) {
      all *= static_cast<double>(a.in + (a.kernel - 1) * a.dilation + (a.lo < 0 ? -a.lo : a.lo));
    }
    return all < 0x1p30 && p.taps <= 1 << 16;
  }

  void prepare() {
    ready_ = true;
    for (i64 o = outs_.lo, i = 0; o < outs_.hi; ++o) {
      const i64 start = start_of(p_.axis[2], o) * p_.inner;
      for (i64 c = 0; c < p_.inner; ++c) columns_[i++] = static_cast<Index>(start + c);
    }
  }

  void start(Plane& plane, const View& gy, const View& routing, i64 number) const {
    plane.gradients = plane_of(gy, number), plane.routes = plane_of(routing, number);
    plane.sums = plane.buffer ? plane.buffer : elements_of<T>(gx_, number * p_.in_plane() + first_);
    plane.done = 0;
  }
  void finish(Plane& plane, i64 number) const {
    zero_until(plane, inputs_);
    if (plane.buffer) write(gx_, number * p_.in_plane() + first_, plane.buffer, inputs_);
  }

  // Sums are zeroed just before the first addition, while they are in the cache.
  static void zero_until(Plane& plane, i64 end) {
    if (end <= plane.done) return;
    const i64 bytes = (end - plane.done) * static_cast<i64>(sizeof(T));
    prefetch(plane.sums + end, bytes);
    std::memset(plane.sums + plane.done, 0, static_cast<std::size_t>(bytes));
    plane.done = end;
  }

  // Adds all rows of gradients whose windows reach the tile, in ascending order.
  void add_rows(const View& gy, const View& routing, i64 count) {
    const Range depths = reaching(p_.axis[0], tile_.lo[0], tile_.hi[0]);
    const Range heights = reaching(p_.axis[1], tile_.lo[1], tile_.hi[1]);
    for (i64 od = depths.lo; od < depths.hi; ++od) {
      for (i64 oh = heights.lo; oh < heights.hi; ++oh) {
        const i64 end = smaller(inputs_, end_of_row(od, oh));
        for (i64 j = 0; j < count; ++j) {
          Plane& plane = planes_[j];
          zero_until(plane, end);
          plane.g =
              row_of(gy, plane.gradients, p_.inner, od, oh, outs_.lo, outs_.hi, plane.gradient_row);
          plane.r =
              row_of(routing, plane.routes, p_.inner, od, oh, outs_.lo, outs_.hi, plane.route_row);
        }
        if (fits_index_) {
          scatter_rows(od, oh, planes_, count, Const<kPlanesAtOnce>{});
        } else {
          for (i64 j = 0; j < count; ++j) scatter_row_general(od, oh, planes_[j]);
        }
      }
    }
  }

  // The end of the last row of inputs that windows of output row (od, oh) hold, from `first_` on.
  i64 end_of_row(i64 od, i64 oh) const {
    const Span d = span_of(p_.axis[0], od), h = span_of(p_.axis[1], oh);
    if (d.taps == 0 || h.taps == 0) return 0;
    const i64 depth = d.begin + (d.taps - 1) * p_.axis[0].dilation;
    const i64 height = h.begin + (h.taps - 1) * p_.axis[1].dilation;
    return (depth * p_.axis[1].in + height + 1) * p_.axis[2].in * p_.inner - first_;
  }

  // Adds a row of gradients of some planes: of `count` planes at once, then of half as many, and so
  // on.
  template <class Count>
  void scatter_rows(i64 od, i64 oh, const Plane* planes, i64 left, Count count) const {
    for (; left >= count; left -= count, planes += count) scatter_row(od, oh, planes, count);
    if constexpr (count() > 1) scatter_rows(od, oh, planes, left, Const<count() / 2>{});
  }

  // Adds a row of gradients of several planes. Values and targets of all planes are stored side by
  // side, so that few pointers are needed.
  template <class Count>
  POOLGRAD_LOOP void scatter_row(i64 od, i64 oh, const Plane* planes, Count count) const {
    constexpr i64 kOutputs = kPlanesAtOnce / count() * kChunk;
    T* sums[count()];
    for (i64 j = 0; j < count; ++j) sums[j] = planes[j].sums;
    const i64 row = start_of(p_.axis[0], od) * p_.axis[1].in + start_of(p_.axis[1], oh);
    const auto from = static_cast<Index>(row * p_.axis[2].in * p_.inner - first_);
    const T* const values = values_;
    const Index* const target = targets_;
    for (i64 begin = 0; begin < n_; begin += kOutputs) {
      const i64 n = smaller(kOutputs, n_ - begin);
      for (i64 j = 0; j < count; ++j) {
        find_targets(planes[j], begin, n, from, values_ + j * kOutputs, targets_ + j * kOutputs);
      }
      for (i64 i = 0; i < n; ++i) {
        for (i64 j = 0; j < count(); ++j)
          sums[j][target[j * kOutputs + i]] += values[j * kOutputs + i];
      }
    }
  }

  // Computes the targets of gradients `begin`, ... of a row, counted from the first input of the
  // tile. A gradient whose target lies outside the tile becomes 0 with target 0.
  POOLGRAD_INLINE void find_targets(const Plane& plane, i64 begin, i64 n, Index from,
                                    T* __restrict values, Index* __restrict target) const {
    const bool deep = p_.axis[0].kernel > 1;
    const float lines = 1.0f / static_cast<float>(p_.axis[2].kernel);
    const float slices = 1.0f / static_cast<float>(p_.axis[1].kernel);
    const auto next = static_cast<Index>(next_), line = static_cast<Index>(line_);
    const auto slice = static_cast<Index>(slice_);
    const auto inputs = static_cast<u32>(inputs_);
    const auto taps = static_cast<u32>(p_.taps);
    const T* const gradients = plane.g + begin;
    const R* const routes = plane.r + begin;
    const Index* const columns = columns_ + begin;
    overlapping_lanes<Index>(n, [&](auto w, i64 i) {
      using V = Vec<Index, w()>;
      using G = Vec<T, w()>;
      const auto tap = convert<u32>(load<Vec<R, w()>>(routes + i));
      prefetch(gradients + i + kPrefetchElements<T>), prefetch(routes + i + kPrefetchElements<R>);
      // A half is added, so that rounding cannot change the integer part.
      const auto quotient = [](V of, float by) {
        return convert<Index>((convert<float>(of) + 0.5f) * by);
      };
      const V one = reinterpret_cast<V>(tap), down = quotient(one, lines);
      V to = load<V>(columns + i) + from + one * next + down * line;
      if (deep) to += quotient(down, slices) * slice;
      const V inside =
          reinterpret_cast<V>((tap < taps) & (reinterpret_cast<Vec<u32, w()>>(to) < inputs));
      store(target + i, to & inside);
      store(values + i, convert<std::conditional_t<sizeof(T) == 8, i64, Index>>(inside)
                            ? load<G>(gradients + i)
                            : G{});
    });
  }

  // Adds a row of gradients one by one, for planes and windows too large for Index.
  void scatter_row_general(i64 od, i64 oh, const Plane& plane) const {
    const i64 rows = p_.axis[2].in * p_.inner;
    find_inputs(p_, {p_.axis[1].in * rows, rows, p_.inner, 1}, od, oh, outs_, plane.r, kNoInput,
                offsets_);
    for (i64 i = 0; i < n_; ++i) {
      if (offsets_[i] >= first_ && offsets_[i] < first_ + inputs_)
        plane.sums[offsets_[i] - first_] += plane.g[i];
    }
  }

  const Plan& p_;
  const InputTile tile_;
  const Dense gx_;
  const i64 first_, inputs_;  // the first element of the tile in a plane; the elements
  const i64 planes_at_once_;  // number of planes in use
  Plane planes_[kPlanesAtOnce]{};
  const Range outs_;  // the outputs of a row whose windows reach the tile
  const i64 n_;
  Index* columns_;  // where their windows begin
  T* values_;       // gradients of chunks of rows of several planes
  Index* targets_;  // inputs that these gradients are added to
  const bool fits_index_;
  i64* offsets_;  // of the inputs of a row, if Index is too small
  // Address steps from a tap to the next one, and the additional steps to the next line and depth.
  i64 next_, line_, slice_;
  bool ready_ = false;
};

void backward(const Work& work, const View& gy, const View& routes, Dense gx) {
  const Plan& p = *work.plan;
  Call call = call_of(Task::routes_backward, work, gy);
  call.routes = layout_of(routes, p);
  const Algorithm algorithm = choose(call);
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    if constexpr (!kGeneralOnly) {
      if (algorithm != Algorithm::scatter_routes)
        return run_backward<RegisterBlockedBackward<A, true>>(work, gy, routes, gx);
    }
    by_route(routes.dtype, [&](auto r) {
      using Backward = ScatterRoutes<A, decltype(r)>;
      over_tiles<InputTile>(
          work, [&](const InputTile& tile, Arena& arena) { return Backward(p, tile, arena, gx); },
          [&](Backward& state, i64 first, i64 last, const InputTile&) {
            state.run(gy, routes, first, last);
          },
          false, Backward::kPlanesAtOnce);
    });
  });
}

// Calls each(first output, offsets, n) for each row of outputs, with the offsets of the inputs that
// its routes name (find_inputs).
template <class Each>
void over_routes(const Work& work, const View& routing, std::array<i64, 4> stride, i64 nowhere,
                 Each&& each) {
  const Plan& p = *work.plan;
  by_route(routing.dtype, [&](auto r) {
    using R = decltype(r);
    struct Rows {
      R* routes;
      i64* offsets;
    };
    over_tiles<Tile>(
        work,
        [&](const Tile&, Arena& arena) {
          return Rows{arena.take<R>(p.out_row()), arena.take<i64>(p.out_row())};
        },
        [&](Rows& rows, i64 plane, const Tile& tile) {
          const Range outs{tile.lo[2], tile.hi[2]};
          for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
            for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
              const R* routes = row_of(routing, plane_of(routing, plane), p.inner, od, oh, outs.lo,
                                       outs.hi, rows.routes);
              find_inputs(p, stride, od, oh, outs, routes, nowhere, rows.offsets);
              each(plane, p.output_index(od, oh, outs.lo), rows.offsets,
                   (outs.hi - outs.lo) * p.inner);
            }
          }
        });
  });
}

// The tangent at the route of each output, 0 for kNowhere.
void jvp(const Work& work, const View& x, const View& routes, Dense y) {
  const Plan& p = *work.plan;
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    by_element<A>(x.dtype, [&](auto s) {
      using S = decltype(s);
      over_routes(work, routes, {x.depth, x.height, x.width, x.inner}, kNoInput,
                  [&](i64 plane, i64 first, const i64* offsets, i64 n) {
                    const S* from = reinterpret_cast<const S*>(plane_of(x, plane));
                    A tangents[kChunk];
                    for (i64 i = 0, count; i < n; i += count) {
                      count = smaller(kChunk, n - i);
                      for (i64 j = 0; j < count; ++j) {
                        tangents[j] = A(0);
                        if (offsets[i + j] != kNoInput)
                          widen_run(from + offsets[i + j], tangents + j, 1);
                      }
                      write(y, plane * p.out_plane() + first + i, tangents, count);
                    }
                  });
    });
  });
}

// The flat positions of the inputs in the (unpadded) plane, -1 for kNowhere.
void indices(const Work& work, const View& routes, i64* to) {
  const Plan& p = *work.plan;
  over_routes(work, routes, {p.axis[1].in * p.axis[2].in, p.axis[2].in, 1, 0}, -1,
              [&](i64 plane, i64 first, const i64* offsets, i64 n) {
                for (i64 i = 0; i < n; ++i) to[plane * p.out_plane() + first + i] = offsets[i];
              });
}

void split_backward(const Work& work, const View& gy, const std::uint8_t* winners, Dense gx) {
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    run_backward<SplitTiesBackward<A>>(work, gy, winners, gx);
  });
}

void split_jvp(const Work& work, const View& tangent, const std::uint8_t* winners, Dense y) {
  by_sum(tangent.dtype, [&](auto a) {
    using A = decltype(a);
    over_states<Tile, TieRows<A>>(work, false, [&](TieRows<A>& rows, i64 plane) {
      split_ties_jvp(rows, tangent, winners, work.plan->winner_bytes(), y, plane);
    });
  });
}

}  // namespace

extern const RouteKernels route_kernels;
const RouteKernels route_kernels = {
    backward,       jvp,       pack_routes, unpack_routes,   indices,
    split_backward, split_jvp, unpool,      unpool_backward,
};

}  // namespace poolgrad::inline POOLGRAD_ISA
