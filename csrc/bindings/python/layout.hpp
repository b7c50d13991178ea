// Checks the windows of a plan, and the shapes and memory layout of its arrays, and runs a kernel
// on them.
#pragma once

#include <algorithm>
#include <limits>
#include <numeric>

#include "bindings/python/arrays.hpp"
#include "bindings/python/gil.hpp"
#include "dispatch.hpp"
#include "geometry/fractional.hpp"

namespace poolgrad {
namespace {

// The windows of a call, and the shapes and dtypes of its arrays: x and gx have dtype `in`, y and
// gy dtype `out`.
class PlanLayout {
 public:
  static constexpr std::size_t kAxisNumbers = 12;

  // axes: for each (WindowKind, in, out, kernel, stride or number of bins, lo, hi, dilation, first,
  // before, n, m), see geometry/window.hpp.
  PlanLayout(const std::vector<std::vector<i64>>& axes, const std::vector<i64>& shape,
             const std::vector<int>& pooled, int inner_axis, const std::string& in,
             const std::string& out)
      : in_(dtype_named(in)), out_(dtype_named(out)), in_shape_(shape), out_shape_(shape) {
    require(in_ == out_ || (!is_floating(in_) && out_ == sum_dtype()),
            "outputs have another dtype than inputs or their sums");
    const int rank = static_cast<int>(shape.size());
    require(!axes.empty() && axes.size() <= 3 && axes.size() == pooled.size() && rank <= kMaxAxes,
            "1 to 3 axes are pooled, of at most 64");
    for (i64 size : shape) require(size >= 0, "a size is negative");
    const std::size_t missing = 3 - axes.size();
    for (std::size_t a = 0; a < axes.size(); ++a) {
      const int at = pooled[a];
      require(at >= 0 && at < rank && (a == 0 || at > pooled[a - 1]), "no such pooled axis");
      const Axis axis = axis_of(axes[a]);
      const auto here = static_cast<std::size_t>(at);
      require(axis.in == shape[here], "an axis has another size than the input");
      out_shape_[here] = axis.out;
      plan_.axis[missing + a] = axis;
      plan_.pooled_axes[missing + a] = at;
      plan_.taps = product(plan_.taps, axis.kernel);
    }
    require(plan_.taps < kNowhere, "a window has too many taps");
    plan_.route_bytes = plan_.taps <= 255 ? 1 : plan_.taps <= 65535 ? 2 : 4;
    require(inner_axis >= -1 && inner_axis < rank && !is_in(inner_axis, pooled),
            "no such inner axis");
    plan_.inner_axis = inner_axis;
    plan_.inner_is_channel = inner_axis == (pooled.back() == rank - 1 ? pooled[0] - 1 : rank - 1);
    for (int a = 0; a < rank; ++a) {
      if (is_in(a, pooled)) continue;
      const i64 size = shape[static_cast<std::size_t>(a)];
      if (a == inner_axis) {
        plan_.inner = size;
      } else {
        plan_.outer = product(plan_.outer, size);
        outer_axes_.push_back(a);
        outer_shape_.push_back(size);
      }
    }
    number_of_elements(in_shape_);
    product(number_of_elements(out_shape_), plan_.winner_bytes());
    out_strides_.assign(shape.size(), 0);
    i64 step = 1;
    for (std::size_t a = shape.size(); a-- > 0; step *= out_shape_[a]) out_strides_[a] = step;
  }

  // (begin, first tap, taps, extent) of one window along one pooled axis.
  nb::tuple span(int axis, i64 output) const {
    const Axis& a = bound_axis(axis);
    if (output < 0 || output >= a.out) throw nb::index_error("no such output");
    const Span s = span_of(a, output);
    return nb::make_tuple(s.begin, s.first_tap, s.taps, s.extent);
  }

  // Outputs whose windows may reach an input.
  nb::tuple covering_outputs(int axis, i64 input) const {
    const Axis& a = bound_axis(axis);
    if (input < 0 || input >= a.in) throw nb::index_error("no such input");
    const Range r = covering(a, input);
    return nb::make_tuple(r.lo, r.hi);
  }

  // For callers without the GIL, such as XLA's threads: run() then does not release the GIL.
  void use_without_gil() { has_gil_ = false; }

  i64 taps() const { return plan_.taps; }
  int route_bytes() const { return plan_.route_bytes; }

 protected:
  enum WindowKind : i64 { kFixed, kAdaptive, kFractional };  // as in windows/spec.py

  static Axis axis_of(const std::vector<i64>& numbers) {
    require(numbers.size() == kAxisNumbers, "an axis lacks members");
    const i64 kind = numbers[0], stride_or_bins = numbers[4], lo = numbers[5], hi = numbers[6],
              dilation = numbers[7];
    Axis a;
    a.in = numbers[1];
    a.out = numbers[2];
    a.kernel = numbers[3];
    a.first = numbers[8];
    a.before = numbers[9];
    a.n = numbers[10];
    a.m = numbers[11];
    require(a.in >= 1 && a.out >= 1 && a.kernel >= 1, "an axis is empty");
    require(a.first >= 0 && a.before >= 0 && a.m >= a.out && a.n >= a.in &&
                a.m - a.out >= a.first && a.n - a.in >= a.before,
            "an axis is no part of the whole");
    constexpr const char* kRange = "an axis has a number out of range";
    if (kind == kFixed) {
      require(stride_or_bins >= 1 && lo >= 0 && hi >= 0 && dilation >= 1, kRange);
      product(a.kernel - 1, dilation, kMaxDistance);
      product(a.out - 1, stride_or_bins, kMaxDistance);
      require(lo <= kMaxSize && hi <= kMaxSize && a.in <= kMaxSize, kRange);
      return regular_axis(a, stride_or_bins, lo, hi, dilation);
    }
    require(kind == kAdaptive || kind == kFractional, kRange);
    a.overlap = true;
    a.full_lo = a.full_hi = 0;
    a.fractional = kind == kFractional;
    a.adaptive = kind == kAdaptive;
    if (a.fractional) require(a.kernel <= a.in, "a window is larger than the input");
    if (a.adaptive) {
      require(stride_or_bins >= 1 && a.m <= stride_or_bins, kRange);
      a.bins = stride_or_bins;
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

  // The end of the error if there is no memory for an array with one element for each output, as
  // in with_memory() of src/poolgrad/interface.py.
  std::string purpose_of_outputs(const char* dtype) const {
    return " for an array of shape " + described(out_shape_) + " and dtype " + dtype +
           ", which follows from x of shape " + described(in_shape_) + " and the windows";
  }
  static std::string described(const std::vector<i64>& shape) {
    std::string text;
    for (i64 size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return "(" + text + (shape.size() == 1 ? ",)" : ")");
  }

  static i64 number_of_elements(const std::vector<i64>& shape) {
    i64 elements = 1;
    for (i64 size : shape) elements = product(elements, size);
    return elements;
  }
  static bool is_in(int axis, const std::vector<int>& axes) {
    return std::find(axes.begin(), axes.end(), axis) != axes.end();
  }

  const Axis& bound_axis(int axis) const {
    if (axis < 0 || axis > 2 || plan_.pooled_axes[axis] < 0 || plan_.axis[axis].fractional) {
      throw nb::index_error("no such axis");
    }
    return plan_.axis[axis];
  }

  // The planes that one kernel call computes: all (plane = -1), or one plane if windows are
  // fractional, because such windows differ between planes.
  struct PlaneSelection {
    Work work;
    i64 plane = -1;
    View of(const View& v) const {
      if (plane < 0) return v;
      View one = v;
      one.data = plane_of(v, plane);
      one.outer_axes = 0;
      return one;
    }
    Dense of_outputs(Dense array) const { return shifted(array, work.plan->out_plane()); }
    Dense of_target(Dense array, bool backward) const {
      return backward ? shifted(array, work.plan->in_plane()) : of_outputs(array);
    }
    std::uint8_t* of_winners(Dense bits) const {
      const i64 bytes = work.plan->out_plane() * work.plan->winner_bytes();
      return reinterpret_cast<std::uint8_t*>(shifted(bits, bytes).data);
    }

   private:
    Dense shifted(Dense array, i64 plane_elements) const {
      if (plane > 0 && array.data) array.data += plane * plane_elements * size_of(array.dtype);
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
  Dtype sum_dtype() const { return is_wide(in_) ? Dtype::float64 : Dtype::float32; }
  static std::size_t size(Dtype dtype) { return static_cast<std::size_t>(size_of(dtype)); }
  std::size_t route_size() const { return static_cast<std::size_t>(plan_.route_bytes); }

  void require_one_dtype() const {
    require(in_ == out_, "outputs of this kernel have the dtype of the inputs");
  }

  // Fractional windows are for selections only.
  void require_no_samples() const {
    for (const Axis& a : plan_.axis) require(!a.fractional, "samples are for selections only");
  }
  void require_one_dtype_and_no_samples() const {
    require_no_samples();
    require_one_dtype();
  }

  static Dense dense(const Array& array, Dtype dtype, i64 elements) {
    return {array.dense(elements * size_of(dtype)), dtype};
  }

  Dense winner_bits(const Array& array) const {
    return dense(array, Dtype::uint8, outputs() * plan_.winner_bytes());
  }

  Parameter parameter_of(const Array& array, i64 count) const {
    require(count >= (outputs() > 0) && count <= kMaxElements, "a parameter is empty");
    return {array.dense(count * size_of(sum_dtype())), count};
  }

  // An array with one element for each input, or for each output.
  View inputs_of(const Array& array, Dtype dtype) const { return view_of(array, dtype, in_shape_); }
  View outputs_of(const Array& array, Dtype dtype) const {
    return view_of(array, dtype, out_shape_);
  }
  View view_of(const Array& array, Dtype dtype, const std::vector<i64>& shape) const {
    require(array.has_shape(shape), "an array has another shape than planned");
    return view_of(array.strides(), array.data(), dtype);
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
    for (std::size_t k = 0; k < outer_axes_.size(); ++k) {
      const i64 count = outer_shape_[k], step = stride(outer_axes_[k]);
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

  // The array that a kernel reads and the array that it writes: inputs and outputs or, if
  // `backward`, outputs and inputs.
  class SourceAndTarget {
   public:
    SourceAndTarget(const PlanLayout& layout, bool backward, ArraySource from, ArraySource to)
        : read_(from, Use::read, size(backward ? layout.out_ : layout.in_)),
          written_(to, Use::write, size(backward ? layout.in_ : layout.out_)),
          source(backward ? layout.outputs_of(read_, layout.out_)
                          : layout.inputs_of(read_, layout.in_)),
          target(backward ? dense(written_, layout.in_, layout.inputs())
                          : dense(written_, layout.out_, layout.outputs())) {}

   private:
    const Array read_, written_;

   public:
    const View source;
    const Dense target;
  };

  static inline const WindowTables kNoTables;

  // The positions of fractional windows in each plane (see window_tables); empty for other windows.
  WindowTables tables_of(ArraySource samples) const {
    int dims = 0;
    for (const Axis& a : plan_.axis) dims += a.fractional;
    require((dims > 0) != samples.is_none(), "samples are for fractional windows");
    if (dims == 0) return {};
    const bool floating = in_ == Dtype::float16 || in_ == Dtype::bfloat16 || in_ == Dtype::float64;
    const Dtype dtype = floating ? in_ : Dtype::float32;
    const Array sample_array(samples, Use::read, size(dtype));
    const char* data = sample_array.contiguous(plan_.outer * dims * size_of(dtype));
    return window_tables(plan_, dtype, data, dims);
  }

  // Calls kernel(PlaneSelection) for all planes at once or, with tables, for each plane. Releases
  // the GIL, unless that would cost more than the kernel.
  template <class F>
  void run(const WindowTables& tables, int threads, F&& kernel) const {
    if (plan_.outer == 0 || plan_.inner == 0) return;
    const bool release = has_gil_ && inputs() + outputs() * plan_.taps > kSmallCall;
    const Work work{&plan_, std::clamp(threads, 1, kMaxThreads)};
    const WithoutGil released(release);
    if (tables.empty()) return kernel(PlaneSelection{work});
    const i64 length = static_cast<i64>(tables.size()) / plan_.outer;
    parallel_for(plan_.outer, work.threads, [&](i64 plane) {
      Plan one = plan_;
      one.outer = 1;
      const i64* table = tables.data() + plane * length;
      for (Axis& a : one.axis) {
        if (!a.fractional) continue;
        a.table = table;
        table += a.out;
      }
      kernel(PlaneSelection{{&one, 1}, plane});
    });
  }

  // Throws unless a kernel found all indices inside the plane of outputs.
  void require_valid_indices(bool valid, i64 invalid_index) const {
    if (valid) return;
    const i64 plane = plan_.axis[0].out * plan_.axis[1].out * plan_.axis[2].out;
    throw nb::value_error(("indices must be from 0 to " + std::to_string(plane - 1) +
                           ", positions in a plane of the output, got " +
                           std::to_string(invalid_index))
                              .c_str());
  }

  static constexpr i64 kSmallCall = 4096;  // inputs plus taps of all outputs

  static const Kernels& kernels() { return chosen_kernels(); }

  Plan plan_;
  std::vector<i64> outer_shape_;  // leading axes, in logical order
  std::vector<int> outer_axes_;   // their positions in the logical shape
  bool has_gil_ = true;
  Dtype in_, out_;
  std::vector<i64> in_shape_, out_shape_;
  std::vector<i64> out_strides_;  // of the outputs in logical order
};

}  // namespace
}  // namespace poolgrad
