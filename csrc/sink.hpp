// Where results go.
#pragma once

#include "memory.hpp"
#include "view.hpp"

namespace poolgrad {
namespace {

// Rows that are made one after the other, as they lie in memory: in place, or, if their elements
// are of another type, in a small buffer.
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

// Where rows of a patch are made: where they belong, or in a buffer, a vector for each strip.
template <class T>
class Landing {
 public:
  static constexpr i64 W = kVectorBytes / static_cast<i64>(sizeof(T));
  struct Spot {
    T* first;
    i64 row, strip;
    T* at(i64 q, i64 s) const { return first + q * row + s * strip; }
  };

  Landing(Dense to, i64 most, Arena& arena)
      : to_(to), buffer_(is<T>(to) ? nullptr : arena.take<T>(most)) {}

  // begin: where the array's row begins whose part is made
  template <class Patch>
  Spot open(const Plan& p, const Patch& patch, bool by_pixel, i64 begin) {
    first_ = begin + patch.tile.lo[2] * p.inner + patch.channel;
    row_ = p.out_row(), strip_ = by_pixel ? p.inner : W;
    by_pixel_ = by_pixel;
    spot_ = buffer_ ? Spot{buffer_, patch.strips * W, W} : Spot{as<T>(to_, first_), row_, strip_};
    return spot_;
  }
  Spot spot() const { return spot_; }
  // The element of the array, and how many further the one lies that should be asked for before.
  i64 place(i64 q, i64 s) const { return first_ + q * row_ + s * strip_; }
  i64 ahead() const { return by_pixel_ ? kPixelsAhead * strip_ : kRowsAhead * row_; }

  // What lies in the buffer goes where it belongs.
  template <class Patch>
  void close(const Patch& patch, i64 rows) const {
    const i64 last = patch.strips - 1;
    for (i64 q = 0; buffer_ && q < rows; ++q) {
      if (!by_pixel_) write(to_, place(q, 0), spot_.at(q, 0), last * W + patch.lanes(last, false));
      for (i64 s = 0; by_pixel_ && s <= last; ++s) {
        write(to_, place(q, s), spot_.at(q, s), patch.channels);
      }
    }
  }

 private:
  static constexpr i64 kRowsAhead = 4, kPixelsAhead = 8;

  Dense to_;
  T* buffer_;
  bool by_pixel_ = false;
  i64 first_ = 0, row_ = 0, strip_ = 0;
  Spot spot_{};
};

}  // namespace
}  // namespace poolgrad
