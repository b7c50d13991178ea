// Runs the algorithms for small windows on arrays of one type.
#pragma once

#include "base/partition.hpp"
#include "forward/selecting_tiles.hpp"
#include "forward/selecting_units.hpp"

namespace poolgrad {
namespace {

// Computes small windows. KeepingRoutes, WithoutRoutes: the operator with and without routes.
// Two-byte floats and bytes are compared without conversion.
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
}  // namespace poolgrad
