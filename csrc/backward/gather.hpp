// Gather backward, for windows that overlap little: each input row is computed from the output rows
// whose windows hold it. Every input is written once, as a sum in ascending order of outputs.
#pragma once

#include "backward/tiles.hpp"
#include "choose.hpp"
#include "forward/row_writer.hpp"
#include "operators/sum.hpp"

namespace poolgrad {
namespace {

// Prefetches the elements after `columns` of row (od, oh).
[[maybe_unused]] POOLGRAD_INLINE void prefetch_after(const View& v, const char* plane, i64 od,
                                                     i64 oh, Range columns, i64 inner) {
  const i64 size = size_of(v.dtype);
  const i64 at = (od * v.depth + oh * v.height + columns.lo * v.width) * size;
  prefetch(plane + at + kPrefetchBytes, (columns.hi - columns.lo) * inner * size);
}

// A row of gradients as inputs see it: on both sides there is room for outputs that do not exist.
// Routed: only the output whose route is the input's place sends its gradient.
template <class T, bool Routed>
class Gather {
 public:
  using Place = std::conditional_t<sizeof(T) == 4, u32, std::uint64_t>;  // as wide as a value

  Gather(const Plan& p, const InputTile& piece, Dense gx, Arena& arena)
      : p_(p),
        piece_(piece),
        depths_(p.axis[0], piece.lo[0], piece.hi[0], most_windows(p.axis[0]), arena),
        heights_(p.axis[1], piece.lo[1], piece.hi[1], most_windows(p.axis[1]), arena),
        apart_(!Routed && is_apart(p.axis[2])),
        made_(apart_ ? arena.take<T>(columns() * p.inner) : nullptr),
        gx_(gx, columns() * p.inner, arena),
        streams_(apart_ && columns() == p.axis[2].in &&
                 gx_.streams(columns() * p.inner,
                             p.outer * p.in_plane() * static_cast<i64>(sizeof(T)))) {
    const Axis& a = p.axis[2];
    const i64 reach = (a.kernel - 1) * a.dilation;
    first_ = (piece.lo[2] + a.lo) / a.stride - reach / a.stride;
    last_ = (piece.hi[2] - 1 + a.lo) / a.stride + 1;
    real_ = {larger(0, first_), smaller(a.out, last_)};
    real_.hi = larger(real_.lo, real_.hi);
    length_ = (last_ - first_) * p.inner;
    for (int k = 0; k < 2; ++k) slots_[k] = ring(p.axis[k]);
    kept_ = arena.take<Kept>(slots_[0] * slots_[1]);
    gradients_ = arena.take<T>(slots_[0] * slots_[1] * length_);
    places_ = Routed ? arena.take<Place>(slots_[0] * slots_[1] * length_) : nullptr;
    routes_ = Routed ? arena.take<u32>((real_.hi - real_.lo) * p.inner) : nullptr;
    divisors_ = Routed ? nullptr : arena.take<T>((real_.hi - real_.lo) * p.inner);
    phases_ = p.inner == 1 && a.stride > 1 ? arena.take<T>(columns()) : nullptr;
  }

  // routes: of a routed gradient; divisor: of another
  void run(const View& gy, const View* routes, Divisor divisor, i64 plane) {
    if (!ready_) prepare();
    gy_ = &gy, routing_ = routes, divisor_ = divisor;
    gradient_plane_ = plane_of(gy, plane);
    if (Routed) route_plane_ = plane_of(*routes, plane);
    else divisor.fill_row(p_, real_.lo, real_.hi, divisors_);
    for (i64 k = 0; k < slots_[0] * slots_[1]; ++k) kept_[k].key = -1;
    i64 at =
        plane * p_.in_plane() +
        ((piece_.lo[0] * p_.axis[1].in + piece_.lo[1]) * p_.axis[2].in + piece_.lo[2]) * p_.inner;
    const i64 n = columns() * p_.inner;
    for (i64 d = piece_.lo[0]; d < piece_.hi[0]; ++d) {
      for (i64 h = piece_.lo[1]; h < piece_.hi[1]; ++h, at += n) {
        if (apart_ && h > piece_.lo[1] && same_senders(h)) {
          gx_.put(at, made_, n, streams_);
          continue;
        }
        count_ = 0;
        for (const auto& od : depths_[d]) {
          for (const auto& oh : heights_[h]) {
            add_sender(od.output, oh.output,
                       (od.place * p_.axis[1].kernel + oh.place) * p_.axis[2].kernel);
          }
        }
        if (apart_) expand(at, n);
        else if (p_.inner > 1) pixels(at);
        else if (p_.axis[2].stride == 1) phase(0, gx_.reserve(at, n));
        else interleave(gx_.reserve(at, n));
      }
    }
  }

 private:
  struct Sender {
    const T* gradient;
    const Place* place;
    Place wanted;
  };
  struct Kept {
    i64 key;
    const T* gradient;
  };
  // One phase: the inputs at distances of a stride.
  struct Phase {
    i64 inputs = 0, count = 0;
    i64 place[kMostSenders],
        shift[kMostSenders];  // the outputs that they are computed from, ascending
  };

  void prepare() {
    ready_ = true;
    depths_.fill(), heights_.fill();
    if (apart_) return;
    const Axis& a = p_.axis[2];
    for (i64 begin = 0; begin < smaller(a.stride, columns()); ++begin) {
      Phase& phase = phase_[begin];
      const i64 u = piece_.lo[2] + a.lo + begin, rest = u % a.stride, first = u / a.stride;
      phase.inputs = (columns() - begin + a.stride - 1) / a.stride;
      for (i64 k = a.kernel - 1; k >= 0; --k) {
        const i64 away = k * a.dilation;
        if (away % a.stride != rest) continue;
        phase.place[phase.count] = k;
        phase.shift[phase.count++] = first - away / a.stride - first_;
      }
    }
  }

  i64 columns() const { return piece_.hi[2] - piece_.lo[2]; }

  // Slots for the output rows that cover one input row; a power of two.
  static i64 ring(const Axis& a) {
    i64 slots = 1;
    while (slots < smaller(a.out, (a.kernel - 1) * a.dilation / a.stride + 1)) slots *= 2;
    return slots;
  }

  void add_sender(i64 od, i64 oh, i64 place) {
    const i64 slot = (od & (slots_[0] - 1)) * slots_[1] + (oh & (slots_[1] - 1));
    const i64 key = od * p_.axis[1].out + oh;
    Place* places = Routed ? places_ + slot * length_ : nullptr;
    if (kept_[slot].key != key) {
      kept_[slot] = {key, fetch(od, oh, gradients_ + slot * length_, places)};
    }
    asked_[count_++] = {kept_[slot].gradient, places, static_cast<Place>(place)};
  }

  // The gradients of a row of outputs: in `gradient`, or where they lie.
  POOLGRAD_LOOP const T* fetch(i64 od, i64 oh, T* gradient, Place* place) {
    const i64 before = (real_.lo - first_) * p_.inner, n = (real_.hi - real_.lo) * p_.inner;
    std::fill(gradient, gradient + before, T(0));
    std::fill(gradient + before + n, gradient + length_, T(0));
    if (n == 0) return gradient;
    prefetch_after(*gy_, gradient_plane_, od, oh, real_, p_.inner);
    if constexpr (Routed) prefetch_after(*routing_, route_plane_, od, oh, real_, p_.inner);
    T* to = gradient + before;
    const T* g = row_of(*gy_, gradient_plane_, p_.inner, od, oh, real_.lo, real_.hi, to);
    if constexpr (Routed) {
      std::fill(place, place + before, ~Place{0});
      std::fill(place + before + n, place + length_, ~Place{0});
      widen_routes(od, oh, place + before, n);
      if (n == length_) return g;
      if (g != to) std::memcpy(to, g, static_cast<std::size_t>(n) * sizeof(T));
    } else {
      const T rows = static_cast<T>(divisor_.of_rows(p_, od, oh));
      lanes<T>(n, [&](auto w, i64 i) {  // each once: g may be `to`
        using V = Vec<T, w()>;
        store(to + i, load<V>(g + i) / (rows * load<V>(divisors_ + i)));
      });
    }
    return gradient;
  }

  void widen_routes(i64 od, i64 oh, Place* to, i64 n) {
    const View& v = *routing_;
    const bool packed = (p_.inner == 1 || v.inner == 1) && v.width == p_.inner;
    if (packed && v.dtype == Dtype::uint8) {
      const auto* from = reinterpret_cast<const std::uint8_t*>(route_plane_) + od * v.depth +
                         oh * v.height + real_.lo * v.width;
      overlapping_lanes<Place>(n, [&](auto w, i64 i) {
        store(to + i, convert<Place>(load<Vec<std::uint8_t, w()>>(from + i)));
      });
    } else {
      const u32* from = row_of(v, route_plane_, p_.inner, od, oh, real_.lo, real_.hi, routes_);
      for (i64 i = 0; i < n; ++i) to[i] = from[i];
    }
  }

  // What inputs i ... get; averages by lines of `line` outputs, as everywhere.
  template <class V>
  static V total(const Sender* senders, i64 count, i64 line, i64 i) {
    constexpr int W = static_cast<int>(sizeof(V) / sizeof(T));
    const auto sent = [&](const Sender& s) {
      const V g = load<V>(s.gradient + i);
      if constexpr (!Routed) return g;
      else return load<Vec<Place, W>>(s.place + i) == s.wanted ? g : V{};
    };
    if constexpr (Routed) line = count;
    const auto sum_of = [&](const Sender* list) {
      V sum = V{} + sent(list[0]);  // 0 + -0.0 is 0.0, as in sums that begin with 0
      for (i64 k = 1; k < line; ++k) sum += sent(list[k]);
      return sum;
    };
    V sum = sum_of(senders);
    for (i64 k = line; k < count; k += line) sum += sum_of(senders + k);
    return sum;
  }

  POOLGRAD_LOOP static void sum(T* to, i64 n, const Sender* senders, i64 count, i64 line) {
    if (count == 0) return std::fill(to, to + n, T(0));
    overlapping_lanes<T>(
        n, [&](auto w, i64 i) { store(to + i, total<Vec<T, w()>>(senders, count, line, i)); });
  }

  // Inputs of two phases, the ones between the others.
  POOLGRAD_LOOP void sum_pairs(T* to, i64 n, const Sender* even, i64 evens, const Sender* odd,
                               i64 odds) const {
    overlapping_lanes<T>(n, [&](auto w, i64 i) {
      using V = Vec<T, w()>;
      const V a = evens ? total<V>(even, evens, phase_[0].count, i) : V{};
      const V b = odds ? total<V>(odd, odds, phase_[1].count, i) : V{};
      store_interleaved(to + 2 * i, a, b);
    });
  }

  // Whether a row of inputs is computed from the same outputs as the row before.
  bool same_senders(i64 h) {
    const auto &own = heights_[h], &before = heights_[h - 1];
    return std::equal(own.begin(), own.end(), before.begin(), before.end(),
                      [](const auto& a, const auto& b) { return a.output == b.output; });
  }

  static void add_to(T* sums, i64 n, T value) {
    for (i64 i = 0; i < n; ++i) sums[i] += value;
  }

  // Every input of a window gets the same.
  void expand(i64 at, i64 n) {
    const Axis& a = p_.axis[2];
    std::fill(made_, made_ + n, T(0));
    for (i64 o = real_.lo; o < real_.hi; ++o) {
      const i64 begin = larger(piece_.lo[2], o * a.stride - a.lo) - piece_.lo[2];
      const i64 end = smaller(piece_.hi[2], o * a.stride - a.lo + a.kernel) - piece_.lo[2];
      for (i64 r = 0; r < count_; ++r) {
        const T* sent = asked_[r].gradient + (o - first_) * p_.inner;
        if (p_.inner == 1) {
          add_to(made_ + begin, end - begin, *sent);
          continue;
        }
        for (i64 w = begin; w < end; ++w) {
          for (i64 c = 0; c < p_.inner; ++c) made_[w * p_.inner + c] += sent[c];
        }
      }
    }
    gx_.put(at, made_, n, streams_);
  }

  void phase(i64 begin, T* to) {
    const Phase& own = phase_[begin];
    ask_columns(own, 0, senders_);
    sum(to, own.inputs, senders_, count_ * own.count, own.count);
  }

  // The outputs that inputs of a phase are computed from, from its input `number` on.
  void ask_columns(const Phase& own, i64 number, Sender* next) const {
    for (i64 r = 0; r < count_; ++r) {
      for (i64 k = 0; k < own.count; ++k) {
        const i64 at = (own.shift[k] + number) * p_.inner;
        *next++ = {asked_[r].gradient + at, Routed ? asked_[r].place + at : nullptr,
                   asked_[r].wanted + static_cast<Place>(own.place[k])};
      }
    }
  }

  void interleave(T* to) {
    const i64 s = p_.axis[2].stride, n = columns();
    if (s == 2 && n > 1) {
      const i64 evens = count_ * phase_[0].count, odds = count_ * phase_[1].count;
      ask_columns(phase_[0], 0, senders_);
      ask_columns(phase_[1], 0, senders_ + evens);
      sum_pairs(to, n / 2, senders_, evens, senders_ + evens, odds);
      if (n % 2) {
        ask_columns(phase_[0], n / 2, senders_);
        sum(to + n - 1, 1, senders_, evens, phase_[0].count);
      }
      return;
    }
    for (i64 begin = 0; begin < smaller(s, n); ++begin) {
      phase(begin, phases_);
      for (i64 i = begin, k = 0; i < n; i += s, ++k) to[i] = phases_[k];
    }
  }

  void pixels(i64 at) {
    const i64 stride = p_.axis[2].stride;
    for (i64 column = 0, begin = 0, number = 0; column < columns(); ++column, at += p_.inner) {
      ask_columns(phase_[begin], number, senders_);
      const i64 line = phase_[begin].count;
      sum(gx_.reserve(at, p_.inner), p_.inner, senders_, count_ * line, line);
      if (++begin == stride) begin = 0, ++number;
    }
  }

  const Plan& p_;
  const InputTile piece_;
  Senders depths_, heights_;
  bool ready_ = false;
  const bool apart_;
  T* made_;  // the last row of inputs
  RowWriter<T> gx_;
  const bool streams_;  // such rows are written with non-temporal stores
  i64 first_, last_, length_, slots_[2];
  Range real_;
  Kept* kept_;
  T *gradients_, *divisors_, *phases_;
  Place* places_;
  u32* routes_;
  const View *gy_ = nullptr, *routing_ = nullptr;
  const char *gradient_plane_ = nullptr, *route_plane_ = nullptr;
  Divisor divisor_{};
  i64 count_ = 0;
  Sender asked_[kMostSenders], senders_[2 * kMostSenders];
  Phase phase_[kMostPhases];
};

}  // namespace
}  // namespace poolgrad
