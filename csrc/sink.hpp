// Where results go: made row after row, in the order in which they lie in memory.
#pragma once

#include "memory.hpp"
#include "view.hpp"

namespace poolgrad {
namespace {

// Results of more bytes than this do not stay in the caches until they are read again.
inline constexpr i64 kStreamed = i64{4} << 20;

// Rows are made in place, or, if their elements are of another type or go past the caches, in a
// small buffer that is written when it is full.
template <class T>
class Sink {
 public:
  // total: elements of the whole array; row: of the longest row
  Sink(Dense to, i64 total, i64 row, Arena& arena)
      : to_(to),
        mode_(!to.data || !is<T>(to)                            ? Mode::convert
              : total * static_cast<i64>(sizeof(T)) > kStreamed ? Mode::stream
                                                                : Mode::in_place),
        capacity_(larger(row, kBuffer / static_cast<i64>(sizeof(T)))),
        buffer_(to.data && mode_ != Mode::in_place ? arena.take<T>(capacity_) : nullptr) {}
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  ~Sink() {
    flush();
    if (mode_ == Mode::stream) end_streaming();
  }

  // Room for elements first .. first + n of the array; what was made before is complete.
  T* room(i64 first, i64 n) {
    if (mode_ == Mode::in_place) return as<T>(to_, first);
    if (count_ + n > capacity_ || first != first_ + count_) {
      flush();
      first_ = first;
    }
    T* here = buffer_ + count_;
    count_ += n;
    return here;
  }

 private:
  enum class Mode { in_place, stream, convert };
  static constexpr i64 kBuffer = 1 << 13;

  void flush() {
    if (count_ == 0) return;
    if (mode_ == Mode::convert) {
      write(to_, first_, buffer_, count_);
    } else {
      stream(to_.data + first_ * static_cast<i64>(sizeof(T)),
             reinterpret_cast<const char*>(buffer_), count_ * static_cast<i64>(sizeof(T)));
    }
    count_ = 0;
  }

  Dense to_;
  Mode mode_;
  i64 capacity_;
  T* buffer_;
  i64 first_ = 0, count_ = 0;
};

}  // namespace
}  // namespace poolgrad
