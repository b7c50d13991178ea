// Register-blocked backward pass of small square windows: computes several rows of input gradients
// at once. A vector moves down the columns of the outputs; each gradient is read once and added, in
// registers, to the sums of all inputs of its window.
#pragma once

#include "backward/gather.hpp"
#include "forward/register_blocked.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Routed: a gradient is added only to the input that the route names; else it is divided by the
// divisor and added to all inputs of the window.
template <class T, bool Routed>
class RegisterBlockedBackward {
 public:
  RegisterBlockedBackward(const Plan& p, const InputTile& tile, Dense gx, Arena& arena)
      : p_(p),
        tile_(tile),
        depths_(p.axis[0], tile.lo[0], tile.hi[0], max_windows(p.axis[0]), arena),
        max_rows_(
            larger(p.axis[2].stride,
                   smaller(kMaxRows, kBlockBytes / (p.axis[2].in * static_cast<i64>(sizeof(T)))))),
        gx_(gx, max_rows_ * p.axis[2].in, arena),
        nontemporal_(!p.axis[0].overlap &&
                     gx_.choose_nontemporal(p.axis[2].in,
                                            p.outer * p.in_plane() * static_cast<i64>(sizeof(T)))) {
    const Axis& a = p.axis[2];
    lo_ = ceil_div(a.lo - a.kernel + 1, a.stride);
    const i64 end = floor_div(a.in - 1 + a.lo, a.stride) + 1;
    valid_ = {larger(0, lo_), larger(larger(0, lo_), smaller(a.out, end))};
    pitch_ = ceil_div(end - lo_, kMargin) * kMargin;
    readable_ = lo_ >= 0 && end <= a.out;
    overreadable_ = lo_ > -a.out && end < 2 * a.out;
    lines_ = (max_rows_ + a.kernel) / a.stride + 2;
    const i64 depths = max_windows(p.axis[0]);
    copied_ = depths * lines_ * pitch_;
    gradients_ = arena.take<T>(copied_);
    routes_ = Routed ? arena.take<std::uint8_t>(copied_) : nullptr;
    lines_by_depth_ = arena.take<GradientLines>(depths);
    wide_ = Routed ? arena.take<u32>(pitch_) : nullptr;
    divisors_ = Routed ? nullptr : arena.take<T>(pitch_);
    row_divisors_ = Routed ? nullptr : arena.take<T>(depths * lines_);
    at_ = Routed ? nullptr : arena.take<const T*>(depths * lines_);
    discarded_ = arena.take<T>(a.in);
    rows_ = arena.take<T*>((lines_ + 2) * a.stride + a.kernel);
  }

  // Routed uses routes, the average uses the divisor.
  void run(const View& gy, const View* routes, Divisor divisor, i64 plane) {
    gy_ = &gy, routing_ = routes, divisor_ = divisor;
    if (!ready_) prepare();
    gradient_plane_ = plane_of(gy, plane);
    if constexpr (Routed) route_plane_ = plane_of(*routes, plane);
    const i64 n = p_.axis[2].in;
    for (i64 d = tile_.lo[0]; d < tile_.hi[0]; ++d) {
      for (i64 h = tile_.lo[1], count; h < tile_.hi[1]; h += count) {
        count = smaller(max_rows_, tile_.hi[1] - h);
        const i64 at = plane * p_.in_plane() + (d * p_.axis[1].in + h) * n;
        compute_block(d, h, count, gx_.reserve(at, count * n, false));
      }
    }
  }

 private:
  static constexpr i64 kMaxRows = 16, kMargin = 64;
  static constexpr i64 kSpare = 2;  // lines that must exist on both sides of a block read in place

  // The gradients and routes of a block of rows: column `lo_` of the first row and the pitch;
  // without routes, column `lo_` of each row and its divisor.
  struct GradientLines {
    const T* gradients;
    const std::uint8_t* routes;
    i64 gradient_pitch, route_pitch;
    u32 tap;  // the first tap of the windows at this depth
    const T* const* lines;
    const T* divisors;
    const char *gradients_next, *routes_next;  // addresses of the next block, for prefetch
  };

  void prepare() {
    ready_ = true;
    depths_.fill();
    std::fill(gradients_, gradients_ + copied_, T(0));
    if (Routed) std::memset(routes_, 0xFF, static_cast<std::size_t>(copied_));
    std::fill(discarded_, discarded_ + p_.axis[2].in, T(0));
    if constexpr (!Routed) {
      std::fill(divisors_, divisors_ + pitch_, T(1));
      divisor_.fill_row(p_, valid_.lo, valid_.hi, divisors_ + valid_.lo - lo_);
    }
  }

  // Computes inputs h ... h + count at depth d.
  void compute_block(i64 d, i64 h, i64 count, T* to) {
    const Axis &height = p_.axis[1], &width = p_.axis[2];
    const i64 begin = h + height.lo, n = width.in;
    const i64 first = ceil_div(begin - height.kernel + 1, height.stride);
    const i64 lines = floor_div(begin + count - 1, height.stride) + 1 - first;
    for (i64 j = 0; j < (lines + 1) * height.stride + height.kernel; ++j) {
      const i64 row = first * height.stride + j - begin;
      rows_[j] = row >= 0 && row < count ? to + row * n : discarded_;
    }
    const auto inverse_taps = depths_[d];
    if (inverse_taps.begin() == inverse_taps.end()) return std::fill(to, to + count * n, T(0));
    i64 depths = 0;
    for (const auto& depth : inverse_taps) {
      lines_by_depth_[depths] = gradient_lines(depth.output, first, lines, depths * lines_);
      lines_by_depth_[depths].tap = static_cast<u32>(depth.tap * height.kernel * width.kernel);
      ++depths;
    }
    by_shape(width, [&](auto kernel, auto stride) {
      by_width<T>(n / stride, [&](auto w) {
        constexpr i64 kColumns = stride() * w();
        for (i64 i = 0; i < n; i += kColumns) {
          const i64 column = smaller(i, n - kColumns);
          const bool even = (column + width.lo) % stride == 0;
          for (i64 k = 0; k < depths; ++k) {
            const bool fresh = k == 0;
            if (even)
              accumulate<kernel(), stride(), 0, w()>(column, i, lines_by_depth_[k], lines, fresh);
            else
              accumulate<kernel(), stride(), stride() - 1, w()>(column, i, lines_by_depth_[k],
                                                                lines, fresh);
          }
        }
      });
    });
  }

  // Finds lines of gradients from `first` on: in the array, or copied to lines from `line` on, with
  // zeros around them. A gradient whose route is kNowhere may be any number, so reads may overrun
  // into the neighbouring line.
  GradientLines gradient_lines(i64 od, i64 first, i64 lines, i64 line) {
    const View& g = *gy_;
    const i64 outs = p_.axis[1].out, route = line * pitch_;
    const bool plain = g.dtype == DtypeOf<T>::value && g.width == 1;
    const bool inside = plain && readable_ && first >= 0 && first + lines <= outs;
    const auto* source =
        reinterpret_cast<const T*>(gradient_plane_) + od * g.depth + first * g.height + lo_;
    GradientLines block{gradients_ + route,
                        routes_ + route,
                        pitch_,
                        pitch_,
                        0,
                        at_ + line,
                        row_divisors_ + line,
                        row_at(g, gradient_plane_, od, first + lines),
                        nullptr};
    const bool dense = plain && overreadable_ && g.height == p_.axis[2].out;
    if constexpr (Routed) {
      const View& r = *routing_;
      block.routes_next = row_at(r, route_plane_, od, first + lines);
      if (inside && r.dtype == Dtype::uint8 && r.width == 1) {
        block.gradients = source, block.gradient_pitch = g.height;
        block.routes = reinterpret_cast<const std::uint8_t*>(row_at(r, route_plane_, od, first));
        block.route_pitch = r.height;
        return block;
      }
    } else {
      for (i64 i = 0; i < lines; ++i) {
        const i64 oh = first + i;
        // A read beyond the ends of a line returns elements of the neighbouring lines, which are
        // masked.
        const bool exists = oh >= 0 && oh < outs, between_lines = dense && oh > 0 && oh + 1 < outs;
        const bool in_place = between_lines || (exists && plain && readable_);
        if (!in_place) copy(od, oh, line + i, true);
        at_[line + i] = in_place ? source + i * g.height : gradients_ + route + i * pitch_;
        row_divisors_[line + i] = exists ? static_cast<T>(divisor_.of_rows(p_, od, oh)) : T(1);
      }
      return block;
    }
    const bool within = dense && first > kSpare && first + lines < outs - kSpare;
    for (i64 i = 0; i < lines; ++i) copy(od, first + i, line + i, !within);
    if (within) block.gradients = source, block.gradient_pitch = g.height;
    return block;
  }

  // Returns the address of column `lo_` of a row. Row and column may lie outside the array.
  const char* row_at(const View& v, const char* plane, i64 od, i64 oh) const {
    return plane + (od * v.depth + oh * v.height + lo_ * v.width) * size_of(v.dtype);
  }

  // Copies a line of routes and, if wanted, of gradients.
  POOLGRAD_LOOP void copy(i64 od, i64 oh, i64 line, bool gradients) {
    const i64 n = valid_.hi - valid_.lo, offset = line * pitch_ + valid_.lo - lo_;
    T* to = gradients_ + offset;
    std::uint8_t* routes = Routed ? routes_ + offset : nullptr;
    if (oh < 0 || oh >= p_.axis[1].out) {
      if (Routed) std::memset(routes, 0xFF, static_cast<std::size_t>(n));
      return std::fill(to, to + n, T(0));
    }
    if (gradients) copy_row(*gy_, gradient_plane_, od, oh, valid_.lo, valid_.hi, false, to);
    if constexpr (Routed) {
      const View& r = *routing_;
      if (r.dtype == Dtype::uint8 && r.width == 1) {
        const auto* from = reinterpret_cast<const std::uint8_t*>(route_plane_);
        copy_run(from + od * r.depth + oh * r.height + valid_.lo, routes, n);
      } else {
        const u32* from = row_of(r, route_plane_, 1, od, oh, valid_.lo, valid_.hi, wide_);
        for (i64 i = 0; i < n; ++i) routes[i] = static_cast<std::uint8_t>(smaller(from[i], 0xFF));
      }
    }
  }

  // Adds the gradients of a line of outputs, along their routes, to the inputs of phase c. base:
  // the output, counted from `lo_`, whose window begins with the first input.
  template <i64 K, i64 S, i64 P, i64 W>
  struct RoutedLine {
    using V = Vec<T, static_cast<int>(W)>;
    using Routes = Vec<WideRoute<T>, static_cast<int>(W)>;

    const T* g;
    const std::uint8_t* r;
    i64 gradient_pitch, route_pitch;
    Routes wanted[K][K];

    RoutedLine(const RegisterBlockedBackward&, const GradientLines& source, i64 base)
        : g(source.gradients + base),
          r(source.routes + base),
          gradient_pitch(source.gradient_pitch),
          route_pitch(source.route_pitch) {
      POOLGRAD_UNROLL
      for (i64 k = 0; k < K * K; ++k)
        wanted[k / K][k % K] = Routes{} + (source.tap + static_cast<u32>(k));
    }
    void open(i64) {}
    void close() { g += gradient_pitch, r += route_pitch; }

    POOLGRAD_INLINE void add_line(i64 c, V (&sums)[K][S]) const {
      POOLGRAD_UNROLL
      for (i64 k = K - 1; k >= 0; --k) {
        if ((c + P - k) % S != 0) continue;
        const i64 away = (c + P - k) / S;
        const V gradient = load<V>(g + away);
        const Routes route =
            convert<WideRoute<T>>(load<Vec<std::uint8_t, static_cast<int>(W)>>(r + away));
        POOLGRAD_UNROLL
        for (i64 j = 0; j < K; ++j) sums[j][c] += route == wanted[j][k] ? gradient : V{};
      }
    }
  };

  // Adds equal shares of the gradients of a line of outputs to the inputs of phase c. The gradients
  // are divided when they are read, in one vector for each distance; of three neighbouring vectors,
  // the middle one is a shuffle of the other two.
  template <i64 K, i64 S, i64 P, i64 W>
  struct AverageLine {
    using V = Vec<T, static_cast<int>(W)>;
    using Mask = decltype(V{} < V{});
    // The first output whose gradient an input of some phase receives, counted from `base`, and the
    // number of such outputs.
    static constexpr i64 kFirst = P >= K - 1 ? (P - K + S) / S : -((K - 1 - P) / S);
    static constexpr i64 kMany = (S - 1 + P) / S - kFirst + 1;

    const T* const* lines;
    const T* rows;
    const i64 first;  // column
    bool edge;        // whether a vector reaches beyond the outputs
    V divisors[kMany], share[kMany];
    Mask real[kMany];

    AverageLine(const RegisterBlockedBackward& of, const GradientLines& source, i64 base)
        : lines(source.lines), rows(source.divisors), first(base + kFirst) {
      using I = std::remove_cvref_t<decltype(Mask{}[0])>;
      const i64 begin = of.valid_.lo - of.lo_, end = of.valid_.hi - of.lo_;
      edge = first < begin || first + kMany - 1 + W > end;
      for (i64 k = 0; k < kMany; ++k) {
        divisors[k] = load<V>(of.divisors_ + first + k);
        for (i64 j = 0; edge && j < W; ++j) {
          const i64 column = first + k + j;
          real[k][j] = static_cast<I>(column >= begin && column < end ? -1 : 0);
        }
      }
    }
    POOLGRAD_INLINE void open(i64 q) {
      POOLGRAD_UNROLL
      for (i64 k = 0; k < kMany; ++k) {
        if (kMany == 3 && k == 1) continue;
        share[k] = load<V>(lines[q] + first + k) / (rows[q] * divisors[k]);
        if (edge) share[k] = real[k] ? share[k] : V{};
      }
      if constexpr (kMany == 3) {  // lanes 1, 2, ..., and one more
        share[1] = [&]<int... J>(std::integer_sequence<int, J...>) {
          constexpr int last = static_cast<int>(2 * W) - 2;
          return __builtin_shufflevector(share[0], share[2], (J + 1)..., last);
        }(std::make_integer_sequence<int, static_cast<int>(W) - 1>{});
      }
    }
    void close() {}

    POOLGRAD_INLINE void add_line(i64 c, V (&sums)[K][S]) const {
      V line{};
      POOLGRAD_UNROLL
      for (i64 k = K - 1; k >= 0; --k) {
        if ((c + P - k) % S == 0) line += share[(c + P - k) / S - kFirst];
      }
      POOLGRAD_UNROLL
      for (i64 j = 0; j < K; ++j) sums[j][c] += line;
    }
  };

  // Computes the inputs from `column` on of all rows, W of each phase; those before `from` are
  // complete. P: the first phase, 0 or S - 1. Adds in ascending order of outputs. fresh: the sums
  // begin with zero, else with the values in the rows.
  template <i64 K, i64 S, i64 P, i64 W>
  POOLGRAD_LOOP void accumulate(i64 column, i64 from, GradientLines source, i64 lines,
                                bool fresh) const {
    using V = Vec<T, static_cast<int>(W)>;
    const i64 base = floor_div(column + p_.axis[2].lo, S) - lo_;
    const i64 gradient_step = gy_->height * size_of(gy_->dtype);
    const i64 route_step = Routed ? routing_->height * size_of(routing_->dtype) : 0;
    const char* gradients_next = source.gradients_next + base * gy_->width * size_of(gy_->dtype);
    const char* routes_next =
        Routed ? source.routes_next + base * routing_->width * size_of(routing_->dtype) : nullptr;
    std::conditional_t<Routed, RoutedLine<K, S, P, W>, AverageLine<K, S, P, W>> line(*this, source,
                                                                                     base);
    constexpr bool kLines = S * W * sizeof(T) % kLineBytes == 0;
    const bool nontemporal = kLines && nontemporal_;
    V sums[K][S];
    const auto begin = [&](i64 j, const T* row) {
      if (fresh) {
        POOLGRAD_UNROLL
        for (i64 c = 0; c < S; ++c) sums[j][c] = V{};
      } else if constexpr (S == 1) {
        sums[j][0] = load<V>(row);
      } else {
        sums[j][0] = load_stride_2<V>(row, false), sums[j][1] = load_stride_2<V>(row + 1, true);
      }
    };
    POOLGRAD_UNROLL
    for (i64 j = 0; j < K; ++j) begin(j, rows_[j] + column);
    for (i64 q = 0; q < lines; ++q) {
      line.open(q);
      POOLGRAD_UNROLL
      for (i64 c = 0; c < S; ++c) line.add_line(c, sums);
      line.close();
      prefetch(gradients_next), gradients_next += gradient_step;
      if constexpr (Routed) prefetch(routes_next), routes_next += route_step;
      POOLGRAD_UNROLL
      for (i64 j = 0; j < S; ++j) {
        T* to = rows_[q * S + j] + column;
        V sums_in_order[S];
        if constexpr (S == 1) sums_in_order[0] = sums[j][0];
        else interleave(sums[j][0], sums[j][1], sums_in_order);
        POOLGRAD_UNROLL
        for (i64 c = 0; c < S; ++c) {
          if (nontemporal && to != discarded_ + column) {
            if (column + c * W >= from) store_nontemporal(to + c * W, sums_in_order[c]);
          } else {
            if (fresh) prefetch(to + lines * S * p_.axis[2].in + c * W);
            store(to + c * W, sums_in_order[c]);
          }
        }
      }
      POOLGRAD_UNROLL
      for (i64 j = 0; j < K - S; ++j) {
        POOLGRAD_UNROLL
        for (i64 c = 0; c < S; ++c) sums[j][c] = sums[j + S][c];
      }
      POOLGRAD_UNROLL
      for (i64 j = K - S; j < K; ++j) begin(j, rows_[(q + 1) * S + j] + column);
    }
  }

  const Plan& p_;
  const InputTile tile_;
  InverseTaps depths_;
  const i64 max_rows_;  // rows of inputs at once
  RowWriter<T> gx_;
  const bool nontemporal_;
  i64 lo_, pitch_, lines_, copied_;  // the first column of a block; of lines
  Range valid_;                      // the columns of outputs that exist
  bool readable_;                    // lines may be read in place
  bool overreadable_;  // lines may be read in place with elements of neighbouring lines
  bool ready_ = false;
  T *gradients_, *divisors_, *row_divisors_, *discarded_;
  const T** at_;  // lines that are not routed
  std::uint8_t* routes_;
  u32* wide_;
  T** rows_;                       // where rows of input gradients are stored
  GradientLines* lines_by_depth_;  // one entry for each depth of outputs
  const View *gy_ = nullptr, *routing_ = nullptr;
  const char *gradient_plane_ = nullptr, *route_plane_ = nullptr;
  Divisor divisor_{};
};

}  // namespace poolgrad::inline POOLGRAD_ISA
