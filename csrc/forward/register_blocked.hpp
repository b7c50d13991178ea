// Register blocking: computes several rows of outputs of small square windows at once. A vector of
// neighbouring columns or, with channels last, of the channels of a pixel moves down the rows; each
// row of inputs is reduced along the width once, in registers, for all windows that hold it.
#pragma once

#include "forward/reduce_columns.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Calls compute_rows(depth, row), which returns the number of rows that it computed, until the tile
// is complete. depth_first: all depths of a block of rows are computed before the next rows.
template <class F>
void over_rows(const Tile& tile, bool depth_first, F&& compute_rows) {
  const i64 end = tile.hi[1];
  if (depth_first) {
    for (i64 oh = tile.lo[1], rows = 0; oh < end; oh += rows) {
      for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) rows = compute_rows(od, oh);
    }
  } else {
    for (i64 od = tile.lo[0]; od < tile.hi[0]; ++od) {
      for (i64 oh = tile.lo[1]; oh < end;) oh += compute_rows(od, oh);
    }
  }
}

// Computes blocks of several rows of outputs. Op provides `first` and `take` for the partial
// reduction of one line of taps, `merge` for a later line, `store` for a result, and `check_nan`
// and `found_nan` to detect NaNs, because Op itself may assume that no input is NaN. fill: the
// value of padding.
template <class Op>
class RegisterBlocked {
 public:
  using T = typename Op::In;
  using Target = typename Op::Target;

  // used: whether outputs will be computed.
  POOLGRAD_LOOP RegisterBlocked(const Plan& plan, const View& x, bool used, i64 flips, T fill,
                                Arena& arena)
      : p_(plan), x_(x), flips_(flips), fill_(fill), used_(kCompiled && used) {
    if (!used_) return;
    if (has_channels()) {
      rows_ = plan.axis[1].stride == 1 ? kMaxChannelsLastRows : 1;  // strides share few inputs
      return;
    }
    const Axis &depth = plan.axis[0], &height = plan.axis[1], &width = plan.axis[2];
    const i64 columns_read = covered_length(width, width.out);
    before_ = larger(0, width.lo), after_ = larger(0, columns_read - width.lo - width.in);
    // Elements before and after a row may be read in place if they belong to its neighbouring rows.
    const i64 most = smaller(covered_length(width, 1), x.height);
    const bool narrow_padding = before_ <= most && after_ <= most;
    readable_ = !flips && narrow_padding && x.dtype == DtypeOf<T>::value && x.width == 1 &&
                (before_ + after_ == 0 || x.height >= width.in);
    inputs_ = inputs_of(width, 0, width.out);
    pitch_ = ceil_div(columns_read, kLine) * kLine;
    depths_ = smaller(depth.kernel, depth.in);
    rows_ = kBlockBytes / (depths_ * height.stride * pitch_ * static_cast<i64>(sizeof(T)));
    rows_ = larger(1, smaller(kMaxBlockedRows, rows_));
    lines_ = covered_length(height, rows_);
    copies_ = arena.take<T>(depths_ * lines_ * pitch_);
    depth_lines_ = arena.take<DepthLines>(depths_);
    lines_at_ = arena.take<const T*>(depths_ * lines_);
    if constexpr (kCompiled) {
      const i64 partials = ceil_div(width.out, kLanes) * kMaxBlockedRows;
      partial_bytes_ =
          partials * static_cast<i64>(sizeof(typename Op::template Partial<Vec<T, kLanes>>));
    }
    // Depths that are reduced on their own are merged in another order.
    caches_depths_ =
        !Op::kRounds && depth.kernel > depth.stride && depth.dilation == 1 && height.dilation == 1;
    partials_ = arena.take<char>(caches_depths_ ? kSlots * partial_bytes_ : 0);
  }

  // Rows of outputs that are computed at once; 0: the algorithm is not used.
  i64 rows() const { return used_ ? rows_ : 0; }

  // Whether the blocks of all depths share inputs and should be computed one after the other.
  bool depth_first() const { return used_ && caches_depths_; }

  void start(const char* plane) {
    if (copies_ && !plane_) std::fill(copies_, copies_ + depths_ * lines_ * pitch_, fill_);
    plane_ = plane;
    clear_cache();
  }

  // Columns of outputs that are computed at once.
  i64 columns() const {
    return has_channels() ? larger(1, kBlockedPixelElements / p_.inner) : p_.axis[2].out;
  }

  // Computes outputs lo ... hi of rows oh, oh + 1, ... Returns false if an input is NaN or the
  // windows hold no input; the outputs are then meaningless.
  bool compute(i64 od, i64 oh, i64 rows, i64 lo, i64 hi, Target to) {
    bool computed = false;
    if constexpr (kCompiled) {
      if (!has_channels()) return compute_block(od, oh, rows, to);
      by_shape(p_.axis[1], [&](auto kernel, auto stride) {
        computed = compute_channels<kernel(), stride()>(to, oh, rows, lo, hi);
      });
    }
    return computed;
  }

  // Whether one of outputs lo ... hi of a row may be the padding instead of an input, so that its
  // route is wrong.
  bool may_be_padding(i64 oh, i64 lo, i64 hi, Target row) const {
    if (!used_ || !requires { requires Op::kWithRoutes; }) return false;
    const Axis &height = p_.axis[1], &width = p_.axis[2];
    const auto found = [&](i64 begin, i64 end) {
      T* const last = row.y + (end - lo) * p_.inner;
      return begin < end && std::find(row.y + (begin - lo) * p_.inner, last, fill_) != last;
    };
    if (oh < height.full_lo || oh >= height.full_hi) return found(lo, hi);
    return found(lo, smaller(hi, width.full_lo)) || found(larger(lo, width.full_hi), hi);
  }

 private:
  static constexpr bool kCompiled = !Heavy<Op> && kSpecialised<T>;
  static constexpr i64 kMaxStride = sizeof(T) < 4 ? 2 : 3;  // no shuffle of every third byte
  // Rows of outputs of a block with channels last, at stride 1: the five lines of inputs and three
  // of outputs of 3x3 windows may map to the same set of a first-level cache, which often has eight
  // ways. Elements of two bytes take longer to reduce than to load, and four rows share more lines.
  static constexpr i64 kMaxChannelsLastRows = sizeof(T) == 2 ? 4 : 3;
  static constexpr i64 kLine = 64 / static_cast<i64>(sizeof(T));
  static constexpr i64 kLanes = kVectorBytes / static_cast<i64>(sizeof(T));
  static constexpr i64 kSlots = 4;  // of a ring buffer of depths

  // The input lines of a block at one depth, the memory to prefetch, and the depth's slice.
  struct DepthLines {
    const T* const* at;
    const char* next;
    u32 first_tap;
    char* partials;
    bool cached;
  };

  bool has_channels() const { return p_.inner > 1; }

  // Computes whole rows from (od, oh) on, without channels.
  POOLGRAD_LOOP bool compute_block(i64 od, i64 oh, i64 rows, Target to) {
    const Axis &depth = p_.axis[0], &height = p_.axis[1], &width = p_.axis[2];
    const Span s = span_of(depth, od);
    const i64 n = width.out, lines = covered_length(height, rows);
    if (s.taps == 0) return false;
    const i64 first = oh * height.stride - height.lo;
    if (first != first_) clear_cache();
    first_ = first;
    for (i64 k = 0; k < s.taps; ++k) {
      const i64 d = s.begin + k * depth.dilation;
      const u32 first_tap = static_cast<u32>((s.first_tap + k) * height.kernel * width.kernel);
      const bool last = depth.out > 1 && oh + rows >= height.out;  // of this depth
      const i64 below = last ? -height.lo : first + rows * height.stride;
      const i64 next_depth = caches_depths_ || last ? d + depth.stride : d;
      const i64 next_line = next_depth * x_.depth + (caches_depths_ ? first : below) * x_.height;
      const i64 slot = d % kSlots;
      const bool cached = caches_depths_ && cached_depths_[slot] == d,
                 kept = caches_depths_ && s.first_tap + k >= depth.stride;
      if (!cached) find_lines(k, d, first, lines);
      depth_lines_[k] = {lines_at_ + k * lines_, plane_ + next_line * size_of(x_.dtype), first_tap,
                         cached || (k > 0 && kept) ? partials_ + slot * partial_bytes_ : nullptr,
                         cached};
      if (k > 0 && kept) cached_depths_[slot] = d;
    }
    bool no_nan = false;
    by_shape<kMaxStride>(height, [&](auto kernel, auto stride) {
      by_width<T>(n, [&](auto w) {
        no_nan = compute_columns<kernel(), stride(), w()>(to, n, rows, s.taps);
      });
    });
    if (!no_nan) clear_cache();
    return no_nan;
  }

  void clear_cache() { std::fill(cached_depths_, cached_depths_ + kSlots, -1); }

  // Finds where lines of inputs begin, from line `first` on, including the padding of the first
  // window. Lines are read in place if the memory around them may be read, else copied between
  // padding; without padding, lines that follow each other are copied in one run.
  POOLGRAD_LOOP void find_lines(i64 k, i64 d, i64 first, i64 lines) {
    const i64 in = p_.axis[1].in, lo = p_.axis[2].lo, row = x_.height;
    const i64 margin = before_ + after_ == 0 ? 0 : 1;  // the first and last line have no neighbour
    const T** at = lines_at_ + k * lines_;
    i64 offset = d * x_.depth + first * row - lo;
    T* copy = copies_ + k * lines_ * pitch_;
    const bool joined = !readable_ && margin == 0 && first >= 0 && first + lines <= in &&
                        !x_.row_columns && x_.width == 1 && row == p_.axis[2].in && row <= pitch_;
    if (joined) copy_row(x_, plane_, d, first, 0, lines * row, flips_, copy);
    const Range in_place{readable_ ? margin : in, in - margin};
    for (i64 i = 0; i < lines; ++i, offset += row, copy += joined ? row : pitch_) {
      const i64 h = first + i;
      if (h >= in_place.lo && h < in_place.hi) {
        at[i] = reinterpret_cast<const T*>(plane_) + offset;
        continue;
      }
      at[i] = copy;
      if (joined) continue;
      if (h < 0 || h >= in) std::fill(copy + inputs_.lo + lo, copy + inputs_.hi + lo, fill_);
      else copy_row(x_, plane_, d, h, inputs_.lo, inputs_.hi, flips_, copy + inputs_.lo + lo);
    }
  }

  // Mask of the W outputs from `at` on that have an input at tap t of a line.
  template <i64 S, class V>
  auto inside(i64 at, i64 t) const {
    using Mask = decltype(V{} < V{});
    using I = std::remove_cvref_t<decltype(Mask{}[0])>;
    constexpr int W = static_cast<int>(sizeof(V) / sizeof(T));
    const i64 column = at * S + t * p_.axis[2].dilation - p_.axis[2].lo;
    const auto lanes_below = [&](i64 end) {  // lanes whose column lies before `end`
      return static_cast<I>(larger(0, smaller(W, ceil_div(end - column, S))));
    };
    Mask lane{};
    POOLGRAD_UNROLL
    for (int j = 0; j < W; ++j) lane[j] = static_cast<I>(j);
    return (lane >= lanes_below(0)) & (lane < lanes_below(p_.axis[2].in));
  }

  // Computes `rows` rows of n outputs, W columns at a time. Returns false if an input is NaN.
  // Dilated windows share lines with every `step`-th row.
  template <i64 K, i64 S, i64 W>
  POOLGRAD_LOOP bool compute_columns(Target to, i64 n, i64 rows, i64 depths) const {
    using V = Vec<T, static_cast<int>(W)>;
    using Partial = typename Op::template Partial<V>;
    constexpr i64 kShare = S * S * W * static_cast<i64>(sizeof(T));  // bytes of new inputs
    const i64 step = S == 1 ? p_.axis[1].dilation : 1;
    V nan_check{};
    for (i64 i = 0; i < n; i += W) {
      const i64 at = smaller(i, n - W);
      const bool edge = readable_ && (at * S < before_ || n - W < at + after_);
      decltype(V{} < V{}) valid[K]{};
      // Unrolled: masks that a loop indexes stay in memory.
      POOLGRAD_UNROLL
      for (i64 t = 0; t < K; ++t)
        if (edge) valid[t] = inside<S, V>(at, t);
      for (i64 from = 0; from < smaller(step, rows); ++from) {
        const T* const* line = nullptr;
        const char* next = nullptr;
        reduce_columns<Op, K, S, V>(
            (rows - from + step - 1) / step, depths, nan_check,
            [&](i64 k) {
              const DepthLines& lines = depth_lines_[k];
              line = lines.at + from;
              next = lines.next + (i / W * rows + from * rows / step) * kShare;
              Partial* partials = reinterpret_cast<Partial*>(lines.partials);
              return DepthSlice<Partial>{lines.first_tap,
                                         partials ? partials + i / W * kMaxBlockedRows : nullptr,
                                         lines.cached};
            },
            [&](V* value) {
              POOLGRAD_UNROLL
              for (i64 t = 0; t < K; ++t) value[t] = load_every<S, V>(*line + at * S, t, step);
              line += step;
              if (!edge) return;
              POOLGRAD_UNROLL
              for (i64 t = 0; t < K; ++t) value[t] = valid[t] ? value[t] : V{} + fill_;
            },
            [&] {
              for (i64 b = 0; b < kShare; b += 64, next += 64)
                caches_depths_ ? prefetch_line(next) : prefetch(next);
            },
            [&](i64 q, const auto& partial) {
              const i64 row = from + q * step;
              Op::store(to.line(row, n), at, partial);
              prefetch(to.line(row + rows, n).y + at);
            });
      }
    }
    return !Op::found_nan(nan_check, fill_);
  }

  // Computes outputs lo ... hi of `rows` rows with channels last, a vector of channels at a time.
  template <i64 K, i64 S>
  POOLGRAD_LOOP bool compute_channels(Target to, i64 oh, i64 rows, i64 lo, i64 hi) const {
    using V = Vec<T, static_cast<int>(kLanes)>;
    const Axis &height = p_.axis[1], &width = p_.axis[2];
    const i64 channels = p_.inner, length = p_.out_row(), first = oh * S - height.lo;
    const i64 step = x_.width, pitch = x_.height;  // not read again after each store
    const T* const plane = reinterpret_cast<const T*>(plane_);
    // Bytes are reduced faster than lines arrive from 2 KiB ahead.
    constexpr i64 kAhead = (sizeof(T) > 1 ? 1 : 2) * kPrefetchElements<T>;
    V nan_check{};
    const auto pixel = [&](i64 o, auto edge) __attribute__((always_inline)) {
      const i64 column = o * S - width.lo;
      for (i64 c = 0; c < channels; c += kLanes) {
        const i64 channel = smaller(c, channels - kLanes), at = (o - lo) * channels + channel;
        const T* from = plane + first * pitch + column * step + channel;
        i64 h = first;
        reduce_columns<Op, K, S, V>(
            rows, 1, nan_check,
            [&](i64) { return DepthSlice<typename Op::template Partial<V>>{0, nullptr, false}; },
            [&](V* value) {
              POOLGRAD_UNROLL
              for (i64 t = 0; t < K; ++t) {
                const bool inside =
                    !edge || (h >= 0 && h < height.in && column + t >= 0 && column + t < width.in);
                value[t] = inside ? load<V>(from + t * step) : V{} + fill_;
              }
              POOLGRAD_UNROLL
              for (i64 t = K - S; t < K; ++t) prefetch(from + t * step + kAhead);
              from += pitch, ++h;
            },
            [] {},
            [&](i64 q, const auto& partial) {
              const auto row = to.line(q, length);
              prefetch(row.y + at + kAhead);
              Op::store(row, at, partial);
            });
      }
    };
    const bool full = oh >= height.full_lo && oh + rows <= height.full_hi;
    for (i64 o = lo; o < hi; ++o) {
      if (full && o >= width.full_lo && o < width.full_hi) pixel(o, std::false_type{});
      else pixel(o, std::true_type{});
    }
    return !Op::found_nan(nan_check, fill_);
  }

  const Plan& p_;
  const View& x_;
  const i64 flips_;
  const T fill_;
  const bool used_;
  bool readable_ = false;       // lines are read in place
  i64 before_ = 0, after_ = 0;  // columns of padding that windows hold
  Range inputs_{};              // columns that windows hold
  i64 pitch_ = 0, depths_ = 0, rows_ = 0, lines_ = 0;
  T* copies_ = nullptr;
  DepthLines* depth_lines_ = nullptr;
  const T** lines_at_ = nullptr;  // the lines of all depths
  // Cached partial reductions of depths that several outputs share, for the lines from `first_` on.
  bool caches_depths_ = false;
  char* partials_ = nullptr;
  i64 partial_bytes_ = 0, first_ = 0, cached_depths_[kSlots];
  const char* plane_ = nullptr;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
