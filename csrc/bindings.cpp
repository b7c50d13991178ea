// Buffers in, buffers out. An array comes as an object with the buffer protocol, or as a pair
// (address, strides in elements). Shapes, dtypes and layouts were checked by window.py and core.py;
// what is checked here guards memory only.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <stdexcept>

#include "dispatch.hpp"

namespace nb = nanobind;

namespace poolgrad {
namespace {

using Strides = std::vector<i64>;

// One argument, held while a kernel runs.
class Array {
 public:
  Array(nb::handle source, bool writable, std::size_t itemsize) {
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

// A Plan as Python sees it.
class BoundPlan {
 public:
  // axes: (in, out, kernel, stride, lo, hi, dilation), or (in, out, kernel) for adaptive bins
  BoundPlan(const std::vector<nb::tuple>& axes, const std::vector<i64>& shape,
            const std::vector<int>& pooled, int inner_axis, int itemsize)
      : itemsize_(static_cast<std::size_t>(itemsize)),
        dtype_(itemsize == 4 ? Dtype::f32 : Dtype::f64) {
    if (axes.empty() || axes.size() > 3 || axes.size() != pooled.size() || shape.size() > 64) {
      throw nb::value_error("1 to 3 axes are pooled, of at most 64");
    }
    if (itemsize != 4 && itemsize != 8) throw nb::value_error("items have 4 or 8 bytes");
    const std::size_t missing = 3 - axes.size();
    for (std::size_t a = 0; a < axes.size(); ++a) {
      plan_.axis[missing + a] = axis_of(axes[a]);
      plan_.pooled_axes[missing + a] = pooled[a];
    }
    plan_.places = plan_.axis[0].kernel * plan_.axis[1].kernel * plan_.axis[2].kernel;
    plan_.route_bytes = plan_.places <= 255 ? 1 : plan_.places <= 65535 ? 2 : 4;
    plan_.inner_axis = inner_axis;
    for (int a = 0; a < static_cast<int>(shape.size()); ++a) {
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
    rank_ = shape.size();
  }

  void max_forward(nb::handle x, nb::handle y, nb::handle routes, bool lone, int threads) const {
    const Array from(x, false, itemsize_), to(y, true, itemsize_);
    std::optional<Array> kept;
    if (!routes.is_none()) kept.emplace(routes, true, route_size());
    const View view = input(from);
    void* target = to.room(out_bytes());
    void* place = kept ? kept->room(outputs() * plan_.route_bytes) : nullptr;
    run([&] { kernels().max_forward(work(threads), view, target, place, lone); });
  }

  void route_backward(nb::handle gy, nb::handle routes, nb::handle gx, int threads) const {
    const Array from(gy, false, itemsize_), kept(routes, false, route_size()),
        to(gx, true, itemsize_);
    const View gradient = view_of(from), routing = view_of(kept);
    void* target = to.room(in_bytes());
    run([&] { kernels().route_backward(work(threads), gradient, routing, target); });
  }

  void route_follow(nb::handle x, nb::handle routes, nb::handle y, int threads) const {
    const Array from(x, false, itemsize_), kept(routes, false, route_size()),
        to(y, true, itemsize_);
    const View tangent = view_of(from), routing = view_of(kept);
    void* target = to.room(out_bytes());
    run([&] { kernels().route_follow(work(threads), tangent, routing, target); });
  }

  void route_indices(nb::handle routes, nb::handle indices, int threads) const {
    const Array kept(routes, false, route_size()), to(indices, true, sizeof(i64));
    const View routing = view_of(kept);
    i64* target = reinterpret_cast<i64*>(to.room(outputs() * static_cast<i64>(sizeof(i64))));
    run([&] { kernels().route_indices(work(threads), routing, target); });
  }

  void split_winners(nb::handle x, nb::handle y, nb::handle winners, int threads) const {
    const Array from(x, false, itemsize_), best(y, false, itemsize_), kept(winners, true, 1);
    const View view = view_of(from);
    const char* values = best.room(out_bytes());
    auto* bits = reinterpret_cast<std::uint8_t*>(kept.room(outputs() * plan_.winner_bytes()));
    run([&] { kernels().split_winners(work(threads), view, values, bits); });
  }

  void split_backward(nb::handle gy, nb::handle winners, nb::handle gx, int threads) const {
    const Array from(gy, false, itemsize_), kept(winners, false, 1), to(gx, true, itemsize_);
    const View gradient = view_of(from);
    const auto* bits = reinterpret_cast<std::uint8_t*>(kept.room(outputs() * plan_.winner_bytes()));
    void* target = to.room(in_bytes());
    run([&] { kernels().split_backward(work(threads), gradient, bits, target); });
  }

  void split_follow(nb::handle x, nb::handle winners, nb::handle y, int threads) const {
    const Array from(x, false, itemsize_), kept(winners, false, 1), to(y, true, itemsize_);
    const View tangent = view_of(from);
    const auto* bits = reinterpret_cast<std::uint8_t*>(kept.room(outputs() * plan_.winner_bytes()));
    void* target = to.room(out_bytes());
    run([&] { kernels().split_follow(work(threads), tangent, bits, target); });
  }

  void average_forward(nb::handle x, nb::handle y, bool count_padding, double divisor,
                       int threads) const {
    const Array from(x, false, itemsize_), to(y, true, itemsize_);
    const View view = input(from);
    void* target = to.room(out_bytes());
    run([&] { kernels().average_forward(work(threads), view, target, count_padding, divisor); });
  }

  void average_backward(nb::handle gy, nb::handle gx, bool count_padding, double divisor,
                        int threads) const {
    const Array from(gy, false, itemsize_), to(gx, true, itemsize_);
    const View gradient = view_of(from);
    void* target = to.room(in_bytes());
    run([&] {
      kernels().average_backward(work(threads), gradient, target, count_padding, divisor);
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
    if (from.size() == 3) {
      a.adaptive = true;
      a.overlap = a.in % a.out != 0;
      a.full_lo = a.full_hi = 0;
      return a;
    }
    if (from.size() != 7) throw nb::value_error("an axis has 3 or 7 numbers");
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
    if (axis < 0 || axis > 2 || plan_.pooled_axes[axis] < 0) throw nb::index_error("no such axis");
    return plan_.axis[axis];
  }

  i64 outputs() const { return plan_.outer * plan_.out_plane(); }
  i64 out_bytes() const { return outputs() * static_cast<i64>(itemsize_); }
  i64 in_bytes() const { return plan_.outer * plan_.in_plane() * static_cast<i64>(itemsize_); }
  std::size_t route_size() const { return static_cast<std::size_t>(plan_.route_bytes); }
  Work work(int threads) const { return {&plan_, dtype_, threads < 1 ? 1 : threads}; }

  View view_of(const Array& array) const {
    if (array.strides().size() != rank_) throw nb::value_error("an array has another rank");
    const auto stride = [&](int a) {
      return a < 0 ? i64{0} : array.strides()[static_cast<std::size_t>(a)];
    };
    View v;
    v.data = array.data();
    v.depth = stride(plan_.pooled_axes[0]);
    v.height = stride(plan_.pooled_axes[1]);
    v.width = stride(plan_.pooled_axes[2]);
    v.inner = stride(plan_.inner_axis);
    for (std::size_t k = 0; k < plan_.outer_axes.size(); ++k) {
      const i64 size = plan_.outer_shape[k], step = stride(plan_.outer_axes[k]);
      const int last = v.outer_axes - 1;
      if (last >= 0 && v.outer_stride[last] == size * step) {
        v.outer_size[last] *= size;
        v.outer_stride[last] = step;
      } else {
        v.outer_size[v.outer_axes] = size;
        v.outer_stride[v.outer_axes++] = step;
      }
    }
    return v;
  }

  // What a forward reads: its inner axis must lie in one piece.
  View input(const Array& array) const {
    const View v = view_of(array);
    if (plan_.inner > 1 && v.inner != 1) throw nb::value_error("the inner axis is not contiguous");
    return v;
  }

  template <class F>
  void run(F&& kernel) const {
    if (plan_.outer == 0 || plan_.inner == 0) return;
    nb::gil_scoped_release release;
    kernel();
  }

  static const Kernels& kernels() { return chosen_kernels(); }

  Plan plan_;
  std::size_t itemsize_, rank_ = 0;
  Dtype dtype_;
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
                    int, int>(),
           nb::arg("axes"), nb::arg("shape"), nb::arg("pooled"), nb::arg("inner_axis"),
           nb::arg("itemsize"))
      .def("max_forward", &BoundPlan::max_forward, nb::arg("x"), nb::arg("y"),
           nb::arg("routes").none(), nb::arg("lone"), nb::arg("threads"))
      .def("route_backward", &BoundPlan::route_backward)
      .def("route_follow", &BoundPlan::route_follow)
      .def("route_indices", &BoundPlan::route_indices)
      .def("split_winners", &BoundPlan::split_winners)
      .def("split_backward", &BoundPlan::split_backward)
      .def("split_follow", &BoundPlan::split_follow)
      .def("average_forward", &BoundPlan::average_forward)
      .def("average_backward", &BoundPlan::average_backward)
      .def("span", &BoundPlan::span, nb::arg("axis"), nb::arg("output"))
      .def("covering", &BoundPlan::covering_outputs, nb::arg("axis"), nb::arg("input"))
      .def_prop_ro("places", &BoundPlan::places)
      .def_prop_ro("route_bytes", &BoundPlan::route_bytes)
      .def_prop_ro("winner_bytes", &BoundPlan::winner_bytes);
}

}  // namespace poolgrad
