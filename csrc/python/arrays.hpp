// Arrays as they come from Python: an object with the buffer protocol, or a tensor that says where
// it lies (at once or, when asked, by `data_ptr()` and `stride()`). And the names of what comes as
// a word.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string_view>

#include "kernels.hpp"
#include "python/array_exchange.hpp"

namespace poolgrad {
namespace {

// A method without arguments. `name` is kept as one object of Python's, to be found at once.
inline nb::object asked(nb::handle object, PyObject* name) {
  PyObject* self = object.ptr();
  PyObject* answer = PyObject_VectorcallMethod(name, &self, 1, nullptr);
  if (!answer) throw nb::python_error();
  return nb::steal(answer);
}

// Memory that XLA holds while a kernel runs; dense, its last axis innermost. An operand is only
// read, a result only written.
struct Held {
  char* data;
  i64 itemsize;
  std::vector<i64> shape;
  bool is_result;

  i64 elements() const {
    i64 count = 1;
    for (i64 size : shape) count *= size;
    return count;
  }
};

// How a kernel uses an argument. One that is read may have any strides; one that is written is
// dense. Only an optional one may be None.
enum class Use { read, write, write_if_given };

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

// One argument while a kernel runs: its memory, shape and strides. The size of an item, the shape
// and the number of bytes are compared with the plan before a kernel sees the memory.
class Array {
 public:
  Array(Source source, Use use, std::size_t itemsize)
      : itemsize_(static_cast<i64>(itemsize)), writable_(use != Use::read) {
    if (source.is_none()) {
      if (use != Use::write_if_given) throw nb::value_error("an array is missing");
      return;
    }
    given_ = true;
    try {
      const nb::handle object = source.object();
      if (source.held()) take(*source.held());
      else if (PyObject_CheckBuffer(object.ptr())) hold(object);
      else ask(object);
      if (!data_ && elements() > 0) {
        throw nb::value_error("an array has no memory: its storage was freed");
      }
      if (reinterpret_cast<std::uintptr_t>(data_) % itemsize) {
        throw nb::value_error("an array is not aligned to the size of its items");
      }
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
    if (static_cast<std::size_t>(rank_) != shape.size()) return false;
    for (int a = 0; a < rank_; ++a) {
      if (shape_[a] != shape[static_cast<std::size_t>(a)]) return false;
    }
    return true;
  }

  // The memory of a C-contiguous array of this shape. Null if it has no elements.
  char* contiguous(const std::vector<i64>& shape) const {
    if (!given_ || !has_shape(shape)) {
      throw nb::value_error("an array has another shape than planned");
    }
    if (elements() == 0) return nullptr;
    i64 step = 1;
    for (int a = rank_; a-- > 0; step *= shape_[a]) {
      if (shape_[a] != 1 && strides_[a] != step)
        throw nb::value_error("an array is not contiguous");
    }
    return data_;
  }

  // The memory of a dense array (its axes in any order), at least so large. Null if none was given.
  char* dense(i64 bytes) const {
    if (!given_) return nullptr;
    const i64 count = elements();
    if (count * itemsize_ < bytes) throw nb::value_error("an array is smaller than planned");
    if (count > 0 && !is_dense(count)) throw nb::value_error("an array is not dense");
    return data_;
  }

 private:
  void take(const Held& held) {
    if (held.is_result != writable_) {
      throw nb::value_error(writable_ ? "an operand is written" : "a result is read");
    }
    check_itemsize(held.itemsize);
    data_ = held.data;
    const int rank = static_cast<int>(held.shape.size());
    if (rank > kMostAxes) throw nb::value_error("an array has too many axes");
    i64 step = 1;
    for (int a = rank; a-- > 0; step *= shape_[a]) {
      shape_[a] = held.shape[static_cast<std::size_t>(a)];
      strides_[a] = step;
    }
    rank_ = rank;
  }

  void hold(nb::handle source) {
    const int flags = PyBUF_STRIDES | (writable_ ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(source.ptr(), &buffer_, flags) != 0) throw nb::python_error();
    held_ = true;
    data_ = static_cast<char*>(buffer_.buf);
    check_itemsize(buffer_.itemsize);
    for (int a = 0; a < buffer_.ndim; ++a) {
      if (buffer_.strides[a] % itemsize_) {
        throw nb::value_error("an array's strides are no multiples of its item size");
      }
      add(buffer_.shape[a], buffer_.strides[a] / itemsize_);
    }
  }

  void ask(nb::handle source) {
    const Teller teller = teller_of(source.type().ptr());
    Told told;
    if (teller && tell(teller, source, told)) {
      check_itemsize(told.bits / 8 * told.lanes);
      data_ = told.first();
      for (int a = 0; a < told.rank; ++a) add(told.shape[a], told.strides[a]);
      return;
    }
    static PyObject* const data_ptr = PyUnicode_InternFromString("data_ptr");
    static PyObject* const size = PyUnicode_InternFromString("size");
    static PyObject* const stride = PyUnicode_InternFromString("stride");
    data_ = reinterpret_cast<char*>(nb::cast<std::uintptr_t>(asked(source, data_ptr)));
    const nb::tuple sizes = nb::cast<nb::tuple>(asked(source, size)),
                    strides = nb::cast<nb::tuple>(asked(source, stride));
    if (sizes.size() != strides.size()) throw nb::value_error("an array has another rank");
    for (std::size_t a = 0; a < sizes.size(); ++a) {
      add(nb::cast<i64>(sizes[a]), nb::cast<i64>(strides[a]));
    }
  }

  void add(i64 size, i64 stride) {
    if (rank_ == kMostAxes) throw nb::value_error("an array has too many axes");
    shape_[rank_] = size;
    strides_[rank_++] = stride;
  }

  void check_itemsize(i64 itemsize) const {
    if (itemsize != itemsize_) {
      throw nb::value_error("an array has items of another size than planned");
    }
  }

  i64 elements() const {
    i64 count = 1;
    for (int a = 0; a < rank_; ++a) count *= shape_[a];
    return count;
  }

  bool is_dense(i64 count) const {
    i64 behind = count - 1;  // elements behind the first, less those that the axes before reach
    for (int a = 0; a < rank_; ++a) {
      const i64 steps = shape_[a] - 1;
      if (steps == 0) continue;
      if (strides_[a] < 1 || strides_[a] > behind / steps) return false;
      behind -= strides_[a] * steps;
    }
    return behind == 0;
  }

  void release() {
    if (held_) PyBuffer_Release(&buffer_);
    held_ = false;
  }

  Py_buffer buffer_;
  bool given_ = false, held_ = false;
  char* data_ = nullptr;
  i64 itemsize_;
  bool writable_;
  int rank_ = 0;
  i64 shape_[kMostAxes], strides_[kMostAxes];
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
