// Declares the functions that selecting reductions define in separate translation units.
#pragma once

#include "base/common.hpp"
#include "choose.hpp"
#include "kernels.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Maximum and minimum by Algorithm::unrolled, unrolled_joined_rows or register_blocked. float16,
// bfloat16, uint8 and int8 are compared as they are, all other dtypes as float32.
void select_small(const Work&, Algorithm, Select, const View& x, Dense y, Dense routes);
// The same for float16 and bfloat16.
void select_small_two_bytes(const Work&, Algorithm, Select, const View& x, Dense y, Dense routes);

// The median.
void select_median(const Work&, const View& x, Dense y, Dense routes);

// The random draw. Returns false, and writes nothing, if an input is not finite.
bool select_draw(const Work&, const View& x, Dense y, Dense routes, const View& order,
                 std::uint64_t seed);

}  // namespace poolgrad::inline POOLGRAD_ISA
