// Runs tasks on the threads of a pool, or on the OpenMP threads of a framework.
#pragma once

#include <cfenv>
#include <chrono>
#include <functional>

#include "base/common.hpp"

namespace poolgrad {

// Calls body(context, task) once for every task in [0, tasks), on up to `threads` threads including
// the caller, which does not wait for a thread that has not begun. If the pool is busy with the
// tasks of another caller, the calling thread runs all tasks. Every thread computes in the caller's
// floating-point environment. Safe after fork(): the child starts a new pool. If a signal handler
// forks between two tasks, the child runs all tasks again, some for the second time.
void run_tasks(i64 tasks, int threads, void (*body)(void*, i64), void* context);

// Number of tasks of run_tasks() calls, and the largest number of threads of a call. dry:
// run_tasks() counts tasks and runs none.
struct TaskCount {
  i64 tasks = 0;
  int threads = 0;
  bool dry = false;
};

// Sets where run_tasks() counts the tasks that this thread starts (null: nowhere). Returns the
// previous value.
TaskCount* count_tasks(TaskCount* count);

// RAII guard: parallel regions started on this thread use poolgrad's pool instead of OpenMP, which
// would start a team of threads for every calling thread and so oversubscribe the processors.
class OwnThreads : NonCopyable {
 public:
  OwnThreads() { ++guards; }
  ~OwnThreads() { --guards; }
  static bool is_active() { return guards > 0; }

 private:
  static inline thread_local int guards = 0;
};

// RAII guard: about ten times a second, between two tasks, run_tasks() on this thread calls
// handle_signals(), which may itself run tasks, fork or call share_threads(). Meanwhile no guard is
// active. If it throws an exception, run_tasks() throws this exception, and tasks that have not
// begun are not run.
class PollGuard : NonCopyable {
 public:
  explicit PollGuard(std::function<void()> handle_signals);
  ~PollGuard();

  void poll();  // calls handle_signals() if it is time

 private:
  PollGuard* outer_;
  std::function<void()> handle_signals_;
  std::chrono::steady_clock::time_point next_;
};

// Runs tasks on the OpenMP threads of a loaded library, given by its path. Such threads spin for
// milliseconds after a parallel region, which would take processors from the threads of the pool,
// and they start faster. Returns false if the library exports no OpenMP functions. The pool is
// still used after a fork(), which OpenMP threads do not survive, for calls with more threads than
// the library has, and for a while if the library's threads are not scheduled.
bool share_threads(const char* library);

// RAII guard: a floating-point environment (rounding, subnormal numbers flushed to zero).
class FloatingPointEnvironment : NonCopyable {
 public:
  explicit FloatingPointEnvironment(const std::fenv_t* environment) {
    std::fegetenv(&before_);
    std::fesetenv(environment);
  }
  ~FloatingPointEnvironment() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

template <class F>
void parallel_for(i64 tasks, int threads, F&& f) {
  run_tasks(tasks, threads, [](void* context, i64 task) { (*static_cast<F*>(context))(task); }, &f);
}

}  // namespace poolgrad
