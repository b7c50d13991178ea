// Packs numbers of 2 or 4 bits into bytes, and unpacks them.
#pragma once

#include "base/thread_pool.hpp"
#include "kernels.hpp"
#include "simd/vector.hpp"

namespace poolgrad::inline POOLGRAD_ISA {

// Integer that holds the kNumbersPerByte bytes which are packed into one byte.
template <int Bits>
using Unpacked = std::conditional_t<Bits == 2, u32, std::uint16_t>;
template <int Bits>
inline constexpr i64 kNumbersPerByte = 8 / Bits;

// The same number in every byte.
template <int Bits>
constexpr Unpacked<Bits> broadcast(u32 byte) {
  return static_cast<Unpacked<Bits>>(byte * 0x01010101u);
}

// Packs the bytes of each lane into its lowest byte.
template <int Bits, class V>
V pack_bytes(V v) {
  V packed{};
  for (int j = 0; j < kNumbersPerByte<Bits>; ++j) {
    // A variable of type Unpacked: with -fsanitize=shift, GCC 12 otherwise gives the shift type
    // int.
    const auto ones = static_cast<Unpacked<Bits>>(((1u << Bits) - 1) << j * Bits);
    packed |= v >> j * (8 - Bits) & ones;
  }
  return packed;
}

// Unpacks the lowest byte of each lane. nowhere: numbers of all ones become 255.
template <int Bits, class V>
V unpack_bytes(V packed, bool nowhere) {
  V v{};
  for (int j = 0; j < kNumbersPerByte<Bits>; ++j) v |= packed << j * (8 - Bits);
  v &= broadcast<Bits>((1 << Bits) - 1);
  if (!nowhere) return v;
  const V ones = (v + broadcast<Bits>(1)) >> Bits & broadcast<Bits>(1);
  return v | ((ones << 8) - ones);
}

// Packs n pixels of `inner` numbers each.
template <int Bits>
POOLGRAD_LOOP void pack(const std::uint8_t* from, std::uint8_t* to, i64 n, i64 inner) {
  constexpr i64 kCount = kNumbersPerByte<Bits>;
  i64 i = 0;
  if (inner == 1) {
    lanes<Unpacked<Bits>>(n / kCount, [&](auto w, i64 byte) {
      const auto v = load<Vec<Unpacked<Bits>, w()>>(from + byte * kCount);
      store(to + byte, convert<std::uint8_t>(pack_bytes<Bits>(v)));
    });
    i = n / kCount * kCount, to += n / kCount;
  }
  for (; i < n; i += kCount, to += inner) {
    for (i64 j = 0; j < smaller(kCount, n - i); ++j) {
      const std::uint8_t* pixel = from + (i + j) * inner;
      for (i64 c = 0; c < inner; ++c) {
        const auto bits = static_cast<std::uint8_t>((pixel[c] & ((1 << Bits) - 1)) << (j * Bits));
        to[c] = j ? to[c] | bits : bits;
      }
    }
  }
}

// Unpacks n pixels of `inner` numbers each.
template <int Bits>
POOLGRAD_LOOP void unpack(const std::uint8_t* from, std::uint8_t* to, i64 n, i64 inner,
                          bool nowhere) {
  constexpr i64 kCount = kNumbersPerByte<Bits>;
  constexpr std::uint8_t kOnes = (1 << Bits) - 1;
  i64 i = 0;
  if (inner == 1) {
    lanes<Unpacked<Bits>>(n / kCount, [&](auto w, i64 byte) {
      const auto v = convert<Unpacked<Bits>>(load<Vec<std::uint8_t, w()>>(from + byte));
      store(to + byte * kCount, unpack_bytes<Bits>(v, nowhere));
    });
    i = n / kCount * kCount, from += n / kCount;
  }
  for (; i < n; i += kCount, from += inner) {
    for (i64 j = 0; j < smaller(kCount, n - i); ++j) {
      std::uint8_t* pixel = to + (i + j) * inner;
      for (i64 c = 0; c < inner; ++c) {
        const auto v = static_cast<std::uint8_t>(from[c] >> (j * Bits) & kOnes);
        pixel[c] = nowhere && v == kOnes ? std::uint8_t{0xFF} : v;
      }
    }
  }
}

// Calls each(first number, first byte, pixels) for pieces of rows, on threads.
template <class F>
void over_pieces(const PackedRows& p, int threads, F&& each) {
  const i64 most = larger(8, (i64{1} << 16) / larger(1, p.inner) / 8 * 8);  // pixels of a piece
  const bool dense = p.inner == 1 && p.pixels * p.bits % 8 == 0;            // rows are adjacent
  const i64 lines = dense ? 1 : p.rows, length = dense ? p.rows * p.pixels : p.pixels;
  const i64 pieces = (length + most - 1) / most, together = larger(1, most / larger(1, length));
  parallel_for((lines * pieces + together - 1) / together, threads, [&](i64 task) {
    const i64 last = smaller((task + 1) * together, lines * pieces);
    for (i64 k = task * together; k < last; ++k) {
      const i64 line = k / pieces, at = k % pieces * most;
      each((line * length + at) * p.inner, (line * p.bytes(length) + p.bytes(at)) * p.inner,
           smaller(most, length - at));
    }
  });
}

inline void pack_routes(const PackedRows& p, const std::uint8_t* from, std::uint8_t* to,
                        int threads) {
  const auto run = p.bits == 2 ? pack<2> : pack<4>;
  over_pieces(p, threads,
              [&](i64 number, i64 byte, i64 n) { run(from + number, to + byte, n, p.inner); });
}
inline void unpack_routes(const PackedRows& p, const std::uint8_t* from, std::uint8_t* to,
                          int threads) {
  const auto run = p.bits == 2 ? unpack<2> : unpack<4>;
  over_pieces(p, threads, [&](i64 number, i64 byte, i64 n) {
    run(from + byte, to + number, n, p.inner, p.nowhere);
  });
}

}  // namespace poolgrad::inline POOLGRAD_ISA
