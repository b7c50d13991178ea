// A reference to an array of any framework, and the checks that guard its memory.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <stdexcept>

#include "geometry/view.hpp"

namespace poolgrad {

inline void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

inline constexpr i64 kMaxElements = std::numeric_limits<i64>::max() / 8;  // of any dtype

// The product of two numbers that are not negative; an error if it is larger than `most`.
inline i64 product(i64 a, i64 b, i64 most = kMaxElements) {
  require(b == 0 || a <= most / b, "a size is too large");
  return a * b;
}

// The number of threads of a kernel.
inline int workers(int threads) { return std::clamp(threads, 1, 1024); }

using Shape = std::span<const i64>;

// The memory of an array. Item size, shape and strides are compared with the plan before a kernel
// accesses it.
struct Array {
  char* data = nullptr;
  i64 itemsize = 0;
  i64 type = 0;  // distinguishes dtypes of one item size, where the framework provides it
  i64 elements = 1;
  int rank = 0;
  i64 shape[kMaxAxes], strides[kMaxAxes];  // strides in elements

  void add_axis(i64 size, i64 stride) {
    require(rank < kMaxAxes, "an array has too many axes");
    require(!__builtin_mul_overflow(elements, size, &elements), "an array is too large");
    shape[rank] = size;
    strides[rank++] = stride;
  }

  // Bytes from the first element to the end of the last one; -1 if they cannot be counted.
  i64 extent() const {
    if (elements == 0) return 0;
    i64 bytes = itemsize;
    for (int a = 0; a < rank; ++a) {
      i64 distance = 0;
      if (shape[a] < 0 || strides[a] < 0 ||
          __builtin_mul_overflow(shape[a] - 1, strides[a], &distance) ||
          __builtin_mul_overflow(distance, itemsize, &distance) ||
          __builtin_add_overflow(bytes, distance, &bytes)) {
        return -1;
      }
    }
    return bytes;
  }

  bool has_shape(Shape expected) const {
    return std::equal(shape, shape + rank, expected.begin(), expected.end());
  }
  bool is_aligned() const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    return itemsize > 0 && address % static_cast<std::uintptr_t>(itemsize) == 0;
  }

  // The memory of an array of items of this size.
  char* items(i64 size) const {
    require(itemsize == size, "an array has items of another size than planned");
    require(data || elements == 0, "an array has no memory: its storage was freed");
    require(is_aligned(), "an array is not aligned to the size of its items");
    return data;
  }

  // The memory of a C-contiguous array of this shape. Null if it has no elements.
  char* contiguous(Shape expected, i64 size) const {
    char* const memory = items(size);
    require(has_shape(expected), "an array has another shape than planned");
    if (elements == 0) return nullptr;
    i64 step = 1;
    for (int a = rank; a-- > 0; step *= shape[a]) {
      require(shape[a] == 1 || strides[a] == step, "an array is not contiguous");
    }
    return memory;
  }

  template <class T>
  T* contiguous(Shape expected) const {
    return reinterpret_cast<T*>(contiguous(expected, sizeof(T)));
  }

  // The same of any shape, of at least `count` elements.
  char* contiguous(i64 count, i64 size) const {
    char* const memory = contiguous({shape, static_cast<std::size_t>(rank)}, size);
    require(elements >= count, "an array is smaller than planned");
    return memory;
  }

  // The memory of a dense array (its axes in any order) of at least `count` elements.
  char* dense(i64 count, i64 size) const {
    char* const memory = items(size);
    require(elements >= count, "an array is smaller than planned");
    if (elements == 0) return memory;
    i64 distance = elements - 1;  // between first and last element, along the remaining axes
    for (int a = 0; a < rank; ++a) {
      const i64 steps = shape[a] - 1;
      if (steps == 0) continue;
      require(strides[a] >= 1 && strides[a] <= distance / steps, "an array is not dense");
      distance -= strides[a] * steps;
    }
    require(distance == 0, "an array is not dense");
    return memory;
  }
};

// Refers to an array that a kernel reads or, if `Written`, writes. Null if none was passed.
template <bool Written>
class ArrayReference {
 public:
  ArrayReference() = default;
  explicit ArrayReference(const Array& array) : array_(&array) {}

  explicit operator bool() const { return array_; }
  const Array* operator->() const {
    require(array_, "an array is missing");
    return array_;
  }

 private:
  const Array* array_ = nullptr;
};

using Input = ArrayReference<false>;  // of any strides
using Output = ArrayReference<true>;  // dense

}  // namespace poolgrad
