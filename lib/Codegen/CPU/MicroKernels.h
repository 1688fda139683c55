//===- MicroKernels.h - the register-blocked phases of a kernel -*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_MICROKERNELS_H
#define DIFFATTN_LIB_CODEGEN_CPU_MICROKERNELS_H

#include "ProductAtom.h"

#include "DiffAttn/Schedule/CpuSchedule.h"

namespace mlir::diffattn {

/// Height of the score tile when it is `vectors` wide: fewer vectors leave
/// registers for keys.
int64_t scoreTileHeight(CpuPrefillAttr schedule, int64_t vectors);
/// Height of the product tile when it is `vectors` wide, at most twice the full
/// tile's.
int64_t productTileHeight(CpuPrefillAttr schedule, int64_t vectors);
/// Rows that an output panel needs: tiles of any width may run over the last
/// row.
int64_t productPanelRows(CpuPrefillAttr schedule);
/// Keys that a plane of scores needs beyond the last: the last tile may run
/// over it.
int64_t scorePlanePadding(CpuPrefillAttr schedule);

/// Transposed scores of `n` keys against `vectors` vectors of queries:
///   scores[key][lane] = sum over c < d of keys[key][c] * queries[c][lane],
/// with the running maximum of each lane in `maxima`, which is not touched
/// unless the kernel `keepsMaximum`. Rows of both panels are
/// `q_block_size` apart. Keys have f32 or bf16 columns side by side; queries
/// in pairs are [ceil(d / 2)][lane], an odd last one paired with 0.
///   (keys: ptr, keyStride, queries: ptr, d, n, scores: ptr, maxima: ptr)
LLVM::LLVMFuncOp getScoresKernel(KernelBuilder &b, ModuleOp module,
                                 CpuPrefillAttr schedule, int64_t vectors,
                                 const ProductAtom &atom,
                                 bool keepsMaximum = true);

/// scores[key][lane] becomes 2^(factor * (score - maximum[lane])) in place, and
/// its sum over `n` keys is added to `sums`. With `hasMasked`, -inf becomes 0
/// exactly. The factor counts if `scaled` and is otherwise 1; `degree` is that
/// of the polynomial.
///   (scores: ptr, n, maxima: ptr, sums: ptr, factor: f32)
LLVM::LLVMFuncOp getExponentialKernel(KernelBuilder &b, ModuleOp module,
                                      CpuPrefillAttr schedule, int64_t vectors,
                                      bool hasMasked, bool scaled, int degree);

/// p[key][lane] = e1[key][lane] * factor1[lane] - e2[key][lane] * factor2[lane]
/// for `n` keys; in pairs, p[key / 2][lane], an odd last key paired with 0.
///   (e1: ptr, e2: ptr, factor1: ptr, factor2: ptr, n, p: ptr)
LLVM::LLVMFuncOp getCombineKernel(KernelBuilder &b, ModuleOp module,
                                  CpuPrefillAttr schedule, int64_t vectors,
                                  const ProductAtom &atom);

/// p[key / 2][lane]: the exponentials e[key][lane] of `n` keys of one map in
/// pairs, an odd last key paired with 0.
///   (e: ptr, n, p: ptr)
LLVM::LLVMFuncOp getPackWeightsKernel(KernelBuilder &b, ModuleOp module,
                                      CpuPrefillAttr schedule, int64_t vectors,
                                      const ProductAtom &atom);

/// out[row][c] += sum over keys of p[key][row] * values[key][c], for `rows`
/// rows and `columns` columns (a multiple of the tile's width unless `masked`,
/// when it is less than one vector). Row `r` takes the keys from `low + r *
/// lowSlope` to `high + r * highSlope`, of those in [0, n), in steps of whole
/// tiles: the keys of a tile's rows are united. In pairs, p and values are
/// [ceil(n / 2)][...]. With `careful`, a p of 0 adds nothing, whatever it is
/// multiplied with; numbers that are finite give the same bits either way.
///   (p: ptr, values: ptr, valueStride, out: ptr, outStride, rows, columns, n,
///    low, lowSlope, high, highSlope)
LLVM::LLVMFuncOp getProductKernel(KernelBuilder &b, ModuleOp module,
                                  CpuPrefillAttr schedule, int64_t vectors,
                                  bool masked, const ProductAtom &atom,
                                  bool careful = false);

/// The product that contracts queries: out[key][c] += sum over lanes < rows of
/// p[key][lane] * values[lane][c], for `n` keys and `columns` columns, a
/// multiple of the tile's width. Rows of p are `q_block_size` numbers apart; in
/// pairs, neighbours in them are one, values are [ceil(rows / 2)][...], and the
/// partner of an odd number's last lane is multiplied with zeros. `careful` as
/// above.
///   (p: ptr, values: ptr, valueStride, out: ptr, outStride, rows, columns, n)
LLVM::LLVMFuncOp getLaneProductKernel(KernelBuilder &b, ModuleOp module,
                                      CpuPrefillAttr schedule, int64_t vectors,
                                      const ProductAtom &atom, bool careful);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_MICROKERNELS_H
