//===- BackwardMicroKernels.h - gradients of a block of maps ----*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Steps between the products: planes are [key][lane], rows `q_block_size`
// apart, and e1 and e2 the exponentials of both maps, which a factor for each
// lane turns into weights. Of `maps`, 1 or 2, kernels of one lack the arguments
// e2, factor2, lambda, sums2 and slopes2, and their a2 is 0. Where keys may be
// `hidden`, an exponential of 0 is that of one, and gives 0 whatever it meets.
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_BACKWARDMICROKERNELS_H
#define DIFFATTN_LIB_CODEGEN_CPU_BACKWARDMICROKERNELS_H

#include "ProductAtom.h"

namespace mlir::diffattn {

/// sums[lane] += factor[lane] * sum over `n` keys of e[key][lane] *
/// products[key][lane], for both maps and `vectors` vectors of lanes.
///   (e1: ptr, e2: ptr, products: ptr, factor1: ptr, factor2: ptr, n,
///    sums1: ptr, sums2: ptr)
LLVM::LLVMFuncOp getRowSumsKernel(KernelBuilder &b, ModuleOp module,
                                  CpuPrefillAttr schedule, int64_t vectors,
                                  int64_t maps, bool hidden);

/// Makes, for `n` keys, of a1 = factor1 * e1 and a2 = lambda * factor2 * e2 the
/// difference p = a1 - a2 and the gradients of scores d1 = a1 * (products -
/// sums1) and d2 = a2 * (sums2 - products), each of the last two times its
/// slope where the kernel is `capped`. By single numbers they take the places
/// of products, e1 and e2. In pairs these stay, and the results are rounded: to
/// [key][lane] of p, d1 and d2 in `rows`, numbers of 16 bits in rows
/// `q_block_size` apart, and to [key / 2][lane] of d1 and d2 in `pairs`, an odd
/// last key paired with 0.
///   (e1: ptr, e2: ptr, products: ptr, factor1: ptr, factor2: ptr,
///    lambda: ptr, sums1: ptr, sums2: ptr, n, slopes1: ptr, slopes2: ptr;
///    in pairs also rows: 3 ptr, pairs: 2 ptr)
LLVM::LLVMFuncOp getScoreGradientsKernel(KernelBuilder &b, ModuleOp module,
                                         CpuPrefillAttr schedule,
                                         int64_t vectors, int64_t maps,
                                         const ProductAtom &atom, bool hidden,
                                         bool capped);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_BACKWARDMICROKERNELS_H
