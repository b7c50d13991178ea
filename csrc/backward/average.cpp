// Gradients of averages, compiled once per instruction set.
#include "backward/register_blocked.hpp"
#include "base/common.hpp"
#include "choose.hpp"
#include "forward/row_writer.hpp"
#include "operators/divisor.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// forward/average.cpp
void average_of_transposed(const Work&, const View& gy, Divisor, Dense gx);

namespace {

// Global windows: all inputs of a plane get the same gradient.
template <class A>
class PlaneGradients {
 public:
  PlaneGradients(const Plan& p, const InputTile& tile, Arena& arena, Dense gx)
      : p_(p), first_(first_input(p, tile)), n_(inputs_of(p, tile)), gx_(gx, kChunk, arena) {}

  void run(const View& gy, Divisor divisor, i64 plane) {
    A gradient;
    const A* const g = row_of(gy, plane_of(gy, plane), 1, 0, 0, 0, 1, &gradient);
    // -0.0 becomes 0.0, as in sums that begin with 0
    const A share = *g / static_cast<A>(divisor.of_plane(p_)) + A(0);
    for (i64 done = 0; done < n_; done += kChunk) {
      const i64 n = smaller(kChunk, n_ - done);
      A* to = gx_.reserve(plane * p_.in_plane() + first_ + done, n, false);
      overlapping_lanes<A>(n, [&](auto w, i64 i) {
        prefetch(to + i + kPrefetchElements<A>);
        store(to + i, Vec<A, w()>{} + share);
      });
    }
  }

 private:
  static constexpr i64 kChunk = i64{1} << 12;

  const Plan& p_;
  const i64 first_, n_;
  RowWriter<A> gx_;
};

// Any windows: the shares (gradients divided by their divisors) of all output rows whose windows
// hold an input row are added first; the sums are then added along the width. Each step adds in
// ascending order of outputs.
template <class T>
class GatherShares {
 public:
  GatherShares(const Plan& p, const InputTile& tile, Arena& arena, Dense gx)
      : p_(p),
        tile_(tile),
        n_((tile.hi[2] - tile.lo[2]) * p.inner),
        by_taps_(adds_by_taps(p)),
        repeats_(repeats_rows(p.axis[1])),
        row_(arena.take<T>(repeats_ ? n_ : 0)),
        gx_(gx, n_, arena),
        nontemporal_(repeats_ &&
                     gx_.choose_nontemporal(n_, p.outer * p.in_plane() * i64{sizeof(T)})) {
    const Axis& a = p.axis[2];
    outputs_ = reaching(a, tile.lo[2], tile.hi[2]);
    if (by_taps_) {
      outputs_.lo = floor_div(tile.lo[2] + a.lo, a.stride) - reach(a) / a.stride;
      outputs_.hi = floor_div(tile.hi[2] - 1 + a.lo, a.stride) + 1;
    }
    valid_.lo = smaller(a.out, larger(0, outputs_.lo));
    valid_.hi = larger(valid_.lo, smaller(a.out, outputs_.hi));
    length_ = (outputs_.hi - outputs_.lo) * p.inner;
    heights_ = arena.take<Range>(repeats_ ? tile.hi[1] - tile.lo[1] : 0);
    for (int k = 0; k < 2; ++k) slots_[k] = slots_of(p.axis[k]);
    if (slots_[0] * slots_[1] > kMaxSlots) slots_[0] = slots_[1] = 0;
    keys_ = arena.take<i64>(slots_[0] * slots_[1]);
    rows_ = larger(2, slots_[0] * slots_[1]);
    shares_ = arena.take<T>(rows_ * length_);
    sums_ = arena.take<T>(length_);
    divisors_ = arena.take<T>((valid_.hi - valid_.lo) * p.inner);
    phase_rows_ = by_taps_ && a.stride > 1 ? arena.take<T>(a.stride * n_) : nullptr;
  }

  void run(const View& gy, Divisor divisor, i64 plane) {
    gy_ = &gy, divisor_ = divisor, plane_ = plane_of(gy, plane);
    if (!ready_) prepare();
    std::fill(keys_, keys_ + slots_[0] * slots_[1], i64{-1});
    i64 at = plane * p_.in_plane() + first_input(p_, tile_);
    for (i64 d = tile_.lo[0]; d < tile_.hi[0]; ++d) {
      for (i64 h = tile_.lo[1]; h < tile_.hi[1]; ++h, at += n_) {
        const bool again = repeats_ && h > tile_.lo[1] && has_same_outputs(h);
        if (!again) add_along_width(sum_rows(d, h), repeats_ ? row_ : gx_.reserve(at, n_));
        if (repeats_) gx_.put(at, row_, n_, nontemporal_, again);
      }
    }
  }

 private:
  static constexpr i64 kMaxSlots = 64;    // rows of shares that are stored
  static constexpr i64 kMaxMargin = 256;  // outputs beyond the ends of a row

  // The inputs that are congruent modulo the stride, and the outputs that they are computed from.
  struct Phase {
    i64 inputs = 0, count = 0, shift[kMaxInverseTaps];
  };

  static bool adds_by_taps(const Plan& p) {
    const Axis& a = p.axis[2];
    return a.regular() && a.stride <= (p.inner > 1 ? 1 : kMaxUnrolledPhases) &&
           max_windows(a) <= kMaxInverseTaps && reach(a) / a.stride <= kMaxMargin;
  }

  // Whether the same windows hold most rows of inputs as the row before, so that a row is computed
  // once. (covering() is exact then.)
  static bool repeats_rows(const Axis& a) {
    return a.out > 1 && a.dilation == 1 && (!a.regular() || (a.stride > 1 && !a.overlap));
  }

  // The number of slots, a power of two: enough for all outputs whose windows hold one input; of
  // irregular windows, for a few neighbouring outputs: the shares of others are computed again.
  static i64 slots_of(const Axis& a) {
    const i64 outputs = smaller(a.out, a.regular() ? reach(a) / a.stride + 1 : 3);
    return power_of_two(smaller(outputs, kMaxSlots + 1));
  }

  void prepare() {
    ready_ = true;
    std::fill(shares_, shares_ + rows_ * length_, T(0));
    std::fill(sums_, sums_ + length_, T(0));
    divisor_.fill_row(p_.axis[2], p_.inner, valid_.lo, valid_.hi, divisors_);
    for (i64 h = tile_.lo[1]; repeats_ && h < tile_.hi[1]; ++h)
      heights_[h - tile_.lo[1]] = covering(p_.axis[1], h);
    const Axis& a = p_.axis[2];
    for (i64 k = 0; by_taps_ && k < smaller(a.stride, n_); ++k) {
      const i64 input = tile_.lo[2] + a.lo + k, first = floor_div(input, a.stride) - outputs_.lo;
      phases_[k].inputs = ceil_div(n_ - k, a.stride);
      for (i64 tap = a.kernel - 1; tap >= 0; --tap) {
        const i64 away = tap * a.dilation;
        if ((input - away) % a.stride != 0) continue;
        phases_[k].shift[phases_[k].count++] = (first - away / a.stride) * p_.inner;
      }
    }
  }

  // Whether the same windows hold this row of inputs and the row before.
  bool has_same_outputs(i64 h) const {
    const Range row = heights_[h - tile_.lo[1]], before = heights_[h - 1 - tile_.lo[1]];
    return row.lo == before.lo && row.hi == before.hi;
  }

  // Returns the sums of the shares of the output rows whose windows hold input row (d, h); null if
  // there are none.
  const T* sum_rows(i64 d, i64 h) {
    const T* sums = nullptr;
    each_row_holding(p_, d, h, [&](i64 od, i64 oh, i64) {
      const T* const row = shares_of(od, oh, shares_ + (sums ? length_ : 0));
      if (sums) add(sums, row, sums_, length_);
      sums = sums ? sums_ : row;
    });
    return sums;
  }

  // Returns the shares of a row of outputs: those stored in a slot, or computed in `buffer`.
  const T* shares_of(i64 od, i64 oh, T* buffer) {
    const i64 key = od * p_.axis[1].out + oh;
    if (slots_[0]) {
      const i64 slot = (od & (slots_[0] - 1)) * slots_[1] + (oh & (slots_[1] - 1));
      buffer = shares_ + slot * length_;
      if (keys_[slot] == key) return buffer;
      keys_[slot] = key;
    }
    compute_shares(od, oh, buffer);
    return buffer;
  }

  void compute_shares(i64 od, i64 oh, T* buffer) const {
    const i64 n = (valid_.hi - valid_.lo) * p_.inner;
    if (n == 0) return;
    T* const to = buffer + (valid_.lo - outputs_.lo) * p_.inner;
    prefetch_after(*gy_, plane_, od, oh, valid_, p_.inner);
    const T* g = row_of(*gy_, plane_, p_.inner, od, oh, valid_.lo, valid_.hi, to);
    divide_row(g, divisors_, static_cast<T>(divisor_.of_rows(p_, od, oh)), to, n);
  }

  // Adds two rows; `to` may be one of them.
  POOLGRAD_LOOP static void add(const T* a, const T* b, T* to, i64 n) {
    lanes<T>(n, [&](auto w, i64 i) {  // no element twice
      using V = Vec<T, w()>;
      store(to + i, load<V>(a + i) + load<V>(b + i));
    });
  }

  // Adds the sums of the outputs whose windows hold an input, for a row of inputs.
  void add_along_width(const T* sums, T* row) {
    const i64 stride = p_.axis[2].stride;
    if (!sums || !by_taps_) std::fill(row, row + n_, T(0));
    if (!sums) return;
    if (!by_taps_) return add_windows(sums, row);
    if (stride == 1) return add_phase(phases_[0], sums, row);
    const T* from[kMaxUnrolledPhases] = {};  // the inputs of each phase
    for (i64 k = 0; k < smaller(stride, n_); ++k) {
      from[k] = phase_rows_ + k * n_;
      if (phases_[k].count == 1) from[k] = sums + phases_[k].shift[0];
      else add_phase(phases_[k], sums, phase_rows_ + k * n_);
    }
    interleave_phases(from, stride, row, n_);
  }

  // Computes the inputs of a phase.
  static void add_phase(const Phase& phase, const T* sums, T* to) {
    const auto add = [&](auto count) { add_taps(phase, count, sums, to); };
    if (phase.count == 1) add(Const<1>{});
    else if (phase.count == 2) add(Const<2>{});
    else if (phase.count == 3) add(Const<3>{});
    else add(phase.count);
  }
  template <class Count>
  POOLGRAD_LOOP static void add_taps(const Phase& phase, Count count, const T* sums, T* to) {
    const T* from[kMaxInverseTaps];
    for (i64 k = 0; k < count; ++k) from[k] = sums + phase.shift[k];
    overlapping_lanes<T>(phase.inputs, [&](auto w, i64 i) {
      Vec<T, w()> sum{};
      for (i64 k = 0; k < count; ++k) sum += load<Vec<T, w()>>(from[k] + i);
      store(to + i, sum);
    });
  }

  // Adds the sum of each output to all inputs of its window.
  void add_windows(const T* sums, T* row) const {
    const i64 lo = tile_.lo[2], inner = p_.inner, step = p_.axis[2].dilation * inner;
    each_window_part(p_.axis[2], outputs_, lo, tile_.hi[2],
                     [&](i64 output, const Span& s, i64 first, i64 end) {
                       T* to = row + (s.begin - lo) * inner + first * step;
                       const T* from = sums + output * inner;
                       if (step == 1) return add_to_all(to, *from, end - first);
                       for (i64 t = first; t < end; ++t, to += step) add(to, from, to, inner);
                     });
  }

  POOLGRAD_LOOP static void add_to_all(T* to, T share, i64 n) {
    lanes<T>(n, [&](auto w, i64 i) { store(to + i, load<Vec<T, w()>>(to + i) + share); });
  }

  const Plan& p_;
  const InputTile tile_;
  const i64 n_;         // elements of a row of inputs
  const bool by_taps_;  // sums are added tap by tap, not window by window
  const bool repeats_;  // rows of inputs are repeated, not computed in place
  T* row_;              // the last row, to repeat
  RowWriter<T> gx_;
  const bool nontemporal_;
  Range outputs_, valid_;  // of a row: whose windows reach the tile; those that exist
  i64 length_, rows_;      // elements of a row of shares; number of rows in memory
  i64 slots_[2];    // along depth and height; 0: shares are not kept for other rows of inputs
  Range* heights_;  // the output rows that hold a row of inputs
  i64* keys_;       // the row that is stored in each slot
  T *shares_, *sums_, *divisors_, *phase_rows_;
  Phase phases_[kMaxUnrolledPhases];
  bool ready_ = false;
  const View* gy_ = nullptr;
  const char* plane_ = nullptr;
  Divisor divisor_{};
};

}  // namespace

void average_backward(const Work& work, const View& gy, Dense gx, bool count_padding,
                      double divisor) {
  const Divisor divide{count_padding, divisor};
  const Algorithm algorithm = choose(call_of(Task::average_backward, work, gy));
  if (algorithm == Algorithm::transposed_separable)
    return average_of_transposed(work, gy, divide, gx);
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    if (algorithm == Algorithm::plane_gradients)
      return run_backward<PlaneGradients<A>>(work, gy, divide, gx);
    if constexpr (!kGeneralOnly) {
      if (algorithm == Algorithm::register_blocked_backward)
        return run_backward<RegisterBlockedBackward<A, false>>(work, gy, divide, gx);
    }
    run_backward<GatherShares<A>>(work, gy, divide, gx);
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
