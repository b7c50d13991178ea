#pragma once

#include <vector>

#include "kernels.hpp"

namespace poolgrad {

const std::vector<const Kernels*>& available_kernels();  // best first
const Kernels& chosen_kernels();                         // POOLGRAD_ISA, or the best

}  // namespace poolgrad
