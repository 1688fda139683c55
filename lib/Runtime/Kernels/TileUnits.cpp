//===- TileUnits.cpp - AMX's tiles, and an emulation of them --------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "GemmTiles.h"

#include "DiffAttn/Runtime/ABI/TilePermission.h"

#include <cstring>
#include <utility>

using namespace diffattn_rt;

namespace {

typedef float Floats __attribute__((ext_vector_type(kTileColumns)));
typedef uint32_t Words __attribute__((ext_vector_type(kTileColumns)));

#pragma clang attribute push(                                                  \
    __attribute__((target("amx-tile,amx-bf16,avx512f,avx2,fma,f16c"))),        \
    apply_to = function)
namespace amx {
/// The operand of `ldtilecfg` (Intel's manual, volume 1, 18.2).
struct alignas(64) Configuration {
  uint8_t palette = 1, startRow = 0, reserved[14] = {};
  uint16_t rowBytes[16] = {};
  uint8_t rows[16] = {};
};

void begin(int64_t rows) {
  Configuration configuration;
  for (int tile = 0; tile < 8; ++tile) {
    configuration.rowBytes[tile] = kTileRowBytes;
    configuration.rows[tile] = tile < 6 ? rows : kTileRows;
  }
  __builtin_ia32_tile_loadconfig(&configuration);
}
void end() { __builtin_ia32_tilerelease(); }

template <int T>
void zero() {
  __builtin_ia32_tilezero(T);
}
template <int T>
void load(const void *from, int64_t stride) {
  __builtin_ia32_tileloadd64(T, from, stride);
}
template <int T>
void store(void *to, int64_t stride) {
  __builtin_ia32_tilestored64(T, to, stride);
}
template <int C, int A, int B>
void multiply() {
  __builtin_ia32_tdpbf16ps(C, A, B);
}
#include "TileOperands.inc"
#include "TileSilu.inc"
#include "TileUnits.inc"
} // namespace amx
#pragma clang attribute pop

#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))),         \
                             apply_to = function)
namespace emulated {
struct alignas(64) Tile {
  char rows[kTileRows][kTileRowBytes];
};
thread_local Tile tiles[8];
/// Rows of tiles of A and of sums.
thread_local int64_t configuredRows;

void begin(int64_t rows) { configuredRows = rows; }
void end() {}

constexpr int64_t rowsOf(int tile, int64_t rows) {
  return tile < 6 ? rows : kTileRows;
}
template <int T>
void zero() {
  memset(&tiles[T], 0, sizeof(Tile));
}
template <int T>
void load(const void *from, int64_t stride) {
  for (int64_t row = 0; row < rowsOf(T, configuredRows); ++row)
    memcpy(tiles[T].rows[row], static_cast<const char *>(from) + row * stride,
           kTileRowBytes);
}
template <int T>
void store(void *to, int64_t stride) {
  for (int64_t row = 0; row < rowsOf(T, configuredRows); ++row)
    memcpy(static_cast<char *>(to) + row * stride, tiles[T].rows[row],
           kTileRowBytes);
}

/// Subnormal numbers become 0 with their sign.
inline Floats flush(Words x) {
  const Words sign = x & 0x80000000u;
  x = (x & 0x7f800000u) == 0 ? sign : x;
  Floats result;
  memcpy(&result, &x, sizeof result);
  return result;
}
inline Floats flush(Floats x) {
  Words bits;
  memcpy(&bits, &x, sizeof bits);
  return flush(bits);
}

/// TDPBF16PS. Subnormal operands and results are 0 (Intel's manual, volume 2);
/// the order of the sums was compared with the instruction.
template <int C, int A, int B>
void multiply() {
  Floats evenB[kTileRows], oddB[kTileRows];
  for (int64_t k = 0; k < kTileRows; ++k) {
    Words pairs;
    memcpy(&pairs, tiles[B].rows[k], sizeof pairs);
    evenB[k] = flush(pairs << 16);
    oddB[k] = flush(pairs & 0xffff0000u);
  }
  for (int64_t row = 0; row < configuredRows; ++row) {
    Floats even = 0.0f, odd = 0.0f, sum;
    for (int64_t k = 0; k < kTileRows; ++k) {
      uint32_t pair;
      memcpy(&pair, tiles[A].rows[row] + 4 * k, sizeof pair);
      const Floats evenA = flush(Words(pair << 16)),
                   oddA = flush(Words(pair & 0xffff0000u));
      even = flush(__builtin_elementwise_fma(evenA, evenB[k], even));
      odd = flush(__builtin_elementwise_fma(oddA, oddB[k], odd));
    }
    memcpy(&sum, tiles[C].rows[row], sizeof sum);
    sum = flush(flush(sum) + flush(even + odd));
    memcpy(tiles[C].rows[row], &sum, sizeof sum);
  }
}
#include "TileOperands.inc"
#include "TileSilu.inc"
#include "TileUnits.inc"
} // namespace emulated
#pragma clang attribute pop

bool hasAmx() {
  static const bool has = __builtin_cpu_supports("amx-tile") &&
                          __builtin_cpu_supports("amx-bf16") &&
                          __builtin_cpu_supports("avx512f") &&
                          requestTiles() == 0;
  return has;
}

bool canEmulate() {
  static const bool can =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return can;
}

} // namespace

#define TILE_UNIT(NS)                                                          \
  {NS::begin, NS::multiplyAny, NS::end,     NS::widen,                         \
   NS::split, NS::addScaled,   NS::gateSums}
const TileUnit *diffattn_rt::findTileUnit(bool tiles, bool emulates) {
  static const TileUnit ofAmx TILE_UNIT(amx), ofEmulation TILE_UNIT(emulated);
  if (emulates)
    return canEmulate() ? &ofEmulation : nullptr;
  return tiles && hasAmx() ? &ofAmx : nullptr;
}
#undef TILE_UNIT
