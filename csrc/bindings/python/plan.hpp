// Calls the kernels of a plan for Python and XLA. src/poolgrad validates arguments; the checks here
// guard memory.
#pragma once

#include <optional>

#include "bindings/python/routes.hpp"

namespace poolgrad {
namespace {

// A layout with a method for each kernel.
class BoundPlan : public RoutedLayout {
 public:
  using RoutedLayout::RoutedLayout;

  void select(const char* which, ArraySource x, ArraySource y, ArraySource routes, bool zero_ties,
              ArraySource samples, int threads) const {
    require_one_dtype();
    const Select selection = selection_named(which);
    const SourceAndTarget arrays(*this, false, x, y);
    const RouteArgument route_argument(*this, routes, Use::write_if_given);
    const Dense routing = route_argument.to_write();
    run(tables_of(samples), threads, [&](const PlaneSelection& planes) {
      kernels().select->forward(planes.work, selection, planes.of(arrays.source),
                                planes.of_outputs(arrays.target), planes.of_outputs(routing),
                                zero_ties);
    });
    route_argument.pack(threads);
  }

  void draw(ArraySource x, ArraySource y, ArraySource routes, std::uint64_t seed,
            int threads) const {
    require_one_dtype_and_no_samples();
    const SourceAndTarget arrays(*this, false, x, y);
    const RouteArgument route_argument(*this, routes, Use::write_if_given);
    const View order = view_of(out_strides_.data(), nullptr, out_);
    const Dense routing = route_argument.to_write();
    bool finite = true;
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      finite =
          kernels().select->draw(planes.work, arrays.source, arrays.target, routing, order, seed);
    });
    require(finite,
            "x must be finite: probabilities are proportional to it, got NaN or an infinity");
    route_argument.pack(threads);
  }

  void route_backward(ArraySource gy, ArraySource routes, ArraySource gx, ArraySource samples,
                      int threads) const {
    along_routes(kernels().route->backward, true, gy, routes, gx, samples, threads);
  }

  void route_jvp(ArraySource t, ArraySource routes, ArraySource y, ArraySource samples,
                 int threads) const {
    along_routes(kernels().route->jvp, false, t, routes, y, samples, threads);
  }

  void route_indices(ArraySource routes, ArraySource indices, ArraySource samples,
                     int threads) const {
    const Array to(indices, Use::write, sizeof(i64));
    const RouteArgument route_argument(*this, routes, Use::read);
    const View routing = route_argument.to_read(threads);
    const Dense target = dense(to, Dtype::int64, outputs());
    run(tables_of(samples), threads, [&](const PlaneSelection& planes) {
      kernels().route->indices(planes.work, planes.of(routing),
                               reinterpret_cast<i64*>(planes.of_outputs(target).data));
    });
  }

  void split_winners(const char* which, ArraySource x, ArraySource y, ArraySource winners,
                     ArraySource samples, int threads) const {
    require_one_dtype();
    const Select selection = selection_named(which);
    const Array from(x, Use::read, size(in_)), best(y, Use::read, size(out_)),
        winner_array(winners, Use::write, 1);
    const View input = inputs_of(from, in_), output = outputs_of(best, out_);
    const Dense bits = winner_bits(winner_array);
    run(tables_of(samples), threads, [&](const PlaneSelection& planes) {
      kernels().select->split_winners(planes.work, selection, planes.of(input), planes.of(output),
                                      planes.of_winners(bits));
    });
  }

  void split_backward(ArraySource gy, ArraySource winners, ArraySource gx, ArraySource samples,
                      int threads) const {
    along_winners(kernels().route->split_backward, true, gy, winners, gx, samples, threads);
  }

  void split_jvp(ArraySource t, ArraySource winners, ArraySource y, ArraySource samples,
                 int threads) const {
    along_winners(kernels().route->split_jvp, false, t, winners, y, samples, threads);
  }

  void unpool(ArraySource x, ArraySource indices, ArraySource y, int threads) const {
    by_indices(kernels().route->unpool, false, x, indices, y, threads);
  }

  void unpool_backward(ArraySource gy, ArraySource indices, ArraySource gx, int threads) const {
    by_indices(kernels().route->unpool_backward, true, gy, indices, gx, threads);
  }

  void average(ArraySource x, ArraySource y, bool count_padding, i64 divisor, int threads) const {
    average_by(kernels().weighted->average, false, x, y, count_padding, divisor, threads);
  }

  void average_backward(ArraySource gy, ArraySource gx, bool count_padding, i64 divisor,
                        int threads) const {
    average_by(kernels().weighted->average_backward, true, gy, gx, count_padding, divisor, threads);
  }

  void mixed(ArraySource x, ArraySource alpha, i64 count, bool count_padding, ArraySource y,
             ArraySource routes, ArraySource sensitivity, int threads) const {
    require_one_dtype_and_no_samples();
    const SourceAndTarget arrays(*this, false, x, y);
    const Array share(alpha, Use::read, size(sum_dtype())),
        route_array(routes, Use::write_if_given, route_size()),
        slope(sensitivity, Use::write_if_given, size(sum_dtype()));
    const Dense routing = dense(route_array, route_dtype(), outputs());
    void* slopes = dense(slope, sum_dtype(), outputs()).data;
    const Parameter parameter = parameter_of(share, count);
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      kernels().weighted->mixed(planes.work, arrays.source, parameter, count_padding, arrays.target,
                                routing, slopes);
    });
  }

  void mixed_backward(ArraySource gy, ArraySource alpha, i64 count, bool count_padding,
                      ArraySource routes, ArraySource gx, int threads) const {
    require_one_dtype_and_no_samples();
    const SourceAndTarget arrays(*this, true, gy, gx);
    const Array share(alpha, Use::read, size(sum_dtype())),
        route_array(routes, Use::read, route_size());
    const View routing = outputs_of(route_array, route_dtype());
    const Parameter parameter = parameter_of(share, count);
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      kernels().weighted->mixed_backward(planes.work, arrays.source, routing, parameter,
                                         count_padding, arrays.target);
    });
  }

  // residuals: the arrays of the residual, each an array or None
  void nonlinear(const char* which, ArraySource x, ArraySource theta, i64 count, ArraySource y,
                 const std::vector<ArraySource>& residuals, ArraySource sensitivity,
                 int threads) const {
    require_one_dtype_and_no_samples();
    const NonlinearOp op = nonlinear_op_named(which);
    const SourceAndTarget arrays(*this, false, x, y);
    const Array theta_array(theta, Use::read, size(sum_dtype())),
        slope(sensitivity, Use::write_if_given, size(sum_dtype()));
    require(residuals.size() <= kMaxResiduals, "too many residuals");
    std::optional<Array> residual_arrays[kMaxResiduals];
    void* rows[kMaxResiduals] = {};
    for (std::size_t k = 0; k < residuals.size(); ++k) {
      residual_arrays[k].emplace(residuals[k], Use::write_if_given, size(sum_dtype()));
      rows[k] = dense(*residual_arrays[k], sum_dtype(), outputs()).data;
    }
    void* slopes = dense(slope, sum_dtype(), outputs()).data;
    const Parameter parameter = parameter_of(theta_array, count);
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      kernels().nonlinear->forward(planes.work, op, arrays.source, parameter, arrays.target, rows,
                                   slopes);
    });
  }

  void nonlinear_backward(const char* which, ArraySource gy, ArraySource x, ArraySource theta,
                          i64 count, const std::vector<ArraySource>& residuals, ArraySource gx,
                          int threads) const {
    require_one_dtype_and_no_samples();
    const NonlinearOp op = nonlinear_op_named(which);
    const SourceAndTarget arrays(*this, true, gy, gx);
    const Array values(x, Use::read, size(in_)), theta_array(theta, Use::read, size(sum_dtype()));
    require(static_cast<int>(residuals.size()) == residuals_of(op),
            "another number of residuals is needed");
    std::optional<Array> residual_arrays[kMaxResiduals];
    View views[kMaxResiduals];
    for (std::size_t k = 0; k < residuals.size(); ++k) {
      residual_arrays[k].emplace(residuals[k], Use::read, size(sum_dtype()));
      views[k] = outputs_of(*residual_arrays[k], sum_dtype());
    }
    const View input = inputs_of(values, in_);
    const Parameter parameter = parameter_of(theta_array, count);
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      kernels().nonlinear->backward(planes.work, op, arrays.source, input, parameter, views,
                                    arrays.target);
    });
  }

 private:
  // The number of residuals of each window.
  static int residuals_of(NonlinearOp kind) {
    return kind == NonlinearOp::soft || kind == NonlinearOp::expected ? 3 : 2;
  }

  // Linear maps from inputs to outputs (tangents) or, if `backward`, from outputs to inputs.
  void along_routes(void (*kernel)(const Work&, const View&, const View& routes, Dense),
                    bool backward, ArraySource from, ArraySource routes, ArraySource to,
                    ArraySource samples, int threads) const {
    require_one_dtype();
    const SourceAndTarget arrays(*this, backward, from, to);
    const RouteArgument route_argument(*this, routes, Use::read);
    const View routing = route_argument.to_read(threads);
    run(tables_of(samples), threads, [&](const PlaneSelection& planes) {
      kernel(planes.work, planes.of(arrays.source), planes.of(routing),
             planes.of_target(arrays.target, backward));
    });
  }

  void along_winners(void (*kernel)(const Work&, const View&, const std::uint8_t* winners, Dense),
                     bool backward, ArraySource from, ArraySource winners, ArraySource to,
                     ArraySource samples, int threads) const {
    require_one_dtype();
    const SourceAndTarget arrays(*this, backward, from, to);
    const Array winner_array(winners, Use::read, 1);
    const Dense bits = winner_bits(winner_array);
    run(tables_of(samples), threads, [&](const PlaneSelection& planes) {
      kernel(planes.work, planes.of(arrays.source), planes.of_winners(bits),
             planes.of_target(arrays.target, backward));
    });
  }

  void by_indices(bool (*kernel)(const Work&, const View&, const View& indices, Dense,
                                 i64* invalid),
                  bool backward, ArraySource from, ArraySource indices, ArraySource to,
                  int threads) const {
    require_one_dtype_and_no_samples();
    const SourceAndTarget arrays(*this, backward, from, to);
    const Array positions(indices, Use::read, sizeof(i64));
    const View index = inputs_of(positions, Dtype::int64);
    i64 invalid = 0;
    bool valid = true;
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      valid = kernel(planes.work, arrays.source, index, arrays.target, &invalid);
    });
    require_valid_indices(valid, invalid);
  }

  void average_by(void (*kernel)(const Work&, const View&, Dense, bool count_padding,
                                 double divisor),
                  bool backward, ArraySource from, ArraySource to, bool count_padding, i64 divisor,
                  int threads) const {
    require_no_samples();
    const SourceAndTarget arrays(*this, backward, from, to);
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      kernel(planes.work, arrays.source, arrays.target, count_padding,
             static_cast<double>(divisor));
    });
  }
};

}  // namespace
}  // namespace poolgrad
