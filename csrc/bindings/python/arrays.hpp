// Reads arrays: objects with the buffer protocol, or tensors of PyTorch.
#pragma once

#include "bindings/array.hpp"
#include "bindings/python/tensors.hpp"

namespace poolgrad {

// The stride of an axis in bytes. Arrays of ctypes, which are C-contiguous, state none.
inline i64 stride_of(const Py_buffer& buffer, int axis) {
  if (buffer.strides) return buffer.strides[axis];
  i64 stride = buffer.itemsize;
  for (int a = axis + 1; a < buffer.ndim; ++a) stride *= buffer.shape[a];
  return stride;
}

// Reads item size, shape and strides of a buffer. Returns why kernels cannot read it; null if they
// can. Objects that break the buffer protocol may state no shape.
inline const char* read_buffer(const Py_buffer& buffer, Array& to) {
  const bool has_axes = buffer.itemsize > 0 && buffer.ndim >= 0 && buffer.ndim <= kMaxAxes &&
                        (buffer.shape || buffer.ndim == 0) && !buffer.suboffsets;
  if (!has_axes) return "an array states no shape, or has too many axes";
  to.data = static_cast<char*>(buffer.buf);
  to.itemsize = to.type = buffer.itemsize;
  for (int a = 0; a < buffer.ndim; ++a) {
    const i64 stride = stride_of(buffer, a);
    if (stride % to.itemsize != 0) return "an array's strides are no multiples of its item size";
    to.add_axis(buffer.shape[a], stride / to.itemsize);
  }
  return nullptr;
}

// Dtype, shape and strides of an array as a Python bytes object, which is part of the key of a
// call.
inline PyObject* layout_key(const Array& array) {
  i64 numbers[1 + 2 * kMaxAxes] = {array.type};
  i64* next = std::copy_n(array.shape, array.rank, numbers + 1);
  next = std::copy_n(array.strides, array.rank, next);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(numbers),
                                   (next - numbers) * static_cast<Py_ssize_t>(sizeof(i64)));
}

}  // namespace poolgrad

namespace nanobind::detail {

// An array argument, or None: owns the buffer until the call ends; the caller owns the object. It
// is read when its value is needed, as errors may then be thrown.
template <bool Written>
struct type_caster<poolgrad::ArrayReference<Written>> : poolgrad::NonCopyable {
  using Value = poolgrad::ArrayReference<Written>;
  static constexpr auto Name = const_name("object");
  template <class T>
  using Cast = Value;
  template <class T>
  static constexpr bool can_cast() {
    return true;
  }

  ~type_caster() {
    if (owns_buffer_) PyBuffer_Release(&buffer_);
  }

  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept {
    source_ = source;
    return true;
  }

  operator Value() {
    if (source_.is_none()) return {};
    const char* refusal = nullptr;
    if (PyObject_CheckBuffer(source_.ptr())) {
      const int flags = PyBUF_STRIDES | (Written ? PyBUF_WRITABLE : 0);
      if (PyObject_GetBuffer(source_.ptr(), &buffer_, flags) != 0) throw python_error();
      owns_buffer_ = true;
      refusal = poolgrad::read_buffer(buffer_, array_);
    } else {
      const auto& reader = poolgrad::TensorReader::of(source_);
      poolgrad::require(reader.read(source_, array_), "a tensor has no memory on the CPU");
      poolgrad::StoragePart part;
      if (!poolgrad::CheckedTensors::contain(source_, array_)) {
        refusal = reader.refusal(source_, array_, part);
      }
    }
    poolgrad::require(!refusal, refusal);
    return Value(array_);
  }

 private:
  handle source_;
  Py_buffer buffer_;
  bool owns_buffer_ = false;
  poolgrad::Array array_;
};

template <bool Written>
struct has_arg_defaults<poolgrad::ArrayReference<Written>> : std::true_type {};  // may be None

}  // namespace nanobind::detail
