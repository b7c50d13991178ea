#include "operators/regions.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "base/thread_pool.hpp"

namespace poolgrad {
namespace {

// Channels that one task computes: the geometry of a region is computed once for all of them.
constexpr i64 kChannels = 16;

i64 channel_blocks(const RegionMaps& maps) { return ceil_div(maps.channels, kChannels); }

// The forward pass is parallel over (region, block of channels).
template <class F>
void over_regions(const RegionMaps& maps, i64 regions, int threads, F&& each) {
  const i64 blocks = channel_blocks(maps);
  parallel_for(regions * blocks, threads, [&](i64 task) {
    const i64 first = task % blocks * kChannels;
    each(task / blocks, first, smaller(first + kChannels, maps.channels));
  });
}

// The backward pass is parallel over (image, block of channels): each task clears its planes and
// adds the regions of its image in their order, so that no sum depends on the number of threads.
template <class T, class F>
void over_images(const RegionMaps& maps, const RegionTable<Region>& regions, T* gx, int threads,
                 F&& each) {
  RegionTable<i64> begin(static_cast<std::size_t>(maps.images) + 1), order(regions.size());
  for (const Region& r : regions) ++begin[static_cast<std::size_t>(r.image) + 1];
  for (std::size_t n = 1; n < begin.size(); ++n) begin[n] += begin[n - 1];
  RegionTable<i64> next = begin;
  for (std::size_t k = 0; k < regions.size(); ++k) {
    const auto place = static_cast<std::size_t>(next[static_cast<std::size_t>(regions[k].image)]++);
    order[place] = static_cast<i64>(k);
  }
  const i64 blocks = channel_blocks(maps);
  parallel_for(maps.images * blocks, threads, [&](i64 task) {
    const i64 image = task / blocks, first = task % blocks * kChannels;
    const i64 last = smaller(first + kChannels, maps.channels);
    T* planes = gx + (image * maps.channels + first) * maps.plane();
    std::fill(planes, planes + (last - first) * maps.plane(), T(0));
    const auto n = static_cast<std::size_t>(image);
    for (i64 k = begin[n]; k < begin[n + 1]; ++k) {
      each(order[static_cast<std::size_t>(k)], first, last, planes);
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

// Computes the maxima of the bins of one region and their indices. The last NaN wins; otherwise the
// first of equal inputs in row-major order.
template <class T>
class Maxima {
 public:
  Maxima(const RegionMaps& maps, const Region& box, double factor)
      : rows_(pixel_bins<T>(box.y1, box.y2, factor, maps.bin_rows, maps.height)),
        columns_(pixel_bins<T>(box.x1, box.x2, factor, maps.bin_columns, maps.width)),
        width_(maps.width),
        first_(columns_.front().lo),
        best_(static_cast<std::size_t>(larger(columns_.back().hi - first_, 0))),
        row_(best_.size()) {}

  void find(const T* x, T* y, std::int32_t* indices) {
    for (const Range rows : rows_) {
      if (rows.lo < rows.hi) reduce_rows(x, rows);
      for (const Range columns : columns_) {
        const bool empty = rows.lo >= rows.hi || columns.lo >= columns.hi;
        if (empty) *y++ = 0, *indices++ = -1;
        else reduce_columns(columns, y++, indices++);
      }
    }
  }

 private:
  // Integer of the size of T, so that vectors of both have the same number of lanes.
  using Index = std::conditional_t<sizeof(T) == 4, std::int32_t, i64>;

  // The maximum of each column over the rows of a bin; vectorised along the width.
  void reduce_rows(const T* x, Range rows) {
    const std::size_t n = best_.size();
    T* best = best_.data();
    Index* row = row_.data();
    const T* line = x + rows.lo * width_ + first_;
    for (std::size_t j = 0; j < n; ++j) best[j] = line[j], row[j] = static_cast<Index>(rows.lo);
    for (i64 h = rows.lo + 1; h < rows.hi; ++h) {
      line = x + h * width_ + first_;
      const Index here = static_cast<Index>(h);
      for (std::size_t j = 0; j < n; ++j) {
        const T v = line[j];
        const bool wins = (v > best[j]) | (v != v);
        best[j] = wins ? v : best[j];
        row[j] = wins ? here : row[j];
      }
    }
  }

  void reduce_columns(Range columns, T* y, std::int32_t* index) const {
    i64 column = columns.lo;
    T best = best_[at(column)];
    Index row = row_[at(column)];
    for (i64 w = column + 1; w < columns.hi; ++w) {
      const T v = best_[at(w)];
      const Index r = row_[at(w)];
      const bool nan = v != v, after_nan = best != best;
      const bool wins = (v > best) | ((v == best) & (r < row)) | (nan & (!after_nan | (r >= row)));
      best = wins ? v : best;
      row = wins ? r : row;
      column = wins ? w : column;
    }
    *y = best;
    *index = static_cast<std::int32_t>(i64{row} * width_ + column);
  }

  std::size_t at(i64 column) const { return static_cast<std::size_t>(column - first_); }

  RegionTable<Range> rows_, columns_;
  i64 width_, first_;       // of the map, and the first column of the region in it
  RegionTable<T> best_;     // maximum of each column of the region
  RegionTable<Index> row_;  // row of that maximum
};

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
  AxisSamples(double low, double high, const RegionScale& scale, i64 bins, i64 size) {
    const T factor = static_cast<T>(scale.factor), offset = static_cast<T>(scale.aligned ? 0.5 : 0);
    start_ = static_cast<T>(low) * factor - offset;
    T width = static_cast<T>(high) * factor - offset - start_;
    if (!scale.aligned && !(width > 1)) width = 1;
    width_ = width / static_cast<T>(bins);
    samples_ =
        scale.sampling_ratio > 0 ? scale.sampling_ratio : static_cast<i64>(std::ceil(width_));
    begin_.reserve(static_cast<std::size_t>(bins) + 1);
    for (i64 b = 0; b < bins; ++b) add_bin(b, size);
    begin_.push_back(taps_.size());
  }

  i64 samples() const { return samples_; }  // of each bin
  RegionTable<WeightedTap<T>>& all() { return taps_; }

  template <class F>
  void each(i64 bin, F&& f) const {
    const auto b = static_cast<std::size_t>(bin);
    for (std::size_t k = begin_[b]; k < begin_[b + 1]; ++k) f(taps_[k]);
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
      const i64 low = static_cast<i64>(inside);
      if (low >= size - 1) {
        add(size - 1, T(1));
        continue;
      }
      const T fraction = inside - static_cast<T>(low);
      add(low, T(1) - fraction);
      if (fraction > 0) add(low + 1, fraction);
    }
  }

  // Samples ascend, so an existing tap with this index is one of the last two taps of its bin.
  void add(i64 index, T weight) {
    const std::size_t count = taps_.size(), first = begin_.back();
    for (std::size_t k = count; k > first && k + 2 > count; --k) {
      if (taps_[k - 1].index == index) {
        taps_[k - 1].weight += weight;
        return;
      }
    }
    taps_.push_back({index, weight});
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
  Samples(const RegionMaps& maps, const Region& box, const RegionScale& scale)
      : rows_(box.y1, box.y2, scale, maps.bin_rows, maps.height),
        columns_(box.x1, box.x2, scale, maps.bin_columns, maps.width),
        width_(maps.width),
        bin_rows_(maps.bin_rows),
        bin_columns_(maps.bin_columns),
        count_(static_cast<T>(larger(rows_.samples(), 1)) *
               static_cast<T>(larger(columns_.samples(), 1))) {
    // Renumbers column taps: index k is the k-th column of the map that has a tap.
    for (WeightedTap<T>& tap : columns_.all()) {
      if (used_.empty() || tap.index > used_.back()) used_.push_back(tap.index);
      std::size_t k = used_.size() - 1;
      while (used_[k] != tap.index) --k;
      tap.index = static_cast<i64>(k);
    }
    line_.resize(used_.size());
    gapless_ = !used_.empty() && used_.back() - used_[0] + 1 == static_cast<i64>(used_.size());
  }

  // Sums rows first: an input is read once for each row of bins with a tap on it.
  void average(const T* x, T* y) {
    for (i64 row = 0; row < bin_rows_; ++row) {
      std::fill(line_.begin(), line_.end(), T(0));
      rows_.each(row, [&](const WeightedTap<T>& tap) {
        const T* from = x + tap.index * width_;
        over_columns([&](std::size_t k, i64 column) { line_[k] += tap.weight * from[column]; });
      });
      for (i64 column = 0; column < bin_columns_; ++column) {
        T sum = 0;
        columns_.each(column, [&](const WeightedTap<T>& tap) {
          sum += tap.weight * line_[static_cast<std::size_t>(tap.index)];
        });
        *y++ = sum / count_;
      }
    }
  }

  // The transpose of average().
  void add_gradient(const T* gy, T* gx) {
    for (i64 row = 0; row < bin_rows_; ++row) {
      std::fill(line_.begin(), line_.end(), T(0));
      for (i64 column = 0; column < bin_columns_; ++column) {
        const T share = *gy++ / count_;
        columns_.each(column, [&](const WeightedTap<T>& tap) {
          line_[static_cast<std::size_t>(tap.index)] += tap.weight * share;
        });
      }
      rows_.each(row, [&](const WeightedTap<T>& tap) {
        T* to = gx + tap.index * width_;
        over_columns([&](std::size_t k, i64 column) { to[column] += tap.weight * line_[k]; });
      });
    }
  }

 private:
  template <class F>
  void over_columns(F&& f) const {
    if (gapless_) {
      const i64 first = used_[0];
      for (std::size_t k = 0; k < used_.size(); ++k) f(k, first + static_cast<i64>(k));
    } else {
      for (std::size_t k = 0; k < used_.size(); ++k) f(k, used_[k]);
    }
  }

  AxisSamples<T> rows_, columns_;
  i64 width_, bin_rows_, bin_columns_;
  T count_;
  RegionTable<i64> used_;  // columns of the map, ascending
  RegionTable<T> line_;    // a number for each of them
  bool gapless_;
};

std::string described(const Region& box) {
  char text[160];
  std::snprintf(text, sizeof(text), "(x1, y1, x2, y2) = (%.9g, %.9g, %.9g, %.9g)", box.x1, box.y1,
                box.x2, box.y2);
  return text;
}

// Whether a coordinate is small enough for float, in the image and in the feature map.
bool is_in_range(double corner, double factor) {
  return std::abs(corner) <= kMaxCoordinate && std::abs(corner * factor) <= kMaxCoordinate;
}

}  // namespace

RegionTable<Region> checked_regions(const RegionMaps& maps, const double* boxes, i64 count,
                                    double factor) {
  RegionTable<Region> regions;
  regions.reserve(static_cast<std::size_t>(count));
  for (i64 k = 0; k < count; ++k, boxes += 5) {
    const double image = boxes[0];
    const Region box{0, boxes[1], boxes[2], boxes[3], boxes[4]};
    const auto refuse = [&](const std::string& accepted, const std::string& came) {
      throw std::invalid_argument("boxes[" + std::to_string(k) + "] must " + accepted + ", got " +
                                  came);
    };
    if (!(image >= 0 && image < static_cast<double>(maps.images)) || image != std::floor(image)) {
      char text[40];
      std::snprintf(text, sizeof(text), "%.9g", image);
      if (maps.images == 0) refuse("not exist where input has no images", described(box));
      refuse("begin with the index of an image, a whole number from 0 to " +
                 std::to_string(maps.images - 1),
             text);
    }
    if (!(std::isfinite(box.x1) && std::isfinite(box.y1) && std::isfinite(box.x2) &&
          std::isfinite(box.y2))) {
      refuse("have finite coordinates", described(box));
    }
    if (box.x2 < box.x1 || box.y2 < box.y1) refuse("have x1 <= x2 and y1 <= y2", described(box));
    if (!(is_in_range(box.x1, factor) && is_in_range(box.y1, factor) &&
          is_in_range(box.x2, factor) && is_in_range(box.y2, factor))) {
      refuse("lie within 2**30 pixels of the origin, also when scaled", described(box));
    }
    regions.push_back({static_cast<i64>(image), box.x1, box.y1, box.x2, box.y2});
  }
  return regions;
}

template <class T>
void RegionKernels<T>::pool(const RegionMaps& maps, const RegionTable<Region>& regions,
                            double factor, const T* x, T* y, std::int32_t* indices, int threads) {
  over_regions(maps, static_cast<i64>(regions.size()), threads, [&](i64 k, i64 first, i64 last) {
    const Region& box = regions[static_cast<std::size_t>(k)];
    Maxima<T> maxima(maps, box, factor);
    for (i64 c = first; c < last; ++c) {
      const i64 out = (k * maps.channels + c) * maps.bins();
      maxima.find(x + (box.image * maps.channels + c) * maps.plane(), y + out, indices + out);
    }
  });
}

template <class T>
bool RegionKernels<T>::pool_backward(const RegionMaps& maps, const RegionTable<Region>& regions,
                                     const T* gy, const std::int32_t* indices, T* gx, int threads) {
  std::atomic<bool> inside{true};
  over_images(maps, regions, gx, threads, [&](i64 k, i64 first, i64 last, T* planes) {
    i64 out = (k * maps.channels + first) * maps.bins();
    for (i64 c = first; c < last; ++c, planes += maps.plane()) {
      for (const i64 end = out + maps.bins(); out < end; ++out) {
        const i64 index = indices[out];
        if (index >= 0 && index < maps.plane()) planes[index] += gy[out];
        else if (index != -1) inside = false;
      }
    }
  });
  return inside;
}

template <class T>
bool RegionKernels<T>::pool_gather(const RegionMaps& maps, const RegionTable<Region>& regions,
                                   const T* x, const std::int32_t* indices, T* y, int threads) {
  std::atomic<bool> inside{true};
  over_regions(maps, static_cast<i64>(regions.size()), threads, [&](i64 k, i64 first, i64 last) {
    const i64 image = regions[static_cast<std::size_t>(k)].image;
    i64 out = (k * maps.channels + first) * maps.bins();
    for (i64 c = first; c < last; ++c) {
      const T* plane = x + (image * maps.channels + c) * maps.plane();
      for (const i64 end = out + maps.bins(); out < end; ++out) {
        const i64 index = indices[out];
        const bool found = index >= 0 && index < maps.plane();
        if (!found && index != -1) inside = false;
        y[out] = found ? plane[index] : T(0);
      }
    }
  });
  return inside;
}

template <class T>
void RegionKernels<T>::align(const RegionMaps& maps, const RegionTable<Region>& regions,
                             const RegionScale& scale, const T* x, T* y, int threads) {
  over_regions(maps, static_cast<i64>(regions.size()), threads, [&](i64 k, i64 first, i64 last) {
    const Region& box = regions[static_cast<std::size_t>(k)];
    Samples<T> samples(maps, box, scale);
    for (i64 c = first; c < last; ++c) {
      samples.average(x + (box.image * maps.channels + c) * maps.plane(),
                      y + (k * maps.channels + c) * maps.bins());
    }
  });
}

template <class T>
void RegionKernels<T>::align_backward(const RegionMaps& maps, const RegionTable<Region>& regions,
                                      const RegionScale& scale, const T* gy, T* gx, int threads) {
  over_images(maps, regions, gx, threads, [&](i64 k, i64 first, i64 last, T* planes) {
    Samples<T> samples(maps, regions[static_cast<std::size_t>(k)], scale);
    for (i64 c = first; c < last; ++c, planes += maps.plane()) {
      samples.add_gradient(gy + (k * maps.channels + c) * maps.bins(), planes);
    }
  });
}

template struct RegionKernels<float>;
template struct RegionKernels<double>;

}  // namespace poolgrad
