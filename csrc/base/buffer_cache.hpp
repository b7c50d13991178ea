// Caches memory for large results, and stores the size from which results are written by
// non-temporal stores. Fresh memory costs more than most poolings: the system clears each page when
// it is first written (page fault).
#pragma once

#include <cstddef>

#include "base/common.hpp"

namespace poolgrad {

struct MemoryBlock {
  char* data;
  std::size_t size;
};

// A block of memory, taken from the cache and returned to it. Any thread may create and destroy
// one.
class CachedBlock : NonCopyable {
 public:
  explicit CachedBlock(std::size_t bytes);
  ~CachedBlock();

  char* data() const { return memory_.data; }
  std::size_t bytes() const { return bytes_; }

 private:
  MemoryBlock memory_{};
  std::size_t bytes_;
};

struct CacheUse {
  std::size_t used, kept;  // bytes of blocks in use, bytes of unused blocks
};
CacheUse cache_use();
void limit_cache(std::size_t bytes);  // maximum of CacheUse::kept
void empty_cache();

// Requests huge pages, which need fewer page faults, for the whole huge pages in this memory.
void advise_huge_pages(char* data, std::size_t size);

// Whether results of this size are written by non-temporal stores: those above a limit, which is
// infinite on processors where such stores have not been measured to be faster.
bool uses_nontemporal_stores(std::size_t bytes);
void limit_nontemporal_stores(std::size_t bytes);

}  // namespace poolgrad
