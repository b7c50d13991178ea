// The kernels of a plan as Python and XLA call them. src/poolgrad validates arguments; the checks
// here guard memory only.
#pragma once

#include <optional>

#include "python/routes.hpp"

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
    const Array from(x, Use::read, size(in_)), to(y, Use::write, size(out_));
    const RouteArgument route_argument(*this, routes, Use::write_if_given);
    const std::vector<i64> tables = tables_of(samples);
    const View input = inputs_of(from, in_);
    const Dense output = dense(to, out_, outputs()), routing = route_argument.to_write();
    run(tables, threads, [&](const PlaneSelection& planes) {
      kernels().select->forward(planes.work, selection, planes.of(input), planes.of_outputs(output),
                                planes.of_outputs(routing), zero_ties);
    });
    route_argument.pack(threads);
  }

  void draw(ArraySource x, ArraySource y, ArraySource routes, std::uint64_t seed,
            int threads) const {
    require_no_samples();
    require_one_dtype();
    const Array from(x, Use::read, size(in_)), to(y, Use::write, size(out_));
    const RouteArgument route_argument(*this, routes, Use::write_if_given);
    const View input = inputs_of(from, in_), order = view_of(out_strides_.data(), nullptr, out_);
    const Dense output = dense(to, out_, outputs()), routing = route_argument.to_write();
    bool finite = true;
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      finite = kernels().select->draw(planes.work, input, output, routing, order, seed);
    });
    if (!finite) {
      throw nb::value_error(
          "x must be finite: probabilities are proportional to it, got NaN or an "
          "infinity");
    }
    route_argument.pack(threads);
  }

  void route_backward(ArraySource gy, ArraySource routes, ArraySource gx, ArraySource samples,
                      int threads) const {
    require_one_dtype();
    const Array from(gy, Use::read, size(out_)), to(gx, Use::write, size(in_));
    const RouteArgument route_argument(*this, routes, Use::read);
    const std::vector<i64> tables = tables_of(samples);
    const View gradient = outputs_of(from, out_), routing = route_argument.to_read(threads);
    const Dense target = dense(to, in_, inputs());
    run(tables, threads, [&](const PlaneSelection& planes) {
      kernels().route->backward(planes.work, planes.of(gradient), planes.of(routing),
                                planes.of_inputs(target));
    });
  }

  void route_follow(ArraySource t, ArraySource routes, ArraySource y, ArraySource samples,
                    int threads) const {
    require_one_dtype();
    const Array from(t, Use::read, size(in_)), to(y, Use::write, size(out_));
    const RouteArgument route_argument(*this, routes, Use::read);
    const std::vector<i64> tables = tables_of(samples);
    const View tangent = inputs_of(from, in_), routing = route_argument.to_read(threads);
    const Dense target = dense(to, out_, outputs());
    run(tables, threads, [&](const PlaneSelection& planes) {
      kernels().route->follow(planes.work, planes.of(tangent), planes.of(routing),
                              planes.of_outputs(target));
    });
  }

  void route_indices(ArraySource routes, ArraySource indices, ArraySource samples,
                     int threads) const {
    const Array to(indices, Use::write, sizeof(i64));
    const RouteArgument route_argument(*this, routes, Use::read);
    const std::vector<i64> tables = tables_of(samples);
    const View routing = route_argument.to_read(threads);
    const Dense target = dense(to, Dtype::int64, outputs());
    run(tables, threads, [&](const PlaneSelection& planes) {
      kernels().route->indices(planes.work, planes.of(routing),
                               reinterpret_cast<i64*>(planes.of_outputs(target).data));
    });
  }

  void split_winners(const char* which, ArraySource x, ArraySource y, ArraySource winners,
                     ArraySource samples, int threads) const {
    require_one_dtype();
    const Select selection = selection_named(which);
    const Array from(x, Use::read, size(in_)), best(y, Use::read, size(out_)),
        kept(winners, Use::write, 1);
    const std::vector<i64> tables = tables_of(samples);
    const View input = inputs_of(from, in_), output = outputs_of(best, out_);
    const Dense bits = winner_bits(kept);
    run(tables, threads, [&](const PlaneSelection& planes) {
      kernels().select->split_winners(planes.work, selection, planes.of(input), planes.of(output),
                                      planes.of_winners(bits));
    });
  }

  void split_backward(ArraySource gy, ArraySource winners, ArraySource gx, ArraySource samples,
                      int threads) const {
    require_one_dtype();
    const Array from(gy, Use::read, size(out_)), kept(winners, Use::read, 1),
        to(gx, Use::write, size(in_));
    const std::vector<i64> tables = tables_of(samples);
    const View gradient = outputs_of(from, out_);
    const Dense bits = winner_bits(kept), target = dense(to, in_, inputs());
    run(tables, threads, [&](const PlaneSelection& planes) {
      kernels().route->split_backward(planes.work, planes.of(gradient), planes.of_winners(bits),
                                      planes.of_inputs(target));
    });
  }

  void split_follow(ArraySource t, ArraySource winners, ArraySource y, ArraySource samples,
                    int threads) const {
    require_one_dtype();
    const Array from(t, Use::read, size(in_)), kept(winners, Use::read, 1),
        to(y, Use::write, size(out_));
    const std::vector<i64> tables = tables_of(samples);
    const View tangent = inputs_of(from, in_);
    const Dense bits = winner_bits(kept), target = dense(to, out_, outputs());
    run(tables, threads, [&](const PlaneSelection& planes) {
      kernels().route->split_follow(planes.work, planes.of(tangent), planes.of_winners(bits),
                                    planes.of_outputs(target));
    });
  }

  void unpool(ArraySource x, ArraySource indices, ArraySource y, int threads) const {
    require_no_samples();
    require_one_dtype();
    const Array from(x, Use::read, size(in_)), where(indices, Use::read, sizeof(i64)),
        to(y, Use::write, size(out_));
    const View input = inputs_of(from, in_), index = inputs_of(where, Dtype::int64);
    const Dense target = dense(to, out_, outputs());
    i64 invalid = 0;
    bool valid = true;
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      valid = kernels().route->unpool(planes.work, input, index, target, &invalid);
    });
    require_valid_indices(valid, invalid);
  }

  void unpool_backward(ArraySource gy, ArraySource indices, ArraySource gx, int threads) const {
    require_no_samples();
    require_one_dtype();
    const Array from(gy, Use::read, size(out_)), where(indices, Use::read, sizeof(i64)),
        to(gx, Use::write, size(in_));
    const View gradient = outputs_of(from, out_), index = inputs_of(where, Dtype::int64);
    const Dense target = dense(to, in_, inputs());
    i64 invalid = 0;
    bool valid = true;
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      valid = kernels().route->unpool_backward(planes.work, gradient, index, target, &invalid);
    });
    require_valid_indices(valid, invalid);
  }

  void average(ArraySource x, ArraySource y, bool count_padding, i64 divisor, int threads) const {
    require_no_samples();
    const Array from(x, Use::read, size(in_)), to(y, Use::write, size(out_));
    const View input = inputs_of(from, in_);
    const Dense output = dense(to, out_, outputs());
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      kernels().blend->average(planes.work, input, output, count_padding,
                               static_cast<double>(divisor));
    });
  }

  void average_backward(ArraySource gy, ArraySource gx, bool count_padding, i64 divisor,
                        int threads) const {
    require_no_samples();
    const Array from(gy, Use::read, size(out_)), to(gx, Use::write, size(in_));
    const View gradient = outputs_of(from, out_);
    const Dense target = dense(to, in_, inputs());
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      kernels().blend->average_backward(planes.work, gradient, target, count_padding,
                                        static_cast<double>(divisor));
    });
  }

  void mixed(ArraySource x, ArraySource alpha, i64 count, bool count_padding, ArraySource y,
             ArraySource routes, ArraySource sensitivity, int threads) const {
    require_no_samples();
    require_one_dtype();
    const Array from(x, Use::read, size(in_)), share(alpha, Use::read, size(sum_dtype())),
        to(y, Use::write, size(out_));
    const Array kept(routes, Use::write_if_given, route_size()),
        slope(sensitivity, Use::write_if_given, size(sum_dtype()));
    const View input = inputs_of(from, in_);
    const Dense output = dense(to, out_, outputs());
    const Dense routing = dense(kept, route_dtype(), outputs());
    void* slopes = dense(slope, sum_dtype(), outputs()).data;
    const Parameter parameter = parameter_of(share, count);
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      kernels().blend->mixed(planes.work, input, parameter, count_padding, output, routing, slopes);
    });
  }

  void mixed_backward(ArraySource gy, ArraySource alpha, i64 count, bool count_padding,
                      ArraySource routes, ArraySource gx, int threads) const {
    require_no_samples();
    require_one_dtype();
    const Array from(gy, Use::read, size(out_)), share(alpha, Use::read, size(sum_dtype())),
        kept(routes, Use::read, route_size()), to(gx, Use::write, size(in_));
    const View gradient = outputs_of(from, out_), routing = outputs_of(kept, route_dtype());
    const Dense target = dense(to, in_, inputs());
    const Parameter parameter = parameter_of(share, count);
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      kernels().blend->mixed_backward(planes.work, gradient, routing, parameter, count_padding,
                                      target);
    });
  }

  // kept: the arrays of the residual, each an array or None
  void curved(const char* which, ArraySource x, ArraySource theta, i64 count, ArraySource y,
              const std::vector<ArraySource>& kept, ArraySource sensitivity, int threads) const {
    require_no_samples();
    require_one_dtype();
    const NonlinearOp blend = nonlinear_op_named(which);
    const Array from(x, Use::read, size(in_)), own(theta, Use::read, size(sum_dtype())),
        to(y, Use::write, size(out_));
    if (kept.size() > kMaxResiduals) throw nb::value_error("too many arrays are kept");
    std::optional<Array> held[kMaxResiduals];
    void* rows[kMaxResiduals] = {};
    for (std::size_t k = 0; k < kept.size(); ++k) {
      held[k].emplace(kept[k], Use::write_if_given, size(sum_dtype()));
      rows[k] = dense(*held[k], sum_dtype(), outputs()).data;
    }
    const Array slope(sensitivity, Use::write_if_given, size(sum_dtype()));
    void* slopes = dense(slope, sum_dtype(), outputs()).data;
    const View input = inputs_of(from, in_);
    const Dense output = dense(to, out_, outputs());
    const Parameter parameter = parameter_of(own, count);
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      kernels().curve->forward(planes.work, blend, input, parameter, output, rows, slopes);
    });
  }

  void curved_backward(const char* which, ArraySource gy, ArraySource x, ArraySource theta,
                       i64 count, const std::vector<ArraySource>& kept, ArraySource gx,
                       int threads) const {
    require_no_samples();
    require_one_dtype();
    const NonlinearOp blend = nonlinear_op_named(which);
    const Array from(gy, Use::read, size(out_)), values(x, Use::read, size(in_)),
        own(theta, Use::read, size(sum_dtype())), to(gx, Use::write, size(in_));
    if (static_cast<int>(kept.size()) != residuals_of(blend)) {
      throw nb::value_error("another number of arrays is kept");
    }
    std::optional<Array> held[kMaxResiduals];
    View views[kMaxResiduals];
    for (std::size_t k = 0; k < kept.size(); ++k) {
      held[k].emplace(kept[k], Use::read, size(sum_dtype()));
      views[k] = outputs_of(*held[k], sum_dtype());
    }
    const View gradient = outputs_of(from, out_), input = inputs_of(values, in_);
    const Dense target = dense(to, in_, inputs());
    const Parameter parameter = parameter_of(own, count);
    run(kNoTables, threads, [&](const PlaneSelection& planes) {
      kernels().curve->backward(planes.work, blend, gradient, input, parameter, views, target);
    });
  }
};

}  // namespace
}  // namespace poolgrad
