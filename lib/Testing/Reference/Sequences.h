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

/// The first error in the tables and the shapes of such arguments; empty if
/// there is none.
std::string checkWithTables(const AttentionArguments &arguments);

/// Rows [first, first + count) along an axis.
struct SequenceRows {
  int64_t first, count;
  /// These rows of `view`; a number has no rows and stays as it is.
  View of(const View &view, int64_t axis) const {
    return view.rank() ? view.sliced(axis, first, count) : view;
  }
};

/// One of packed sequences as an attention of its own, and its rows.
struct PackedSequence {
  AttentionArguments arguments;
  SequenceRows queries, keys;
};

bool isPacked(const AttentionArguments &arguments);
int64_t countSequences(const AttentionArguments &arguments);
/// Sequence `n` of packed ones without pages.
PackedSequence getPackedSequence(const AttentionArguments &arguments,
                                 int64_t n);

/// Attention of each sequence alone, with dense keys and values.
AttentionResult attentionWithTables(const AttentionArguments &arguments);

} // namespace mlir::diffattn::reference

#endif // DIFFATTN_LIB_TESTING_REFERENCE_SEQUENCES_H
