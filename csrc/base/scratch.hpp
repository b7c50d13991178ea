// Allocates the buffers of a task in scratch memory: each thread has one block, which all calls
// reuse.
#pragma once

#include <cstddef>

#include "base/common.hpp"

namespace poolgrad {

// Returns at least `bytes` of this thread's scratch memory, aligned to a cache line; valid until
// the next call.
char* thread_scratch(std::size_t bytes);

inline namespace POOLGRAD_ISA {

// Bump allocator. The same sequence of take() calls runs twice: on an arena without memory, to
// measure, and on a block of the measured size.
class Arena {
 public:
  explicit Arena(char* base = nullptr) : next_(reinterpret_cast<std::uintptr_t>(base)) {}

  template <class T>
  T* take(i64 n) {
    const std::size_t bytes = (static_cast<std::size_t>(n) * sizeof(T) + 63) / 64 * 64;
    T* here = reinterpret_cast<T*>(next_);
    next_ += bytes;
    used_ += bytes;
    return here;
  }

  std::size_t used() const { return used_; }

 private:
  std::uintptr_t next_;
  std::size_t used_ = 0;
};

}  // namespace POOLGRAD_ISA
}  // namespace poolgrad
