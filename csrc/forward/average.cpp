// Averages, compiled once per instruction set.
#include "base/common.hpp"
#include "choose.hpp"
#include "forward/column_sums.hpp"
#include "forward/plane_means.hpp"
#include "forward/separable.hpp"
#include "forward/small_windows.hpp"
#include "geometry/partition.hpp"
#include "kernels.hpp"
#include "operators/divisor.hpp"
#include "operators/sum.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// forward/mixed.cpp
void mixed(const Work&, const View& x, Parameter alpha, bool count_padding, Dense y, Dense routes,
           void* sensitivity);
void mixed_backward(const Work&, const View& gy, const View& routes, Parameter alpha,
                    bool count_padding, Dense gx);

namespace {

// Per-task state of averages that are computed row by row. Windows: Separable or ColumnSums.
template <class A, class Windows>
struct MeanState {
  Windows windows;
  A* divisors;  // of the row, without the factor that all outputs share
};

// The memory of a tile of averages of small windows. Kernels divide sums by `columns_` and `rows_`;
// these are 1 if averages are quantised, and close() divides.
template <class A, bool Lines>
class MeanOutput {
 public:
  using Target = typename Mean<A, Lines>::Target;

  MeanOutput(const Plan& plan, const Tile& tile, Divisor divisor, Dense y, i64 longest,
             Arena& arena)
      : p_(plan),
        tile_(tile),
        divisor_(divisor),
        rounds_(y.quantization.scale != 0),
        length_((tile.hi[2] - tile.lo[2]) * plan.inner),
        y_(y, longest, arena),
        rows_(arena.take<A>(2 * kMaxBlockedRows)),
        columns_(arena.take<A>((rounds_ ? 2 : 1) * length_)) {}

  void start(i64 plane) {
    if (std::exchange(first_, plane * p_.out_plane()) >= 0) return;  // the divisors stay
    std::fill(rows_, rows_ + kMaxBlockedRows, A(1));
    std::fill(columns_, columns_ + length_, A(1));
    divisor_.fill_row(p_.axis[2], p_.inner, tile_.lo[2], tile_.hi[2], columns_ + rounds_ * length_);
  }
  Target open(i64 od, i64 oh, i64 rows, i64 at, i64 n, bool prefetches) {
    for (i64 q = 0; q < rows; ++q)
      rows_[rounds_ * kMaxBlockedRows + q] = static_cast<A>(divisor_.of_rows(p_, od, oh + q));
    const i64 first = first_ + p_.output_index(od, oh, tile_.lo[2]) + at;
    return {y_.reserve(first, n, prefetches), columns_ + at, rows_};
  }
  void close(Target to, i64 n) {
    if (!rounds_) return;
    divide_row(to.y, to.columns + length_, to.rows[kMaxBlockedRows], to.y, n, y_.quantization());
  }

 private:
  const Plan& p_;
  const Tile tile_;
  const Divisor divisor_;
  const bool rounds_;
  const i64 length_;
  RowWriter<A> y_;
  // Divisors of rows; of a row of outputs, without the factor of the row. After ones if rounds_.
  A *rows_, *columns_;
  i64 first_ = -1;  // output of the plane
};

// Averages by Separable or ColumnSums.
template <class A, class Windows>
void average_by_rows(const Work& work, const View& x, Dense y, Divisor divisor,
                     ReadOptions<A> reading = {}) {
  const Plan& p = *work.plan;
  reading.outputs[0] = y;
  reading.pack = !doubles_along(p.axis[2]) && p.inner == 1;
  over_batches<Windows>(
      work,
      [&](const Plan& part, const Tile& tile, i64 planes, Arena& arena) {
        const i64 length = (tile.hi[2] - tile.lo[2]) * part.inner;
        return MeanState<A, Windows>{{part, x, tile, reading, arena, planes},
                                     arena.take<A>(length)};
      },
      [&](auto& state, const Tile& tile, const Batch& batch) {
        divisor.fill_row(p.axis[2], batch.channels, tile.lo[2], tile.hi[2], state.divisors);
        over_batch(p, batch, x, tile, state.windows,
                   [&](i64 od, i64 oh, typename Sum<A>::Row row, const Segments& s) {
                     for (i64 k = 0, at = 0; k < s.count; ++k, at += s.from_spacing) {
                       const i64 to = s.first + k * s.to_spacing;
                       A* const means = has_type<A>(y) ? elements_of<A>(y, to) : row.v + at;
                       prefetch(means + kPrefetchElements<A>, s.length * i64{sizeof(A)});
                       const bool by_rows = s.rows > 1;
                       const auto rows = divisor.of_rows(p, od, by_rows ? oh + k : oh);
                       divide_row(row.v + at, state.divisors + (by_rows ? 0 : at),
                                  static_cast<A>(rows), means, s.length, y.quantization);
                       if (!has_type<A>(y)) write(y, to, means, s.length);
                     }
                   });
      });
}

template <class A, bool Lines>
void average_small_windows(const Work& work, Algorithm algorithm, const View& x, Dense y,
                           Divisor divisor) {
  over_small_windows<Mean<A, Lines>>(
      work, algorithm, x, 0, false, [&](const Tile& tile, i64 longest, Arena& arena) {
        return MeanOutput<A, Lines>(*work.plan, tile, divisor, y, longest, arena);
      });
}

void average(const Work& whole, const View& given, Dense y, bool count_padding, double divisor) {
  View x = given;
  const Plan p = flattened(*whole.plan, given, &x);
  const Work work{&p, whole.threads};
  const Divisor divide{count_padding, divisor};
  const Algorithm algorithm = choose(call_of(Task::average, work, x));
  constexpr i64 kExactTaps = (1 << 24) / 255;  // float holds every sum of so many bytes
  const bool is_exact = size_of(x.dtype) > 1 || y.quantization.scale == 0 || p.taps <= kExactTaps;
  by_sum(is_exact ? x.dtype : Dtype::float64, [&](auto a) {
    using A = decltype(a);
    switch (algorithm) {
      case Algorithm::plane_means:
        return over_tiles<Tile>(
            work, [&](const Tile&, Arena& arena) { return PlaneMeans<A>(p, y, divide, arena); },
            [&](auto& state, i64 first, i64 last, const Tile&) { state.run(x, first, last); });
      case Algorithm::register_blocked:
      case Algorithm::unrolled:  // the order of additions depends on the shape of windows only
        if (shares_nothing(p))
          return average_small_windows<A, false>(work, algorithm, x, y, divide);
        return average_small_windows<A, true>(work, algorithm, x, y, divide);
      case Algorithm::column_sums:
        return average_by_rows<A, ColumnSums<A>>(work, x, y, divide);
      default:
        return average_by_rows<A, Separable<Sum<A>>>(work, x, y, divide);
    }
  });
}

}  // namespace

// backward/average.cpp
void average_backward(const Work&, const View& gy, Dense gx, bool count_padding, double divisor);

// Adds the gradients of the transposed windows, each divided by its divisor.
void average_of_transposed(const Work& work, const View& gy, Divisor divisor, Dense gx) {
  Plan back = *work.plan;
  for (Axis& axis : back.axis) axis = transposed(axis);
  const Work transposed_work{&back, work.threads};
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    average_by_rows<A, Separable<Sum<A>>>(transposed_work, gy, gx, {false, 1},
                                          {.windows = work.plan, .divisor = divisor});
  });
}

extern const WeightedKernels weighted_kernels;
const WeightedKernels weighted_kernels = {
    average,
    average_backward,
    mixed,
    mixed_backward,
};

}  // namespace poolgrad::inline POOLGRAD_ISA
