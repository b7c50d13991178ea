// Which instruction set's kernels run: the best that this machine has, or the one that is asked
// for.
#include "dispatch.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace poolgrad {

#if defined(__x86_64__)
extern const Kernels kernels_avx512, kernels_avx2, kernels_x86_64_v2;
#elif defined(__aarch64__)
extern const Kernels kernels_neon;
#else
extern const Kernels kernels_baseline;
#endif

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> found = [] {
    std::vector<const Kernels*> list;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd")) {
      list.push_back(&kernels_avx512);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2")) {
      list.push_back(&kernels_avx2);
    }
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt")) {
      list.push_back(&kernels_x86_64_v2);
    }
#elif defined(__aarch64__)
    list.push_back(&kernels_neon);
#else
    list.push_back(&kernels_baseline);
#endif
    if (list.empty()) throw std::runtime_error("poolgrad needs an x86-64-v2 processor (SSE4.2)");
    return list;
  }();
  return found;
}

const Kernels& chosen_kernels() {
  static const Kernels& chosen = []() -> const Kernels& {
    const auto& found = available_kernels();
    const char* wanted = std::getenv("POOLGRAD_ISA");
    if (!wanted || !*wanted) return *found.front();
    std::string names;
    for (const Kernels* k : found) {
      if (std::string(k->name) == wanted) return *k;
      names += (names.empty() ? "" : ", ") + std::string(k->name);
    }
    throw std::runtime_error("POOLGRAD_ISA must be one of " + names + " on this machine, got " +
                             wanted);
  }();
  return chosen;
}

}  // namespace poolgrad
