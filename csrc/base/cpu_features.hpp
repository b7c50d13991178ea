// Detects whether this processor has every instruction of the sets that the kernels are compiled
// for: x86-64-v2, x86-64-v3 (avx2) and x86-64-v4 (avx512), as the x86-64 psABI defines them.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace poolgrad {

#if defined(__x86_64__)
// Extensions of x86-64-v3 for which GCC 12's __builtin_cpu_supports has no names. The operating
// system need not save state for them beyond that of AVX.
inline bool has_lzcnt_movbe_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kMovbe = 1u << 22, kF16c = 1u << 29, kLzcnt = 1u << 5;
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return false;
  if (!(ecx & kMovbe) || !(ecx & kF16c)) return false;
  return __get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx) && (ecx & kLzcnt);
}
inline bool has_x86_64_v2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") &&
         __builtin_cpu_supports("popcnt");
}
inline bool has_avx2() {
  return has_x86_64_v2() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && has_lzcnt_movbe_f16c();
}
inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512cd");
}
#endif

}  // namespace poolgrad
