//===- Wgmma.h - products of a warpgroup ------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_SIMULATOR_WGMMA_H
#define DIFFATTN_LIB_TESTING_SIMULATOR_WGMMA_H

#include "Site.h"

#include "llvm/ADT/STLFunctionalExtras.h"

#include <string>

namespace mlir::diffattn::sim {

/// The fields of the 64 bits that describe an operand in shared memory.
struct MatrixDescriptor {
  /// The lower 18 bits of the address.
  uint32_t start = 0;
  uint32_t leadingBytes = 0, strideBytes = 0;

  /// Null, or the error in the descriptor: it must have the 128-byte swizzle,
  /// begin in the first row of one, and need no base offset. `contiguous` are
  /// the bytes that lie together from `start` on.
  static const char *read(uint64_t bits, uint32_t contiguous,
                          MatrixDescriptor &result);
};

/// An operand of a wgmma in shared memory: `outer` rows of A or columns of B,
/// by 16 elements of 2 bytes along k.
struct MatrixOperand {
  MatrixDescriptor descriptor;
  uint32_t outer = 64;
  /// The elements along k lie together, else those along the other axis.
  bool kMajor = true;

  /// Where an element lies, as an offset in the lower 18 bits of addresses.
  uint32_t locate(uint32_t index, uint32_t k) const;
};

/// The values that a wgmma multiplies: B by columns of k.
struct MatrixValues {
  double a[64][16];
  double b[16][256];
};

double elementOf(MmaType type, uint16_t bits);

/// Takes A from the registers that the lanes of warp `warp` gave from word
/// `first` on.
void takeFragment(const Site &site, unsigned warp, const uint32_t *const in[32],
                  unsigned first, MatrixValues &values);

/// D = A·B + C for the rows of warp `warp`; C is what the lanes gave, or 0.
/// Products are exact, sums are kept in f64 in the order of k, and rounded once
/// to f32, as multiplyFragments does.
void multiplyRows(const Site &site, unsigned warp, const MatrixValues &values,
                  bool accumulates, const uint32_t *const in[32],
                  uint32_t *const out[32]);

} // namespace mlir::diffattn::sim

#endif // DIFFATTN_LIB_TESTING_SIMULATOR_WGMMA_H
