// Memory for large results, used again, and how it is written. Fresh pages cost more than most
// poolings: the system clears them one by one when they are first written.
#pragma once

#include <cstddef>
#include <cstdint>

namespace poolgrad {

// A block of memory, taken from the cache and returned to it. Any thread may create and destroy
// one.
class Memory {
 public:
  explicit Memory(std::size_t bytes);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  char* data_;
  std::size_t bytes_, size_;
};

struct CacheUse {
  std::size_t used, kept;  // bytes in results, bytes waiting for the next
};
CacheUse cache_use();
void limit_cache(std::size_t bytes);  // of what waits
void empty_cache();

// Whether results of so many bytes are best written past the caches: of more than a limit, which is
// endless where a processor is not known to write faster so.
bool streams(std::size_t bytes);
void limit_streams(std::size_t bytes);

}  // namespace poolgrad
