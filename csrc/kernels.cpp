// Fills the table of kernels of one instruction set.
#include "kernels.hpp"

#define POOLGRAD_NAME_(isa) #isa
#define POOLGRAD_NAME(isa) POOLGRAD_NAME_(isa)

namespace poolgrad::inline POOLGRAD_ISA {

extern const SelectKernels select_kernels;
extern const RouteKernels route_kernels;
extern const WeightedKernels weighted_kernels;
extern const NonlinearKernels nonlinear_kernels;

extern const Kernels kernels;
const Kernels kernels = {POOLGRAD_NAME(POOLGRAD_ISA), &select_kernels, &route_kernels,
                         &weighted_kernels, &nonlinear_kernels};

}  // namespace poolgrad::inline POOLGRAD_ISA
