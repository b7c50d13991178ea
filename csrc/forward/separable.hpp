// Separable filtering: windows are boxes, so inputs are reduced along the width, then the height,
// then the depth, the order in which the first winner is the first in row-major order. A reduced
// row that several windows share is computed once and cached; wide windows are composed of
// reductions of 2, 4, 8, ... neighbours (log-step doubling).
#pragma once

#include "forward/log_step_doubling.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

inline int log2_floor(i64 n) {
  int level = 0;
  while (n >> (level + 1)) ++level;
  return level;
}

// Caches reduced rows that several windows share, by key: level l holds reductions of 2^l
// neighbours. Where no two windows share a row, it is a ring of kMaxFolded rows.
template <class Op>
class RowCache {
 public:
  using Row = typename Op::Row;

  // n: elements of a row; lines: independent sequences of rows, one beside the other
  POOLGRAD_LOOP RowCache(const Axis& a, i64 lines, i64 n, const Op& op, Arena& arena)
      : shared(a.overlap),
        max_level(shares_much(a) ? log2_floor(smaller(a.kernel, a.in)) : 0),
        n_(n),
        lines_(lines) {
    for (int level = 0; level <= max_level; ++level) {
      const i64 size = i64{1} << level, rest = smaller(a.kernel, a.in) - size;
      // how far apart the first and the last use of a row are
      const i64 apart =
          (level == max_level || !Op::kIdempotent ? larger(rest, size) : size) * a.dilation;
      const i64 wanted = !shared                        ? kMaxFolded
                         : level == 0 && max_level == 0 ? reach(a) + 1
                                                        : apart + 1;
      i64 slots = 1;
      while (slots < wanted && slots < a.in) slots *= 2;
      if (!shared) slots = kMaxFolded;
      first_[level] = slots_;
      mask_[level] = slots - 1;
      slots_ += slots * lines;
    }
    rows_ = op.take(arena, slots_ * n);
    keys_ = arena.take<i64>(slots_);
  }

  void clear() {
    for (i64 k = 0; k < slots_; ++k) keys_[k] = -1;
  }

  struct Slot {
    Row row;
    i64* key;
  };
  Slot at(int level, i64 index, i64 line) const {
    const i64 slot = first_[level] + (index & mask_[level]) * lines_ + line;
    return {Op::slot(rows_, slot * n_), keys_ + slot};
  }

  const bool shared;
  const int max_level;

 private:
  i64 n_, lines_, slots_ = 0, first_[64], mask_[64];
  Row rows_{};
  i64* keys_ = nullptr;
};

template <class Op>
class Separable {
 public:
  using T = typename Op::In;
  using Row = typename Op::Row;

  POOLGRAD_LOOP Separable(const Plan& plan, const View& x, const Tile& tile, ReadOptions<T> options,
                          const Op& op, Arena& arena)
      : p_(plan),
        tile_(tile),
        n_((tile.hi[2] - tile.lo[2]) * plan.inner),
        width_(plan, x, tile, options, op, arena),
        width_rows_(plan.axis[1], 1, n_, op, arena),
        height_rows_(plan.axis[0], plan.axis[0].overlap ? tile.hi[1] - tile.lo[1] : 1, n_, op,
                     arena) {}
  Separable(const Separable&) = delete;
  Separable& operator=(const Separable&) = delete;

  i64 length() const { return n_; }

  void start(const char* plane) {
    width_.start(plane);
    width_rows_.clear();
    height_rows_.clear();
  }

  // Computes the reduced row (od, oh) and returns where it is: in `into`, or in the cache.
  Row row(i64 od, i64 oh, Row into) {
    const i64 below = p_.axis[1].kernel * p_.axis[2].kernel;
    const i64 line = height_rows_.shared ? oh - tile_.lo[1] : 0;
    return along(height_rows_, p_.axis[0], od, 0, line, below, into,
                 [&](i64 d, Row target) { return height(d, oh, target); });
  }

 private:
  Row height(i64 d, i64 oh, Row into) {
    return along(width_rows_, p_.axis[1], oh, d * p_.axis[1].in, 0, p_.axis[2].kernel, into,
                 [&](i64 h, Row target) {
                   width_.row(d, h, target);
                   return target;
                 });
  }

  // Reduces the rows of output `o` along one axis. compute_row(index, target) computes one of them
  // and returns where it is: in `target`, or in the cache, under `key` + index.
  template <class ComputeRow>
  Row along(RowCache<Op>& cache, const Axis& a, i64 o, i64 key, i64 line, i64 below, Row into,
            ComputeRow&& compute_row) {
    const Span s = span_of(a, o);
    if (s.taps == 0) {
      Op::clear(into, n_);
      return into;
    }
    if (s.taps == 1 && s.first_tap == 0 && !cache.shared) return compute_row(s.begin, into);
    const auto cached = [&](int level, i64 index) {
      return cached_row(cache, a, level, index, key, line, below, compute_row);
    };
    if (s.taps == 1 && s.first_tap == 0) return cached(0, s.begin);
    if (cache.max_level > 0) return compose(a, s, below, into, cached);
    in_groups<Op>(s.taps, [&](auto size, auto first, i64 begin) {
      Row rows[kMaxFolded];
      for (i64 t = 0; t < size; ++t) {
        const i64 index = s.begin + (begin + t) * a.dilation;
        rows[t] =
            cache.shared ? cached(0, index) : copy_to(compute_row, index, cache.at(0, t, line).row);
      }
      Op::fold_rows(into, n_, rows, (s.first_tap + begin) * below, below, size, first);
    });
    return into;
  }

  // Computes a row in `target`. A cached row is copied, because it may be overwritten before its
  // use.
  template <class ComputeRow>
  Row copy_to(ComputeRow& compute_row, i64 index, Row target) const {
    const Row row = compute_row(index, target);
    if (row.v != target.v) {
      Op::fold_rows(target, n_, &row, 0, 0, group_size<Op, 1>(), is_first<Op, true>());
    }
    return target;
  }

  // Returns the reduction of 2^level neighbours from `index` on.
  template <class ComputeRow>
  Row cached_row(RowCache<Op>& cache, const Axis& a, int level, i64 index, i64 key, i64 line,
                 i64 below, ComputeRow& compute_row) {
    const auto slot = cache.at(level, index, line);
    if (*slot.key == key + index) return slot.row;
    *slot.key = key + index;
    if (level == 0) {
      copy_to(compute_row, index, slot.row);
      return slot.row;
    }
    const i64 half = i64{1} << (level - 1);
    const Row halves[2] = {
        cached_row(cache, a, level - 1, index, key, line, below, compute_row),
        cached_row(cache, a, level - 1, index + half * a.dilation, key, line, below, compute_row)};
    Op::fold_rows(slot.row, n_, halves, 0, half * below, group_size<Op, 2>(), is_first<Op, true>());
    return slot.row;
  }

  // Merges reductions of 2^level neighbours to a window: two that may overlap if Op is idempotent,
  // else one for each bit of the window's size.
  template <class Cached>
  Row compose(const Axis& a, const Span& s, i64 below, Row into, Cached& cached) {
    int level = log2_floor(s.taps);
    const i64 rest = s.taps - (i64{1} << level), tap = s.first_tap * below;
    const Row first = cached(level, s.begin);
    if (rest == 0 && s.first_tap == 0) return first;
    if (rest == 0) {
      Op::fold_rows(into, n_, &first, tap, 0, group_size<Op, 1>(), is_first<Op, true>());
    } else if constexpr (Op::kIdempotent) {
      const Row both[2] = {first, cached(level, s.begin + rest * a.dilation)};
      Op::fold_rows(into, n_, both, tap, rest * below, group_size<Op, 2>(), is_first<Op, true>());
    } else {
      Op::fold_rows(into, n_, &first, tap, 0, group_size<Op, 1>(), is_first<Op, true>());
      for (i64 done = s.taps - rest; level-- > 0;) {
        if (!(s.taps >> level & 1)) continue;
        const Row next = cached(level, s.begin + done * a.dilation);
        Op::fold_rows(into, n_, &next, tap + done * below, 0, group_size<Op, 1>(),
                      is_first<Op, false>());
        done += i64{1} << level;
      }
    }
    return into;
  }

  const Plan& p_;
  const Tile tile_;
  const i64 n_;
  WidthReduction<Op> width_;
  RowCache<Op> width_rows_, height_rows_;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
