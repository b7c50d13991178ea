// Who does which part: a small pool of threads of our own.
#pragma once

#include "window.hpp"

namespace poolgrad {

// Calls body(context, task) once for every task in [0, tasks), on up to `threads` threads, the
// caller among them. A pool that is busy with another caller's work is not waited for: then the
// caller does all tasks itself. Safe after fork(): the child starts a pool of its own.
void run_tasks(i64 tasks, int threads, void (*body)(void*, i64), void* context);

template <class F>
void parallel_for(i64 tasks, int threads, F&& f) {
  run_tasks(tasks, threads, [](void* context, i64 task) { (*static_cast<F*>(context))(task); }, &f);
}

}  // namespace poolgrad
