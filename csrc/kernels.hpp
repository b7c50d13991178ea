// What bindings.cpp calls: one table of functions for each instruction set.
#pragma once

#include "view.hpp"

namespace poolgrad {

enum class Dtype { f32, f64 };

// Arrays that are read have any strides; those that are written lie densely: leading axes, depth,
// height, width, inner.
struct Work {
  const Plan* plan = nullptr;
  Dtype dtype = Dtype::f32;
  int threads = 1;
};

struct Kernels {
  const char* name;
  // y, and unless null the routes, of the maximum; lone: ties are routed nowhere
  void (*max_forward)(const Work&, const View& x, void* y, void* routes, bool lone);
  void (*route_backward)(const Work&, const View& gy, const View& routes, void* gx);
  void (*route_follow)(const Work&, const View& tangent, const View& routes, void* y);
  void (*route_indices)(const Work&, const View& routes, i64* indices);
  void (*split_winners)(const Work&, const View& x, const void* y, std::uint8_t* winners);
  void (*split_backward)(const Work&, const View& gy, const std::uint8_t* winners, void* gx);
  void (*split_follow)(const Work&, const View& tangent, const std::uint8_t* winners, void* y);
  void (*average_forward)(const Work&, const View& x, void* y, bool count_padding, double divisor);
  void (*average_backward)(const Work&, const View& gy, void* gx, bool count_padding,
                           double divisor);
};

}  // namespace poolgrad
