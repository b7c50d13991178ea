// Checks the windows of a plan, and the shapes and memory layout of its arrays, and runs a kernel
// on them.
#pragma once

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/thread_pool.hpp"
#include "bindings/array.hpp"
#include "geometry/fractional.hpp"
#include "kernels.hpp"

namespace poolgrad {

// Converts a number from a framework to an enum with the values from 0 to `last`.
template <class E>
E checked_enum(i64 number, E last, const char* error) {
  require(number >= 0 && number <= static_cast<i64>(last), error);
  return static_cast<E>(number);
}

// Memory that a kernel accesses without strides, a pointer or Dense, and the distance between
// planes in it, in elements.
template <class Memory>
struct Planes {
  Memory first;
  i64 distance;
  operator Memory() const { return first; }  // NOLINT: the argument of a kernel
};

// The windows of a call, and the shapes and dtypes of its arrays: x and gx have dtype `in`, y and
// gy dtype `out`.
class PlanLayout {
 public:
  // axes: the members of AxisNumbers for each pooled axis; in, out: numbers of dtypes
  PlanLayout(Shape axes, Shape shape, i64 inner_axis, i64 in, i64 out)
      : in_(dtype_of(in)),
        out_(dtype_of(out)),
        in_shape_(shape.begin(), shape.end()),
        out_shape_(in_shape_) {
    require(in_ == out_ || (!is_floating(in_) && out_ == sum_dtype()),
            "outputs have another dtype than inputs or their sums");
    constexpr std::size_t numbers = sizeof(AxisNumbers) / sizeof(i64);
    require(!axes.empty() && axes.size() <= 3 * numbers && axes.size() % numbers == 0,
            "1 to 3 axes are pooled, each with 13 numbers");
    const i64 rank = static_cast<i64>(shape.size());
    require(rank <= kMaxAxes, "an array has too many axes");
    for (i64 size : shape) require(size >= 0, "a size is negative");
    const std::size_t first = 3 - axes.size() / numbers;
    i64 before = -1;
    for (std::size_t k = first; k < 3; ++k, axes = axes.subspan(numbers)) {
      AxisNumbers axis;
      std::memcpy(&axis, axes.data(), sizeof axis);
      require(axis.position > before && axis.position < rank, "no such pooled axis");
      before = axis.position;
      const auto at = static_cast<std::size_t>(axis.position);
      plan_.axis[k] = axis_of(axis);
      require(axis.in == shape[at], "an axis has another size than the input");
      out_shape_[at] = axis.out;
      plan_.pooled_axes[k] = static_cast<int>(at);
      plan_.taps = product(plan_.taps, axis.kernel);
    }
    require(plan_.taps < kNowhere, "a window has too many taps");
    require(inner_axis >= -1 && inner_axis < rank && !(inner_axis >= 0 && is_pooled(inner_axis)),
            "no such inner axis");
    plan_.inner_axis = static_cast<int>(inner_axis);
    const bool are_last = before == rank - 1;
    plan_.inner_is_channel = inner_axis == (are_last ? plan_.pooled_axes[first] - 1 : rank - 1);
    for (i64 a = 0; a < rank; ++a) {
      const i64 size = shape[static_cast<std::size_t>(a)];
      if (a == inner_axis) plan_.inner = size;
      else if (!is_pooled(a)) plan_.outer = product(plan_.outer, size);
    }
    number_of_elements(in_shape_);
    product(number_of_elements(out_shape_), plan_.winner_bytes());
  }

  const Plan& plan() const { return plan_; }

  // Whether a kernel takes longer than releasing the GIL; counts inputs, and taps of all outputs.
  bool is_long() const { return inputs() + outputs() * plan_.taps > 4096; }

 protected:
  // A pooled axis, as axis_integers() of src/poolgrad/core.py flattens it. stride_or_bins: the
  // number of bins of adaptive windows, else the stride. The last four are those of `Axis`.
  struct AxisNumbers {
    i64 position, kind, in, out, kernel, stride_or_bins, lo, hi, dilation, first, before, n, m;
  };
  enum WindowKind : i64 { kFixed, kAdaptive, kFractional };  // as in windows/spec.py

  static Dtype dtype_of(i64 n) { return checked_enum(n, Dtype::boolean, "no such dtype"); }

  static Axis axis_of(const AxisNumbers& from) {
    Axis a;
    a.in = from.in, a.out = from.out, a.kernel = from.kernel;
    a.first = from.first, a.before = from.before, a.n = from.n, a.m = from.m;
    require(a.in >= 1 && a.out >= 1 && a.kernel >= 1, "an axis is empty");
    require(a.first >= 0 && a.before >= 0 && a.m >= a.out && a.n >= a.in &&
                a.m - a.out >= a.first && a.n - a.in >= a.before,
            "an axis is no part of the whole");
    constexpr const char* kRange = "an axis has a number out of range";
    require(from.kind == kFixed || from.kind == kAdaptive || from.kind == kFractional, kRange);
    if (from.kind == kFixed) {
      const i64 stride = from.stride_or_bins;
      require(stride >= 1 && from.lo >= 0 && from.hi >= 0 && from.dilation >= 1, kRange);
      product(a.kernel - 1, from.dilation, kMaxDistance);
      product(a.out - 1, stride, kMaxDistance);
      require(from.lo <= kMaxSize && from.hi <= kMaxSize && a.in <= kMaxSize, kRange);
      return regular_axis(a, stride, from.lo, from.hi, from.dilation);
    }
    a.overlap = true;
    a.full_lo = a.full_hi = 0;
    a.fractional = from.kind == kFractional;
    a.adaptive = from.kind == kAdaptive;
    if (a.fractional) require(a.kernel <= a.in, "a window is larger than the input");
    if (a.adaptive) {
      a.bins = from.stride_or_bins;
      require(a.bins >= 1 && a.m <= a.bins, kRange);
      product(a.n, a.bins, std::numeric_limits<i64>::max() / 2);
      const i64 rest = a.n % a.bins, extra = rest == 0 ? 0 : rest > std::gcd(a.n, a.bins) ? 2 : 1;
      require(a.kernel >= a.n / a.bins + extra, "a bin is larger than its window");
      const Span begin = span_of(a, 0), end = span_of(a, a.out - 1);
      require(begin.begin >= 0 && end.begin + end.taps <= a.in, "bins reach beyond the input");
    }
    return a;
  }

  // Limits of a padding or a pooled size, and of a distance between windows or within one. The sum
  // of two distances does not overflow, nor does that of a distance and two of the others.
  static constexpr i64 kMaxSize = i64{1} << 61, kMaxDistance = (i64{1} << 62) - 1;

  static i64 number_of_elements(Shape shape) {
    i64 elements = 1;
    for (i64 size : shape) elements = product(elements, size);
    return elements;
  }
  bool is_pooled(i64 axis) const {
    const auto& pooled = plan_.pooled_axes;
    return std::find(std::begin(pooled), std::end(pooled), axis) != std::end(pooled);
  }

  i64 outputs() const { return plan_.outer * plan_.out_plane(); }
  i64 inputs() const { return plan_.outer * plan_.in_plane(); }
  Dtype sum_dtype() const { return is_wide(in_) ? Dtype::float64 : Dtype::float32; }

  void require_one_dtype() const {
    require(in_ == out_, "outputs of this kernel have the dtype of the inputs");
  }

  // What a kernel reads from or writes to an array with one element for each input or output.
  View per_input(Input array, Dtype dtype) const { return view_of(array, dtype, in_shape_); }
  View per_output(Input array, Dtype dtype) const { return view_of(array, dtype, out_shape_); }
  Planes<Dense> per_input(Output array, Dtype dtype) const {
    return {{array->dense(inputs(), size_of(dtype)), dtype}, plan_.in_plane()};
  }
  Planes<Dense> per_output(Output array, Dtype dtype) const {
    return {{array->dense(outputs(), size_of(dtype)), dtype}, plan_.out_plane()};
  }
  Planes<Dense> per_output_if_given(Output array, Dtype dtype) const {
    return array ? per_output(array, dtype) : Planes<Dense>{{nullptr, dtype}, 0};
  }
  // The arrays of a linear map from inputs to outputs or, if `backward`, of its transpose.
  template <bool backward>
  auto source(Input from) const {
    return backward ? per_output(from, out_) : per_input(from, in_);
  }
  template <bool backward>
  auto target(Output to) const {
    return backward ? per_input(to, in_) : per_output(to, out_);
  }

  View view_of(Input array, Dtype dtype, Shape shape) const {
    const char* const data = array->items(size_of(dtype));
    require(array->has_shape(shape), "an array has another shape than planned");
    return view_of(array->strides, data, dtype);
  }
  View view_of(const i64* strides, const char* data, Dtype dtype) const {
    const auto stride = [&](int a) { return a < 0 ? i64{0} : strides[a]; };
    View v;
    v.data = data;
    v.dtype = dtype;
    v.depth = stride(plan_.pooled_axes[0]);
    v.height = stride(plan_.pooled_axes[1]);
    v.width = stride(plan_.pooled_axes[2]);
    v.inner = stride(plan_.inner_axis);
    for (int a = 0; a < static_cast<int>(in_shape_.size()); ++a) {
      if (a == plan_.inner_axis || is_pooled(a)) continue;
      const i64 count = in_shape_[static_cast<std::size_t>(a)], step = stride(a);
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

  // The positions of fractional windows in each plane (see window_tables); empty for other windows.
  WindowTables tables_of(Input samples) const {
    int dims = 0;
    for (const Axis& a : plan_.axis) dims += a.fractional;
    require((dims > 0) == bool(samples), "samples are for fractional windows");
    if (dims == 0) return {};
    const Dtype dtype = is_floating(in_) ? in_ : Dtype::float32;
    const char* const data = samples->contiguous(plan_.outer * dims, size_of(dtype));
    return window_tables(plan_, dtype, data, dims);
  }
  // For kernels other than selections.
  WindowTables no_tables() const {
    for (const Axis& a : plan_.axis) require(!a.fractional, "samples are for selections only");
    return {};
  }

  // Calls the kernel for all planes at once or, with tables, for each plane, because its windows
  // differ from those of other planes.
  template <class Result, class... Parameters, class... Arguments>
  Result run(Result (*kernel)(const Work&, Parameters...), const WindowTables& tables, int threads,
             const Arguments&... arguments) const {
    if (plan_.outer == 0 || plan_.inner == 0) return Result(true);
    const Work work{&plan_, workers(threads)};
    if (tables.empty()) return kernel(work, arguments...);
    const i64 length = static_cast<i64>(tables.size()) / plan_.outer;
    parallel_for(plan_.outer, work.threads, [&](i64 plane) {
      Plan one = plan_;
      one.outer = 1;
      const i64* table = tables.data() + plane * length;
      for (Axis& a : one.axis) {
        if (a.fractional) a.table = std::exchange(table, table + a.out);
      }
      kernel({&one, 1}, at_plane(arguments, plane)...);
    });
    return Result(true);
  }

  // The part of an argument that belongs to a plane.
  static View at_plane(View array, i64 plane) {
    array.data = plane_of(array, plane);
    array.outer_axes = 0;
    return array;
  }
  static Dense at_plane(Planes<Dense> array, i64 plane) {
    Dense& first = array.first;
    if (first.data) first.data += plane * array.distance * size_of(first.dtype);
    return first;
  }
  template <class T>
  static T* at_plane(const Planes<T*>& array, i64 plane) {
    return array.first + plane * array.distance;
  }
  template <class T>
  static const T& at_plane(const T& argument, i64) {
    return argument;
  }

  Plan plan_;
  Dtype in_, out_;
  std::vector<i64> in_shape_, out_shape_;
};

}  // namespace poolgrad
