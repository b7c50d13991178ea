// From the cells of curve.hpp to outputs, to what the backward pass keeps of each window, and to
// the derivative by the parameter.
#pragma once

#include "curve.hpp"

namespace poolgrad {

inline constexpr int kMostKept = 3;  // numbers that an operator keeps of each window

enum class Blend { lp, lp_mean, lse, soft, expected };

namespace {

// How many numbers of each window the backward pass needs.
[[maybe_unused]] inline int kept_of(Blend blend) {
  return blend == Blend::soft || blend == Blend::expected ? 3 : 2;
}

[[maybe_unused]] inline float square_root(float x) { return __builtin_sqrtf(x); }
[[maybe_unused]] inline double square_root(double x) { return __builtin_sqrt(x); }

// One row of outputs; each pointer but `y` may be null.
template <class A>
struct Outcome {
  A *y, *kept[kMostKept], *sensitivity;
};

// cells: of the row; counts[i] * rows: the real inputs of window i.
template <class A, template <class> class Kind>
POOLGRAD_LOOP void finish(Blend blend, typename Curved<A, Kind>::Row cells, i64 n, const A* counts,
                          A rows, const Outcome<A>& out) {
  long_lanes<A>(n, [&](auto w, i64 i) {
    using V = Vec<A, w()>;
    const auto keep = [&](int k, V value) {
      if (out.kept[k]) store(out.kept[k] + i, value);
    };
    const auto c = Curved<A, Kind>::template load_cell<V>(cells, i);
    const V theta = load<V>(cells.set.theta + i), count = load<V>(counts + i) * rows,
            one = V{} + A(1);
    V y, sensitivity{};
    if constexpr (std::is_same_v<Kind<A>, Powers<A>>) {
      const bool mean = blend == Blend::lp_mean;
      const V share = mean ? one / count : one, sum = c.s * share;
      V root;
      if (cells.set.whole == 1) root = sum;
      else if (cells.set.whole == 2)
        for (i64 j = 0; j < w(); ++j) root[j] = square_root(sum[j]);
      else root = power<A, w()>(sum, one / theta, 0);
      const auto largest = theta == std::numeric_limits<A>::infinity();
      y = c.m == A(0) ? V{} : largest ? c.m : c.m * root;
      keep(0, y);
      keep(1, largest ? one / c.s : share);
      if (cells.set.sensitive) {
        const V slope = y / theta * (c.t / c.s - logarithm<A, w()>(sum) / theta);
        sensitivity = (y == A(0)) | largest ? V{} : slope;
      }
    } else if constexpr (std::is_same_v<Kind<A>, Exponentials<A>>) {
      const V inverse = one / c.s, shift = c.t * inverse;
      keep(0, c.m);
      keep(1, inverse);
      if (blend == Blend::soft) {
        y = c.m + shift;
        keep(2, shift);
      } else {
        const V level = logarithm<A, w()>(c.s / count);
        y = (c.m + level) / theta;
        sensitivity = (shift - level) / (theta * theta);
      }
    } else {
      const auto none = c.m == A(0);
      const V scale = c.m * c.s;
      y = none ? c.s / count : c.m * (c.t / c.s);
      keep(0, y);
      keep(1, none ? V{} : one / scale);
      keep(2, none ? one / count : V{});
    }
    store(out.y + i, y);
    if (out.sensitivity) store(out.sensitivity + i, sensitivity);
  });
}

template <class A, template <class> class Kind>
struct CurvedKit {
  Separable<Curved<A, Kind>> machine;
  typename Curved<A, Kind>::Row cells;
  A *counts, *y;
  A* theta;
};

// One plane's tile.
template <class A, template <class> class Kind>
void curved_tile(const Plan& p, const Tile& tile, Blend blend, CurvedKit<A, Kind>& kit, Dense y,
                 A* const* kept, A* sensitivity, i64 plane) {
  const Divisor real{false, 0};
  const i64 n = kit.machine.length();
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      const i64 first = plane + (od * p.axis[1].out + oh) * p.out_row() + tile.lo[2] * p.inner;
      const auto made = kit.machine.row(od, oh, kit.cells);
      const bool in_place = is<A>(y);
      Outcome<A> out{in_place ? as<A>(y, first) : kit.y, {}, nullptr};
      for (int k = 0; k < kMostKept; ++k) out.kept[k] = kept[k] ? kept[k] + first : nullptr;
      if (sensitivity) out.sensitivity = sensitivity + first;
      finish<A, Kind>(blend, made, n, kit.counts, static_cast<A>(real.of_rows(p, od, oh)), out);
      if (!in_place) write(y, first, kit.y, n);
    }
  }
}

}  // namespace
}  // namespace poolgrad
