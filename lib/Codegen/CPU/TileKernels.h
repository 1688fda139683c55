//===- TileKernels.h - the phases of a kernel by matrix tiles ---*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_TILEKERNELS_H
#define DIFFATTN_LIB_CODEGEN_CPU_TILEKERNELS_H

#include "ProductAtom.h"

namespace mlir::diffattn {

/// Phases as in MicroKernels.h, for products by tiles. No function calls
/// another one, so that the tiles are configured once in each.

/// Transposed scores of `n` keys against `vectors` vectors of queries, and the
/// running maximum of each lane in `maxima`, which is not touched unless the
/// kernel `keepsMaximum`. Rows of keys have `depth` columns
/// of 16 bits, a multiple of 32; queries are pairs [depth / 2][lane]. The keys
/// behind the last whole tile of 16 are read from `tail`, 16 rows of `depth`
/// columns that end with zeros; so many scores are written.
///   (keys: ptr, keyStride, queries: ptr, depth, n, tail: ptr, scores: ptr,
///    maxima: ptr)
LLVM::LLVMFuncOp getTileScoresKernel(KernelBuilder &b, ModuleOp module,
                                     CpuPrefillAttr schedule, int64_t vectors,
                                     const ProductAtom &atom,
                                     bool keepsMaximum = true);

/// Scores of `n` keys against `vectors` vectors of queries, f32, become
/// exponentials relative to `maxima`, which are added to `sums` and rounded to
/// pairs of the atom's numbers: e[key / 2][lane], the last of an odd number
/// with 0. Masked: a score of -inf is hidden, its exponential 0. Scores are
/// multiplied with `factor` if `scaled`.
///   (scores: ptr, n, maxima: ptr, sums: ptr, factor: f32, e: ptr)
LLVM::LLVMFuncOp getTileExponentialKernel(KernelBuilder &b, ModuleOp module,
                                          CpuPrefillAttr schedule,
                                          int64_t vectors, bool masked,
                                          bool scaled, const ProductAtom &atom);

/// p[key / 32][lane][key % 32] = e1[key][lane] * factor1[lane] - e2[key][lane]
/// * factor2[lane] for `n` keys and one vector of queries, rounded to the
/// atom's numbers, with zeros up to a multiple of 32 keys. Exponentials are
/// pairs, as `getTileExponentialKernel` leaves them.
///   (e1: ptr, e2: ptr, factor1: ptr, factor2: ptr, n, p: ptr)
LLVM::LLVMFuncOp getTileCombineKernel(KernelBuilder &b, ModuleOp module,
                                      CpuPrefillAttr schedule,
                                      const ProductAtom &atom);

/// p[key / 32][lane][key % 32]: the exponentials of `n` keys of one map and one
/// vector of queries, with zeros up to a multiple of 32 keys. Exponentials are
/// pairs, as `getTileExponentialKernel` leaves them.
///   (e: ptr, n, p: ptr)
LLVM::LLVMFuncOp getTileWeightsKernel(KernelBuilder &b, ModuleOp module,
                                      CpuPrefillAttr schedule,
                                      const ProductAtom &atom);

/// out[row][c] += sum over keys of p[row][key] * values[key][c], for the rows
/// [rowBegin, rowEnd), a multiple of 16 `tiles` of them, and `columns` columns,
/// a multiple of 16. Tiles of p are [row / 16][key / 32], with room for
/// kv_block_size keys; values are pairs [ceil(n / 32) * 16][valueStride]. Rows
/// take ranges of keys as in `getProductKernel`.
///   (p: ptr, values: ptr, valueStride, out: ptr, outStride, rowBegin, rowEnd,
///    columns, n, low, lowSlope, high, highSlope)
LLVM::LLVMFuncOp getTileProductKernel(KernelBuilder &b, ModuleOp module,
                                      CpuPrefillAttr schedule, int64_t tiles,
                                      const ProductAtom &atom);

/// The product that contracts queries: out[key][c] += sum over lanes < rows of
/// p[key][lane] * values[lane][c], for `n` keys, `tiles` tiles of 16 at a time,
/// and `columns` columns, a multiple of 16. Rows of p are `q_block_size`
/// numbers apart, and those of whole tiles of keys are read; values are pairs
/// [lane / 2][valueStride], with zeros behind the last row up to a multiple of
/// 32 lanes, for numbers of p that are finite there.
///   (p: ptr, values: ptr, valueStride, out: ptr, outStride, rows, columns, n)
LLVM::LLVMFuncOp getTileKeyProductKernel(KernelBuilder &b, ModuleOp module,
                                         CpuPrefillAttr schedule, int64_t tiles,
                                         const ProductAtom &atom);

/// Parameters of a kernel of `getTileFewScoresKernel`.
struct FewScores {
  /// Rows of queries, up to 16.
  int64_t rows;
  /// Columns of a key that are multiplied, an even number, where it is known.
  std::optional<int64_t> columns;
  /// Whether lines are prefetched `ahead` bytes behind those that are read.
  bool prefetches = false;
};

/// Scores of `n` keys, a multiple of 16, against few rows of queries:
/// scores[key / 16][row][key % 16], where vectors of keys are `stride` apart.
/// Queries are pairs [column / 2][row], with zeros up to `depth`, a multiple of
/// 32; so many columns are read of each key where their number is not known.
/// `sums` has room for n rows of 16 f32.
///   (keys: ptr, keyStride, queries: ptr, depth, n, ahead, sums: ptr,
///    scores: ptr, stride)
LLVM::LLVMFuncOp getTileFewScoresKernel(KernelBuilder &b, ModuleOp module,
                                        const FewScores &shape,
                                        const ProductAtom &atom);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_TILEKERNELS_H
