// Maximum and minimum of small windows of bytes and float32, compiled once per instruction set.
#include "forward/selecting_small_windows.hpp"

#include "forward/selecting_units.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

void select_small(const Work& work, Algorithm algorithm, Select which, const View& x, Dense y,
                  Dense routes) {
  using Byte = std::uint8_t;
  if (x.dtype == Dtype::float16 || x.dtype == Dtype::bfloat16)
    return select_small_two_bytes(work, algorithm, which, x, y, routes);
  if (x.dtype == Dtype::uint8 || x.dtype == Dtype::int8)
    small_windows_by_routes<SmallMax<Byte, true>, SmallMax<Byte, false>>(work, algorithm, x, y,
                                                                         routes, which);
  else
    small_windows_by_routes<SmallMax<float, true>, SmallMax<float, false>>(work, algorithm, x, y,
                                                                           routes, which);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
