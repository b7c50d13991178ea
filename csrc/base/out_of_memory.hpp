// The error of an allocation that fails.
#pragma once

#include <cstdio>
#include <new>

namespace poolgrad {

// States how many bytes of what were requested. The text has a place of its own: there may be no
// memory for a string.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(std::size_t bytes, const char* what = "") : bytes_(bytes) {
    std::snprintf(text_, sizeof text_, "cannot allocate %zu bytes%s", bytes, what);
  }
  const char* what() const noexcept override { return text_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
  char text_[96];
};

}  // namespace poolgrad
