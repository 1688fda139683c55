//===- BiasScan.h - keys that a bias hides ----------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_BIASSCAN_H
#define DIFFATTN_LIB_CODEGEN_CPU_BIASSCAN_H

#include "AttentionSpec.h"
#include "DiffAttn/Codegen/CPU/KernelBuilder.h"

namespace mlir::diffattn {

/// Two i1: whether a bias hides each key of a block from each of some rows of
/// queries, and whether it hides none. Neither is set where that is not known.
struct BiasScan {
  Value hidesAll, hidesNone;
};

/// Rows of one head's bias: where the first key of the first row lies, how far
/// apart rows are, and how many there are of rows and of keys, at least one.
struct BiasRows {
  Value base, rowStride, rows, keys;
};

/// Reads the numbers of `bias`: a key is hidden by false or by -inf. Where
/// `hidesNone` is not wanted, it is not set, and a first key that is seen is
/// all that is read.
BiasScan emitBiasScan(KernelBuilder &b, const SpecOperand &bias,
                      const BiasRows &rows, bool wantsNone);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_BIASSCAN_H
