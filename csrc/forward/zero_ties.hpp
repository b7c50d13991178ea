// Computes ties="zero": a window in which several inputs equal the result is routed nowhere. Runs
// after the values and routes are computed.
#pragma once

#include "forward/row_reader.hpp"
#include "geometry/partition.hpp"
#include "simd/vector.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Counts the inputs that equal the result of their window, for a row of outputs.
template <class A>
class TieCounter {
 public:
  TieCounter(const Plan& p, const Tile& tile, Arena& arena, const View& x)
      : p_(p),
        tile_(tile),
        n_((tile.hi[2] - tile.lo[2]) * p.inner),
        reader_(p, x, tile.lo[2], tile.hi[2], {}, arena),
        results_(arena.take<A>(n_)),
        counts_(arena.take<Count>(n_)) {}

  void run(const char* inputs, Dense y, Dense routes, i64 plane) {
    const i64 bytes = size_of(routes.dtype);
    reader_.start(inputs);
    for (i64 od = tile_.lo[0]; od < tile_.hi[0]; ++od) {
      for (i64 oh = tile_.lo[1]; oh < tile_.hi[1]; ++oh) {
        const i64 first = plane + p_.output_index(od, oh, tile_.lo[2]);
        const A* results = read(y, first, n_, results_);
        std::fill(counts_, counts_ + n_, Count{0});
        each_line(p_, od, oh, [&](i64, i64 d, i64 h) { count_line(reader_.row(d, h), results); });
        for (i64 i = 0; i < n_; ++i) {
          if (counts_[i] > 1)
            std::memset(routes.data + (first + i) * bytes, 0xFF, static_cast<std::size_t>(bytes));
        }
      }
    }
  }

 private:
  using Count = std::conditional_t<sizeof(A) == 4, std::int32_t, i64>;  // as wide as a comparison

  // Counts the inputs of one line of each window.
  void count_line(const A* row, const A* results) {
    const Axis& width = p_.axis[2];
    const i64 step = reader_.step();
    for (i64 o = tile_.lo[2], outputs; o < tile_.hi[2]; o += outputs) {
      const bool full = p_.inner == 1 && width.regular() && o >= width.full_lo && o < width.full_hi;
      outputs = full ? smaller(tile_.hi[2], width.full_hi) - o : 1;
      const Span s = span_of(width, o);
      const i64 at = (o - tile_.lo[2]) * p_.inner;
      count(row + s.begin * step, full ? width.stride * step : 1, width.dilation * step, s.taps,
            results + at, counts_ + at, outputs * p_.inner);
    }
  }

  // Counts the inputs from[i * step + t * gap] of windows 0 ... n.
  POOLGRAD_LOOP static void count(const A* from, i64 step, i64 gap, i64 taps, const A* results,
                                  Count* counts, i64 n) {
    lanes<A>(n, [&](auto w, i64 i) {
      using V = Vec<A, w()>;
      using C = Vec<Count, w()>;
      const V result = load<V>(results + i);
      C sum = load<C>(counts + i);
      const auto add = [&](auto value) {
        for (i64 t = 0; t < taps; ++t)
          sum -= bits_as<C>(value(from + i * step + t * gap) == result);
      };
      if (step == 1) add([](const A* at) { return load<V>(at); });
      else add([&](const A* at) { return load_strided<V>(at, step); });
      store(counts + i, sum);
    });
  }

  const Plan& p_;
  const Tile tile_;
  const i64 n_;
  Reader<A> reader_;
  A* results_;
  Count* counts_;
};

// Changes the routes of windows with ties.
inline void route_ties_nowhere(const Work& work, const View& x, Dense y, Dense routes) {
  by_order(x.dtype, [&](auto a) {
    using A = decltype(a);
    over_states<Tile, TieCounter<A>>(
        work, true,
        [&](TieCounter<A>& counter, i64 plane) {
          counter.run(plane_of(x, plane), y, routes, plane * work.plan->out_plane());
        },
        x);
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
