#include "dispatch.hpp"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "base/cpu_features.hpp"

namespace poolgrad {

// clang-format off
namespace avx512 { extern const Kernels kernels; }
namespace avx2 { extern const Kernels kernels; }
namespace x86_64_v2 { extern const Kernels kernels; }
namespace neon { extern const Kernels kernels; }
inline namespace baseline { extern const Kernels kernels; }
// clang-format on

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> found = [] {
    std::vector<const Kernels*> list;
#if defined(POOLGRAD_HAS_AVX512)
    if (has_avx512()) list.push_back(&avx512::kernels);
#endif
#if defined(POOLGRAD_HAS_AVX2)
    if (has_avx2()) list.push_back(&avx2::kernels);
#endif
#if defined(POOLGRAD_HAS_X86_64_V2)
    if (has_x86_64_v2()) list.push_back(&x86_64_v2::kernels);
#endif
#if defined(POOLGRAD_HAS_NEON)
    list.push_back(&neon::kernels);
#endif
#if defined(POOLGRAD_HAS_BASELINE)
    list.push_back(&baseline::kernels);
#endif
    if (list.empty()) {
      throw std::runtime_error(
          "poolgrad was not compiled for this processor; the default build "
          "requires x86-64-v2 (SSE4.2)");
    }
    return list;
  }();
  return found;
}

const Kernels& chosen_kernels() {
  static const Kernels& chosen = []() -> const Kernels& {
    const auto& found = available_kernels();
    const char* name = std::getenv("POOLGRAD_ISA");
    if (!name || !*name) return *found.front();
    std::string names;
    for (const Kernels* k : found) {
      if (std::string(k->name) == name) return *k;
      names += (names.empty() ? "" : ", ") + std::string(k->name);
    }
    throw std::runtime_error("POOLGRAD_ISA must be one of " + names + " on this machine, got " +
                             name);
  }();
  return chosen;
}

}  // namespace poolgrad
