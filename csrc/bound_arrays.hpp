// Arrays as they come from Python: an object with the buffer protocol, or a pair (address, strides
// in elements). And the names of what comes as a word.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "kernels.hpp"

namespace nb = nanobind;

namespace poolgrad {
namespace {

using Strides = std::vector<i64>;

// One argument, held while a kernel runs; None is no memory.
class Array {
 public:
  Array(nb::handle source, bool writable, std::size_t itemsize) {
    if (source.is_none()) return;
    if (PyTuple_Check(source.ptr())) {
      const nb::tuple pair = nb::borrow<nb::tuple>(source);
      if (pair.size() != 2) throw nb::type_error("an array is (address, strides)");
      data_ = reinterpret_cast<char*>(nb::cast<std::uintptr_t>(pair[0]));
      const nb::tuple strides = nb::cast<nb::tuple>(pair[1]);
      for (nb::handle s : strides) strides_.push_back(nb::cast<i64>(s));
      return;
    }
    const int flags = PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(source.ptr(), &buffer_, flags) != 0) throw nb::python_error();
    held_ = true;
    data_ = static_cast<char*>(buffer_.buf);
    size_ = buffer_.len;
    const i64 size = static_cast<i64>(itemsize);
    if (buffer_.itemsize != static_cast<Py_ssize_t>(itemsize)) {
      release();
      throw nb::value_error("an array has items of another size than planned");
    }
    for (int a = 0; a < buffer_.ndim; ++a) {
      if (buffer_.strides[a] % size) {
        release();
        throw nb::value_error("an array's strides are no multiples of its item size");
      }
      strides_.push_back(buffer_.strides[a] / size);
    }
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { release(); }

  char* data() const { return data_; }
  const Strides& strides() const { return strides_; }

  // Memory to write: at least `bytes`, where the size is known.
  char* room(i64 bytes) const {
    if (held_ && size_ < bytes) throw nb::value_error("an array to write is smaller than planned");
    return data_;
  }

 private:
  void release() {
    if (held_) PyBuffer_Release(&buffer_);
    held_ = false;
  }

  Py_buffer buffer_{};
  bool held_ = false;
  char* data_ = nullptr;
  i64 size_ = 0;
  Strides strides_;
};

Dtype dtype_named(const std::string& name) {
  static const std::pair<const char*, Dtype> known[] = {
      {"float16", Dtype::float16}, {"bfloat16", Dtype::bfloat16}, {"float32", Dtype::float32},
      {"float64", Dtype::float64}, {"bool", Dtype::boolean},      {"uint8", Dtype::uint8},
      {"int8", Dtype::int8},       {"int16", Dtype::int16},       {"int32", Dtype::int32},
      {"int64", Dtype::int64},
  };
  for (const auto& [word, dtype] : known) {
    if (name == word) return dtype;
  }
  throw nb::value_error(("no such dtype: " + name).c_str());
}

Select selection_named(const std::string& name) {
  if (name == "max") return Select::largest;
  if (name == "min") return Select::smallest;
  if (name == "median") return Select::median;
  throw nb::value_error(("no such selection: " + name).c_str());
}

Blend blend_named(const std::string& name) {
  if (name == "lp") return Blend::lp;
  if (name == "lp_mean") return Blend::lp_mean;
  if (name == "lse") return Blend::lse;
  if (name == "soft") return Blend::soft;
  if (name == "expected") return Blend::expected;
  throw nb::value_error(("no such blend: " + name).c_str());
}

}  // namespace
}  // namespace poolgrad
