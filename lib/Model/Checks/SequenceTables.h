//===- SequenceTables.h - assertions about tables of sequences --*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_MODEL_CHECKS_SEQUENCETABLES_H
#define DIFFATTN_LIB_MODEL_CHECKS_SEQUENCETABLES_H

#include "DiffAttn/IR/DiffAttn.h"

namespace mlir::diffattn {

/// Writes, at the insertion point, assertions about what the tables of `op`
/// hold: cu_seqlens_q and cu_seqlens_k begin with 0, do not fall and end at the
/// number of queries and keys; there is one number or row for each sequence;
/// and block_table names pages that exist, for every key that kv_len counts.
/// None for an op without such tables.
void assertSequenceTables(OpBuilder &builder, DifferentialMapsOpInterface op);

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_MODEL_CHECKS_SEQUENCETABLES_H
