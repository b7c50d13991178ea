// Reads tensors of PyTorch: address, shape and strides, and whether the storage holds all elements.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "bindings/array.hpp"
#include "third_party/dlpack/dlpack.h"

namespace nb = nanobind;

namespace poolgrad {

inline nb::object checked(PyObject* value) {
  if (!value) throw nb::python_error();
  return nb::steal(value);
}

// The storage of a tensor, and the offset of the end of the tensor in it. The storage is null for
// tensors without elements, and for results that poolgrad has just allocated.
struct StoragePart {
  nb::object storage;
  i64 end = 0;  // in bytes

  // Whether the storage still has these bytes.
  bool is_held() const {
    if (!storage.is_valid()) return end == 0;
    const Py_ssize_t size = PyObject_Size(storage.ptr());  // in bytes
    if (size < 0) PyErr_Clear();
    return size >= end;
  }
};

// Reads tensors by the functions of `torch`, the only module whose tensors the kernels take: an
// object of another type could state any address.
class TensorReader {
 public:
  static constexpr const char* kExchange = "__dlpack_c_exchange_api__";

  explicit TensorReader(bool by_exchange) {
    const nb::object torch = nb::module_::import_("torch");
    type_ = torch.attr("Tensor");
    const nb::object storage_type = torch.attr("UntypedStorage");
    allocation_ = torch.attr("empty_strided");
    is_neg_ = type_.attr("is_neg");
    storage_ = type_.attr("untyped_storage");
    storage_address_ = storage_type.attr("data_ptr");
    without_torch_function_ = torch.attr("nn").attr("Parameter").attr("__torch_function__");
    if (by_exchange) {
      const nb::object capsule = type_.attr(kExchange);
      const auto* api = static_cast<const DLPackExchangeAPI*>(
          PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
      if (!api) throw nb::python_error();
      const bool known = api->header.version.major == DLPACK_MAJOR_VERSION;
      if (known) export_ = api->dltensor_from_py_object_no_sync;
      if (!export_) throw nb::type_error("this PyTorch has no exchange functions of DLPack");
      return;
    }
    is_cpu_ = type_.attr("is_cpu").attr("__get__");
    itemsize_ = type_.attr("itemsize").attr("__get__");
    address_ = type_.attr("data_ptr");
    shape_ = type_.attr("size");
    strides_ = type_.attr("stride");
  }

  // The reader of all tensors; null while PyTorch is not imported. PyTorch before 2.10 has no
  // exchange functions.
  static const TensorReader* usual() {
    static const TensorReader* reader = nullptr;  // is kept until the process ends, as PyTorch is
    if (reader) return reader;
    const nb::object torch = nb::borrow(PyDict_GetItemString(PyImport_GetModuleDict(), "torch"));
    if (!torch.is_valid() || !nb::hasattr(torch, "UntypedStorage")) return nullptr;
    return reader = new TensorReader(nb::hasattr(torch.attr("Tensor"), kExchange));
  }

  // The reader of an array that does not support the buffer protocol.
  static const TensorReader& of(nb::handle tensor) {
    const TensorReader* reader = usual();
    if (!reader || !reader->is_tensor(tensor)) {
      throw nb::type_error("an array must support the buffer protocol or be a torch.Tensor");
    }
    return *reader;
  }

  // The reader of the tensors that a function allocates; null if it is not PyTorch's function.
  static const TensorReader* allocated_by(nb::handle function) {
    const TensorReader* reader = usual();
    return reader && function.is(reader->allocation_) ? reader : nullptr;
  }

  nb::handle type() const { return type_; }

  // Whether the elements are negated when they are read.
  bool is_negated(nb::handle tensor) const { return nb::cast<bool>(value_of(is_neg_, tensor)); }

  // False if the tensor cannot be exported or is not in this machine's memory.
  bool read(nb::handle tensor, Array& to) const {
    try {
      if (export_ ? read_exported(tensor, to) : read_attributes(tensor, to)) return true;
      PyErr_Clear();
    } catch (const std::exception&) {  // a tensor without memory, or with symbolic sizes
    }
    return false;
  }

  // Why a kernel cannot use the memory of an exported tensor; null if it can. Storages can be freed
  // and shrunk, and zero tensors have none: their address is their offset.
  // Where it can, `part` becomes the part of the storage that the elements lie in.
  const char* refusal(nb::handle tensor, const Array& array, StoragePart& part) const {
    if (is_negated(tensor)) return "a tensor has a negative bit";
    const i64 needed = array.extent();
    if (needed == 0) return nullptr;
    try {
      part.storage = value_of(storage_, tensor);
      const auto begin = nb::cast<std::uintptr_t>(value_of(storage_address_, part.storage));
      const auto address = reinterpret_cast<std::uintptr_t>(array.data);
      if (needed > 0 && begin != 0 && address >= begin &&
          !__builtin_add_overflow(address - begin, needed, &part.end) && part.is_held()) {
        return nullptr;
      }
    } catch (nb::python_error&) {  // a storage without memory
    }
    return "a tensor has no memory for all its elements: it is a zero tensor, or its storage was "
           "freed or shrunk";
  }

 private:
  bool is_tensor(nb::handle object) const {
    return PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(type_.ptr()));
  }

  // Copies shape and strides: those of the tensor itself may be freed by Python code that resizes
  // it.
  bool read_exported(nb::handle tensor, Array& to) const {
    DLTensor from;
    if (export_(tensor.ptr(), &from) != 0 || from.device.device_type != kDLCPU) return false;
    if (from.ndim > 0 && !from.strides) return false;
    if (from.data) to.data = static_cast<char*>(from.data) + from.byte_offset;
    to.itemsize = i64{from.dtype.bits} / 8 * from.dtype.lanes;
    to.type = from.dtype.code | from.dtype.bits << 8 | i64{from.dtype.lanes} << 16;
    for (int a = 0; a < from.ndim; ++a) to.add_axis(from.shape[a], from.strides[a]);
    return true;
  }

  bool read_attributes(nb::handle tensor, Array& to) const {
    if (!nb::cast<bool>(value_of(is_cpu_, tensor))) return false;
    const nb::tuple sizes = nb::cast<nb::tuple>(value_of(shape_, tensor)),
                    strides = nb::cast<nb::tuple>(value_of(strides_, tensor));
    to.itemsize = to.type = nb::cast<i64>(value_of(itemsize_, tensor));
    to.data = reinterpret_cast<char*>(nb::cast<std::uintptr_t>(value_of(address_, tensor)));
    for (std::size_t a = 0; a < sizes.size() && a < strides.size(); ++a) {
      to.add_axis(nb::cast<i64>(sizes[a]), nb::cast<i64>(strides[a]));
    }
    return true;
  }

  // The functions of a subclass (`__torch_function__`) are not called.
  nb::object value_of(const nb::object& function, nb::handle object) const {
    PyObject* argument = object.ptr();
    const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(argument));
    if (type == type_.ptr() || !is_tensor(object)) {
      return checked(PyObject_Vectorcall(function.ptr(), &argument, 1, nullptr));
    }
    return without_torch_function_(function, nb::make_tuple(), nb::make_tuple(object));
  }

  nb::object type_, allocation_, is_neg_, storage_, storage_address_, without_torch_function_;
  nb::object is_cpu_, itemsize_, address_, shape_, strides_;  // without exchange functions
  DLPackDLTensorFromPyObjectNoSync export_ = nullptr;
};

// RAII guard: the tensors of a cached call, whose addresses need not be compared a second time.
class CheckedTensors : NonCopyable {
 public:
  CheckedTensors() : outer_(std::exchange(innermost, this)) {}
  ~CheckedTensors() { innermost = outer_; }

  // Adds a tensor whose storage holds all elements to the innermost guard. The caller keeps the
  // tensor alive.
  static void add(nb::handle tensor, const Array& array, StoragePart part) {
    if (innermost->count_ == kMost) return;
    innermost->entries_[innermost->count_++] = {tensor.ptr(), array.data, array.extent(),
                                                std::move(part)};
  }
  // Whether a tensor was added and has not changed since. A storage that a finalizer resized twice
  // may have its former address, and be smaller.
  static bool contain(nb::handle tensor, const Array& array) {
    const auto is_same = [&](const Entry& entry) {
      return entry.tensor == tensor.ptr() && entry.address == array.data &&
             entry.bytes == array.extent() && entry.part.is_held();
    };
    for (const CheckedTensors* guard = innermost; guard; guard = guard->outer_) {
      if (std::any_of(guard->entries_, guard->entries_ + guard->count_, is_same)) return true;
    }
    return false;
  }

 private:
  struct Entry {
    PyObject* tensor;
    const char* address;
    i64 bytes;
    StoragePart part;
  };
  static constexpr int kMost = 12;
  static inline thread_local CheckedTensors* innermost = nullptr;

  Entry entries_[kMost];
  int count_ = 0;
  CheckedTensors* outer_;
};

}  // namespace poolgrad
