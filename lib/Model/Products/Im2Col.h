//===- Im2Col.h - convolutions as contractions ------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_PRODUCTS_IM2COL_H
#define DIFFATTN_LIB_MODEL_PRODUCTS_IM2COL_H

namespace mlir {
class RewritePatternSet;

namespace diffattn {
/// Convolutions of one group and of known sizes but for their batches, on
/// tensors of floats: a copy of the elements under the filter at each place,
/// and a contraction with the filter. Many copies or batches become tiles in a
/// loop.
void populateIm2ColPatterns(RewritePatternSet &patterns);
} // namespace diffattn
} // namespace mlir

#endif // DIFFATTN_LIB_MODEL_PRODUCTS_IM2COL_H
