//===- Wgmma.cpp - products of a warpgroup --------------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "Wgmma.h"
#include "Numerics.h"

#include <cstring>

using namespace mlir::diffattn::sim;

/// The bytes of a row of the swizzle, and of the eight that it permutes.
static constexpr uint32_t kRow = 128, kAtom = 1024;
/// The addresses of descriptors have 18 bits.
static constexpr uint32_t kAddresses = 1 << 18;

const char *MatrixDescriptor::read(uint64_t bits, uint32_t contiguous,
                                   MatrixDescriptor &result) {
  // PTX ISA, "Matrix descriptor format" of wgmma.
  auto field = [&](unsigned first) {
    return static_cast<uint32_t>(bits >> first & 0x3fff) << 4;
  };
  result.start = field(0);
  result.leadingBytes = field(16);
  result.strideBytes = field(32);
  if (bits >> 62 != 1)
    return "expected the 128-byte swizzle, which is what the simulator knows";
  if (bits >> 49 & 7)
    return "expected the base offset to be 0, which is what the simulator "
           "knows";
  if (result.start % kAtom >= kRow)
    return "expected it to begin in the first of the eight rows of a swizzle, "
           "for tiles aligned to 1024 bytes";
  if (result.start % kRow + contiguous > kRow)
    return "expected the elements that lie together to be in one row of 128 "
           "bytes";
  return nullptr;
}

uint32_t MatrixOperand::locate(uint32_t index, uint32_t k) const {
  // Eight rows of 128 bytes lie together. If k is contiguous, rows are along
  // the other axis, and `strideBytes` goes to the next eight; else rows are
  // along k, `strideBytes` goes to the next eight of them, and `leadingBytes`
  // to the next 64 elements of the other axis.
  uint32_t address = descriptor.start;
  if (kMajor)
    address += index / 8 * descriptor.strideBytes + index % 8 * kRow + 2 * k;
  else
    address += index / 64 * descriptor.leadingBytes +
               k / 8 * descriptor.strideBytes + k % 8 * kRow + index % 64 * 2;
  address %= kAddresses;
  return address ^ (address >> 7 & 7) << 4;
}

double mlir::diffattn::sim::elementOf(MmaType type, uint16_t bits) {
  return type == MmaType::BF16 ? bfloatToFloat(bits) : halfToFloat(bits);
}

void mlir::diffattn::sim::takeFragment(const Site &site, unsigned warp,
                                       const uint32_t *const in[32],
                                       unsigned first, MatrixValues &values) {
  // PTX ISA, fragment of A of wgmma.m64nNk16: as that of mma.m16n8k16, 16 rows
  // a warp.
  for (unsigned lane = 0; lane < 32; ++lane)
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = 16 * warp + lane / 4 + 8 * (i & 1),
                     k = 2 * (lane % 4) + 8 * (i >> 1);
      const uint32_t word = in[lane][first + i];
      values.a[row][k] = elementOf(site.type, word);
      values.a[row][k + 1] = elementOf(site.type, word >> 16);
    }
}

void mlir::diffattn::sim::multiplyRows(const Site &site, unsigned warp,
                                       const MatrixValues &values,
                                       bool accumulates,
                                       const uint32_t *const in[32],
                                       uint32_t *const out[32]) {
  const unsigned columns = site.columns;
  for (unsigned row = 0; row < 16; ++row) {
    const double *a = values.a[16 * warp + row];
    double sums[256] = {};
    // Accumulator i of a lane: the pair of columns 8·(i/4) + 2·(lane%4), of row
    // lane/4 or of that plus 8.
    auto forLanes = [&](auto visit) {
      for (unsigned lane = row % 8 * 4, end = lane + 4; lane < end; ++lane)
        for (unsigned column = 2 * (lane % 4); column < columns; column += 8)
          for (unsigned half = 0; half < 2; ++half)
            visit(lane, column / 8 * 4 + row / 8 * 2 + half, column + half);
    };
    if (accumulates)
      forLanes([&](unsigned lane, unsigned i, unsigned column) {
        float value;
        memcpy(&value, in[lane] + i, sizeof(value));
        sums[column] = value;
      });
    for (unsigned k = 0; k < 16; ++k)
      for (unsigned column = 0; column < columns; ++column)
        sums[column] += a[k] * values.b[k][column];
    forLanes([&](unsigned lane, unsigned i, unsigned column) {
      const float value = static_cast<float>(sums[column]);
      memcpy(out[lane] + i, &value, sizeof(value));
    });
  }
}
