// What the units of small windows share.
#pragma once

#include "base/partition.hpp"
#include "forward/selecting_tiles.hpp"
#include "forward/selecting_units.hpp"

namespace poolgrad {
namespace {

// Keeping, Forgetting: the reduction with routes and without. Inputs and outputs are elements of
// its type; the small types are compared as they are, without conversion.
template <class Keeping, class Forgetting>
void reduce_small(const Work& work, const View& x, Dense y, Dense routes, Select which) {
  using T = typename Keeping::In;
  View from = x;
  if (sizeof(T) < 4) from.dtype = y.dtype = DtypeOf<T>::value;
  if (routes.data) small_windows<Keeping>(work, from, y, routes, which, false);
  else small_windows<Forgetting>(work, from, y, routes, which, false);
}

}  // namespace
}  // namespace poolgrad
