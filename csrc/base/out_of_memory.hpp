// The error of an allocation that fails, and tables whose allocations raise it.
#pragma once

#include <cstdio>
#include <memory>
#include <vector>

namespace poolgrad {

// States how many bytes for what were requested. The text has a place of its own: there may be no
// memory for a string.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::size_t bytes, const char* purpose = "") {
    std::snprintf(text_, sizeof text_, "cannot allocate %zu bytes%s", bytes, purpose);
  }
  const char* what() const noexcept override { return text_; }

 private:
  char text_[400];
};

template <class T, const char* purpose>
struct TableAllocator : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = TableAllocator<U, purpose>;
  };

  TableAllocator() = default;
  template <class U>
  TableAllocator(const TableAllocator<U, purpose>&) {}

  T* allocate(std::size_t count) {
    try {
      return std::allocator<T>::allocate(count);
    } catch (const std::bad_alloc&) {
      throw OutOfMemory(count * sizeof(T), purpose);
    }
  }
};

// A vector whose size follows from the arguments of a call. purpose: ends the sentence of the
// error, as in " for a table of boxes".
template <class T, const char* purpose>
using Table = std::vector<T, TableAllocator<T, purpose>>;

}  // namespace poolgrad
