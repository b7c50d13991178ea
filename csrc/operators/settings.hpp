// What the arithmetic of a blending reduction depends on beside the input.
#pragma once

#include "simd/vector.hpp"

namespace poolgrad {

enum class Blend { lp, lp_mean, lse, soft, expected };

inline constexpr int kMostKept = 3;  // numbers that an operator keeps of each window

namespace {

template <class A>
struct Loops;

template <class A>
struct Settings {
  const Loops<A>* loops = nullptr;  // of the reduction
  const A* theta = nullptr;         // one number for each output of a row: p, or r
  Blend blend = Blend::lp;
  int whole = 0;                         // p, if it is the same small whole number everywhere
  bool mean = false;                     // whether y is a mean of powers, not their sum
  bool sensitive = false;                // whether the derivative by theta is wanted
  bool t = false, w = false, h = false;  // which sums are wanted beside s
  static constexpr bool finite = false;  // whether all inputs are, and theta
  static constexpr int places = 0;       // what all windows hold, if the compiler knows it
};

// The same of windows of N finite inputs, where the compiler knows the rest, too; P: p, if it is
// such a number.
template <Blend B, int N, int P = 0>
struct Fixed {
  static constexpr bool finite = true;
  static constexpr int places = N;
  static constexpr Blend blend = B;
  static constexpr int whole = P;
  static constexpr bool mean = false, sensitive = false;
  static constexpr bool t = B == Blend::soft, w = B == Blend::lse, h = false;
};

// theta: of a row; whole: p, if it is a small whole number; sensitive: whether the derivative by
// theta is wanted.
template <class A>
Settings<A> settings_of(const Loops<A>* loops, Blend blend, const A* theta, int whole,
                        bool sensitive) {
  const bool mean = blend == Blend::lp_mean, near = blend == Blend::lse || (mean && !whole);
  const bool slope = sensitive && blend != Blend::lp;
  const bool t = sensitive || blend == Blend::soft, w = near || slope;
  return {loops, theta, blend, whole, mean, sensitive, t, w, slope};
}

// Below, a parameter makes no difference, but its square vanishes.
template <class A>
constexpr A least_parameter() {
  return sizeof(A) == 4 ? A(1e-18) : A(1e-150);
}

// How many numbers of each window the backward pass needs.
[[maybe_unused]] inline int kept_of(Blend blend) {
  return blend == Blend::soft || blend == Blend::expected ? 3 : 2;
}

}  // namespace
}  // namespace poolgrad
