// Scatter of weighted gradients, the backward pass of nonlinear reductions and of mixed pooling:
// adds the gradient of each output, times the derivative of the output by the input, to every input
// of its window.
#pragma once

#include "backward/tiles.hpp"
#include "forward/row_writer.hpp"
#include "geometry/partition.hpp"
#include "kernels.hpp"
#include "operators/divisor.hpp"
#include "simd/math.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Operands of the derivative of an output by one of its inputs, a vector of outputs.
template <class V, class P>
struct OutputOperands {
  V residuals[kMaxResiduals], theta;
  P route;  // of mixed pooling
};

// dy/dx = sign(x) (|x| / m)^(p - 1) factor; residuals: m, factor
template <class A>
struct PowerWeight {
  static constexpr int kResiduals = 2;
  template <int W, class K>
  static Vec<A, W> weight(Vec<A, W> x, const K& of, u32, int whole) {
    using V = Vec<A, W>;
    const V size = x < A(0) ? -x : x, one = V{} + A(1), m = of.residuals[0];
    V power = one;
    if (whole > 1) {
      power = integer_power(size == m ? one : size / m, whole - 1);
    } else if (whole == 0) {
      const V z = (of.theta - A(1)) * log_ratio<A, W>(size, m);
      power = size == m ? one : exponential<A, W>(z);
    }
    const V signed_power = (x < A(0) ? -power : power) * of.residuals[1];
    return x == A(0) ? V{} : signed_power;
  }
};

// exp(z) / s, z = |r| (x - m), or of -x; residuals: m, 1 / s
template <class A>
struct ExponentialWeight {
  static constexpr int kResiduals = 2;
  template <int W, class K>
  static Vec<A, W> weight(Vec<A, W> x, const K& of, u32, int) {
    using V = Vec<A, W>;
    const auto negated = of.theta < A(0);
    const V value = negated ? -x : x, rate = negated ? -of.theta : of.theta;
    const V z = value == of.residuals[0] ? V{} : rate * (value - of.residuals[0]);
    return exponentials<A, W>(z).value() * of.residuals[1];
  }
};

// w (1 + x - y), w = exp(x - m) / s, y = m + shift; residuals: m, 1 / s, shift
template <class A>
struct SoftWeight {
  static constexpr int kResiduals = 3;
  template <int W, class K>
  static Vec<A, W> weight(Vec<A, W> x, const K& of, u32, int) {
    using V = Vec<A, W>;
    const V d = x == of.residuals[0] ? V{} : x - of.residuals[0];
    const V w = exponentials<A, W>(d).value() * of.residuals[1];
    const V slope = w * (A(1) + (d - of.residuals[2]));
    return w == A(0) ? V{} : slope;
  }
};

// (2 x - y) / sum = (2 x / m - t / s) / s for positive inputs; residuals: m, 1 / s, t / s. In a
// window without positive inputs 1 / n for each input; residuals: 0, 1 / n
template <class A>
struct PositiveWeight {
  static constexpr int kResiduals = 3;
  template <int W, class K>
  static Vec<A, W> weight(Vec<A, W> x, const K& of, u32, int) {
    using V = Vec<A, W>;
    const V m = of.residuals[0], q = x == m ? V{} + A(1) : x / m;
    const V slope = (q + (q - of.residuals[2])) * of.residuals[1];
    const V weight = x > A(0) ? slope : x <= A(0) ? V{} : x;
    return m == A(0) ? of.residuals[1] : weight;
  }
};

// a + (1 - a) / n for the maximum, (1 - a) / n for the others; residuals: 1 / n
template <class A>
struct MixedWeight {
  static constexpr int kResiduals = 1;
  template <int W, class K>
  static Vec<A, W> weight(Vec<A, W>, const K& of, u32 tap, int) {
    using V = Vec<A, W>;
    using Lane = std::conditional_t<sizeof(A) == 4, std::int32_t, std::int64_t>;
    const auto is_winner = convert<Lane>(of.route == tap);
    return (is_winner ? of.theta : V{}) + (A(1) - of.theta) * of.residuals[0];
  }
};

// The arrays that a backward pass reads.
struct WeightedOperands {
  const View *gy, *x, *routes;  // x: null for mixed pooling; routes: null for the others
  const View* residuals;        // kMaxResiduals arrays at most; null for mixed pooling
  Divisor divisor;              // of the average in mixed pooling
};

// Computes tiles of input gradients. Mixed: the weights depend on the routes, else on the inputs.
template <class A, bool Mixed>
class WeightedBackward {
 public:
  // The inner loops of one operator, and the number of residuals of each window.
  using Loop = void (WeightedBackward::*)(A* to, const A* x, i64 first, i64 n, u32 tap) const;
  struct InnerLoops {
    int residuals;
    Loop windows, window;
  };
  template <class Weight>
  static constexpr InnerLoops loops() {
    return {Weight::kResiduals, &WeightedBackward::template add_windows<Weight>,
            &WeightedBackward::template add_window<Weight>};
  }

  WeightedBackward(const Plan& p, const InputTile& tile, Dense gx, const InnerLoops& loops,
                   Arena& arena)
      : p_(p),
        tile_(tile),
        loops_(loops),
        by_window_(p.inner > 1 || p.axis[2].kernel > 16 || !has_phases(p.axis[2])),
        phases_(p.axis[2], tile.lo[2], tile.hi[2], !by_window_, arena),
        inputs_(p.axis[2], tile.lo[2], tile.hi[2], !by_window_ && !Mixed, arena),
        gx_(gx, columns(), arena) {
    const i64 n = (phases_.outputs().hi - phases_.outputs().lo) * p.inner;
    gradients_ = arena.take<A>(n);
    for (A*& row : residuals_) row = arena.take<A>(n);
    columns_ = Mixed ? arena.take<A>(n) : nullptr;
    routes_ = Mixed ? arena.take<u32>(n) : nullptr;
    theta_ = arena.take<A>(n);
    x_ = arena.take<A>(larger(1, columns()));
  }

  // theta: one number for each output of a row
  A* theta() { return theta_; }
  i64 outputs() const { return phases_.outputs().hi - phases_.outputs().lo; }

  void run(const WeightedOperands& from, i64 plane, int whole, i64 target) {
    const Axis &height = p_.axis[1], &width = p_.axis[2];
    whole_ = whole;
    if (Mixed) from.divisor.fill_row(p_, phases_.outputs().lo, phases_.outputs().hi, columns_);
    for (i64 d = tile_.lo[0]; d < tile_.hi[0]; ++d) {
      for (i64 h = tile_.lo[1]; h < tile_.hi[1]; ++h) {
        const i64 first = target + ((d * height.in + h) * width.in + tile_.lo[2]) * p_.inner;
        A* row = gx_.reserve(first, columns());
        if (by_window_) std::memset(row, 0, static_cast<std::size_t>(columns()) * sizeof(A));
        else phases_.clear();
        const A* x = x_;
        if (!Mixed) {
          x = row_of(*from.x, plane_of(*from.x, plane), p_.inner, d, h, tile_.lo[2], tile_.hi[2],
                     x_);
          if (!by_window_) inputs_.load(x, A(0));
        }
        each_row_holding(p_, d, h, [&](i64 od, i64 oh, i64 tap) {
          read_outputs(from, plane, od, oh);
          if (by_window_) add_to_row(x, row, tap);
          else add_to_phases(tap);
        });
        if (!by_window_) phases_.store(row);
      }
    }
  }

 private:
  i64 columns() const { return (tile_.hi[2] - tile_.lo[2]) * p_.inner; }

  // Reads the gradients and residuals of output row (od, oh).
  void read_outputs(const WeightedOperands& from, i64 plane, i64 od, i64 oh) {
    const Range outs = phases_.outputs();
    const auto row = [&](const View& v, auto* buffer) {
      return row_of(v, plane_of(v, plane), p_.inner, od, oh, outs.lo, outs.hi, buffer);
    };
    gradient_row_ = row(*from.gy, gradients_);
    if constexpr (Mixed) {
      route_row_ = row(*from.routes, routes_);
      const A rows = static_cast<A>(from.divisor.of_rows(p_, od, oh));
      for (i64 i = 0; i < outputs() * p_.inner; ++i) residuals_[0][i] = A(1) / (rows * columns_[i]);
      residual_rows_[0] = residuals_[0];
    } else {
      for (int k = 0; k < loops_.residuals; ++k)
        residual_rows_[k] = row(from.residuals[k], residuals_[k]);
    }
  }

  template <int Residuals, class V, class P, class Get>
  OutputOperands<V, P> operands(Get&& get) const {
    OutputOperands<V, P> of{};
    for (int k = 0; k < Residuals; ++k) of.residuals[k] = get(residual_rows_[k]);
    of.theta = get(theta_);
    return of;
  }

  // Computes to[i] += g[i] * (weight of x[i] in window i).
  template <class Weight>
  POOLGRAD_LOOP void add_windows(A* to, const A* x, i64 first, i64 n, u32 tap) const {
    lanes<A>(n, [&](auto w, i64 i) {
      using V = Vec<A, w()>;
      using P = Vec<u32, w()>;
      auto of = operands<Weight::kResiduals, V, P>(
          [&](const A* row) { return load<V>(row + first + i); });
      if constexpr (Mixed) of.route = load<P>(route_row_ + first + i);
      const V value = Mixed ? V{} : load<V>(x + i);
      const V weight = Weight::template weight<w()>(value, of, tap, whole_);
      store(to + i, load<V>(to + i) + weight * load<V>(gradient_row_ + first + i));
    });
  }

  // The same for neighbouring taps of one window: x[t] is tap `tap` + t.
  template <class Weight>
  POOLGRAD_LOOP void add_window(A* to, const A* x, i64 output, i64 n, u32 tap) const {
    masked_lanes<A>(n, [&](auto w, i64 t, auto how) {
      using V = Vec<A, w()>;
      auto of = operands<Weight::kResiduals, V, Vec<u32, w()>>(
          [&](const A* row) { return V{} + row[output]; });
      if constexpr (Mixed) {
        for (int j = 0; j < w(); ++j) of.route[j] = route_row_[output] - static_cast<u32>(t + j);
      }
      const V value = Mixed ? V{} : how.template load<V>(x + t);
      const V weight = Weight::template weight<w()>(value, of, tap, whole_);
      how.store(to + t, how.template load<V>(to + t) + weight * gradient_row_[output]);
    });
  }

  void add_to_phases(i64 tap) {
    for (i64 kw = p_.axis[2].kernel - 1; kw >= 0; --kw) {
      (this->*loops_.windows)(phases_.at(kw), Mixed ? nullptr : inputs_.at(kw), 0, outputs(),
                              static_cast<u32>(tap + kw));
    }
  }

  void add_to_row(const A* x, A* row, i64 tap) {
    const Axis& width = p_.axis[2];
    const i64 lo = tile_.lo[2], inner = p_.inner;
    each_window_part(
        width, phases_.outputs(), lo, tile_.hi[2],
        [&](i64 output, const Span& s, i64 first, i64 end) {
          const auto at = [&](i64 t) { return (s.begin + t * width.dilation - lo) * inner; };
          const auto tap_at = [&](i64 t) { return static_cast<u32>(tap + s.first_tap + t); };
          if (inner == 1 && width.dilation == 1) {
            (this->*loops_.window)(row + at(first), x + at(first), output, end - first,
                                   tap_at(first));
            return;
          }
          for (i64 t = first; t < end; ++t) {
            (this->*loops_.windows)(row + at(t), x + at(t), output * inner, inner, tap_at(t));
          }
        });
  }

  const Plan& p_;
  const InputTile tile_;
  const InnerLoops loops_;
  const bool by_window_;  // adds window by window (few outputs, irregular windows), not tap by tap
  Phases<A> phases_, inputs_;
  RowWriter<A> gx_;
  int whole_ = 0;
  A *gradients_, *residuals_[kMaxResiduals], *columns_, *theta_, *x_;
  u32* routes_;
  const A *gradient_row_ = nullptr, *residual_rows_[kMaxResiduals] = {};
  const u32* route_row_ = nullptr;
};

// whole: p, if it is the same whole number for all channels, else 0.
template <class A, bool Mixed>
void weighted_backward(const Work& work, const WeightedOperands& from, Parameter theta, int whole,
                       const typename WeightedBackward<A, Mixed>::InnerLoops& loops, Dense gx) {
  const Plan& p = *work.plan;
  using State = WeightedBackward<A, Mixed>;
  over_inputs(
      work, [&](const InputTile& tile, Arena& arena) { return State(p, tile, gx, loops, arena); },
      [&](State& state, i64 plane, const InputTile&) {
        const A least = Mixed ? A(0) : least_parameter<A>();
        fill_parameter(p, theta, plane, state.outputs(), state.theta(), least);
        state.run(from, plane, whole, plane * p.in_plane());
      },
      true);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
