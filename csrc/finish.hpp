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

// log((n + w) / n), where n + w = s; v = w / n
template <class A, int W>
Vec<A, W> log_mean(Vec<A, W> v, Vec<A, W> mean) {
  return v > A(-0.5) ? logarithm_1p<A, W>(v) : logarithm<A, W>(mean);
}

// t / s - log(s / n), the part of a derivative by theta that both kinds share. In small windows of
// z it is h / s - g(v) with g(v) = log(1 + v) - v / (1 + v), which is about v^2 / 2.
template <class A, int W, class V>
V slope_of(const Cell<V>& c, V count, V level) {
  const V v = c.w / count, near = A(1) + v;
  constexpr int terms = 2 * Format<A>::exp_terms - 8;
  V sum{};
  for (int k = terms; k >= 2; --k) {
    const A coefficient = static_cast<A>(k - 1) / static_cast<A>(k);
    sum = sum * v + (k % 2 ? -coefficient : coefficient);
  }
  const V direct = logarithm_1p<A, W>(v) - v / near;
  const V g = v > A(-0.1) ? sum * v * v : direct;
  return v > A(-0.5) ? c.h / (count * near) - g : c.t / c.s - level;
}

// Below, a parameter makes no difference, but its square vanishes.
template <class A>
constexpr A least_parameter() {
  return sizeof(A) == 4 ? A(1e-18) : A(1e-150);
}

// cells: of the row; counts[i] * rows: the real inputs of window i.
template <class A, template <class> class Kind>
POOLGRAD_LOOP void finish(Blend blend, typename Curved<A, Kind>::Row cells, i64 n, const A* counts,
                          A rows, const Outcome<A>& out) {
  const int whole = cells.set.whole;
  const bool sensitive = cells.set.sensitive;
  long_lanes<A>(n, [&](auto w, i64 i, auto how) {
    constexpr int W = w();
    using V = Vec<A, W>;
    const auto keep = [&](int k, V value) {
      if (out.kept[k]) how.store(out.kept[k] + i, value);
    };
    const auto c = Curved<A, Kind>::template load_cell<V>(cells, i, how);
    const V count = how.template load<V>(counts + i) * rows, one = V{} + A(1);
    const V theta = how.template load<V>(cells.set.theta + i);
    V y, sensitivity{};
    if constexpr (std::is_same_v<Kind<A>, Powers<A>>) {
      const bool mean = blend == Blend::lp_mean;
      const V share = mean ? one / count : one, sum = c.s * share;
      V root{}, factor = share, level{};
      if (whole == 1) {
        root = sum;
      } else if (whole == 2) {
        for (int j = 0; j < W; ++j) root[j] = square_root(sum[j]);
        factor = share / root;
      }
      if (whole == 0 || whole > 2 || sensitive) {
        level = mean && !whole ? log_mean<A, W>(c.w / count, sum) : logarithm<A, W>(sum);
      }
      if (whole == 0 || whole > 2) {
        const V exponent = level / theta;
        root = exponential<A, W>(exponent);
        root = exponent > Format<A>::largest ? V{} + std::numeric_limits<A>::infinity() : root;
        factor = share * exponential<A, W>(exponent - level);
      }
      y = c.m == A(0) ? V{} : c.m * root;
      keep(0, c.m);
      keep(1, factor);
      if (sensitive) {
        const V slope = mean ? slope_of<A, W>(c, count, level) : c.t / c.s - level;
        sensitivity = y == A(0) ? V{} : y * (slope / theta / theta);
      }
    } else if constexpr (std::is_same_v<Kind<A>, Exponentials<A>>) {
      const V inverse = one / c.s, shift = c.t * inverse;
      keep(0, c.m);
      keep(1, inverse);
      if (blend == Blend::soft) {
        y = c.m + shift;
        keep(2, shift);
      } else {
        const auto turned = theta < A(0);
        const V rate = turned ? -theta : theta;
        const V level = log_mean<A, W>(c.w / count, c.s / count), size = c.m + level / rate;
        y = turned ? -size : size;
        if (sensitive) sensitivity = slope_of<A, W>(c, count, level) / rate / rate;
      }
    } else {
      const V inverse = one / c.s, ratio = c.t * inverse;
      const auto none = c.m == A(0);
      y = none ? c.s / count : c.m * ratio;
      keep(0, c.m);
      keep(1, none ? one / count : inverse);
      keep(2, ratio);
    }
    how.store(out.y + i, y);
    if (out.sensitivity) how.store(out.sensitivity + i, sensitivity);
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
