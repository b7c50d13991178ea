// What tells one call from another: what a framework says of its array, and all other arguments.
#pragma once

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <vector>

#include "python/array_exchange.hpp"

namespace poolgrad {
namespace {

// New references, few, to become a tuple.
class Parts {
 public:
  Parts() = default;
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() {
    while (count_ > 0) Py_DECREF(part_[--count_]);
  }

  // False if it is null, or there is no more room.
  bool take(PyObject* part) {
    if (!part) return false;
    if (count_ == kMost) {
      Py_DECREF(part);
      return false;
    }
    part_[count_++] = part;
    return true;
  }
  bool add(PyObject* part) { return take(Py_NewRef(part)); }

  nb::object tuple() {
    PyObject* made = PyTuple_New(count_);
    if (!made) throw nb::python_error();
    while (count_ > 0) {
      --count_;
      PyTuple_SetItem(made, count_, part_[count_]);
    }
    return nb::steal(made);
  }

 private:
  static constexpr int kMost = 128;
  PyObject* part_[kMost];
  int count_ = 0;
};

// The arrays of one type. A question is the name of an attribute or a function of the array, or,
// where it is about the state that everything is in, a function of nothing.
// parts: questions of the array, whose answers tell kinds apart; modes: the same of the state
// plain: (question of the array, answer): with another one, or with an error, it is of no kind
// quiet: (question of the state, answer)
// told: whether arrays say where they lie ("by exchange", "by buffer"), which is then the first
// part of their kind; None: they are asked for it
class Kind {
 public:
  Kind(nb::type_object type, const nb::tuple& parts, const nb::tuple& plain, const nb::tuple& modes,
       const nb::tuple& quiet, std::optional<std::string> told)
      : type_(std::move(type)), parts_(listed(parts)), modes_(listed(modes)) {
    buffer_ = told == "by buffer";
    if (told == "by exchange") teller_ = teller_of(type_.ptr());
    if (told && !buffer_ && !teller_) throw nb::type_error("arrays of this type do not say so");
    for (nb::handle pair : plain) plain_.push_back(expected(pair));
    for (nb::handle pair : quiet) quiet_.push_back(expected(pair));
  }

  // A tuple that is equal for two calls only if they do the same to arrays that differ in their
  // numbers; the first argument is the array. None if there is none.
  nb::object key(nb::tuple args, nb::dict kwargs) const {
    if (args.size() == 0 || !is_plain(args[0]) || !is_quiet()) return nb::none();
    Parts parts;
    if (!add_parts(args[0], parts)) return nb::none();
    for (const nb::object& mode : modes_) {
      if (!parts.take(answer(mode).release().ptr())) return nb::none();
    }
    // A value follows its types, and a name is no type: so it is clear what is what.
    for (std::size_t a = 1; a < args.size(); ++a) {
      if (!add_value(args[a], parts)) return nb::none();
    }
    PyObject *name = nullptr, *value = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(kwargs.ptr(), &at, &name, &value);) {
      if (Py_TYPE(name) != &PyUnicode_Type || !parts.add(name) || !add_value(value, parts)) {
        return nb::none();
      }
    }
    return parts.tuple();
  }

  // What the function that is kept under the key makes of the array; None if none is kept.
  nb::object call(nb::dict kept, nb::tuple args, nb::dict kwargs) const {
    const nb::object own = key(args, kwargs);
    if (own.is_none()) return own;
    PyObject* found = PyDict_GetItemWithError(kept.ptr(), own.ptr());
    if (!found && PyErr_Occurred()) throw nb::python_error();
    if (!found) return nb::none();
    const nb::object function = nb::borrow(found);  // also if it is thrown out meanwhile
    return answer(function, args[0]);
  }

  // What tells the kind of an array; None if it is of none.
  nb::object parts(nb::handle array) const {
    Parts parts;
    return is_plain(array) && add_parts(array, parts) ? parts.tuple() : nb::none();
  }

  // Whether all of these are of some kind; of one with these parts, unless these are None.
  bool hold(nb::tuple arrays, nb::tuple parts) const {
    if (arrays.size() != parts.size() || !is_quiet()) return false;
    for (std::size_t a = 0; a < arrays.size(); ++a) {
      if (!is_plain(arrays[a])) return false;
      if (!has_parts(arrays[a], parts[a])) return false;
    }
    return true;
  }

 private:
  struct Expected {
    nb::object question, answer;
  };

  static std::vector<nb::object> listed(const nb::tuple& from) {
    std::vector<nb::object> list;
    for (nb::handle item : from) list.push_back(nb::borrow(item));
    return list;
  }
  static Expected expected(nb::handle pair) {
    const nb::tuple both = nb::cast<nb::tuple>(pair);
    return {nb::borrow(both[0]), nb::borrow(both[1])};
  }

  static nb::object checked(PyObject* answer) {
    if (!answer) throw nb::python_error();
    return nb::steal(answer);
  }
  static nb::object answer(const nb::object& question, nb::handle array) {
    if (PyUnicode_Check(question.ptr())) {
      return checked(PyObject_GetAttr(array.ptr(), question.ptr()));
    }
    PyObject* argument = array.ptr();
    return checked(PyObject_Vectorcall(question.ptr(), &argument, 1, nullptr));
  }
  static nb::object answer(const nb::object& question) {
    return checked(PyObject_CallNoArgs(question.ptr()));
  }
  static bool answers(const Expected& e, nb::handle array) {
    try {
      return is(answer(e.question, array), e.answer);
    } catch (nb::python_error&) {
      return false;
    }
  }
  static bool is(const nb::object& answer, nb::handle expected) {
    if (answer.is(expected)) return true;
    const int equal = PyObject_RichCompareBool(answer.ptr(), expected.ptr(), Py_EQ);
    if (equal < 0) throw nb::python_error();
    return equal == 1;
  }

  bool add_parts(nb::handle array, Parts& parts) const {
    if (buffer_ && !parts.take(lying_in_buffer(array))) return false;
    if (teller_ && !parts.take(lying(teller_, array))) return false;
    for (const nb::object& part : parts_) {
      if (!parts.take(answer(part, array).release().ptr())) return false;
    }
    return true;
  }
  bool has_parts(nb::handle array, nb::handle expected) const {
    Parts parts;
    Told told;
    if (expected.is_none()) return !teller_ || tell(teller_, array, told);
    return add_parts(array, parts) && is(parts.tuple(), expected);
  }

  bool is_plain(nb::handle array) const {
    if (reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) != type_.ptr()) return false;
    return std::all_of(plain_.begin(), plain_.end(),
                       [&](const Expected& e) { return answers(e, array); });
  }
  bool is_quiet() const {
    for (const Expected& e : quiet_) {
      if (!is(answer(e.question), e.answer)) return false;
    }
    return true;
  }

  // The type and the value, since values of other types may be equal and yet mean something else
  // (True and 1); of a tuple also the types in it. False for what may change.
  static bool add_value(nb::handle value, Parts& parts) {
    return add_types(value, parts) && parts.add(value.ptr());
  }
  static bool add_types(nb::handle value, Parts& parts) {
    PyTypeObject* type = Py_TYPE(value.ptr());
    if (!parts.add(reinterpret_cast<PyObject*>(type))) return false;
    if (type == &PyLong_Type || type == &PyBool_Type || type == &PyUnicode_Type) return true;
    if (value.is_none()) return true;
    if (type != &PyTuple_Type) return false;
    for (nb::handle item : nb::borrow<nb::tuple>(value)) {
      if (!add_types(item, parts)) return false;
    }
    return true;
  }

  nb::object type_;
  Teller teller_ = nullptr;
  bool buffer_ = false;
  std::vector<nb::object> parts_, modes_;
  std::vector<Expected> plain_, quiet_;
};

}  // namespace
}  // namespace poolgrad
