// Tensors that say at once where and how they lie: the part of DLPack's exchange API that is used
// here, which a type offers as the capsule `__dlpack_c_exchange_api__`.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>

#include "view.hpp"

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
inline Teller teller_of(PyTypeObject* type) {
  static PyObject* const name = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  static PyTypeObject* known = nullptr;  // most are of one type
  static Teller teller = nullptr;
  if (type == known) return teller;
  Teller found = nullptr;
  PyObject* capsule = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name);
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

// Dtype, shape and strides in one object; null if it cannot say so.
inline PyObject* kind_told(Teller teller, nb::handle tensor) {
  Told told;
  if (!tell(teller, tensor, told)) return nullptr;
  const std::size_t rank = static_cast<std::size_t>(told.rank);
  i64 words[1 + 2 * kMostAxes] = {told.code | told.bits << 8 | i64{told.lanes} << 16};
  std::memcpy(words + 1, told.shape, rank * sizeof(i64));
  std::memcpy(words + 1 + rank, told.strides, rank * sizeof(i64));
  const std::size_t bytes = (1 + 2 * rank) * sizeof(i64);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(words),
                                   static_cast<Py_ssize_t>(bytes));
}

}  // namespace
}  // namespace poolgrad
