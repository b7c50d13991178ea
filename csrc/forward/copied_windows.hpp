// Copies the inputs of each window side by side, for reductions that read them several times.
// Handles windows of any form.
#pragma once

#include "forward/row_reader.hpp"
#include "simd/vector.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// The windows of a vector of neighbouring outputs of a row: window j has counts[j] inputs in
// row-major order, and is filled with its first input up to a multiple of kLineBytes.
template <class A>
class CopiedWindows {
 public:
  using V = Vec<A, kLanesOf<A>>;

  CopiedWindows(const Plan& p, const View& x, const Tile& tile, Arena& arena)
      : p_(p), tile_(tile), reader_(p, x, tile.lo[2], tile.hi[2], reading(p), arena) {
    const i64 size = ceil_div(max_valid_inputs(p), kLine) * kLine;
    for (i64 j = 0; j < smaller(kLanesOf<A>, length()); ++j)
      windows_[j] = arena.take<V>(size / kLanesOf<A>);
  }

  i64 length() const { return (tile_.hi[2] - tile_.lo[2]) * p_.inner; }  // outputs of a row

  void start(const char* plane) { reader_.start(plane); }

  // Calls each(i, n) for outputs i ... i + n of row (od, oh), whose windows are then copied.
  template <class Each>
  void each_vector(i64 od, i64 oh, Each&& each) {
    for (i64 i = 0, n; i < length(); i += n) {
      n = smaller(kLanesOf<A>, length() - i);
      for (i64 j = 0, channels; j < n; j += channels) {
        const i64 c = (i + j) % p_.inner;
        channels = smaller(n - j, p_.inner - c);
        copy(od, oh, tile_.lo[2] + (i + j) / p_.inner, c, channels, j);
      }
      each(i, n);
    }
  }

  A* inputs(i64 j) const { return reinterpret_cast<A*>(windows_[j]); }
  V* vectors(i64 j) const { return windows_[j]; }
  i64 count(i64 j) const { return counts_[j]; }

 private:
  static constexpr i64 kLine = kLineBytes / static_cast<i64>(sizeof(A));

  static ReadOptions<A> reading(const Plan& p) {
    const auto length = [](const Axis& a) { return smaller(a.in, covered_length(a, 1)); };
    ReadOptions<A> options;
    if (p.axis[2].out > 1)  // the next window holds the same rows
      options.depths = length(p.axis[0]), options.heights = length(p.axis[1]);
    return options;
  }

  // Copies the windows of channels c, c + 1, ... of output (od, oh, ow) to windows j, j + 1, ...
  POOLGRAD_LOOP void copy(i64 od, i64 oh, i64 ow, i64 c, i64 channels, i64 j) {
    const Span s = span_of(p_.axis[2], ow);
    const i64 step = reader_.step(), gap = p_.axis[2].dilation * step;
    i64 n = 0;
    each_line(p_, od, oh, [&](i64, i64 d, i64 h) {
      const A* from = reader_.row(d, h) + s.begin * step + c;
      for (i64 k = 0; k < channels; ++k) {
        A* to = inputs(j + k) + n;
        if (gap == 1) copy_run(from, to, s.taps);
        for (i64 t = 0; t < s.taps && gap != 1; ++t) to[t] = from[t * gap + k];
      }
      n += s.taps;
    });
    for (i64 k = j; k < j + channels; ++k) {
      counts_[k] = n;
      for (i64 t = n; t % kLine != 0; ++t) inputs(k)[t] = inputs(k)[0];
    }
  }

  const Plan& p_;
  const Tile tile_;
  Reader<A> reader_;
  V* windows_[kLanesOf<A>];
  i64 counts_[kLanesOf<A>];
};

}  // namespace poolgrad::inline POOLGRAD_ISA
