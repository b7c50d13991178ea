// Unrolled windows: reads all taps of each window and reduces them in registers. An input is read
// once for every window that holds it, so the algorithm suits windows that share little.
#pragma once

#include "base/common.hpp"
#include "choose.hpp"
#include "forward/row_reader.hpp"
#include "forward/row_writer.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Elements of a row of pixels that are computed at a time, with channels last.
inline constexpr i64 kUnrolledPixelElements = 512;

// Loads tap t of W windows that lie S columns apart. Taps are `step` apart where S is 1, else one.
template <i64 S, class V, class T>
POOLGRAD_INLINE V load_every(const T* from, i64 t, i64 step) {
  if constexpr (S == 1) return load<V>(from + t * step);
  else if constexpr (S == 2) return load_stride_2<V>(from + t, t > 0);
  else return load_stride_3<V>(from, t);
}

// Whether `store` compiles to so much code that it is compiled for one vector width, with masked
// tails.
template <class Op>
concept Heavy = requires { requires Op::kHeavy; };

// Computes rows of outputs. Op provides `first`, `take` and `store` for the partial reduction of a
// window, lane by lane. Target: pointers to the outputs. kPads: padding may be replaced by kFill,
// which changes no result unless may_be_padding() returns true. kByLines: each line of taps is
// reduced on its own, then lines are merged, so that all algorithms round alike.
template <class Op>
class Unrolled {
 public:
  using T = typename Op::In;
  using Target = typename Op::Target;

  POOLGRAD_LOOP Unrolled(const Plan& plan, const View& x, const Tile& tile, i64 flips, Arena& arena)
      : p_(plan),
        x_(x),
        tile_(tile),
        reader_(plan, x, tile.lo[2], tile.hi[2], reading(plan, flips), arena),
        step_(reader_.step()),
        uniform_(plan.inner == 1 && reader_.direct() && is_unpadded(plan.axis[2])),
        piece_(plan.inner == 1 ? tile.hi[2] - tile.lo[2]
                               : larger(1, kUnrolledPixelElements / plan.inner)) {}

  void start(const char* plane) { reader_.start(plane); }

  // Calls each(first element, elements, compute) for one piece of a row after the other;
  // compute(target) computes the piece.
  template <class Each>
  void row(i64 od, i64 oh, Each&& each) {
    if (uniform_ && is_full(p_.axis[0], od) && is_full(p_.axis[1], oh))
      return compute_uniform_row(od, oh, each);
    list_rows(od, oh);
    const i64 from = tile_.lo[2];
    for (i64 lo = from, hi; lo < tile_.hi[2]; lo = hi) {
      hi = smaller(tile_.hi[2], lo + piece_);
      each((lo - from) * p_.inner, (hi - lo) * p_.inner,
           [&](Target to) { compute_outputs(lo, hi, to); });
    }
  }

  // Columns lo ... hi of a row.
  void compute_columns(i64 od, i64 oh, i64 lo, i64 hi, const Target& to) {
    list_rows(od, oh);
    compute_outputs(lo, hi, to);
  }

  struct Tap {
    const T* at;
    u32 tap_index;
  };
  struct Taps {
    const Tap* list;
    i64 count, line;  // number of taps, and of taps in a line
  };

  // Whether neighbouring taps are loaded together: at stride 2 one shuffle separates them. Not
  // compiled for reductions whose time is mostly arithmetic, and for rare types.
  static constexpr bool kReadsTogether = kSpecialised<T> || !Heavy<Op>;
  static bool is_paired(const Axis& a) {
    return kReadsTogether && a.dilation == 1 && a.stride <= 2 && (a.kernel == 2 || a.kernel == 3);
  }

  // Computes n neighbouring outputs from taps at `offset`, which step from one output to the next.
  // together: the number of neighbours that are loaded at each tap; 0: each tap is one input.
  static void reduce_row(const Target& to, i64 n, i64 offset, const Taps& taps, i64 step,
                         i64 together) {
    // Square windows of finite inputs whose other settings are compile-time constants.
    if constexpr (requires { requires Op::kHasFixedSquares; }) {
      const auto squares = [&](auto kernel, auto stride) {
        constexpr int kTaps = kernel() * kernel();
        return taps.count == kernel && together == kernel && step == stride && n >= kLanes &&
               Op::template if_fixed<kTaps>(to, [&](auto set) {
                 return reduce_fixed_squares<kernel(), stride()>(to, n, offset, taps, set);
               });
      };
      if (squares(Const<2>{}, Const<2>{}) || squares(Const<3>{}, Const<2>{})) return;
      if (squares(Const<3>{}, Const<1>{})) return;
    }
    if constexpr (Heavy<Op>) {
      if (n < kLanes) return reduce_partial_vector(to, n, offset, taps, step, larger(1, together));
    }
    if constexpr (kReadsTogether) {
      if (together == 2 && step == 2)
        return reduce(to, n, offset, taps, StrideTwo{true}, Const<2>{});
      if (together == 3 && step == 2)
        return reduce(to, n, offset, taps, StrideTwo{true}, Const<3>{});
      if (together == 2) return reduce(to, n, offset, taps, StrideOne{1}, Const<2>{});
      if (together == 3) return reduce(to, n, offset, taps, StrideOne{1}, Const<3>{});
    }
    if (step == 1) reduce(to, n, offset, taps, StrideOne{0}, Const<1>{});
    else reduce(to, n, offset, taps, AnyStride{step, 0}, Const<1>{});
  }

 private:
  static bool is_full(const Axis& a, i64 o) { return o >= a.full_lo && o < a.full_hi; }

  void list_rows(i64 od, i64 oh) {
    count_ = 0;
    each_line(p_, od, oh, [&](i64 tap_index, i64 d, i64 h) {
      rows_[count_++] = {reader_.row(d, h), static_cast<u32>(tap_index)};
    });
  }

  // Computes a row of full windows. Rows are equally spaced, so the taps are those of an earlier
  // row at an offset.
  template <class Each>
  void compute_uniform_row(i64 od, i64 oh, Each&& each) {
    const Axis &depth = p_.axis[0], &height = p_.axis[1], &width = p_.axis[2];
    const i64 d = od * depth.stride - depth.lo, h = oh * height.stride - height.lo;
    const T* at = reader_.at(d, h) + (tile_.lo[2] * width.stride - width.lo) * step_;
    const i64 kernel = is_paired(width) && step_ == 1 ? 1 : width.kernel;
    if (!origin_) {
      origin_ = at;
      for (i64 i = 0; i < depth.kernel; ++i) {
        for (i64 j = 0; j < height.kernel; ++j) {
          const i64 line = i * height.kernel + j;
          const T* row = at + i * depth.dilation * x_.depth + j * height.dilation * x_.height;
          for (i64 t = 0; t < kernel; ++t) {
            uniform_taps_[line * kernel + t] = {row + t * width.dilation * step_,
                                                static_cast<u32>(line * width.kernel + t)};
          }
        }
      }
    }
    for (i64 i = 0; i < depth.kernel; ++i) {
      prefetch(at + i * depth.dilation * x_.depth + kPrefetchElements<T>,
               height.stride * x_.height * static_cast<i64>(sizeof(T)));
    }
    const i64 n = tile_.hi[2] - tile_.lo[2];
    const Taps taps{uniform_taps_, depth.kernel * height.kernel * kernel, kernel};
    each(0, n, [&](Target to) {
      reduce_row(to, n, at - origin_, taps, width.stride * step_,
                 kernel < width.kernel ? width.kernel : 0);
    });
  }

  // Computes outputs lo ... hi of the row.
  void compute_outputs(i64 lo, i64 hi, const Target& to) {
    const Axis& a = p_.axis[2];
    if (count_ == 0) return Op::clear(to, (hi - lo) * p_.inner);
    const i64 full_lo = larger(lo, smaller(hi, a.full_lo));
    const i64 full_hi = larger(full_lo, smaller(hi, a.full_hi));
    const bool all = reader_.padded();
    if (all) compute_full_windows(lo, hi, to);
    else if (full_lo < full_hi)
      compute_full_windows(full_lo, full_hi, to.at((full_lo - lo) * p_.inner));
    const auto edge = [&](i64 o) {  // computes output o unless it is valid already
      if (!all || Op::may_be_padding(to, o - lo)) compute_output(o, to.at((o - lo) * p_.inner));
    };
    for (i64 o = lo; o < full_lo; ++o) edge(o);
    for (i64 o = full_hi; o < hi; ++o) edge(o);
  }

  static constexpr i64 kLanes = kVectorBytes / static_cast<i64>(sizeof(T));

  // Whether copying rows with padding around them costs less than computing edge outputs one by
  // one.
  static bool is_worth_padding(const Plan& p) {
    const Axis &depth = p.axis[0], &height = p.axis[1], &width = p.axis[2];
    const i64 edges = width.full_lo + width.out - width.full_hi;
    const i64 copied = (depth.out > 1 ? depth.kernel : 1) * smaller(height.stride, height.kernel);
    return p.inner == 1 && 5 * edges * (p.taps + 8) > copied * (width.in / 16 + 16);
  }

  static ReadOptions<T> reading(const Plan& p, i64 flips) {
    const auto length = [](const Axis& a) { return smaller(a.in, covered_length(a, 1)); };
    return {flips, Op::kPads && is_worth_padding(p), Op::kFill, length(p.axis[0]),
            length(p.axis[1])};
  }

  // Computes one output of all channels.
  void compute_output(i64 o, const Target& to) {
    const Axis& a = p_.axis[2];
    const Span s = span_of(a, o);
    if (s.taps == 0) return Op::clear(to, p_.inner);
    const i64 n = list_taps(s.begin, s.taps, a.dilation, s.first_tap);
    reduce_contiguous(to, p_.inner, 0, {taps_, n, s.taps});
  }

  // Computes outputs whose windows are full.
  void compute_full_windows(i64 lo, i64 hi, const Target& to) {
    const Axis& a = p_.axis[2];
    const i64 n = hi - lo, first = lo * a.stride - a.lo, step = a.stride * step_;
    const bool channels = p_.inner > 1;
    const bool neighbours = !channels && step_ == 1 && is_paired(a);
    const i64 kernel = neighbours ? 1 : a.kernel;
    const Taps taps{taps_, list_taps(first, kernel, a.dilation, 0), kernel};
    if (channels) {
      for (i64 o = 0; o < n; ++o) {
        reduce_contiguous(to.at(o * p_.inner), p_.inner, o * step, taps);
      }
    } else {
      reduce_row(to, n, 0, taps, step, neighbours ? a.kernel : 0);
    }
  }

  // Lists `count` taps of each line, from column `first` on, which is tap `tap_index` of a line.
  i64 list_taps(i64 first, i64 count, i64 dilation, i64 tap_index) {
    i64 n = 0;
    for (i64 r = 0; r < count_; ++r) {
      for (i64 t = 0; t < count; ++t) {
        taps_[n++] = {rows_[r].at + (first + t * dilation) * step_,
                      rows_[r].tap_index + static_cast<u32>(tap_index + t)};
      }
    }
    return n;
  }

  // Computes neighbouring outputs of neighbouring inputs.
  static void reduce_contiguous(const Target& to, i64 n, i64 offset, const Taps& taps) {
    if constexpr (Heavy<Op>) {
      if (n < kLanes) return reduce_partial_vector(to, n, offset, taps, 1, 1);
    }
    reduce(to, n, offset, taps, StrideOne{0}, Const<1>{});
  }

  // Computes outputs from taps at `offset`, at each of which Width neighbours are loaded.
  template <class Loader, class Width>
  POOLGRAD_LOOP static void reduce(const Target& target, i64 n, i64 offset, const Taps& taps,
                                   Loader loader, Width) {
    const Target to = target;  // a copy stays in registers: stores of bytes may alias `target`
    const auto partial_of = [&](auto w, i64 i) {
      using V = Vec<T, w()>;
      const auto input = [&](const Tap& tap, i64 t) {
        return loader.template get<V>(tap.at + offset, i, t);
      };
      const auto reduce_line = [&](const Tap* list, i64 count) {
        auto partial = Op::template first<V>(input(list[0], 0), list[0].tap_index);
        for (i64 r = Width::value == 1; r < count; ++r) {  // tap 0 of list[0] is already in
          const auto take = [&](i64 t) __attribute__((always_inline)) {
            Op::template take<V>(partial, input(list[r], t),
                                 list[r].tap_index + static_cast<u32>(t));
          };
          static_assert(Width::value <= 3);  // written out: -O2 does not unroll a loop over them
          if (r > 0) take(0);
          if constexpr (Width::value > 1) take(1);
          if constexpr (Width::value > 2) take(2);
        }
        return partial;
      };
      auto partial = reduce_line(taps.list, Op::kByLines ? taps.line : taps.count);
      if constexpr (Op::kByLines) {
        for (i64 r = taps.line; r < taps.count; r += taps.line) {
          Op::merge(partial, reduce_line(taps.list + r, taps.line), 0);
        }
      }
      return partial;
    };
    const auto compute = [&](auto w, i64 i) {
      auto partial = partial_of(w, i);
      if constexpr (Heavy<Op>) Op::template store<Vec<T, w()>>(to, i, partial, w);
      else Op::template store<Vec<T, w()>>(to, i, partial);
    };
    if constexpr (Heavy<Op>) {
      for (i64 i = 0; i < n; i += kLanes) compute(Const<kLanes>{}, smaller(i, n - kLanes));
    } else {
      overlapping_lanes<T>(n, compute);
    }
  }

  // Computes fewer outputs than a vector has lanes.
  POOLGRAD_LOOP static void reduce_partial_vector(Target to, i64 n, i64 offset, Taps taps, i64 step,
                                                  i64 width) {
    using V = Vec<T, kLanes>;
    const auto input = [&](i64 r, i64 t) {
      return FirstLanes{n}.template load<V>(taps.list[r].at + offset + t, step);
    };
    auto partial = Op::template first<V>(input(0, 0), taps.list[0].tap_index);
    for (i64 r = 0; r < taps.count; ++r) {
      for (i64 t = r == 0; t < width; ++t) {
        Op::template take<V>(partial, input(r, t), taps.list[r].tap_index + static_cast<u32>(t));
      }
    }
    Op::template store<V>(to, 0, partial, n);
  }

  // Computes K x K windows with stride S in registers. Four vectors are interleaved to hide the
  // latency of their operations; two if the loop would exceed the cache of decoded instructions
  // (about 4,000). Returns false if an input is not finite; the outputs are then meaningless.
  template <i64 K, i64 S, class Set>
  POOLGRAD_LOOP static bool reduce_fixed_squares(Target to, i64 n, i64 offset, Taps taps, Set set) {
    using V = Vec<T, kLanes>;
    const T* line[K];
    for (i64 r = 0; r < K; ++r) line[r] = taps.list[r].at + offset;
    V finite_check{};
    const auto compute = [&](auto vectors, i64 i) __attribute__((always_inline)) {
      constexpr i64 kMany = vectors();
      const auto at = [&](i64 k) { return smaller(i + k * kLanes, n - kLanes); };
      typename Op::template Summed<V> sums[kMany];
      POOLGRAD_UNROLL
      for (i64 k = 0; k < kMany; ++k) {
        V inputs[K * K];
        POOLGRAD_UNROLL
        for (i64 t = 0; t < K * K; ++t)
          inputs[t] = load_every<S, V>(line[t / K] + at(k) * S, t % K, 1);
        sums[k] = Op::sum(to, at(k), inputs, set, finite_check);
      }
      POOLGRAD_UNROLL
      for (i64 k = 0; k < kMany; ++k) Op::finish(to, at(k), sums[k], set);
    };
    constexpr i64 kVectors = (K > 2 ? Set::t || Set::w : Set::t && kVectorBytes < 64) ? 2 : 4;
    i64 i = 0;
    for (; i + (kVectors - 2) * kLanes < n; i += kVectors * kLanes) compute(Const<kVectors>{}, i);
    if (i < n) compute(Const<2>{}, i);
    return !any(finite_check != finite_check);
  }

  const Plan& p_;
  const View& x_;
  const Tile tile_;
  Reader<T> reader_;
  const i64 step_;
  const bool uniform_;
  const i64 piece_;
  i64 count_ = 0;              // rows that the windows of a row of outputs hold
  const T* origin_ = nullptr;  // where uniform_taps_ begin
  Tap rows_[kMaxTaps], taps_[kMaxTaps], uniform_taps_[kMaxTaps];
};

}  // namespace poolgrad::inline POOLGRAD_ISA
