// Chooses the algorithm of a kernel call by one table in choose.cpp: the first row whose algorithm
// handles the call and is expected to be the fastest.
//
// Two decisions depend on values and are therefore made while an algorithm runs, not here:
// - Algorithms that assume finite inputs (register_blocked of a maximum, squares of nonlinear
//   operators, `separable` of a maximum where rows are doubled) test what they read. Where a
//   NaN or, of all but register_blocked, an infinity is found, the rows are computed again by
//   `unrolled`, or the planes by `separable` without this assumption.
// - Algorithms that pad rows with the lowest number compute an output that equals it again, from
//   its valid inputs.
#pragma once

#include "base/common.hpp"
#include "base/thread_pool.hpp"
#include "kernels.hpp"

namespace poolgrad {

// The algorithms of the forward passes, then those of the backward passes.
// clang-format off
#define POOLGRAD_ALGORITHMS(each)                                                           \
  each(plane_means) each(unrolled) each(unrolled_joined_rows) each(register_blocked)        \
  each(column_sums) each(separable) each(copied_windows) each(sorting_network)              \
  each(sliding_ranks)                                                                       \
  each(plane_gradients) each(register_blocked_backward) each(gather)                        \
  each(transposed_separable) each(scatter_routes) each(scatter_weights)
// clang-format on
#define POOLGRAD_ENUMERATOR(name) name,
enum class Algorithm { POOLGRAD_ALGORITHMS(POOLGRAD_ENUMERATOR) };
inline constexpr int kAlgorithms = static_cast<int>(Algorithm::scatter_weights) + 1;

// What is computed.
enum class Task {
  extreme,  // maximum, minimum, maximum of a ReLU
  median,
  draw,
  average,
  nonlinear,
  routes_backward,
  average_backward,
  weights_backward,  // of nonlinear operators
};

// How an array that is read lies in memory.
struct ArrayLayout {
  Dtype dtype = Dtype::float32;
  bool contiguous_rows = false;      // a plane has no gaps between its rows
  bool contiguous_channels = false;  // with channels last: neighbours in memory
};

// A kernel call.
struct Call {
  Task task;
  const Plan* plan;      // flattened(), where the kernel flattens it
  ArrayLayout input{};   // x, or the gradient of the output
  ArrayLayout routes{};  // the routes that a backward pass reads
  bool flips = false;    // a minimum, or of int8: bits of the inputs are flipped in a copy
  int threads = 1;
  int vector_bytes = 16;      // vector size of the instruction set
  bool general_only = false;  // this instruction set is compiled without specialised algorithms
};

// Limits of the code of the algorithms.
inline constexpr i64 kMaxTaps = 64;                   // of a window: unrolled, register-blocked
inline constexpr int kMaxSorted = 25;                 // of a window: sorting network
inline constexpr i64 kMaxNonlinearTaps = kMaxTaps;    // of a window: unrolled nonlinear operators
inline constexpr i64 kMaxCopiedPlane = i64{1} << 12;  // elements: plane means
inline constexpr i64 kMaxInverseTaps = 32;            // windows that hold an input: gather
inline constexpr i64 kMaxFolded = 4;                  // inputs that are reduced at a time

Algorithm choose(const Call& call);

const char* name_of(Algorithm algorithm);

// Forces an algorithm onto every later call that it handles (tests, benchmarks); the table chooses
// for the other calls. An empty name lifts the restriction. Returns false for an unknown name.
bool force_algorithm(const char* name);

// RAII guard: records the algorithms that are chosen on this thread, and the tasks that each call
// is divided into.
class Trace : NonCopyable {
 public:
  struct Choice {
    Algorithm algorithm;
    TaskCount count;
  };

  // dry: calls are planned only; no array is read or written.
  explicit Trace(bool dry);
  ~Trace();

  void add(Algorithm algorithm);
  int size() const { return size_; }
  const Choice& operator[](int i) const { return choices_[i]; }

 private:
  static constexpr int kMaxChoices = 16;  // later choices are not recorded

  Trace* outer_;
  TaskCount* outer_count_;
  TaskCount before_;  // tasks before the first choice
  int size_ = 0;
  Choice choices_[kMaxChoices];
};

inline namespace POOLGRAD_ISA {

inline ArrayLayout layout_of(const View& v, const Plan& p) {
  const bool packed = v.width == 1 && !v.row_columns;
  return {v.dtype, packed && (v.height == p.axis[2].in || p.axis[1].in == 1), v.inner == 1};
}

// A call of this instruction set's kernels. x: the array that is read.
inline Call call_of(Task task, const Work& work, const View& x) {
  return {.task = task,
          .plan = work.plan,
          .input = layout_of(x, *work.plan),
          .threads = work.threads,
          .vector_bytes = kVectorBytes,
          .general_only = kGeneralOnly};
}

// Whether windows along an axis overlap so much that storing partial reductions of 2, 4, 8, ...
// neighbours costs less than reducing every window on its own.
inline bool shares_much(const Axis& a) { return a.overlap && a.kernel > kMaxFolded; }

// The largest number of windows along an axis that hold the same input.
inline i64 max_windows(const Axis& a) {
  return a.dilation == 1 ? ceil_div(a.kernel, a.stride) : a.kernel;
}

// Whether no input lies in two windows.
inline bool shares_nothing(const Plan& p) {
  return !p.axis[0].overlap && !p.axis[1].overlap && !p.axis[2].overlap;
}

}  // namespace POOLGRAD_ISA
}  // namespace poolgrad
