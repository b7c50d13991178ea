// Nonlinear reductions, compiled once per instruction set.
#include "base/common.hpp"
#include "forward/copied_windows.hpp"
#include "forward/row_writer.hpp"
#include "forward/unrolled.hpp"
#include "geometry/partition.hpp"
#include "operators/nonlinear_outputs.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// backward/weights.cpp
void nonlinear_backward(const Work&, NonlinearOp, const View& gy, const View& x, Parameter theta,
                        const View* residuals, Dense gx);

namespace {

// Computes a row. Before it writes elements [at, at + n), it calls begin(at, n), which sets
// line.out.
template <class A, class Begin>
void compute_row(Unrolled<SmallNonlinear<A>>& windows, i64 od, i64 oh, const RowOperands<A>& line,
                 Begin&& begin) {
  windows.row(od, oh, [&](i64 at, i64 n, auto&& compute) {
    begin(at, n);
    compute({&line, at});
  });
}
template <class A, class Begin>
void compute_row(CopiedWindows<A>& windows, i64 od, i64 oh, const RowOperands<A>& line,
                 Begin&& begin) {
  const Settings<A>& set = line.set;
  begin(0, windows.length());
  windows.each_vector(od, oh, [&](i64 i, i64 n) {
    ScaledSums<typename CopiedWindows<A>::V> all{};
    for (i64 j = 0; j < n; ++j) {
      const i64 taps = windows.count(j);
      if (taps == 0) continue;
      all.set_lane(j, set.loops->reduce_any(windows.vectors(j), taps, set.theta + i + j, set));
    }
    set.loops->store(line, i, all, n);
  });
}

// Per-task state of nonlinear reductions.
template <class A, class Windows>
struct NonlinearState {
  Windows windows;
  RowOperands<A> line;
  A *theta, *counts;  // of the row
  RowWriter<A> y, residuals[kMaxResiduals], sensitivity;
};

// Computes a tile of one plane.
template <class A, class Windows>
void nonlinear_tile(const Plan& p, const Tile& tile, NonlinearState<A, Windows>& state, i64 plane) {
  RowOperands<A>& line = state.line;
  for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
    for (i64 oh = tile.lo[1]; oh < tile.hi[1]; ++oh) {
      const i64 first = plane + p.output_index(od, oh, tile.lo[2]);
      line.rows = static_cast<A>(Divisor{false, 0}.of_rows(p, od, oh));
      compute_row(state.windows, od, oh, line, [&](i64 at, i64 n) {
        const auto allocate = [&](RowWriter<A>& writer) {
          A* row = writer.reserve(first + at, n);
          return row ? row - at : nullptr;
        };
        line.out = {allocate(state.y), {}, allocate(state.sensitivity)};
        for (int k = 0; k < kMaxResiduals; ++k)
          line.out.residuals[k] = allocate(state.residuals[k]);
      });
    }
  }
}

template <class A, class Windows, class... Options>
void compute_tiles(const Work& work, NonlinearOp kind, const View& x, Parameter theta, Dense y,
                   void* const* residuals, void* sensitivity, Options... options) {
  const Plan& p = *work.plan;
  using State = NonlinearState<A, Windows>;
  const int whole = common_integer_power<A>(kind, theta);
  over_tiles<Tile>(
      work,
      [&](const Tile& tile, Arena& arena) {
        const i64 n = (tile.hi[2] - tile.lo[2]) * p.inner;
        A *theta_row = arena.take<A>(n), *counts = arena.take<A>(n);
        const auto settings =
            make_settings(loops_of<A>(kind), kind, theta_row, whole, sensitivity != nullptr);
        const auto dense = [](void* to) {
          return Dense{static_cast<char*>(to), DtypeOf<A>::value};
        };
        return State{Windows(p, x, tile, options..., arena),
                     {settings, counts, A(0), {}},
                     theta_row,
                     counts,
                     {y, n, arena},
                     {{dense(residuals[0]), n, arena},
                      {dense(residuals[1]), n, arena},
                      {dense(residuals[2]), n, arena}},
                     {dense(sensitivity), n, arena}};
      },
      [&](State& state, i64 plane, const Tile& tile) {
        Divisor{false, 0}.fill_row(p.axis[2], p.inner, tile.lo[2], tile.hi[2], state.counts);
        fill_parameter(p, theta, plane, tile.hi[2] - tile.lo[2], state.theta, least_parameter<A>());
        state.windows.start(plane_of(x, plane));
        nonlinear_tile(p, tile, state, plane * p.out_plane());
      },
      true);
}

void forward(const Work& work, NonlinearOp kind, const View& x, Parameter theta, Dense y,
             void* const* residuals, void* sensitivity) {
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    if (choose({.task = Task::nonlinear, .plan = work.plan}) == Algorithm::unrolled) {
      compute_tiles<A, Unrolled<SmallNonlinear<A>>>(work, kind, x, theta, y, residuals, sensitivity,
                                                    false);
    } else {
      compute_tiles<A, CopiedWindows<A>>(work, kind, x, theta, y, residuals, sensitivity);
    }
  });
}

}  // namespace

extern const NonlinearKernels nonlinear_kernels;
const NonlinearKernels nonlinear_kernels = {forward, nonlinear_backward};

}  // namespace poolgrad::inline POOLGRAD_ISA
