// Runs a kernel without the GIL (Python's global lock).
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <optional>

#include "base/thread_pool.hpp"

namespace nb = nanobind;

namespace poolgrad {

// RAII guard: releases the GIL, if `release` is true. About ten times a second Python's signal
// handlers run, so that Ctrl-C ends a long kernel: run_tasks() throws Python's error.
class WithoutGil : NonCopyable {
 public:
  explicit WithoutGil(bool release = true) {
    if (!release) return;
    state_ = PyEval_SaveThread();
    poll_.emplace([this] { run_handlers(); });
  }
  ~WithoutGil() {
    if (state_) take();
  }

 private:
  // While the interpreter exits, Python ends daemon threads that take the GIL by unwinding their
  // stack, which C++ forbids through functions that do not throw. Such a thread waits instead for
  // the end of the process, as it does from Python 3.14 on.
  void take() noexcept {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }

  void run_handlers() {
    take();
    std::exception_ptr error;
    if (PyErr_CheckSignals() != 0) error = std::make_exception_ptr(nb::python_error());
    state_ = PyEval_SaveThread();
    if (error) std::rethrow_exception(error);
  }

  PyThreadState* state_ = nullptr;
  std::optional<PollGuard> poll_;
};

}  // namespace poolgrad
