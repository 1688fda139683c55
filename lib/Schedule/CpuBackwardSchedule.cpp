//===- CpuBackwardSchedule.cpp - the CPU kernel for gradients -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/CpuSchedule.h"

#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace mlir::diffattn;

CpuBackwardAttr mlir::diffattn::selectCpuBackward(const AttentionShape &shape,
                                                  const CpuTarget &target) {
  MLIRContext *context = shape.elementType.getContext();
  const CpuMicroKernel &kernel =
      *llvm::find_if(getCpuMicroKernels(), [&](const CpuMicroKernel &row) {
        return row.backwardKvBlockSize && row.takes(shape, target);
      });
  auto tile = [&](const RegisterTile &t) {
    return DenseI64ArrayAttr::get(context, {t.height, t.vectors, t.unroll});
  };
  // Three planes of 16k keys and a block of queries are 9 MiB, or 18.
  constexpr int64_t twoPassKeys = 16384;
  // From 2k queries on there is more than one slice.
  const int64_t rows = kernel.backwardQBlockSize;
  const int64_t sliceQueries = 1024 / rows * rows;
  return CpuBackwardAttr::get(context, target.name, target.vectorBytes / 4,
                              rows, tile(kernel.qk), tile(kernel.pv),
                              kernel.backwardKvBlockSize, twoPassKeys,
                              sliceQueries, kernel.product);
}
