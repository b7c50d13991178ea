// The selecting reductions, forward: what each translation unit has for the others.
#pragma once

#include <atomic>

#include "base/instruction_set.hpp"
#include "kernels.hpp"

namespace poolgrad {

// Small windows, as is_direct() has them, of float16, bfloat16, float32 and uint8.
void POOLGRAD_TABLE(select_small)(const Work&, Select, const View& x, Dense y, Dense routes);
// Those of float16 and bfloat16, in a unit of their own.
void POOLGRAD_TABLE(select_small_two_bytes)(const Work&, Select, const View& x, Dense y,
                                            Dense routes);

// Wide windows, as is_sheet() has them, compared as float32. left[plane] becomes true for each
// plane that is not made, as the sum of its inputs, or of those of a plane reduced together with
// it, is not finite: the general algorithm makes it.
void POOLGRAD_TABLE(select_wide)(const Work&, Select, const View& x, Dense y, Dense routes,
                                 std::atomic<bool>* left);

// The median.
void POOLGRAD_TABLE(select_median)(const Work&, const View& x, Dense y, Dense routes, bool lone);

// The random draw: false, and nothing done, unless x is finite.
bool POOLGRAD_TABLE(select_draw)(const Work&, const View& x, Dense y, Dense routes,
                                 const View& order, std::uint64_t seed);

}  // namespace poolgrad
