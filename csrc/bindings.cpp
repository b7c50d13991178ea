// Buffers in, buffers out: no maths. Shapes, dtypes and layouts were checked by window.py and
// core.py; what is checked here guards memory only.
#include <optional>

#include "bound_kind.hpp"
#include "bound_routes.hpp"
#include "bound_steps.hpp"
#include "cache.hpp"

namespace poolgrad {
namespace {

// A Plan as Python sees it: a layout, and the kernels for it.
class BoundPlan : public RoutedLayout {
 public:
  using RoutedLayout::RoutedLayout;

  void select(const char* which, nb::handle x, nb::handle y, nb::handle routes, bool lone,
              nb::handle samples, int threads) const {
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

  void draw(nb::handle x, nb::handle y, nb::handle routes, std::uint64_t seed, int threads) const {
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

  void route_backward(nb::handle gy, nb::handle routes, nb::handle gx, nb::handle samples,
                      int threads) const {
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

  void route_follow(nb::handle t, nb::handle routes, nb::handle y, nb::handle samples,
                    int threads) const {
    const Array from(t, false, size(in_)), to(y, true, size(out_));
    const Routes kept(*this, routes, false);
    const Samples placed = sampled(samples);
    const View tangent = view_of(from, in_), routing = kept.to_read(threads);
    const Dense target = dense(to, out_, outputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->follow(part.work, part.of(tangent), part.of(routing), part.of(target));
    });
  }

  void route_indices(nb::handle routes, nb::handle indices, nb::handle samples, int threads) const {
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

  void split_winners(const char* which, nb::handle x, nb::handle y, nb::handle winners,
                     nb::handle samples, int threads) const {
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

  void split_backward(nb::handle gy, nb::handle winners, nb::handle gx, nb::handle samples,
                      int threads) const {
    const Array from(gy, false, size(out_)), kept(winners, false, 1), to(gx, true, size(in_));
    const Samples placed = sampled(samples);
    const View gradient = view_of(from, out_);
    const Dense bits = winner_bits(kept), target = dense(to, in_, inputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->split_backward(part.work, part.of(gradient), part.winners(bits),
                                      part.of_input(target));
    });
  }

  void split_follow(nb::handle t, nb::handle winners, nb::handle y, nb::handle samples,
                    int threads) const {
    const Array from(t, false, size(in_)), kept(winners, false, 1), to(y, true, size(out_));
    const Samples placed = sampled(samples);
    const View tangent = view_of(from, in_);
    const Dense bits = winner_bits(kept), target = dense(to, out_, outputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->split_follow(part.work, part.of(tangent), part.winners(bits),
                                    part.of(target));
    });
  }

  void unpool(nb::handle x, nb::handle indices, nb::handle y, int threads) const {
    const Array from(x, false, size(in_)), where(indices, false, sizeof(i64)),
        to(y, true, size(out_));
    const View input = view_of(from, in_), index = view_of(where, Dtype::int64);
    const Dense target = dense(to, out_, outputs());
    inside(threads, [&](const Work& work, i64* culprit) {
      return kernels().route->unpool(work, input, index, target, culprit);
    });
  }

  void unpool_backward(nb::handle gy, nb::handle indices, nb::handle gx, int threads) const {
    const Array from(gy, false, size(out_)), where(indices, false, sizeof(i64)),
        to(gx, true, size(in_));
    const View gradient = view_of(from, out_), index = view_of(where, Dtype::int64);
    const Dense target = dense(to, in_, inputs());
    inside(threads, [&](const Work& work, i64* culprit) {
      return kernels().route->unpool_backward(work, gradient, index, target, culprit);
    });
  }

  void average(nb::handle x, nb::handle y, bool count_padding, double divisor, int threads) const {
    const Array from(x, false, size(in_)), to(y, true, size(out_));
    const View input = view_of(from, in_);
    const Dense output = dense(to, out_, outputs());
    run(threads, [&](const Work& work) {
      kernels().blend->average(work, input, output, count_padding, divisor);
    });
  }

  void average_backward(nb::handle gy, nb::handle gx, bool count_padding, double divisor,
                        int threads) const {
    const Array from(gy, false, size(out_)), to(gx, true, size(in_));
    const View gradient = view_of(from, out_);
    const Dense target = dense(to, in_, inputs());
    run(threads, [&](const Work& work) {
      kernels().blend->average_backward(work, gradient, target, count_padding, divisor);
    });
  }

  void mixed(nb::handle x, nb::handle alpha, i64 count, bool count_padding, nb::handle y,
             nb::handle routes, nb::handle sensitivity, int threads) const {
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

  void mixed_backward(nb::handle gy, nb::handle alpha, i64 count, bool count_padding,
                      nb::handle routes, nb::handle gx, int threads) const {
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
  void curved(const char* which, nb::handle x, nb::handle theta, i64 count, nb::handle y,
              const std::vector<nb::object>& kept, nb::handle sensitivity, int threads) const {
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
      kernels().blend->curved(work, blend, input, parameter, output, rows, slopes);
    });
  }

  void curved_backward(const char* which, nb::handle gy, nb::handle x, nb::handle theta, i64 count,
                       const std::vector<nb::object>& kept, nb::handle gx, int threads) const {
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
      kernels().blend->curved_backward(work, blend, gradient, input, parameter, views, target);
    });
  }
};

int memory_buffer(PyObject* self, Py_buffer* view, int flags) {
  const Memory* memory = nb::inst_ptr<Memory>(self);
  return PyBuffer_FillInfo(view, self, memory->data(), static_cast<Py_ssize_t>(memory->bytes()), 0,
                           flags);
}

PyType_Slot memory_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(memory_buffer)},
    {0, nullptr},
};

}  // namespace

NB_MODULE(_kernels, m) {
  m.doc() = "poolgrad's compiled kernels; see poolgrad.core for the door to them.";
  nb::set_leak_warnings(false);  // plans are remembered until the process ends
  m.def("instruction_set", [] { return std::string(chosen_kernels().name); });
  m.def("instruction_sets", [] {
    std::vector<std::string> names;
    for (const Kernels* k : available_kernels()) names.emplace_back(k->name);
    return names;
  });
  nb::class_<Memory>(m, "Memory", nb::type_slots(memory_slots))
      .def(nb::init<std::size_t>(), nb::arg("bytes"));
  m.def("limit_cache", &limit_cache, nb::arg("bytes"));
  m.def("empty_cache", &empty_cache);
  m.def("share_threads", &share_threads, nb::arg("library"));
  m.def("cache_use", [] {
    const CacheUse use = cache_use();
    return nb::make_tuple(use.used, use.kept);
  });
  nb::class_<Kind>(m, "Kind")
      .def(nb::init<nb::type_object, nb::tuple, nb::tuple, nb::tuple, nb::tuple,
                    std::optional<std::string>>(),
           nb::arg("type"), nb::arg("parts"), nb::arg("plain"), nb::arg("modes"), nb::arg("quiet"),
           nb::arg("told") = nb::none())
      .def("key", &Kind::key, nb::arg("args"), nb::arg("kwargs"))
      .def("call", &Kind::call, nb::arg("kept"), nb::arg("args"), nb::arg("kwargs"))
      .def("parts", &Kind::parts, nb::arg("array"))
      .def("hold", &Kind::hold, nb::arg("arrays"), nb::arg("parts"));
  nb::class_<Steps>(m, "Steps")
      .def(nb::init<nb::tuple, nb::tuple, nb::tuple, nb::object>(), nb::arg("calls"),
           nb::arg("holes"), nb::arg("makers"), nb::arg("threads"))
      .def("run", &Steps::run);
  nb::class_<BoundPlan>(m, "Plan")
      .def(nb::init<const std::vector<nb::tuple>&, const std::vector<i64>&, const std::vector<int>&,
                    int, const std::string&, const std::string&, int>(),
           nb::arg("axes"), nb::arg("shape"), nb::arg("pooled"), nb::arg("inner_axis"),
           nb::arg("in_dtype"), nb::arg("out_dtype"), nb::arg("route_bits"))
      .def("unpack_routes", &BoundPlan::unpack_routes, nb::arg("packed"), nb::arg("routes"),
           nb::arg("threads"))
      .def("select", &BoundPlan::select, nb::arg("which"), nb::arg("x"), nb::arg("y"),
           nb::arg("routes").none(), nb::arg("lone"), nb::arg("samples").none(), nb::arg("threads"))
      .def("draw", &BoundPlan::draw, nb::arg("x"), nb::arg("y"), nb::arg("routes").none(),
           nb::arg("seed"), nb::arg("threads"))
      .def("route_backward", &BoundPlan::route_backward, nb::arg("gy"), nb::arg("routes"),
           nb::arg("gx"), nb::arg("samples").none(), nb::arg("threads"))
      .def("route_follow", &BoundPlan::route_follow, nb::arg("t"), nb::arg("routes"), nb::arg("y"),
           nb::arg("samples").none(), nb::arg("threads"))
      .def("route_indices", &BoundPlan::route_indices, nb::arg("routes"), nb::arg("indices"),
           nb::arg("samples").none(), nb::arg("threads"))
      .def("split_winners", &BoundPlan::split_winners, nb::arg("which"), nb::arg("x"), nb::arg("y"),
           nb::arg("winners"), nb::arg("samples").none(), nb::arg("threads"))
      .def("split_backward", &BoundPlan::split_backward, nb::arg("gy"), nb::arg("winners"),
           nb::arg("gx"), nb::arg("samples").none(), nb::arg("threads"))
      .def("split_follow", &BoundPlan::split_follow, nb::arg("t"), nb::arg("winners"), nb::arg("y"),
           nb::arg("samples").none(), nb::arg("threads"))
      .def("unpool", &BoundPlan::unpool)
      .def("unpool_backward", &BoundPlan::unpool_backward)
      .def("average", &BoundPlan::average)
      .def("average_backward", &BoundPlan::average_backward)
      .def("mixed", &BoundPlan::mixed, nb::arg("x"), nb::arg("alpha"), nb::arg("count"),
           nb::arg("count_padding"), nb::arg("y"), nb::arg("routes").none(),
           nb::arg("sensitivity").none(), nb::arg("threads"))
      .def("mixed_backward", &BoundPlan::mixed_backward)
      .def("curved", &BoundPlan::curved, nb::arg("which"), nb::arg("x"), nb::arg("theta"),
           nb::arg("count"), nb::arg("y"), nb::arg("kept"), nb::arg("sensitivity").none(),
           nb::arg("threads"))
      .def("curved_backward", &BoundPlan::curved_backward)
      .def("span", &BoundPlan::span, nb::arg("axis"), nb::arg("output"))
      .def("covering", &BoundPlan::covering_outputs, nb::arg("axis"), nb::arg("input"))
      .def_prop_ro("places", &BoundPlan::places)
      .def_prop_ro("route_bytes", &BoundPlan::route_bytes)
      .def_prop_ro("winner_bytes", &BoundPlan::winner_bytes);
}

}  // namespace poolgrad
