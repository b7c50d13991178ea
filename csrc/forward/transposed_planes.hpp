// Reduces wide windows in narrow planes, whose rows would leave lanes idle. Transposes as many
// planes as a vector has lanes into one plane whose vectors hold one pixel of each plane, reduces
// this plane, and transposes the results back.
#pragma once

#include "forward/selecting_tiles.hpp"
#include "geometry/partition.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

template <class T, bool WithRoutes>
class TransposedPlanes {
 public:
  static constexpr int W = kVectorBytes / static_cast<int>(sizeof(T));

  TransposedPlanes(const Plan& p, const View& x, Dense y, Dense routes, bool negate, Arena& arena)
      : p_(p),
        x_(x),
        y_(y),
        routes_(routes),
        transposed_plan_(transposed_plan(p)),
        pixels_(arena.take<T>(transposed_plan_.in_plane())),
        maxima_(arena.take<T>(transposed_plan_.out_plane())),
        winners_(arena.take<u32>(WithRoutes ? transposed_plan_.out_plane() : 0)),
        inputs_(has_native_type(x) ? nullptr : arena.take<T>(transposed_plan_.in_plane())),
        outputs_(has_type<T>(y) ? nullptr : arena.take<T>(transposed_plan_.out_plane())),
        view_(view_of(p, pixels_)),
        state_(transposed_plan_, view_, whole(p),
               {reinterpret_cast<char*>(maxima_), DtypeOf<T>::value}, negate, arena) {}
  TransposedPlanes(const TransposedPlanes&) = delete;
  TransposedPlanes& operator=(const TransposedPlanes&) = delete;

  // Computes planes first ... last. Calls mark_uncomputed(plane) for each plane that is not
  // computed, because an input of a plane in the same vector is not finite.
  template <class MarkUncomputed>
  void compute_planes(i64 first, i64 last, Select which, bool has_empty,
                      MarkUncomputed&& mark_uncomputed) {
    const Dense winners{reinterpret_cast<char*>(winners_), Dtype::uint32};
    for (i64 plane = first; plane < last; plane += W) {
      const int planes = static_cast<int>(smaller(W, last - plane));
      transpose_in(plane, planes);
      if (wide_tile(transposed_plan_, state_, view_.data, winners, 0, which, has_empty)) {
        transpose_out(plane, planes);
      } else {
        for (int k = 0; k < planes; ++k) mark_uncomputed(plane + k);
      }
    }
  }

 private:
  static_assert(kMaxTransposedBytes / kVectorBytes <=
                kElementsPerThread / kPartsPerThread);  // planes are not divided into parts

  static bool has_native_type(const View& x) { return x.dtype == DtypeOf<T>::value; }

  static Plan transposed_plan(Plan p) {
    p.inner = W, p.outer = 1, p.route_bytes = sizeof(u32);
    return p;
  }
  static View view_of(const Plan& p, const T* pixels) {
    View v;
    v.data = reinterpret_cast<const char*>(pixels), v.dtype = DtypeOf<T>::value;
    v.height = p.axis[2].in * W, v.width = W, v.inner = 1;
    return v;
  }
  static Tile whole(const Plan& p) {
    Tile tile;
    for (int a = 0; a < 3; ++a) tile.lo[a] = 0, tile.hi[a] = p.axis[a].out;
    return tile;
  }

  // Transposes planes; lanes without a plane repeat the last.
  void transpose_in(i64 plane, int planes) {
    const i64 n = p_.in_plane();
    const T* from[W];
    for (int k = 0; k < W; ++k) {
      const char* plane_data = plane_of(x_, plane + smaller(k, planes - 1));
      from[k] = row_of(x_, plane_data, 1, 0, 0, 0, n, inputs_ + k * n);
    }
    transpose_block(from, n);
  }

  POOLGRAD_LOOP void transpose_block(const T* const* from, i64 n) {
    using V = Vec<T, W>;
    for (i64 i = 0; i < n; i += W) {
      const i64 at = smaller(i, n - W);
      V square[W];
      POOLGRAD_UNROLL
      for (int k = 0; k < W; ++k) {
        square[k] = load<V>(from[k] + at);
        if (!inputs_) prefetch(from[k] + at + W * n);  // the next planes, if they follow these
      }
      transpose(square);
      POOLGRAD_UNROLL
      for (int k = 0; k < W; ++k) store(pixels_ + (at + k) * W, square[k]);
    }
  }

  void transpose_out(i64 plane, int planes) {
    const i64 n = p_.out_plane(), first = plane * n;
    T* values = outputs_ ? outputs_ : elements_of<T>(y_, first);
    separate(maxima_, n, planes,
             [=, in_place = !outputs_](int k, i64 at, auto value) __attribute__((always_inline)) {
               store(values + k * n + at, value);
               if (in_place) prefetch(values + (W + k) * n + at);
             });
    if (outputs_) write(y_, first, outputs_, planes * n);
    if (!WithRoutes) return;
    const i64 bytes = p_.route_bytes;
    separate(winners_, n, planes,
             [=, to = routes_](int k, i64 at, auto route) __attribute__((always_inline)) {
               const i64 here = first + k * n + at;
               put_routes(route, to, here, W);
               prefetch(elements_of<char>(to, (here + W * n) * bytes));
             });
  }

  // Calls put(plane, position, values) for W values at a time.
  template <class U, class Put>
  POOLGRAD_LOOP void separate(const U* from, i64 n, int planes, Put put) const {
    using V = Vec<U, W>;
    for (i64 i = 0; i < n; i += W) {
      const i64 at = smaller(i, n - W);
      V square[W];
      POOLGRAD_UNROLL
      for (int k = 0; k < W; ++k) square[k] = load<V>(from + (at + k) * W);
      transpose(square);
      POOLGRAD_UNROLL
      for (int k = 0; k < W; ++k) {
        if (k < planes) put(k, at, square[k]);
      }
    }
  }

  const Plan& p_;
  const View& x_;
  const Dense y_, routes_;
  const Plan transposed_plan_;
  T *pixels_, *maxima_;  // transposed inputs and outputs
  u32* winners_;
  T *inputs_, *outputs_;  // buffers for arrays of another type
  const View view_;
  WideWindowsState<T, WithRoutes> state_;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
