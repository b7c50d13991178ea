// Computes mixed pooling (Lee et al. 2016), a * max + (1 - a) * average, and its gradient, from the
// kernels of the maximum and of the average. Compiled once for each instruction set.
#include "base/buffer_cache.hpp"
#include "base/common.hpp"
#include "geometry/partition.hpp"
#include "geometry/view.hpp"
#include "kernels.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

extern const SelectKernels select_kernels;
extern const RouteKernels route_kernels;
extern const WeightedKernels weighted_kernels;

namespace {

// An array of intermediate results in the type of the arithmetic.
template <class A>
struct Intermediate {
  CachedBlock block;
  explicit Intermediate(i64 n) : block(static_cast<std::size_t>(n) * sizeof(A)) {}
  Dense array() const { return {static_cast<char*>(block.data()), DtypeOf<A>::value}; }
};

// The arrays that are combined, element by element.
struct MixedArrays {
  Dense extreme, average;  // of the maximum, and of the average
  Dense mixed;             // may be `extreme`
  Dense difference;        // extreme - average, or null
};

// Combines pieces of planes.
template <class A>
class Mix {
 public:
  Mix(const Plan& p, Parameter share, MixedArrays arrays, Arena& arena)
      : p_(p), share_(share), arrays_(arrays), pixels_(larger(1, kPieceElements / p.inner)) {
    for (A** row : {&shares_, &extremes_, &averages_, &mixed_})
      *row = arena.take<A>(pixels_ * p.inner);
  }

  // Combines the elements of a box; begin: the index of the first element of its plane.
  // length(axis): elements of a plane along an axis.
  template <class Box, class Length>
  void run(i64 plane, i64 begin, const Box& box, Length&& length) {
    fill_parameter(p_, share_, plane, pixels_, shares_);
    const auto index = [&](const i64* at) {
      return (at[0] * length(1) + at[1]) * length(2) + at[2];
    };
    const i64 last[3] = {box.hi[0] - 1, box.hi[1] - 1, box.hi[2] - 1};
    const i64 end = begin + (index(last) + 1) * p_.inner;  // a box is contiguous
    for (i64 at = begin + index(box.lo) * p_.inner; at < end; at += pixels_ * p_.inner)
      combine(at, smaller(pixels_ * p_.inner, end - at));
  }

 private:
  static constexpr i64 kPieceElements = 1024;

  POOLGRAD_LOOP void combine(i64 first, i64 n) {
    const A* extreme = read(arrays_.extreme, first, n, extremes_);
    const A* average = read(arrays_.average, first, n, averages_);
    if (arrays_.difference.data) {
      A* difference = elements_of<A>(arrays_.difference, first);
      for (i64 i = 0; i < n; ++i) difference[i] = extreme[i] - average[i];
    }
    for (i64 i = 0; i < n; ++i) {
      // For a = 0 and a = 1 the result is one of the two, also where the other is infinite.
      const A a = shares_[i], mixture = a * extreme[i] + (A(1) - a) * average[i];
      mixed_[i] = a == A(1) ? extreme[i] : a == A(0) ? average[i] : mixture;
    }
    write(arrays_.mixed, first, mixed_, n);
  }

  const Plan& p_;
  const Parameter share_;
  const MixedArrays arrays_;
  const i64 pixels_;  // of a piece
  A *shares_, *extremes_, *averages_, *mixed_;
};

}  // namespace

void mixed(const Work& work, const View& x, Parameter alpha, bool count_padding, Dense y,
           Dense routes, void* sensitivity) {
  const Plan& p = *work.plan;
  by_sum(x.dtype, [&](auto a) {
    using A = decltype(a);
    const Intermediate<A> average(p.outer * p.out_plane());
    select_kernels.forward(work, Select::largest, x, y, routes, false);
    weighted_kernels.average(work, x, average.array(), count_padding, 0);
    const Dense difference{static_cast<char*>(sensitivity), DtypeOf<A>::value};
    const MixedArrays arrays{y, average.array(), y, difference};
    over_outputs(
        work, [&](const Tile&, Arena& arena) { return Mix<A>(p, alpha, arrays, arena); },
        [&](Mix<A>& mix, i64 plane, const Tile& tile) {
          mix.run(plane, plane * p.out_plane(), tile, [&](int axis) { return p.axis[axis].out; });
        });
  });
}

void mixed_backward(const Work& work, const View& gy, const View& routes, Parameter alpha,
                    bool count_padding, Dense gx) {
  const Plan& p = *work.plan;
  by_sum(gy.dtype, [&](auto a) {
    using A = decltype(a);
    const Intermediate<A> routed(p.outer * p.in_plane()), averaged(p.outer * p.in_plane());
    route_kernels.backward(work, gy, routes, routed.array());
    weighted_kernels.average_backward(work, gy, averaged.array(), count_padding, 0);
    const MixedArrays arrays{routed.array(), averaged.array(), gx, {}};
    over_inputs(
        work, [&](const InputTile&, Arena& arena) { return Mix<A>(p, alpha, arrays, arena); },
        [&](Mix<A>& mix, i64 plane, const InputTile& tile) {
          mix.run(plane, plane * p.in_plane(), tile, [&](int axis) { return p.axis[axis].in; });
        });
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
