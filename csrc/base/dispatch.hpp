// The table of kernels of the instruction set that runs.
#pragma once

#include <vector>

#include "kernels.hpp"

namespace poolgrad {

// Of each compiled instruction set that this machine has, best first.
const std::vector<const Kernels*>& available_kernels();
// Of the best of these, or of the one that the environment variable POOLGRAD_ISA names.
const Kernels& chosen_kernels();

}  // namespace poolgrad
