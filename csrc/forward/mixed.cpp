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

inline constexpr i64 kMixed = 1024;  // elements that are combined at a time

// Combines elements first ... first + n; shares: a of each element.
template <class A>
POOLGRAD_LOOP void combine(const MixedArrays& arrays, i64 first, i64 n, const A* shares) {
  A extremes[kMixed], averages[kMixed], results[kMixed];
  const A* extreme = read(arrays.extreme, first, n, extremes);
  const A* average = read(arrays.average, first, n, averages);
  if (arrays.difference.data) {
    for (i64 i = 0; i < n; ++i) results[i] = extreme[i] - average[i];
    write(arrays.difference, first, results, n);
  }
  for (i64 i = 0; i < n; ++i) {
    // For a = 0 and a = 1 the result is one of the two, also where the other is infinite.
    const A a = shares[i], mixture = a * extreme[i] + (A(1) - a) * average[i];
    results[i] = a == A(1) ? extreme[i] : a == A(0) ? average[i] : mixture;
  }
  write(arrays.mixed, first, results, n);
}

// Combines arrays of planes of `size` elements.
template <class A>
void mix(const Work& work, Parameter alpha, i64 size, const MixedArrays& arrays) {
  const Plan& p = *work.plan;
  const A* values = static_cast<const A*>(alpha.values);
  const i64 pieces = ceil_div(size, kTaskElements);
  parallel_for(p.outer * pieces, Partition(p, work.threads, true).threads, [&](i64 task) {
    const i64 plane = task / pieces, end = smaller(size, (task % pieces + 1) * kTaskElements);
    A shares[kMixed];
    std::fill(shares, shares + kMixed, values[plane % alpha.count]);
    for (i64 at = task % pieces * kTaskElements; at < end; at += kMixed) {
      const i64 n = smaller(kMixed, end - at);
      for (i64 i = 0; p.inner_is_channel && i < n; ++i)
        shares[i] = values[(at + i) % p.inner % alpha.count];
      combine(arrays, plane * size + at, n, shares);
    }
  });
}

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
    mix<A>(work, alpha, p.out_plane(), arrays);
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
    mix<A>(work, alpha, p.in_plane(), arrays);
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
