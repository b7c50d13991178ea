// Arrays that say at once where and how they lie: by the buffer protocol, or by DLPack's exchange
// API (the part of it that is used here), which a type offers as `__dlpack_c_exchange_api__`.
#pragma once

#include <nanobind/nanobind.h>

#include "geometry/view.hpp"

namespace nb = nanobind;

namespace poolgrad {
namespace {

struct Told {  // DLTensor
  void* data;
  std::int32_t device, device_number;
  std::int32_t rank;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  const i64 *shape, *strides;  // strides in elements
  std::uint64_t offset;        // of the first element, in bytes

  char* first() const { return static_cast<char*>(data) + offset; }
};

// 0, or else an error is set.
using Teller = int (*)(void* tensor, Told* told);

struct ExchangeApi {  // DLPackExchangeAPI
  std::uint32_t major, minor;
  void* previous;
  void* allocate;
  void* from_object;
  void* to_object;
  Teller tell;
  void* stream;
};

// Null if the tensors of this type say no such thing.
inline Teller teller_of(PyObject* type) {
  static PyObject* const name = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  static PyObject* known = nullptr;  // most are of one type
  static Teller teller = nullptr;
  if (type == known) return teller;
  Teller found = nullptr;
  PyObject* capsule = PyObject_GetAttr(type, name);
  if (capsule) {
    void* api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (api && static_cast<ExchangeApi*>(api)->major == 1) {
      found = static_cast<ExchangeApi*>(api)->tell;
    }
    Py_DECREF(capsule);
  }
  PyErr_Clear();
  Py_INCREF(type);
  Py_XDECREF(known);
  known = type;
  return teller = found;
}

// False if this tensor cannot say so, or does not lie in this machine's memory.
inline bool tell(Teller teller, nb::handle tensor, Told& told) {
  constexpr std::int32_t kCpu = 1;
  if (teller(tensor.ptr(), &told) != 0) {
    PyErr_Clear();
    return false;
  }
  if (told.device != kCpu || told.rank > kMostAxes) return false;
  i64 elements = 1;
  for (int a = 0; a < told.rank; ++a) elements *= told.shape[a];
  return (told.strides || told.rank == 0) && (told.data || elements == 0);
}

// What an array says of how it lies, as one object of Python's.
class Lying {
 public:
  void add(i64 word) { words_[count_++] = word; }
  PyObject* bytes() const {
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(words_),
                                     count_ * static_cast<Py_ssize_t>(sizeof(i64)));
  }

 private:
  i64 words_[1 + 2 * kMostAxes];
  int count_ = 0;
};

// Dtype, shape and strides; null if the tensor cannot be exchanged, or is not aligned to its items.
inline PyObject* lying(Teller teller, nb::handle tensor) {
  Told told;
  if (!tell(teller, tensor, told)) return nullptr;
  const std::uintptr_t size = told.bits / 8u * told.lanes;
  if (size == 0 || reinterpret_cast<std::uintptr_t>(told.first()) % size) return nullptr;
  Lying words;
  words.add(told.code | told.bits << 8 | i64{told.lanes} << 16);
  for (int a = 0; a < told.rank; ++a) words.add(told.shape[a]);
  for (int a = 0; a < told.rank; ++a) words.add(told.strides[a]);
  return words.bytes();
}

// Size of an item, shape and strides; null unless items lie at multiples of their size.
inline PyObject* lying_in_buffer(nb::handle array) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_STRIDES) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  const Py_ssize_t size = buffer.itemsize;
  bool whole = size > 0 && buffer.ndim <= kMostAxes &&
               reinterpret_cast<std::uintptr_t>(buffer.buf) % static_cast<std::size_t>(size) == 0;
  Lying words;
  words.add(size);
  for (int a = 0; whole && a < buffer.ndim; ++a) words.add(buffer.shape[a]);
  for (int a = 0; whole && a < buffer.ndim; ++a) {
    words.add(buffer.strides[a]);
    whole = buffer.strides[a] % size == 0;
  }
  PyBuffer_Release(&buffer);
  return whole ? words.bytes() : nullptr;
}

}  // namespace
}  // namespace poolgrad
