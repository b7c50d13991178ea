// Small windows over several rows of outputs at once: vectors walk down the columns, and what
// windows have in common of a row of inputs is reduced once, in registers.
#pragma once

#include "direct.hpp"

namespace poolgrad {
namespace {

inline constexpr i64 kMostBanded = 8;            // rows of outputs at once,
inline constexpr i64 kBandBytes = i64{1} << 14;  // of so many bytes of inputs

// Calls f with kernel and stride, if they are among those that there is code for.
template <class F>
bool by_shape(const Axis& a, F&& f) {
  if (a.kernel == 2 && a.stride == 2) f(Const<2>{}, Const<2>{});
  else if (a.kernel == 3 && a.stride == 2) f(Const<3>{}, Const<2>{});
  else if (a.kernel == 3 && a.stride == 1) f(Const<3>{}, Const<1>{});
  else if (a.kernel == 2 && a.stride == 1) f(Const<2>{}, Const<1>{});
  else return false;
  return true;
}

// The same with the widest vector that n elements fill, down to half of what there is.
template <class T, class F>
bool by_width(i64 n, F&& f) {
  constexpr i64 kLanes = kVectorBytes / static_cast<i64>(sizeof(T));
  if (n >= kLanes) f(Const<kLanes>{});
  else if (n >= kLanes / 2) f(Const<kLanes / 2>{});
  else return false;
  return true;
}

// Whether windows are squares without gaps.
[[maybe_unused]] inline bool is_square(const Plan& p) {
  const Axis &height = p.axis[1], &width = p.axis[2];
  return p.inner == 1 && has_few_places(p) && height.kernel == width.kernel &&
         height.stride == width.stride && height.dilation == 1 && width.dilation == 1;
}

// Whether what is known of parts of a window can be merged.
template <class Op>
concept Merges = requires { typename Op::Hasty; };

// Windows below each other, side by side in vectors: each line of inputs is reduced once for all
// windows that hold it. start(depth) says which place comes first there, line(value) gives the next
// line's places, ahead() may ask for more, store(row, cell) is given what is made. What was read is
// summed up in `seen`.
template <class O, i64 K, i64 S, class V, class Start, class Line, class Ahead, class Store>
POOLGRAD_INLINE void walk_down(i64 rows, i64 depths, V& seen, Start&& start, Line&& line,
                               Ahead&& ahead, Store&& store) {
  typename O::template Cell<V> made[kMostBanded], lines[K];
  for (i64 k = 0; k < depths; ++k) {
    const u32 place = start(k);
    const auto reduce = [&]() __attribute__((always_inline)) {
      V value[K];
      line(value);
      auto cell = O::first(value[0], place);
      POOLGRAD_UNROLL
      for (i64 t = 1; t < K; ++t) O::take(cell, value[t], place + static_cast<u32>(t));
      V sum = value[0] + value[K - 1];
      if constexpr (S == 2 && K == 3) sum += value[1];
      seen += sum;
      return cell;
    };
    POOLGRAD_UNROLL
    for (i64 t = 0; t < K - S; ++t) lines[t] = reduce();
    for (i64 q = 0; q < rows; ++q) {
      ahead();
      POOLGRAD_UNROLL
      for (i64 t = K - S; t < K; ++t) lines[t] = reduce();
      auto cell = k > 0 ? made[q] : lines[0];
      if (k > 0) O::merge(cell, lines[0], 0);
      POOLGRAD_UNROLL
      for (i64 t = 1; t < K; ++t) O::merge(cell, lines[t], static_cast<u32>(t * K));
      if (k + 1 < depths) made[q] = cell;
      else store(q, cell);
      POOLGRAD_UNROLL
      for (i64 t = 0; t < K - S; ++t) lines[t] = lines[t + S];
    }
  }
}

template <class V>
bool has_nan(V seen) {
  bool found = false;
  for (std::size_t j = 0; j < sizeof(V) / sizeof(seen[0]); ++j) found |= seen[j] != seen[j];
  return found;
}

// Op: first and take make a cell of one line of a window's places, merge adds a later line to it,
// store says what becomes of it; Hasty is an Op that knows no NaN, if that is faster.
template <class Op>
class Bands {
 public:
  using T = typename Op::In;
  using Target = typename Op::Target;

  Bands(const Plan& plan, const View& x, const Tile& tile, bool negate, Arena& arena)
      : p_(plan), x_(x), negate_(negate), used_(Merges<Op> && is_banded(plan, tile)) {
    if (!used_) return;
    const Axis &depth = plan.axis[0], &height = plan.axis[1], &width = plan.axis[2];
    const bool fits = width.full_lo == 0 && width.full_hi == width.out;
    readable_ = !negate && fits && x.dtype == DtypeOf<T>::value && x.width == 1;
    const i64 reach = (width.out - 1) * width.stride + width.kernel;
    lo_ = larger(0, -width.lo), hi_ = larger(lo_, smaller(width.in, reach - width.lo));
    pitch_ = ceil_div(reach, kLine) * kLine;
    depths_ = smaller(depth.kernel, depth.in);
    rows_ = kBandBytes / (depths_ * height.stride * pitch_ * static_cast<i64>(sizeof(T)));
    rows_ = larger(1, smaller(kMostBanded, rows_));
    lines_ = (rows_ - 1) * height.stride + height.kernel;
    copies_ = arena.take<T>(depths_ * lines_ * pitch_);
    from_ = arena.take<From>(depths_);
  }

  // How many rows are made at once; 0: none can be.
  i64 rows() const { return used_ ? rows_ : 0; }

  i64 length() const { return p_.axis[2].out; }

  void start(const char* plane) {
    if (used_ && !plane_) std::fill(copies_, copies_ + depths_ * lines_ * pitch_, Op::kFill);
    plane_ = plane;
  }

  // Rows oh ... oh + rows of the outputs, one behind the other.
  void make(i64 od, i64 oh, i64 rows, Target to) {
    const Axis &depth = p_.axis[0], &height = p_.axis[1], &width = p_.axis[2];
    const Span s = span_of(depth, od);
    const i64 n = width.out, lines = (rows - 1) * height.stride + height.kernel;
    if (s.taps == 0) return Op::clear(to, rows * n);
    const i64 first = oh * height.stride - height.lo;
    const bool here = readable_ && first >= 0 && first + lines <= height.in;
    for (i64 k = 0; k < s.taps; ++k) {
      const i64 d = s.begin + k * depth.dilation;
      const char* row = plane_ + (d * x_.depth + first * x_.height) * size_of(x_.dtype);
      const T* from =
          here ? reinterpret_cast<const T*>(row) - width.lo : copied(k, d, first, lines);
      const u32 place = static_cast<u32>((s.place + k) * height.kernel * width.kernel);
      from_[k] = {from, row + rows * height.stride * x_.height * size_of(x_.dtype), place};
    }
    const i64 pitch = here ? x_.height : pitch_;
    by_shape(height, [&](auto kernel, auto stride) {
      by_width<T>(n, [&](auto w) {
        if constexpr (Merges<Op>) {
          using Hasty = typename Op::Hasty;
          if (walk<Hasty, kernel(), stride(), w()>(to, n, rows, s.taps, pitch)) {
            walk<Op, kernel(), stride(), w()>(to, n, rows, s.taps, pitch);
          }
        }
      });
    });
  }

  // Whether an output may be that of a place without an input.
  bool is_suspect(i64 oh, Target row) const {
    const Axis &height = p_.axis[1], &width = p_.axis[2];
    const bool full = oh >= height.full_lo && oh < height.full_hi;
    bool found = false;
    for (i64 i = 0; i < (full ? width.full_lo : width.out); ++i) found |= Op::is_suspect(row, i);
    for (i64 i = full ? width.full_hi : width.out; i < width.out; ++i) {
      found |= Op::is_suspect(row, i);
    }
    return found;
  }

 private:
  static bool is_banded(const Plan& p, const Tile& tile) {
    const Axis& width = p.axis[2];
    const bool whole = tile.lo[2] == 0 && tile.hi[2] == width.out;
    const auto nothing = [](auto...) {};
    return is_square(p) && whole && by_shape(width, nothing) && by_width<T>(width.out, nothing);
  }

  static constexpr i64 kLine = 64 / static_cast<i64>(sizeof(T));

  // The first line of inputs of a band, at one depth; what will be read next; the first place.
  struct From {
    const T* at;
    const char* next;
    u32 place;
  };

  // Lines of inputs from `first` on, with what changes nothing around them.
  POOLGRAD_LOOP const T* copied(i64 k, i64 d, i64 first, i64 lines) {
    T* band = copies_ + k * lines_ * pitch_;
    const i64 n = hi_ - lo_;
    for (i64 i = 0; i < lines; ++i) {
      T* to = band + i * pitch_ + lo_ + p_.axis[2].lo;
      const i64 h = first + i;
      if (h < 0 || h >= p_.axis[1].in) {
        std::fill(to, to + n, Op::kFill);
      } else {
        copy_row(x_, plane_, d, h, lo_, hi_, negate_, to);
      }
    }
    return band;
  }

  // Makes `rows` rows of n outputs, W of a row at a time. True: there may be NaNs that O does not
  // know; the outputs mean nothing then.
  template <class O, i64 K, i64 S, i64 W>
  POOLGRAD_LOOP bool walk(Target to, i64 n, i64 rows, i64 depths, i64 pitch) const {
    using V = Vec<T, static_cast<int>(W)>;
    using Distance = std::conditional_t<S == 1, Next, Second>;
    constexpr i64 kAhead =
        S * S * W * static_cast<i64>(sizeof(T));  // a piece's share of new inputs
    V seen{};
    for (i64 i = 0; i < n; i += W) {
      const i64 at = smaller(i, n - W);
      const T* from = nullptr;
      const char* next = nullptr;
      walk_down<O, K, S, V>(
          rows, depths, seen,
          [&](i64 k) {
            from = from_[k].at + at * S;
            next = from_[k].next + i / W * rows * kAhead;
            return from_[k].place;
          },
          [&](V* value) {
            POOLGRAD_UNROLL
            for (i64 t = 0; t < K; ++t) value[t] = Distance{1}.template get<V>(from, 0, t);
            from += pitch;
          },
          [&] {
            for (i64 b = 0; b < kAhead; b += 64, next += 64) __builtin_prefetch(next);
          },
          [&](i64 q, const auto& cell) {
            O::store(to.line(q, n), at, cell);
            ask_to_write(to.line(q + rows, n).y + at);
          });
    }
    return !std::is_same_v<O, Op> && has_nan(seen);
  }

  const Plan& p_;
  const View& x_;
  const bool negate_, used_;
  bool readable_ = false;  // rows may be read where they lie
  i64 lo_ = 0, hi_ = 0, pitch_ = 0, depths_ = 0, rows_ = 0, lines_ = 0;
  T* copies_ = nullptr;
  From* from_ = nullptr;
  const char* plane_ = nullptr;
};

}  // namespace
}  // namespace poolgrad
