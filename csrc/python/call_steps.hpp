// Stores a recorded sequence of kernel calls and runs it with other arrays of the same layout.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

namespace nb = nanobind;

namespace poolgrad {
namespace {

class BoundCalls {
 public:
  // calls: (function, arguments) of each; placeholders: objects in the arguments, or in a list
  // among them, that stand for the arrays of run(), for the arrays that `allocators` allocate and
  // for the number of threads; returned: how many of the allocated arrays are the result
  BoundCalls(const nb::tuple& calls, const nb::tuple& placeholders, const nb::tuple& allocators,
             nb::object threads, std::size_t returned)
      : threads_(std::move(threads)), returned_(returned) {
    for (nb::handle allocator : allocators) allocators_.push_back(nb::borrow(allocator));
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
    for (const nb::object& allocator : allocators_) filled[at++] = called(allocator, nullptr, 0);
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

  static Argument argument(nb::handle from, const nb::tuple& placeholders) {
    Argument result;
    for (std::size_t h = 0; h < placeholders.size(); ++h) {
      if (from.is(placeholders[h])) result.placeholder = static_cast<int>(h);
    }
    if (result.placeholder >= 0) return result;
    result.value = nb::borrow(from);
    if (PyList_Check(from.ptr())) {
      result.is_list = true;
      for (nb::handle item : nb::borrow<nb::list>(from)) {
        result.items.push_back(argument(item, placeholders));
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
  std::vector<nb::object> allocators_;
  std::size_t array_count_ = 0, returned_;
  std::vector<Call> calls_;
};

}  // namespace
}  // namespace poolgrad
