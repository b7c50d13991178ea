// Pools regions of interest of feature maps: RoIPool (Girshick, Fast R-CNN, 2015) and RoIAlign (He
// et al., Mask R-CNN, 2017), with the coordinate conventions of torchvision.ops.
#pragma once

#include "base/out_of_memory.hpp"
#include "geometry/window.hpp"

namespace poolgrad {

// A box of one image, in pixels of the image.
struct Region {
  i64 image;
  double x1, y1, x2, y2;
};

inline constexpr char kOfRegions[] =
    " for tables of boxes and bins, which follow from boxes and output_size";
template <class T>
using RegionTable = Table<T, kOfRegions>;

// Feature maps (images, channels, height, width), contiguous, and regions of them, each divided
// into bins. factor: maps pixels of the image to those of the feature map.
struct Regions {
  i64 images, channels, height, width;
  i64 bin_rows, bin_columns;
  double factor;
  RegionTable<Region> table;

  i64 plane() const { return height * width; }
  i64 bins() const { return bin_rows * bin_columns; }
};

// How RoIAlign samples a feature map.
struct RegionSampling {
  i64 ratio;     // samples of a bin along each axis; not positive: one a pixel, rounded up
  bool aligned;  // pixel centres lie at half-integer coordinates
};

// No corner of a box may lie further from the origin, in pixels of the image or of the feature map.
inline constexpr double kMaxCoordinate = 1 << 30;
// The factor of a scale and the number of samples have limits, too.
inline constexpr double kMaxFactor = 1 << 30;
inline constexpr i64 kMaxSamples = 1 << 16;

// Reads `count` boxes (image index, x1, y1, x2, y2) and checks them.
// Throws std::invalid_argument with a message that contains the number of the box.
RegionTable<Region> checked_regions(const Regions& regions, const double* boxes, i64 count);

// Arrays are contiguous: x and gx (images, channels, height, width); y, gy and indices (regions,
// channels, bin_rows, bin_columns). An index is the position of a bin's maximum in its plane, or -1
// for a bin without inputs. T: float or double. No result depends on the number of threads.
template <class T>
struct RegionKernels {
  static void pool(const Regions& regions, const T* x, T* y, std::int32_t* indices, int threads);
  // Linear maps from x to y or, if `transpose`, from gy to gx. by_indices: reads the inputs at the
  // indices. Throws std::invalid_argument if an index lies outside its plane.
  static void by_indices(const Regions& regions, bool transpose, const T* from,
                         const std::int32_t* indices, T* to, int threads);
  static void align(const Regions& regions, const RegionSampling& sampling, bool transpose,
                    const T* from, T* to, int threads);
};

extern template struct RegionKernels<float>;
extern template struct RegionKernels<double>;

}  // namespace poolgrad
