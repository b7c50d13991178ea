// Maxima, minima and medians of small windows.
#pragma once

#include "forward/row_writer.hpp"
#include "forward/selecting_output.hpp"
#include "forward/small_windows.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Memory of a tile of values and, unless null, of their routes.
template <class Op>
class SelectingOutput {
 public:
  using Target = typename Op::Target;

  SelectingOutput(const Plan& plan, const Tile& tile, Dense y, Dense routes, Select which,
                  i64 flips, i64 longest, Arena& arena)
      : p_(plan),
        tile_(tile),
        which_(which),
        flips_(flips),
        y_(y, longest, arena),
        routes_(routes, longest, arena) {}

  void start(i64 plane) { first_ = plane * p_.out_plane(); }

  Target open(i64 od, i64 oh, i64, i64 at, i64 n, bool prefetches) {
    const i64 first = first_ + p_.output_index(od, oh, tile_.lo[2]) + at;
    return Op::target(y_.reserve(first, n, prefetches), routes_.reserve(first, n));
  }
  void close(Target to, i64 n) { finish<Op>(which_, flips_, to.y, to.routes, n); }

 private:
  const Plan& p_;
  const Tile tile_;
  const Select which_;
  const i64 flips_;
  RowWriter<typename Op::In> y_;
  RowWriter<std::uint8_t> routes_;
  i64 first_ = 0;  // output of the plane
};

template <class Op>
void small_windows(const Work& work, Algorithm algorithm, const View& x, Dense y, Dense routes,
                   Select which, i64 flips = 0) {
  over_small_windows<Op>(
      work, algorithm, x, flips, true, [&](const Tile& tile, i64 longest, Arena& arena) {
        return SelectingOutput<Op>(*work.plan, tile, y, routes, which, flips, longest, arena);
      });
}

// Computes small windows. Routed, Unrouted: the operator with and without routes.
// Two-byte floats and bytes are compared without conversion.
template <class Routed, class Unrouted>
void small_windows_by_routes(const Work& work, Algorithm algorithm, const View& x, Dense y,
                             Dense routes, Select which) {
  using T = typename Routed::In;
  const i64 flips = flips_of<T>(which, x.dtype);
  View from = x;
  if (sizeof(T) < 4) from.dtype = y.dtype = DtypeOf<T>::value;
  if (routes.data) small_windows<Routed>(work, algorithm, from, y, routes, which, flips);
  else small_windows<Unrouted>(work, algorithm, from, y, routes, which, flips);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
