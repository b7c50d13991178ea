// Where results go: made row after row, in the order in which they lie in memory.
#pragma once

#include "memory.hpp"
#include "view.hpp"

namespace poolgrad {
namespace {

// Rows are made in place, or, if their elements are of another type, in a small buffer.
template <class T>
class Sink {
 public:
  // row: elements of the longest row
  Sink(Dense to, i64 row, Arena& arena)
      : to_(to), buffer_(to.data && !is<T>(to) ? arena.take<T>(row + kChunk) : nullptr) {}
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  ~Sink() { flush(); }

  // Room for elements first .. first + n of the array; what was made before is complete. Null, if
  // there is no array. The room after this one is asked for, unless its maker does that.
  T* room(i64 first, i64 n, bool ask = true) {
    if (!to_.data) return nullptr;
    if (!buffer_) {
      T* here = as<T>(to_, first);
      if (ask) ask_to_write(here + larger(n, kWriteAhead<T>), n);
      return here;
    }
    if (first != first_ + count_ || count_ >= kChunk) {
      flush();
      first_ = first;
    }
    T* here = buffer_ + count_;
    count_ += n;
    return here;
  }

  // Whether rows are made where they belong, in any order.
  bool in_place() const { return to_.data && !buffer_; }

  // Elements first ... first + n, made elsewhere.
  void put(i64 first, const T* from, i64 n) {
    if (!to_.data) return;
    if (buffer_) return write(to_, first, from, n);
    T* to = as<T>(to_, first);
    sweep_lanes<T>(n, [&](auto w, i64 i) {
      ask_to_write(to + i + kWriteAhead<T>);
      store(to + i, load<Vec<T, w()>>(from + i));
    });
  }

 private:
  static constexpr i64 kChunk = (1 << 13) / static_cast<i64>(sizeof(T));

  void flush() {
    if (count_ > 0) write(to_, first_, buffer_, count_);
    count_ = 0;
  }

  Dense to_;
  T* buffer_;
  i64 first_ = 0, count_ = 0;  // the buffered elements
};

}  // namespace
}  // namespace poolgrad
