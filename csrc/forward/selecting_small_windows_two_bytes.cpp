// The maximum and minimum of small windows of float16 and bfloat16, compiled once per instruction
// set.
#include "forward/selecting_small_windows.hpp"
#include "operators/extreme_two_byte.hpp"

namespace poolgrad {

void POOLGRAD_TABLE(select_small_two_bytes)(const Work& work, Select which, const View& x, Dense y,
                                            Dense routes) {
  if (x.dtype == Dtype::float16)
    reduce_small<BestBits<Half, true>, BestBits<Half, false>>(work, x, y, routes, which);
  else reduce_small<BestBits<Brain, true>, BestBits<Brain, false>>(work, x, y, routes, which);
}

}  // namespace poolgrad
