// Reads the arguments of kernels: arrays from Python (objects with the buffer protocol, or tensors
// of PyTorch) or from XLA, and enums by name.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "bindings/python/tensors.hpp"
#include "kernels.hpp"

namespace nb = nanobind;

namespace poolgrad {
namespace {

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

// Whether a tensor is aligned to the size of its elements.
inline bool is_aligned(const DLTensor& exported) {
  const auto size = static_cast<std::uintptr_t>(element_size(exported));
  return size > 0 && reinterpret_cast<std::uintptr_t>(first_element(exported)) % size == 0;
}

// Dtype, shape and strides of a tensor.
inline PyObject* layout_key_of_tensor(const DLTensor& exported) {
  const DLDataType dtype = exported.dtype;
  LayoutKey key;
  key.add(dtype.code | dtype.bits << 8 | i64{dtype.lanes} << 16);
  for (int a = 0; a < exported.ndim; ++a) key.add(exported.shape[a]);
  for (int a = 0; a < exported.ndim; ++a) key.add(exported.strides[a]);
  return key.bytes();
}

// Whether a buffer states its axes. Objects that break the buffer protocol may state no shape.
inline bool has_axes(const Py_buffer& buffer) {
  return buffer.itemsize > 0 && buffer.ndim >= 0 && buffer.ndim <= kMaxAxes &&
         (buffer.shape || buffer.ndim == 0) && !buffer.suboffsets;
}

// The stride of an axis in bytes. Arrays of ctypes, which are C-contiguous, state none.
inline i64 stride_of(const Py_buffer& buffer, int axis) {
  if (buffer.strides) return buffer.strides[axis];
  i64 stride = buffer.itemsize;
  for (int a = axis + 1; a < buffer.ndim; ++a) stride *= buffer.shape[a];
  return stride;
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
  bool aligned = has_axes(buffer) &&
                 reinterpret_cast<std::uintptr_t>(buffer.buf) % static_cast<std::size_t>(size) == 0;
  LayoutKey key;
  key.add(size);
  for (int a = 0; aligned && a < buffer.ndim; ++a) key.add(buffer.shape[a]);
  for (int a = 0; aligned && a < buffer.ndim; ++a) {
    const i64 stride = stride_of(buffer, a);
    key.add(stride);
    aligned = stride % size == 0;
  }
  PyBuffer_Release(&buffer);
  return aligned ? key.bytes() : nullptr;
}

inline void require(bool condition, const char* message) {
  if (!condition) throw nb::value_error(message);
}

inline constexpr i64 kMaxElements = std::numeric_limits<i64>::max() / 8;  // of any dtype

// The product of two numbers that are not negative; an error if it is larger than `most`.
inline i64 product(i64 a, i64 b, i64 most = kMaxElements) {
  require(b == 0 || a <= most / b, "a size is too large");
  return a * b;
}

// A C-contiguous array that XLA owns. An operand is only read, a result only written.
struct XlaArray {
  char* data;
  i64 itemsize;
  const i64* shape;
  int rank;
  bool is_result;

  i64 bytes() const {
    i64 count = itemsize;
    for (int a = 0; a < rank; ++a) count *= shape[a];
    return count;
  }
};

// How a kernel uses an array. An array that is read may have any strides; one that is written is
// dense. Only an array of `write_if_given` may be None.
enum class Use { read, write, write_if_given };

// The origin of an array argument: a Python object (None: no array), or an array of XLA. The
// caller owns the object.
class ArraySource {
 public:
  ArraySource() = default;
  ArraySource(nb::handle object) : object_(object) {}
  ArraySource(const XlaArray& array) : xla_(&array) {}

  bool is_none() const { return !xla_ && (!object_ || object_.is_none()); }
  nb::handle object() const { return object_; }
  const XlaArray* xla() const { return xla_; }

 private:
  nb::handle object_;
  const XlaArray* xla_ = nullptr;
};

// An array argument while a kernel runs: its memory, shape and strides. The size of an element, the
// shape and the number of bytes are compared with the plan before a kernel accesses the memory.
class Array {
 public:
  Array(const ArraySource& source, Use use, std::size_t itemsize)
      : itemsize_(static_cast<i64>(itemsize)), writable_(use != Use::read) {
    if (source.is_none()) {
      require(use == Use::write_if_given, "an array is missing");
      return;
    }
    present_ = true;
    try {
      const nb::handle object = source.object();
      if (source.xla()) read_xla(*source.xla());
      else if (PyObject_CheckBuffer(object.ptr())) read_buffer(object);
      else read_tensor(object);
      require(data_ || elements_ == 0, "an array has no memory: its storage was freed");
      require(reinterpret_cast<std::uintptr_t>(data_) % itemsize == 0,
              "an array is not aligned to the size of its items");
    } catch (...) {
      release();
      throw;
    }
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { release(); }

  char* data() const { return data_; }
  int rank() const { return rank_; }
  const i64* shape() const { return shape_; }
  const i64* strides() const { return strides_; }  // in elements

  bool has_shape(const std::vector<i64>& shape) const {
    return std::equal(shape_, shape_ + rank_, shape.begin(), shape.end());
  }

  // The memory of a C-contiguous array of this shape. Null if it has no elements.
  char* contiguous(const std::vector<i64>& shape) const {
    require(present_ && has_shape(shape), "an array has another shape than planned");
    if (elements_ == 0) return nullptr;
    i64 step = 1;
    for (int a = rank_; a-- > 0; step *= shape_[a]) {
      require(shape_[a] == 1 || strides_[a] == step, "an array is not contiguous");
    }
    return data_;
  }

  // The same of any shape, of at least `bytes`.
  char* contiguous(i64 bytes) const {
    require(elements_ * itemsize_ >= bytes, "an array is smaller than planned");
    return contiguous(std::vector<i64>(shape_, shape_ + rank_));
  }

  // The memory of a dense array (its axes in any order) of at least `bytes`. Null if none was
  // given.
  char* dense(i64 bytes) const {
    if (!present_) return nullptr;
    const i64 count = elements_;
    require(count * itemsize_ >= bytes, "an array is smaller than planned");
    require(count == 0 || is_dense(count), "an array is not dense");
    return data_;
  }

 private:
  void read_xla(const XlaArray& array) {
    require(array.is_result == writable_, writable_ ? "an operand is written" : "a result is read");
    check_itemsize(array.itemsize);
    data_ = array.data;
    for (int a = 0; a < array.rank; ++a) add_axis(array.shape[a], 0);
    i64 step = 1;
    for (int a = rank_; a-- > 0; step *= shape_[a]) strides_[a] = step;
  }

  void read_buffer(nb::handle array) {
    const int flags = PyBUF_STRIDES | (writable_ ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(array.ptr(), &buffer_, flags) != 0) throw nb::python_error();
    owns_buffer_ = true;
    data_ = static_cast<char*>(buffer_.buf);
    check_itemsize(buffer_.itemsize);
    require(has_axes(buffer_), "an array states no shape, or has too many axes");
    for (int a = 0; a < buffer_.ndim; ++a) {
      const i64 stride = stride_of(buffer_, a);
      require(stride % itemsize_ == 0, "an array's strides are no multiples of its item size");
      add_axis(buffer_.shape[a], stride / itemsize_);
    }
  }

  void read_tensor(nb::handle tensor) {
    const TensorReader& reader = TensorReader::of(tensor);
    ExportedTensor exported;
    require(reader.read(tensor, exported), "a tensor has no memory on the CPU");
    check_itemsize(element_size(exported));
    if (!CheckedTensors::contain(tensor, exported)) {
      StoragePart part;
      const char* refusal = reader.refusal(tensor, exported, part);
      require(!refusal, refusal);
    }
    data_ = first_element(exported);
    for (int a = 0; a < exported.ndim; ++a) add_axis(exported.shape[a], exported.strides[a]);
  }

  void add_axis(i64 size, i64 stride) {
    require(rank_ < kMaxAxes, "an array has too many axes");
    require(!__builtin_mul_overflow(elements_, size, &elements_), "an array is too large");
    shape_[rank_] = size;
    strides_[rank_++] = stride;
  }

  void check_itemsize(i64 itemsize) const {
    require(itemsize == itemsize_, "an array has items of another size than planned");
  }

  bool is_dense(i64 count) const {
    i64 distance = count - 1;  // between first and last element, along the remaining axes
    for (int a = 0; a < rank_; ++a) {
      const i64 steps = shape_[a] - 1;
      if (steps == 0) continue;
      if (strides_[a] < 1 || strides_[a] > distance / steps) return false;
      distance -= strides_[a] * steps;
    }
    return distance == 0;
  }

  void release() {
    if (owns_buffer_) PyBuffer_Release(&buffer_);
    owns_buffer_ = false;
  }

  Py_buffer buffer_;
  bool present_ = false, owns_buffer_ = false;
  char* data_ = nullptr;
  i64 itemsize_;
  bool writable_;
  int rank_ = 0;
  i64 elements_ = 1;
  i64 shape_[kMaxAxes], strides_[kMaxAxes];
};

// The value of an enum by its name; `what` names the enum in the error.
template <class E, std::size_t N>
E value_named(const std::pair<std::string_view, E> (&values)[N], std::string_view name,
              const char* what) {
  for (const auto& [own_name, value] : values) {
    if (name == own_name) return value;
  }
  throw nb::value_error(("no such " + std::string(what) + ": " + std::string(name)).c_str());
}

inline Dtype dtype_named(std::string_view name) {
  static constexpr std::pair<std::string_view, Dtype> kDtypes[] = {
      {"float16", Dtype::float16}, {"bfloat16", Dtype::bfloat16}, {"float32", Dtype::float32},
      {"float64", Dtype::float64}, {"bool", Dtype::boolean},      {"uint8", Dtype::uint8},
      {"int8", Dtype::int8},       {"int16", Dtype::int16},       {"int32", Dtype::int32},
      {"int64", Dtype::int64},     {"uint16", Dtype::uint16},     {"uint32", Dtype::uint32},
  };
  return value_named(kDtypes, name, "dtype");
}

inline Select selection_named(std::string_view name) {
  static constexpr std::pair<std::string_view, Select> kSelections[] = {
      {"max", Select::largest},
      {"relu_max", Select::rectified},
      {"min", Select::smallest},
      {"median", Select::median},
  };
  return value_named(kSelections, name, "selection");
}

inline NonlinearOp nonlinear_op_named(std::string_view name) {
  static constexpr std::pair<std::string_view, NonlinearOp> kNonlinearOps[] = {
      {"lp", NonlinearOp::lp},     {"lp_mean", NonlinearOp::lp_mean},   {"lse", NonlinearOp::lse},
      {"soft", NonlinearOp::soft}, {"expected", NonlinearOp::expected},
  };
  return value_named(kNonlinearOps, name, "nonlinear reduction");
}

}  // namespace
}  // namespace poolgrad

namespace nanobind::detail {

template <>
struct type_caster<poolgrad::ArraySource> {
  NB_TYPE_CASTER(poolgrad::ArraySource, const_name("object"))
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    value = source;
    return true;
  }
};

// Owns the arrays of a list until the call ends: the list may be changed while a kernel runs.
template <>
struct type_caster<std::vector<poolgrad::ArraySource>> {
  NB_TYPE_CASTER(std::vector<poolgrad::ArraySource>, const_name("collections.abc.Sequence[object]"))
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    owned_ = steal(PySequence_Tuple(source.ptr()));
    if (!owned_) {
      PyErr_Clear();
      return false;
    }
    value.clear();
    for (handle array : borrow<nanobind::tuple>(owned_)) value.emplace_back(array);
    return true;
  }

 private:
  object owned_;
};

}  // namespace nanobind::detail
