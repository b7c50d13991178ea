// A Plan as Python and XLA see it. Shapes, dtypes and layouts were checked by window.py and
// core.py; what is checked here guards memory only.
#pragma once

#include <optional>

#include "bound_routes.hpp"

namespace poolgrad {
namespace {

// A layout, and the kernels for it: memory in, memory out.
class BoundPlan : public RoutedLayout {
 public:
  using RoutedLayout::RoutedLayout;

  void select(const char* which, Source x, Source y, Source routes, bool lone, Source samples,
              int threads) const {
    const Select selection = selection_named(which);
    const Array from(x, false, size(in_)), to(y, true, size(out_));
    const Routes kept(*this, routes, true);
    const Samples placed = sampled(samples);
    const View input = view_of(from, in_);
    const Dense output = dense(to, out_, outputs()), routing = kept.to_write();
    run(placed, threads, [&](const Part& part) {
      kernels().select->forward(part.work, selection, part.of(input), part.of(output),
                                part.of(routing), lone);
    });
    kept.written(threads);
  }

  void draw(Source x, Source y, Source routes, std::uint64_t seed, int threads) const {
    const Array from(x, false, size(in_)), to(y, true, size(out_));
    const Routes kept(*this, routes, true);
    const View input = view_of(from, in_), order = view_of(out_strides_.data(), nullptr, out_);
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
    const Array from(gy, false, size(out_)), to(gx, true, size(in_));
    const Routes kept(*this, routes, false);
    const Samples placed = sampled(samples);
    const View gradient = view_of(from, out_), routing = kept.to_read(threads);
    const Dense target = dense(to, in_, inputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->backward(part.work, part.of(gradient), part.of(routing),
                                part.of_input(target));
    });
  }

  void route_follow(Source t, Source routes, Source y, Source samples, int threads) const {
    const Array from(t, false, size(in_)), to(y, true, size(out_));
    const Routes kept(*this, routes, false);
    const Samples placed = sampled(samples);
    const View tangent = view_of(from, in_), routing = kept.to_read(threads);
    const Dense target = dense(to, out_, outputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->follow(part.work, part.of(tangent), part.of(routing), part.of(target));
    });
  }

  void route_indices(Source routes, Source indices, Source samples, int threads) const {
    const Array to(indices, true, sizeof(i64));
    const Routes kept(*this, routes, false);
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
    const Select selection = selection_named(which);
    const Array from(x, false, size(in_)), best(y, false, size(out_)), kept(winners, true, 1);
    const Samples placed = sampled(samples);
    const View input = view_of(from, in_), output = view_of(best, out_);
    const Dense bits = winner_bits(kept);
    run(placed, threads, [&](const Part& part) {
      kernels().select->split_winners(part.work, selection, part.of(input), part.of(output),
                                      part.winners(bits));
    });
  }

  void split_backward(Source gy, Source winners, Source gx, Source samples, int threads) const {
    const Array from(gy, false, size(out_)), kept(winners, false, 1), to(gx, true, size(in_));
    const Samples placed = sampled(samples);
    const View gradient = view_of(from, out_);
    const Dense bits = winner_bits(kept), target = dense(to, in_, inputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->split_backward(part.work, part.of(gradient), part.winners(bits),
                                      part.of_input(target));
    });
  }

  void split_follow(Source t, Source winners, Source y, Source samples, int threads) const {
    const Array from(t, false, size(in_)), kept(winners, false, 1), to(y, true, size(out_));
    const Samples placed = sampled(samples);
    const View tangent = view_of(from, in_);
    const Dense bits = winner_bits(kept), target = dense(to, out_, outputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->split_follow(part.work, part.of(tangent), part.winners(bits),
                                    part.of(target));
    });
  }

  void unpool(Source x, Source indices, Source y, int threads) const {
    const Array from(x, false, size(in_)), where(indices, false, sizeof(i64)),
        to(y, true, size(out_));
    const View input = view_of(from, in_), index = view_of(where, Dtype::int64);
    const Dense target = dense(to, out_, outputs());
    inside(threads, [&](const Work& work, i64* culprit) {
      return kernels().route->unpool(work, input, index, target, culprit);
    });
  }

  void unpool_backward(Source gy, Source indices, Source gx, int threads) const {
    const Array from(gy, false, size(out_)), where(indices, false, sizeof(i64)),
        to(gx, true, size(in_));
    const View gradient = view_of(from, out_), index = view_of(where, Dtype::int64);
    const Dense target = dense(to, in_, inputs());
    inside(threads, [&](const Work& work, i64* culprit) {
      return kernels().route->unpool_backward(work, gradient, index, target, culprit);
    });
  }

  void average(Source x, Source y, bool count_padding, double divisor, int threads) const {
    const Array from(x, false, size(in_)), to(y, true, size(out_));
    const View input = view_of(from, in_);
    const Dense output = dense(to, out_, outputs());
    run(threads, [&](const Work& work) {
      kernels().blend->average(work, input, output, count_padding, divisor);
    });
  }

  void average_backward(Source gy, Source gx, bool count_padding, double divisor,
                        int threads) const {
    const Array from(gy, false, size(out_)), to(gx, true, size(in_));
    const View gradient = view_of(from, out_);
    const Dense target = dense(to, in_, inputs());
    run(threads, [&](const Work& work) {
      kernels().blend->average_backward(work, gradient, target, count_padding, divisor);
    });
  }

  void mixed(Source x, Source alpha, i64 count, bool count_padding, Source y, Source routes,
             Source sensitivity, int threads) const {
    const Array from(x, false, size(in_)), share(alpha, false, size(sum_dtype())),
        to(y, true, size(out_));
    const Array kept(routes, true, route_size()), slope(sensitivity, true, size(sum_dtype()));
    const View input = view_of(from, in_);
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
    const Array from(gy, false, size(out_)), share(alpha, false, size(sum_dtype())),
        kept(routes, false, route_size()), to(gx, true, size(in_));
    const View gradient = view_of(from, out_), routing = view_of(kept, route_dtype());
    const Dense target = dense(to, in_, inputs());
    const Parameter parameter = parameter_of(share, count);
    run(threads, [&](const Work& work) {
      kernels().blend->mixed_backward(work, gradient, routing, parameter, count_padding, target);
    });
  }

  // kept: an array or None for each number that is kept of a window
  void curved(const char* which, Source x, Source theta, i64 count, Source y,
              const std::vector<Source>& kept, Source sensitivity, int threads) const {
    const Blend blend = blend_named(which);
    const Array from(x, false, size(in_)), own(theta, false, size(sum_dtype())),
        to(y, true, size(out_));
    if (kept.size() > kMostKept) throw nb::value_error("too many arrays are kept");
    std::optional<Array> held[kMostKept];
    void* rows[kMostKept] = {};
    for (std::size_t k = 0; k < kept.size(); ++k) {
      held[k].emplace(kept[k], true, size(sum_dtype()));
      rows[k] = dense(*held[k], sum_dtype(), outputs()).data;
    }
    const Array slope(sensitivity, true, size(sum_dtype()));
    void* slopes = dense(slope, sum_dtype(), outputs()).data;
    const View input = view_of(from, in_);
    const Dense output = dense(to, out_, outputs());
    const Parameter parameter = parameter_of(own, count);
    run(threads, [&](const Work& work) {
      kernels().curve->forward(work, blend, input, parameter, output, rows, slopes);
    });
  }

  void curved_backward(const char* which, Source gy, Source x, Source theta, i64 count,
                       const std::vector<Source>& kept, Source gx, int threads) const {
    const Blend blend = blend_named(which);
    const Array from(gy, false, size(out_)), values(x, false, size(in_)),
        own(theta, false, size(sum_dtype())), to(gx, true, size(in_));
    if (static_cast<int>(kept.size()) != kept_of(blend)) {
      throw nb::value_error("another number of arrays is kept");
    }
    std::optional<Array> held[kMostKept];
    View views[kMostKept];
    for (std::size_t k = 0; k < kept.size(); ++k) {
      held[k].emplace(kept[k], false, size(sum_dtype()));
      views[k] = view_of(*held[k], sum_dtype());
    }
    const View gradient = view_of(from, out_), input = view_of(values, in_);
    const Dense target = dense(to, in_, inputs());
    const Parameter parameter = parameter_of(own, count);
    run(threads, [&](const Work& work) {
      kernels().curve->backward(work, blend, gradient, input, parameter, views, target);
    });
  }
};

}  // namespace
}  // namespace poolgrad
