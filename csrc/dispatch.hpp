// Chooses the instruction set whose kernels run.
#pragma once

#include <vector>

#include "kernels.hpp"

namespace poolgrad {

// The kernels of each compiled instruction set that this machine has, best first.
const std::vector<const Kernels*>& available_kernels();
// The first of available_kernels(), or the kernels that the environment variable POOLGRAD_ISA
// names.
const Kernels& chosen_kernels();

}  // namespace poolgrad
