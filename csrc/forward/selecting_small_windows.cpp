// The maximum and minimum of small windows of uint8 and float32, compiled once per instruction set.
#include "forward/selecting_small_windows.hpp"

namespace poolgrad {

void POOLGRAD_TABLE(select_small)(const Work& work, Select which, const View& x, Dense y,
                                  Dense routes) {
  if (x.dtype == Dtype::float16 || x.dtype == Dtype::bfloat16)
    return POOLGRAD_TABLE(select_small_two_bytes)(work, which, x, y, routes);
  if (x.dtype == Dtype::uint8)
    reduce_small<Best<std::uint8_t, true>, Best<std::uint8_t, false>>(work, x, y, routes, which);
  else reduce_small<Best<float, true>, Best<float, false>>(work, x, y, routes, which);
}

}  // namespace poolgrad
