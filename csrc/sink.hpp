// Where results go: made row after row, in the order in which they lie in memory.
#pragma once

#include "memory.hpp"
#include "view.hpp"

namespace poolgrad {
namespace {

// Results of more bytes than this do not stay in the caches until they are read again.
inline constexpr i64 kStreamed = i64{4} << 20;

// Rows are made in place, or, if their elements are of another type or go past the caches, in a
// small buffer. Past the caches go whole lines only, as soon as there is one: they are on their way
// while the next row is made.
template <class T>
class Sink {
 public:
  // total: elements of the whole array; row: of the longest row
  Sink(Dense to, i64 total, i64 row, Arena& arena)
      : to_(to),
        mode_(!to.data || !is<T>(to)      ? Mode::convert
              : total * kSize > kStreamed ? Mode::stream
                                          : Mode::in_place),
        chunk_(mode_ == Mode::stream ? kStreamChunk : kConvertChunk),
        capacity_(row + chunk_ + 2 * kLine),
        buffer_(to.data && mode_ != Mode::in_place ? arena.take<T>(capacity_) : nullptr) {}
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  ~Sink() {
    flush(true);
    if (mode_ == Mode::stream) end_streaming();
  }

  // Room for elements first .. first + n of the array; what was made before is complete. Null, if
  // there is no array.
  T* room(i64 first, i64 n) {
    if (!to_.data) return nullptr;
    if (mode_ == Mode::in_place) return as<T>(to_, first);
    if (first != first_ + count_) {
      flush(true);
      first_ = first;
      begin_ = past_line(first);
    } else if (count_ >= chunk_) {
      flush(false);
    }
    T* here = buffer_ + begin_ + count_;
    count_ += n;
    return here;
  }

  // Elements first ... first + n, made elsewhere.
  void put(i64 first, const T* from, i64 n) {
    if (!to_.data) return;
    if (mode_ != Mode::stream || (past_line(first) == 0 && past_line(first + n) == 0)) {
      flush(true);
      send(first, from, n);
    } else {
      copy_run(from, room(first, n), n);
    }
  }

 private:
  enum class Mode { in_place, stream, convert };
  static constexpr i64 kSize = sizeof(T), kLine = 64 / kSize;
  static constexpr i64 kStreamChunk = kLine, kConvertChunk = (1 << 13) / kSize;

  // How far into a cache line an element lies.
  i64 past_line(i64 element) const {
    return mode_ == Mode::stream
               ? static_cast<i64>(reinterpret_cast<std::uintptr_t>(as<T>(to_, element)) % 64) /
                     kSize
               : 0;
  }

  void send(i64 first, const T* from, i64 n) {
    if (mode_ == Mode::convert) return write(to_, first, from, n);
    if (mode_ == Mode::in_place) return copy_run(from, as<T>(to_, first), n);
    stream(reinterpret_cast<char*>(as<T>(to_, first)), reinterpret_cast<const char*>(from),
           n * kSize);
  }

  void flush(bool all) {
    if (count_ == 0) return;
    const T* from = buffer_ + begin_;
    const i64 rest = all ? 0 : smaller(count_, past_line(first_ + count_)), n = count_ - rest;
    send(first_, from, n);
    if (n > 0) begin_ = past_line(first_ + n);
    if (rest > 0) {  // less than a line: a call would cost more than to move all of one
      using Line = Vec<T, static_cast<int>(kLine)>;
      store(buffer_ + begin_, load<Line>(from + n));
    }
    first_ += n, count_ = rest;
  }

  Dense to_;
  Mode mode_;
  i64 chunk_, capacity_;
  T* buffer_;
  i64 first_ = 0, count_ = 0,
      begin_ = 0;  // the buffered elements, and where in the buffer they are
};

}  // namespace
}  // namespace poolgrad
