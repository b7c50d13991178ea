#include "base/thread_pool.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "base/out_of_memory.hpp"
#include "base/scratch.hpp"

namespace poolgrad {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kBetweenPolls{100};
// A long wait for members of the OpenMP team that have nothing to do any more; how long the team is
// not used after two in a row.
constexpr std::chrono::microseconds kLongWait{500};
constexpr std::chrono::milliseconds kWithoutTeam{100};
constexpr char kOfShares[] = " for the tasks of each thread";

thread_local PollGuard* current_poll = nullptr;  // what this thread polls between tasks
thread_local TaskCount* counted = nullptr;       // where run_tasks() counts

// Called between two tasks; does nothing on threads without a `PollGuard`.
void poll() {
  if (current_poll) current_poll->poll();
}

// Functions of an OpenMP library.
struct OpenMP {
  int (*size)() = nullptr;    // omp_get_max_threads
  int (*number)() = nullptr;  // omp_get_thread_num
  // GOMP_parallel, which other runtimes than GNU's have as well; threads = 0: the default number
  void (*start)(void (*member)(void*), void* context, unsigned threads, unsigned flags) = nullptr;
};

// The consecutive tasks that one thread starts with. Every call, and the static schedules of
// frameworks, assign the same share to a thread, so that its data is in the caches of that thread.
// Then the thread takes tasks of other threads (work stealing).
struct alignas(64) TaskShare {
  std::atomic<i64> next{0};
  i64 end = 0;
};

// A lock that is never waited for. The thread that holds it may try again, unlike with std::mutex:
// a signal handler that runs between two tasks may call a kernel.
struct TryLockable {
  bool try_lock() { return !held.test_and_set(); }
  void unlock() { held.clear(); }

  std::atomic_flag held;
};

class Pool;
// Never destroyed: workers may still wait on it while the process ends.
extern std::atomic<Pool*> pool;

class Pool {
 public:
  // False if not all tasks were run: another caller holds the pool, or a signal handler forked and
  // this is the child, which lacks the threads that were running tasks. Tasks may be run again.
  bool run(i64 tasks, int threads, void (*body)(void*, i64), void* context) {
    const std::unique_lock<TryLockable> owner(busy_, std::try_to_lock);
    if (!owner) return false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      body_ = body, context_ = context, threads_ = threads;
      std::fegetenv(&environment_);
      if (shares_.size() < static_cast<std::size_t>(threads)) {
        shares_ = Table<TaskShare, kOfShares>(static_cast<std::size_t>(threads));
      }
      for (int k = 0; k < threads; ++k) {
        shares_[k].next.store(tasks * k / threads, std::memory_order_relaxed);
        shares_[k].end = tasks * (k + 1) / threads;
      }
    }
    const OpenMP* team = OwnThreads::is_active() ? nullptr : team_.load();
    if (team && threads <= team->size() && Clock::now() >= team_again_) {
      run_on_team(*team);
    } else {
      wake_workers(threads - 1);
      work(0);
      if (!was_forked()) wait_for_workers();
    }
    has_failed_ = false;
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
    return !was_forked();
  }

  bool join(const char* library) {
    OpenMP team;
    void* handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle) return false;
    team.size = reinterpret_cast<decltype(team.size)>(dlsym(handle, "omp_get_max_threads"));
    team.number = reinterpret_cast<decltype(team.number)>(dlsym(handle, "omp_get_thread_num"));
    team.start = reinterpret_cast<decltype(team.start)>(dlsym(handle, "GOMP_parallel"));
    if (!team.size || !team.number || !team.start) return false;
    static const OpenMP joined = team;  // it stays: `handle` is not closed
    team_.store(&joined);
    return true;
  }

 private:
  struct Forked {};

  // Whether this is the child of a fork that happened while run() was running tasks.
  bool was_forked() const { return pool.load(std::memory_order_relaxed) != this; }

  // Starts all threads of the OpenMP team, since a smaller team would end the remaining threads;
  // the first `threads_` members run the tasks. In the child of a fork the end of the parallel
  // region would wait for threads that do not exist, so an exception leaves the region.
  // The end of the region waits for every member, also for one that the system does not schedule
  // because other processes use the processors. After two long waits in a row the team is not used
  // for a while; a single one is often the time in which sleeping members wake.
  void run_on_team(const OpenMP& team) {
    const Clock::time_point begin = Clock::now();
    const auto member = [](void* self) {
      Pool* own = static_cast<Pool*>(self);
      const int number = own->team_.load()->number();
      if (number >= own->threads_) return;
      const FloatingPointEnvironment same(&own->environment_);
      own->work(number);
      if (number == 0) own->own_end_ = Clock::now();
      if (own->was_forked()) throw Forked();
    };
    try {
      team.start(member, this, 0, 0);
    } catch (const Forked&) {
    }
    const Clock::time_point end = Clock::now();
    const bool late = end - own_end_ > std::max<Clock::duration>(kLongWait, own_end_ - begin);
    if (late && was_late_) team_again_ = end + kWithoutTeam;
    was_late_ = late && !was_late_;
  }

  void wake_workers(int count) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      try {
        for (; workers_ < count; ++workers_) {
          std::thread(&Pool::loop, this, workers_, round_).detach();
        }
      } catch (const std::exception&) {
        // Thread limit of the system, or no memory: continue with fewer threads.
      }
      wanted_ = std::min(count, workers_);
      ++round_;
    }
    wake_.notify_all();
  }

  // Called when all tasks have begun: waits for the workers that run one, and not for those that
  // the system has not woken yet.
  void wait_for_workers() {
    std::unique_lock<std::mutex> lock(mutex_);
    wanted_ = 0;
    done_.wait(lock, [this] { return running_ == 0; });
  }

  void loop(int id, std::uint64_t round) {
    for (;;) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return round_ != round; });
        round = round_;
        if (id >= wanted_) continue;
        ++running_;
      }
      {
        const FloatingPointEnvironment same(&environment_);
        work(id + 1);
      }
      std::lock_guard<std::mutex> lock(mutex_);
      if (--running_ == 0) done_.notify_one();
    }
  }

  // After an exception no thread starts a task; run() rethrows the first one when all have stopped.
  void work(int number) noexcept {
    try {
      for (int k = 0; k < threads_; ++k) {
        TaskShare& share = shares_[(number + k) % threads_];
        for (i64 task; (task = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
          if (has_failed_.load(std::memory_order_relaxed)) return;
          poll();
          if (was_forked()) return;
          body_(context_, task);
        }
      }
    } catch (...) {
      if (!has_failed_.exchange(true)) failure_ = std::current_exception();
    }
  }

  std::atomic<const OpenMP*> team_{nullptr};
  TryLockable busy_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<bool> has_failed_{false};
  std::exception_ptr failure_;
  std::fenv_t environment_;
  void (*body_)(void*, i64) = nullptr;
  void* context_ = nullptr;
  Table<TaskShare, kOfShares> shares_;  // of at least `threads_` threads
  int threads_ = 0;
  int workers_ = 0, wanted_ = 0, running_ = 0;  // threads; those that may begin; that have begun
  Clock::time_point own_end_{}, team_again_{};
  bool was_late_ = false;  // the last call on the team ended with a first long wait
  std::uint64_t round_ = 0;
};

// Created when the module is loaded: a fork while another thread creates it would copy a
// half-constructed pool.
std::atomic<Pool*> pool{new (std::nothrow) Pool};

// Replaces the pool in the child of a fork, which has no worker threads and may have a locked
// mutex. A call that is running when a signal handler forks finds the new pool by was_forked().
void replace_pool() { pool.store(new (std::nothrow) Pool); }

const bool forks_are_safe = pthread_atfork(nullptr, nullptr, replace_pool) == 0;

Pool* the_pool() { return forks_are_safe ? pool.load() : nullptr; }

}  // namespace

PollGuard::PollGuard(std::function<void()> handle_signals)
    : outer_(current_poll),
      handle_signals_(std::move(handle_signals)),
      next_(Clock::now() + kBetweenPolls) {
  current_poll = this;
}
PollGuard::~PollGuard() { current_poll = outer_; }

void PollGuard::poll() {
  if (Clock::now() < next_) return;
  // A kernel that a signal handler calls polls its own guard, or none (XLA's calls have none).
  current_poll = nullptr;
  handle_signals_();
  current_poll = this;
  next_ = Clock::now() + kBetweenPolls;
}

bool share_threads(const char* library) {
  Pool* p = the_pool();
  return p && p->join(library);
}

TaskCount* count_tasks(TaskCount* count) { return std::exchange(counted, count); }

void run_tasks(i64 tasks, int threads, void (*body)(void*, i64), void* context) {
  const int useful = static_cast<int>(std::min<i64>(tasks, threads));
  if (counted) {
    counted->tasks += tasks;
    counted->threads = std::max(counted->threads, useful);
    if (counted->dry) return;
  }
  if (useful > 1) {
    Pool* p = the_pool();
    if (p && p->run(tasks, useful, body, context)) return;
  }
  for (i64 task = 0; task < tasks; ++task) {
    poll();
    body(context, task);
  }
}

char* thread_scratch(std::size_t bytes) {
  static thread_local struct ScratchBlock {
    char* data = nullptr;
    std::size_t size = 0;
    ~ScratchBlock() { std::free(data); }
  } block;
  // A block larger than this is freed by the next smaller request.
  constexpr std::size_t kept = std::size_t{16} << 20;
  if (bytes > block.size || (block.size > kept && bytes <= kept)) {
    std::free(block.data);
    block.size = 0;
    const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
    block.data = static_cast<char*>(std::aligned_alloc(64, rounded));
    if (!block.data) throw OutOfMemory(rounded, " of scratch memory for a thread");
    block.size = rounded;
  }
  return block.data;
}

}  // namespace poolgrad
