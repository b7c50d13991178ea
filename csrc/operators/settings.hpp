// Stores the settings of the nonlinear reductions.
#pragma once

#include "simd/vector.hpp"

namespace poolgrad {

enum class NonlinearOp { lp, lp_mean, lse, soft, expected };

inline constexpr int kMaxResiduals = 3;  // residuals of each window

namespace {

template <class A>
struct Loops;

template <class A>
struct Settings {
  const Loops<A>* loops = nullptr;  // of the reduction
  const A* theta = nullptr;         // one number for each output of a row: p, or r
  NonlinearOp kind = NonlinearOp::lp;
  int whole = 0;                         // p, if it is the same small whole number everywhere
  bool mean = false;                     // whether y is a mean of powers, not their sum
  bool sensitive = false;                // whether the derivative by theta is computed
  bool t = false, w = false, h = false;  // sums that are computed in addition to s
  static constexpr bool finite = false;  // all inputs and theta are finite
  static constexpr int taps = 0;         // inputs of every window, if a compile-time constant
};

// The settings as compile-time constants, for windows of N finite inputs. P: p, if it is 2 or 3.
template <NonlinearOp B, int N, int P = 0>
struct Fixed {
  static constexpr bool finite = true;
  static constexpr int taps = N;
  static constexpr NonlinearOp kind = B;
  static constexpr int whole = P;
  static constexpr bool mean = false, sensitive = false;
  static constexpr bool t = B == NonlinearOp::soft, w = B == NonlinearOp::lse, h = false;
};

// theta: of a row; whole: p, if it is a small whole number; sensitive: whether the derivative by
// theta is computed.
template <class A>
Settings<A> make_settings(const Loops<A>* loops, NonlinearOp kind, const A* theta, int whole,
                          bool sensitive) {
  const bool mean = kind == NonlinearOp::lp_mean,
             near = kind == NonlinearOp::lse || (mean && !whole);
  const bool slope = sensitive && kind != NonlinearOp::lp;
  const bool t = sensitive || kind == NonlinearOp::soft, w = near || slope;
  return {loops, theta, kind, whole, mean, sensitive, t, w, slope};
}

// The least magnitude of a parameter. A smaller one has the same result, but its square underflows.
template <class A>
constexpr A least_parameter() {
  return sizeof(A) == 4 ? A(1e-18) : A(1e-150);
}

// The number of residuals of each window.
[[maybe_unused]] inline int residuals_of(NonlinearOp kind) {
  return kind == NonlinearOp::soft || kind == NonlinearOp::expected ? 3 : 2;
}

}  // namespace
}  // namespace poolgrad
