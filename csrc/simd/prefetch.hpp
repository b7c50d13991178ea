// Prefetches memory that will soon be read or written.
#pragma once

#include <array>

#include "simd/vector.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Longer rows are not prefetched as a whole: hardware prefetchers serve them well.
inline constexpr i64 kMaxPrefetchedRow = 4096;

// Distance of a prefetch from the memory that is read now.
inline constexpr i64 kPrefetchBytes = 2048;
template <class T>
inline constexpr i64 kPrefetchElements = kPrefetchBytes / static_cast<i64>(sizeof(T));

// Prefetches one cache line into the first-level cache; a store waits for its line, too. The
// address may lie beyond the array. (Always inlined: compilers remove calls of functions that only
// prefetch.)
POOLGRAD_INLINE void prefetch_line(const void* at) { __builtin_prefetch(at); }

// Also prefetches a line one page further on into the second-level cache: the first level has few
// outstanding misses, the second many more, and hardware prefetchers stop at the end of a page. For
// memory that is read in order.
POOLGRAD_INLINE void prefetch(const void* at) {
  constexpr i64 kPageBytes = 4096;
  prefetch_line(at);
  __builtin_prefetch(static_cast<const char*>(at) + kPageBytes, 0, 2);
}
POOLGRAD_INLINE void prefetch(const void* at, i64 bytes) {
  if (bytes > kMaxPrefetchedRow) return;
  for (i64 i = 0; i < bytes; i += 64) prefetch(static_cast<const char*>(at) + i);
}

// Prefetches elements of arrays into the second-level cache, a few at a time between computations:
// only few misses can be outstanding. `runs` runs of `run` elements begin `step` elements apart;
// the first begins at `at`, the current one ends before `end`.
struct GradualPrefetch {
  std::array<const char*, 2> arrays;
  std::array<i64, 2> bytes;  // of an element
  i64 step, at = 0, run = 0, end = 0, runs = 0;

  // Prefetches 16 elements of the first `count` arrays.
  POOLGRAD_INLINE void next(std::size_t count) {
    if (at >= end && --runs > 0) at += step - run, end += step;
    if (at >= end) return;
    for (std::size_t k = 0; k < count; ++k) __builtin_prefetch(arrays[k] + at * bytes[k], 0, 2);
    at += 16;
  }
};

}  // namespace poolgrad::inline POOLGRAD_ISA
