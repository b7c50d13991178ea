// Computes tiles of outputs of small windows: single rows by unrolled windows, several rows at once
// by register blocking or as joined rows.
#pragma once

#include "forward/joined_rows.hpp"
#include "forward/register_blocked.hpp"
#include "geometry/partition.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Output provides the memory of results: open(od, oh, rows, at, n, prefetches) returns the target
// of n elements of `rows` rows from (od, oh) on, from element `at` of the row on; close(target, n)
// completes them.
template <class Op, class Output>
class SmallWindows {
 public:
  using Target = typename Op::Target;

  // make_output(n): the output of at most n elements at a time
  template <class MakeOutput>
  POOLGRAD_LOOP SmallWindows(Algorithm algorithm, const Plan& plan, const View& x, const Tile& tile,
                             i64 flips, Arena& arena, MakeOutput&& make_output)
      : tile_(tile),
        inner_(plan.inner),
        length_((tile.hi[2] - tile.lo[2]) * plan.inner),
        windows_(plan, x, tile, flips, arena),
        blocked_(plan, x, algorithm == Algorithm::register_blocked, flips, Op::kFill, arena),
        joined_(plan, x, tile, algorithm == Algorithm::unrolled_joined_rows, flips, arena),
        output(make_output(larger(1, larger(blocked_.rows(), joined_.rows())) * length_)) {}

  // Computes the tile of one plane. `output` has been set to this plane.
  void compute_tile(const char* plane) {
    windows_.start(plane);
    blocked_.start(plane);
    over_rows(tile_, blocked_.depth_first(), [&](i64 od, i64 oh) {
      const i64 rows = smaller(larger(joined_.rows(), blocked_.rows()), tile_.hi[1] - oh);
      if (rows > 0) {
        compute_rows(plane, od, oh, rows);
        return rows;
      }
      windows_.row(od, oh, [&](i64 at, i64 n, auto&& compute) {
        const Target to = output.open(od, oh, 1, at, n, true);
        compute(to);
        output.close(to, n);
      });
      return i64{1};
    });
  }

 private:
  // Computes rows from (od, oh) on, some columns at a time. Where the algorithm for several rows
  // fails, or an output may be padding, rows are computed one by one.
  void compute_rows(const char* plane, i64 od, i64 oh, i64 rows) {
    const bool joins = joined_.rows() > 0;
    const i64 begin = tile_.lo[2], columns = joins ? tile_.hi[2] - begin : blocked_.columns();
    for (i64 lo = begin, hi; lo < tile_.hi[2]; lo = hi) {
      hi = smaller(tile_.hi[2], lo + columns);
      const i64 at = (lo - begin) * inner_, n = (hi - lo) * inner_;
      const Target to = output.open(od, oh, rows, at, (rows - 1) * length_ + n, joins);
      const bool computed =
          joins ? joined_.compute(plane, oh, rows, to) : blocked_.compute(od, oh, rows, lo, hi, to);
      for (i64 q = 0; !(joins && computed) && q < rows; ++q) {
        const Target row = to.line(q, length_);
        if (!computed || blocked_.may_be_padding(oh + q, lo, hi, row))
          windows_.compute_columns(od, oh + q, lo, hi, row);
      }
      const i64 at_once = Joins<Op> && n == length_ ? rows : 1;
      for (i64 q = 0; q < rows; q += at_once) output.close(to.line(q, length_), at_once * n);
    }
  }

  const Tile tile_;
  const i64 inner_, length_;  // elements of a pixel, and of a row
  Unrolled<Op> windows_;
  RegisterBlocked<typename Op::AssumeNoNaN> blocked_;
  std::conditional_t<Joins<Op>, JoinedRows<Op>, NoJoinedRows<Op>> joined_;

 public:
  Output output;
};

// Computes all tiles. make_output(tile, n, arena): the output of at most n elements at a time;
// independent: see over_tiles().
template <class Op, class MakeOutput>
void over_small_windows(const Work& work, Algorithm algorithm, const View& x, i64 flips,
                        bool independent, MakeOutput&& make_output) {
  using State = SmallWindows<Op, std::invoke_result_t<MakeOutput, const Tile&, i64, Arena&>>;
  over_tiles<Tile>(
      work,
      [&](const Tile& tile, Arena& arena) {
        return State(algorithm, *work.plan, x, tile, flips, arena,
                     [&](i64 longest) { return make_output(tile, longest, arena); });
      },
      [&](State& state, i64 plane, const Tile&) {
        state.output.start(plane);
        state.compute_tile(plane_of(x, plane));
      },
      independent);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
