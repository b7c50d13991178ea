// Fills the table of kernels of one instruction set.
#include "kernels.hpp"

#include "base/instruction_set.hpp"

namespace poolgrad {

extern const SelectKernels POOLGRAD_TABLE(select_kernels);
extern const RouteKernels POOLGRAD_TABLE(route_kernels);
extern const WeightedKernels POOLGRAD_TABLE(weighted_kernels);
extern const NonlinearKernels POOLGRAD_TABLE(nonlinear_kernels);

extern const Kernels POOLGRAD_TABLE(kernels);
const Kernels POOLGRAD_TABLE(kernels) = {
    POOLGRAD_NAME(POOLGRAD_ISA),        &POOLGRAD_TABLE(select_kernels),
    &POOLGRAD_TABLE(route_kernels),     &POOLGRAD_TABLE(weighted_kernels),
    &POOLGRAD_TABLE(nonlinear_kernels),
};

}  // namespace poolgrad
