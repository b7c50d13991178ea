// An array as the kernels see it: any strides, read row by row.
#pragma once

#include <cstring>

#include "window.hpp"

namespace poolgrad {

// Strides count elements. Leading axes that lie one behind the other are merged.
struct View {
  char* data = nullptr;
  i64 depth = 0, height = 0, width = 0, inner = 0;
  int outer_axes = 0;
  i64 outer_size[64], outer_stride[64];
};

namespace {

[[maybe_unused]] inline i64 outer_offset(const View& v, i64 index) {
  i64 offset = 0;
  for (int a = v.outer_axes - 1; a > 0; --a) {
    offset += index % v.outer_size[a] * v.outer_stride[a];
    index /= v.outer_size[a];
  }
  return v.outer_axes ? offset + index * v.outer_stride[0] : 0;
}

// Row (d, h), columns [lo, hi), of plane `base`; gathered into `buffer` unless it lies in one
// piece. The pointer is to column `lo`.
template <class T>
POOLGRAD_LOOP const T* row_of(const View& v, const T* base, i64 inner, i64 d, i64 h, i64 lo, i64 hi,
                              T* buffer) {
  const T* row = base + d * v.depth + h * v.height + lo * v.width;
  const i64 n = hi - lo;
  const bool packed = inner == 1 || v.inner == 1;
  if (packed && (v.width == inner || n <= 1)) return row;
  for (i64 w = 0; w < n; ++w) {
    const T* from = row + w * v.width;
    if (packed && inner > 1) {
      std::memcpy(buffer + w * inner, from, static_cast<std::size_t>(inner) * sizeof(T));
    } else {
      for (i64 c = 0; c < inner; ++c) buffer[w * inner + c] = from[c * v.inner];
    }
  }
  return buffer;
}

}  // namespace
}  // namespace poolgrad
