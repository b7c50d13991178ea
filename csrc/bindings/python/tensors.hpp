// Reads tensors of PyTorch: address, shape and strides, and whether the storage holds all elements.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels.hpp"
#include "third_party/dlpack/dlpack.h"

namespace nb = nanobind;

namespace poolgrad {
namespace {

inline char* first_element(const DLTensor& tensor) {
  return static_cast<char*>(tensor.data) + tensor.byte_offset;
}

// Bytes of an element.
inline i64 element_size(const DLTensor& tensor) {
  return i64{tensor.dtype.bits} / 8 * tensor.dtype.lanes;
}

// Bytes from the first element to the end of the last one; -1 if they cannot be counted.
inline i64 extent(const DLTensor& tensor) {
  i64 last = 0;
  bool valid = true;
  for (int a = 0; a < tensor.ndim; ++a) {
    const i64 size = tensor.shape[a], stride = tensor.strides[a];
    if (size == 0) return 0;
    i64 distance = 0;
    valid =
        valid && size > 0 && stride >= 0 && !__builtin_mul_overflow(size - 1, stride, &distance);
    valid = valid && !__builtin_add_overflow(last, distance, &last);
  }
  i64 bytes = 0;
  valid = valid && last < std::numeric_limits<i64>::max();
  return valid && !__builtin_mul_overflow(last + 1, element_size(tensor), &bytes) ? bytes : -1;
}

// A tensor as DLPack describes it. Its shape and strides lie in `axes`: those of the tensor itself
// may be freed by Python code that resizes it.
struct ExportedTensor : DLTensor {
  i64 axes[2][kMaxAxes];
};

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
      export_ = export_function();
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

  // Whether a function is the one of PyTorch that allocates a tensor.
  static bool is_allocation(nb::handle function) {
    const TensorReader* reader = usual();
    return reader && function.is(reader->allocation_);
  }

  nb::handle type() const { return type_; }
  // Whether an object is a tensor of no subclass.
  bool is_plain(nb::handle object) const { return object.type().is(type_); }
  // Whether the elements are negated when they are read.
  bool is_negated(nb::handle tensor) const { return nb::cast<bool>(value_of(is_neg_, tensor)); }

  // False if the tensor cannot be exported or is not in this machine's memory.
  bool read(nb::handle tensor, ExportedTensor& to) const {
    try {
      if (!(export_ ? read_exported(tensor, to) : read_attributes(tensor, to))) {
        PyErr_Clear();
        return false;
      }
      return to.device.device_type == kDLCPU;
    } catch (nb::python_error&) {  // a tensor without memory
      return false;
    } catch (std::bad_cast&) {  // symbolic sizes
      return false;
    }
  }

  // Why a kernel cannot use the memory of an exported tensor; null if it can. Storages can be freed
  // and shrunk, and zero tensors have none: their address is their offset.
  // Where it can, `part` becomes the part of the storage that the elements lie in.
  const char* refusal(nb::handle tensor, const DLTensor& exported, StoragePart& part) const {
    if (is_negated(tensor)) return "a tensor has a negative bit";
    const i64 needed = extent(exported);
    if (needed == 0 || holds(tensor, exported, needed, part)) return nullptr;
    return "a tensor has no memory for all its elements: it is a zero tensor, or its storage was "
           "freed or shrunk";
  }

 private:
  // Whether the storage holds these bytes of a tensor.
  bool holds(nb::handle tensor, const DLTensor& exported, i64 needed, StoragePart& part) const {
    try {
      part.storage = value_of(storage_, tensor);
      const auto begin = nb::cast<std::uintptr_t>(value_of(storage_address_, part.storage));
      const auto address = reinterpret_cast<std::uintptr_t>(first_element(exported));
      return needed > 0 && begin != 0 && address >= begin &&
             !__builtin_add_overflow(address - begin, needed, &part.end) && part.is_held();
    } catch (nb::python_error&) {  // a storage without memory
      return false;
    }
  }

  // Null if the type of tensors has none.
  DLPackDLTensorFromPyObjectNoSync export_function() const {
    if (!nb::hasattr(type_, kExchange)) return nullptr;
    const nb::object capsule = type_.attr(kExchange);
    const auto* api = static_cast<const DLPackExchangeAPI*>(
        PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (!api) throw nb::python_error();
    const bool known = api->header.version.major == DLPACK_MAJOR_VERSION;
    return known ? api->dltensor_from_py_object_no_sync : nullptr;
  }

  bool is_tensor(nb::handle object) const {
    return PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(type_.ptr()));
  }

  bool read_exported(nb::handle tensor, ExportedTensor& to) const {
    if (export_(tensor.ptr(), &to) != 0 || to.ndim > kMaxAxes) return false;
    if (to.ndim > 0 && !to.strides) return false;
    std::copy_n(to.shape, to.ndim, to.axes[0]);
    std::copy_n(to.strides, to.ndim, to.axes[1]);
    to.shape = to.axes[0];
    to.strides = to.axes[1];
    return true;
  }

  bool read_attributes(nb::handle tensor, ExportedTensor& to) const {
    if (!nb::cast<bool>(value_of(is_cpu_, tensor))) return false;
    const nb::tuple sizes = nb::cast<nb::tuple>(value_of(shape_, tensor)),
                    strides = nb::cast<nb::tuple>(value_of(strides_, tensor));
    if (sizes.size() != strides.size() || sizes.size() > kMaxAxes) return false;
    const auto bits = static_cast<std::uint8_t>(8 * nb::cast<i64>(value_of(itemsize_, tensor)));
    const auto address = nb::cast<std::uintptr_t>(value_of(address_, tensor));
    to.data = reinterpret_cast<void*>(address);
    to.byte_offset = 0;
    to.device = {kDLCPU, 0};
    to.dtype = {kDLOpaqueHandle, bits, 1};
    to.ndim = static_cast<int>(sizes.size());
    to.shape = to.axes[0];
    to.strides = to.axes[1];
    for (std::size_t a = 0; a < sizes.size(); ++a) {
      to.axes[0][a] = nb::cast<i64>(sizes[a]);
      to.axes[1][a] = nb::cast<i64>(strides[a]);
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
class CheckedTensors {
 public:
  CheckedTensors() = default;
  CheckedTensors(const CheckedTensors&) = delete;
  CheckedTensors& operator=(const CheckedTensors&) = delete;
  ~CheckedTensors() {
    if (count_ > 0) innermost = outer_;
  }

  // Adds a tensor whose storage holds all elements. The caller keeps it alive.
  void add(nb::handle tensor, const DLTensor& exported, StoragePart part) {
    if (count_ == kMost) return;
    if (count_ == 0) outer_ = std::exchange(innermost, this);
    entries_[count_++] = {tensor.ptr(), first_element(exported), extent(exported), std::move(part)};
  }
  // Whether a tensor was added and has not changed since. A storage that a finalizer resized twice
  // may have its former address, and be smaller.
  static bool contain(nb::handle tensor, const DLTensor& exported) {
    for (const CheckedTensors* guard = innermost; guard; guard = guard->outer_) {
      for (int e = 0; e < guard->count_; ++e) {
        const Entry& entry = guard->entries_[e];
        if (entry.tensor == tensor.ptr() && entry.address == first_element(exported) &&
            entry.bytes == extent(exported) && entry.part.is_held()) {
          return true;
        }
      }
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
  static inline thread_local const CheckedTensors* innermost = nullptr;

  Entry entries_[kMost];
  int count_ = 0;
  const CheckedTensors* outer_ = nullptr;
};

}  // namespace
}  // namespace poolgrad
