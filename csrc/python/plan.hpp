// A Plan as Python and XLA see it. Shapes, dtypes and layouts were checked by window.py and
// core.py; what is checked here guards memory only.
#pragma once

#include <optional>

#include "python/routes.hpp"

namespace poolgrad {
namespace {

// A layout, and the kernels for it: memory in, memory out.
class BoundPlan : public RoutedLayout {
 public:
  using RoutedLayout::RoutedLayout;

  void select(const char* which, Source x, Source y, Source routes, bool lone, Source samples,
              int threads) const {
    require_one_dtype();
    const Select selection = selection_named(which);
    const Array from(x, Use::read, size(in_)), to(y, Use::write, size(out_));
    const Routes kept(*this, routes, Use::write_if_given);
    const Samples placed = sampled(samples);
    const View input = inputs_of(from, in_);
    const Dense output = dense(to, out_, outputs()), routing = kept.to_write();
    run(placed, threads, [&](const Part& part) {
      kernels().select->forward(part.work, selection, part.of(input), part.of(output),
                                part.of(routing), lone);
    });
    kept.written(threads);
  }

  void draw(Source x, Source y, Source routes, std::uint64_t seed, int threads) const {
    require_no_samples();
    require_one_dtype();
    const Array from(x, Use::read, size(in_)), to(y, Use::write, size(out_));
    const Routes kept(*this, routes, Use::write_if_given);
    const View input = inputs_of(from, in_), order = view_of(out_strides_.data(), nullptr, out_);
    const Dense output = dense(to, out_, outputs()), routing = kept.to_write();
    bool finite = true;
    run(threads, [&](const Work& work) {
      finite = kernels().select->draw(work, input, output, routing, order, seed);
    });
    if (!finite) {
      throw nb::value_error(
          "x must be finite: probabilities are proportional to it, got NaN or an "
          "infinity");
    }
    kept.written(threads);
  }

  void route_backward(Source gy, Source routes, Source gx, Source samples, int threads) const {
    require_one_dtype();
    const Array from(gy, Use::read, size(out_)), to(gx, Use::write, size(in_));
    const Routes kept(*this, routes, Use::read);
    const Samples placed = sampled(samples);
    const View gradient = outputs_of(from, out_), routing = kept.to_read(threads);
    const Dense target = dense(to, in_, inputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->backward(part.work, part.of(gradient), part.of(routing),
                                part.of_input(target));
    });
  }

  void route_follow(Source t, Source routes, Source y, Source samples, int threads) const {
    require_one_dtype();
    const Array from(t, Use::read, size(in_)), to(y, Use::write, size(out_));
    const Routes kept(*this, routes, Use::read);
    const Samples placed = sampled(samples);
    const View tangent = inputs_of(from, in_), routing = kept.to_read(threads);
    const Dense target = dense(to, out_, outputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->follow(part.work, part.of(tangent), part.of(routing), part.of(target));
    });
  }

  void route_indices(Source routes, Source indices, Source samples, int threads) const {
    const Array to(indices, Use::write, sizeof(i64));
    const Routes kept(*this, routes, Use::read);
    const Samples placed = sampled(samples);
    const View routing = kept.to_read(threads);
    const Dense target = dense(to, Dtype::int64, outputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->indices(part.work, part.of(routing),
                               reinterpret_cast<i64*>(part.of(target).data));
    });
  }

  void split_winners(const char* which, Source x, Source y, Source winners, Source samples,
                     int threads) const {
    require_one_dtype();
    const Select selection = selection_named(which);
    const Array from(x, Use::read, size(in_)), best(y, Use::read, size(out_)),
        kept(winners, Use::write, 1);
    const Samples placed = sampled(samples);
    const View input = inputs_of(from, in_), output = outputs_of(best, out_);
    const Dense bits = winner_bits(kept);
    run(placed, threads, [&](const Part& part) {
      kernels().select->split_winners(part.work, selection, part.of(input), part.of(output),
                                      part.winners(bits));
    });
  }

  void split_backward(Source gy, Source winners, Source gx, Source samples, int threads) const {
    require_one_dtype();
    const Array from(gy, Use::read, size(out_)), kept(winners, Use::read, 1),
        to(gx, Use::write, size(in_));
    const Samples placed = sampled(samples);
    const View gradient = outputs_of(from, out_);
    const Dense bits = winner_bits(kept), target = dense(to, in_, inputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->split_backward(part.work, part.of(gradient), part.winners(bits),
                                      part.of_input(target));
    });
  }

  void split_follow(Source t, Source winners, Source y, Source samples, int threads) const {
    require_one_dtype();
    const Array from(t, Use::read, size(in_)), kept(winners, Use::read, 1),
        to(y, Use::write, size(out_));
    const Samples placed = sampled(samples);
    const View tangent = inputs_of(from, in_);
    const Dense bits = winner_bits(kept), target = dense(to, out_, outputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->split_follow(part.work, part.of(tangent), part.winners(bits),
                                    part.of(target));
    });
  }

  void unpool(Source x, Source indices, Source y, int threads) const {
    require_no_samples();
    require_one_dtype();
    const Array from(x, Use::read, size(in_)), where(indices, Use::read, sizeof(i64)),
        to(y, Use::write, size(out_));
    const View input = inputs_of(from, in_), index = inputs_of(where, Dtype::int64);
    const Dense target = dense(to, out_, outputs());
    inside(threads, [&](const Work& work, i64* culprit) {
      return kernels().route->unpool(work, input, index, target, culprit);
    });
  }

  void unpool_backward(Source gy, Source indices, Source gx, int threads) const {
    require_no_samples();
    require_one_dtype();
    const Array from(gy, Use::read, size(out_)), where(indices, Use::read, sizeof(i64)),
        to(gx, Use::write, size(in_));
    const View gradient = outputs_of(from, out_), index = inputs_of(where, Dtype::int64);
    const Dense target = dense(to, in_, inputs());
    inside(threads, [&](const Work& work, i64* culprit) {
      return kernels().route->unpool_backward(work, gradient, index, target, culprit);
    });
  }

  void average(Source x, Source y, bool count_padding, i64 divisor, int threads) const {
    require_no_samples();
    const Array from(x, Use::read, size(in_)), to(y, Use::write, size(out_));
    const View input = inputs_of(from, in_);
    const Dense output = dense(to, out_, outputs());
    run(threads, [&](const Work& work) {
      kernels().blend->average(work, input, output, count_padding, static_cast<double>(divisor));
    });
  }

  void average_backward(Source gy, Source gx, bool count_padding, i64 divisor, int threads) const {
    require_no_samples();
    const Array from(gy, Use::read, size(out_)), to(gx, Use::write, size(in_));
    const View gradient = outputs_of(from, out_);
    const Dense target = dense(to, in_, inputs());
    run(threads, [&](const Work& work) {
      kernels().blend->average_backward(work, gradient, target, count_padding,
                                        static_cast<double>(divisor));
    });
  }

  void mixed(Source x, Source alpha, i64 count, bool count_padding, Source y, Source routes,
             Source sensitivity, int threads) const {
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
    run(threads, [&](const Work& work) {
      kernels().blend->mixed(work, input, parameter, count_padding, output, routing, slopes);
    });
  }

  void mixed_backward(Source gy, Source alpha, i64 count, bool count_padding, Source routes,
                      Source gx, int threads) const {
    require_no_samples();
    require_one_dtype();
    const Array from(gy, Use::read, size(out_)), share(alpha, Use::read, size(sum_dtype())),
        kept(routes, Use::read, route_size()), to(gx, Use::write, size(in_));
    const View gradient = outputs_of(from, out_), routing = outputs_of(kept, route_dtype());
    const Dense target = dense(to, in_, inputs());
    const Parameter parameter = parameter_of(share, count);
    run(threads, [&](const Work& work) {
      kernels().blend->mixed_backward(work, gradient, routing, parameter, count_padding, target);
    });
  }

  // kept: an array or None for each number that is kept of a window
  void curved(const char* which, Source x, Source theta, i64 count, Source y,
              const std::vector<Source>& kept, Source sensitivity, int threads) const {
    require_no_samples();
    require_one_dtype();
    const Blend blend = blend_named(which);
    const Array from(x, Use::read, size(in_)), own(theta, Use::read, size(sum_dtype())),
        to(y, Use::write, size(out_));
    if (kept.size() > kMostKept) throw nb::value_error("too many arrays are kept");
    std::optional<Array> held[kMostKept];
    void* rows[kMostKept] = {};
    for (std::size_t k = 0; k < kept.size(); ++k) {
      held[k].emplace(kept[k], Use::write_if_given, size(sum_dtype()));
      rows[k] = dense(*held[k], sum_dtype(), outputs()).data;
    }
    const Array slope(sensitivity, Use::write_if_given, size(sum_dtype()));
    void* slopes = dense(slope, sum_dtype(), outputs()).data;
    const View input = inputs_of(from, in_);
    const Dense output = dense(to, out_, outputs());
    const Parameter parameter = parameter_of(own, count);
    run(threads, [&](const Work& work) {
      kernels().curve->forward(work, blend, input, parameter, output, rows, slopes);
    });
  }

  void curved_backward(const char* which, Source gy, Source x, Source theta, i64 count,
                       const std::vector<Source>& kept, Source gx, int threads) const {
    require_no_samples();
    require_one_dtype();
    const Blend blend = blend_named(which);
    const Array from(gy, Use::read, size(out_)), values(x, Use::read, size(in_)),
        own(theta, Use::read, size(sum_dtype())), to(gx, Use::write, size(in_));
    if (static_cast<int>(kept.size()) != kept_of(blend)) {
      throw nb::value_error("another number of arrays is kept");
    }
    std::optional<Array> held[kMostKept];
    View views[kMostKept];
    for (std::size_t k = 0; k < kept.size(); ++k) {
      held[k].emplace(kept[k], Use::read, size(sum_dtype()));
      views[k] = outputs_of(*held[k], sum_dtype());
    }
    const View gradient = outputs_of(from, out_), input = inputs_of(values, in_);
    const Dense target = dense(to, in_, inputs());
    const Parameter parameter = parameter_of(own, count);
    run(threads, [&](const Work& work) {
      kernels().curve->backward(work, blend, gradient, input, parameter, views, target);
    });
  }
};

}  // namespace
}  // namespace poolgrad
