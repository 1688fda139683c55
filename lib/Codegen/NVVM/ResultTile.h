//===- ResultTile.h - rows of the result through shared memory --*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_RESULTTILE_H
#define DIFFATTN_LIB_CODEGEN_NVVM_RESULTTILE_H

#include "AttentionKernel.h"
#include "DiffAttn/Codegen/NVVM/HopperBuilder.h"

namespace mlir::diffattn::gpucode {

/// 16 rows of the result, of one warp. They are written to shared memory as
/// boxes of a tensor map want them, and one thread has the copy engine store
/// these. A tile that ends beyond the queries of its sequence is stored by
/// rows: the rows that follow in memory are another sequence's.
class ResultTile {
public:
  static constexpr int64_t kRows = GpuWgmmaAttr::kResultRows;

  /// The rows from `localRow` on of the block's result, of which `firstRow` is
  /// the query of the first.
  ResultTile(AttentionKernel &kernel, const QueryBlock &place, Value localRow,
             Value firstRow);
  /// Finishes and stores rows g and g + 8 of each lane; nothing may use the
  /// place any more. All lanes of the warp call it together.
  void store(ArrayRef<Fragment> x, std::array<Value, 2> factors);

private:
  void write(ArrayRef<Fragment> x, std::array<Value, 2> factors);
  void storeBoxes();
  void storeRows();

  AttentionKernel &kernel;
  GpuBuilder &b;
  HopperBuilder hopper;
  const QueryBlock &place;
  Epilogue epilogue;
  Value firstRow, base;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_RESULTTILE_H
