// Reads strided arrays of any dtype row by row.
#pragma once

#include "geometry/window.hpp"
#include "simd/dtype.hpp"

namespace poolgrad {

inline constexpr int kMaxAxes = 64;

// A strided array; strides in elements. Contiguous leading axes are merged.
struct View {
  const char* data = nullptr;
  Dtype dtype = Dtype::float32;
  i64 depth = 0, height = 0, width = 0, inner = 0;
  // A width into which flattened() merged rows that do not follow each other in memory: the columns
  // of a row (0: no such rows), and the rows of a depth.
  i64 row_columns = 0, depth_rows = 1;
  int outer_axes = 0;
  i64 outer_size[kMaxAxes], outer_stride[kMaxAxes];
  float zero_point = 0;  // of quantised integers: subtracted from elements that are read
};

// A real number, or one for each channel, in the type of the arithmetic (float or double).
struct Parameter {
  const void* values = nullptr;
  i64 count = 1;
};

inline namespace POOLGRAD_ISA {

inline i64 outer_offset(const View& v, i64 index) {
  i64 offset = 0;
  for (int a = v.outer_axes - 1; a > 0; --a) {
    offset += index % v.outer_size[a] * v.outer_stride[a];
    index /= v.outer_size[a];
  }
  return v.outer_axes ? offset + index * v.outer_stride[0] : 0;
}

// The first element of plane `index`.
inline const char* plane_of(const View& v, i64 index) {
  return v.data + outer_offset(v, index) * size_of(v.dtype);
}

// Copies n columns of a row, converted, to contiguous memory.
template <class S, class A>
void copy_columns(const View& v, const S* from, i64 n, i64 inner, A* to) {
  const bool packed = inner == 1 || v.inner == 1;
  if (packed && (v.width == inner || n == 1)) return widen_run(from, to, n * inner, v.zero_point);
  for (i64 w = 0; w < n; ++w, from += v.width, to += inner) {
    if (packed && inner > 1) widen_run(from, to, inner, v.zero_point);
    else
      for (i64 c = 0; c < inner; ++c) widen_run(from + c * v.inner, to + c, 1, v.zero_point);
  }
}

// Copies columns [lo, hi) of merged rows; see View::row_columns.
template <class A>
POOLGRAD_LOOP void copy_merged_rows(const View& v, const char* row, i64 inner, i64 lo, i64 hi,
                                    A* to) {
  by_element<A>(v.dtype, [&](auto s) {
    using S = decltype(s);
    for (i64 c = lo, end; c < hi; to += (end - c) * inner, c = end) {
      const i64 h = c / v.row_columns;
      end = smaller(hi, (h + 1) * v.row_columns);
      const i64 at =
          h / v.depth_rows * v.depth + h % v.depth_rows * v.height + c % v.row_columns * v.width;
      copy_columns(v, reinterpret_cast<const S*>(row) + at, end - c, inner, to);
    }
  });
}

// Returns columns [lo, hi) of row (d, h) of a plane as numbers of type A: a pointer into the array
// if they are contiguous and of type A there, else a copy in `buffer`.
template <class A>
POOLGRAD_LOOP const A* row_of(const View& v, const char* plane, i64 inner, i64 d, i64 h, i64 lo,
                              i64 hi, A* buffer) {
  const char* row = plane + (d * v.depth + h * v.height) * size_of(v.dtype);
  const i64 n = hi - lo;
  const bool packed =
      !v.row_columns && (inner == 1 || v.inner == 1) && (v.width == inner || n <= 1);
  if (packed && v.dtype == DtypeOf<A>::value) return reinterpret_cast<const A*>(row) + lo * v.width;
  if (v.row_columns) copy_merged_rows(v, row, inner, lo, hi, buffer);
  else
    by_element<A>(v.dtype, [&](auto s) {
      copy_columns(v, reinterpret_cast<const decltype(s)*>(row) + lo * v.width, n, inner, buffer);
    });
  return buffer;
}

// Whether an axis has one window, which holds all inputs.
inline bool is_global(const Axis& a) {
  return a.regular() && a.m == 1 && a.in == a.n && a.kernel == a.in && a.lo == 0 && a.dilation == 1;
}

// Whether each input of an axis is a window of its own.
inline bool is_pointwise(const Axis& a) {
  return a.regular() && a.kernel == 1 && a.stride == 1 && a.lo == 0 && a.out == a.in;
}

// Returns the same windows with height, or depth and height, merged into the width, where the axes
// are contiguous and either all global or all pointwise. merged: if not null, global axes are
// merged also where they are not contiguous, so that the order of a sum does not depend on strides,
// and *merged becomes the view of x with merged rows.
inline Plan flattened(Plan p, const View& x, View* merged = nullptr) {
  Axis& width = p.axis[2];
  i64 step = x.width;
  for (int k = 1; k >= 0; --k) {
    Axis& a = p.axis[k];
    const i64 pitch = k == 1 ? x.height : x.depth;
    const bool global = is_global(width) && is_global(a);
    if (!global && !(is_pointwise(width) && is_pointwise(a))) break;
    if (merged && !merged->row_columns && width.in == 1 && a.in > 1) merged->width = step = pitch;
    else if (a.in > 1 && (pitch != width.in * step || (merged && merged->row_columns))) {
      if (!global || !merged) break;
      if (!merged->row_columns) merged->row_columns = width.in, merged->depth_rows = k ? a.in : 1;
    }
    width.n = width.in *= a.in, width.m = width.out *= a.out, width.kernel *= a.kernel;
    width = regular_axis(width, 1, 0, 0, 1);
    a = Axis{};
  }
  return p;
}

// The least magnitude of a parameter. A smaller one has the same result, but its square underflows.
template <class A>
constexpr A least_parameter() {
  return sizeof(A) == 4 ? A(1e-18) : A(1e-150);
}

// Writes one parameter value for each of `outputs` outputs and each channel of the inner axis.
// Magnitudes below `least` are raised to `least`; the sign is kept.
template <class A>
void fill_parameter(const Plan& p, Parameter from, i64 plane, i64 outputs, A* row, A least = 0) {
  const A* values = static_cast<const A*>(from.values);
  for (i64 o = 0; o < outputs; ++o) {
    for (i64 c = 0; c < p.inner; ++c) {
      const A value = values[(p.inner_is_channel ? c : plane) % from.count];
      const bool near = value < least && -value < least;
      row[o * p.inner + c] = near ? (value < A(0) ? -least : least) : value;
    }
  }
}

}  // namespace POOLGRAD_ISA
}  // namespace poolgrad
