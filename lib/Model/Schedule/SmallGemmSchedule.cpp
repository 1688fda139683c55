//===- SmallGemmSchedule.cpp - products with few rows ---------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Schedule/SmallGemmSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;

SmallGemmSchedule
mlir::diffattn::selectSmallGemmSchedule(const CpuTarget &target) {
  // Two sums a row and the loaded vectors stay in registers. An item reads
  // enough to be worth handing out.
  return {/*rows=*/target.vectorRegisters >= 16 ? 4 : 2,
          /*itemBytes=*/128 << 10};
}
