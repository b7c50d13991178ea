#include "base/buffer_cache.hpp"

#include <pthread.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>

#include "base/out_of_memory.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace poolgrad {
namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;  // a huge page of x86-64

constexpr char kOfBlocks[] = " for a list of the memory of results";

// The state of the cache. `blocks` has capacity for every block that exists, so that returning one
// never allocates.
struct Cache {
  std::mutex mutex;
  Table<MemoryBlock, kOfBlocks> blocks;  // unused blocks, least recently used first
  std::size_t live = 0;                  // blocks in use
  std::size_t used = 0, kept = 0, limit = 0;

  // Frees unused blocks, oldest first, until at most `most` bytes are kept.
  void drop(std::size_t most) {
    std::size_t count = 0;
    while (kept > most) {
      const MemoryBlock& oldest = blocks[count++];
      kept -= oldest.size;
      std::free(oldest.data);
    }
    blocks.erase(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(count));
  }
};

Cache& cache() {
  static auto* only = new Cache;  // never destroyed: results may outlive static destructors
  return *only;
}

// Results are created and destroyed by Python's threads and by XLA's threads, which do not hold the
// GIL.
using Lock = std::lock_guard<std::mutex>;

// fork() waits for the lock of the cache: a lock that another thread holds would stay locked in the
// child.
const bool fork_handlers_registered = [] {
  return pthread_atfork([] { cache().mutex.lock(); }, [] { cache().mutex.unlock(); },
                        [] { cache().mutex.unlock(); }) == 0;
}();

char* fresh(std::size_t size) {
  auto* data = static_cast<char*>(std::aligned_alloc(kPage, size));
  if (data) advise_huge_pages(data, size);
  return data;
}

// Returns the size above which results are written by non-temporal stores: the size of the
// last-level cache on AMD processors from Zen 3 on, where such stores are faster; no limit
// elsewhere.
std::size_t default_nontemporal_limit() {
#if defined(__x86_64__)
  constexpr unsigned kZen3 = 0x19, kCaches = 0x8000001D, kLast = 3;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx) return SIZE_MAX;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return SIZE_MAX;
  if (((a >> 8) & 0xF) + ((a >> 20) & 0xFF) < kZen3) return SIZE_MAX;
  constexpr std::size_t usual = std::size_t{32} << 20;
  if (!__get_cpuid_count(kCaches, kLast, &a, &b, &c, &d)) return usual;
  const std::size_t line = (b & 0xFFF) + 1, parts = ((b >> 12) & 0x3FF) + 1, ways = (b >> 22) + 1;
  const std::size_t size = line * parts * ways * (static_cast<std::size_t>(c) + 1);
  return size > usual ? size : usual;
#else
  return SIZE_MAX;
#endif
}
std::size_t nontemporal_limit =
    default_nontemporal_limit();  // changed while the module is loaded, not later

}  // namespace

bool uses_nontemporal_stores(std::size_t bytes) { return bytes > nontemporal_limit; }
void limit_nontemporal_stores(std::size_t bytes) { nontemporal_limit = bytes; }

CachedBlock::CachedBlock(std::size_t bytes) : bytes_(bytes) {
  if (bytes > SIZE_MAX - kPage) throw OutOfMemory(bytes);
  const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  Cache& c = cache();
  const Lock lock(c.mutex);
  c.blocks.reserve(c.blocks.size() + c.live + 1);
  const auto none = c.blocks.end();
  auto best = none;
  for (auto block = c.blocks.begin(); block != none; ++block) {
    const bool fits = block->size >= rounded && block->size / 2 <= rounded;
    if (fits && (best == none || block->size <= best->size)) best = block;
  }
  if (best != none) {
    memory_ = *best;
    c.kept -= memory_.size;
    c.blocks.erase(best);
  } else {
    memory_ = {fresh(rounded), rounded};
    if (!memory_.data) {
      c.drop(0);
      memory_.data = fresh(rounded);
    }
    if (!memory_.data) throw OutOfMemory(bytes);
  }
  c.used += memory_.size;
  ++c.live;
}

CachedBlock::~CachedBlock() {
  Cache& c = cache();
  const Lock lock(c.mutex);
  c.used -= memory_.size;
  c.kept += memory_.size;
  --c.live;
  c.blocks.push_back(memory_);
  c.drop(c.limit);
}

void advise_huge_pages([[maybe_unused]] char* data, [[maybe_unused]] std::size_t size) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  const std::size_t before = (kPage - reinterpret_cast<std::uintptr_t>(data) % kPage) % kPage;
  if (size < before + kPage) return;
  madvise(data + before, (size - before) / kPage * kPage, MADV_HUGEPAGE);  // may fail
#endif
}

CacheUse cache_use() {
  const Lock lock(cache().mutex);
  return {cache().used, cache().kept};
}

void limit_cache(std::size_t bytes) {
  const Lock lock(cache().mutex);
  cache().limit = bytes;
  cache().drop(bytes);
}

void empty_cache() {
  const Lock lock(cache().mutex);
  cache().drop(0);
}

}  // namespace poolgrad
