// Calls the kernels of region-of-interest pooling. src/poolgrad validates arguments; the checks
// here guard memory and validate the boxes, whose values only the kernels read.
#pragma once

#include <string_view>

#include "bindings/array.hpp"
#include "operators/regions.hpp"

namespace poolgrad {

// Feature maps of one shape and dtype, and boxes in them.
class BoundRegions {
 public:
  BoundRegions(Shape shape, Shape output_size, std::string_view dtype, Input boxes, double factor)
      : wide_(dtype == "float64") {
    require(wide_ || dtype == "float32", "regions are pooled in float32 or float64");
    require(shape.size() == 4 && output_size.size() == 2, "regions lack an axis");
    Regions& r = regions_;
    r = {shape[0], shape[1], shape[2], shape[3], output_size[0], output_size[1], factor, {}};
    require(r.images >= 0 && r.channels >= 0, "a size is negative");
    require(r.height >= 1 && r.width >= 1 && r.bin_rows >= 1 && r.bin_columns >= 1,
            "a size is less than one");
    require(product(r.height, r.width) <= std::numeric_limits<std::int32_t>::max(),
            "input must have at most 2**31 - 1 positions in a plane");
    require(factor > 0 && factor <= kMaxFactor,
            "spatial_scale must be greater than 0 and at most 2**30");
    require(boxes->rank == 2 && boxes->shape[1] == 5, "boxes have another shape than planned");
    const i64 count = boxes->shape[0];
    product(product(r.images, r.channels), r.plane());
    product(product(count, r.channels), product(r.bin_rows, r.bin_columns));
    const char* data = boxes->contiguous(5 * count, sizeof(double));
    r.table = checked_regions(r, reinterpret_cast<const double*>(data), count);
  }

  bool is_long() const { return true; }  // see PlanLayout::is_long()

  void pool(Input x, Output y, Output indices, int threads) const {
    auto* const index = indices->contiguous<std::int32_t>(outputs());
    run(false, x, y, [&]<class T>(const T* from, T* to) {
      RegionKernels<T>::pool(regions_, from, to, index, workers(threads));
    });
  }

  template <bool transpose>
  void by_indices(Input source, Input indices, Output target, int threads) const {
    const auto* const index = indices->contiguous<const std::int32_t>(outputs());
    run(transpose, source, target, [&]<class T>(const T* from, T* to) {
      RegionKernels<T>::by_indices(regions_, transpose, from, index, to, workers(threads));
    });
  }

  template <bool transpose>
  void align(Input source, Output target, i64 sampling_ratio, bool aligned, int threads) const {
    require(sampling_ratio <= kMaxSamples, "sampling_ratio must be at most 65536");
    run(transpose, source, target, [&]<class T>(const T* from, T* to) {
      RegionKernels<T>::align(regions_, {sampling_ratio, aligned}, transpose, from, to,
                              workers(threads));
    });
  }

 private:
  std::vector<i64> inputs() const {
    return {regions_.images, regions_.channels, regions_.height, regions_.width};
  }
  std::vector<i64> outputs() const {
    const i64 count = static_cast<i64>(regions_.table.size());
    return {count, regions_.channels, regions_.bin_rows, regions_.bin_columns};
  }

  // Calls kernel(from, to) with the elements of inputs and outputs or, if `transpose`, of outputs
  // and inputs.
  template <class F>
  void run(bool transpose, Input source, Output target, F&& kernel) const {
    const auto call = [&]<class T>(T) {
      const T* const from = source->contiguous<const T>(transpose ? outputs() : inputs());
      kernel(from, target->contiguous<T>(transpose ? inputs() : outputs()));
    };
    if (wide_) call(double{});
    else call(float{});
  }

  bool wide_;
  Regions regions_;
};

}  // namespace poolgrad
