// Memory that is asked for before it is needed.
#pragma once

#include "simd/vector.hpp"

namespace poolgrad {
namespace {

// Asks for memory that will soon be read, or written: a store, too, waits for its line. It is
// fetched into the first cache, and what lies further behind it into the second: of the first a
// core waits for few lines at a time, of the second for many more, and the processor's own guesses
// end with a page. It may lie beyond the array. (Inlined: a call that only asks would be taken for
// one without effect.)
inline constexpr i64 kAheadBytes = 2048;
template <class T>
inline constexpr i64 kAhead = kAheadBytes / static_cast<i64>(sizeof(T));

// Where what lies further behind it is not what comes next.
POOLGRAD_INLINE void prefetch_near(const void* at) { __builtin_prefetch(at); }
POOLGRAD_INLINE void prefetch(const void* at) {
  constexpr i64 kFurther = 4096;
  prefetch_near(at);
  __builtin_prefetch(static_cast<const char*>(at) + kFurther, 0, 2);
}
[[maybe_unused]] POOLGRAD_INLINE void prefetch(const void* at, i64 bytes) {
  constexpr i64 kMost = 4096;  // longer rows are guessed well
  if (bytes > kMost) return;
  for (i64 i = 0; i < bytes; i += 64) prefetch(static_cast<const char*>(at) + i);
}

}  // namespace
}  // namespace poolgrad
