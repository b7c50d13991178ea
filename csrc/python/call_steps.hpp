// Stores a recorded sequence of kernel calls and runs it with other arrays of the same layout.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

namespace nb = nanobind;

namespace poolgrad {
namespace {

class BoundCalls {
 public:
  // calls: (function, arguments) of each; holes: the placeholders in the arguments, or in a list
  // among them, for the given arrays, for the arrays that `makers` allocate and for the number of
  // threads; returned: how many of the allocated arrays are the result
  BoundCalls(const nb::tuple& calls, const nb::tuple& holes, const nb::tuple& makers,
             nb::object threads, std::size_t returned)
      : threads_(std::move(threads)), returned_(returned) {
    for (nb::handle maker : makers) makers_.push_back(nb::borrow(maker));
    if (returned < 1 || returned > makers.size()) {
      throw nb::value_error("another number of results is needed");
    }
    if (holes.size() < makers.size() + 1 || holes.size() > kMaxArguments) {
      throw nb::value_error("another number of holes is needed");
    }
    given_ = holes.size() - makers.size() - 1;
    for (nb::handle call : calls) {
      const nb::tuple both = nb::cast<nb::tuple>(call);
      const nb::tuple arguments = nb::cast<nb::tuple>(both[1]);
      if (arguments.size() > kMaxArguments) throw nb::value_error("too many arguments");
      calls_.push_back({nb::borrow(both[0]), {}});
      for (nb::handle a : arguments) calls_.back().arguments.push_back(argument(a, holes));
    }
  }

  // Returns the first of the allocated arrays, or a tuple of them if several are the result.
  nb::object run(const nb::args& given) const {
    if (given.size() != given_) throw nb::value_error("another number of arrays is needed");
    nb::object filled[kMaxArguments];
    std::size_t at = 0;
    for (nb::handle array : given) filled[at++] = nb::borrow(array);
    for (const nb::object& maker : makers_) filled[at++] = called(maker, nullptr, 0);
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
    if (returned_ == 1) return filled[given_];
    PyObject* results = PyTuple_New(static_cast<Py_ssize_t>(returned_));
    if (!results) throw nb::python_error();
    for (std::size_t m = 0; m < returned_; ++m) {
      PyTuple_SetItem(results, static_cast<Py_ssize_t>(m), filled[given_ + m].release().ptr());
    }
    return nb::steal(results);
  }

 private:
  static constexpr std::size_t kMaxArguments = 12;

  struct Argument {
    int hole = -1;
    nb::object value;  // unless it is a hole
    bool is_list = false;
    std::vector<Argument> items;
  };
  struct Call {
    nb::object function;
    std::vector<Argument> arguments;
  };

  static Argument argument(nb::handle from, const nb::tuple& holes) {
    Argument result;
    for (std::size_t h = 0; h < holes.size(); ++h) {
      if (from.is(holes[h])) result.hole = static_cast<int>(h);
    }
    if (result.hole >= 0) return result;
    result.value = nb::borrow(from);
    if (PyList_Check(from.ptr())) {
      result.is_list = true;
      for (nb::handle item : nb::borrow<nb::list>(from)) {
        result.items.push_back(argument(item, holes));
      }
    }
    return result;
  }

  static const nb::object& of(const Argument& a, const nb::object* filled) {
    return a.hole >= 0 ? filled[a.hole] : a.value;
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
  std::vector<nb::object> makers_;
  std::size_t given_ = 0, returned_;
  std::vector<Call> calls_;
};

}  // namespace
}  // namespace poolgrad
