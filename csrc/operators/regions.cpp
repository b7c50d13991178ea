#include "operators/regions.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <span>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "base/thread_pool.hpp"

namespace poolgrad {
namespace {

// Channels that one task computes: the geometry of a region is computed once for all of them.
constexpr i64 kChannels = 16;

// Computes outputs from regions of maps or, if `transpose`, gradients of maps from those of
// outputs. make(region) returns a function, which is called for each channel with the positions of
// its plane in the maps and of its bins in the outputs. The forward pass is parallel over (region,
// block of channels), the transpose over (image, block of channels): each task clears its planes
// and adds the regions of its image in their order, so that no sum depends on the number of
// threads.
template <class T, class F>
void over_regions(const Regions& regions, bool transpose, T* to, int threads, F&& make) {
  const i64 count = static_cast<i64>(regions.table.size());
  const i64 blocks = ceil_div(regions.channels, kChannels);
  const auto region = [&](i64 k) -> const Region& {
    return regions.table[static_cast<std::size_t>(k)];
  };
  const auto compute_region = [&](i64 k, i64 block) {
    const i64 first = block * kChannels, last = smaller(first + kChannels, regions.channels);
    auto compute = make(region(k));
    for (i64 c = first; c < last; ++c) {
      compute((region(k).image * regions.channels + c) * regions.plane(),
              (k * regions.channels + c) * regions.bins());
    }
  };
  if (!transpose) {
    return parallel_for(count * blocks, threads,
                        [&](i64 task) { compute_region(task / blocks, task % blocks); });
  }
  RegionTable<i64> order(regions.table.size());
  std::iota(order.begin(), order.end(), i64{0});
  const auto image_of = [&](i64 k) { return region(k).image; };
  std::ranges::stable_sort(order, {}, image_of);
  parallel_for(regions.images * blocks, threads, [&](i64 task) {
    const i64 image = task / blocks, first = task % blocks * kChannels;
    const i64 channels = smaller(kChannels, regions.channels - first);
    std::fill_n(to + (image * regions.channels + first) * regions.plane(),
                channels * regions.plane(), T(0));
    for (const i64 k : std::ranges::equal_range(order, image, {}, image_of)) {
      compute_region(k, task % blocks);
    }
  });
}

// RoIPool: bins of whole pixels.

// The rows (or columns) [begin, end) of each bin along one axis.
template <class T>
RegionTable<Range> pixel_bins(double low, double high, double factor, i64 bins, i64 size) {
  const T scale = static_cast<T>(factor);
  const i64 first = static_cast<i64>(std::round(static_cast<T>(low) * scale));
  const i64 last = static_cast<i64>(std::round(static_cast<T>(high) * scale));
  const T width = static_cast<T>(larger(last - first + 1, 1)) / static_cast<T>(bins);
  RegionTable<Range> ranges(static_cast<std::size_t>(bins));
  for (i64 b = 0; b < bins; ++b) {
    const i64 lo = first + static_cast<i64>(std::floor(static_cast<T>(b) * width));
    const i64 hi = first + static_cast<i64>(std::ceil(static_cast<T>(b + 1) * width));
    ranges[static_cast<std::size_t>(b)] = {std::clamp(lo, i64{0}, size),
                                           std::clamp(hi, i64{0}, size)};
  }
  return ranges;
}

// The index of the maximum of a bin in its plane, -1 if the bin is empty. The last NaN wins;
// otherwise the first of equal inputs in row-major order.
template <class T>
i64 maximum(const T* x, i64 width, Range rows, Range columns) {
  if (rows.lo >= rows.hi || columns.lo >= columns.hi) return -1;
  i64 index = rows.lo * width + columns.lo;
  T best = x[index];
  for (i64 h = rows.lo; h < rows.hi; ++h) {
    for (i64 at = h * width + columns.lo; at < h * width + columns.hi; ++at) {
      const T v = x[at];
      if ((v > best) | (v != v)) [[unlikely]]
        best = v, index = at;
    }
  }
  return index;
}

// RoIAlign: averages of bilinear samples. The samples of a bin are a grid, so their average is
// sum_i sum_j wy_i wx_j x[i, j] / count with weights for each axis: taps.

template <class T>
struct WeightedTap {
  i64 index;
  T weight;
};

// The taps of the bins along one axis, in ascending order; samples more than one pixel outside the
// map have none.
template <class T>
class AxisSamples {
 public:
  AxisSamples(double low, double high, double scale, const RegionSampling& sampling, i64 bins,
              i64 size) {
    const T factor = static_cast<T>(scale), offset = static_cast<T>(sampling.aligned ? 0.5 : 0);
    start_ = static_cast<T>(low) * factor - offset;
    T width = static_cast<T>(high) * factor - offset - start_;
    if (!sampling.aligned && !(width > 1)) width = 1;
    width_ = width / static_cast<T>(bins);
    samples_ = sampling.ratio > 0 ? sampling.ratio : static_cast<i64>(std::ceil(width_));
    begin_.reserve(static_cast<std::size_t>(bins) + 1);
    for (i64 b = 0; b < bins; ++b) add_bin(b, size);
    begin_.push_back(taps_.size());
  }

  i64 samples() const { return samples_; }  // of each bin
  // The first index with a tap, and the number of indices from it to the last one.
  i64 first() const { return taps_.empty() ? 0 : taps_.front().index; }
  i64 length() const { return taps_.empty() ? 0 : taps_.back().index - first() + 1; }

  std::span<const WeightedTap<T>> taps(i64 bin) const {
    const auto b = static_cast<std::size_t>(bin);
    return {taps_.data() + begin_[b], begin_[b + 1] - begin_[b]};
  }

 private:
  T position(i64 bin, i64 sample) const {
    return start_ + static_cast<T>(bin) * width_ +
           (static_cast<T>(sample) + T(0.5)) * width_ / static_cast<T>(samples_);
  }

  // The first sample of a bin that lies at `limit` or beyond it (`strictly`: beyond). Positions
  // ascend, and a box may be a million times as large as the map.
  i64 first_at(i64 bin, T limit, bool strictly) const {
    i64 lo = 0, hi = samples_;
    while (lo < hi) {
      const i64 middle = (lo + hi) / 2;
      const T at = position(bin, middle);
      if (strictly ? at > limit : at >= limit) hi = middle;
      else lo = middle + 1;
    }
    return lo;
  }

  void add_bin(i64 bin, i64 size) {
    begin_.push_back(taps_.size());
    const i64 end = first_at(bin, static_cast<T>(size), true);
    for (i64 s = first_at(bin, T(-1), false); s < end; ++s) {
      const T at = position(bin, s);
      const T inside = at > 0 ? at : T(0);
      const i64 low = smaller(static_cast<i64>(inside), size - 1);
      const T fraction = low < size - 1 ? inside - static_cast<T>(low) : T(0);
      add(low, T(1) - fraction);
      if (fraction > 0) add(low + 1, fraction);
    }
  }

  // Samples ascend, so an existing tap with this index is one of the last two taps of its bin.
  void add(i64 index, T weight) {
    const std::size_t last_two = std::min<std::size_t>(taps_.size() - begin_.back(), 2);
    const auto tap = std::find_if(taps_.end() - static_cast<i64>(last_two), taps_.end(),
                                  [&](const auto& each) { return each.index == index; });
    if (tap == taps_.end()) taps_.push_back({index, weight});
    else tap->weight += weight;
  }

  T start_, width_;
  i64 samples_;
  RegionTable<WeightedTap<T>> taps_;
  RegionTable<std::size_t> begin_;  // of each bin in `taps_`, and the end
};

// Computes the averages of bilinear samples in the bins of one region, and their transpose.
template <class T>
class Samples {
 public:
  Samples(const Regions& regions, const Region& box, const RegionSampling& sampling)
      : rows_(box.y1, box.y2, regions.factor, sampling, regions.bin_rows, regions.height),
        columns_(box.x1, box.x2, regions.factor, sampling, regions.bin_columns, regions.width),
        regions_(regions),
        count_(static_cast<T>(larger(rows_.samples(), 1)) *
               static_cast<T>(larger(columns_.samples(), 1))),
        line_(static_cast<std::size_t>(columns_.length())) {}

  // Sums rows first: an input is read once for each row of bins with a tap on it.
  void average(const T* x, T* y) {
    for (i64 row = 0; row < regions_.bin_rows; ++row) {
      std::fill(line_.begin(), line_.end(), T(0));
      for (const WeightedTap<T>& tap : rows_.taps(row)) {
        const T* from = x + tap.index * regions_.width + columns_.first();
        for (std::size_t k = 0; k < line_.size(); ++k) line_[k] += tap.weight * from[k];
      }
      for (i64 column = 0; column < regions_.bin_columns; ++column) {
        T sum = 0;
        for (const WeightedTap<T>& tap : columns_.taps(column)) sum += tap.weight * at(tap);
        *y++ = sum / count_;
      }
    }
  }

  // The transpose of average().
  void add_gradient(const T* gy, T* gx) {
    for (i64 row = 0; row < regions_.bin_rows; ++row) {
      std::fill(line_.begin(), line_.end(), T(0));
      for (i64 column = 0; column < regions_.bin_columns; ++column) {
        const T share = *gy++ / count_;
        for (const WeightedTap<T>& tap : columns_.taps(column)) at(tap) += tap.weight * share;
      }
      for (const WeightedTap<T>& tap : rows_.taps(row)) {
        T* to = gx + tap.index * regions_.width + columns_.first();
        for (std::size_t k = 0; k < line_.size(); ++k) to[k] += tap.weight * line_[k];
      }
    }
  }

 private:
  T& at(const WeightedTap<T>& tap) {
    return line_[static_cast<std::size_t>(tap.index - columns_.first())];
  }

  AxisSamples<T> rows_, columns_;
  const Regions& regions_;
  T count_;
  RegionTable<T> line_;  // a number for each column from the first with a tap to the last
};

}  // namespace

RegionTable<Region> checked_regions(const Regions& regions, const double* boxes, i64 count) {
  if (regions.images == 0 && count > 0) {
    throw std::invalid_argument("boxes must be empty if input has no images, got " +
                                std::to_string(count));
  }
  // Coordinates are small enough for float, in the image and in the feature map.
  const double scale = std::max(1.0, regions.factor);
  RegionTable<Region> table;
  table.reserve(static_cast<std::size_t>(count));
  for (i64 k = 0; k < count; ++k, boxes += 5) {
    const double image = boxes[0];
    const Region box{0, boxes[1], boxes[2], boxes[3], boxes[4]};
    const auto refuse = [&](const auto&... words) {
      std::ostringstream text;
      text.precision(9);
      text << "boxes[" << k << "] must ";
      (text << ... << words);
      throw std::invalid_argument(text.str());
    };
    if (!(image >= 0 && image < static_cast<double>(regions.images)) ||
        image != std::floor(image)) {
      refuse("begin with the index of an image, a whole number from 0 to ", regions.images - 1,
             ", got ", image);
    }
    const auto all_corners = [&](auto&& holds) { return std::all_of(boxes + 1, boxes + 5, holds); };
    const char* expected = nullptr;
    if (!all_corners([](double c) { return std::isfinite(c); })) {
      expected = "have finite coordinates";
    } else if (box.x2 < box.x1 || box.y2 < box.y1) {
      expected = "have x1 <= x2 and y1 <= y2";
    } else if (!all_corners([&](double c) { return std::abs(c) * scale <= kMaxCoordinate; })) {
      expected = "lie within 2**30 pixels of the origin, also when scaled";
    }
    if (expected) {
      refuse(expected, ", got (x1, y1, x2, y2) = (", box.x1, ", ", box.y1, ", ", box.x2, ", ",
             box.y2, ")");
    }
    table.push_back({static_cast<i64>(image), box.x1, box.y1, box.x2, box.y2});
  }
  return table;
}

template <class T>
void RegionKernels<T>::pool(const Regions& regions, const T* x, T* y, std::int32_t* indices,
                            int threads) {
  const Regions& r = regions;
  over_regions(r, false, y, threads, [&](const Region& box) {
    auto rows = pixel_bins<T>(box.y1, box.y2, r.factor, r.bin_rows, r.height);
    auto columns = pixel_bins<T>(box.x1, box.x2, r.factor, r.bin_columns, r.width);
    return [&, rows = std::move(rows), columns = std::move(columns)](i64 plane, i64 bin) {
      for (const Range of_rows : rows) {
        for (const Range of_columns : columns) {
          const i64 index = maximum(x + plane, r.width, of_rows, of_columns);
          y[bin] = index < 0 ? T(0) : x[plane + index];
          indices[bin++] = static_cast<std::int32_t>(index);
        }
      }
    };
  });
}

template <class T>
void RegionKernels<T>::by_indices(const Regions& regions, bool transpose, const T* from,
                                  const std::int32_t* indices, T* to, int threads) {
  std::atomic<bool> inside{true};
  const auto gather = [&](i64 plane, i64 bins) {
    for (i64 k = bins; k < bins + regions.bins(); ++k) {
      const i64 index = indices[k];
      const bool found = index >= 0 && index < regions.plane();
      if (!found && index != -1) inside = false;
      if (!transpose) to[k] = found ? from[plane + index] : T(0);
      else if (found) to[plane + index] += from[k];
    }
  };
  over_regions(regions, transpose, to, threads, [&](const Region&) { return gather; });
  if (inside) return;
  throw std::invalid_argument("indices must be -1 or from 0 to " +
                              std::to_string(regions.plane() - 1) +
                              ", positions in a plane of input");
}

template <class T>
void RegionKernels<T>::align(const Regions& regions, const RegionSampling& sampling, bool transpose,
                             const T* from, T* to, int threads) {
  over_regions(regions, transpose, to, threads, [&](const Region& box) {
    return [=, samples = Samples<T>(regions, box, sampling)](i64 plane, i64 bins) mutable {
      if (transpose) samples.add_gradient(from + bins, to + plane);
      else samples.average(from + plane, to + bins);
    };
  });
}

template struct RegionKernels<float>;
template struct RegionKernels<double>;

}  // namespace poolgrad
