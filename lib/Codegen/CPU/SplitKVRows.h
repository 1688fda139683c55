//===- SplitKVRows.h - blocks of keys of one row come together --*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_CPU_SPLITKVROWS_H
#define DIFFATTN_LIB_CODEGEN_CPU_SPLITKVROWS_H

#include "SplitKVCall.h"

namespace mlir::diffattn {

/// Emits factors and merge: the loops over rows, which are queries of signal
/// heads.
class SplitKVRows : SplitKVCall {
public:
  using SplitKVCall::SplitKVCall;

  /// The factors of a row's blocks, with sinks in its sums, which are added
  /// once, to the sum over all blocks. Stores the logarithms of these sums.
  void emitFactors(Value index);
  void emitMerge(Value index, Value scratch);

private:
  struct Row {
    Value batch;
    HeadIndices heads;
    Value query;
  };
  Row locateRow(Value index);
};

} // namespace mlir::diffattn

#endif // DIFFATTN_LIB_CODEGEN_CPU_SPLITKVROWS_H
