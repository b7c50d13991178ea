// Two-dimensional van Herk/Gil-Werman method (van Herk 1992; Gil & Werman 1993) for wide windows of
// neighbouring outputs. Rows of inputs are reduced along the width by log-step doubling, then along
// the height: rows are divided into blocks of a window's height, so each window is a suffix of one
// block and a prefix of the next. Both are computed row by row, so the cost is three operations for
// any height. Suffix and prefix share no row, so the method is exact for sums, too. Two of the
// operations are done while a row is in registers: an output is complete as soon as its last input
// is read. With channels last, where a vector holds channels of one pixel, maxima along the width
// use the same method.
#pragma once

#include <optional>

#include "choose.hpp"
#include "forward/log_step_doubling.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

inline constexpr i64 kVanHerkBytes = 1 << 19;  // bytes of a block of rows
inline constexpr i64 kGroupLength = 1 << 10;   // elements of the rows that are read together

// Van Herk/Gil-Werman along rows of pixels, a vector of channels each, in blocks of a window's
// width: calls visit(line, i, partial, lanes) for each pixel. ends: memory for the suffixes of a
// block.
template <class Op, class Visitor>
POOLGRAD_LOOP void van_herk_along_pixels(const Axis& a, const typename Op::In* from, i64 pitch,
                                         i64 rows, i64 columns, i64 lanes, typename Op::Row ends,
                                         const Visitor& original, typename Visitor::Line line) {
  using T = typename Op::In;
  constexpr i64 W = kVectorBytes / static_cast<i64>(sizeof(T));
  using Partial = typename Op::template Partial<Vec<T, W>>;
  const i64 kernel = a.kernel, dilation = a.dilation, gap = dilation * W;
  const Visitor visit = original;  // in registers
  const auto part = [&](i64 begin) __attribute__((always_inline)) {
    const T* block = from + begin * W;
    const auto input = [&](i64 j) __attribute__((always_inline)) {
      return Op::begin(load<Vec<T, W>>(block + j * gap), static_cast<u32>(j));
    };
    Partial sum = input(kernel - 1);
    Op::store_partial(Op::at(ends, (kernel - 1) * W), sum);
    for (i64 j = kernel - 1; j-- > 0;) {  // the suffix of the block from j on
      Partial partial = input(j);
      Op::merge(partial, sum);
      Op::store_partial(Op::at(ends, j * W), sum = partial);
    }
    visit(line, begin * W, sum, lanes);
    const i64 windows = smaller(kernel, ceil_div(columns - begin, dilation));
    for (i64 j = 1; j < windows; ++j) {  // completes the window that begins with j
      const Partial next = input(kernel + j - 1);
      if (j == 1) sum = next;
      else Op::merge(sum, next);
      Partial partial = Op::template load_partial<Partial>(Op::at(ends, j * W), 0);
      Op::merge(partial, sum);
      visit(line, begin * W + j * gap, Op::shifted_back(partial, static_cast<u32>(j)), lanes);
    }
  };
  for (i64 r = 0; r < rows; ++r, from += pitch, visit.next(line)) {
    for (i64 first = 0; first < smaller(dilation, columns); ++first) {
      for (i64 begin = first; begin < columns; begin += kernel * dilation) part(begin);
    }
  }
}

// Op loads, merges and stores partial reductions of a window, lane by lane. kNeedsFinite: planes
// with a NaN or an infinity are not reduced.
template <class Op>
class VanHerk2d {
 public:
  using T = typename Op::In;
  using Row = typename Op::Row;
  static constexpr i64 W = kVectorBytes / static_cast<i64>(sizeof(T));
  using V = Vec<T, W>;

  // The part of a tile that is computed at a time, so that blocks stay in the second cache: some
  // columns and, with channels last, a vector of channels.
  struct Patch {
    Tile tile;
    i64 channel, channels;  // all channels, if they are few
    bool by_pixel;
    i64 strips;  // vectors of a row: of neighbours, or one a pixel
    i64 lanes(i64 strip) const {
      if (by_pixel) return channels;
      return smaller(W, (tile.hi[2] - tile.lo[2]) * channels - strip * W);
    }
  };

  VanHerk2d(const Plan& plan, const View& x, const Tile& tile, const ReadOptions<T>& options,
            const Op& op, Arena& arena)
      : p_(plan),
        x_(x),
        tile_(tile),
        options_(options),
        by_pixel_(plan.inner > 1 && 2 * plan.inner >= W),
        column_elements_(by_pixel_ ? W : plan.inner),
        vectors_(by_pixel_ ? ceil_div(plan.inner, W) : 1),
        columns_(columns_at_a_time(op)),
        shift_(plan.axis[1].first * plan.axis[1].stride % plan.axis[1].kernel) {
    pieces_ = ceil_div(tile.hi[2] - tile.lo[2], columns_);
    const i64 pitch = pitch_of(columns_);
    group_ = larger(1, kGroupLength / pitch);
    block_ = op.take(arena, plan.axis[1].kernel * pitch);
    above_ = op.take(arena, pitch);
    row_ = op.take(arena, pitch);
    doubled_ = op.take(arena, pitch);
    raw_ = arena.take<T>(group_ * pitch);
    std::size_t bytes = 0;
    for (i64 k = 0; k < pieces_; ++k) {
      const Tile part = part_of(k);
      Arena measure;
      Reader<T>(plan, x, part.lo[2], part.hi[2], options, measure);
      bytes = measure.used() > bytes ? measure.used() : bytes;
    }
    scratch_ = arena.take<char>(static_cast<i64>(bytes));
  }
  VanHerk2d(const VanHerk2d&) = delete;
  VanHerk2d& operator=(const VanHerk2d&) = delete;

  i64 patches() const { return pieces_ * vectors_; }

  // Rows of outputs that are computed together at most, and their elements.
  i64 max_rows() const {
    const Axis& a = p_.axis[1];
    return smaller(tile_.hi[1] - tile_.lo[1], ceil_div(a.kernel, a.stride));
  }
  i64 max_elements() const { return max_rows() * pitch_of(columns_); }

  // Computes a patch of a plane, some rows at a time. open(patch, first row, rows) returns
  // emit(row, strip, partial, offset of the tap index, lanes), which is called in any order;
  // close(patch, first row, rows) follows. Returns false if Op needs finite inputs and one is not;
  // the patch is then incomplete.
  template <class Open, class Close>
  bool compute_patch(const char* plane, i64 k, Open&& open, Close&& close) {
    const Axis& a = p_.axis[1];
    const Patch patch = begin(plane, k);
    const i64 end = patch.tile.hi[1];
    i64 block = (patch.tile.lo[1] * a.stride + shift_) / a.kernel;
    if (!rows_of<false>(block, 0, 0, a.kernel, [](auto&&...) {})) return false;
    for (i64 oh = patch.tile.lo[1], rows; oh < end; oh += rows) {
      compute_suffixes(block++);
      rows = smaller(end, ceil_div(block * a.kernel - shift_, a.stride)) - oh;
      const bool more = oh + rows < end;
      const i64 needed =
          more ? a.kernel : (end - 1) * a.stride + shift_ - (block - 1) * a.kernel + 1;
      if (!rows_of<true>(block, oh, rows, needed, open(patch, oh, rows))) return false;
      close(patch, oh, rows);
    }
    return true;
  }

 private:
  static constexpr i64 kStrips = 2;  // interleaved, to hide the latency of operations

  i64 columns_at_a_time(const Op& op) const {
    const i64 all = tile_.hi[2] - tile_.lo[2], shared = reach(p_.axis[2]);
    Arena measure;
    (void)op.take(measure, p_.axis[1].kernel * 64);
    const i64 fitting = kVanHerkBytes / static_cast<i64>(measure.used()) * 64 / column_elements_;
    const i64 max_columns = larger(larger(1, fitting - shared), shared);
    const i64 equal = ceil_div(all, ceil_div(all, max_columns));
    return column_elements_ > 1 ? equal : ceil_div(equal, kLine) * kLine;
  }

  // Elements from one row to the next: whole vectors.
  i64 pitch_of(i64 columns) const {
    return ceil_div((columns + reach(p_.axis[2])) * column_elements_, W) * W;
  }

  Tile part_of(i64 k) const {
    Tile part = tile_;
    part.lo[2] = tile_.lo[2] + k * columns_;
    part.hi[2] = smaller(tile_.hi[2], part.lo[2] + columns_);
    return part;
  }

  Patch begin(const char* plane, i64 k) {
    const i64 piece = k / vectors_, channel = k % vectors_ * W;
    const Tile part = part_of(piece);
    const i64 columns = part.hi[2] - part.lo[2];
    const i64 channels = by_pixel_ ? smaller(W, p_.inner - channel) : p_.inner;
    patch_ = {part, channel, channels, by_pixel_, ceil_div(columns * column_elements_, W)};
    pitch_ = pitch_of(columns);
    if (piece != piece_) {
      piece_ = piece;
      Arena arena(scratch_);
      reader_.emplace(p_, x_, part.lo[2], part.hi[2], options_, arena);
      const Axis& a = p_.axis[2];
      origin_ = part.lo[2] - a.lo;
      const i64 read = columns + reach(a);
      valid_.lo = smaller(read, larger(0, -origin_));
      valid_.hi = larger(valid_.lo, smaller(read, a.in - origin_));
      std::fill(raw_, raw_ + group_ * pitch_, Op::kFill);
    }
    reader_->start(plane);
    return patch_;
  }

  // Returns the rows of a block that lie in the input and in a later window.
  Range valid_rows(i64 block) const {
    const Axis& a = p_.axis[1];
    const i64 first = block * a.kernel - shift_ - a.lo;
    const i64 end = smaller(a.in, (tile_.hi[1] - 1) * a.stride - a.lo + a.kernel);
    const i64 lo = smaller(a.kernel, larger(0, -first));
    return {lo, larger(lo, smaller(a.kernel, end - first))};
  }

  // Visitor of rows that are reduced along the width. Row j of the previous block holds the suffix
  // from j on; the window that begins with it is complete when merged with the prefix of the new
  // block. The new row then replaces row j.
  template <bool kEmits, class Emit>
  struct RowVisitor {
    using Partial = typename Op::template Partial<V>;
    struct Line {
      i64 row, q;  // of the block, and the next row of outputs
    };
    const Emit emit;
    const Row block, above;
    const i64 pitch, rows, taps_per_row;  // rows of a block, and the taps of one
    const i64 first, stride, outputs;     // where windows begin, and how many
    const i64 valid;                      // the first row of inputs

    POOLGRAD_INLINE bool completes_window(Line at) const {
      return kEmits && at.q < outputs && at.row == first + at.q * stride;
    }
    POOLGRAD_INLINE void operator()(Line at, i64 i, const Partial& partial, i64 lanes) const {
      emit_row(at, i, lanes);
      Op::store_partial(Op::at(block, at.row * pitch + i), partial);
      if constexpr (kEmits) {  // tap indices count from the first row of the previous block
        const u32 below = static_cast<u32>(taps_per_row * (rows + at.row));
        Partial all = Op::shifted_back(partial, -below);
        if (at.row > valid) {
          all = Op::template load_partial<Partial>(Op::at(above, i), 0);
          Op::merge(all, partial, below);
        }
        Op::store_partial(Op::at(above, i), all);
      }
    }
    POOLGRAD_INLINE void emit_row(Line at, i64 i, i64 lanes) const {
      if constexpr (kEmits) {
        if (!completes_window(at)) return;
        Partial partial = Op::template load_partial<Partial>(Op::at(block, at.row * pitch + i), 0);
        if (at.row > valid)
          Op::merge(partial, Op::template load_partial<Partial>(Op::at(above, i), 0));
        emit(at.q, i / W, partial, static_cast<u32>(taps_per_row * at.row), lanes);
      }
    }
    POOLGRAD_INLINE void next(Line& at) const {
      at.q += completes_window(at);
      ++at.row;
    }
  };

  // Reads rows of a block and computes the outputs whose windows begin in the previous block.
  // Returns false if an input is not finite.
  template <bool kEmits, class Emit>
  bool rows_of(i64 block, i64 oh, i64 outputs, i64 rows, const Emit& emit) {
    const Axis& a = p_.axis[1];
    const Range valid = valid_rows(block);
    const RowVisitor<kEmits, Emit> visitor{emit,
                                           block_,
                                           above_,
                                           pitch_,
                                           a.kernel,
                                           p_.axis[2].kernel,
                                           oh * a.stride + shift_ - (block - 1) * a.kernel,
                                           a.stride,
                                           outputs,
                                           valid.lo < valid.hi ? valid.lo : a.kernel};
    typename RowVisitor<kEmits, Emit>::Line at{0, 0};
    while (at.row < rows) {
      const i64 n = at.row < valid.lo ? 0 : smaller(group_, smaller(valid.hi, rows) - at.row);
      if (n > 0) {
        if (!copy(block * a.kernel - shift_ - a.lo + at.row, n)) return false;
        along_width(raw_, n, visitor, at);
      } else {
        visit_padding_row(visitor, at);
      }
      for (i64 r = 0; r < larger(1, n); ++r) visitor.next(at);
    }
    return true;
  }

  // Emits outputs and clears the block's row where the input has no row (padding).
  template <bool kEmits, class Emit>
  POOLGRAD_LOOP void visit_padding_row(const RowVisitor<kEmits, Emit>& original,
                                       typename RowVisitor<kEmits, Emit>::Line line) const {
    const auto visitor = original;  // in registers
    for (i64 s = 0; s < patch_.strips; ++s) visitor.emit_row(line, s * W, patch_.lanes(s));
    Op::clear(Op::at(block_, line.row * pitch_), pitch_);
  }

  // Copies rows of inputs to `raw_`, between padding. Returns false if Op needs finite inputs and
  // the sum of the inputs is not finite.
  POOLGRAD_LOOP bool copy(i64 h, i64 rows) {
    const i64 step = reader_->step(), columns = valid_.hi - valid_.lo;
    const i64 prefetch_distance = reader_->direct() ? group_ * x_.height : 0;
    V finite_check{};
    const auto run = [&](const T* from, T* to, i64 n) __attribute__((always_inline)) {
      i64 i = 0;
      for (; i + W <= n; i += W) {
        const V v = load<V>(from + i);
        prefetch(from + i + prefetch_distance);
        store(to + i, v);
        if constexpr (Op::kNeedsFinite) finite_check += v;
      }
      if (i == n) return;
      const V v = load_first<V>(from + i, n - i);
      store_first(to + i, v, n - i);
      if constexpr (Op::kNeedsFinite) finite_check += v;
    };
    for (i64 r = 0; r < rows; ++r) {
      const T* row = reader_->direct() ? reader_->at(0, h + r) : reader_->row(0, h + r);
      const T* from = row + (origin_ + valid_.lo) * step + patch_.channel;
      T* to = raw_ + r * pitch_ + valid_.lo * column_elements_;
      if (step == column_elements_ && step == patch_.channels) run(from, to, columns * step);
      else
        for (i64 c = 0; c < columns; ++c)
          run(from + c * step, to + c * column_elements_, patch_.channels);
    }
    return !Op::kNeedsFinite || !any(finite_check - finite_check != T(0));
  }

  // Reduces rows along the width, vector by vector.
  template <bool kEmits, class Emit>
  void along_width(const T* from, i64 rows, const RowVisitor<kEmits, Emit>& visitor,
                   typename RowVisitor<kEmits, Emit>::Line line) const {
    const Axis& a = p_.axis[2];
    const i64 columns = patch_.tile.hi[2] - patch_.tile.lo[2];
    if (by_pixel_ && !Op::kRounds) {
      return van_herk_along_pixels<Op>(a, from, pitch_, rows, columns, patch_.channels, doubled_,
                                       visitor, line);
    }
    const i64 outputs = columns * column_elements_;
    const LogStepDoubling<Op> doubling(a.kernel);
    if (column_elements_ == 1 && a.dilation == 1 && doubling.fits()) {
      return doubling.reduce_rows(from, pitch_, rows, outputs, visitor, line);
    }
    for (i64 r = 0; r < rows; ++r, from += pitch_, visitor.next(line)) {
      double_up<Op>(a, from, outputs, column_elements_, doubled_, row_);
      visit_reduced_row(visitor, line);
    }
  }

  template <bool kEmits, class Emit>
  POOLGRAD_LOOP void visit_reduced_row(const RowVisitor<kEmits, Emit>& original,
                                       typename RowVisitor<kEmits, Emit>::Line line) const {
    using Partial = typename Op::template Partial<V>;
    const auto visitor = original;  // in registers
    for (i64 s = 0; s < patch_.strips; ++s) {
      visitor(line, s * W, Op::template load_partial<Partial>(Op::at(row_, s * W), 0),
              patch_.lanes(s));
    }
  }

  // Replaces each row of a block by the suffix reduction of the block from this row on.
  void compute_suffixes(i64 block) const {
    i64 s = 0;
    for (; s + kStrips <= patch_.strips; s += kStrips) compute_suffix_strips<kStrips>(block, s);
    for (; s < patch_.strips; ++s) compute_suffix_strips<1>(block, s);
  }

  template <i64 Strips>
  POOLGRAD_LOOP void compute_suffix_strips(i64 block, i64 s) const {
    using Partial = typename Op::template Partial<V>;
    const i64 pitch = pitch_;
    const u32 line = static_cast<u32>(p_.axis[2].kernel);
    const Range valid = valid_rows(block);
    const Row strips = Op::at(block_, s * W);
    const auto at = [&](i64 j, i64 k) { return Op::at(strips, j * pitch + k * W); };
    Partial sums[Strips]{};
    for (i64 j = valid.hi; j-- > valid.lo;) {
      POOLGRAD_UNROLL
      for (i64 k = 0; k < Strips; ++k) {
        Partial partial = Op::template load_partial<Partial>(at(j, k), line * static_cast<u32>(j));
        if (j < valid.hi - 1) Op::merge(partial, sums[k]);
        Op::store_partial(at(j, k), sums[k] = partial);
      }
    }
    for (i64 j = 0; valid.lo < valid.hi && j < valid.lo; ++j) {
      for (i64 k = 0; k < Strips; ++k) Op::store_partial(at(j, k), sums[k]);
    }
  }

  static constexpr i64 kLine = 64;

  const Plan& p_;
  const View& x_;
  const Tile tile_;
  const ReadOptions<T> options_;
  const bool by_pixel_;         // a strip is a pixel
  const i64 column_elements_;   // elements of a column
  const i64 vectors_;           // vectors of channels
  const i64 columns_;           // columns of a patch
  const i64 shift_;             // rows of the first block that belong to other windows
  i64 pieces_ = 1, group_ = 1;  // rows that are read together
  Row block_{};                 // rows of a block
  Row above_{};                 // prefix reduction of the next block
  Row row_{}, doubled_{};
  T* raw_ = nullptr;
  char* scratch_ = nullptr;  // memory of reader_
  std::optional<Reader<T>> reader_;
  Patch patch_{};
  i64 piece_ = -1, pitch_ = 0;
  i64 origin_ = 0;  // input column of tap 0 of the first window of a row
  Range valid_{};   // columns of a copied row that are inputs, counted from origin_
};

}  // namespace poolgrad::inline POOLGRAD_ISA
