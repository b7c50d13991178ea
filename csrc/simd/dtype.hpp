// Lists the element types of arrays and converts rows to and from arithmetic types: float for
// elements of one or two bytes and float32; double for float64 and 32-bit integers; int64
// (comparisons) or double (sums) for int64. So a kernel that is compiled for two or three
// arithmetic types handles all dtypes.
#pragma once

#include <limits>

#include "simd/prefetch.hpp"
#include "simd/vector.hpp"

namespace poolgrad {

// Python passes these numbers: positions in DTYPE_NAMES of src/poolgrad/dtypes.py. Floats come
// first.
enum class Dtype {
  float16,
  bfloat16,
  float32,
  float64,
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  boolean
};

// How averages are rounded to quantised integers: multiplied with `scale`, that of the inputs
// divided by that of the outputs (0: not quantised), and rounded. The zero point of the outputs is
// added before or after rounding, which differs for ties: they are rounded to even.
struct Quantization {
  float scale = 0, added_before = 0, added_after = 0;
};

// An array that is written: dense, in the order leading axes, depth, height, width, inner.
struct Dense {
  char* data;
  Dtype dtype;
  Quantization quantization{};  // of averages
};

inline namespace POOLGRAD_ISA {

inline i64 size_of(Dtype dtype) {
  using enum Dtype;
  const auto is = [&](auto... any) { return ((dtype == any) || ...); };
  if (is(boolean, uint8, int8)) return 1;
  if (is(float16, bfloat16, int16, uint16)) return 2;
  return is(float64, int64) ? 8 : 4;
}

inline bool is_floating(Dtype dtype) { return dtype <= Dtype::float64; }

// Whether elements of this type are added in double, since float does not represent all of them.
inline bool is_wide(Dtype dtype) {
  return size_of(dtype) == 8 || dtype == Dtype::int32 || dtype == Dtype::uint32;
}

// The bits of float16 and of bfloat16.
struct Float16 {
  std::uint16_t bits;
};
struct BFloat16 {
  std::uint16_t bits;
};

template <class T>
inline constexpr bool kFloat = std::is_floating_point_v<T>;

template <class V, class W>
V bits_as(W w) {
  static_assert(sizeof(V) == sizeof(W));
  V v;
  std::memcpy(&v, &w, sizeof(V));
  return v;
}

template <int W>
Vec<float, W> widen_lanes(BFloat16, Vec<std::uint16_t, W> h) {
  return bits_as<Vec<float, W>>(convert<u32>(h) << 16);
}

// Rounds to the nearest, ties to even; a NaN stays a NaN.
template <int W>
Vec<std::uint16_t, W> narrow_lanes(BFloat16, Vec<float, W> f) {
  const auto u = bits_as<Vec<u32, W>>(f);
  const auto rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  return convert<std::uint16_t>((f != f) ? (u >> 16) | 0x40u : rounded);
}

// Conversions of float16: widening is exact in every floating-point mode (subnormal numbers flushed
// to zero); narrowing rounds to the nearest, ties to even, and converts a NaN to 0x7E00 with its
// sign.
#if defined(__F16C__) || defined(__ARM_NEON)

// Conversions of four lanes by one instruction.
#if defined(__ARM_NEON)
using FourFloats = float32x4_t;
using FourHalves = float16x4_t;
inline FourFloats widen_four(FourHalves h) { return vcvt_f32_f16(h); }
inline FourHalves narrow_four(FourFloats f) { return vcvt_f16_f32(f); }
#else
using FourFloats = __m128;
using FourHalves = __m128i;
inline FourFloats widen_four(FourHalves h) { return _mm_cvtph_ps(h); }
inline FourHalves narrow_four(FourFloats f) { return _mm_cvtps_ph(f, 0); }
#endif

// The first lanes of `to` get the bytes of `from`, or as many as fit; the others are zero.
template <class To, class From>
To leading_lanes(const From& from) {
  To to{};
  std::memcpy(&to, &from, sizeof(To) < sizeof(From) ? sizeof(To) : sizeof(From));
  return to;
}
// Applies f to both halves of a vector.
template <class To, class V, class F>
To by_halves(V v, F&& f) {
  using Lane = std::remove_cvref_t<decltype(v[0])>;
  Vec<Lane, static_cast<int>(sizeof(V) / sizeof(Lane) / 2)> halves[2];
  std::memcpy(&halves, &v, sizeof(V));
  const auto low = f(halves[0]), high = f(halves[1]);
  To to;
  std::memcpy(&to, &low, sizeof(low));
  std::memcpy(reinterpret_cast<char*>(&to) + sizeof(low), &high, sizeof(high));
  return to;
}

// 512-bit intrinsics with a mask of all lanes, because GCC 12 warns of uninitialised values in
// those without.
template <int W>
Vec<float, W> widen_lanes(Float16, Vec<std::uint16_t, W> h) {
  using F = Vec<float, W>;
  if constexpr (W <= 4) {
    return leading_lanes<F>(widen_four(leading_lanes<FourHalves>(h)));
#if defined(__AVX512F__)
  } else if constexpr (W == 16) {
    return bits_as<F>(_mm512_maskz_cvtph_ps(0xFFFF, bits_as<__m256i>(h)));
#endif
#if defined(__F16C__)
  } else if constexpr (W == 8) {
    return bits_as<F>(_mm256_cvtph_ps(bits_as<__m128i>(h)));
#endif
  } else {
    return by_halves<F>(h, [](auto half) { return widen_lanes<W / 2>(Float16{}, half); });
  }
}

template <int W>
Vec<std::uint16_t, W> round_to_half(Vec<float, W> f) {
  using H = Vec<std::uint16_t, W>;
  if constexpr (W <= 4) {
    return leading_lanes<H>(narrow_four(leading_lanes<FourFloats>(f)));
#if defined(__AVX512F__)
  } else if constexpr (W == 16) {
    return bits_as<H>(_mm512_maskz_cvtps_ph(0xFFFF, bits_as<__m512>(f), 0));
#endif
#if defined(__F16C__)
  } else if constexpr (W == 8) {
    return bits_as<H>(_mm256_cvtps_ph(bits_as<__m256>(f), 0));
#endif
  } else {
    return by_halves<H>(f, [](auto half) { return round_to_half<W / 2>(half); });
  }
}

template <int W>
Vec<std::uint16_t, W> narrow_lanes(Float16, Vec<float, W> f) {
  using H = Vec<std::uint16_t, W>;
  const H rounded = round_to_half<W>(f),
          nan = (rounded & std::uint16_t{0x8000}) | std::uint16_t{0x7E00};
  return (rounded & std::uint16_t{0x7FFF}) > std::uint16_t{0x7C00} ? nan : rounded;
}

#else

template <int W>
Vec<float, W> widen_lanes(Float16, Vec<std::uint16_t, W> h) {
  using U = Vec<u32, W>;
  const U u = convert<u32>(h), magnitude = u & 0x7FFFu;
  const auto integer = bits_as<Vec<std::int32_t, W>>(magnitude);
  const U subnormal = bits_as<U>(convert<float>(integer) * 0x1p-24f);
  const U normal = (magnitude << 13) + (112u << 23);
  const U special = (magnitude << 13) | 0x7F800000u;  // infinities and NaNs
  const U finite = magnitude < 0x400u ? subnormal : normal;
  return bits_as<Vec<float, W>>((magnitude >= 0x7C00u ? special : finite) | ((u & 0x8000u) << 16));
}

template <int W>
Vec<std::uint16_t, W> narrow_lanes(Float16, Vec<float, W> f) {
  using U = Vec<u32, W>;
  const auto u = bits_as<U>(f);
  const U sign = (u >> 16) & 0x8000u, magnitude = u & 0x7FFFFFFFu;
  const U normal = (magnitude + 0xC8000FFFu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding one half leaves a subnormal result in the last bits, rounded by the addition.
  const U small = bits_as<U>(bits_as<Vec<float, W>>(magnitude) + 0.5f) - 0x3F000000u;
  const U large = magnitude > 0x7F800000u ? U{} + 0x7E00u : U{} + 0x7C00u;
  const U finite = magnitude < 0x38800000u ? small : normal;
  return convert<std::uint16_t>((magnitude >= 0x477FF000u ? large : finite) | sign);
}

#endif

// Loads elements of float, double or a two-byte float as numbers of type A.
template <int W, class A, class S>
POOLGRAD_INLINE Vec<A, W> load_as(const S* from) {
  if constexpr (std::is_same_v<S, A>) return load<Vec<A, W>>(from);
  else return widen_lanes<W>(S{}, load<Vec<std::uint16_t, W>>(from));
}

// Converts n elements to the arithmetic type. zero_point: subtracted from integers.
template <class S, class A>
POOLGRAD_LOOP void widen_run(const S* from, A* to, i64 n, float zero_point = 0) {
  if constexpr (std::is_same_v<S, A>) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(A));
  } else if constexpr (std::is_same_v<S, Float16> || std::is_same_v<S, BFloat16>) {
    lanes<A>(n, [&](auto w, i64 i) {
      if (n * i64{sizeof(S)} > kMaxPrefetchedRow) prefetch(from + i + kPrefetchElements<S>);
      store(to + i, load_as<w(), A>(from + i));
    });
  } else if (zero_point != 0) {
    for (i64 i = 0; i < n; ++i) to[i] = static_cast<A>(from[i]) - static_cast<A>(zero_point);
  } else {
    for (i64 i = 0; i < n; ++i) to[i] = static_cast<A>(from[i]);
  }
}

// Converts n numbers to elements. Integers are clamped, those of a boolean to at most 1: the
// identity of a reduction (no input) may be outside their range. NaN becomes the lowest integer.
template <class A, class S>
POOLGRAD_LOOP void narrow_run(const A* from, S* to, i64 n, bool is_boolean = false) {
  if constexpr (std::is_same_v<S, A>) {
    std::memcpy(to, from, static_cast<std::size_t>(n) * sizeof(A));
  } else if constexpr (std::is_same_v<S, Float16> || std::is_same_v<S, BFloat16>) {
    lanes<A>(n, [&](auto w, i64 i) {
      store(to + i, narrow_lanes<w()>(S{}, load<Vec<float, w()>>(from + i)));
    });
  } else {
    constexpr A lowest = static_cast<A>(std::numeric_limits<S>::lowest());
    const A highest = is_boolean ? A(1) : static_cast<A>(std::numeric_limits<S>::max());
    using Integer = std::conditional_t<sizeof(A) == 4, std::int32_t, i64>;
    overlapping_lanes<A>(n, [&](auto w, i64 i) {
      using V = Vec<A, w()>;
      const V v = load<V>(from + i), above = v > lowest ? v : V{} + lowest;
      store(to + i, convert<S>(convert<Integer>(above < highest ? above : V{} + highest)));
    });
  }
}

// The dtype of arrays of elements T: float, double, i64 or an unsigned integer.
template <class T>
struct DtypeOf {
  static constexpr Dtype value = std::is_same_v<T, float>    ? Dtype::float32
                                 : std::is_same_v<T, double> ? Dtype::float64
                                 : sizeof(T) == 8            ? Dtype::int64
                                 : sizeof(T) == 4            ? Dtype::uint32
                                 : sizeof(T) == 2            ? Dtype::uint16
                                                             : Dtype::uint8;
};

// Calls f(S{}) with the element type S of a dtype whose arithmetic type is A.
template <class A, class F>
void by_element(Dtype dtype, F&& f) {
  if (dtype == DtypeOf<A>::value) return f(A{});
  if constexpr (std::is_same_v<A, float>) {
    switch (dtype) {
      case Dtype::float16:
        return f(Float16{});
      case Dtype::bfloat16:
        return f(BFloat16{});
      case Dtype::boolean:
      case Dtype::uint8:
        return f(std::uint8_t{});
      case Dtype::int8:
        return f(std::int8_t{});
      case Dtype::uint16:
        return f(std::uint16_t{});
      default:
        return f(std::int16_t{});
    }
  } else if constexpr (std::is_same_v<A, double>) {
    if (dtype == Dtype::uint8) return f(std::uint8_t{});  // quantised, in large windows
    if (dtype == Dtype::int8) return f(std::int8_t{});
    if (dtype == Dtype::uint32) return f(u32{});
    return dtype == Dtype::int32 ? f(std::int32_t{}) : f(i64{});
  } else if constexpr (std::is_same_v<A, u32>) {  // routes
    return dtype == Dtype::uint8 ? f(std::uint8_t{}) : f(std::uint16_t{});
  }
}

// Calls f(A{}) with the type A in which elements are compared (by_order) or added (by_sum), or in
// which routes are read (by_route).
template <class F>
void by_sum(Dtype dtype, F&& f) {
  if (is_wide(dtype)) f(double{});
  else f(float{});
}
template <class F>
void by_order(Dtype dtype, F&& f) {
  if (dtype == Dtype::int64) f(i64{});
  else by_sum(dtype, f);
}
template <class F>
void by_route(Dtype dtype, F&& f) {
  if (dtype == Dtype::uint8) f(std::uint8_t{});
  else f(u32{});
}

template <class A>
bool has_type(const Dense& array) {
  return array.dtype == DtypeOf<A>::value;
}

template <class A>
A* elements_of(const Dense& array, i64 element) {
  return reinterpret_cast<A*>(array.data) + element;
}

// Writes n numbers of type A to elements `first`, `first` + 1, ...
template <class A>
POOLGRAD_LOOP void write(const Dense& array, i64 first, const A* from, i64 n) {
  by_element<A>(array.dtype, [&](auto s) {
    narrow_run(from, elements_of<decltype(s)>(array, first), n, array.dtype == Dtype::boolean);
  });
}

// Returns n elements of an array as numbers of type A: a pointer into the array if they are of type
// A there, else a copy in `buffer`.
template <class A>
POOLGRAD_LOOP const A* read(const Dense& array, i64 first, i64 n, A* buffer) {
  if (has_type<A>(array)) return elements_of<A>(array, first);
  by_element<A>(array.dtype,
                [&](auto s) { widen_run(elements_of<decltype(s)>(array, first), buffer, n); });
  return buffer;
}

}  // namespace POOLGRAD_ISA
}  // namespace poolgrad
