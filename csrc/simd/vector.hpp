// Loads, stores, shuffles and loops over rows with the vector types of GCC and Clang. Only this
// file and simd/dtype.hpp (float16 conversions) use intrinsics.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#include "base/common.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
#else
inline constexpr int kVectorBytes = 16;
#endif

// Minimum number of taps of a single window that are reduced across lanes. At least the lanes of
// the widest vector.
inline constexpr i64 kTapsAcrossLanes = 16;

template <i64 N>
using Const = std::integral_constant<i64, N>;

template <class T, int W>
struct VectorOf {
  typedef T type __attribute__((vector_size(W * sizeof(T))));
};
template <class T, int W>
using Vec = typename VectorOf<T, W>::type;

// Half the widths from a vector down to one element, to save machine code.
template <i64 W>
using Narrower = Const<(W > 2 ? W / 4 : 1)>;
template <class T>
inline constexpr i64 kLanesOf = kVectorBytes / static_cast<i64>(sizeof(T));

// Calls body(Const<W>, i) for pieces of W elements of type T that cover [i, n). W is the width of a
// vector, a quarter of it, ..., 1. (Unrolled by four, reductions of rows take 0.9 of the time.)
template <class T, i64 W = kLanesOf<T>, class F>
POOLGRAD_INLINE void lanes(i64 n, F&& body, i64 i = 0) {
  _Pragma("GCC unroll 4") for (; i + W <= n; i += W) body(Const<W>{}, i);
  if constexpr (W > 1) lanes<T, Narrower<W>::value>(n, body, i);
}

// The same from 0 on, but the last piece overlaps the piece before it: the body must be idempotent.
template <class T, i64 W = kLanesOf<T>, class F>
POOLGRAD_INLINE void overlapping_lanes(i64 n, F&& body) {
  if constexpr (W > 1) {
    if (n < W) return overlapping_lanes<T, Narrower<W>::value>(n, body);
  }
  i64 i = 0;
  for (; i + W <= n; i += W) body(Const<W>{}, i);
  if (i < n) body(Const<W>{}, n - W);
}

template <class V, class T>
V load(const T* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}

template <class V, class T>
void store(T* to, V v) {
  std::memcpy(to, &v, sizeof(V));
}

// Non-temporal store, of AVX vectors; others are stored as usual. `to` must be aligned to the size
// of the vector; a misaligned address faults. Other threads see the value after store_fence().
inline constexpr int kLineBytes = 64;
template <class V, class T>
POOLGRAD_INLINE void store_nontemporal(T* to, V v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), reinterpret_cast<__m512i>(v));
    return;
  }
#endif
#if defined(__AVX2__)
  if constexpr (sizeof(V) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(v));
    return;
  }
#endif
  store(to, v);
}
inline void store_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Copies a short run of elements without the cost of a call to memcpy.
template <class T>
void copy_run(const T* from, T* to, i64 n) {
  overlapping_lanes<T>(n, [&](auto w, i64 i) { store(to + i, load<Vec<T, w()>>(from + i)); });
}

// Masked load and store of the first `lanes` lanes of a vector. Lanes that are not loaded are zero.
template <class V, class T>
POOLGRAD_INLINE V load_first(const T* from, i64 lanes) {
  constexpr i64 W = sizeof(V) / sizeof(T);
  if (lanes >= W) return load<V>(from);
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && sizeof(T) >= 4) {
    const auto mask = static_cast<u32>((1 << lanes) - 1);
    __m512i bits;
    if constexpr (sizeof(T) == 4)
      bits = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(mask), from);
    else bits = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(mask), from);
    return reinterpret_cast<V>(bits);
  }
#endif
  T values[W]{};
  copy_run(from, values, lanes);
  return load<V>(values);
}
template <class V, class T>
POOLGRAD_INLINE void store_first(T* to, V v, i64 lanes) {
  constexpr i64 W = sizeof(V) / sizeof(T);
  if (lanes >= W) return store(to, v);
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && sizeof(T) >= 4) {
    const auto mask = static_cast<u32>((1 << lanes) - 1);
    __m512i bits;
    std::memcpy(&bits, &v, sizeof(v));
    if constexpr (sizeof(T) == 4) _mm512_mask_storeu_epi32(to, static_cast<__mmask16>(mask), bits);
    else _mm512_mask_storeu_epi64(to, static_cast<__mmask8>(mask), bits);
    return;
  }
#endif
  T values[W];
  store(values, v);
  copy_run(values, to, lanes);
}

// Strided load: from[0], from[step], from[2 * step], ...
template <class V, class T>
POOLGRAD_INLINE V load_strided(const T* from, i64 step) {
  if constexpr (sizeof(V) == sizeof(T)) return V{*from};  // else GCC 12 warns that v is not set
  V v{};
  POOLGRAD_UNROLL
  for (i64 j = 0; j < static_cast<i64>(sizeof(V) / sizeof(T)); ++j) v[j] = from[j * step];
  return v;
}

// Loads and stores all lanes of a vector.
struct AllLanes {
  template <class V, class T>
  V load(const T* from, i64 step = 1) const {
    return step == 1 ? poolgrad::load<V>(from) : load_strided<V>(from, step);
  }
  template <class V, class T>
  void store(T* to, V v) const {
    poolgrad::store(to, v);
  }
};
// Loads and stores the first lanes of a vector. Lanes that are not loaded are zero.
struct FirstLanes {
  i64 lanes;
  template <class V, class T>
  V load(const T* from, i64 step = 1) const {
    if (step == 1) return load_first<V>(from, lanes);
    V v{};
    for (i64 j = 0; j < lanes; ++j) v[j] = from[j * step];
    return v;
  }
  template <class V, class T>
  void store(T* to, V v) const {
    store_first(to, v, lanes);
  }
};

// Calls body(Const<W>, i, access) for pieces of one vector that cover [0, n); `access` masks the
// lanes beyond n. For bodies that are too long to be compiled for several widths.
template <class T, class F>
POOLGRAD_INLINE void masked_lanes(i64 n, F&& body) {
  constexpr i64 W = kLanesOf<T>;
  for (i64 i = 0; i < n; i += W) body(Const<W>{}, i, FirstLanes{smaller(W, n - i)});
}

// Returns whether any lane of a comparison is set.
template <class M>
POOLGRAD_INLINE bool any(M mask) {
#if defined(__AVX512F__)
  if constexpr (sizeof(M) == 64) {
    const auto bits = reinterpret_cast<__m512i>(mask);
    return _mm512_test_epi64_mask(bits, bits) != 0;
  }
#endif
  if constexpr (sizeof(M) <= sizeof(i64)) {
    i64 bits = 0;
    std::memcpy(&bits, &mask, sizeof(M));
    return bits != 0;
  } else {
    Vec<char, sizeof(M) / 2> halves[2];
    std::memcpy(&halves, &mask, sizeof(M));
    return any(halves[0] | halves[1]);
  }
}

// Converts lanes to another type, in steps of twice or half the size: GCC 12 compiles larger steps
// lane by lane.
template <class To, class V>
auto convert(V v) {
  using From = std::remove_cvref_t<decltype(v[0])>;
  constexpr int W = static_cast<int>(sizeof(V) / sizeof(From));
#if defined(__AVX512F__)
  if constexpr (sizeof(From) == 4 && sizeof(To) == 1 && W == 16) {  // one instruction
    Vec<To, W> bytes;
    const __m128i narrow = _mm512_maskz_cvtepi32_epi8(0xFFFF, reinterpret_cast<__m512i>(v));
    std::memcpy(&bytes, &narrow, sizeof(bytes));
    return bytes;
  } else
#endif
#if defined(__AVX2__)
      if constexpr (std::is_same_v<From, std::uint8_t> && std::is_same_v<To, u32> && W == 8) {
    __m128i narrow{};
    std::memcpy(&narrow, &v, sizeof(v));
    return reinterpret_cast<Vec<u32, W>>(_mm256_cvtepu8_epi32(narrow));
  } else
#endif
#if defined(__AVX512F__)
      if constexpr (std::is_same_v<From, std::uint8_t> && std::is_same_v<To, u32> && W == 16) {
    __m128i narrow;
    std::memcpy(&narrow, &v, sizeof(v));
    return reinterpret_cast<Vec<u32, W>>(_mm512_maskz_cvtepu8_epi32(0xFFFF, narrow));
  } else
#endif
      if constexpr (sizeof(To) > 2 * sizeof(From)) {
    using Step = std::conditional_t<sizeof(From) == 1, std::uint16_t, u32>;
    return convert<To>(__builtin_convertvector(v, Vec<Step, W>));
  } else if constexpr (2 * sizeof(To) < sizeof(From)) {
    using Step = std::conditional_t<sizeof(From) == 8, u32, std::uint16_t>;
    return convert<To>(__builtin_convertvector(v, Vec<Step, W>));
  } else {
    return __builtin_convertvector(v, Vec<To, W>);
  }
}

// Loads from[0], from[2], from[4], ... by a shuffle of two vectors. odd: the vectors begin one
// element before `from` and end with the last element of the result; else one element later.
template <class V, class T>
POOLGRAD_INLINE V load_stride_2(const T* from, bool odd) {
  constexpr int W = static_cast<int>(sizeof(V) / sizeof(T));
  if constexpr (W == 1) {
    return load<V>(from);
  } else {
    const V a = load<V>(from - odd), b = load<V>(from - odd + W);
    return [&]<int... J>(std::integer_sequence<int, J...>) {
      return odd ? __builtin_shufflevector(a, b, (2 * J + 1)...)
                 : __builtin_shufflevector(a, b, (2 * J)...);
    }(std::make_integer_sequence<int, W>{});
  }
}

// Loads from[t], from[t + 3], from[t + 6], ..., for t = 0, 1 or 2, by shuffles of three vectors.
template <class V, class T>
POOLGRAD_INLINE V load_stride_3(const T* from, i64 t) {
  constexpr int W = static_cast<int>(sizeof(V) / sizeof(T));
  const V a = load<V>(from), b = load<V>(from + W), c = load<V>(from + 2 * W);
  const auto pick = [&]<i64 P, int... J>(Const<P>, std::integer_sequence<int, J...>) {
    const V two = __builtin_shufflevector(a, b, (3 * J + P < 2 * W ? 3 * J + P : 0)...);
    return __builtin_shufflevector(two, c, (3 * J + P < 2 * W ? J : 3 * J + P - W)...);
  };
  const auto lanes = std::make_integer_sequence<int, W>{};
  return t == 0   ? pick(Const<0>{}, lanes)
         : t == 1 ? pick(Const<1>{}, lanes)
                  : pick(Const<2>{}, lanes);
}

// Interleaves the lanes of two vectors: even[0], odd[0], even[1], odd[1], ...
template <class V>
POOLGRAD_INLINE void interleave(V even, V odd, V* both) {
  constexpr int W = static_cast<int>(sizeof(V) / sizeof(even[0]));
  [&]<int... J>(std::integer_sequence<int, J...>) {
    both[0] = __builtin_shufflevector(even, odd, (J / 2 + J % 2 * W)...);
    both[1] = __builtin_shufflevector(even, odd, ((W + J) / 2 + (W + J) % 2 * W)...);
  }(std::make_integer_sequence<int, W>{});
}
template <class V, class T>
POOLGRAD_INLINE void store_interleaved(T* to, V even, V odd) {
  constexpr int W = static_cast<int>(sizeof(V) / sizeof(T));
  if constexpr (W == 1) {
    to[0] = even[0], to[1] = odd[0];
  } else {
    V both[2];
    interleave(even, odd, both);
    store(to, both[0]), store(to + W, both[1]);
  }
}

// Lanes by, by + 1, ... of the concatenation of two vectors, of 16 lanes with AVX-512. First: where
// the compiler knows that `by` is this power of two, or 2, 4, ... times it, the instruction keeps
// both operands. (All lanes are selected: GCC 12 warns of the intrinsic without a mask.)
template <int First = 1, class V>
POOLGRAD_INLINE V slide(V a, V b, i64 by) {
#if defined(__AVX512F__)
  const auto from = reinterpret_cast<__m512i>(a), after = reinterpret_cast<__m512i>(b);
  if (__builtin_constant_p(by == First) && by == First)
    return reinterpret_cast<V>(_mm512_maskz_alignr_epi32(0xFFFF, after, from, First));
  if constexpr (First < 8) return slide<2 * First>(a, b, by);
  const auto lanes =
      Vec<int, 16>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15} + static_cast<int>(by);
  return reinterpret_cast<V>(
      _mm512_permutex2var_epi32(from, reinterpret_cast<__m512i>(lanes), after));
#else
  const V both[2] = {a, b};
  return load<V>(reinterpret_cast<const char*>(both) + by * static_cast<i64>(sizeof(a[0])));
#endif
}

// Transposes a square of W vectors of W lanes; each step rotates the bits of (row, lane) by one.
template <class V, int W>
POOLGRAD_INLINE void transpose(V (&square)[W]) {
  POOLGRAD_UNROLL
  for (int done = 1; done < W; done *= 2) {
    V next[W];
    POOLGRAD_UNROLL
    for (int k = 0; k < W / 2; ++k) interleave(square[k], square[k + W / 2], next + 2 * k);
    POOLGRAD_UNROLL
    for (int k = 0; k < W; ++k) square[k] = next[k];
  }
}

// Interleaves two rows of n elements. Adds 0, so that -0.0 becomes 0.0.
template <class T>
POOLGRAD_LOOP void interleave_rows(const T* __restrict even, const T* __restrict odd,
                                   T* __restrict to, i64 n) {
  lanes<T>(n, [&](auto w, i64 i) {
    using V = Vec<T, w()>;
    store_interleaved(to + 2 * i, V{} + load<V>(even + i), V{} + load<V>(odd + i));
  });
}

// Separates the even and the odd elements of a row.
template <class T>
POOLGRAD_LOOP void deinterleave_row(const T* __restrict from, T* __restrict even, T* __restrict odd,
                                    i64 n) {
  lanes<T>(n, [&](auto w, i64 i) {
    using V = Vec<T, w()>;
    store(even + i, load_stride_2<V>(from + 2 * i, false));
    store(odd + i, load_stride_2<V>(from + 2 * i + 1, true));
  });
}

// Loads tap t of outputs i, i + 1, ... of windows of stride 1.
struct StrideOne {
  i64 gap;  // distance of taps in elements
  template <class V, class T>
  V get(const T* from, i64 i, i64 t) const {
    return load<V>(from + i + t * gap);
  }
};
// The same for stride 2 and at least two adjacent taps.
struct StrideTwo {
  bool begins;  // whether tap 0 is the first of the window: nothing before it may be read
  template <class V, class T>
  V get(const T* from, i64 i, i64 t) const {
    return load_stride_2<V>(from + 2 * i + t, t > 0 || !begins);
  }
};
// The same for any stride (`step`).
struct AnyStride {
  i64 step, gap;
  template <class V, class T>
  V get(const T* from, i64 i, i64 t) const {
    return load_strided<V>(from + i * step + t * gap, step);
  }
};

// Calls f with the loader for these windows.
template <class F>
void by_stride(i64 step, i64 gap, i64 taps, bool begins, F&& f) {
  if (step == 1) f(StrideOne{gap});
  else if (step == 2 && gap == 1 && taps > 1) f(StrideTwo{begins});
  else f(AnyStride{step, gap});
}

}  // namespace poolgrad::inline POOLGRAD_ISA
