// Scatter of weighted gradients, the backward pass of nonlinear reductions: adds the gradient of
// each output, times the derivative of the output by the input, to every input of its window.
#pragma once

#include "backward/tiles.hpp"
#include "forward/row_writer.hpp"
#include "geometry/partition.hpp"
#include "kernels.hpp"
#include "simd/math.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Operands of the derivative of an output by one of its inputs, a vector of outputs.
template <class V>
struct OutputOperands {
  V residuals[kMaxResiduals], theta;
};

// dy/dx = sign(x) (|x| / m)^(p - 1) factor; residuals: m, factor
template <class A>
struct PowerWeight {
  static constexpr int kResiduals = 2;
  template <int W, class K>
  static Vec<A, W> weight(Vec<A, W> x, const K& of, int whole) {
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
  static Vec<A, W> weight(Vec<A, W> x, const K& of, int) {
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
  static Vec<A, W> weight(Vec<A, W> x, const K& of, int) {
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
  static Vec<A, W> weight(Vec<A, W> x, const K& of, int) {
    using V = Vec<A, W>;
    const V m = of.residuals[0], q = x == m ? V{} + A(1) : x / m;
    const V slope = (q + (q - of.residuals[2])) * of.residuals[1];
    const V weight = x > A(0) ? slope : x <= A(0) ? V{} : x;
    return m == A(0) ? of.residuals[1] : weight;
  }
};

// The arrays that a backward pass reads.
struct WeightedOperands {
  const View *gy, *x;
  const View* residuals;  // kMaxResiduals arrays at most
};

// Computes tiles of input gradients.
template <class A>
class WeightedBackward {
 public:
  // The inner loops of one operator, and the number of residuals of each window.
  using Loop = void (WeightedBackward::*)(A* to, const A* x, i64 first, i64 n) const;
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
        by_taps_(adds_by_taps(p)),
        outs_(reaching(p.axis[2], tile.lo[2], tile.hi[2])),
        gx_(gx, columns(), arena) {
    if (by_taps_) {
      const Axis& a = p.axis[2];
      outs_.lo = smaller(outs_.lo, (tile.lo[2] + a.lo) / a.stride);
      before_ = tile.lo[2] + a.lo - outs_.lo * a.stride;
      length_ =
          larger(outputs() + reach(a) / a.stride + 1, ceil_div(before_ + columns(), a.stride));
      sums_ = arena.take<A>(length_ * a.stride);
      inputs_ = arena.take<A>(length_ * a.stride);
    }
    const i64 n = outputs() * p.inner;
    gradients_ = arena.take<A>(n);
    for (A*& row : residuals_) row = arena.take<A>(n);
    theta_ = arena.take<A>(n);
    x_ = arena.take<A>(larger(1, columns()));
  }

  // theta: one number for each output of a row
  A* theta() { return theta_; }
  i64 outputs() const { return outs_.hi - outs_.lo; }

  void run(const WeightedOperands& from, i64 plane, int whole, i64 target) {
    const Axis& width = p_.axis[2];
    const i64 n = columns(), s = width.stride;
    whole_ = whole;
    if (by_taps_) std::fill(inputs_, inputs_ + length_ * s, A(0));
    i64 at = target + first_input(p_, tile_);
    for (i64 d = tile_.lo[0]; d < tile_.hi[0]; ++d) {
      for (i64 h = tile_.lo[1]; h < tile_.hi[1]; ++h, at += n) {
        A* row = gx_.reserve(at, n);
        const A* x =
            row_of(*from.x, plane_of(*from.x, plane), p_.inner, d, h, tile_.lo[2], tile_.hi[2], x_);
        if (by_taps_) {
          std::fill(sums_, sums_ + length_ * s, A(0));
          separate_phases(x, s, phases_of(inputs_).rows, n);
        } else {
          std::fill(row, row + n, A(0));
        }
        each_row_holding(p_, d, h, [&](i64 od, i64 oh, i64) {
          read_outputs(from, plane, od, oh);
          if (by_taps_) add_by_taps();
          else add_by_windows(x, row);
        });
        if (by_taps_) interleave_phases(phases_of(sums_).rows, s, row, n);
      }
    }
  }

 private:
  // Whether gradients are added tap by tap, not window by window (few outputs, irregular windows).
  static bool adds_by_taps(const Plan& p) {
    const Axis& a = p.axis[2];
    return p.inner == 1 && a.regular() && a.lo >= 0 && a.kernel <= 16 && a.stride <= kMaxPhases &&
           reach(a) <= a.in;
  }

  i64 columns() const { return (tile_.hi[2] - tile_.lo[2]) * p_.inner; }

  // Where the input `distance` columns behind tap 0 of the first output is stored in a polyphase
  // row; the one a stride further on follows it.
  i64 phase_index(i64 distance) const {
    const i64 s = p_.axis[2].stride;
    return distance % s * length_ + distance / s;
  }
  // The phases of a polyphase row, that of the first input of the tile first.
  Phases<A> phases_of(A* row) const {
    Phases<A> phases;
    for (i64 k = 0; k < p_.axis[2].stride; ++k) phases.rows[k] = row + phase_index(before_ + k);
    return phases;
  }

  // Reads the gradients and residuals of output row (od, oh).
  void read_outputs(const WeightedOperands& from, i64 plane, i64 od, i64 oh) {
    const auto row = [&](const View& v, auto* buffer) {
      return row_of(v, plane_of(v, plane), p_.inner, od, oh, outs_.lo, outs_.hi, buffer);
    };
    gradient_row_ = row(*from.gy, gradients_);
    for (int k = 0; k < loops_.residuals; ++k)
      residual_rows_[k] = row(from.residuals[k], residuals_[k]);
  }

  template <int Residuals, class V, class Get>
  OutputOperands<V> operands(Get&& get) const {
    OutputOperands<V> of{};
    for (int k = 0; k < Residuals; ++k) of.residuals[k] = get(residual_rows_[k]);
    of.theta = get(theta_);
    return of;
  }

  // Computes to[i] += g[i] * (weight of x[i] in window i).
  template <class Weight>
  POOLGRAD_LOOP void add_windows(A* to, const A* x, i64 first, i64 n) const {
    lanes<A>(n, [&](auto w, i64 i) {
      using V = Vec<A, w()>;
      const auto of =
          operands<Weight::kResiduals, V>([&](const A* row) { return load<V>(row + first + i); });
      const V weight = Weight::template weight<w()>(load<V>(x + i), of, whole_);
      store(to + i, load<V>(to + i) + weight * load<V>(gradient_row_ + first + i));
    });
  }

  // The same for neighbouring taps of one window.
  template <class Weight>
  POOLGRAD_LOOP void add_window(A* to, const A* x, i64 output, i64 n) const {
    masked_lanes<A>(n, [&](auto w, i64 t, auto how) {
      using V = Vec<A, w()>;
      const auto of =
          operands<Weight::kResiduals, V>([&](const A* row) { return V{} + row[output]; });
      const V weight = Weight::template weight<w()>(how.template load<V>(x + t), of, whole_);
      how.store(to + t, how.template load<V>(to + t) + weight * gradient_row_[output]);
    });
  }

  void add_by_taps() {
    for (i64 kw = p_.axis[2].kernel - 1; kw >= 0; --kw) {
      const i64 at = phase_index(kw * p_.axis[2].dilation);
      (this->*loops_.windows)(sums_ + at, inputs_ + at, 0, outputs());
    }
  }

  void add_by_windows(const A* x, A* row) {
    const Axis& width = p_.axis[2];
    const i64 lo = tile_.lo[2], inner = p_.inner;
    each_window_part(
        width, outs_, lo, tile_.hi[2], [&](i64 output, const Span& s, i64 first, i64 end) {
          const auto at = [&](i64 t) { return (s.begin + t * width.dilation - lo) * inner; };
          if (inner == 1 && width.dilation == 1) {
            (this->*loops_.window)(row + at(first), x + at(first), output, end - first);
            return;
          }
          for (i64 t = first; t < end; ++t)
            (this->*loops_.windows)(row + at(t), x + at(t), output * inner, inner);
        });
  }

  const Plan& p_;
  const InputTile tile_;
  const InnerLoops loops_;
  const bool by_taps_;
  Range outs_;                   // the outputs of a row whose windows reach the tile
  i64 before_ = 0, length_ = 0;  // distance of the first input of the tile; elements of a phase
  A *sums_ = nullptr, *inputs_ = nullptr;  // polyphase rows
  RowWriter<A> gx_;
  int whole_ = 0;
  A *gradients_, *residuals_[kMaxResiduals], *theta_, *x_;
  const A *gradient_row_ = nullptr, *residual_rows_[kMaxResiduals] = {};
};

// whole: p, if it is the same whole number for all channels, else 0.
template <class A>
void weighted_backward(const Work& work, const WeightedOperands& from, Parameter theta, int whole,
                       const typename WeightedBackward<A>::InnerLoops& loops, Dense gx) {
  const Plan& p = *work.plan;
  using State = WeightedBackward<A>;
  over_inputs(
      work, [&](const InputTile& tile, Arena& arena) { return State(p, tile, gx, loops, arena); },
      [&](State& state, i64 plane, const InputTile&) {
        fill_parameter(p, theta, plane, state.outputs(), state.theta(), least_parameter<A>());
        state.run(from, plane, whole, plane * p.in_plane());
      },
      true);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
