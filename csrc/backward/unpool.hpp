// Scatters values to their indices in a plane of zeros (unpooling), and its vjp. Of several values
// with the same index the last is kept, and only it receives the gradient.
#pragma once

#include <atomic>

#include "base/scratch.hpp"
#include "base/thread_pool.hpp"
#include "geometry/view.hpp"
#include "kernels.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Calls each(its number in the plane, offset in x, its index) for one channel of one plane.
template <class F>
void each_index(const Plan& p, const View& x, const View& indices, const char* plane, i64 c,
                F&& each) {
  const i64* from = reinterpret_cast<const i64*>(plane);
  i64 number = 0;
  for (i64 d = 0; d < p.axis[0].in; ++d) {
    for (i64 h = 0; h < p.axis[1].in; ++h) {
      for (i64 w = 0; w < p.axis[2].in; ++w, ++number) {
        each(number, d * x.depth + h * x.height + w * x.width + c * x.inner,
             from[d * indices.depth + h * indices.height + w * indices.width + c * indices.inner]);
      }
    }
  }
}

template <class T>
void unpool_plane(const Plan& p, const View& x, const char* values, const View& indices,
                  const char* index_plane, T* y) {
  std::memset(y, 0, static_cast<std::size_t>(p.out_plane()) * sizeof(T));
  const T* from = reinterpret_cast<const T*>(values);
  const auto size = static_cast<std::uint64_t>(p.axis[0].out * p.axis[1].out * p.axis[2].out);
  for (i64 c = 0; c < p.inner; ++c) {
    each_index(p, x, indices, index_plane, c, [&](i64, i64 at, i64 index) {
      // Another thread may have changed an index since all were checked.
      if (static_cast<std::uint64_t>(index) < size) y[index * p.inner + c] = from[at];
    });
  }
}

// owner: scratch memory, one number for each pixel of an output plane
template <class T>
void unpool_plane_backward(const Plan& p, const View& gy, const char* gradients,
                           const View& indices, const char* index_plane, u32* owner, T* gx) {
  const T* from = reinterpret_cast<const T*>(gradients);
  const i64 width = p.axis[2].out, rows = p.axis[1].out;
  const auto size = static_cast<std::uint64_t>(p.axis[0].out * rows * width);
  const auto outside = [&](i64 index) { return static_cast<std::uint64_t>(index) >= size; };
  for (i64 c = 0; c < p.inner; ++c) {
    each_index(p, indices, indices, index_plane, c, [&](i64 number, i64, i64 index) {
      if (!outside(index)) owner[index] = static_cast<u32>(number);
    });
    each_index(p, indices, indices, index_plane, c, [&](i64 number, i64, i64 index) {
      if (outside(index)) return;
      const i64 row = index / width;
      const i64 at =
          row / rows * gy.depth + row % rows * gy.height + index % width * gy.width + c * gy.inner;
      const bool last = owner[index] == static_cast<u32>(number);
      gx[number * p.inner + c] = last ? from[at] : T{};
    });
  }
}

// Returns whether all indices lie in their planes of the output; else stores an invalid one.
inline bool all_indices_inside(const Work& work, const View& indices, i64* invalid) {
  const Plan& p = *work.plan;
  const auto size = static_cast<std::uint64_t>(p.axis[0].out * p.axis[1].out * p.axis[2].out);
  std::atomic<i64> outside{-1};
  std::atomic<bool> all{true};
  parallel_for(p.outer, work.threads, [&](i64 plane) {
    for (i64 c = 0; c < p.inner; ++c) {
      each_index(p, indices, indices, plane_of(indices, plane), c, [&](i64, i64, i64 index) {
        if (static_cast<std::uint64_t>(index) < size) return;
        all = false;
        outside = index;
      });
    }
  });
  *invalid = outside;
  return all;
}

// Calls each(T{}, plane, its indices) for all planes, on threads, with an unsigned integer T of the
// size of an element. Returns false and stores an invalid index, without a call, if there is one.
template <class F>
bool over_planes(const Work& work, const View& indices, Dtype dtype, i64* invalid, F&& each) {
  if (!all_indices_inside(work, indices, invalid)) return false;
  const auto run = [&](auto t) {
    parallel_for(work.plan->outer, work.threads,
                 [&](i64 plane) { each(t, plane, plane_of(indices, plane)); });
  };
  const i64 bytes = size_of(dtype);
  if (bytes == 1) run(std::uint8_t{});
  else if (bytes == 2) run(std::uint16_t{});
  else if (bytes == 4) run(std::uint32_t{});
  else run(std::uint64_t{});
  return true;
}

inline bool unpool(const Work& work, const View& x, const View& indices, Dense y, i64* invalid) {
  const Plan& p = *work.plan;
  return over_planes(work, indices, x.dtype, invalid, [&](auto t, i64 plane, const char* from) {
    unpool_plane(p, x, plane_of(x, plane), indices, from,
                 elements_of<decltype(t)>(y, plane * p.out_plane()));
  });
}

inline bool unpool_backward(const Work& work, const View& gy, const View& indices, Dense gx,
                            i64* invalid) {
  const Plan& p = *work.plan;
  return over_planes(work, indices, gy.dtype, invalid, [&](auto t, i64 plane, const char* from) {
    const auto bytes = static_cast<std::size_t>(p.out_plane() / p.inner) * sizeof(u32);
    unpool_plane_backward(p, gy, plane_of(gy, plane), indices, from,
                          reinterpret_cast<u32*>(thread_scratch(bytes)),
                          elements_of<decltype(t)>(gx, plane * p.in_plane()));
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
