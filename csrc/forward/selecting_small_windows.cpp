// The maximum and minimum of small windows, compiled once per instruction set.
#include "base/partition.hpp"
#include "forward/selecting_tiles.hpp"
#include "forward/selecting_units.hpp"
#include "operators/extreme_two_byte.hpp"

namespace poolgrad {
namespace {

// Keeping, Forgetting: the reduction with routes and without. Inputs and outputs are elements of
// its type; the small types are compared as they are, without conversion.
template <class Keeping, class Forgetting>
void reduce(const Work& work, Algorithm algorithm, const View& x, Dense y, Dense routes,
            Select which) {
  using T = typename Keeping::In;
  View from = x;
  if (sizeof(T) < 4) from.dtype = y.dtype = DtypeOf<T>::value;
  if (routes.data) small_windows<Keeping>(work, algorithm, from, y, routes, which, false);
  else small_windows<Forgetting>(work, algorithm, from, y, routes, which, false);
}

}  // namespace

void POOLGRAD_TABLE(select_small)(const Work& work, Algorithm algorithm, Select which,
                                  const View& x, Dense y, Dense routes) {
  switch (x.dtype) {
    case Dtype::uint8:
      return reduce<Best<std::uint8_t, true>, Best<std::uint8_t, false>>(work, algorithm, x, y,
                                                                         routes, which);
    case Dtype::float16:
      return reduce<BestBits<Half, true>, BestBits<Half, false>>(work, algorithm, x, y, routes,
                                                                 which);
    case Dtype::bfloat16:
      return reduce<BestBits<Brain, true>, BestBits<Brain, false>>(work, algorithm, x, y, routes,
                                                                   which);
    default:
      return reduce<Best<float, true>, Best<float, false>>(work, algorithm, x, y, routes, which);
  }
}

}  // namespace poolgrad
