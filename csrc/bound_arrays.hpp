// Arrays as they come from Python: an object with the buffer protocol, or a tensor that says where
// it lies (at once or, when asked, by `data_ptr()` and `stride()`). And the names of what comes as
// a word.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string_view>

#include "bound_exchange.hpp"
#include "kernels.hpp"

namespace poolgrad {
namespace {

// A method without arguments. `name` is kept as one object of Python's, to be found at once.
inline nb::object asked(nb::handle object, PyObject* name) {
  PyObject* self = object.ptr();
  PyObject* answer = PyObject_VectorcallMethod(name, &self, 1, nullptr);
  if (!answer) throw nb::python_error();
  return nb::steal(answer);
}

// Memory that somebody else holds while a kernel runs; it lies densely, its last axis innermost.
struct Held {
  char* data;
  i64 itemsize;
  std::vector<i64> shape;
};

// Where an argument comes from: an object of Python's, None for no memory, or what is held already.
class Source {
 public:
  Source() = default;
  Source(nb::handle object) : object_(object) {}
  Source(const Held& held) : held_(&held) {}

  bool is_none() const { return !held_ && (!object_ || object_.is_none()); }
  nb::handle object() const { return object_; }
  const Held* held() const { return held_; }

 private:
  nb::handle object_;
  const Held* held_ = nullptr;
};

// One argument while a kernel runs. Memory that is written lies densely: its strides are not asked
// for.
class Array {
 public:
  Array(Source source, bool writable, std::size_t itemsize) {
    if (source.is_none()) return;
    const nb::handle object = source.object();
    if (source.held()) take(*source.held(), static_cast<i64>(itemsize));
    else if (PyObject_CheckBuffer(object.ptr())) {
      hold(object, writable, static_cast<i64>(itemsize));
    } else {
      ask(object, writable);
    }
  }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array() { release(); }

  char* data() const { return data_; }
  int rank() const { return rank_; }
  const i64* strides() const { return strides_; }  // in elements

  // Memory to write: at least `bytes`, where the size is known.
  char* room(i64 bytes) const {
    if (size_ >= 0 && size_ < bytes)
      throw nb::value_error("an array to write is smaller than planned");
    return data_;
  }

 private:
  void take(const Held& held, i64 itemsize) {
    if (held.itemsize != itemsize) {
      throw nb::value_error("an array has items of another size than planned");
    }
    data_ = held.data;
    rank_ = static_cast<int>(held.shape.size());
    if (rank_ > kMostAxes) throw nb::value_error("an array has too many axes");
    i64 step = 1;
    for (int a = rank_; a-- > 0; step *= held.shape[static_cast<std::size_t>(a)]) {
      strides_[a] = step;
    }
    size_ = step * itemsize;
  }

  void hold(nb::handle source, bool writable, i64 itemsize) {
    const int flags = PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(source.ptr(), &buffer_, flags) != 0) throw nb::python_error();
    held_ = true;
    data_ = static_cast<char*>(buffer_.buf);
    size_ = buffer_.len;
    if (buffer_.itemsize != itemsize) {
      release();
      throw nb::value_error("an array has items of another size than planned");
    }
    for (int a = 0; a < buffer_.ndim; ++a) {
      if (buffer_.strides[a] % itemsize) {
        release();
        throw nb::value_error("an array's strides are no multiples of its item size");
      }
      add(buffer_.strides[a] / itemsize);
    }
  }

  void ask(nb::handle source, bool writable) {
    const Teller teller = teller_of(source.type().ptr());
    Told told;
    if (teller && tell(teller, source, told)) {
      data_ = told.first();
      for (int a = 0; a < told.rank; ++a) add(told.strides[a]);
      return;
    }
    static PyObject* const data_ptr = PyUnicode_InternFromString("data_ptr");
    static PyObject* const stride = PyUnicode_InternFromString("stride");
    data_ = reinterpret_cast<char*>(nb::cast<std::uintptr_t>(asked(source, data_ptr)));
    if (writable) return;
    const nb::tuple strides = nb::cast<nb::tuple>(asked(source, stride));
    for (nb::handle s : strides) add(nb::cast<i64>(s));
  }

  void add(i64 stride) {
    if (rank_ == kMostAxes) {
      release();
      throw nb::value_error("an array has too many axes");
    }
    strides_[rank_++] = stride;
  }

  void release() {
    if (held_) PyBuffer_Release(&buffer_);
    held_ = false;
  }

  Py_buffer buffer_;
  bool held_ = false;
  char* data_ = nullptr;
  i64 size_ = -1;  // -1: not known
  int rank_ = 0;
  i64 strides_[kMostAxes];
};

Dtype dtype_named(const std::string& name) {
  static const std::pair<const char*, Dtype> known[] = {
      {"float16", Dtype::float16}, {"bfloat16", Dtype::bfloat16}, {"float32", Dtype::float32},
      {"float64", Dtype::float64}, {"bool", Dtype::boolean},      {"uint8", Dtype::uint8},
      {"int8", Dtype::int8},       {"int16", Dtype::int16},       {"int32", Dtype::int32},
      {"int64", Dtype::int64},     {"uint16", Dtype::uint16},     {"uint32", Dtype::uint32},
  };
  for (const auto& [word, dtype] : known) {
    if (name == word) return dtype;
  }
  throw nb::value_error(("no such dtype: " + name).c_str());
}

Select selection_named(std::string_view name) {
  if (name == "max") return Select::largest;
  if (name == "relu_max") return Select::rectified;
  if (name == "min") return Select::smallest;
  if (name == "median") return Select::median;
  throw nb::value_error(("no such selection: " + std::string(name)).c_str());
}

Blend blend_named(std::string_view name) {
  if (name == "lp") return Blend::lp;
  if (name == "lp_mean") return Blend::lp_mean;
  if (name == "lse") return Blend::lse;
  if (name == "soft") return Blend::soft;
  if (name == "expected") return Blend::expected;
  throw nb::value_error(("no such blend: " + std::string(name)).c_str());
}

}  // namespace
}  // namespace poolgrad

namespace nanobind::detail {

template <>
struct type_caster<poolgrad::Source> {
  NB_TYPE_CASTER(poolgrad::Source, const_name("object"))
  bool from_python(handle source, std::uint8_t, cleanup_list*) noexcept {
    value = source;
    return true;
  }
};

}  // namespace nanobind::detail
