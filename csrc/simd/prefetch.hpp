// Prefetches memory that will soon be read or written.
#pragma once

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

}  // namespace poolgrad::inline POOLGRAD_ISA
