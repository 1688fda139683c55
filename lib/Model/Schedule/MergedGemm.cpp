//===- MergedGemm.cpp - which products become one -------------------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Model/Schedule/MergedGemm.h"

#include "DiffAttn/Runtime/ABI/Table.h"

bool mlir::diffattn::canMergeGemm(int64_t rows, int64_t columns,
                                  int64_t weightBytes, int64_t resultBytes) {
  constexpr int64_t kVectorBytes = 16;
  return rows * columns * weightBytes % DIFFATTN_WEIGHT_ALIGNMENT == 0 &&
         rows * resultBytes % kVectorBytes == 0;
}
