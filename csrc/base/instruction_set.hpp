// Names the kernels of one instruction set, and lists the types that have specialised algorithms.
#pragma once

// POOLGRAD_TABLE(kernels) is kernels_avx2, kernels_avx512, ...
#define POOLGRAD_JOIN_(name, isa) name##_##isa
#define POOLGRAD_JOIN(name, isa) POOLGRAD_JOIN_(name, isa)
#define POOLGRAD_TABLE(name) POOLGRAD_JOIN(name, POOLGRAD_ISA)
#define POOLGRAD_NAME_(isa) #isa
#define POOLGRAD_NAME(isa) POOLGRAD_NAME_(isa)

namespace poolgrad {
namespace {

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

}  // namespace
}  // namespace poolgrad
