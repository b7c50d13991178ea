// Gather backward, for windows that overlap little: each input row is computed from the output rows
// whose windows hold it. Every input is written once, as a sum in ascending order of outputs.
#pragma once

#include "backward/tiles.hpp"
#include "choose.hpp"
#include "forward/row_writer.hpp"
#include "operators/sum.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Prefetches the elements after `columns` of row (od, oh).
POOLGRAD_INLINE void prefetch_after(const View& v, const char* plane, i64 od, i64 oh, Range columns,
                                    i64 inner) {
  const i64 size = size_of(v.dtype);
  const i64 at = (od * v.depth + oh * v.height + columns.lo * v.width) * size;
  prefetch(plane + at + kPrefetchBytes, (columns.hi - columns.lo) * inner * size);
}

// Computes rows of input gradients from rows of output gradients, which are padded with zeros on
// both sides. Routed: an input receives a gradient only if the route names its tap.
template <class T, bool Routed>
class Gather {
 public:
  Gather(const Plan& p, const InputTile& tile, Dense gx, Arena& arena)
      : p_(p),
        tile_(tile),
        depths_(p.axis[0], tile.lo[0], tile.hi[0], max_windows(p.axis[0]), arena),
        heights_(p.axis[1], tile.lo[1], tile.hi[1], max_windows(p.axis[1]), arena),
        disjoint_(!Routed && is_disjoint(p)),
        row_(disjoint_ ? arena.take<T>(columns() * p.inner) : nullptr),
        gx_(gx, columns() * p.inner, arena),
        nontemporal_(disjoint_ && columns() == p.axis[2].in &&
                     gx_.choose_nontemporal(columns() * p.inner,
                                            p.outer * p.in_plane() * static_cast<i64>(sizeof(T)))) {
    const Axis& a = p.axis[2];
    const i64 reach = (a.kernel - 1) * a.dilation;
    first_ = (tile.lo[2] + a.lo) / a.stride - reach / a.stride;
    last_ = (tile.hi[2] - 1 + a.lo) / a.stride + 1;
    valid_ = {larger(0, first_), smaller(a.out, last_)};
    valid_.hi = larger(valid_.lo, valid_.hi);
    length_ = (last_ - first_) * p.inner;
    for (int k = 0; k < 2; ++k) slots_[k] = ring(p.axis[k]);
    cached_ = arena.take<CachedGradients>(slots_[0] * slots_[1]);
    gradients_ = arena.take<T>(slots_[0] * slots_[1] * length_);
    wide_routes_ = Routed ? arena.take<WideRoute<T>>(slots_[0] * slots_[1] * length_) : nullptr;
    routes_ = Routed ? arena.take<u32>((valid_.hi - valid_.lo) * p.inner) : nullptr;
    divisors_ = Routed ? nullptr : arena.take<T>((valid_.hi - valid_.lo) * p.inner);
    phases_ = p.inner == 1 && a.stride > 1 ? arena.take<T>(columns()) : nullptr;
  }

  // Routed uses routes, the average uses the divisor.
  void run(const View& gy, const View* routes, Divisor divisor, i64 plane) {
    gy_ = &gy, routing_ = routes, divisor_ = divisor;
    if (!ready_) prepare();
    gradient_plane_ = plane_of(gy, plane);
    if (Routed) route_plane_ = plane_of(*routes, plane);
    for (i64 k = 0; k < slots_[0] * slots_[1]; ++k) cached_[k].key = -1;
    i64 at = plane * p_.in_plane() +
             ((tile_.lo[0] * p_.axis[1].in + tile_.lo[1]) * p_.axis[2].in + tile_.lo[2]) * p_.inner;
    const i64 n = columns() * p_.inner;
    for (i64 d = tile_.lo[0]; d < tile_.hi[0]; ++d) {
      for (i64 h = tile_.lo[1]; h < tile_.hi[1]; ++h, at += n) {
        if (disjoint_ && h > tile_.lo[1] && has_same_outputs(h)) {
          gx_.put(at, row_, n, nontemporal_);
          continue;
        }
        count_ = 0;
        for (const auto& od : depths_[d]) {
          for (const auto& oh : heights_[h]) {
            add_output_row(od.output, oh.output,
                           (od.tap * p_.axis[1].kernel + oh.tap) * p_.axis[2].kernel);
          }
        }
        if (disjoint_) expand_shares(at, n);
        else if (p_.inner > 1) compute_pixels(at);
        else if (p_.axis[2].stride == 1) compute_phase(0, gx_.reserve(at, n));
        else compute_phases(gx_.reserve(at, n));
      }
    }
  }

 private:
  struct Source {
    const T* gradient;
    const WideRoute<T>* routes;
    WideRoute<T> wanted_tap;
  };
  struct CachedGradients {
    i64 key;
    const T* gradient;
  };
  // The input columns that are congruent modulo the stride.
  struct Phase {
    i64 inputs = 0, count = 0;
    i64 tap[kMaxInverseTaps],
        shift[kMaxInverseTaps];  // of the outputs that they are computed from, in ascending order
  };

  void prepare() {
    ready_ = true;
    depths_.fill(), heights_.fill();
    if (!Routed) divisor_.fill_row(p_, valid_.lo, valid_.hi, divisors_);
    if (disjoint_) return;
    const Axis& a = p_.axis[2];
    for (i64 begin = 0; begin < smaller(a.stride, columns()); ++begin) {
      Phase& phase = phase_[begin];
      const i64 u = tile_.lo[2] + a.lo + begin, rest = u % a.stride, first = u / a.stride;
      phase.inputs = (columns() - begin + a.stride - 1) / a.stride;
      for (i64 k = a.kernel - 1; k >= 0; --k) {
        const i64 away = k * a.dilation;
        if (away % a.stride != rest) continue;
        phase.tap[phase.count] = k;
        phase.shift[phase.count++] = first - away / a.stride - first_;
      }
    }
  }

  i64 columns() const { return tile_.hi[2] - tile_.lo[2]; }

  // Number of slots for the output rows whose windows hold one input row; a power of two.
  static i64 ring(const Axis& a) {
    i64 slots = 1;
    while (slots < smaller(a.out, (a.kernel - 1) * a.dilation / a.stride + 1)) slots *= 2;
    return slots;
  }

  void add_output_row(i64 od, i64 oh, i64 tap) {
    const i64 slot = (od & (slots_[0] - 1)) * slots_[1] + (oh & (slots_[1] - 1));
    const i64 key = od * p_.axis[1].out + oh;
    WideRoute<T>* routes = Routed ? wide_routes_ + slot * length_ : nullptr;
    if (cached_[slot].key != key) {
      cached_[slot] = {key, read_row(od, oh, gradients_ + slot * length_, routes)};
    }
    row_sources_[count_++] = {cached_[slot].gradient, routes, static_cast<WideRoute<T>>(tap)};
  }

  // Reads the gradients of a row of outputs, divided by their divisors. Returns where they are: in
  // `gradient`, or in the array.
  POOLGRAD_LOOP const T* read_row(i64 od, i64 oh, T* gradient, WideRoute<T>* routes) {
    const i64 before = (valid_.lo - first_) * p_.inner, n = (valid_.hi - valid_.lo) * p_.inner;
    std::fill(gradient, gradient + before, T(0));
    std::fill(gradient + before + n, gradient + length_, T(0));
    if (n == 0) return gradient;
    prefetch_after(*gy_, gradient_plane_, od, oh, valid_, p_.inner);
    if constexpr (Routed) prefetch_after(*routing_, route_plane_, od, oh, valid_, p_.inner);
    T* to = gradient + before;
    const T* g = row_of(*gy_, gradient_plane_, p_.inner, od, oh, valid_.lo, valid_.hi, to);
    if constexpr (Routed) {
      std::fill(routes, routes + before, ~WideRoute<T>{0});
      std::fill(routes + before + n, routes + length_, ~WideRoute<T>{0});
      widen_routes(od, oh, routes + before, n);
      if (n == length_) return g;
      if (g != to) std::memcpy(to, g, static_cast<std::size_t>(n) * sizeof(T));
    } else {
      const T rows = static_cast<T>(divisor_.of_rows(p_, od, oh));
      lanes<T>(n, [&](auto w, i64 i) {  // no element twice: g may be `to`
        using V = Vec<T, w()>;
        store(to + i, load<V>(g + i) / (rows * load<V>(divisors_ + i)));
      });
    }
    return gradient;
  }

  void widen_routes(i64 od, i64 oh, WideRoute<T>* to, i64 n) {
    const View& v = *routing_;
    const bool packed = (p_.inner == 1 || v.inner == 1) && v.width == p_.inner;
    if (packed && v.dtype == Dtype::uint8) {
      const auto* from = reinterpret_cast<const std::uint8_t*>(route_plane_) + od * v.depth +
                         oh * v.height + valid_.lo * v.width;
      overlapping_lanes<WideRoute<T>>(n, [&](auto w, i64 i) {
        store(to + i, convert<WideRoute<T>>(load<Vec<std::uint8_t, w()>>(from + i)));
      });
    } else {
      const u32* from = row_of(v, route_plane_, p_.inner, od, oh, valid_.lo, valid_.hi, routes_);
      for (i64 i = 0; i < n; ++i) to[i] = from[i];
    }
  }

  // Sums the gradients of inputs i, i + 1, ...; those of averages line by line, as all algorithms
  // do.
  template <class V>
  static V total(const Source* sources, i64 count, i64 line, i64 i) {
    constexpr int W = static_cast<int>(sizeof(V) / sizeof(T));
    const auto share = [&](const Source& s) {
      const V g = load<V>(s.gradient + i);
      if constexpr (!Routed) return g;
      else return load<Vec<WideRoute<T>, W>>(s.routes + i) == s.wanted_tap ? g : V{};
    };
    if constexpr (Routed) line = count;
    const auto sum_of = [&](const Source* list) {
      V sum = V{} + share(list[0]);  // 0 + -0.0 is 0.0, as in sums that begin with 0
      for (i64 k = 1; k < line; ++k) sum += share(list[k]);
      return sum;
    };
    V sum = sum_of(sources);
    for (i64 k = line; k < count; k += line) sum += sum_of(sources + k);
    return sum;
  }

  POOLGRAD_LOOP static void sum(T* to, i64 n, const Source* sources, i64 count, i64 line) {
    if (count == 0) return std::fill(to, to + n, T(0));
    overlapping_lanes<T>(
        n, [&](auto w, i64 i) { store(to + i, total<Vec<T, w()>>(sources, count, line, i)); });
  }

  // Computes the inputs of two phases, interleaved.
  POOLGRAD_LOOP void sum_pairs(T* to, i64 n, const Source* even, i64 evens, const Source* odd,
                               i64 odds) const {
    overlapping_lanes<T>(n, [&](auto w, i64 i) {
      using V = Vec<T, w()>;
      const V a = evens ? total<V>(even, evens, phase_[0].count, i) : V{};
      const V b = odds ? total<V>(odd, odds, phase_[1].count, i) : V{};
      store_interleaved(to + 2 * i, a, b);
    });
  }

  // Whether a row of inputs is computed from the same outputs as the row before.
  bool has_same_outputs(i64 h) {
    const auto &row = heights_[h], &before = heights_[h - 1];
    return std::equal(row.begin(), row.end(), before.begin(), before.end(),
                      [](const auto& a, const auto& b) { return a.output == b.output; });
  }

  // Disjoint windows: copies the share of each output to all inputs of its window.
  void expand_shares(i64 at, i64 n) {
    const Axis& a = p_.axis[2];
    std::fill(row_, row_ + n, T(0));
    // the outputs whose windows lie inside the tile
    const i64 lo = smaller(valid_.hi, larger(valid_.lo, ceil_div(tile_.lo[2] + a.lo, a.stride)));
    const i64 reach = tile_.hi[2] + a.lo - a.kernel;
    const i64 hi = larger(lo, smaller(valid_.hi, reach < 0 ? 0 : reach / a.stride + 1));
    for (i64 r = 0; r < count_; ++r) {
      const T* shares = row_sources_[r].gradient - first_ * p_.inner;
      for (i64 o = valid_.lo; o < lo; ++o) add_share(shares, o);
      const i64 unrolled = p_.inner == 1 ? a.kernel : 0;
      if (unrolled == 2) add_shares<2>(shares, lo, hi);
      else if (unrolled == 3) add_shares<3>(shares, lo, hi);
      else if (unrolled == 4) add_shares<4>(shares, lo, hi);
      else if (unrolled == 5) add_shares<5>(shares, lo, hi);
      else
        for (i64 o = lo; o < hi; ++o) add_share(shares, o);
      for (i64 o = hi; o < valid_.hi; ++o) add_share(shares, o);
    }
    gx_.put(at, row_, n, nontemporal_);
  }

  // Windows of K inputs, all inside the tile.
  template <i64 K>
  POOLGRAD_LOOP void add_shares(const T* shares, i64 lo, i64 hi) {
    const Axis& a = p_.axis[2];
    T* to = row_ + lo * a.stride - a.lo - tile_.lo[2];
    for (i64 o = lo; o < hi; ++o, to += a.stride) {
      POOLGRAD_UNROLL
      for (i64 t = 0; t < K; ++t) to[t] += shares[o];
    }
  }

  void add_share(const T* shares, i64 o) {
    const Axis& a = p_.axis[2];
    const i64 begin = larger(tile_.lo[2], o * a.stride - a.lo) - tile_.lo[2];
    const i64 end = smaller(tile_.hi[2], o * a.stride - a.lo + a.kernel) - tile_.lo[2];
    if (p_.inner == 1) {
      for (i64 i = begin; i < end; ++i) row_[i] += shares[o];
      return;
    }
    for (i64 w = begin; w < end; ++w) {
      for (i64 c = 0; c < p_.inner; ++c) row_[w * p_.inner + c] += shares[o * p_.inner + c];
    }
  }

  void compute_phase(i64 begin, T* to) {
    const Phase& phase = phase_[begin];
    list_sources(phase, 0, sources_);
    sum(to, phase.inputs, sources_, count_ * phase.count, phase.count);
  }

  // Lists the gradients that are added to inputs `number`, `number` + 1, ... of a phase.
  void list_sources(const Phase& phase, i64 number, Source* next) const {
    for (i64 r = 0; r < count_; ++r) {
      for (i64 k = 0; k < phase.count; ++k) {
        const i64 at = (phase.shift[k] + number) * p_.inner;
        *next++ = {row_sources_[r].gradient + at, Routed ? row_sources_[r].routes + at : nullptr,
                   row_sources_[r].wanted_tap + static_cast<WideRoute<T>>(phase.tap[k])};
      }
    }
  }

  void compute_phases(T* to) {
    const i64 s = p_.axis[2].stride, n = columns();
    if (s == 2 && n > 1) {
      const i64 evens = count_ * phase_[0].count, odds = count_ * phase_[1].count;
      list_sources(phase_[0], 0, sources_);
      list_sources(phase_[1], 0, sources_ + evens);
      sum_pairs(to, n / 2, sources_, evens, sources_ + evens, odds);
      if (n % 2) {
        list_sources(phase_[0], n / 2, sources_);
        sum(to + n - 1, 1, sources_, evens, phase_[0].count);
      }
      return;
    }
    for (i64 begin = 0; begin < smaller(s, n); ++begin) {
      compute_phase(begin, phases_);
      for (i64 i = begin, k = 0; i < n; i += s, ++k) to[i] = phases_[k];
    }
  }

  void compute_pixels(i64 at) {
    const i64 stride = p_.axis[2].stride;
    for (i64 column = 0, begin = 0, number = 0; column < columns(); ++column, at += p_.inner) {
      list_sources(phase_[begin], number, sources_);
      const i64 line = phase_[begin].count;
      sum(gx_.reserve(at, p_.inner), p_.inner, sources_, count_ * line, line);
      if (++begin == stride) begin = 0, ++number;
    }
  }

  const Plan& p_;
  const InputTile tile_;
  InverseTaps depths_, heights_;
  bool ready_ = false;
  const bool disjoint_;
  T* row_;  // the last row of inputs
  RowWriter<T> gx_;
  const bool nontemporal_;  // rows of disjoint windows are written with non-temporal stores
  i64 first_, last_, length_, slots_[2];
  Range valid_;
  CachedGradients* cached_;
  T *gradients_, *divisors_, *phases_;
  WideRoute<T>* wide_routes_;
  u32* routes_;
  const View *gy_ = nullptr, *routing_ = nullptr;
  const char *gradient_plane_ = nullptr, *route_plane_ = nullptr;
  Divisor divisor_{};
  i64 count_ = 0;
  Source row_sources_[kMaxInverseTaps], sources_[2 * kMaxInverseTaps];
  Phase phase_[kMaxPhases];
};

}  // namespace poolgrad::inline POOLGRAD_ISA
