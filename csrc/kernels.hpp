// What python/bindings.cpp calls: one table of functions for each instruction set.
#pragma once

#include "geometry/view.hpp"
#include "operators/settings.hpp"

namespace poolgrad {

// Arrays that are read have any strides; those that are written lie densely: leading axes, depth,
// height, width, inner.
struct Work {
  const Plan* plan = nullptr;
  int threads = 1;
};

// One real number, or one for each channel, in the type that the arithmetic is in.
struct Parameter {
  const void* values = nullptr;
  i64 count = 1;
};

// rectified: the ReLU of the largest
enum class Select { largest, rectified, smallest, median };

// Rows of pixels of `inner` small numbers each: those of one channel that lie in neighbouring
// pixels share a byte, whatever lies innermost. nowhere: all ones stand for kNowhere.
struct PackedRows {
  i64 rows, pixels, inner;
  int bits;
  bool nowhere;

  i64 bytes(i64 n) const { return (n * bits + 7) / 8; }  // of so many pixels, for each channel
  i64 size() const { return rows * bytes(pixels) * inner; }
};

struct SelectKernels {
  // y, and unless null the routes, of the winners; lone: ties are routed nowhere
  void (*forward)(const Work&, Select, const View& x, Dense y, Dense routes, bool lone);
  // order: strides of the outputs in logical order; false, and nothing done, unless x is finite
  bool (*draw)(const Work&, const View& x, Dense y, Dense routes, const View& order,
               std::uint64_t seed);
  void (*split_winners)(const Work&, Select, const View& x, const View& y, std::uint8_t* winners);
};

struct RouteKernels {
  void (*backward)(const Work&, const View& gy, const View& routes, Dense gx);
  void (*follow)(const Work&, const View& tangent, const View& routes, Dense y);
  void (*pack)(const PackedRows&, const std::uint8_t* from, std::uint8_t* to, int threads);
  void (*unpack)(const PackedRows&, const std::uint8_t* from, std::uint8_t* to, int threads);
  void (*indices)(const Work&, const View& routes, i64* indices);
  void (*split_backward)(const Work&, const View& gy, const std::uint8_t* winners, Dense gx);
  void (*split_follow)(const Work&, const View& tangent, const std::uint8_t* winners, Dense y);
  // false, with one such index, and nothing done, if an index lies outside its plane
  bool (*unpool)(const Work&, const View& x, const View& indices, Dense y, i64* culprit);
  bool (*unpool_backward)(const Work&, const View& gy, const View& indices, Dense gx, i64* culprit);
};

struct BlendKernels {
  void (*average)(const Work&, const View& x, Dense y, bool count_padding, double divisor);
  void (*average_backward)(const Work&, const View& gy, Dense gx, bool count_padding,
                           double divisor);
  // sensitivity: rows of the type of the arithmetic, or null
  void (*mixed)(const Work&, const View& x, Parameter alpha, bool count_padding, Dense y,
                Dense routes, void* sensitivity);
  void (*mixed_backward)(const Work&, const View& gy, const View& routes, Parameter alpha,
                         bool count_padding, Dense gx);
};

struct CurveKernels {
  // kept and sensitivity: rows of the type of the arithmetic, each may be null
  void (*forward)(const Work&, Blend, const View& x, Parameter theta, Dense y, void* const* kept,
                  void* sensitivity);
  void (*backward)(const Work&, Blend, const View& gy, const View& x, Parameter theta,
                   const View* kept, Dense gx);
};

struct Kernels {
  const char* name;
  const SelectKernels* select;
  const RouteKernels* route;
  const BlendKernels* blend;
  const CurveKernels* curve;
};

}  // namespace poolgrad
