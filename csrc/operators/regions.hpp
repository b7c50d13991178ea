// Pools regions of interest of feature maps: RoIPool (Girshick, Fast R-CNN, 2015) and RoIAlign (He
// et al., Mask R-CNN, 2017), with the coordinate conventions of torchvision.ops.
#pragma once

#include "base/out_of_memory.hpp"
#include "geometry/window.hpp"

namespace poolgrad {

// Feature maps (images, channels, height, width), contiguous, and the bins of each region.
struct RegionMaps {
  i64 images, channels, height, width;
  i64 bin_rows, bin_columns;

  i64 plane() const { return height * width; }
  i64 bins() const { return bin_rows * bin_columns; }
};

// A box of one image, in pixels of the image; `RegionScale::factor` maps them to the feature map's.
struct Region {
  i64 image;
  double x1, y1, x2, y2;
};

inline constexpr char kOfRegions[] =
    " for tables of boxes and bins, which follow from boxes and output_size";
template <class T>
using RegionTable = Table<T, kOfRegions>;

// How boxes are mapped to a feature map, and how RoIAlign samples it.
struct RegionScale {
  double factor;
  i64 sampling_ratio = 0;  // samples of a bin along each axis; 0: one a pixel, rounded up
  bool aligned = false;    // pixel centres lie at half-integer coordinates
};

// No corner of a box may lie further from the origin, in pixels of the image or of the feature map.
inline constexpr double kMaxCoordinate = 1 << 30;
// The factor of a scale and the number of samples have limits, too.
inline constexpr double kMaxFactor = 1 << 30;
inline constexpr i64 kMaxSamples = 1 << 16;

// Reads `count` boxes (image index, x1, y1, x2, y2) and checks them.
// Throws std::invalid_argument with a message that contains the number of the box.
RegionTable<Region> checked_regions(const RegionMaps& maps, const double* boxes, i64 count,
                                    double factor);

// Arrays are contiguous: x and gx (images, channels, height, width); y, gy and indices (regions,
// channels, bin_rows, bin_columns). An index is the position of a bin's maximum in its plane, or -1
// for a bin without inputs. T: float or double. No result depends on the number of threads.
template <class T>
struct RegionKernels {
  static void pool(const RegionMaps& maps, const RegionTable<Region>& regions, double factor,
                   const T* x, T* y, std::int32_t* indices, int threads);
  // False if an index lies outside its plane: then the results are not complete.
  static bool pool_backward(const RegionMaps& maps, const RegionTable<Region>& regions, const T* gy,
                            const std::int32_t* indices, T* gx, int threads);
  static bool pool_gather(const RegionMaps& maps, const RegionTable<Region>& regions, const T* x,
                          const std::int32_t* indices, T* y, int threads);
  static void align(const RegionMaps& maps, const RegionTable<Region>& regions,
                    const RegionScale& scale, const T* x, T* y, int threads);
  static void align_backward(const RegionMaps& maps, const RegionTable<Region>& regions,
                             const RegionScale& scale, const T* gy, T* gx, int threads);
};

extern template struct RegionKernels<float>;
extern template struct RegionKernels<double>;

}  // namespace poolgrad
