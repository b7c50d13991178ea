// Cache keys of calls: the layout and state of the array, and all other arguments.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <vector>

#include "python/array_exchange.hpp"

namespace poolgrad {
namespace {

// Collects new references and makes a tuple of them.
class TupleBuilder {
 public:
  TupleBuilder() = default;
  TupleBuilder(const TupleBuilder&) = delete;
  TupleBuilder& operator=(const TupleBuilder&) = delete;
  ~TupleBuilder() {
    while (count_ > 0) Py_DECREF(items_[--count_]);
  }

  // Takes a new reference; false if it is null or the tuple is full.
  bool take(PyObject* item) {
    if (!item) return false;
    if (count_ == kMost) {
      Py_DECREF(item);
      return false;
    }
    items_[count_++] = item;
    return true;
  }
  bool add(PyObject* item) { return take(Py_NewRef(item)); }

  nb::object tuple() {
    PyObject* tuple = PyTuple_New(count_);
    if (!tuple) throw nb::python_error();
    while (count_ > 0) {
      --count_;
      PyTuple_SetItem(tuple, count_, items_[count_]);
    }
    return nb::steal(tuple);
  }

 private:
  static constexpr int kMost = 128;
  PyObject* items_[kMost];
  int count_ = 0;
};

// Computes the keys of calls whose first argument is an array of one type. A property of an array
// is the name of an attribute or a function of the array; one of the global state is a function
// without arguments.
//
// - parts: properties of the array that are part of the key; modes: those of the global state.
// - plain: (property of the array, required value): a call with another value, or an error, has no
//   key; quiet: (property of the global state, required value).
// - told: how the layout of an array is read, which is the first part of the key: "by exchange"
//   (DLPack) or "by buffer"; None: by `parts`.
class TensorSpec {
 public:
  TensorSpec(nb::type_object type, const nb::tuple& parts, const nb::tuple& plain,
             const nb::tuple& modes, const nb::tuple& quiet, const std::optional<std::string>& told)
      : type_(std::move(type)), parts_(list_of(parts)), modes_(list_of(modes)) {
    has_buffer_ = told == "by buffer";
    if (told == "by exchange") export_ = export_function_of(type_.ptr());
    if (told && !has_buffer_ && !export_) throw nb::type_error("arrays of this type do not say so");
    for (nb::handle pair : plain) plain_.push_back(requirement(pair));
    for (nb::handle pair : quiet) quiet_.push_back(requirement(pair));
  }

  // A tuple that is equal for two calls only if they differ in nothing but the elements of the
  // array, their first argument. None if a call has no key.
  nb::object key(const nb::tuple& args, const nb::dict& kwargs) const {
    if (args.empty() || !is_plain(args[0]) || !is_quiet()) return nb::none();
    TupleBuilder key;
    if (!add_parts(args[0], key)) return nb::none();
    for (const nb::object& mode : modes_) {
      if (!key.take(value_of(mode).release().ptr())) return nb::none();
    }
    // Each value follows its types, and the name of an argument is no type: keys are unambiguous.
    for (std::size_t a = 1; a < args.size(); ++a) {
      if (!add_value(args[a], key)) return nb::none();
    }
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(kwargs.ptr(), &at, &name, &value);) {
      if (Py_TYPE(name) != &PyUnicode_Type || !key.add(name) || !add_value(value, key)) {
        return nb::none();
      }
    }
    return key.tuple();
  }

  // Calls the function that the cache has for the key of this call, with the array; None if it has
  // none.
  nb::object call(const nb::dict& kept, const nb::tuple& args, const nb::dict& kwargs) const {
    nb::object own = key(args, kwargs);
    if (own.is_none()) return own;
    PyObject* found = PyDict_GetItemWithError(kept.ptr(), own.ptr());
    if (!found && PyErr_Occurred()) throw nb::python_error();
    if (!found) return nb::none();
    const nb::object function = nb::borrow(found);  // lives on if the cache drops it meanwhile
    return value_of(function, args[0]);
  }

  // The parts of the key that an array determines; None if it has no key.
  nb::object parts(nb::handle array) const {
    TupleBuilder key;
    return is_plain(array) && add_parts(array, key) ? key.tuple() : nb::none();
  }

  // Whether each array has these parts of a key or, where they are None, has any.
  bool hold(const nb::tuple& arrays, const nb::tuple& parts) const {
    if (arrays.size() != parts.size() || !is_quiet()) return false;
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      if (!is_plain(arrays[a])) return false;
      if (!has_parts(arrays[a], parts[a])) return false;
    }
    return true;
  }

 private:
  struct Requirement {
    nb::object property, value;
  };

  static std::vector<nb::object> list_of(const nb::tuple& from) {
    std::vector<nb::object> list;
    for (nb::handle item : from) list.push_back(nb::borrow(item));
    return list;
  }
  static Requirement requirement(nb::handle pair) {
    const nb::tuple both = nb::cast<nb::tuple>(pair);
    return {nb::borrow(both[0]), nb::borrow(both[1])};
  }

  static nb::object checked(PyObject* value) {
    if (!value) throw nb::python_error();
    return nb::steal(value);
  }
  static nb::object value_of(const nb::object& property, nb::handle array) {
    if (PyUnicode_Check(property.ptr())) {
      return checked(PyObject_GetAttr(array.ptr(), property.ptr()));
    }
    PyObject* argument = array.ptr();
    return checked(PyObject_Vectorcall(property.ptr(), &argument, 1, nullptr));
  }
  static nb::object value_of(const nb::object& property) {
    return checked(PyObject_CallNoArgs(property.ptr()));
  }
  static bool fulfils(nb::handle array, const Requirement& requirement) {
    try {
      return equal(value_of(requirement.property, array), requirement.value);
    } catch (nb::python_error&) {
      return false;
    }
  }
  static bool equal(const nb::object& a, nb::handle b) {
    if (a.is(b)) return true;
    const int result = PyObject_RichCompareBool(a.ptr(), b.ptr(), Py_EQ);
    if (result < 0) throw nb::python_error();
    return result == 1;
  }

  bool add_parts(nb::handle array, TupleBuilder& key) const {
    if (has_buffer_ && !key.take(layout_key_of_buffer(array))) return false;
    if (export_ && !key.take(layout_key_of_tensor(export_, array))) return false;
    for (const nb::object& part : parts_) {
      if (!key.take(value_of(part, array).release().ptr())) return false;
    }
    return true;
  }
  bool has_parts(nb::handle array, nb::handle expected) const {
    DLTensor exported;
    if (expected.is_none()) return !export_ || export_tensor(export_, array, exported);
    TupleBuilder key;
    return add_parts(array, key) && equal(key.tuple(), expected);
  }

  bool is_plain(nb::handle array) const {
    if (reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) != type_.ptr()) return false;
    return std::all_of(plain_.begin(), plain_.end(),
                       [&](const Requirement& each) { return fulfils(array, each); });
  }
  bool is_quiet() const {
    return std::all_of(quiet_.begin(), quiet_.end(), [](const Requirement& each) {
      return equal(value_of(each.property), each.value);
    });
  }

  // Adds the types (of a tuple: also those of its items) and the value, since True == 1. False if
  // the value is mutable.
  static bool add_value(nb::handle value, TupleBuilder& key) {
    return add_types(value, key) && key.add(value.ptr());
  }
  static bool add_types(nb::handle value, TupleBuilder& key) {
    PyTypeObject* type = Py_TYPE(value.ptr());
    if (!key.add(reinterpret_cast<PyObject*>(type))) return false;
    if (type == &PyLong_Type || type == &PyBool_Type || type == &PyUnicode_Type) return true;
    if (value.is_none()) return true;
    if (type != &PyTuple_Type) return false;
    for (nb::handle item : nb::borrow<nb::tuple>(value)) {
      if (!add_types(item, key)) return false;
    }
    return true;
  }

  nb::object type_;
  DLTensorExport export_ = nullptr;
  bool has_buffer_ = false;
  std::vector<nb::object> parts_, modes_;
  std::vector<Requirement> plain_, quiet_;
};

}  // namespace
}  // namespace poolgrad
