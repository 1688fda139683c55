//===- PageTable.h - keys in pages ------------------------------*- C++ -*-===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#ifndef DIFFATTN_LIB_CODEGEN_NVVM_PAGETABLE_H
#define DIFFATTN_LIB_CODEGEN_NVVM_PAGETABLE_H

#include "DiffAttn/Codegen/NVVM/GpuBuilder.h"

namespace mlir::diffattn::gpucode {
struct AttentionKernel;

/// The row of block_table that is a sequence's.
class PageTable {
public:
  PageTable(AttentionKernel &kernel, Value sequence);

  /// The place of a key: a valid page and a row of it, both i32. If the entry
  /// of the table is no page, the page is the first one and `exists`, an i1, is
  /// false.
  struct Place {
    Value page, row, exists;
  };
  /// The place of `key`, an i32 below the number of keys.
  Place find(Value key);

private:
  AttentionKernel &kernel;
  GpuBuilder &b;
  Value entries;
};

} // namespace mlir::diffattn::gpucode

#endif // DIFFATTN_LIB_CODEGEN_NVVM_PAGETABLE_H
