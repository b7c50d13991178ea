// Column sums first, for averages of windows that share little: adds the rows of inputs of a
// window, then adds along the width once.
#pragma once

#include "forward/separable.hpp"
#include "operators/sum.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

template <class A>
class ColumnSums : NonCopyable {
 public:
  using Row = typename Sum<A>::Row;

  static Batch batch(const Plan& p) { return {1, p.inner}; }

  ColumnSums(const Plan& plan, const View& x, const Tile& tile, const ReadOptions<A>&, Arena& arena,
             i64)
      : p_(plan),
        tile_(tile),
        reader_(plan, x, tile.lo[2], tile.hi[2],
                {.heights = (kMaxFolded - 1) * plan.axis[1].dilation + 1, .pack = true}, arena),
        columns_(inputs_of(plan.axis[2], tile.lo[2], tile.hi[2])),
        sums_(arena.take<A>(plan.axis[2].in)),
        row_(Sum<A>::take(arena, tile.hi[2] - tile.lo[2])) {}

  i64 spacing() const { return 0; }  // planes are not reduced side by side
  bool finite() const { return true; }

  void start(const View& x, const Batch& batch) { reader_.start(plane_of(x, batch.plane)); }

  ReducedRows<Row> row(i64 od, i64 oh) {
    const Span depth = span_of(p_.axis[0], od), height = span_of(p_.axis[1], oh);
    const Axis& width = p_.axis[2];
    const i64 n = columns_.hi - columns_.lo;
    if (depth.taps * height.taps == 0) {
      Sum<A>::clear(row_, tile_.hi[2] - tile_.lo[2]);
      return {row_};
    }
    for (i64 i = 0; i < depth.taps; ++i) {
      const i64 d = depth.begin + i * p_.axis[0].dilation;
      in_groups(height.taps, [&](i64 size, i64 begin) {
        Row from[kMaxFolded];
        for (i64 t = 0; t < size; ++t) {
          const i64 h = height.begin + (begin + t) * p_.axis[1].dilation;
          // only read
          from[t] = {const_cast<A*>(reader_.row(d, h)) + columns_.lo};
        }
        Sum<A>::fold_rows({sums_}, n, from, 0, 0, size, i + begin == 0);
      });
    }
    for (i64 o = tile_.lo[2]; o < tile_.hi[2]; ++o) {
      const Span s = span_of(width, o);
      const Row at = Sum<A>::at(row_, o - tile_.lo[2]);
      if (s.taps == 0) Sum<A>::clear(at, 1);
      else Sum<A>::fold_inputs(at, 1, sums_ + s.begin - columns_.lo, 1, width.dilation, s.taps, 0);
    }
    return {row_};
  }

 private:
  const Plan& p_;
  const Tile tile_;
  Reader<A> reader_;
  const Range columns_;  // that are needed
  A* const sums_;
  const Row row_;
};

}  // namespace poolgrad::inline POOLGRAD_ISA
