//===- CpuPrefillSchedule.cpp - the CPU kernel for blocks of queries ------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/CpuSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;

CpuPrefillAttr mlir::diffattn::selectCpuPrefill(const AttentionShape &shape,
                                                const CpuTarget &target) {
  const CpuMicroKernel &kernel = selectCpuMicroKernel(shape, target);
  MLIRContext *context = shape.elementType.getContext();
  auto tile = [&](const RegisterTile &t) {
    return DenseI64ArrayAttr::get(context, {t.height, t.vectors, t.unroll});
  };
  // Two maps of f32 scores for a block of queries. Up to 16k keys streaming
  // them from the last cache level is faster than two accumulators, and memory
  // needs a bound anyway.
  // Scores are kept so that the difference of two maps is multiplied with V
  // once; one map has no difference.
  const int64_t twoPassKeys = shape.maps == 1 ? 0 : 16384;
  return CpuPrefillAttr::get(context, target.name, target.vectorBytes / 4,
                             kernel.qBlockSize, tile(kernel.qk),
                             tile(kernel.pv), kernel.kvBlockSize, twoPassKeys,
                             kernel.product);
}
