// Divides the inputs of windows into groups of at most kMaxFolded, which loops read at a time.
#pragma once

#include <type_traits>

#include "choose.hpp"
#include "simd/vector.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Calls f(size, first) for a group of `size` inputs, the first group of its windows or a later one;
// as compile-time constants if the loop is compiled for each of them.
template <bool Specialised, class F>
POOLGRAD_INLINE void by_group(i64 size, bool first, F&& f) {
  if constexpr (!Specialised) {
    f(size, first);
  } else {
    const auto sized = [&](auto is_first) {
      if (size == 1) f(Const<1>{}, is_first);
      else if (size == 2) f(Const<2>{}, is_first);
      else if (size == 3) f(Const<3>{}, is_first);
      else f(Const<kMaxFolded>{}, is_first);
    };
    if (first) sized(std::true_type{});
    else sized(std::false_type{});
  }
}

// Divides `taps` inputs into groups and calls fold(size, first tap) for each.
template <class F>
void in_groups(i64 taps, F&& fold) {
  for (i64 begin = 0; begin < taps; begin += kMaxFolded)
    fold(smaller(taps - begin, kMaxFolded), begin);
}

}  // namespace poolgrad::inline POOLGRAD_ISA
