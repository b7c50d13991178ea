// Fills the table of kernels of one instruction set.
#include "kernels.hpp"

#include "base/instruction_set.hpp"

namespace poolgrad {

extern const SelectKernels POOLGRAD_TABLE(select_kernels);
extern const RouteKernels POOLGRAD_TABLE(route_kernels);
extern const BlendKernels POOLGRAD_TABLE(blend_kernels);
extern const CurveKernels POOLGRAD_TABLE(curve_kernels);

extern const Kernels POOLGRAD_TABLE(kernels);
const Kernels POOLGRAD_TABLE(kernels) = {
    POOLGRAD_NAME(POOLGRAD_ISA),    &POOLGRAD_TABLE(select_kernels), &POOLGRAD_TABLE(route_kernels),
    &POOLGRAD_TABLE(blend_kernels), &POOLGRAD_TABLE(curve_kernels),
};

}  // namespace poolgrad
