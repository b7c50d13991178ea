// Integer types, macros and the namespace of the code that is compiled once for each instruction
// set.
#pragma once

#include <bit>
#include <cstdint>

// The instruction set that a unit is compiled for, such as avx2. Headers of kernels are in the
// namespace poolgrad::POOLGRAD_ISA, so that the linker does not merge a function with the one of
// another instruction set. Units that are compiled once, for any processor, use the namespace
// `baseline`.
#if !defined(POOLGRAD_ISA)
#define POOLGRAD_ISA baseline
#endif

// For inner loops and constructors of per-task state: what they call is inlined (flatten), as the
// operator of a loop is a function object; they themselves are not, to save machine code.
#define POOLGRAD_LOOP __attribute__((noinline, flatten))
// For the steps of inner loops: a call would cost as much as its work.
#define POOLGRAD_INLINE inline __attribute__((always_inline))
#define POOLGRAD_UNROLL _Pragma("GCC unroll 32")

namespace poolgrad {

using i64 = std::int64_t;
using u32 = std::uint32_t;

// Base of classes that own a resource: they are neither copied nor moved.
class NonCopyable {
 protected:
  NonCopyable() = default;
  NonCopyable(const NonCopyable&) = delete;
  NonCopyable& operator=(const NonCopyable&) = delete;
};

inline namespace POOLGRAD_ISA {

// The fallback build, for processors without a newer instruction set, has the general algorithms
// only: it is compiled in addition to another one and seldom runs.
#if defined(POOLGRAD_GENERAL_ONLY)
inline constexpr bool kGeneralOnly = true;
#else
inline constexpr bool kGeneralOnly = false;
#endif

// Whether arrays of elements T have specialised algorithms beside the general ones. float64 and
// int64 have none: they are rare in networks, and would double the time to compile.
template <class T>
inline constexpr bool kSpecialised = !kGeneralOnly && sizeof(T) <= 4;

constexpr i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
constexpr i64 larger(i64 a, i64 b) { return a > b ? a : b; }
constexpr i64 ceil_div(i64 a, i64 b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
constexpr i64 floor_div(i64 a, i64 b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
// The least power of two that is not less than n, for ring buffers: divisions are slow.
constexpr i64 power_of_two(i64 n) { return i64(std::bit_ceil(std::uint64_t(n))); }

}  // namespace POOLGRAD_ISA
}  // namespace poolgrad
