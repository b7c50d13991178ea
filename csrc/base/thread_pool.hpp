// Who does which part: the threads of a framework that keeps some, or a small pool of our own.
#pragma once

#include <chrono>

#include "geometry/window.hpp"

namespace poolgrad {

// Calls body(context, task) once for every task in [0, tasks), on up to `threads` threads, the
// caller among them. A pool that is busy with another caller's work is not waited for: then the
// caller does all tasks itself. Every thread computes in the caller's floating-point environment.
// Safe after fork(): the child starts a pool of its own.
void run_tasks(i64 tasks, int threads, void (*body)(void*, i64), void* context);

// How many tasks run_tasks() was given, and threads that had one; dry: it runs none of them.
struct TaskCount {
  i64 tasks = 0;
  int threads = 0;
  bool dry = false;
};

// From now on run_tasks() on this thread counts in `count`, unless null; returns where it did.
TaskCount* count_tasks(TaskCount* count);

// While one lives, what this thread asks for is done by our own threads. OpenMP makes a team of its
// own for every thread that asks, and such teams are in each other's way.
class OwnThreads {
 public:
  OwnThreads();
  OwnThreads(const OwnThreads&) = delete;
  OwnThreads& operator=(const OwnThreads&) = delete;
  ~OwnThreads();
};

// Thrown by run_tasks() if a poll returns true; tasks that have not begun are not run.
struct Interrupted {};

// RAII guard: about ten times a second, between two tasks, run_tasks() on this thread calls
// interrupted(context), which may itself run tasks.
class Polled {
 public:
  Polled(bool (*interrupted)(void*), void* context);
  Polled(const Polled&) = delete;
  Polled& operator=(const Polled&) = delete;
  ~Polled();

  bool due();  // calls `interrupted` if it is time, and returns its answer

 private:
  Polled* outer_;
  bool (*interrupted_)(void*);
  void* context_;
  std::chrono::steady_clock::time_point next_;
};

// From now on tasks are done by the OpenMP threads of a library that is loaded, given by its path.
// Such threads spin for milliseconds after their last work, waiting for more: they would take the
// processors from threads of our own, and start sooner. False if it has none. Not after a fork(),
// which they do not survive, nor where more threads are wanted than it has.
bool share_threads(const char* library);

template <class F>
void parallel_for(i64 tasks, int threads, F&& f) {
  run_tasks(tasks, threads, [](void* context, i64 task) { (*static_cast<F*>(context))(task); }, &f);
}

}  // namespace poolgrad
