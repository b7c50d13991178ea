// Buffers in, buffers out. An array comes as an object with the buffer protocol, or as a pair
// (address, strides in elements). Shapes, dtypes and layouts were checked by window.py and core.py;
// what is checked here guards memory only.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "dispatch.hpp"
#include "fractional.hpp"
#include "parallel.hpp"

namespace nb = nanobind;

namespace poolgrad {
namespace {

using Strides = std::vector<i64>;

// One argument, held while a kernel runs; None is no memory.
class Array {
 public:
  Array(nb::handle source, bool writable, std::size_t itemsize) {
    if (source.is_none()) return;
    if (PyTuple_Check(source.ptr())) {
      const nb::tuple pair = nb::borrow<nb::tuple>(source);
      if (pair.size() != 2) throw nb::type_error("an array is (address, strides)");
      data_ = reinterpret_cast<char*>(nb::cast<std::uintptr_t>(pair[0]));
      const nb::tuple strides = nb::cast<nb::tuple>(pair[1]);
      for (nb::handle s : strides) strides_.push_back(nb::cast<i64>(s));
      return;
    }
    const int flags = PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(source.ptr(), &buffer_, flags) != 0) throw nb::python_error();
    held_ = true;
    data_ = static_cast<char*>(buffer_.buf);
    size_ = buffer_.len;
    const i64 size = static_cast<i64>(itemsize);
    if (buffer_.itemsize != static_cast<Py_ssize_t>(itemsize)) {
      release();
      throw nb::value_error("an array has items of another size than planned");
    }
    for (int a = 0; a < buffer_.ndim; ++a) {
      if (buffer_.strides[a] % size) {
        release();
        throw nb::value_error("an array's strides are no multiples of its item size");
      }
      strides_.push_back(buffer_.strides[a] / size);
    }
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { release(); }

  char* data() const { return data_; }
  const Strides& strides() const { return strides_; }

  // Memory to write: at least `bytes`, where the size is known.
  char* room(i64 bytes) const {
    if (held_ && size_ < bytes) throw nb::value_error("an array to write is smaller than planned");
    return data_;
  }

 private:
  void release() {
    if (held_) PyBuffer_Release(&buffer_);
    held_ = false;
  }

  Py_buffer buffer_{};
  bool held_ = false;
  char* data_ = nullptr;
  i64 size_ = 0;
  Strides strides_;
};

Dtype dtype_named(const std::string& name) {
  static const std::pair<const char*, Dtype> known[] = {
      {"float16", Dtype::float16}, {"bfloat16", Dtype::bfloat16}, {"float32", Dtype::float32},
      {"float64", Dtype::float64}, {"bool", Dtype::boolean},      {"uint8", Dtype::uint8},
      {"int8", Dtype::int8},       {"int16", Dtype::int16},       {"int32", Dtype::int32},
      {"int64", Dtype::int64},
  };
  for (const auto& [word, dtype] : known) {
    if (name == word) return dtype;
  }
  throw nb::value_error(("no such dtype: " + name).c_str());
}

Select selection_named(const std::string& name) {
  if (name == "max") return Select::largest;
  if (name == "min") return Select::smallest;
  if (name == "median") return Select::median;
  throw nb::value_error(("no such selection: " + name).c_str());
}

Blend blend_named(const std::string& name) {
  if (name == "lp") return Blend::lp;
  if (name == "lp_mean") return Blend::lp_mean;
  if (name == "lse") return Blend::lse;
  if (name == "soft") return Blend::soft;
  if (name == "expected") return Blend::expected;
  throw nb::value_error(("no such blend: " + name).c_str());
}

// A Plan as Python sees it. x and gx have dtype `in`; y and gy `out`.
class BoundPlan {
 public:
  // axes: (in, out, kernel, stride, lo, hi, dilation), or (in, out, kernel, word) with the word
  // "adaptive" for bins, "table" for windows that random samples place
  BoundPlan(const std::vector<nb::tuple>& axes, const std::vector<i64>& shape,
            const std::vector<int>& pooled, int inner_axis, const std::string& in,
            const std::string& out)
      : rank_(shape.size()), in_(dtype_named(in)), out_(dtype_named(out)) {
    if (axes.empty() || axes.size() > 3 || axes.size() != pooled.size() || rank_ > 64) {
      throw nb::value_error("1 to 3 axes are pooled, of at most 64");
    }
    const std::size_t missing = 3 - axes.size();
    for (std::size_t a = 0; a < axes.size(); ++a) {
      plan_.axis[missing + a] = axis_of(axes[a]);
      plan_.pooled_axes[missing + a] = pooled[a];
    }
    plan_.places = plan_.axis[0].kernel * plan_.axis[1].kernel * plan_.axis[2].kernel;
    plan_.route_bytes = plan_.places <= 255 ? 1 : plan_.places <= 65535 ? 2 : 4;
    plan_.inner_axis = inner_axis;
    const int last = static_cast<int>(rank_) - 1;
    plan_.inner_is_channel = inner_axis == (pooled.back() == last ? pooled[0] - 1 : last);
    for (int a = 0; a <= last; ++a) {
      const i64 size = shape[static_cast<std::size_t>(a)];
      bool is_pooled = false;
      for (int q : pooled) is_pooled |= q == a;
      if (is_pooled) continue;
      if (a == inner_axis) {
        plan_.inner = size;
      } else {
        plan_.outer *= size;
        plan_.outer_axes.push_back(a);
        plan_.outer_shape.push_back(size);
      }
    }
    out_strides_.assign(rank_, 0);
    i64 step = 1;
    for (int a = last; a >= 0; --a) {
      out_strides_[static_cast<std::size_t>(a)] = step;
      step *= shape[static_cast<std::size_t>(a)];
      for (int q = 0; q < 3; ++q) {
        if (plan_.pooled_axes[q] == a) {
          step = step / shape[static_cast<std::size_t>(a)] * plan_.axis[q].out;
        }
      }
    }
  }

  void select(const std::string& which, nb::handle x, nb::handle y, nb::handle routes, bool lone,
              nb::handle samples, int threads) const {
    const Select selection = selection_named(which);
    const Array from(x, false, size(in_)), to(y, true, size(out_));
    const Array kept(routes, true, route_size());
    const Samples placed = sampled(samples);
    const View input = view_of(from, in_);
    const Dense output = dense(to, out_, outputs());
    const Dense routing = dense(kept, route_dtype(), outputs());
    run(placed, threads, [&](const Part& part) {
      kernels().select->forward(part.work, selection, part.of(input), part.of(output),
                                part.of(routing), lone);
    });
  }

  void draw(nb::handle x, nb::handle y, nb::handle routes, std::uint64_t seed, int threads) const {
    const Array from(x, false, size(in_)), to(y, true, size(out_));
    const Array kept(routes, true, route_size());
    const View input = view_of(from, in_), order = view_of(out_strides_, nullptr, out_);
    const Dense output = dense(to, out_, outputs());
    const Dense routing = dense(kept, route_dtype(), outputs());
    bool finite = true;
    run(threads, [&](const Work& work) {
      finite = kernels().select->draw(work, input, output, routing, order, seed);
    });
    if (!finite) {
      throw nb::value_error(
          "x must be finite: probabilities are proportional to it, got NaN or an "
          "infinity");
    }
  }

  void route_backward(nb::handle gy, nb::handle routes, nb::handle gx, nb::handle samples,
                      int threads) const {
    const Array from(gy, false, size(out_)), kept(routes, false, route_size()),
        to(gx, true, size(in_));
    const Samples placed = sampled(samples);
    const View gradient = view_of(from, out_), routing = view_of(kept, route_dtype());
    const Dense target = dense(to, in_, inputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->backward(part.work, part.of(gradient), part.of(routing),
                                part.of_input(target));
    });
  }

  void route_follow(nb::handle t, nb::handle routes, nb::handle y, nb::handle samples,
                    int threads) const {
    const Array from(t, false, size(in_)), kept(routes, false, route_size()),
        to(y, true, size(out_));
    const Samples placed = sampled(samples);
    const View tangent = view_of(from, in_), routing = view_of(kept, route_dtype());
    const Dense target = dense(to, out_, outputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->follow(part.work, part.of(tangent), part.of(routing), part.of(target));
    });
  }

  void route_indices(nb::handle routes, nb::handle indices, nb::handle samples, int threads) const {
    const Array kept(routes, false, route_size()), to(indices, true, sizeof(i64));
    const Samples placed = sampled(samples);
    const View routing = view_of(kept, route_dtype());
    const Dense target = dense(to, Dtype::int64, outputs());
    run(placed, threads, [&](const Part& part) {
      kernels().route->indices(part.work, part.of(routing),
                               reinterpret_cast<i64*>(part.of(target).data));
    });
  }

  void split_winners(nb::handle x, nb::handle y, nb::handle winners, nb::handle samples,
                     int threads) const {
    const Array from(x, false, size(in_)), best(y, false, size(out_)), kept(winners, true, 1);
    const Samples placed = sampled(samples);
    const View input = view_of(from, in_), output = view_of(best, out_);
    const Dense bits = winner_bits(kept);
    run(placed, threads, [&](const Part& part) {
      kernels().select->split_winners(part.work, part.of(input), part.of(output),
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
  void curved(const std::string& which, nb::handle x, nb::handle theta, i64 count, nb::handle y,
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

  void curved_backward(const std::string& which, nb::handle gy, nb::handle x, nb::handle theta,
                       i64 count, const std::vector<nb::object>& kept, nb::handle gx,
                       int threads) const {
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

  // (begin, place, taps, extent) of one window along one pooled axis: geometry without an array.
  nb::tuple span(int axis, i64 output) const {
    const Axis& a = bound_axis(axis);
    if (output < 0 || output >= a.out) throw nb::index_error("no such output");
    const Span s = span_of(a, output);
    return nb::make_tuple(s.begin, s.place, s.taps, s.extent);
  }

  // Outputs whose windows may reach an input.
  nb::tuple covering_outputs(int axis, i64 input) const {
    const Axis& a = bound_axis(axis);
    if (input < 0 || input >= a.in) throw nb::index_error("no such input");
    const Range r = covering(a, input);
    return nb::make_tuple(r.lo, r.hi);
  }

  i64 places() const { return plan_.places; }
  int route_bytes() const { return plan_.route_bytes; }
  i64 winner_bytes() const { return plan_.winner_bytes(); }

 private:
  static Axis axis_of(const nb::tuple& from) {
    Axis a;
    a.in = nb::cast<i64>(from[0]);
    a.out = nb::cast<i64>(from[1]);
    a.kernel = nb::cast<i64>(from[2]);
    if (a.in < 1 || a.out < 1 || a.kernel < 1) throw nb::value_error("an axis is empty");
    if (from.size() == 4) {
      const auto word = nb::cast<std::string>(from[3]);
      if (word != "adaptive" && word != "table") throw nb::value_error("no such kind of axis");
      a.adaptive = word == "adaptive";
      a.placed = word == "table";
      a.overlap = a.placed || a.in % a.out != 0;
      a.full_lo = a.full_hi = 0;
      return a;
    }
    if (from.size() != 7) throw nb::value_error("an axis has 4 or 7 members");
    a.stride = nb::cast<i64>(from[3]);
    a.lo = nb::cast<i64>(from[4]);
    a.hi = nb::cast<i64>(from[5]);
    a.dilation = nb::cast<i64>(from[6]);
    if (a.stride < 1 || a.lo < 0 || a.hi < 0 || a.dilation < 1) {
      throw nb::value_error("an axis has a number out of range");
    }
    const i64 reach = (a.kernel - 1) * a.dilation;
    a.full_lo = smaller(a.out, ceil_div(a.lo, a.stride));
    a.full_hi = larger(a.full_lo, smaller(a.out, floor_div(a.in - 1 - reach + a.lo, a.stride) + 1));
    a.overlap = a.out > 1 && a.stride <= reach;
    return a;
  }

  const Axis& bound_axis(int axis) const {
    if (axis < 0 || axis > 2 || plan_.pooled_axes[axis] < 0 || plan_.axis[axis].placed) {
      throw nb::index_error("no such axis");
    }
    return plan_.axis[axis];
  }

  // One plane of arrays that are pooled plane by plane, or all of them.
  struct Part {
    Work work;
    i64 plane = -1;
    View of(const View& v) const {
      if (plane < 0) return v;
      View one = v;
      one.data = plane_of(v, plane);
      one.outer_axes = 0;
      return one;
    }
    Dense of(Dense array) const { return shifted(array, work.plan->out_plane()); }
    Dense of_input(Dense array) const { return shifted(array, work.plan->in_plane()); }
    std::uint8_t* winners(Dense bits) const {
      const i64 bytes = work.plan->out_plane() * work.plan->winner_bytes();
      return reinterpret_cast<std::uint8_t*>(shifted(bits, bytes).data);
    }
    Dense shifted(Dense array, i64 elements) const {
      if (plane > 0 && array.data) array.data += plane * elements * size_of(array.dtype);
      return array;
    }
  };

  i64 outputs() const { return plan_.outer * plan_.out_plane(); }
  i64 inputs() const { return plan_.outer * plan_.in_plane(); }
  Dtype route_dtype() const {
    return plan_.route_bytes == 1   ? Dtype::uint8
           : plan_.route_bytes == 2 ? Dtype::uint16
                                    : Dtype::uint32;
  }
  Dtype sum_dtype() const {
    const bool wide = in_ == Dtype::float64 || in_ == Dtype::int32 || in_ == Dtype::int64;
    return wide ? Dtype::float64 : Dtype::float32;
  }
  static std::size_t size(Dtype dtype) { return static_cast<std::size_t>(size_of(dtype)); }
  std::size_t route_size() const { return static_cast<std::size_t>(plan_.route_bytes); }

  static Dense dense(const Array& array, Dtype dtype, i64 elements) {
    return {array.room(elements * size_of(dtype)), dtype};
  }

  Dense winner_bits(const Array& array) const {
    return dense(array, Dtype::uint8, outputs() * plan_.winner_bytes());
  }

  Parameter parameter_of(const Array& array, i64 count) const {
    if (count < 1 && outputs() > 0) throw nb::value_error("a parameter is empty");
    return {array.room(count * size_of(sum_dtype())), count};
  }

  View view_of(const Array& array, Dtype dtype) const {
    if (array.strides().size() != rank_) throw nb::value_error("an array has another rank");
    return view_of(array.strides(), array.data(), dtype);
  }
  View view_of(const Strides& strides, const char* data, Dtype dtype) const {
    const auto stride = [&](int a) {
      return a < 0 ? i64{0} : strides[static_cast<std::size_t>(a)];
    };
    View v;
    v.data = data;
    v.dtype = dtype;
    v.depth = stride(plan_.pooled_axes[0]);
    v.height = stride(plan_.pooled_axes[1]);
    v.width = stride(plan_.pooled_axes[2]);
    v.inner = stride(plan_.inner_axis);
    for (std::size_t k = 0; k < plan_.outer_axes.size(); ++k) {
      const i64 count = plan_.outer_shape[k], step = stride(plan_.outer_axes[k]);
      const int last = v.outer_axes - 1;
      if (last >= 0 && v.outer_stride[last] == count * step) {
        v.outer_size[last] *= count;
        v.outer_stride[last] = step;
      } else {
        v.outer_size[v.outer_axes] = count;
        v.outer_stride[v.outer_axes++] = step;
      }
    }
    return v;
  }

  // Where the windows of each plane begin, of windows that samples place.
  using Samples = std::vector<i64>;
  Samples sampled(nb::handle samples) const {
    bool placed = false;
    for (const Axis& a : plan_.axis) placed |= a.placed;
    if (placed == samples.is_none()) throw nb::value_error("samples are for windows they place");
    if (!placed) return {};
    const Dtype dtype =
        size_of(in_) > 1 && in_ != Dtype::int16 && in_ != Dtype::int32 && in_ != Dtype::int64
            ? in_
            : Dtype::float32;
    const Array given(samples, false, size(dtype));
    int dims = 0;
    for (const Axis& a : plan_.axis) dims += a.placed;
    const char* data = given.room(plan_.outer * dims * size_of(dtype));
    return window_tables(plan_, dtype, data, dims);
  }

  // Runs a kernel for all planes at once or, where samples place the windows, for one at a time.
  template <class F>
  void run(const Samples& tables, int threads, F&& kernel) const {
    if (tables.empty()) return run(threads, [&](const Work& work) { kernel(Part{work, -1}); });
    run(threads, [&](const Work& work) {
      const i64 length = static_cast<i64>(tables.size()) / plan_.outer;
      parallel_for(plan_.outer, work.threads, [&](i64 plane) {
        Plan one = plan_;
        one.outer = 1;
        const i64* table = tables.data() + plane * length;
        for (Axis& a : one.axis) {
          if (!a.placed) continue;
          a.table = table;
          table += a.out;
        }
        kernel(Part{{&one, 1}, plane});
      });
    });
  }

  template <class F>
  void run(int threads, F&& kernel) const {
    if (plan_.outer == 0 || plan_.inner == 0) return;
    nb::gil_scoped_release release;
    kernel(Work{&plan_, threads < 1 ? 1 : threads});
  }

  // Runs a kernel that checks indices first.
  template <class F>
  void inside(int threads, F&& kernel) const {
    i64 culprit = 0;
    bool fine = true;
    run(threads, [&](const Work& work) { fine = kernel(work, &culprit); });
    if (fine) return;
    const i64 plane = plan_.axis[0].out * plan_.axis[1].out * plan_.axis[2].out;
    throw nb::value_error(("indices must be from 0 to " + std::to_string(plane - 1) +
                           ", positions in a plane of the output, got " + std::to_string(culprit))
                              .c_str());
  }

  static const Kernels& kernels() { return chosen_kernels(); }

  Plan plan_;
  std::size_t rank_ = 0;
  Dtype in_, out_;
  Strides out_strides_;  // of the outputs in logical order
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
  nb::class_<BoundPlan>(m, "Plan")
      .def(nb::init<const std::vector<nb::tuple>&, const std::vector<i64>&, const std::vector<int>&,
                    int, const std::string&, const std::string&>(),
           nb::arg("axes"), nb::arg("shape"), nb::arg("pooled"), nb::arg("inner_axis"),
           nb::arg("in_dtype"), nb::arg("out_dtype"))
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
      .def("split_winners", &BoundPlan::split_winners, nb::arg("x"), nb::arg("y"),
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
