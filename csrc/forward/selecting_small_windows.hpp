// Runs the algorithms for small windows on arrays of one type.
#pragma once

#include "base/partition.hpp"
#include "forward/selecting_tiles.hpp"
#include "forward/selecting_units.hpp"

namespace poolgrad {
namespace {

// Computes small windows. Routed, Unrouted: the operator with and without routes.
// Two-byte floats and bytes are compared without conversion.
template <class Routed, class Unrouted>
void reduce(const Work& work, Algorithm algorithm, const View& x, Dense y, Dense routes,
            Select which) {
  using T = typename Routed::In;
  View from = x;
  if (sizeof(T) < 4) from.dtype = y.dtype = DtypeOf<T>::value;
  if (routes.data) small_windows<Routed>(work, algorithm, from, y, routes, which, false);
  else small_windows<Unrouted>(work, algorithm, from, y, routes, which, false);
}

}  // namespace
}  // namespace poolgrad
