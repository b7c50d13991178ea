// Writes rows of results: in place if dtype and layout allow it, else through a buffer.
#pragma once

#include "base/buffer_cache.hpp"
#include "base/scratch.hpp"
#include "geometry/view.hpp"
#include "simd/prefetch.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Copies n numbers to elements first, first + 1, ... of an array, converted if it has another
// dtype. nontemporal: with non-temporal stores. prefetches: also prefetches the memory that
// follows, as conversions always do.
template <class T>
POOLGRAD_INLINE void put(const Dense& to, i64 first, const T* from, i64 n, bool nontemporal,
                         bool prefetches = true) {
  if (!has_type<T>(to)) {
    prefetch(elements_of<char>(to, (first + kPrefetchElements<T>)*size_of(to.dtype)),
             n * size_of(to.dtype));
    return write(to, first, from, n);
  }
  T* at = elements_of<T>(to, first);
  overlapping_lanes<T>(n, [&](auto w, i64 i) {
    const auto values = load<Vec<T, w()>>(from + i);
    if (nontemporal) return store_nontemporal(at + i, values);
    if (prefetches) prefetch(at + i + kPrefetchElements<T>);
    store(at + i, values);
  });
}

// Writes rows that are computed in memory order: in place or, if the array has another dtype,
// through a small buffer.
template <class T>
class RowWriter : NonCopyable {
 public:
  // row: elements of the longest row
  RowWriter(Dense to, i64 row, Arena& arena)
      : to_(to), buffer_(to.data && !has_type<T>(to) ? arena.take<T>(row + kChunk) : nullptr) {}
  ~RowWriter() {
    flush();
    if (nontemporal_) store_fence();
  }

  // Returns memory for elements first .. first + n of the array; earlier rows are complete. Null
  // without an array. prefetches: also prefetches the memory that follows.
  T* reserve(i64 first, i64 n, bool prefetches = true) {
    if (!to_.data) return nullptr;
    if (!buffer_) {
      T* here = elements_of<T>(to_, first);
      if (prefetches)
        prefetch(here + larger(n, kPrefetchElements<T>), n * static_cast<i64>(sizeof(T)));
      return here;
    }
    if (first != first_ + count_ || count_ >= kChunk) {
      flush();
      first_ = first;
    }
    T* here = buffer_ + count_;
    count_ += n;
    return here;
  }

  const Quantization& quantization() const { return to_.quantization; }

  // Decides whether the array is written with non-temporal stores: if it is large enough, and each
  // row begins and ends with a cache line. Only whole rows may then be written. row: elements of a
  // row; bytes: of the array.
  bool choose_nontemporal(i64 row, i64 bytes) {
    const auto lines = [](auto n) { return n % kLineBytes == 0; };
    nontemporal_ = to_.data && !buffer_ && lines(reinterpret_cast<std::uintptr_t>(to_.data)) &&
                   lines(row * static_cast<i64>(sizeof(T))) &&
                   uses_nontemporal_stores(static_cast<std::size_t>(bytes));
    return nontemporal_;
  }

  // Copies elements first ... first + n to the array. nontemporal: they are a whole row, and
  // non-temporal stores are used; again: they are those of the row before.
  void put(i64 first, const T* from, i64 n, bool nontemporal, bool again) {
    const auto bytes = [&](i64 elements) { return elements * size_of(to_.dtype); };
    if (!again) same_ = first;
    if (!again || has_type<T>(to_)) return poolgrad::put(to_, first, from, n, nontemporal);
    std::memcpy(to_.data + bytes(first), to_.data + bytes(same_),
                static_cast<std::size_t>(bytes(n)));
  }

 private:
  static constexpr i64 kChunk = (1 << 13) / static_cast<i64>(sizeof(T));

  void flush() {
    if (count_ > 0) write(to_, first_, buffer_, count_);
    count_ = 0;
  }

  Dense to_;
  T* buffer_;
  i64 first_ = 0, count_ = 0;  // the buffered elements
  i64 same_ = 0;               // the first of equal rows; the last one is still being stored
  bool nontemporal_ = false;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
