// Prints the best instruction set of this machine that the kernels are compiled for, for a build
// that is to run here (POOLGRAD_ISA=host).
#include <cstdio>

#include "cpu_features.hpp"

int main() {
  std::puts(poolgrad::has_avx512() ? "avx512" : poolgrad::has_avx2() ? "avx2" : "x86_64_v2");
}
