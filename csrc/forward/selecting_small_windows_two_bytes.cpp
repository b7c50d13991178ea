// Maximum and minimum of small windows of float16 and bfloat16, compiled once per instruction set.
#include "forward/selecting_small_windows.hpp"
#include "forward/selecting_units.hpp"
#include "operators/extreme_two_byte.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

void select_small_two_bytes(const Work& work, Algorithm algorithm, Select which, const View& x,
                            Dense y, Dense routes) {
  if (x.dtype == Dtype::float16)
    small_windows_by_routes<TwoByteMax<Float16, true>, TwoByteMax<Float16, false>>(
        work, algorithm, x, y, routes, which);
  else
    small_windows_by_routes<TwoByteMax<BFloat16, true>, TwoByteMax<BFloat16, false>>(
        work, algorithm, x, y, routes, which);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
