//===- Sequences.h - packed sequences and pages of keys ---------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_TESTING_REFERENCE_SEQUENCES_H
#define DIFFATTN_LIB_TESTING_REFERENCE_SEQUENCES_H

#include "DiffAttn/Testing/Reference/Attention.h"

namespace mlir::diffattn::reference {

/// Whether arguments have cu_seqlens or a block_table.
bool hasTables(const AttentionArguments &arguments);

/// What is wrong with the tables and with the shapes of such arguments; empty
/// if nothing is.
std::string checkWithTables(const AttentionArguments &arguments);

/// Attention of each sequence alone, with dense keys and values.
AttentionResult attentionWithTables(const AttentionArguments &arguments);

} // namespace mlir::diffattn::reference

#endif // DIFFATTN_LIB_TESTING_REFERENCE_SEQUENCES_H
