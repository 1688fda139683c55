//===- CpuBackwardSchedule.cpp - the CPU kernel for gradients -------------===//
//
// Part of the diffattn project, under the Apache License v2.0 with LLVM
// Exceptions. SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
#include "DiffAttn/Schedule/CpuSchedule.h"

using namespace mlir;
using namespace mlir::diffattn;

CpuBackwardAttr mlir::diffattn::selectCpuBackward(const AttentionShape &shape,
                                                  const CpuTarget &target) {
  MLIRContext *context = shape.elementType.getContext();
  // All types are widened.
  AttentionShape wide = shape;
  wide.elementType = Float32Type::get(context);
  const CpuMicroKernel &kernel = selectCpuMicroKernel(wide, target);
  auto tile = [&](const RegisterTile &t) {
    return DenseI64ArrayAttr::get(context, {t.height, t.vectors, t.unroll});
  };
  // Three planes of 16k keys and a block of queries are 9 MiB.
  constexpr int64_t twoPassKeys = 16384;
  // From 2k queries on there is more than one slice.
  const int64_t sliceQueries = 1024 / kernel.qBlockSize * kernel.qBlockSize;
  return CpuBackwardAttr::get(context, target.name, target.vectorBytes / 4,
                              kernel.qBlockSize, tile(kernel.qk),
                              tile(kernel.pv), kernel.backwardKvBlockSize,
                              twoPassKeys, sliceQueries);
}
