// Maximum and minimum of small windows, compiled once per instruction set.
#include "base/partition.hpp"
#include "forward/selecting_tiles.hpp"
#include "forward/selecting_units.hpp"
#include "operators/extreme_two_byte.hpp"

namespace poolgrad {
namespace {

// KeepingRoutes, WithoutRoutes: the reduction with and without routes. Two-byte floats and bytes
// are compared as they are, without conversion.
template <class KeepingRoutes, class WithoutRoutes>
void reduce(const Work& work, Algorithm algorithm, const View& x, Dense y, Dense routes,
            Select which) {
  using T = typename KeepingRoutes::In;
  View from = x;
  if (sizeof(T) < 4) from.dtype = y.dtype = DtypeOf<T>::value;
  if (routes.data) small_windows<KeepingRoutes>(work, algorithm, from, y, routes, which, false);
  else small_windows<WithoutRoutes>(work, algorithm, from, y, routes, which, false);
}

}  // namespace

void POOLGRAD_TABLE(select_small)(const Work& work, Algorithm algorithm, Select which,
                                  const View& x, Dense y, Dense routes) {
  switch (x.dtype) {
    case Dtype::uint8:
      return reduce<SmallMax<std::uint8_t, true>, SmallMax<std::uint8_t, false>>(work, algorithm, x,
                                                                                 y, routes, which);
    case Dtype::float16:
      return reduce<TwoByteMax<Half, true>, TwoByteMax<Half, false>>(work, algorithm, x, y, routes,
                                                                     which);
    case Dtype::bfloat16:
      return reduce<TwoByteMax<Brain, true>, TwoByteMax<Brain, false>>(work, algorithm, x, y,
                                                                       routes, which);
    default:
      return reduce<SmallMax<float, true>, SmallMax<float, false>>(work, algorithm, x, y, routes,
                                                                   which);
  }
}

}  // namespace poolgrad
