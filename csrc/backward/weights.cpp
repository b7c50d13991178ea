// Scatter of weighted gradients, the backward pass of nonlinear reductions: adds the gradient of
// each output, times the derivative of the output by the input, to every input of its window.
// Compiled once per instruction set.
#include "backward/tiles.hpp"
#include "base/common.hpp"
#include "choose.hpp"
#include "forward/row_writer.hpp"
#include "geometry/partition.hpp"
#include "operators/nonlinear.hpp"

namespace poolgrad::inline POOLGRAD_ISA {
namespace {

// What a backward pass reads.
struct WeightedOperands {
  const View *gy, *x;
  const View* residuals;  // kMaxResiduals arrays at most
  Parameter theta;
  int whole;  // p, if it is the same whole number for all channels, else 0
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

  WeightedBackward(const Plan& p, const InputTile& tile, Arena& arena, Dense gx,
                   const InnerLoops& loops, const WeightedOperands& from)
      : p_(p),
        tile_(tile),
        loops_(loops),
        from_(from),
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
      for (i64 k = 0; k < a.stride; ++k) {
        sum_phases_[k] = sums_ + phase_index(before_ + k);
        input_phases_[k] = inputs_ + phase_index(before_ + k);
      }
    }
    const i64 n = outputs() * p.inner;
    gradients_ = arena.take<A>(n);
    for (A*& row : residuals_) row = arena.take<A>(n);
    theta_ = arena.take<A>(n);
    x_ = arena.take<A>(larger(1, columns()));
  }

  void run(i64 plane) {
    const i64 n = columns(), s = p_.axis[2].stride;
    fill_parameter(p_, from_.theta, plane, outputs(), theta_, least_parameter<A>());
    if (by_taps_) std::fill(inputs_, inputs_ + length_ * s, A(0));
    i64 at = plane * p_.in_plane() + first_input(p_, tile_);
    for (i64 d = tile_.lo[0]; d < tile_.hi[0]; ++d) {
      for (i64 h = tile_.lo[1]; h < tile_.hi[1]; ++h, at += n) {
        A* row = gx_.reserve(at, n);
        const A* x = row_of(*from_.x, plane_of(*from_.x, plane), p_.inner, d, h, tile_.lo[2],
                            tile_.hi[2], x_);
        if (by_taps_) {
          std::fill(sums_, sums_ + length_ * s, A(0));
          separate_phases(x, s, input_phases_, n);
        } else {
          std::fill(row, row + n, A(0));
        }
        each_row_holding(p_, d, h, [&](i64 od, i64 oh, i64) {
          read_outputs(plane, od, oh);
          if (by_taps_) add_by_taps();
          else add_by_windows(x, row);
        });
        if (by_taps_) interleave_phases(sum_phases_, s, row, n);
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
  i64 outputs() const { return outs_.hi - outs_.lo; }

  // Where the input `distance` columns behind tap 0 of the first output is stored in a polyphase
  // row; the one a stride further on follows it.
  i64 phase_index(i64 distance) const {
    const i64 s = p_.axis[2].stride;
    return distance % s * length_ + distance / s;
  }

  // Reads the gradients and residuals of output row (od, oh).
  void read_outputs(i64 plane, i64 od, i64 oh) {
    const auto row = [&](const View& v, auto* buffer) {
      return row_of(v, plane_of(v, plane), p_.inner, od, oh, outs_.lo, outs_.hi, buffer);
    };
    gradient_row_ = row(*from_.gy, gradients_);
    for (int k = 0; k < loops_.residuals; ++k)
      residual_rows_[k] = row(from_.residuals[k], residuals_[k]);
  }

  // Computes to += g * weight for a vector of inputs. get(row) returns the operands of their
  // windows.
  template <class Weight, class V, class Access, class Get>
  POOLGRAD_INLINE void add(A* to, const A* x, Access access, Get&& get) const {
    constexpr int W = sizeof(V) / sizeof(A);
    OutputOperands<V> of{};
    for (int k = 0; k < Weight::kResiduals; ++k) of.residuals[k] = get(residual_rows_[k]);
    of.theta = get(theta_);
    const V weight = Weight::template weight<W>(access.template load<V>(x), of, from_.whole);
    access.store(to, access.template load<V>(to) + weight * get(gradient_row_));
  }

  // Adds to n inputs: input i is one of window first + i.
  template <class Weight>
  POOLGRAD_LOOP void add_windows(A* to, const A* x, i64 first, i64 n) const {
    lanes<A>(n, [&](auto w, i64 i) {
      using V = Vec<A, w()>;
      add<Weight, V>(to + i, x + i, AllLanes{},
                     [&](const A* row) { return load<V>(row + first + i); });
    });
  }

  // Adds to n neighbouring taps of one window.
  template <class Weight>
  POOLGRAD_LOOP void add_window(A* to, const A* x, i64 output, i64 n) const {
    masked_lanes<A>(n, [&](auto w, i64 t, auto access) {
      using V = Vec<A, w()>;
      add<Weight, V>(to + t, x + t, access, [&](const A* row) { return V{} + row[output]; });
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
  const WeightedOperands from_;
  const bool by_taps_;
  Range outs_;                   // the outputs of a row whose windows reach the tile
  i64 before_ = 0, length_ = 0;  // distance of the first input of the tile; elements of a phase
  A *sums_ = nullptr, *inputs_ = nullptr;                  // polyphase rows
  A *sum_phases_[kMaxPhases], *input_phases_[kMaxPhases];  // that of the first input first
  RowWriter<A> gx_;
  A *gradients_, *residuals_[kMaxResiduals], *theta_, *x_;
  const A *gradient_row_ = nullptr, *residual_rows_[kMaxResiduals] = {};
};

}  // namespace

void nonlinear_backward(const Work& work, NonlinearOp kind, const View& gy, const View& x,
                        Parameter theta, const View* residuals, Dense gx) {
  (void)choose({.task = Task::weights_backward, .plan = work.plan});  // there is one algorithm
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    using Backward = WeightedBackward<A>;
    const auto loops =
        kind == NonlinearOp::log_mean_exp ? Backward::template loops<ExponentialWeight<A>>()
        : kind == NonlinearOp::soft       ? Backward::template loops<SoftWeight<A>>()
        : kind == NonlinearOp::expected   ? Backward::template loops<PositiveWeight<A>>()
                                          : Backward::template loops<PowerWeight<A>>();
    const WeightedOperands from{&gy, &x, residuals, theta, common_integer_power<A>(kind, theta)};
    over_states<InputTile, Backward>(
        work, true, [](Backward& state, i64 plane) { state.run(plane); }, gx, loops, from);
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
