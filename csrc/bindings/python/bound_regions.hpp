// Calls the kernels of region-of-interest pooling for Python. src/poolgrad validates arguments; the
// checks here guard memory and validate the boxes, whose values only the kernels read.
#pragma once

#include <algorithm>
#include <optional>

#include "bindings/python/arrays.hpp"
#include "bindings/python/gil.hpp"
#include "operators/regions.hpp"

namespace poolgrad {
namespace {

// Feature maps of one shape and dtype, and boxes in them.
class BoundRegions {
 public:
  BoundRegions(const std::vector<i64>& shape, const std::vector<i64>& output_size,
               const std::string& dtype, ArraySource boxes, double factor)
      : wide_(dtype == "float64"), factor_(factor) {
    require(wide_ || dtype == "float32", "regions are pooled in float32 or float64");
    require(shape.size() == 4 && output_size.size() == 2, "regions lack an axis");
    maps_ = {shape[0], shape[1], shape[2], shape[3], output_size[0], output_size[1]};
    require(maps_.images >= 0 && maps_.channels >= 0, "a size is negative");
    require(maps_.height >= 1 && maps_.width >= 1 && maps_.bin_rows >= 1 && maps_.bin_columns >= 1,
            "a size is less than one");
    require(product(maps_.height, maps_.width) <= std::numeric_limits<std::int32_t>::max(),
            "input must have at most 2**31 - 1 positions in a plane");
    require(factor > 0 && factor <= kMaxFactor,
            "spatial_scale must be greater than 0 and at most 2**30");
    const Array box_array(boxes, Use::read, sizeof(double));
    require(box_array.rank() == 2 && box_array.shape()[1] == 5,
            "boxes have another shape than planned");
    const i64 count = box_array.shape()[0];
    product(product(maps_.images, maps_.channels), maps_.plane());
    product(product(count, maps_.channels), product(maps_.bin_rows, maps_.bin_columns));
    const char* data = box_array.contiguous({count, 5});
    regions_ = checked_regions(maps_, reinterpret_cast<const double*>(data), count, factor);
  }

  i64 count() const { return static_cast<i64>(regions_.size()); }

  void pool(ArraySource x, ArraySource y, ArraySource indices, int threads) const {
    const Array positions(indices, Use::write, sizeof(std::int32_t));
    auto* index = reinterpret_cast<std::int32_t*>(positions.contiguous(outputs()));
    run(x, inputs(), y, outputs(), threads, [&](const auto* from, auto* to, int workers) {
      RegionKernels<Element<decltype(to)>>::pool(maps_, regions_, factor_, from, to, index,
                                                 workers);
    });
  }

  void pool_backward(ArraySource gy, ArraySource indices, ArraySource gx, int threads) const {
    by_indices<true>(gy, indices, gx, threads);
  }

  void pool_gather(ArraySource x, ArraySource indices, ArraySource y, int threads) const {
    by_indices<false>(x, indices, y, threads);
  }

  void align(ArraySource x, ArraySource y, i64 sampling_ratio, bool aligned, int threads) const {
    const RegionScale scale = scale_of(sampling_ratio, aligned);
    run(x, inputs(), y, outputs(), threads, [&](const auto* from, auto* to, int workers) {
      RegionKernels<Element<decltype(to)>>::align(maps_, regions_, scale, from, to, workers);
    });
  }

  void align_backward(ArraySource gy, ArraySource gx, i64 sampling_ratio, bool aligned,
                      int threads) const {
    const RegionScale scale = scale_of(sampling_ratio, aligned);
    run(gy, outputs(), gx, inputs(), threads, [&](const auto* from, auto* to, int workers) {
      RegionKernels<Element<decltype(to)>>::align_backward(maps_, regions_, scale, from, to,
                                                           workers);
    });
  }

 private:
  template <class Pointer>
  using Element = std::remove_pointer_t<Pointer>;

  // Adds outputs to the inputs at their indices (backward), or reads the inputs at the indices.
  template <bool Backward>
  void by_indices(ArraySource source, ArraySource indices, ArraySource target, int threads) const {
    const Array positions(indices, Use::read, sizeof(std::int32_t));
    const auto* index = reinterpret_cast<const std::int32_t*>(positions.contiguous(outputs()));
    bool valid = true;
    run(source, Backward ? outputs() : inputs(), target, Backward ? inputs() : outputs(), threads,
        [&](const auto* from, auto* to, int workers) {
          using Kernels = RegionKernels<Element<decltype(to)>>;
          constexpr auto kernel = Backward ? Kernels::pool_backward : Kernels::pool_gather;
          valid = kernel(maps_, regions_, from, index, to, workers);
        });
    if (valid) return;
    throw nb::value_error(("indices must be -1 or from 0 to " + std::to_string(maps_.plane() - 1) +
                           ", positions in a plane of input")
                              .c_str());
  }

  RegionScale scale_of(i64 sampling_ratio, bool aligned) const {
    require(sampling_ratio <= kMaxSamples, "sampling_ratio must be at most 65536");
    return {factor_, std::max(sampling_ratio, i64{0}), aligned};
  }

  std::vector<i64> inputs() const {
    return {maps_.images, maps_.channels, maps_.height, maps_.width};
  }
  std::vector<i64> outputs() const {
    return {count(), maps_.channels, maps_.bin_rows, maps_.bin_columns};
  }

  // Calls kernel(source, target, threads) with pointers to the elements of two arrays.
  template <class F>
  void run(ArraySource source, const std::vector<i64>& source_shape, ArraySource target,
           const std::vector<i64>& target_shape, int threads, F&& kernel) const {
    const std::size_t itemsize = wide_ ? sizeof(double) : sizeof(float);
    const Array read(source, Use::read, itemsize), written(target, Use::write, itemsize);
    const char* from = read.contiguous(source_shape);
    char* to = written.contiguous(target_shape);
    const int workers = std::clamp(threads, 1, kMaxThreads);
    const WithoutGil released;
    if (wide_)
      kernel(reinterpret_cast<const double*>(from), reinterpret_cast<double*>(to), workers);
    else kernel(reinterpret_cast<const float*>(from), reinterpret_cast<float*>(to), workers);
  }

  RegionMaps maps_;
  bool wide_;
  double factor_;
  RegionTable<Region> regions_;
};

}  // namespace
}  // namespace poolgrad
