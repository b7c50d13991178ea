#include "cache.hpp"

#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace poolgrad {
namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;  // a huge page, where the system has them

struct Block {
  char* data;
  std::size_t size;
};

std::vector<Block>& waiting() {                  // the longest unused first
  static auto* blocks = new std::vector<Block>;  // results may outlive everything
  return *blocks;
}
std::size_t used = 0, kept = 0, limit = 0;

void drop(std::size_t most) {
  std::size_t count = 0;
  while (kept > most) {
    const Block& oldest = waiting()[count++];
    kept -= oldest.size;
    std::free(oldest.data);
  }
  waiting().erase(waiting().begin(), waiting().begin() + static_cast<std::ptrdiff_t>(count));
}

char* fresh(std::size_t size) {
  void* data = std::aligned_alloc(kPage, size);
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (data) madvise(data, size, MADV_HUGEPAGE);  // fewer pages to clear; no matter if refused
#endif
  return static_cast<char*>(data);
}

// What is larger stays in no cache anyway: the last cache of AMD's processors from Zen 5 on. Others
// are not known to write well past their caches.
std::size_t longest_cached() {
#if defined(__x86_64__)
  constexpr unsigned kZen5 = 0x1A, kCaches = 0x8000001D, kLast = 3;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx) return SIZE_MAX;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return SIZE_MAX;
  if (((a >> 8) & 0xF) + ((a >> 20) & 0xFF) < kZen5) return SIZE_MAX;
  constexpr std::size_t usual = std::size_t{32} << 20;
  if (!__get_cpuid_count(kCaches, kLast, &a, &b, &c, &d)) return usual;
  const std::size_t line = (b & 0xFFF) + 1, parts = ((b >> 12) & 0x3FF) + 1, ways = (b >> 22) + 1;
  const std::size_t size = line * parts * ways * (static_cast<std::size_t>(c) + 1);
  return size > usual ? size : usual;
#else
  return SIZE_MAX;
#endif
}
std::size_t stream_limit = longest_cached();  // changed while the module is loaded, not later

}  // namespace

bool streams(std::size_t bytes) { return bytes > stream_limit; }
void limit_streams(std::size_t bytes) { stream_limit = bytes; }

Memory::Memory(std::size_t bytes) : data_(nullptr), bytes_(bytes), size_(0) {
  if (bytes > SIZE_MAX - kPage) throw std::bad_alloc();
  const std::size_t wanted = (bytes + kPage - 1) / kPage * kPage;
  std::size_t best = waiting().size();
  for (std::size_t k = 0; k < waiting().size(); ++k) {
    const std::size_t size = waiting()[k].size;
    const bool fits = size >= wanted && size / 2 <= wanted;
    if (fits && (best == waiting().size() || size <= waiting()[best].size)) best = k;
  }
  if (best < waiting().size()) {
    data_ = waiting()[best].data;
    size_ = waiting()[best].size;
    kept -= size_;
    waiting().erase(waiting().begin() + static_cast<std::ptrdiff_t>(best));
  } else {
    data_ = fresh(wanted);
    if (!data_) {
      drop(0);
      data_ = fresh(wanted);
    }
    if (!data_) throw std::bad_alloc();
    size_ = wanted;
  }
  used += size_;
}

Memory::~Memory() {
  used -= size_;
  kept += size_;
  waiting().push_back({data_, size_});
  drop(limit);
}

CacheUse cache_use() { return {used, kept}; }

void limit_cache(std::size_t bytes) {
  limit = bytes;
  drop(limit);
}

void empty_cache() { drop(0); }

}  // namespace poolgrad
