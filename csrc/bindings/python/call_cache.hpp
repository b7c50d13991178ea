// Cache of calls: computes keys of calls from the layout of the array, the global state and all
// other arguments.
#pragma once

#include <nanobind/stl/string.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/python/arrays.hpp"

namespace poolgrad {
namespace {

// Collects new references and returns them as a tuple.
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
    if (count_ == kMaxItems) {
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
  static constexpr int kMaxItems = 128;
  PyObject* items_[kMaxItems];
  int count_ = 0;
};

// Computes the keys of calls whose first argument is an array of one type. A property of an array
// is the name of an attribute or a function of the array; one of the global state is a function
// without arguments, or a pair of an object and the name of its attribute.
//
// - parts: properties of the array that are part of the key; global_state: those of the global
//   state.
// - required: (property of the array, required value): a call with another value, or an error, has
//   no key; required_state: (property of the global state, required value).
// - protocol: how the layout of an array is read, which is the first part of the key: "by buffer",
//   or, of tensors of PyTorch, "by exchange" (DLPack) or "by attributes", where the dtype must be
//   among `parts`. A tensor whose storage does not hold all its elements has no key.
class TensorSpec {
 public:
  TensorSpec(nb::type_object type, const nb::tuple& parts, const nb::tuple& required,
             const nb::tuple& global_state, const nb::tuple& required_state,
             const std::string& protocol)
      : type_(std::move(type)), parts_(list_of(parts)), global_state_(list_of(global_state)) {
    if (protocol == "by exchange" || protocol == "by attributes") {
      reader_.emplace(protocol == "by exchange");
      require(type_.is(reader_->type()), "this protocol is for tensors of PyTorch");
    } else {
      require(protocol == "by buffer", "no such protocol");
    }
    for (nb::handle pair : required) required_.push_back(requirement(pair));
    for (nb::handle pair : required_state) required_state_.push_back(requirement(pair));
  }

  // A tuple that is equal for two calls only if they differ in nothing but the elements of the
  // array, their first argument. None if a call has no key.
  nb::object key(const nb::tuple& args, const nb::dict& kwargs) const {
    CheckedTensors checked_tensors;
    return key_of(args, kwargs, checked_tensors);
  }

  // Looks the key of this call up in the cache and calls the cached function with the array.
  // Returns None if the cache has no entry.
  nb::object call(const nb::dict& cache, const nb::tuple& args, const nb::dict& kwargs) const {
    CheckedTensors checked_tensors;
    nb::object call_key = key_of(args, kwargs, checked_tensors);
    if (call_key.is_none()) return call_key;
    PyObject* found = PyDict_GetItemWithError(cache.ptr(), call_key.ptr());
    if (!found && PyErr_Occurred()) throw nb::python_error();
    if (!found) return nb::none();
    const nb::object function = nb::borrow(found);  // the cache may drop it during the call
    return value_of(function, args[0]);
  }

  // The parts of the key that an array determines; None if it has no key.
  nb::object parts(nb::handle array) const {
    TupleBuilder key;
    CheckedTensors checked_tensors;
    return has_required_properties(array) && add_parts(array, key, checked_tensors) ? key.tuple()
                                                                                    : nb::none();
  }

  // Whether the fast path accepts this array; the size of its storage is not checked.
  bool is_supported(nb::handle array) const {
    ExportedTensor exported;
    return has_required_state() && has_required_properties(array) &&
           (!reader_ || (has_memory(array, exported) && !reader_->is_negated(array)));
  }

  // Whether each array has the given key parts; None accepts any array that has a key.
  bool have_parts(const nb::tuple& arrays, const nb::tuple& parts) const {
    CheckedTensors checked_tensors;
    return all_have_parts(arrays, parts, checked_tensors);
  }

  // Calls the function with the arrays if each has the given key parts; returns None otherwise.
  nb::object call_with(const nb::object& function, const nb::tuple& arrays,
                       const nb::tuple& parts) const {
    CheckedTensors checked_tensors;
    if (!all_have_parts(arrays, parts, checked_tensors)) return nb::none();
    return checked(PyObject_CallObject(function.ptr(), arrays.ptr()));
  }

 private:
  nb::object key_of(const nb::tuple& args, const nb::dict& kwargs,
                    CheckedTensors& checked_tensors) const {
    if (args.empty() || !has_required_properties(args[0]) || !has_required_state())
      return nb::none();
    TupleBuilder key;
    if (!add_parts(args[0], key, checked_tensors)) return nb::none();
    for (const nb::object& state : global_state_) {
      if (!key.take(value_of(state).release().ptr())) return nb::none();
    }
    // Keys are unambiguous: each value follows its types, and the name of an argument is not a
    // type.
    for (std::size_t a = 1; a < args.size(); ++a) {
      if (!add_value(args[a], key)) return nb::none();
    }
    PyObject *next_name = nullptr, *next_value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(kwargs.ptr(), &at, &next_name, &next_value);) {
      const nb::object name = nb::borrow(next_name), value = nb::borrow(next_value);
      if (Py_TYPE(name.ptr()) != &PyUnicode_Type || !key.add(name.ptr()) ||
          !add_value(value, key)) {
        return nb::none();
      }
    }
    return key.tuple();
  }

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

  static nb::object value_of(const nb::object& property, nb::handle array) {
    if (PyUnicode_Check(property.ptr())) {
      return checked(PyObject_GetAttr(array.ptr(), property.ptr()));
    }
    PyObject* argument = array.ptr();
    return checked(PyObject_Vectorcall(property.ptr(), &argument, 1, nullptr));
  }
  static nb::object value_of(const nb::object& property) {
    if (!PyTuple_Check(property.ptr())) return checked(PyObject_CallNoArgs(property.ptr()));
    PyObject* const pair = property.ptr();
    return checked(PyObject_GetAttr(PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1)));
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

  bool all_have_parts(const nb::tuple& arrays, const nb::tuple& parts,
                      CheckedTensors& checked_tensors) const {
    if (arrays.size() != parts.size() || !has_required_state()) return false;
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      if (!has_required_properties(arrays[a])) return false;
      if (!has_parts(arrays[a], parts[a], checked_tensors)) return false;
    }
    return true;
  }

  bool add_parts(nb::handle array, TupleBuilder& key, CheckedTensors& checked_tensors) const {
    if (reader_ ? !add_tensor(array, &key, checked_tensors)
                : !key.take(layout_key_of_buffer(array))) {
      return false;
    }
    for (const nb::object& part : parts_) {
      if (!key.take(value_of(part, array).release().ptr())) return false;
    }
    return true;
  }
  bool has_parts(nb::handle array, nb::handle expected, CheckedTensors& checked_tensors) const {
    if (expected.is_none()) return !reader_ || add_tensor(array, nullptr, checked_tensors);
    TupleBuilder key;
    return add_parts(array, key, checked_tensors) && equal(key.tuple(), expected);
  }

  // Whether the kernels can read a tensor: it is aligned, and its storage holds all elements. Adds
  // its layout to the key, if there is one.
  bool add_tensor(nb::handle tensor, TupleBuilder* key, CheckedTensors& checked_tensors) const {
    ExportedTensor exported;
    if (!has_memory(tensor, exported) || !is_aligned(exported)) return false;
    StoragePart part;
    if (reader_->refusal(tensor, exported, part)) return false;
    checked_tensors.add(tensor, exported, std::move(part));
    return !key || key->take(layout_key_of_tensor(exported));
  }
  // Whether a tensor has memory; placeholders (fake and meta tensors) have none.
  bool has_memory(nb::handle tensor, ExportedTensor& exported) const {
    return reader_->read(tensor, exported) && exported.data;
  }

  bool has_required_properties(nb::handle array) const {
    if (reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) != type_.ptr()) return false;
    return std::all_of(required_.begin(), required_.end(),
                       [&](const Requirement& each) { return fulfils(array, each); });
  }
  bool has_required_state() const {
    return std::all_of(required_state_.begin(), required_state_.end(), [](const Requirement& each) {
      return equal(value_of(each.property), each.value);
    });
  }

  // Adds the types of the value and of its items, since True == 1, and then the value, with tuples
  // in place of lists. Returns false for mutable values other than lists.
  static bool add_value(nb::handle value, TupleBuilder& key) {
    return key.take(frozen(value, key));
  }
  // A new reference to the value as part of a key, null if it has none. Adds the types to the key,
  // which ends the recursion into a list that contains itself. The caller owns the value: a new
  // tuple may start the garbage collector, whose finalizers may empty the list that holds it.
  static PyObject* frozen(nb::handle value, TupleBuilder& key) {
    PyTypeObject* const type = Py_TYPE(value.ptr());
    if (!key.add(reinterpret_cast<PyObject*>(type))) return nullptr;
    if (type == &PyLong_Type || type == &PyBool_Type || type == &PyUnicode_Type ||
        value.is_none()) {
      return Py_NewRef(value.ptr());
    }
    if (type == &PyFloat_Type) {  // by its bits: 0.0 == -0.0
      const auto bits = std::bit_cast<std::uint64_t>(PyFloat_AsDouble(value.ptr()));
      return checked(PyLong_FromUnsignedLongLong(bits)).release().ptr();
    }
    const bool is_list = type == &PyList_Type;
    if (!is_list && !PyTuple_Check(value.ptr())) return nullptr;
    TupleBuilder items;
    const Py_ssize_t count = is_list ? PyList_Size(value.ptr()) : PyTuple_Size(value.ptr());
    for (Py_ssize_t i = 0; i < count; ++i) {
      const nb::object item =
          nb::borrow(is_list ? PyList_GetItem(value.ptr(), i) : PyTuple_GetItem(value.ptr(), i));
      if (!item) {  // the list has been shortened
        PyErr_Clear();
        return nullptr;
      }
      if (!items.take(frozen(item, key))) return nullptr;
    }
    return items.tuple().release().ptr();
  }

  nb::object type_;
  std::optional<TensorReader> reader_;  // none: the buffer protocol
  std::vector<nb::object> parts_, global_state_;
  std::vector<Requirement> required_, required_state_;
};

// A function without arguments that allocates an array.
class Allocator {
 public:
  // A `functools.partial` is taken apart: its own calls copy its keywords, and its members can be
  // replaced.
  explicit Allocator(nb::handle function) : function_(nb::borrow(function)) {
    if (!function.type().is(partial())) return;
    function_ = function.attr("func");
    arguments_ = nb::cast<nb::tuple>(function.attr("args"));
    const nb::object keywords = function.attr("keywords");
    keywords_ = checked(PyDict_Copy(keywords.ptr()));
    if (TensorReader::is_allocation(function_)) tensors_ = TensorReader::usual();
  }

  // Adds a new tensor to the checked ones: its storage holds all its elements.
  nb::object call(CheckedTensors& checked_tensors) const {
    if (!arguments_) return checked(PyObject_CallNoArgs(function_.ptr()));
    nb::object array = checked(PyObject_Call(function_.ptr(), arguments_.ptr(), keywords_.ptr()));
    ExportedTensor exported;
    if (tensors_ && tensors_->is_plain(array) && tensors_->read(array, exported)) {
      checked_tensors.add(array, exported, {});
    }
    return array;
  }

 private:
  // Kept until the process ends. Not initialised by an import, which may run Python code: other
  // threads, and calls of that code, would wait for the initialisation with the GIL.
  static nb::handle partial() {
    static PyObject* type = nullptr;
    if (!type) {
      const nb::object found = nb::module_::import_("functools").attr("partial");
      type = Py_NewRef(found.ptr());
    }
    return type;
  }

  nb::object function_, arguments_, keywords_;
  const TensorReader* tensors_ = nullptr;  // unless the function allocates other arrays
};

// A recorded sequence of kernel calls, which is run with other arrays of the same layout.
class BoundCalls {
 public:
  // calls: (function, arguments) of each; placeholders: objects in the arguments, or in a list
  // among them, that stand for the arrays of run(), for the arrays that `allocators` allocate and
  // for the number of threads; returned: how many of the allocated arrays are the result
  BoundCalls(const nb::tuple& calls, const nb::tuple& placeholders, const nb::tuple& allocators,
             nb::object threads, std::size_t returned)
      : threads_(std::move(threads)), returned_(returned) {
    for (nb::handle allocator : allocators) allocators_.emplace_back(allocator);
    if (returned < 1 || returned > allocators.size()) {
      throw nb::value_error("another number of results is needed");
    }
    if (placeholders.size() < allocators.size() + 1 || placeholders.size() > kMaxArguments) {
      throw nb::value_error("another number of placeholders is needed");
    }
    array_count_ = placeholders.size() - allocators.size() - 1;
    for (nb::handle call : calls) {
      const nb::tuple both = nb::cast<nb::tuple>(call);
      const nb::tuple arguments = nb::cast<nb::tuple>(both[1]);
      if (arguments.size() > kMaxArguments) throw nb::value_error("too many arguments");
      calls_.push_back({nb::borrow(both[0]), {}});
      for (nb::handle a : arguments) calls_.back().arguments.push_back(argument(a, placeholders));
    }
  }

  // Returns the first of the allocated arrays, or a tuple of them if several are the result.
  nb::object run(const nb::args& arrays) const {
    if (arrays.size() != array_count_) throw nb::value_error("another number of arrays is needed");
    nb::object filled[kMaxArguments];
    std::size_t at = 0;
    for (nb::handle array : arrays) filled[at++] = nb::borrow(array);
    CheckedTensors checked_tensors;
    for (const Allocator& allocator : allocators_) {
      filled[at++] = allocator.call(checked_tensors);
    }
    filled[at] = called(threads_, nullptr, 0);
    for (const Call& call : calls_) {
      nb::object lists[kMaxArguments];
      PyObject* arguments[kMaxArguments];
      std::size_t count = 0;
      for (const Argument& a : call.arguments) {
        if (a.is_list) lists[count] = list_of(a, filled);
        arguments[count] = a.is_list ? lists[count].ptr() : of(a, filled).ptr();
        ++count;
      }
      called(call.function, arguments, count);
    }
    if (returned_ == 1) return filled[array_count_];
    PyObject* results = PyTuple_New(static_cast<Py_ssize_t>(returned_));
    if (!results) throw nb::python_error();
    for (std::size_t m = 0; m < returned_; ++m) {
      PyTuple_SetItem(results, static_cast<Py_ssize_t>(m),
                      filled[array_count_ + m].release().ptr());
    }
    return nb::steal(results);
  }

 private:
  static constexpr std::size_t kMaxArguments = 12;

  // An argument: a placeholder, a value, or a list of both.
  struct Argument {
    int placeholder = -1;
    nb::object value;  // unless it is a placeholder
    bool is_list = false;
    std::vector<Argument> items;
  };
  struct Call {
    nb::object function;
    std::vector<Argument> arguments;
  };

  static Argument argument(nb::handle from, const nb::tuple& placeholders, bool is_item = false) {
    Argument result;
    for (std::size_t h = 0; h < placeholders.size(); ++h) {
      if (from.is(placeholders[h])) result.placeholder = static_cast<int>(h);
    }
    if (result.placeholder >= 0) return result;
    result.value = nb::borrow(from);
    if (PyList_Check(from.ptr())) {
      result.is_list = true;
      if (is_item) throw nb::value_error("a list among the arguments contains a list");
      for (nb::handle item : nb::borrow<nb::list>(from)) {
        result.items.push_back(argument(item, placeholders, true));
      }
    }
    return result;
  }

  static const nb::object& of(const Argument& a, const nb::object* filled) {
    return a.placeholder >= 0 ? filled[a.placeholder] : a.value;
  }
  static nb::object list_of(const Argument& a, const nb::object* filled) {
    nb::list list;
    for (const Argument& item : a.items) list.append(of(item, filled));
    return list;
  }

  static nb::object called(const nb::object& function, PyObject* const* arguments,
                           std::size_t count) {
    PyObject* result = PyObject_Vectorcall(function.ptr(), arguments, count, nullptr);
    if (!result) throw nb::python_error();
    return nb::steal(result);
  }

  nb::object threads_;
  std::vector<Allocator> allocators_;
  std::size_t array_count_ = 0, returned_;
  std::vector<Call> calls_;
};

}  // namespace
}  // namespace poolgrad
