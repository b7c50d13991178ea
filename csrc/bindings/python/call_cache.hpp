// Cache of calls: computes keys of calls from the layout of the array, the global state and all
// other arguments.
#pragma once

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <optional>

#include "bindings/python/arrays.hpp"

namespace poolgrad {

// Collects new references and returns them as a tuple.
class TupleBuilder : NonCopyable {
 public:
  TupleBuilder() = default;
  ~TupleBuilder() {
    while (count_ > 0) Py_DECREF(items_[--count_]);
  }

  // Takes a new reference; false if it is null or the tuple is full.
  bool take(PyObject* item) {
    const bool fits = item && count_ < kMaxItems;
    if (fits) items_[count_++] = item;
    else Py_XDECREF(item);
    return fits;
  }
  bool add(PyObject* item) { return take(Py_NewRef(item)); }

  nb::object tuple() {
    nb::object tuple = checked(PyTuple_New(count_));
    for (; count_ > 0; --count_) PyTuple_SetItem(tuple.ptr(), count_ - 1, items_[count_ - 1]);
    return tuple;
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
  using Objects = std::vector<nb::object>;
  using Requirements = std::vector<std::pair<nb::object, nb::object>>;

  TensorSpec(nb::type_object type, Objects parts, Requirements required, Objects global_state,
             Requirements required_state, const std::string& protocol)
      : type_(std::move(type)),
        parts_(std::move(parts)),
        global_state_(std::move(global_state)),
        required_(std::move(required)),
        required_state_(std::move(required_state)) {
    if (protocol == "by buffer") return;
    reader_.emplace(protocol == "by exchange");
    require(type_.is(reader_->type()), "this protocol is for tensors of PyTorch");
  }

  // A tuple that is equal for two calls only if they differ in nothing but the elements of the
  // array, their first argument. None if a call has no key.
  nb::object key(const nb::tuple& args, const nb::dict& kwargs) const {
    const CheckedTensors checked_tensors;
    return key_of(args, kwargs);
  }

  // Looks the key of this call up in the cache and calls the cached function with the array.
  // Returns None if the cache has no entry.
  nb::object call(const nb::dict& cache, const nb::tuple& args, const nb::dict& kwargs) const {
    const CheckedTensors checked_tensors;
    const nb::object call_key = key_of(args, kwargs);  // None is no key of the cache
    PyObject* found = PyDict_GetItemWithError(cache.ptr(), call_key.ptr());
    if (!found && PyErr_Occurred()) throw nb::python_error();
    if (!found) return nb::none();
    const nb::object function = nb::borrow(found);  // the cache may drop it during the call
    return value_of(function, args[0]);
  }

  // The parts of the key that an array determines; None if it has no key.
  nb::object parts(nb::handle array) const {
    const CheckedTensors checked_tensors;
    TupleBuilder key;
    return has_required_properties(array) && add_parts(array, key) ? key.tuple() : nb::none();
  }

  // Whether the fast path accepts this array; the size of its storage is not checked.
  bool is_supported(nb::handle array) const {
    Array read;
    return holds(required_state_) && has_required_properties(array) &&
           (!reader_ || (has_memory(array, read) && !reader_->is_negated(array)));
  }

  // Whether each array has the given key parts; None accepts any array that has a key.
  bool have_parts(const nb::tuple& arrays, const nb::tuple& parts) const {
    const CheckedTensors checked_tensors;
    return all_have_parts(arrays, parts);
  }

  // Calls the function with the arrays if each has the given key parts; returns None otherwise.
  nb::object call_with(const nb::object& function, const nb::tuple& arrays,
                       const nb::tuple& parts) const {
    const CheckedTensors checked_tensors;
    if (!all_have_parts(arrays, parts)) return nb::none();
    return checked(PyObject_CallObject(function.ptr(), arrays.ptr()));
  }

 private:
  nb::object key_of(const nb::tuple& args, const nb::dict& kwargs) const {
    TupleBuilder key;
    if (args.empty() || !has_required_properties(args[0]) || !holds(required_state_) ||
        !add_parts(args[0], key)) {
      return nb::none();
    }
    for (const nb::object& state : global_state_) {
      if (!key.take(value_of(state).release().ptr())) return nb::none();
    }
    // Keys are unambiguous: each value follows its types, and the name of an argument is not a
    // type.
    for (std::size_t a = 1; a < args.size(); ++a) {
      if (!key.take(frozen(args[a], key))) return nb::none();
    }
    PyObject *next_name = nullptr, *next_value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(kwargs.ptr(), &at, &next_name, &next_value);) {
      const nb::object name = nb::borrow(next_name), value = nb::borrow(next_value);
      if (Py_TYPE(name.ptr()) != &PyUnicode_Type || !key.add(name.ptr()) ||
          !key.take(frozen(value, key))) {
        return nb::none();
      }
    }
    return key.tuple();
  }

  // The value of a property of an array or, without one, of the global state.
  static nb::object value_of(const nb::object& property, nb::handle array = {}) {
    PyObject *const from = property.ptr(), *argument = array.ptr();
    if (argument && PyUnicode_Check(from)) return checked(PyObject_GetAttr(argument, from));
    if (PyTuple_Check(from)) {
      return checked(PyObject_GetAttr(PyTuple_GetItem(from, 0), PyTuple_GetItem(from, 1)));
    }
    return checked(PyObject_Vectorcall(from, &argument, argument ? 1 : 0, nullptr));
  }
  static bool holds(const Requirements& required, nb::handle array = {}) {
    try {
      return std::all_of(required.begin(), required.end(), [&](const auto& each) {
        return value_of(each.first, array).equal(each.second);
      });
    } catch (nb::python_error&) {
      return false;
    }
  }
  bool has_required_properties(nb::handle array) const {
    return array.type().is(type_) && holds(required_, array);
  }

  bool all_have_parts(const nb::tuple& arrays, const nb::tuple& parts) const {
    if (arrays.size() != parts.size() || !holds(required_state_)) return false;
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      if (!has_required_properties(arrays[a])) return false;
      Array read;
      TupleBuilder key;
      const bool found = parts[a].is_none()
                             ? read_array(arrays[a], read)
                             : add_parts(arrays[a], key) && key.tuple().equal(parts[a]);
      if (!found) return false;
    }
    return true;
  }

  bool add_parts(nb::handle array, TupleBuilder& key) const {
    Array read;
    return read_array(array, read) && key.take(layout_key(read)) &&
           std::all_of(parts_.begin(), parts_.end(), [&](const nb::object& part) {
             return key.take(value_of(part, array).release().ptr());
           });
  }

  // Whether the kernels can read an array: it is aligned and, if it is a tensor, its storage holds
  // all elements.
  bool read_array(nb::handle array, Array& to) const {
    if (reader_) {
      StoragePart part;
      if (!has_memory(array, to) || !to.is_aligned() || reader_->refusal(array, to, part)) {
        return false;
      }
      CheckedTensors::add(array, to, std::move(part));
      return true;
    }
    Py_buffer buffer;
    if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_STRIDES) != 0) {
      PyErr_Clear();
      return false;
    }
    const bool is_readable = !read_buffer(buffer, to) && to.is_aligned();
    PyBuffer_Release(&buffer);
    return is_readable;
  }
  // Whether a tensor has memory; placeholders (fake and meta tensors) have none.
  bool has_memory(nb::handle tensor, Array& to) const {
    return reader_->read(tensor, to) && to.data;
  }

  // A new reference to the value as part of a key, with tuples in place of lists; null for mutable
  // values other than lists. Adds the types of the value and of its items to the key, since
  // True == 1, which also ends the recursion into a list that contains itself. The caller owns the
  // value, and a list is copied: a new tuple may start the garbage collector, whose finalizers may
  // empty the list.
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
    const nb::object copy =
        is_list ? checked(PyList_AsTuple(value.ptr())) : nb::borrow<nb::object>(value);
    TupleBuilder items;
    for (Py_ssize_t i = 0; i < PyTuple_Size(copy.ptr()); ++i) {
      if (!items.take(frozen(PyTuple_GetItem(copy.ptr(), i), key))) return nullptr;
    }
    return items.tuple().release().ptr();
  }

  nb::object type_;
  std::optional<TensorReader> reader_;  // none: the buffer protocol
  Objects parts_, global_state_;
  Requirements required_, required_state_;
};

using AllocatorParts = std::tuple<nb::object, nb::tuple, nb::dict>;  // function, arguments

// A call that allocates an array.
class Allocator {
 public:
  explicit Allocator(const AllocatorParts& parts)
      : function_(std::get<0>(parts)),
        arguments_(std::get<1>(parts)),
        keywords_(checked(PyDict_Copy(std::get<2>(parts).ptr()))),
        tensors_(TensorReader::allocated_by(function_)) {}

  // Adds a new tensor to the checked ones: its storage holds all its elements.
  nb::object call() const {
    nb::object array = checked(PyObject_Call(function_.ptr(), arguments_.ptr(), keywords_.ptr()));
    Array read;
    if (tensors_ && array.type().is(tensors_->type()) && tensors_->read(array, read)) {
      CheckedTensors::add(array, read, {});
    }
    return array;
  }

 private:
  nb::object function_, arguments_, keywords_;
  const TensorReader* tensors_;  // null if the function allocates other arrays
};

// A recorded sequence of kernel calls, which is run with other arrays of the same layout.
class BoundCalls {
 public:
  using Calls = std::vector<std::pair<nb::object, nb::tuple>>;

  // calls: (function, arguments) of each; placeholders: objects among the arguments that stand for
  // the arrays of run(), for the arrays that `allocators` allocate and for the number of threads;
  // returned: how many of the allocated arrays are the result
  BoundCalls(const Calls& calls, const nb::tuple& placeholders,
             const std::vector<AllocatorParts>& allocators, nb::object threads,
             std::size_t returned)
      : threads_(std::move(threads)),
        allocators_(allocators.begin(), allocators.end()),
        returned_(returned) {
    require(returned >= 1 && returned <= allocators.size(), "another number of results is needed");
    require(placeholders.size() > allocators.size() && placeholders.size() <= kMaxArguments,
            "another number of placeholders is needed");
    array_count_ = placeholders.size() - allocators.size() - 1;
    for (const auto& [function, arguments] : calls) {
      require(arguments.size() <= kMaxArguments, "too many arguments");
      calls_.push_back({function, {}});
      for (nb::handle value : arguments) {
        std::size_t at = 0;
        while (at < placeholders.size() && !value.is(placeholders[at])) ++at;
        calls_.back().arguments.push_back({at, nb::borrow(value)});
      }
    }
  }

  // Returns the first of the allocated arrays, or a tuple of them if several are the result.
  nb::object run(const nb::args& arrays) const {
    require(arrays.size() == array_count_, "another number of arrays is needed");
    nb::object filled[kMaxArguments];
    std::size_t at = 0;
    for (nb::handle array : arrays) filled[at++] = nb::borrow(array);
    const CheckedTensors checked_tensors;
    for (const Allocator& allocator : allocators_) filled[at++] = allocator.call();
    filled[at] = checked(PyObject_CallNoArgs(threads_.ptr()));
    for (const Call& call : calls_) {
      PyObject* arguments[kMaxArguments];
      std::size_t count = 0;
      for (const Argument& each : call.arguments) {
        arguments[count++] = (each.placeholder <= at ? filled[each.placeholder] : each.value).ptr();
      }
      checked(PyObject_Vectorcall(call.function.ptr(), arguments, count, nullptr));
    }
    if (returned_ == 1) return filled[array_count_];
    TupleBuilder results;
    for (std::size_t m = 0; m < returned_; ++m) results.add(filled[array_count_ + m].ptr());
    return results.tuple();
  }

 private:
  static constexpr std::size_t kMaxArguments = 12;

  struct Argument {
    std::size_t placeholder;  // its index; the number of placeholders if it is none
    nb::object value;
  };
  struct Call {
    nb::object function;
    std::vector<Argument> arguments;
  };

  nb::object threads_;
  std::vector<Allocator> allocators_;
  std::size_t array_count_ = 0, returned_;
  std::vector<Call> calls_;
};

}  // namespace poolgrad
