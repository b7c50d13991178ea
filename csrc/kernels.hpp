// Declares the table of kernels that each instruction set provides; bindings/ calls kernels through
// it. Its structs are trivially copyable: they pass between code that is compiled for different
// instruction sets, whose functions the linker must not merge.
#pragma once

#include "geometry/view.hpp"

namespace poolgrad {

// The windows of a call and its number of threads. Arrays that are read have any strides; arrays
// that are written are dense, in the order leading axes, depth, height, width, inner.
struct Work {
  const Plan* plan = nullptr;
  int threads = 1;
};

enum class NonlinearOp { lp, lp_mean, log_mean_exp, soft, expected };

inline constexpr int kMaxResiduals = 3;  // residuals of each window

// What a selecting reduction selects. rectified: the ReLU of the maximum.
enum class Select { largest, rectified, smallest, median };

// Layout of packed routes: rows of pixels of `inner` routes each, of `bits` bits. Routes of the
// same channel in neighbouring pixels share a byte. nowhere: a route of all ones means kNowhere.
struct PackedRows {
  i64 rows, pixels, inner;
  int bits;
  bool nowhere;

  i64 bytes(i64 n) const { return (n * bits + 7) / 8; }  // bytes of n pixels of one channel
  i64 size() const { return rows * bytes(pixels) * inner; }
};

struct SelectKernels {
  // Writes y and, unless null, the routes of the winners. zero_ties: ties are routed nowhere.
  void (*forward)(const Work&, Select, const View& x, Dense y, Dense routes, bool zero_ties);
  // order: strides of the outputs in logical order. Returns false, without a result, unless all
  // inputs are finite.
  bool (*draw)(const Work&, const View& x, Dense y, Dense routes, const View& order,
               std::uint64_t seed);
  void (*split_winners)(const Work&, Select, const View& x, const View& y, std::uint8_t* winners);
};

struct RouteKernels {
  void (*backward)(const Work&, const View& gy, const View& routes, Dense gx);
  void (*jvp)(const Work&, const View& tangent, const View& routes, Dense y);
  void (*pack)(const PackedRows&, const std::uint8_t* from, std::uint8_t* to, int threads);
  void (*unpack)(const PackedRows&, const std::uint8_t* from, std::uint8_t* to, int threads);
  void (*indices)(const Work&, const View& routes, i64* indices);
  void (*split_backward)(const Work&, const View& gy, const std::uint8_t* winners, Dense gx);
  void (*split_jvp)(const Work&, const View& tangent, const std::uint8_t* winners, Dense y);
  // Return false and store an invalid index, without a result, if an index is outside its plane.
  bool (*unpool)(const Work&, const View& x, const View& indices, Dense y, i64* invalid);
  bool (*unpool_backward)(const Work&, const View& gy, const View& indices, Dense gx, i64* invalid);
};

struct WeightedKernels {
  void (*average)(const Work&, const View& x, Dense y, bool count_padding, double divisor);
  void (*average_backward)(const Work&, const View& gy, Dense gx, bool count_padding,
                           double divisor);
  // sensitivity: dy/dalpha in the type of the arithmetic, or null
  void (*mixed)(const Work&, const View& x, Parameter alpha, bool count_padding, Dense y,
                Dense routes, void* sensitivity);
  void (*mixed_backward)(const Work&, const View& gy, const View& routes, Parameter alpha,
                         bool count_padding, Dense gx);
};

struct NonlinearKernels {
  // residuals, sensitivity (dy/dtheta): in the type of the arithmetic; each pointer may be null
  void (*forward)(const Work&, NonlinearOp, const View& x, Parameter theta, Dense y,
                  void* const* residuals, void* sensitivity);
  void (*backward)(const Work&, NonlinearOp, const View& gy, const View& x, Parameter theta,
                   const View* residuals, Dense gx);
};

struct Kernels {
  const char* name;
  const SelectKernels* select;
  const RouteKernels* route;
  const WeightedKernels* weighted;
  const NonlinearKernels* nonlinear;
};

}  // namespace poolgrad
