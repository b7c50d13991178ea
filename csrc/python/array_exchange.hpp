// Memory layout of an array, read through the buffer protocol or through DLPack's exchange API (the
// attribute `__dlpack_c_exchange_api__` of a type).
#pragma once

#include <nanobind/nanobind.h>

#include "geometry/view.hpp"
#include "third_party/dlpack/dlpack.h"

namespace nb = nanobind;

namespace poolgrad {
namespace {

// Fills a DLTensor that borrows the memory of a tensor; 0, or else a Python error is set.
using DLTensorExport = DLPackDLTensorFromPyObjectNoSync;

inline char* first_element(const DLTensor& tensor) {
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

// Bytes of an element.
inline i64 element_size(const DLTensor& tensor) {
  return i64{tensor.dtype.bits} / 8 * tensor.dtype.lanes;
}

// Bytes from the first element to the end of the last one.
inline i64 extent(const DLTensor& tensor) {
  i64 last = 0;
  for (int a = 0; a < tensor.ndim; ++a) {
    if (tensor.shape[a] == 0) return 0;
    last += (tensor.shape[a] - 1) * tensor.strides[a];
  }
  return (last + 1) * element_size(tensor);
}

// The export function of the tensors of a type; null if the type offers none.
inline DLTensorExport export_function_of(PyObject* type) {
  static PyObject* const attribute = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  static PyObject* cached_type = nullptr;  // most arrays of a process are of one type
  static DLTensorExport cached = nullptr;
  if (type == cached_type) return cached;
  DLTensorExport found = nullptr;
  PyObject* capsule = PyObject_GetAttr(type, attribute);
  if (capsule) {
    const auto* api =
        static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    if (api && api->header.version.major == DLPACK_MAJOR_VERSION) {
      found = api->dltensor_from_py_object_no_sync;
    }
    Py_DECREF(capsule);
  }
  PyErr_Clear();
  Py_INCREF(type);
  Py_XDECREF(cached_type);
  cached_type = type;
  return cached = found;
}

// False if the tensor cannot be exported or is not in this machine's memory.
inline bool export_tensor(DLTensorExport function, nb::handle tensor, DLTensor& to) {
  if (function(tensor.ptr(), &to) != 0) {
    PyErr_Clear();
    return false;
  }
  if (to.device.device_type != kDLCPU || to.ndim > kMaxAxes) return false;
  i64 elements = 1;
  for (int a = 0; a < to.ndim; ++a) elements *= to.shape[a];
  return (to.strides || to.ndim == 0) && (to.data || elements == 0);
}

// The layout of an array as a Python bytes object, which is part of the key of a call.
class LayoutKey {
 public:
  void add(i64 number) { numbers_[count_++] = number; }
  PyObject* bytes() const {
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(numbers_),
                                     count_ * static_cast<Py_ssize_t>(sizeof(i64)));
  }

 private:
  i64 numbers_[1 + 2 * kMaxAxes];
  int count_ = 0;
};

// Dtype, shape and strides of a tensor; null if it is not aligned to the size of its elements.
inline PyObject* layout_key_of_tensor(const DLTensor& exported) {
  const auto size = static_cast<std::uintptr_t>(element_size(exported));
  if (size == 0 || reinterpret_cast<std::uintptr_t>(first_element(exported)) % size) return nullptr;
  const DLDataType dtype = exported.dtype;
  LayoutKey key;
  key.add(dtype.code | dtype.bits << 8 | i64{dtype.lanes} << 16);
  for (int a = 0; a < exported.ndim; ++a) key.add(exported.shape[a]);
  for (int a = 0; a < exported.ndim; ++a) key.add(exported.strides[a]);
  return key.bytes();
}

// Size of an element, shape and strides of an array with the buffer protocol; null unless its
// elements are aligned to their size.
inline PyObject* layout_key_of_buffer(nb::handle array) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_STRIDES) != 0) {
    PyErr_Clear();
    return nullptr;
  }
  const Py_ssize_t size = buffer.itemsize;
  bool aligned = size > 0 && buffer.ndim <= kMaxAxes &&
                 reinterpret_cast<std::uintptr_t>(buffer.buf) % static_cast<std::size_t>(size) == 0;
  LayoutKey key;
  key.add(size);
  for (int a = 0; aligned && a < buffer.ndim; ++a) key.add(buffer.shape[a]);
  for (int a = 0; aligned && a < buffer.ndim; ++a) {
    key.add(buffer.strides[a]);
    aligned = buffer.strides[a] % size == 0;
  }
  PyBuffer_Release(&buffer);
  return aligned ? key.bytes() : nullptr;
}

}  // namespace
}  // namespace poolgrad
